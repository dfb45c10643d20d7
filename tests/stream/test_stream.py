"""Streamed products have the bits of torch_tiled.matmul, whatever the tiles, layouts and queues.

A simulated GPU runs the whole engine on the CPU. Its queues take turns at random, so that a missing
event is a wrong result for some seeds.
"""

import math

import pytest
import torch
from helpers.reference import assert_same
from helpers.streaming import (
    COMPLEX_VIEWS,
    CUT,
    KINDS,
    LAYOUTS,
    VIEWS,
    both_sides,
    check,
    cut_kinds,
    every_kind,
    poison,
    stream,
)
from helpers.thinning import each_value, pairwise

import torch_tiled
from torch_tiled.stream.order import order_of


def operands(dtype, m, n, k):
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


def options(kind):
    return {"algorithm": kind[1], "precision": kind[2]}


@both_sides
@every_kind
@pytest.mark.parametrize("kept", ["a", "b"])
@pairwise
def test_every_kind(kind, pinned, kept):
    a, b = operands(kind[0], 50, 61, 131)
    check(a, b, tile=(16, 24), kept=kept, pinned=pinned, **options(kind))


@both_sides
@cut_kinds
@pytest.mark.parametrize("tail", [0, 1, 100, 600])
@pytest.mark.parametrize("kept", ["a", "b"])
@pairwise
def test_k_in_slices(kind, tail, kept, pinned):
    """A short tail is summed as it is within the whole, and slices of several chunks too."""
    chunk = kind[3]
    for chunks, depth in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 1)):
        if chunk > 4000 and chunks > 2:
            continue
        a, b = operands(kind[0], 20, 29, chunks * chunk + tail)
        tiles = {"tile": (9, 16), "depth": depth * chunk, "kept": kept}
        check(a, b, **tiles, pinned=pinned, **options(kind))


@both_sides
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("cut", [False, True])
def test_random_interleavings(seed, cut, pinned):
    """Many steps, that wait for each other by events alone."""
    k, depth = (2100, 1024) if cut else (40, None)
    a, b = operands(torch.float32, 100, 90, k)
    tiles = {"tile": (16, 24), "depth": depth, "kept": "ab"[seed % 2]}
    check(a, b, seed=seed, pinned=pinned, **tiles)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("cut", [False, True])
@both_sides
def test_several_workers(workers, cut, pinned):
    k, depth = (2148, 1024) if cut else (150, None)
    a, b = operands(torch.float32, 100, 90, k)
    for seed, algorithm in enumerate(("tiled", "fp16x3")):
        tiles = {"tile": (32, 16), "depth": depth}
        check(a, b, workers=workers, seed=seed, pinned=pinned, algorithm=algorithm, **tiles)


@both_sides
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("cut", [False, True])
@pairwise
def test_layouts(layout_a, layout_b, pinned, cut):
    k, depth = (1100, 1024) if cut else (67, None)
    a, b = operands(torch.float32, 40, 50, k)
    a, b = LAYOUTS[layout_a](a), LAYOUTS[layout_b](b.mT).mT
    check(a, b, tile=(16, 24), depth=depth, pinned=pinned)


@both_sides
@pytest.mark.parametrize("layout", list(LAYOUTS)[:5])
def test_layouts_of_out(layout, pinned):
    out = LAYOUTS[layout](torch.empty(40, 50))
    for algorithm, k, depth in (("tiled", 67, None), ("fp16x3", 140, None), ("tiled", 1100, 1024)):
        a, b = operands(torch.float32, 40, 50, k)
        tiles = {"tile": (16, 24), "depth": depth}
        streamed = check(a, b, out=out, **tiles, pinned=pinned, algorithm=algorithm)
        assert streamed.result is out


@both_sides
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("cut", [False, True])
def test_lazy_bits(dtype, pinned, cut):
    views = VIEWS if dtype == torch.float32 else COMPLEX_VIEWS
    for name, view in views.items():
        k, depth = (1100, 512 * (2 if dtype == torch.float32 else 1)) if cut else (37, None)
        a, b = operands(dtype, 20, 30, k)
        if name == "adjoint":
            a, b = b, a
        for x, y in ((view(a), b), (a, view(b)), (view(a), view(b))):
            x, y = (y, x) if x.shape[1] != y.shape[0] else (x, y)
            if x.shape[1] == y.shape[0]:
                check(x, y, tile=(16, 24), depth=depth, pinned=pinned)


@both_sides
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [67, 8292])
def test_a_float32_result_of_16_bit_operands(dtype, k, pinned):
    a, b = operands(dtype, 20, 30, k)
    out = torch.empty(20, 30)
    check(a, b, out=out, tile=(9, 16), depth=8192, pinned=pinned, algorithm="mma")


