"""Kernels that read a complex B as it lies have the bits of kernels to which a pass writes B'."""

import pytest
import torch
from helpers.complex_operands import STORED
from helpers.needs import has_132_sms, needs_hopper
from helpers.reference import assert_same, parts

import torch_tiled


def make_coarse(*views):
    """Replaces the parts of complex numbers by their signs."""
    for x in views:
        torch.view_as_real(x).sign_()


@needs_hopper
@pytest.mark.parametrize(
    "of_b", [*STORED, "flagged", "few bits", "batched", "one for all", "shifted adjoint"]
)
@pytest.mark.parametrize("kernel", ["skinny", "wgmma"])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32, 40, 300])
def test_fp16x3_reads_b_as_it_lies(poisoned, rows, kernel, of_b):
    if kernel == "skinny" and rows == 300:
        pytest.skip("a is the longer operand, whose batch becomes rows")
    a = torch.randn(3, rows, 1100, dtype=torch.complex64, device="cuda")
    b = torch.randn(1100, 331, dtype=torch.complex64, device="cuda")
    if of_b == "flagged":
        a[1, :, 700] *= 2.0**40
        b[700, ::3] = 0
        b[5, 7] = torch.nan
    elif of_b == "few bits":
        make_coarse(a[..., ::2, :], b[..., ::3])
    elif of_b == "batched":
        b = torch.randn(3, 1100, 331, dtype=torch.complex64, device="cuda").mT.contiguous().mT
    elif of_b == "one for all":
        a = a[:1].expand(3, rows, 1100)
    elif of_b == "shifted adjoint":
        b = STORED["shifted"](b.mT).mH
    else:
        b = STORED[of_b](b)
    for x in (a, a.conj()):
        named = [f"fp16x3_{name}" for name in (kernel, "fused")]
        in_place, packed = (torch_tiled.explain(x, b, algorithm=name) for name in named)
        assert in_place.b_is_read == "as it lies" and "bytes" in packed.b_is_read
        assert getattr(in_place, "recomputed", None) == getattr(packed, "recomputed", None)
        results = [parts(torch_tiled.matmul(x, b, algorithm=name)) for name in named]
        assert_same(*results)


# Batches for which the plan for 132 SMs (H100, H200) picks each tile: batch, m, n, k.
SMALL_TILES = [
    ("fp16x3_direct", "64x64", (130, 64, 70, 100)),
    ("fp16x3_direct", "64x64", (300, 64, 64, 64)),
    ("fp16x3_direct", "32x32", (64, 64, 64, 64)),
    ("fp16x3_direct", "32x32", (9, 15, 17, 250)),
    ("fp16x3_direct", "16x16", (100, 40, 41, 255)),
    ("fp16x3_direct", "16x16", (50, 33, 17, 130)),
    ("fp16x3_small", "64x64", (40, 150, 100, 70)),
    ("fp16x3_small", "64x32", (3, 128, 200, 90)),
    ("fp16x3_small", "32x32", (7, 60, 130, 300)),
    ("fp16x3_small", "32x16", (2, 33, 70, 511)),
]


def assert_reads_b_as_it_lies(kernel, a, b):
    """The kernel has the bits of one that reads B', and as many flagged elements."""
    named = [kernel, "fp16x3_cluster"]
    in_place, packed = (torch_tiled.explain(a, b, algorithm=name) for name in named)
    assert (in_place.algorithm, in_place.b_is_read) == (kernel, "as it lies")
    assert "bytes" in packed.b_is_read
    assert in_place.recomputed == packed.recomputed
    result, expected = (parts(torch_tiled.matmul(a, b, algorithm=name)) for name in named)
    assert_same(result, expected)
    assert_same(parts(torch_tiled.matmul(a, b)), expected)
    return in_place


