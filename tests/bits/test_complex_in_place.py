"""Kernels that read a complex B as it lies have the bits of kernels to which a pass writes B'."""

import pytest
import torch
from helpers.complex_operands import STORED, normal
from helpers.needs import needs_hopper
from helpers.reference import assert_same, parts

import torch_tiled


@needs_hopper
@pytest.mark.parametrize("of_b", [*STORED, "flagged", "batched", "one for all", "shifted adjoint"])
@pytest.mark.parametrize("kernel", ["skinny", "wgmma"])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32, 40, 300])
def test_fp16x3_reads_b_as_it_lies(poisoned, rows, kernel, of_b):
    if kernel == "skinny" and rows == 300:
        pytest.skip("a is the longer operand, whose batch becomes rows")
    a = normal(3, rows, 1100, dtype=torch.complex64, device="cuda")
    b = normal(1100, 331, dtype=torch.complex64, device="cuda")
    if of_b == "flagged":
        a[1, :, 700] *= 2.0**40
        b[700, ::3] = 0
        b[5, 7] = torch.nan
    elif of_b == "batched":
        b = normal(3, 1100, 331, dtype=torch.complex64, device="cuda").mT.contiguous().mT
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


# Problems for which the plan for 132 SMs picks each tile.
F64_TILES = [
    ("128x128", (2048, 1024, 515)),
    ("128x64", (1024, 512, 512)),
    ("64x64", (700, 350, 351)),
    ("32x32", (500, 150, 150)),
    ("16x64", (5, 4500, 50)),
    ("64x16", (9001, 3, 1050)),
]


@needs_hopper
@pytest.mark.parametrize("of_b", [*STORED, "tiny", "batched", "one for all", "shifted adjoint"])
@pytest.mark.parametrize("tile, sizes", F64_TILES)
def test_f64_mma_reads_b_as_it_lies(poisoned, tile, sizes, of_b):
    m, n, k = sizes
    a = normal(m, k, dtype=torch.complex128, device="cuda")
    b = normal(k, n, dtype=torch.complex128, device="cuda")
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
        explained = torch_tiled.explain(x, b, algorithm="f64_mma")
        assert explained.b_is_read == "as it lies"
        assert explained.tile == tile or of_b == "batched"
        result = torch_tiled.matmul(x, b, algorithm="f64_mma")
        assert_same(parts(result), parts(torch_tiled.matmul(x, b, algorithm="tiled64")))
