"""The kernels of fp16x3 for small and thin products, on a GPU, have the bits of fp16x3_wgmma."""

import math
from itertools import product

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, LOADS, in_layouts
from helpers.reference import assert_same
from helpers.tensor_cores import assert_has_bits_of_wgmma

import torch_tiled

pytestmark = needs_hopper

# fp16x3_cluster copies rows in bulk, from any element of 16 bytes on, elements along K, and
# elements along rows.
COPIES = {name: load for name, load in LOADS.items() if name != "one row for all"} | {
    "along shifted rows": lambda x: torch.cat([x[:1], x]).mT.contiguous().mT[1:],
}
# Both sides of each number of steps that a kernel is compiled for, of warps, and of a chunk.
LENGTHS = {
    "fp16x3_cluster": [
        *(128, 129, 191, 192, 196, 511, 1020, 1022, 1023, 1024, 1025, 3000, 8189, 8192, 17000),
    ],
    "fp16x3_direct": [
        *(128, 129, 143, 144, 177, 191, 192, 253, 255, 256, 257, 319, 383, 384, 450, 510, 511),
    ],
    "fp16x3_rows": [128, 129, 143, 144, 145, 160, 191, 192, 193, 208, 255, 256],
    "fp16x3_thin": [
        *(128, 129, 145, 160, 255, 256, 257, 353, 496, 511, 512, 513, 700, 1023, 1024),
        *(1025, 1040, 1153, 2047, 2048, 3333, 9000),
    ],
}
# The sides of a, and those of b in turn.
SIDES = {
    "fp16x3_cluster": (
        [1, 2, 15, 16, 17, 31, 32, 33, 65, 129],
        [129, 1, 33, 7, 8, 9, 257, 16, 31, 300],
    ),
    "fp16x3_direct": (
        [1, 2, 4, 15, 16, 17, 31, 33, 64, 65, 129],
        [129, 1, 33, 7, 8, 65, 257, 16, 63, 300],
    ),
    "fp16x3_rows": (
        [1, 2, 7, 31, 63, 64, 65, 66, 129, 200],
        [129, 1, 33, 7, 8, 65, 257, 128, 63, 300],
    ),
    "fp16x3_thin": (
        [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 129],
        [1, 2, 5, 8, 9, 3, 17, 1, 4, 7],
    ),
}


