"""Kernels of simt that read a complex B as it lies have the bits of those that read B'."""

import pytest
import torch
from helpers.complex_operands import STORED
from helpers.needs import needs_hopper
from helpers.reference import assert_same, parts

import torch_tiled

# Batch, m, n and k for which the plan for 132 SMs (H100, H200) picks each tile.
SIMT_TILES = [
    ("simt_skinny", "2x128", (2, 1, 330, 1100)),
    ("simt_skinny", "4x128", (2, 3, 330, 1100)),
    ("simt_skinny", "8x128", (2, 7, 330, 1100)),
    ("simt_skinny", "16x128", (2, 16, 330, 1100)),
    ("simt_skinny", "16x128", (2, 75, 330, 1100)),
    ("simt_skinny", "16x128", (3, 30, 130, 26)),
    ("simt_small", "16x16", (1003, 15, 7, 50)),
    ("simt_small", "32x32", (1003, 30, 16, 20)),
    ("simt_small", "64x64", (1003, 62, 32, 20)),
    ("simt_small", "32x32", (300, 62, 32, 511)),
    ("simt_small", "64x64", (7, 700, 350, 20)),
    ("simt_cp_async", "128x64", (1, 1401, 702, 20)),
    ("simt_cp_async", "64x64", (1, 1024, 512, 36)),
    ("simt_cp_async", "64x32", (1, 512, 256, 66)),
    ("simt_cp_async", "32x32", (1, 130, 60, 50)),
    ("simt_cp_async", "32x32", (2, 50, 52, 600)),
    ("simt_cp_async", "16x128", (1, 12, 4500, 50)),
    ("simt_cp_async", "32x128", (1, 20, 8500, 50)),
]
# Views of an aligned b that every one of these kernels reads as it lies.
ALIGNED_VIEWS = ["as it is", "conjugate", "negative", "both", "adjoint", "transpose"]


@pytest.fixture(params=["normal", "tiny"])
def operands_of_simt(request):
    """Returns a function of sizes; products of tiny operands are zeros with a sign."""
    scale = 1 if request.param == "normal" else 1e-30

    def operands(batch, m, n, k, device):
        a = scale * torch.randn(batch, m, k, dtype=torch.complex64, device=device)
        return a, scale * torch.randn(batch, k, n, dtype=torch.complex64, device=device)

    return operands


@needs_hopper
@pytest.mark.parametrize("of_b", [*STORED, "one for all", "shifted adjoint"])
@pytest.mark.parametrize("kernel, tile, sizes", SIMT_TILES)
def test_simt_reads_b_as_it_lies(poisoned, operands_of_simt, kernel, tile, sizes, of_b):
    a, b = operands_of_simt(*sizes, device="cuda")
    if of_b == "one for all":
        b = b[..., :1].expand_as(b)
    elif of_b == "shifted adjoint":
        b = STORED["shifted"](b.mT).mH
    else:
        b = STORED[of_b](b)
    for x in (a, a.conj(), torch._neg_view(a)):
        explained = torch_tiled.explain(x, b, algorithm=kernel)
        if kernel == "simt_small" or of_b in ALIGNED_VIEWS:
            assert explained.b_is_read == "as it lies"
            assert explained.tile == tile
        result = torch_tiled.matmul(x, b, algorithm=kernel)
        assert_same(parts(result), parts(torch_tiled.matmul(x, b, algorithm="tiled64")))


@needs_hopper
@pytest.mark.parametrize(
    "kernel, sizes",
    [("simt_skinny", (5, 140)), ("simt_small", (1003, 9, 11)), ("simt_cp_async", (70, 45))],
)
@pytest.mark.parametrize("of_b", ["as it is", "adjoint"])
def test_every_k_of_simt_by_b_as_it_lies(kernel, sizes, of_b):
    """Each remainder of K in a stage, and in vectors."""
    *rows, n = sizes
    for k in (*range(1, 40), 511, 512, 513, 514, 515, 1024, 1500):
        a = torch.randn(*rows, k, dtype=torch.complex64, device="cuda")
        b = STORED[of_b](torch.randn(*rows[:-1], k, n, dtype=torch.complex64, device="cuda"))
        result = torch_tiled.matmul(a, b, algorithm=kernel)
        assert_same(parts(result), parts(torch_tiled.matmul(a, b, algorithm="tiled64")))


# Batch, m, n and k of products for which a pass over B would take long.
PICKED = [
    ("ieee", (1, 1, 4096, 4096)),
    ("ieee", (1, 16, 4096, 4096)),
    ("ieee", (1, 64, 4096, 4096)),
    ("ieee", (1, 256, 256, 256)),
    ("ieee", (1, 512, 512, 512)),
    ("ieee", (4096, 16, 16, 16)),
    ("ieee", (4096, 32, 32, 32)),
    ("fp32", (4096, 32, 32, 32)),
]


@pytest.mark.parametrize("precision, sizes", PICKED)
def test_auto_reads_b_as_it_lies(precision, sizes):
    batch, m, n, k = sizes
    a, b = torch.empty(batch, m, k, 2), torch.empty(batch, k, n, 2)
    a, b = torch.view_as_complex(a), torch.view_as_complex(b)
    explained = torch_tiled.explain(a, b, precision=precision, compute_capability=90, sms=132)
    assert explained.b_is_read == "as it lies"


@needs_hopper
@pytest.mark.parametrize("precision, sizes", PICKED)
def test_bits_of_auto_by_b_as_it_lies(precision, sizes):
    batch, m, n, k = sizes
    a = torch.randn(batch, m, k, dtype=torch.complex64, device="cuda")
    b = torch.randn(batch, k, n, dtype=torch.complex64, device="cuda")
    for y in (b, b.mT, b.mH):
        result = torch_tiled.matmul(a, y, precision=precision)
        assert_same(parts(result), parts(torch_tiled.matmul(a, y, algorithm="tiled64")))
