"""fp16x3_thin on a GPU: every way of loading operands, chunks, and several tiles a block."""

import math
from functools import partial

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, LOADS, in_layout
from helpers.reference import assert_same
from helpers.tensor_cores import assert_has_bits_of_wgmma

import torch_tiled

# Both sides of each number of warps, of steps of 16 and 32, of the promotion, and of a chunk.
SIZES_OF_K = [128, 129, 145, 160, 255, 256, 257, 353, 496, 511, 512, 513, 700, 1023, 1024]
SEVERAL_CHUNKS = [1025, 1040, 1153, 2047, 2048, 3333, 9000]
LONG_SIDES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 129]

assert_kernels_agree = partial(assert_has_bits_of_wgmma, "fp16x3_thin")


@needs_hopper
@pytest.mark.parametrize("load_of_short", LOADS)
@pytest.mark.parametrize("load_of_long", LOADS)
@pytest.mark.parametrize("k", SIZES_OF_K + SEVERAL_CHUNKS)
def test_all_loads(k, load_of_long, load_of_short):
    """A wrong place of an element, a row's range without a part of it, a row that is not there."""
    for i, long in enumerate(LONG_SIDES):
        short = [1, 2, 5, 8, 9, 3, 17, 1, 4, 7][(3 * i + k) % 10]
        scales = torch.exp(i * torch.randn(long, 1)) if i % 2 else 1
        x, y = torch.randn(long, k) * scales, torch.randn(short, k)
        x[long // 2, k - 1 - k % 7] = [0.0, 1e30, torch.inf, 1e-42, torch.nan][i % 5]
        y[short // 2] *= i % 3
        x, y = LOADS[load_of_long](x.cuda()), LOADS[load_of_short](y.cuda())
        assert_kernels_agree(x, y.mT)
        assert_kernels_agree(y, x.mT)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [200, 453, 1024, 1100, 5000])
@pytest.mark.parametrize("m, n", [(1, 7000), (9000, 1), (1, 1), (3, 700), (2000, 8), (40, 50)])
def test_several_tiles_in_a_block(m, n, k, layout):
    """A block goes on to tiles of the same chunk, of another chunk and of another matrix."""
    for batch in ((3,), (97,), (2, 1, 30)):
        if (m + n) * k * math.prod(batch) > 2**30:
            continue  # memory
        a = in_layout(torch.randn(*batch, m, k, device="cuda"), layout[0])
        b = in_layout(torch.randn(batch[-1], k, n, device="cuda"), layout[1])
        a[..., -1, 5] = torch.inf
        like = torch.empty(*batch, n, m, device="cuda").mT if k % 8 else None
        assert_kernels_agree(a, b, like)


@needs_hopper
@pytest.mark.parametrize("k", [300, 1000, 2500])
@pytest.mark.parametrize("m, n", [(1, 333), (333, 1), (5, 90)])
def test_epilogue(m, n, k):
    a, b = torch.randn(4, m, k, device="cuda"), torch.randn(4, k, n, device="cuda")
    a[1, -1, 7], b[2, k // 2, 0] = torch.nan, 1e-40
    c = torch.randn(4, m, n, device="cuda")
    scaled = [
        torch_tiled.gemm_(c.clone(), a, b, alpha=-0.5, beta=2, algorithm=algorithm)
        for algorithm in ("fp16x3_thin", "fp16x3_wgmma")
    ]
    assert_same(*scaled)
    bias = torch.randn(n, device="cuda")
    activated = [
        torch_tiled.linear(a, b[0].mT, bias, activation="gelu", algorithm=algorithm)
        for algorithm in ("fp16x3_thin", "fp16x3_wgmma")
    ]
    assert_same(*activated)