SHAPES = [
    *[((0, 5), (5, 7)), ((5, 0), (0, 7)), ((5, 7), (7, 0)), ((0, 0), (0, 0)), ((1, 1), (1, 1))],
    *[((1, 53), (53, 47)), ((47, 53), (53, 1)), ((31, 1), (1, 37)), ((53, 47), (47, 59))],
    *[((53,), (53,)), ((53,), (53, 47)), ((47, 53), (53,)), ((0,), (0,)), ((0,), (0, 3))],
]
BATCHES = [
    *[((7, 11, 5), (5, 13)), ((11, 5), (7, 5, 13)), ((7, 11, 5), (7, 5, 13))],
    *[((1, 11, 5), (7, 5, 13)), ((7, 11, 5), (1, 5, 13)), ((1, 11, 5), (1, 5, 13))],
    *[((3, 1, 11, 5), (4, 5, 13)), ((3, 4, 11, 5), (4, 5, 13)), ((3, 1, 11, 5), (1, 4, 5, 13))],
    *[((2, 3, 11, 5), (2, 1, 5, 13)), ((2, 1, 11, 5), (1, 1, 5, 13)), ((0, 11, 5), (5, 13))],
    *[((5,), (7, 5, 13)), ((7, 11, 5), (5,)), ((2, 3, 11, 5), (5,)), ((3, 2, 0, 5), (5, 13))],
    *[((2, 3, 11, 0), (3, 0, 13)), ((0, 11, 5), (0, 5, 13)), ((2, 3, 1, 5), (2, 3, 5, 1))],
]


@both_sides
@pytest.mark.parametrize("a, b", [*SHAPES, *BATCHES], ids=str)
def test_shapes(a, b, pinned):
    a, b = torch.randn(a), torch.randn(b)
    check(a, b, tile=(8, 8), pinned=pinned)


@both_sides
@pytest.mark.parametrize("a, b", BATCHES, ids=str)
@pytest.mark.parametrize("matrices", [1, 3])
@pairwise
def test_groups_of_matrices(a, b, matrices, pinned):
    for kind in ((torch.float32, "fp16x3"), (torch.complex64, "tiled")):
        x, y = torch.randn(a).to(kind[0]), torch.randn(b).to(kind[0])
        check(x, y, matrices=matrices, tile=(8, 8), pinned=pinned, algorithm=kind[1])


def _matrices(kind, *shape):
    x = torch.randn(*shape)
    if kind == "transposed":
        return x.mT.contiguous().mT
    if kind == "expanded":
        return x[:1].expand(shape)
    if kind == "apart":
        return torch.stack([x, x])[1].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return x[:1].expand(shape).mT.contiguous().mT if kind == "copies" else x


BATCH_KINDS = ("plain", "transposed", "expanded", "apart", "copies")


@both_sides
@pytest.mark.parametrize("matrices", [0, 2])
@pytest.mark.parametrize("kind_a", BATCH_KINDS)
@pytest.mark.parametrize("kind_b", [*BATCH_KINDS, "one"])
@pairwise
def test_strides_of_batches(kind_a, kind_b, matrices, pinned):
    """Batches of which some, or all, matrices are one in memory."""
    a = _matrices(kind_a, 5, 11, 6)
    b = torch.randn(6, 13) if kind_b == "one" else _matrices(kind_b, 5, 6, 13)
    check(a, b, tile=(8, 8), matrices=matrices, pinned=pinned)
    check(a.mT, b.mT[..., :11, :] if b.dim() == 3 else torch.randn(11, 3), tile=(8, 8))


@each_value
@pytest.mark.parametrize("kind", CUT, ids=lambda x: f"{x[0]}-{x[1]}-{x[2]}"[6:])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_inf_and_nan(kind, value):
    for depth in (None, kind[3]):
        a, b = operands(kind[0], 20, 30, kind[3] + 100)
        a[5, 7], b[-3, 20] = value, value
        check(a, b, tile=(9, 16), depth=depth, **options(kind))


@both_sides
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4], KINDS[9]], ids=lambda x: x[1])
@pytest.mark.parametrize("workers", [1, 2])
@pairwise
def test_flagged_elements_across_slices(kind, pinned, workers):
    """Elements that kernels recompute are those of the whole, where their slices differ in size."""
    chunk = kind[3]
    for tail in (0, 1, 100):
        a, b = operands(kind[0], 20, 30, (2 if chunk < 4000 else 1) * chunk + tail)
        a *= torch.exp(20 * torch.randn(a.shape))
        b[:, 3] *= torch.exp(20 * torch.randn(b.shape[0]))
        a[3, -1], a[7, 1], b[5, 7] = torch.inf, -torch.inf, torch.nan
        for kept in "ab":
            tiles = {"tile": (9, 16), "depth": chunk, "kept": kept, "workers": workers}
            check(a, b, **tiles, pinned=pinned, **options(kind))


def test_flagged_elements_alone():
    for row, col in ((3, None), (None, 25), (3, 25), (None, None)):
        a, b = operands(torch.float32, 20, 30, 2100)
        if row is not None:
            a[row] *= torch.exp(20 * torch.randn(2100))
        if col is not None:
            b[:, col] *= torch.exp(20 * torch.randn(2100))
        check(a, b, tile=(9, 16), depth=1024, algorithm="fp16x3")