@pytest.mark.parametrize(
    "kernel, k, load_of_a, load_of_b",
    [
        (kernel, *case)
        for kernel, lengths in LENGTHS.items()
        for loads in [COPIES if kernel == "fp16x3_cluster" else LOADS]
        for case in product(lengths, loads, loads)
    ],
)
def test_all_loads(kernel, k, load_of_a, load_of_b):
    """A wrong place of an element, a row's range without a part of it, a row that is not there."""
    loads, (sides_of_a, sides_of_b) = LOADS | COPIES, SIDES[kernel]
    for i, m in enumerate(sides_of_a):
        n = sides_of_b[(3 * i + k) % 10]
        scales = torch.exp(i * torch.randn(m, 1)) if i % 2 else 1
        a, b = torch.randn(m, k) * scales, torch.randn(n, k)
        a[m // 2, k - 1 - k % 7] = [0.0, 1e30, torch.inf, 1e-42, torch.nan][i % 5]
        b[n // 2] *= i % 3
        a, b = loads[load_of_a](a.cuda()), loads[load_of_b](b.cuda())
        assert_has_bits_of_wgmma(kernel, a, b.mT)
        assert_has_bits_of_wgmma(kernel, b, a.mT)
        if load_of_a == load_of_b == "along K" and k < 17000:
            host = torch_tiled.matmul(a.cpu(), b.cpu().mT, algorithm="fp16x3")
            assert_same(torch_tiled.matmul(a, b.mT, algorithm=kernel).cpu(), host)


# Sides, lengths and batches in which blocks have several tiles, and share chunks of K.
BATCHES = {
    "fp16x3_cluster": (
        [(1, 1), (1, 70), (7, 5), (33, 2), (9, 40), (50, 33)],
        [128, 164, 445, 1023, 1880, 5570, 8200, 20001],
        [(3,), (2, 1, 150)],
    ),
    "fp16x3_direct": (
        [
            *((1, 700), (3, 5000), (70, 1), (999, 7)),
            *((130, 390), (390, 130), (64, 4096), (2000, 16)),
        ],
        [128, 200, 301, 511],
        [(2,), (97,), (2, 1, 150)],
    ),
    "fp16x3_rows": (
        [(1, 700), (5000, 3), (64, 4096), (999, 256), (130, 390), (9000, 300)],
        [128, 200, 256],
        [(2,), (97,), (2, 1, 150)],
    ),
    "fp16x3_thin": (
        [(1, 7000), (9000, 1), (1, 1), (3, 700), (2000, 8), (40, 50)],
        [200, 453, 1024, 1100, 5000],
        [(3,), (97,), (2, 1, 30)],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kernel, sides, k",
    [(kernel, *case) for kernel, rows in BATCHES.items() for case in product(*rows[:2])],
)
def test_batches(kernel, sides, k, layout):
    """A block keeps operands while C's tiles go through their place, and goes on to another chunk
    and another matrix. Where matrices are many, a block of fp16x3_cluster sums all chunks itself;
    else a cluster, eight at a time."""
    m, n = sides
    for batch in BATCHES[kernel][2]:
        if (m + n) * k * math.prod(batch) > 2**30:
            continue  # memory
        a, b = in_layouts(layout, (*batch, m, k), (batch[-1], k, n))
        a[..., -1, 5] = torch.inf
        like = torch.empty(*batch, n, m, device="cuda").mT if k % 8 else None
        assert_has_bits_of_wgmma(kernel, a, b, like)


@pytest.mark.parametrize("batch", [1001, 2003])
@pytest.mark.parametrize("k", [130, 600, 2500])
def test_many_products_of_two_vectors(k, batch):
    """Eight of them share a tile of fp16x3_thin, the diagonal of which is kept."""
    a, b = torch.randn(batch, 1, k, device="cuda"), torch.randn(batch, k, 1, device="cuda")
    a[batch // 2, 0, 7], b[-1, k // 2], b[3] = torch.nan, torch.inf, 0
    strided = a.repeat_interleave(3, -1)[..., ::3]
    for x, y in ((a, b), (a[:1].expand_as(a), b), (strided, b)):
        assert_has_bits_of_wgmma("fp16x3_thin", x, y)
    c, ways = torch.randn(batch, 1, 1, device="cuda"), {"alpha": -0.5, "beta": 2}
    names = ("fp16x3_thin", "fp16x3_wgmma")
    assert_same(*(torch_tiled.gemm_(c.clone(), a, b, **ways, algorithm=x) for x in names))
    narrow, options = b.bfloat16(), {"algorithm": "fp16x3_thin"}
    expected = torch_tiled.matmul(a, narrow.float(), **options)
    assert_same(torch_tiled.matmul(a, narrow, **options), expected)


@pytest.mark.parametrize("k", [300, 1000, 2500])
@pytest.mark.parametrize("m, n", [(1, 333), (333, 1), (5, 90)])
def test_epilogue_of_thin(m, n, k):
    a, b = torch.randn(4, m, k, device="cuda"), torch.randn(4, k, n, device="cuda")
    a[1, -1, 7], b[2, k // 2, 0] = torch.nan, 1e-40
    c, bias = torch.randn(4, m, n, device="cuda"), torch.randn(n, device="cuda")
    names = ("fp16x3_thin", "fp16x3_wgmma")
    ways = {"alpha": -0.5, "beta": 2}
    assert_same(*(torch_tiled.gemm_(c.clone(), a, b, **ways, algorithm=x) for x in names))
    layer = {"activation": "gelu"}
    assert_same(*(torch_tiled.linear(a, b[0].mT, bias, **layer, algorithm=x) for x in names))
