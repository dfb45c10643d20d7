"""The kernels on CUDA cores: every tile, every layout, split-K and epilogues.

They sum in the chunked order, so tiled64 is the reference to the bit; other tests compare tiled64
with float64. A problem is (*batch, m, n, k).
"""

from itertools import product

import pytest
import torch
from helpers.needs import CPU_AND_HOPPER, needs_cuda, needs_hopper
from helpers.operands import LAYOUTS
from helpers.tiled64 import (
    check_capture,
    check_epilogues,
    check_without_memory,
    matrix,
    operands,
)

import torch_tiled

KERNELS = [
    pytest.param("simt_small", marks=needs_cuda),
    pytest.param("simt_gemv", marks=needs_cuda),
    pytest.param("simt_cp_async", marks=needs_cuda),
    pytest.param("simt_tma", marks=needs_hopper),
    pytest.param("simt_skinny", marks=needs_hopper),
    pytest.param("simt_cluster", marks=needs_hopper),
]
SIMT = pytest.param("simt", marks=needs_cuda)

# Problems for which the plan for 132 SMs (H100, H200) picks each tile. simt_small gets a batch
# whose last block has fewer matrices than the others, or one matrix of many tiles.
TILES = [
    ("simt_small", "16x16", (1003, 15, 13, 100)),
    ("simt_small", "32x32", (1003, 32, 28, 40)),
    ("simt_small", "64x64", (1003, 64, 60, 40)),
    ("simt_small", "16x16", (1003, 33, 15, 200)),
    ("simt_small", "32x32", (20, 100, 96, 40)),
    ("simt_small", "64x64", (7, 700, 700, 40)),
    ("simt_gemv", "1x128", (1, 9000, 100)),
    ("simt_gemv", "128x2", (3, 9001, 2, 17)),
    ("simt_gemv", "4x128", (1000, 3, 130, 8)),
    ("simt_gemv", "8x128", (21, 9000, 128)),
    ("simt_cp_async", "128x64", (2100, 2900, 40)),
    ("simt_cp_async", "64x64", (1024, 1024, 72)),
    ("simt_cp_async", "64x32", (512, 512, 132)),
    ("simt_cp_async", "32x32", (130, 120, 100)),
    ("simt_cp_async", "16x128", (12, 9000, 100)),
    ("simt_cp_async", "32x128", (20, 17000, 100)),
    ("simt_tma", "256x128", (2048, 2048, 1036)),
    ("simt_tma", "128x64", (1900, 2100, 100)),
    ("simt_tma", "64x64", (700, 700, 700)),
    ("simt_tma", "64x32", (500, 500, 132)),
    ("simt_skinny", "2x128", (1, 9000, 100)),
    ("simt_skinny", "4x128", (3, 9000, 100)),
    ("simt_skinny", "128x8", (9000, 7, 100)),
    ("simt_skinny", "16x128", (12, 9000, 100)),
]

# Problems of each tile of simt_small and simt_skinny, for every remainder of K in a stage.
SHORT_K = (*range(1, 71), 1023, 1024)
LONG_K = (*SHORT_K, 1025, 1031, 1032, 1033, 2049, 5000, 9000)
REMAINDERS = [
    *product(("simt_cp_async", "simt"), [(70, 90)], LONG_K),
    *product(["simt_small"], [(70, 90)], LONG_K),
    *product(["simt_gemv"], [(1, 1), (1, 130), (200, 2), (3, 129), (70, 9)], range(1, 130)),
    *product(["simt_small"], [(1003, 16, 15), (1003, 31, 32), (1003, 64, 63)], SHORT_K),
    *(
        pytest.param(*problem, marks=needs_hopper)
        for problem in product(["simt_skinny"], [(2, 130), (200, 3), (7, 130), (200, 20)], LONG_K)
    ),
    *(
        pytest.param(*problem, marks=needs_hopper)
        for problem in product(
            ["simt_cluster"], [(1, 1), (1, 70), (70, 2), (5, 3), (33, 9)], (*LONG_K, 17000)
        )
    ),
]


def check(a, b, algorithm):
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    out = torch.full_like(expected, float("nan"))
    assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm, out=out), expected)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm, tile, problem", TILES)