@both_sides
def test_signs_of_zeros(pinned):
    for kind in CUT:
        a, b = operands(kind[0], 12, 14, kind[3] + 5)
        a, b = a.abs().to(kind[0]), -b.abs().to(kind[0])
        a[3], b[:, 4], a[5, : kind[3]] = 0.0, -0.0, 0.0
        check(a, b, tile=(9, 16), depth=kind[3], pinned=pinned, **options(kind))


@pytest.mark.parametrize("kind", [kind for kind in CUT if kind[0] != torch.float16], ids=str)
def test_the_sign_of_a_first_sum(kind):
    """Negative products that underflow make a chunk's sum -0, which +0 would not leave as it is.

    Sums of tensor cores begin with +0, and on the CPU no chunk of theirs is -0. Those of float16
    operands are float32, and do not underflow.
    """
    dtype, algorithm, precision, chunk = kind
    k, tiny = 2 * chunk + 5, torch.finfo(dtype).tiny
    a, b = torch.full((12, k), tiny, dtype=dtype), torch.full((k, 14), -tiny, dtype=dtype)
    found = check(a, b, tile=(9, 16), depth=chunk, **options(kind)).result.real
    first = order_of(dtype, (12, 14, k), precision, algorithm, None).first_sum
    is_negative = algorithm in ("tiled", "fp16x3")
    assert (math.copysign(1, first.real) < 0) == is_negative
    assert (found == 0).all() and (torch.signbit(found) == is_negative).all()


@pytest.mark.parametrize("pinned_one", ["a", "b", "out"])
def test_one_of_them_is_pinned(pinned_one):
    a, b = operands(torch.float32, 60, 70, 2100)
    out = torch.empty(60, 70)
    memory = {"a": a, "b": b, "out": out}[pinned_one].data_ptr()
    size = {"a": a, "b": b, "out": out}[pinned_one].nbytes
    for seed in range(4):
        tiles = {"tile": (16, 24), "depth": 1024, "seed": seed}
        check(a, b, out=out, pinned=lambda x: 0 <= x.data_ptr() - memory < size, **tiles)


def test_k_too_long_for_whole_panels():
    """The least budget cuts K, and a tile of all of K does not fit."""
    a, b = operands(torch.float32, 64, 128, 6000)
    streamed = check(a, b, budget=3 << 20)
    assert streamed.plans[-1].grid.slices == 6
    assert streamed.plans[-1].device_bytes <= 3 << 20


def test_operands_stay_as_they_are():
    a, b = operands(torch.float32, 40, 50, 2100)
    before = a.clone(), b.clone()
    stream(a, b, tile=(16, 24), depth=1024)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def test_what_surrounds_out_stays():
    a, b = operands(torch.float32, 40, 50, 67)
    memory = poison(torch.empty(60, 80))
    for pinned in (False, True):
        stream(a, b, out=memory[7:47, 11:61], tile=(16, 24), pinned=pinned)
        assert memory.isnan().sum() == 60 * 80 - 40 * 50


@pytest.mark.parametrize("kind", KINDS, ids=lambda x: f"{x[0]}-{x[1]}-{x[2]}"[6:])
def test_the_cpu_itself(kind):
    a, b = operands(kind[0], 30, 40, 150)
    found = torch_tiled.stream.matmul(a, b, devices="cpu", **options(kind))
    assert torch.equal(found, torch_tiled.matmul(a, b, **options(kind)))


@pytest.mark.parametrize("a, b", [*SHAPES, *BATCHES], ids=str)
def test_shapes_on_the_cpu(a, b):
    a, b = torch.randn(a), torch.randn(b)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    found = torch_tiled.stream.matmul(a, b, devices=["cpu"], algorithm="tiled")
    assert torch.equal(found, expected)
    out = poison(torch.empty_like(expected))
    assert torch_tiled.stream.matmul(a, b, out=out, devices="cpu", algorithm="tiled") is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(mode, pinned):
    with mode():
        a, b = operands(torch.float32, 40, 50, 67)
        weight = torch.nn.Parameter(b, requires_grad=mode is torch.no_grad)
        found = check(a, weight, tile=(16, 24), pinned=pinned).result
        assert not found.requires_grad
        on_cpu = torch_tiled.stream.matmul(a, weight, devices="cpu", algorithm="tiled")
        assert torch.equal(found, on_cpu)


def test_a_default_device_is_not_that_of_the_product():
    a, b = torch.randn(3, 2, 40, 60), torch.randn(2, 60, 50)
    fat = torch.randn(20, 1100) * torch.exp(20 * torch.randn(20, 1100))
    torch.set_default_device("meta")
    try:
        batch = stream(a, b, tile=(16, 24)).result
        flagged = stream(fat, fat.mT, tile=(8, 16), depth=1024, algorithm="fp16x3").result
    finally:
        torch.set_default_device(None)
    assert torch.equal(batch, torch_tiled.matmul(a, b, algorithm="tiled"))
    assert_same(flagged, torch_tiled.matmul(fat, fat.mT, algorithm="fp16x3"))
