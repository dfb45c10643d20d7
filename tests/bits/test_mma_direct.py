"""mma_direct on a GPU, for operands of any alignment: all tiles have the bits of mma_sync."""

import functools
import random

import pytest
import torch
from helpers.mma import check_epilogues, check_twin, each_16bit_dtype, with_any_pitch
from helpers.needs import has_132_sms, needs_hopper
from helpers.operands import LAYOUTS, in_layout

import torch_tiled

check = functools.partial(check_twin, "mma_direct")


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("seed", range(60))
def test_operands_of_any_alignment(seed, dtype):
    choose = random.Random(seed)
    sizes = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257)
    m, n = choose.choice(sizes), choose.choice(sizes)
    k = choose.choice((1, 2, 7, 14, 15, 16, 17, 31, 64, 65, 127, 128, 129, 320, 513, 4097, 8192))
    batch = choose.choice((1, 1, 3, 50))
    a, b = (with_any_pitch(batch, *sides, dtype, choose) for sides in ((m, k), (k, n)))
    check(a, b)
    check(a, b, out_dtype=torch.float32)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "m", "n", "k"),
    [
        ("16x16", 30, 50, 40),
        ("16x16", 31, 51, 300),
        ("32x32", 1044, 6178, 33),
        ("64x16", 60000, 1, 14),
        ("16x64", 1, 60000, 14),
    ],
)
def test_every_tile(tile, m, n, k, layout, dtype):
    a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
    assert torch_tiled.explain(a, b, algorithm="mma_direct").tile == tile or not has_132_sms()
    check(a, b)
    old, bias = torch.randn(m, n, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
    check_epilogues(
        *("mma_direct", a, b.mT, bias), activations=("none", "gelu"), c=old, alpha=0.7, beta=-0.3
    )


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("k", [*range(1, 70), 8191, 8192])
def test_every_remainder_of_k(k, dtype):
    """A wrong end of K would lose an element, or multiply the NaN that follows it."""
    for m, n in ((1, 70), (70, 2), (33, 40)):
        a = torch.full((m, k + 2), torch.nan, dtype=dtype, device="cuda")[:, :k]
        b = torch.full((n, k + 2), torch.nan, dtype=dtype, device="cuda")[:, :k].mT
        a.copy_(torch.randn(m, k)), b.copy_(torch.randn(k, n))
        check(a, b)
        check(a.mT.contiguous().mT, b.contiguous())


@needs_hopper
@each_16bit_dtype
def test_batches_of_any_rank(dtype):
    a = torch.randn(2, 1, 3, 1, 2, 5, 20, 22, device="cuda").to(dtype)
    b = torch.randn(3, 2, 1, 5, 22, 18, device="cuda").to(dtype)
    check(a, b)
    check(a[..., ::2, ::2], b[..., ::2, ::3])
    check(a, b[0, 0, 0, 0].expand(2, 1, 3, 1, 2, 5, 22, 18))


@needs_hopper
@each_16bit_dtype
def test_offsets_past_two_to_the_31(dtype):
    a = torch.randn(2**27 + 33, 17, device="cuda", dtype=dtype)
    b = torch.randn(17, 3, device="cuda", dtype=dtype)
    out = torch_tiled.matmul(a, b, algorithm="mma_direct")
    for rows in (slice(0, 1000), slice(2**27 - 1000, 2**27 + 33)):
        assert torch.equal(out[rows], torch_tiled.matmul(a[rows], b, algorithm="mma_sync"))