def test_every_tile(algorithm, tile, problem, layout):
    a, b = operands(problem, layout)
    explained = torch_tiled.explain(a, b, algorithm=algorithm)
    assert (explained.algorithm, explained.tile) == (algorithm, tile)
    check(a, b, algorithm)


@needs_cuda
@pytest.mark.parametrize("algorithm, shape, k", REMAINDERS)
def test_every_remainder_of_k(algorithm, shape, k):
    """A wrong end of K would lose an element, or multiply the NaN that pads aligned rows."""
    for layout, aligned in product(LAYOUTS, (False, True)):
        check(*operands((*shape, k), layout, aligned=aligned), algorithm)


@needs_cuda
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,), (1000,)])
def test_every_side_of_a_small_tile(batch, layout):
    """Sides around multiples of 16, the smallest tile, alone and in batches."""
    sides = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)
    for m, n, aligned in product(sides, sides, (False, True)):
        check(*operands((*batch, m, n, 42), layout, aligned=aligned), "simt_small")


@pytest.mark.parametrize("k, taken", [(1, True), (1024, True), (0, False), (1025, False)])
def test_simt_small_takes_one_chunk(device, k, taken):
    a, b = matrix((50, k), device=device), matrix((k, 60), device=device)
    explained = torch_tiled.explain(a, b, algorithm="simt_small")
    assert (explained.algorithm == "simt_small") == taken
    check(a, b, "simt_small")


# Batch dimensions of a and of b.
BATCHES = [
    *(((7,), (7,)), ((7,), ()), ((), (7,))),
    *(((4, 2), (4, 2)), ((4, 1), (3,)), ((3,), (4, 1))),
    *(((2, 3, 2), (2, 3, 2)), ((2, 1, 3), (4, 1)), ((), (2, 3, 2))),
]

# The short operand of simt_skinny, (rows, k).
SHORT = {
    "aligned": lambda rows, k: matrix((rows, k), aligned=True),
    "misaligned": lambda rows, k: torch.randn(rows, k + 1, device="cuda")[:, 1:],
    "transposed": lambda rows, k: matrix((rows, k), "T"),
    "strided": lambda rows, k: torch.randn(2 * rows, 3 * k, device="cuda")[::2, ::3],
    "repeated": lambda rows, k: torch.randn(1, k, device="cuda").expand(rows, k),
}


@needs_hopper
@pytest.mark.parametrize("few", ["rows", "columns"])
@pytest.mark.parametrize("layout", ["N", "T"])
@pytest.mark.parametrize("short", SHORT)
def test_every_short_operand(short, layout, few):
    """The short operand has one panel or several, and the long one is K-major or MN-major."""
    rows = (*range(1, 18), 32, 33, 64, 100)
    for count, length, k in product(rows, (101, 128, 129, 300), (100, 1100)):
        a, b = SHORT[short](count, k), matrix((k, length), layout, aligned=True)
        if few == "columns":
            a, b = b.mT, a.mT
        assert torch_tiled.explain(a, b, algorithm="simt_skinny").algorithm == "simt_skinny"
        check(a, b, "simt_skinny")


@pytest.mark.parametrize("device", CPU_AND_HOPPER)
def test_another_kernel_takes_what_no_tensor_map_reads(device):
    """The long operand is not aligned to 16 bytes, or strided, or has a stride of 0."""
    x, store = torch.randn(9, 600, device=device), torch.randn(1300, 1300, device=device)
    for w in (
        store[:600, 1:301],
        store[:600, :600:2],
        store.view(-1)[: 600 * 301].view(600, 301),
        store.view(-1)[: 601 * 301].view(301, 601).mT[:600],
        store[:600, :1].expand(600, 300),
    ):
        for a, b in ((x, w), (w.mT, x.mT)):
            assert torch_tiled.explain(a, b, algorithm="simt_skinny").algorithm != "simt_skinny"
            check(a, b, "simt_skinny")


@needs_hopper
@pytest.mark.parametrize("remainder", range(1, 33))
def test_a_block_computes_a_second_tile(remainder):
    """The last stage of its first tile has any remainder of K."""
    check(
        torch.randn(1900, 64 + remainder, device="cuda"),
        torch.randn(64 + remainder, 2100, device="cuda"),
        "simt_tma",
    )


