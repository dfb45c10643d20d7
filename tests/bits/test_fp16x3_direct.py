"""fp16x3_direct on a GPU: every way of loading operands, every tile, and several tiles a block."""

from functools import partial

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, LOADS, in_layout
from helpers.tensor_cores import assert_has_bits_of_wgmma

# Both sides of each number of steps that the kernel is compiled for, and of multiples of 16.
SIZES_OF_K = [128, 129, 143, 144, 177, 191, 192, 253, 255, 256, 257, 319, 383, 384, 450, 510, 511]

assert_kernels_agree = partial(assert_has_bits_of_wgmma, "fp16x3_direct")


@needs_hopper
@pytest.mark.parametrize("load_of_b", LOADS)
@pytest.mark.parametrize("load_of_a", LOADS)
@pytest.mark.parametrize("k", SIZES_OF_K)
def test_all_loads(k, load_of_a, load_of_b):
    """A wrong place of an element, a row's range without a part of it, a row that is not there."""
    for i, m in enumerate([1, 2, 4, 15, 16, 17, 31, 33, 64, 65, 129]):
        n = [129, 1, 33, 7, 8, 65, 257, 16, 63, 300][(3 * i + k) % 10]
        scales = torch.exp(i * torch.randn(m, 1)) if i % 2 else 1
        a, b = torch.randn(m, k) * scales, torch.randn(n, k)
        a[m // 2, k - 1 - k % 7] = [0.0, 1e30, torch.inf, 1e-42, torch.nan][i % 5]
        b[n // 2] *= i % 3
        assert_kernels_agree(LOADS[load_of_a](a.cuda()), LOADS[load_of_b](b.cuda()).mT)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [128, 200, 301, 511])
@pytest.mark.parametrize(
    "m, n", [(1, 700), (3, 5000), (70, 1), (999, 7), (130, 390), (390, 130), (64, 4096), (2000, 16)]
)
def test_several_tiles_in_a_block(m, n, k, layout):
    """A block keeps its rows of A, or its columns of B, while C's tiles go through their place."""
    for batch in ((2,), (97,), (2, 1, 150)):
        a = in_layout(torch.randn(*batch, m, k, device="cuda"), layout[0])
        b = in_layout(torch.randn(batch[-1], k, n, device="cuda"), layout[1])
        a[..., -1, 5] = torch.inf
        like = torch.empty(*batch, n, m, device="cuda").mT if k % 2 else None
        assert_kernels_agree(a, b, like)