@needs_hopper
@pytest.mark.parametrize(
    "of_b", [*STORED, "flagged", "few bits", "wide", "one for all", "shifted adjoint"]
)
@pytest.mark.parametrize("kernel, tile, sizes", SMALL_TILES)
def test_small_kernels_read_b_as_it_lies(poisoned, kernel, tile, sizes, of_b):
    batch, m, n, k = sizes
    a = torch.randn(batch, m, k, dtype=torch.complex64, device="cuda")
    b = torch.randn(batch, k, n, dtype=torch.complex64, device="cuda")
    if of_b == "flagged":
        a[0, :, k // 2] *= 2.0**40
        b[0, k // 2, ::3] = 0
        b[-1, 5, 7] = torch.nan
        b[-1, 3, 1] = torch.inf
    elif of_b == "few bits":
        make_coarse(a[..., ::2, :], b[..., ::3])
    elif of_b == "wide":  # small numbers are counted, and few elements are flagged
        torch.view_as_real(b)[:, ::7] *= 2.0**-25
        torch.view_as_real(b)[..., k // 3, :, 0] = 0
    elif of_b == "one for all":
        b = b[:1].expand(batch, k, n)
    elif of_b == "shifted adjoint":
        b = STORED["shifted"](b.mT).mH
    else:
        b = STORED[of_b](b)
    for x in (a, a.conj(), STORED["shifted"](a)):
        explained = assert_reads_b_as_it_lies(kernel, x, b)
        assert explained.tile == tile or of_b != "as it is" or not has_132_sms()
        assert (of_b == "flagged") <= (explained.recomputed[0] != "0")
        on_cpu = torch_tiled.matmul(x[-1].cpu(), b[-1].cpu(), algorithm="fp16x3")
        on_gpu = torch_tiled.matmul(x, b, algorithm=kernel)[-1]
        assert_same(parts(on_gpu.cpu()), parts(on_cpu))


@needs_hopper
@pytest.mark.parametrize("of_b", ["as it is", "adjoint", "strided"])
@pytest.mark.parametrize("kernel", ["fp16x3_direct", "fp16x3_small"])
def test_small_kernels_read_b_of_any_k(poisoned, kernel, of_b):
    """Both sides of each number of steps along K, and of multiples of 8 complex numbers."""
    for i, k in enumerate([64, 65, 71, 72, 89, 95, 96, 126, 127, 128, 160, 191, 192, 225, 255]):
        m, n = [1, 2, 15, 16, 17, 33, 64, 65][i % 8], [129, 1, 33, 7, 8, 65, 16][i % 7]
        a = torch.randn(5, m, k, dtype=torch.complex64, device="cuda")
        b = torch.randn(5, k, n, dtype=torch.complex64, device="cuda")
        b[i % 5, i:, n // 2] *= 2.0**-20
        b[i % 5, k - 1, n - 1] = [0, torch.nan, torch.inf, 1e30, 1e-42][i % 5]
        assert_reads_b_as_it_lies(kernel, a, STORED[of_b](b))


@pytest.mark.parametrize(
    "kernel, batch, side",
    [("fp16x3_direct", 4096, 64), ("fp16x3_direct", 64, 64), ("fp16x3_small", 1, 64)]
    + [("fp16x3_small", 1, 256)],
)
def test_auto_reads_b_of_small_products_as_it_lies(kernel, batch, side):
    a = torch.empty(batch, side, side, dtype=torch.complex64, device="meta")
    plan = torch_tiled.explain(a, a, compute_capability=90, sms=132)
    assert (plan.algorithm, plan.b_is_read) == (kernel, "as it lies")


# Problems for which the plan for 132 SMs picks each tile.
F64_TILES = [
    ("f64_mma", "128x128", (2048, 1024, 515)),
    ("f64_mma", "128x64", (1024, 512, 512)),
    ("f64_mma", "64x64", (700, 350, 351)),
    ("f64_mma", "32x32", (500, 250, 250)),
    ("f64_mma", "16x64", (5, 4500, 50)),
    ("f64_mma", "64x16", (9001, 3, 1050)),
    ("f64_direct", "8x8", (100, 35, 750)),
    ("f64_direct", "8x8", (3, 10, 1450)),
    ("f64_direct", "16x8", (294, 248, 63)),
    ("f64_direct", "16x16", (1000, 150, 11)),
    ("f64_direct", "16x32", (2, 45001, 3)),
]


@needs_hopper
@pytest.mark.parametrize("of_b", [*STORED, "tiny", "batched", "one for all", "shifted adjoint"])
@pytest.mark.parametrize("kernel, tile, sizes", F64_TILES)
def test_float64_kernels_read_b_as_it_lies(poisoned, kernel, tile, sizes, of_b):
    m, n, k = sizes
    a = torch.randn(m, k, dtype=torch.complex128, device="cuda")
    b = torch.randn(k, n, dtype=torch.complex128, device="cuda")
    if of_b == "tiny":  # products are less than the smallest number: sums are zeros with a sign
        a, b = 1e-200 * a, 1e-200 * b
    elif of_b == "batched":
        a, b = a.view(1, m, k).repeat(2, 1, 1), torch.stack([b, b.flip(0)]).mT.contiguous().mT
    elif of_b == "one for all":
        b = b[:, :1].expand(k, n)
    elif of_b == "shifted adjoint":
        b = STORED["shifted"](b.mT).mH
    else:
        b = STORED[of_b](b)
    for x in (a, a.conj()):
        explained = torch_tiled.explain(x, b, algorithm=kernel)
        assert explained.b_is_read == "as it lies"
        assert explained.tile == tile or of_b == "batched"
        result = torch_tiled.matmul(x, b, algorithm=kernel)
        assert_same(parts(result), parts(torch_tiled.matmul(x, b, algorithm="tiled64")))