# Every tile of simt_tma is among them.
SPLIT = [
    *product(["simt_cp_async"], [(1, 300, 4097), (300, 1, 4097), (5, 7, 70000), (64, 64, 5000)]),
    *product(["simt_tma"], [(5, 7, 70000), (700, 700, 5000)]),
    *product(["simt_tma"], [(128, 4096, 4096), (1024, 1024, 8192)]),
]


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm, problem", SPLIT)
def test_split_k(algorithm, problem, layout):
    a, b = operands(problem, layout)
    explained = torch_tiled.explain(a, b, algorithm=algorithm)
    rows, cols = map(int, explained.tile.split("x"))
    assert int(explained.blocks) > -(-problem[0] // rows) * -(-problem[1] // cols)
    check(a, b, algorithm)


@pytest.mark.parametrize("k", [100, 600])
@pytest.mark.parametrize("algorithm", KERNELS)
def test_views(algorithm, k):
    store = torch.randn(3, 5, 703, 1105, device="cuda")
    a = store[:, :1, 1:401, 3 : 3 + k]  # misaligned, broadcast over 5
    for b in (
        store[:1, :, :k, 5:305],
        store[0, 0, 1 : 1 + k, ::2],
        store[0, 0, ::1, 1 : 1 + k].mT[:, ::2],
        store[0, 0, :1, :1].expand(k, 40),
        store[0, 0, :k, :1].expand(k, 50),
    ):
        check(a, b, algorithm)
        check(b.mT, a.mT, algorithm)


@pytest.mark.parametrize("algorithm", [*KERNELS, SIMT])
@pytest.mark.parametrize("m, n", [(5, 300), (300, 5), (40, 60)])
@pytest.mark.parametrize("k", [100, 2100])
def test_batches(algorithm, m, n, k):
    """Batches of one dimension and of several that do not merge, shared and broadcast operands."""
    for of_a, of_b in BATCHES:
        batch = torch.broadcast_shapes(of_a, of_b)
        for layout in LAYOUTS:
            a = matrix((*of_a, m, k), layout[0], aligned=True).expand(*batch, m, k)
            b = matrix((*of_b, k, n), layout[1], aligned=True).expand(*batch, k, n)
            check(a, b, algorithm)
            check(a.movedim(0, -3), b.movedim(0, -3), algorithm)


@pytest.mark.parametrize("algorithm", [*KERNELS, SIMT])
def test_more_batch_dimensions_than_a_tensor_map_has(algorithm):
    """No view can merge them, so that a kernel without tensor maps takes the product."""
    store = torch.randn(6, 6, 6, 6, 90, 100, device="cuda")
    a = store[::2, ::3, ::2, ::3]
    check(a, a.mT, algorithm)


@pytest.mark.parametrize("algorithm", KERNELS)
@pytest.mark.parametrize("m, n", [(90, 128), (90, 131), (90, 13), (20001, 30), (20001, 64)])
@pytest.mark.parametrize("k", [100, 5000])
def test_epilogues(algorithm, m, n, k):
    """Vectorized and scalar epilogues, with and without split-K, have the bits of tiled64."""
    check_epilogues([algorithm], m, n, k, device="cuda")


@needs_hopper
def test_another_kernel_computes_if_copies_do_not_fit():
    """The operand is a column with a stride of 0, whose copy would exceed the free memory."""
    free = torch.cuda.mem_get_info()[0]
    n = int(free * 1.05) // (4 * 64) // 4 * 4
    row = torch.randn(64, 1, device="cuda")
    a = torch.randn(1, 64, device="cuda")
    wide = row.expand(64, n)
    result = torch_tiled.matmul(a, wide, algorithm="simt_tma")
    first = torch_tiled.matmul(a, row, algorithm="tiled64")
    assert (result == first).all()


@needs_hopper
def test_another_kernel_computes_if_partial_sums_do_not_fit():
    """The sums of three chunks of 500 x 50000 are 300 MB, and no memory is left."""
    a, b = operands((500, 50000, 2049), "NN", aligned=True)
    check_without_memory("simt_skinny", a, b)


@pytest.mark.parametrize("algorithm", [*KERNELS, SIMT])
@pytest.mark.parametrize("problem", [(130, 500, 3000), (12, 500, 3000), (300, 40, 50, 60)])
def test_capture(algorithm, problem, collected):
    check_capture(*operands(problem, "NT"), algorithm=algorithm, precision="ieee")
