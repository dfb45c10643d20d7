"""Streamed linear layers have the bits of torch_tiled.linear, whatever the tiles and slices."""

import inspect
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.reference import ACTIVATIONS, assert_same
from helpers.simulated_gpu import simulated
from helpers.streaming import (
    COMPLEX_VIEWS,
    KINDS,
    VIEWS,
    both_sides,
    check_linear,
    cut_kinds,
    every_kind,
    failing_steps,
    of_kinds,
    parts_module,
    poison,
    run_module,
    sentence_of,
    stream_linear,
)
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled._op.namespace import operators
from torch_tiled.stream.problem import make_linear_problem

MIB = 1 << 20
flagged_kinds = of_kinds([kind for kind in KINDS if kind[1] in ("fp16x3", "tf32")])
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def operands(dtype, m, n, k):
    """x, a weight and a bias, of such sizes that activations bend them."""
    kind = torch.promote_types(dtype, torch.float32)
    x, weight, bias = (torch.randn(shape, dtype=kind) for shape in ((m, k), (n, k), (n,)))
    return x.to(dtype), (weight / k**0.5).to(dtype), bias.to(dtype)


def options(kind, activation="none"):
    """Complex numbers have no activation."""
    activation = "none" if kind[0].is_complex else activation
    return {"algorithm": kind[1], "precision": kind[2], "activation": activation}


def with_flagged(x, weight, bias):
    """The same, with elements that kernels recompute, and a bias with Inf and NaN."""
    x, weight, bias = x.clone(), weight.clone(), bias.clone()
    x *= torch.exp(20 * torch.randn(x.shape))
    weight[3] *= torch.exp(20 * torch.randn(weight.shape[1]))
    x[3, -1], x[7, 1], weight[7, 5] = torch.inf, -torch.inf, torch.nan
    bias[2], bias[5], bias[11] = torch.inf, -torch.inf, torch.nan
    return x, weight, bias


@both_sides
@every_kind
@every_activation
@pytest.mark.parametrize("kept", ["a", "b"])
@pairwise
def test_whole_k(kind, activation, kept, pinned):
    x, weight, bias = operands(kind[0], 50, 61, 131)
    for given in (bias, None):
        tiles = {"tile": (16, 24), "kept": kept, "pinned": pinned}
        check_linear(x, weight, given, **tiles, **options(kind, activation))


@both_sides
@cut_kinds
@every_activation
@pytest.mark.parametrize("kept", ["a", "b"])
@pairwise
def test_k_in_slices(kind, activation, kept, pinned):
    """The bias and the activation follow the last chunk, and one rounding follows them."""
    x, weight, bias = operands(kind[0], 20, 29, kind[3] + 100)
    for given in (bias, None):
        tiles = {"tile": (9, 16), "depth": kind[3], "kept": kept, "pinned": pinned}
        streamed = check_linear(x, weight, given, **tiles, **options(kind, activation))
        assert streamed.plans[0].grid.slices == 2


@both_sides
@flagged_kinds
@every_activation
@pytest.mark.parametrize("workers", [1, 2])
@pairwise
def test_flagged_elements(kind, activation, workers, pinned):
    x, weight, bias = with_flagged(*operands(kind[0], 20, 30, kind[3] + 100))
    for given in (bias, None):
        for depth in (kind[3], None):
            tiles = {"tile": (9, 16), "depth": depth, "workers": workers, "pinned": pinned}
            check_linear(x, weight, given, **tiles, **options(kind, activation))


@every_activation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_stays_nan(activation, dtype):
    """Flagged elements are NaN in `out` until they are recomputed."""
    x = torch.tensor([[torch.nan, 1.0], [-torch.nan, -1.0]], dtype=dtype)
    if activation != "none":
        operators._activate_(x, activation=activation)
    assert x.isnan().tolist() == [[True, False]] * 2


@cut_kinds
def test_signs_of_zeros_and_inf_in_the_bias(kind):
    x, weight, bias = operands(kind[0], 12, 14, kind[3] + 5)
    x, weight = x.abs().to(kind[0]), -weight.abs().to(kind[0])
    x[3], weight[4], x[5, : kind[3]] = 0.0, -0.0, 0.0
    bias[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, -0.0, 0.0])
    if kind[0].is_complex:
        values = [(torch.inf, 1), (-0.0, -0.0), (-0.0, 0), (0, -0.0), (0, -torch.inf)]
        torch.view_as_real(bias)[6:11] = torch.tensor(values, dtype=bias.real.dtype)
    for depth in (None, kind[3]):
        for activation in ("none", "silu"):
            check_linear(x, weight, bias, tile=(9, 16), depth=depth, **options(kind, activation))


