"""The kernels of the chunked order, simt and f64: every tile, layout, split-K and epilogue.

The reference to the bit is tiled64; other tests compare tiled64 with float64 and more digits, and
with the CPU. A problem is (*batch, m, n, k).
"""

from itertools import product
from math import prod

import pytest
import torch
from helpers.needs import CPU_AND_HOPPER, needs_cuda, needs_hopper
from helpers.operands import LAYOUTS
from helpers.reference import takes
from helpers.tiled64 import (
    check_capture,
    check_epilogues,
    check_without_memory,
    matrix,
    operands,
)

import torch_tiled
from torch_tiled._op.registry import family, kernels

F64 = ("f64_tma", "f64_mma", "f64_direct", "f64_gemv")
SIMT = ("simt_small", "simt_gemv", "simt_cp_async", "simt_tma", "simt_skinny", "simt_cluster")


def by_kernel(*names):
    """A kernel of each name, where the GPU has it."""
    of_hopper = [x.name for x in kernels().values() if x.needs_hopper]
    return [
        pytest.param(name, marks=needs_hopper if name in of_hopper else needs_cuda)
        for name in names
    ]


def dtype_of(algorithm):
    """float64 of f64's kernels, or else float32."""
    return family(algorithm)[0].dtypes[0]


def of_f64(device="cuda"):
    """The kernels of f64 that the device has."""
    return [name for name in F64 if takes(name, torch.float64, device)]


def check(a, b, *algorithms):
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    integers = {torch.float32: torch.int32, torch.float64: torch.int64}[a.dtype]
    for algorithm in algorithms:
        out = torch.full_like(expected, torch.nan)
        assert torch_tiled.matmul(a, b, algorithm=algorithm, out=out) is out
        assert torch.equal(out.view(integers), expected.view(integers)), algorithm


# --- tiles, remainders and split-K ---------------------------------------------------------------

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
    ("f64_mma", "128x128", (2048, 2048, 1030)),
    ("f64_mma", "128x64", (1024, 1024, 1024)),
    ("f64_mma", "64x64", (700, 700, 700)),
    ("f64_mma", "32x32", (600, 500, 300)),
    ("f64_mma", "16x64", (5, 9000, 100)),
    ("f64_mma", "64x16", (9001, 7, 2100)),
    ("f64_tma", "128x128", (2048, 2048, 1030)),
    ("f64_tma", "128x64", (1024, 1024, 1024)),
    ("f64_tma", "64x64", (900, 900, 500)),
    ("f64_tma", "64x32", (700, 700, 700)),
    ("f64_tma", "32x32", (500, 500, 132)),
    ("f64_direct", "8x8", (100, 70, 1500)),
    ("f64_direct", "8x8", (3, 20, 2900)),
    ("f64_direct", "16x8", (276, 272, 243)),
    ("f64_direct", "16x16", (300, 40, 40, 100)),
    ("f64_direct", "16x32", (2, 90001, 7)),
    ("f64_gemv", "1x32", (3, 1, 9001, 1500)),
    ("f64_gemv", "32x1", (300, 70, 2, 17)),
]


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel, tile, problem", TILES)
def test_every_tile(kernel, tile, problem, layout):
    a, b = operands(problem, layout, dtype=dtype_of(kernel))
    plan = torch_tiled.explain(a, b, algorithm=kernel)
    assert (plan.algorithm, plan.tile) == (kernel, tile)
    check(a, b, *(F64 if kernel in F64 else [kernel]))


# Every remainder of K in a stage, for each tile of simt_small and simt_skinny.
SHORT_K = (*range(1, 71), 1023, 1024)
LONG_K = (*SHORT_K, 1025, 1031, 1032, 1033, 2049, 5000, 9000)
F64_K = (*range(1, 50), 1023, 1024, 1025, 1039, 1040, 2049, 5000)
REMAINDERS = [
    ("simt_cp_async", [(70, 90)], LONG_K),
    ("simt", [(70, 90)], LONG_K),
    ("simt_small", [(70, 90)], LONG_K),
    ("simt_gemv", [(1, 1), (1, 130), (200, 2), (3, 129), (70, 9)], range(1, 130)),
    ("simt_small", [(1003, 16, 15), (1003, 31, 32), (1003, 64, 63)], SHORT_K),
    ("simt_skinny", [(2, 130), (200, 3), (7, 130), (200, 20)], LONG_K),
    ("simt_cluster", [(1, 1), (1, 70), (70, 2), (5, 3), (33, 9)], (*LONG_K, 17000)),
    *((name, [(1, 1), (1, 70), (130, 2), (70, 90), (129, 257)], F64_K) for name in F64),
]


@pytest.mark.parametrize(
    "kernel, shape, k",
    [
        pytest.param(*name.values, shape, k, marks=name.marks)
        for each, shapes, lengths in REMAINDERS
        for name in by_kernel(each)
        for shape, k in product(shapes, lengths)
    ],
)
def test_every_remainder_of_k(kernel, shape, k):
    """A wrong end of K would lose an element, or multiply the NaN that follows a row."""
    dtype = dtype_of(kernel)
    for layout, pitch in product(LAYOUTS, (0, 1, 2) if dtype == torch.float64 else (0, "aligned")):
        padding = {"aligned": True} if pitch == "aligned" else {"pitch": pitch}
        check(*operands((*shape, k), layout, dtype=dtype, **padding), kernel)


# Every tile of simt_tma is among them.
SPLIT = [
    *product(["simt_cp_async"], [(1, 300, 4097), (300, 1, 4097), (5, 7, 70000), (64, 64, 5000)]),
    *product(["simt_tma"], [(5, 7, 70000), (700, 700, 5000)]),
    *product(["simt_tma"], [(128, 4096, 4096), (1024, 1024, 8192)]),
    *product(F64, [(5, 7, 70000), (64, 64, 65536), (3, 2, 30, 20, 20000)]),
    ("f64_mma", (1, 4096, 4096)),
]


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel, problem", SPLIT)
def test_split_k(kernel, problem, layout):
    *batch, m, n, _ = problem
    a, b = operands(problem, layout, dtype=dtype_of(kernel))
    plan = torch_tiled.explain(a, b, algorithm=kernel)
    rows, cols = map(int, plan.tile.split("x"))
    assert int(plan.blocks) > prod(batch) * -(-m // rows) * -(-n // cols)
    check(a, b, *(F64 if kernel in F64 else [kernel]))


# --- views, batches, epilogues and graphs --------------------------------------------------------


@pytest.mark.parametrize("k", [100, 600, 1600])
@pytest.mark.parametrize("kernel", by_kernel(*SIMT, *F64))
def test_views(kernel, k):
    store = torch.randn(3, 5, 703, 1705, dtype=dtype_of(kernel), device="cuda")
    a = store[:, :1, 1:401, 3 : 3 + k]  # misaligned, broadcast over 5
    shorter = (store[:1, :, :k, 5:305], store[0, 0, 1 : 1 + k, ::2], store[0, 0, :k, :1])
    for b in (
        *((shorter[0], shorter[1], shorter[2].expand(k, 50)) if k < 700 else ()),
        store[:1, :, :1, 5:305].expand(1, 5, k, 300),
        store[0, 0, :1, ::2].expand(k, -1),
        store[0, 0, ::1, 1 : 1 + k].mT[:, ::2],
        store[0, 0, :1, :1].expand(k, 40),
    ):
        check(a, b, kernel)
        check(b.mT, a.mT, kernel)


# Batch dimensions of a and of b.
BATCHES = [
    *(((7,), (7,)), ((7,), ()), ((), (7,))),
    *(((4, 2), (4, 2)), ((4, 1), (3,)), ((3,), (4, 1))),
    *(((2, 3, 2), (2, 3, 2)), ((2, 1, 3), (4, 1)), ((), (2, 3, 2)), ((2, 3, 2), (2, 1, 2))),
]


@pytest.mark.parametrize("kernel", by_kernel(*SIMT, "simt", *F64))
@pytest.mark.parametrize("m, n", [(5, 300), (300, 5), (40, 60)])
@pytest.mark.parametrize("k", [100, 2100])
def test_batches(kernel, m, n, k):
    """Batches of one dimension and of several that do not merge, shared and broadcast operands."""
    options = {"aligned": True, "dtype": dtype_of(kernel)}
    for of_a, of_b in BATCHES:
        batch = torch.broadcast_shapes(of_a, of_b)
        for layout in LAYOUTS:
            a = matrix((*of_a, m, k), layout[0], **options).expand(*batch, m, k)
            b = matrix((*of_b, k, n), layout[1], **options).expand(*batch, k, n)
            check(a, b, kernel)
            check(a.movedim(0, -3), b.movedim(0, -3), kernel)


@pytest.mark.parametrize("kernel", by_kernel(*SIMT, "simt"))
def test_more_batch_dimensions_than_a_tensor_map_has(kernel):
    """No view can merge them, so that a kernel without tensor maps takes the product."""
    store = torch.randn(6, 6, 6, 6, 90, 100, device="cuda")
    a = store[::2, ::3, ::2, ::3]
    check(a, a.mT, kernel)


@pytest.mark.parametrize("kernel", by_kernel(*SIMT, *F64))
@pytest.mark.parametrize(
    "m, n", [(90, 128), (90, 131), (90, 13), (20001, 30), (20001, 64), (3, 700)]
)
@pytest.mark.parametrize("k", [100, 5000])
def test_epilogues(kernel, m, n, k):
    """Vectorized and scalar epilogues, with and without split-K, have the bits of tiled64."""
    check_epilogues([kernel], m, n, k, dtype=dtype_of(kernel), device="cuda")


@pytest.mark.parametrize("kernel", [*by_kernel(*SIMT, "simt"), "f64"])
@pytest.mark.parametrize("problem", [(130, 500, 3000), (12, 500, 3000), (300, 40, 50, 60)])
@needs_cuda
def test_capture(kernel, problem, collected):
    a, b = operands(problem, "NT", dtype=dtype_of(kernel))
    check_capture(a, b, algorithm=kernel, precision="ieee")


@needs_hopper
@pytest.mark.parametrize(
    "kernel, problem",
    [("simt_skinny", (500, 50000, 2049)), *((name, (64, 64, 65536)) for name in F64)],
)
def test_another_kernel_computes_if_partial_sums_do_not_fit(kernel, problem):
    """Or the same kernel, without a split of K. No memory is left for the sums of chunks."""
    options = {"aligned": kernel not in F64, "dtype": dtype_of(kernel)}
    check_without_memory(kernel, *operands(problem, "NN", **options))


# --- what one kernel takes -----------------------------------------------------------------------


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
    plan = torch_tiled.explain(a, b, algorithm="simt_small")
    assert (plan.algorithm == "simt_small") == taken
    check(a, b, "simt_small")


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
    check(*operands((1900, 2100, 64 + remainder), "NN"), "simt_tma")


@needs_hopper
def test_another_kernel_computes_if_copies_do_not_fit():
    """The operand is a column with a stride of 0, whose copy would exceed the free memory."""
    free = torch.cuda.mem_get_info()[0]
    n = int(free * 1.05) // (4 * 64) // 4 * 4
    row = torch.randn(64, 1, device="cuda")
    a = torch.randn(1, 64, device="cuda")
    result = torch_tiled.matmul(a, row.expand(64, n), algorithm="simt_tma")
    first = torch_tiled.matmul(a, row, algorithm="tiled64")
    assert (result == first).all()


# --- float64 on tensor cores, which add terms one after another, as tiled64 does -----------------


@needs_hopper
@pytest.mark.parametrize(
    "kernel, problem",
    [
        ("f64_tma", (4096, 4096, 4096)),
        ("f64_mma", (1000, 1001, 1003)),
        ("f64_tma", (64, 64, 65536)),
        ("f64_direct", (64, 64, 64)),
        ("f64_direct", (10_000, 8, 8, 8)),
        ("f64_direct", (5, 700, 30)),
    ],
)
def test_auto_takes_f64(kernel, problem):
    a, b = operands(problem, "NN", dtype=torch.float64)
    assert torch_tiled.explain(a, b).algorithm == kernel


def test_another_kernel_takes_more_rows_than_it_can_count():
    for rows, kernel in ((2**30, "f64_mma"), (2**31, "tiled")):
        a = torch.empty(1, 1000, dtype=torch.float64, device="meta").expand(rows, 1000)
        b = torch.empty(1000, 1, dtype=torch.float64, device="meta")
        plan = torch_tiled.explain(a, b, algorithm="f64_mma", compute_capability=90, sms=132)
        assert plan.algorithm in {x.name for x in family(kernel)}


def special(shape, spread, generator):
    """Numbers of any sign whose exponents are within `spread`, and some of them special."""
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    x = torch.ldexp(x, torch.randint(-spread, spread + 1, shape, generator=generator))
    values = (0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, torch.inf, -torch.inf, torch.nan)
    for value in values:
        x[torch.rand(shape, generator=generator) < 0.002] = value
    return x.cuda()


@needs_cuda
@pytest.mark.parametrize("spread", [0, 30, 500, 1000])
def test_a_tensor_core_adds_in_sequence(spread):
    """Another order or a wider accumulator would change the bits of most of these sums, a subnormal
    that is flushed those of some, and a padded zero the sign of those that are -0."""
    generator = torch.Generator().manual_seed(spread)
    for k in (3, 16, 61, 62, 1022):
        a, b = special((300, k), spread, generator), special((k, 310), spread, generator)
        expected = torch_tiled.matmul(a, b, algorithm="tiled64")
        nan = expected.isnan()
        for kernel in of_f64():
            result = torch_tiled.matmul(a, b, algorithm=kernel)
            assert torch.equal(result.isnan(), nan)
            bits = [torch.where(nan, 0, x).view(torch.int64) for x in (result, expected)]
            assert torch.equal(*bits)


@needs_cuda
def test_sums_of_minus_zero_keep_their_sign():
    """Products that underflow to -0 begin at +0, so that only a later -0 can show."""
    for k in range(1, 40):
        a = torch.full((20, k), -1e-200, dtype=torch.float64, device="cuda")
        b = torch.full((k, 20), 1e-200, dtype=torch.float64, device="cuda")
        a[:, 0], b[0] = -5e-324, 0.5  # rounds to -0
        check(a, b, *of_f64())


def test_the_host_has_the_same_bits(device):
    """On a CPU both are computed as tiled64 is, which the GPU's products are compared with."""
    for k in (1, 100, 1030):
        options = {"dtype": torch.float64, "device": "cpu"}
        a, b = matrix((33, k), **options), matrix((k, 50), **options)
        expected = torch_tiled.matmul(a, b, algorithm="tiled64")
        for kernel in of_f64(device):
            result = torch_tiled.matmul(a.to(device), b.to(device), algorithm=kernel)
            assert torch.equal(result.cpu(), expected)