BIASES = {
    "strided": lambda x: poison(x.new_empty((len(x), 3)))[:, 1].copy_(x),
    "misaligned": lambda x: poison(x.new_empty(len(x) + 1))[1:].copy_(x),
    "one for all": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("depth", [None, 1024])
def test_biases_of_other_strides_and_lazy_bits(dtype, depth):
    x, weight, bias = operands(dtype, 20, 30, 1100)
    views = VIEWS if dtype == torch.float32 else COMPLEX_VIEWS
    lazy = {name: view for name, view in views.items() if name != "adjoint"}
    for name, view in (BIASES | lazy).items():
        given = view(bias)
        before = given.clone()
        check_linear(x, weight, given, tile=(9, 16), depth=depth)
        assert torch.equal(given, before), name


def test_lazy_bits_of_operands():
    x, weight, bias = operands(torch.complex64, 20, 30, 600)
    for view in COMPLEX_VIEWS.values():
        for depth in (None, 512):
            check_linear(x, view(weight.mT).mT, bias, tile=(9, 16), depth=depth)
            check_linear(view(x.mT).mT.clone(), weight, bias.conj(), tile=(9, 16), depth=depth)


def test_a_bias_of_a_file(tmp_path):
    x, weight, bias = operands(torch.float32, 20, 30, 40)
    bias.numpy().tofile(tmp_path / "bias")
    mapped = torch.from_numpy(np.memmap(tmp_path / "bias", np.float32, "r+"))
    assert_same(
        stream_linear(x, weight, mapped, tile=(9, 16)).result,
        torch_tiled.linear(x, weight, bias, algorithm="tiled"),
    )
    (tmp_path / "bias").write_bytes(b"")
    text = sentence_of(torch_tiled.stream.linear, x, weight, mapped)
    assert text.startswith("bias reaches to byte 120 of the file")


SHAPES = [
    *[((5,), 7), ((1, 5), 1), ((3, 5), 0), ((0, 5), 7), ((3, 0), 7), ((0,), 7), ((2, 3, 0), 7)],
    *[((7, 11, 5), 13), ((2, 3, 11, 5), 13), ((0, 11, 5), 13), ((3, 1, 5), 13)],
]


@both_sides
@pytest.mark.parametrize("shape, n", SHAPES, ids=str)
def test_shapes(shape, n, pinned):
    """Among them K = 0, where the result is the epilogue of zeros."""
    x, weight, bias = torch.randn(shape), torch.randn(n, shape[-1]), torch.randn(n)
    for given in (bias, None):
        check_linear(x, weight, given, activation="gelu", tile=(8, 8), pinned=pinned)
        found = torch_tiled.stream.linear(x, weight, given, devices="cpu", algorithm="tiled")
        assert_same(found, torch_tiled.linear(x, weight, given, algorithm="tiled"))


@both_sides
@pytest.mark.parametrize("matrices", [0, 2])
@pytest.mark.parametrize("depth", [None, 1024])
def test_batches_whose_strides_make_no_matrix(matrices, depth, pinned):
    x, bias = torch.randn(9, 5, 1100).movedim(1, 0), torch.randn(13)
    for batch in (x, x.reshape(3, 3, 5, 1100).movedim(1, 0), x.conj()):
        for weight in (torch.randn(13, 1100), torch.randn(1100, 13).mT):
            tiles = {"tile": (4, 8), "depth": depth, "matrices": matrices, "pinned": pinned}
            check_linear(batch, weight, bias, activation="tanh", **tiles)


def test_a_result_that_is_given():
    x, weight, bias = operands(torch.float32, 40, 50, 1100)
    for out in (torch.empty(40, 50), torch.empty(50, 40).mT, torch.empty(80, 150)[::2, ::3]):
        for pinned in (False, True):
            tiles = {"tile": (16, 24), "depth": 1024, "pinned": pinned}
            assert check_linear(x, weight, bias, out=out, **tiles).result is out
        call = torch_tiled.stream.linear
        assert call(x, weight, bias, out=poison(out), devices="cpu", algorithm="tiled") is out
        assert_same(out, torch_tiled.linear(x, weight, bias, algorithm="tiled"))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
def test_smaller_tiles_where_memory_runs_out(workers, algorithm):
    """Those have parts of the bias."""
    x, weight, bias = with_flagged(*operands(torch.float32, 60, 70, 2100))
    with failing_steps(dict.fromkeys((1, 8, 20), torch.OutOfMemoryError("no memory"))):
        tiles = {"tile": (16, 24), "depth": 1024, "workers": workers}
        plans = check_linear(x, weight, bias, activation="silu", algorithm=algorithm, **tiles).plans
    assert (16, 24) in {plan.tile for plan in plans} and len({plan.tile for plan in plans}) > 1


def test_tiles_are_whole_after_ctrl_c():
    x, weight, bias = operands(torch.float32, 60, 70, 2100)
    x[20, 5] = torch.inf
    kind = {"activation": "gelu", "algorithm": "fp16x3"}
    expected, out = torch_tiled.linear(x, weight, bias, **kind), torch.empty(60, 70)

    def stop(progress):
        if progress.tiles_done > 5:
            raise KeyboardInterrupt

    with pytest.raises(torch_tiled.stream.Interrupted) as raised:
        tiles = {"tile": (16, 24), "depth": 1024, "pinned": True}
        stream_linear(x, weight, bias, out=out, report=stop, **kind, **tiles)
    assert str(raised.value).startswith("a product of torch_tiled.stream was interrupted: ")
    for _, rows, cols in raised.value.done:
        assert_same(out[rows, cols], expected[rows, cols])


@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
def test_a_plan_counts_the_bias(algorithm):
    x, weight, bias = operands(torch.float32, 64, 4096, 3000)
    for budget in (5 * MIB, 64 * MIB):
        found = check_linear(x, weight, bias, algorithm=algorithm, budget=budget).plans[0]
        assert found.device_bytes <= budget
    sizes = []
    for given in (bias, None):
        problem, _ = make_linear_problem(x, weight, given, "none", None, "fp32", algorithm)
        flat = problem.a, problem.b, problem.out
        sizes.append(parts_module.sizes_of(*flat, problem, simulated(budget)[0]))
    assert [x.bias_bytes for x in sizes] == [4 * 4096, 0]


@every_kind
@every_activation
@pairwise
def test_the_cpu_itself(kind, activation):
    x, weight, bias = operands(kind[0], 40, 50, 150)
    expected = torch_tiled.linear(x, weight, bias, **options(kind, activation))
    with mock.patch.object(run_module, "_CPU_TILE", 16):
        found = torch_tiled.stream.linear(
            x, weight, bias, devices="cpu", **options(kind, activation)
        )
    assert_same(found, expected)


@every_activation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_the_cpu_by_auto(activation, dtype):
    """A product of one block is torch_tiled.linear."""
    x, weight, bias = operands(dtype, 40, 50, 150)
    kind = {"activation": "none" if dtype.is_complex else activation}
    for given in (bias, None, torch._neg_view(bias)):
        found = torch_tiled.stream.linear(x, weight, given, devices="cpu", **kind)
        assert_same(found, torch_tiled.linear(x, weight, given, **kind))


def test_gradients_that_are_off_are_no_error():
    layer, x = torch.nn.Linear(70, 50), torch.randn(40, 70)
    with torch.no_grad():
        assert not check_linear(x, layer.weight, layer.bias, tile=(16, 24)).result.requires_grad
        found = torch_tiled.stream.linear(x, layer.weight, layer.bias, devices="cpu")
    assert torch.equal(found, torch_tiled.linear(x, layer.weight, layer.bias))


def test_what_progress_is_told():
    x, weight, bias = operands(torch.float32, 40, 50, 70)
    found = []
    torch_tiled.stream.linear(x, weight, bias, devices="cpu", progress=found.append)
    assert found[-1].share == 1
    defaults = [
        inspect.signature(call).parameters["progress"].default
        for call in (torch_tiled.stream.linear, torch_tiled.stream.matmul)
    ]
    assert defaults[0] == defaults[1]


X, W, B = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5)


def test_transforms_and_tangents():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(B, B)
        text = sentence_of(torch_tiled.stream.linear, X, W, dual)
    assert text.startswith("bias has a forward-mode tangent") and "torch_tiled.linear" in text
    with pytest.raises(RuntimeError, match=r"^torch_tiled.stream.linear: torch.vmap and .*linear$"):
        torch.vmap(torch_tiled.stream.linear, in_dims=(0, None))(X[None], W)
