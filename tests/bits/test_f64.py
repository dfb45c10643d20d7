"""float64 on tensor cores: every tile, layout and alignment, split-K, epilogues and special values.

A float64 product of a tensor core adds its terms one after another, as tiled64 does, which is
therefore the reference to the bit; other tests compare tiled64 with more digits, and with the CPU.
A problem is (*batch, m, n, k).
"""

from functools import partial
from itertools import product
from math import prod

import pytest
import torch
from helpers import tiled64
from helpers.needs import needs_cuda, needs_hopper
from helpers.operands import LAYOUTS

import torch_tiled

KERNELS = ("f64_mma", "f64_direct")

# Problems for which the plan for 132 SMs (H100, H200) picks each tile.
TILES = [
    ("f64_mma", "128x128", (2048, 2048, 1030)),
    ("f64_mma", "128x64", (1024, 1024, 1024)),
    ("f64_mma", "64x64", (700, 700, 700)),
    ("f64_mma", "32x32", (600, 500, 300)),
    ("f64_mma", "16x64", (5, 9000, 100)),
    ("f64_mma", "64x16", (9001, 7, 2100)),
    ("f64_direct", "8x8", (100, 70, 1500)),
    ("f64_direct", "8x8", (3, 20, 2900)),
    ("f64_direct", "16x8", (276, 272, 243)),
    ("f64_direct", "16x16", (300, 40, 40, 100)),
    ("f64_direct", "16x32", (2, 90001, 7)),
]


matrix, operands = (partial(f, dtype=torch.float64) for f in (tiled64.matrix, tiled64.operands))


def check(a, b):
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    out = torch.empty_like(expected)
    for kernel in KERNELS:
        out.fill_(torch.nan)
        result = torch_tiled.matmul(a, b, algorithm=kernel, out=out)
        assert torch.equal(result.view(torch.int64), expected.view(torch.int64)), kernel


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel, tile, problem", TILES)
def test_every_tile(kernel, tile, problem, layout):
    a, b = operands(problem, layout)
    explained = torch_tiled.explain(a, b, algorithm=kernel)
    assert (explained.algorithm, explained.tile) == (kernel, tile)
    check(a, b)


@needs_hopper
def test_auto_takes_them():
    for kernel, problem in (
        ("f64_mma", (4096, 4096, 4096)),
        ("f64_mma", (1000, 1001, 1003)),
        ("f64_mma", (64, 64, 65536)),
        ("f64_direct", (64, 64, 64)),
        ("f64_direct", (10_000, 8, 8, 8)),
        ("f64_direct", (5, 700, 30)),
    ):
        a, b = operands(problem, "NN")
        assert torch_tiled.explain(a, b).algorithm == kernel


def test_another_kernel_takes_more_rows_than_it_can_count():
    for rows, kernel in ((2**30, "f64_mma"), (2**31, "tiled")):
        a = torch.empty(1, 1000, dtype=torch.float64, device="meta").expand(rows, 1000)
        b = torch.empty(1000, 1, dtype=torch.float64, device="meta")
        plan = torch_tiled.explain(a, b, algorithm="f64_mma", compute_capability=90, sms=132)
        assert plan.algorithm.startswith(kernel)


@needs_cuda
@pytest.mark.parametrize("k", [*range(1, 50), 1023, 1024, 1025, 1039, 1040, 2049, 5000])
@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (130, 2), (70, 90), (129, 257)])
def test_every_remainder_of_k(shape, k):
    """A wrong end of K would lose an element, or multiply the NaN that follows a row."""
    for layout, pitch in product(LAYOUTS, (0, 1, 2)):
        check(*operands((*shape, k), layout, pitch=pitch))


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kernel, problem",
    [
        *product(KERNELS, [(5, 7, 70000), (64, 64, 65536), (3, 2, 30, 20, 20000)]),
        ("f64_mma", (1, 4096, 4096)),
    ],
)
def test_split_k(kernel, problem, layout):
    *batch, m, n, _ = problem
    a, b = operands(problem, layout)
    explained = torch_tiled.explain(a, b, algorithm=kernel)
    rows, cols = map(int, explained.tile.split("x"))
    assert int(explained.blocks) > prod(batch) * -(-m // rows) * -(-n // cols)
    check(a, b)


@needs_cuda
@pytest.mark.parametrize("k", [100, 1600])
def test_views(k):
    store = torch.randn(3, 5, 703, 1705, dtype=torch.float64, device="cuda")
    a = store[:, :1, 1:401, 3 : 3 + k]  # misaligned, broadcast over 5
    for b in (
        store[:1, :, :1, 5:305].expand(1, 5, k, 300),
        store[0, 0, :1, ::2].expand(k, -1),
        store[0, 0, ::1, 1 : 1 + k].mT[:, ::2],
        store[0, 0, :1, :1].expand(k, 40),
    ):
        check(a, b)
        check(b.mT, a.mT)


@needs_cuda
@pytest.mark.parametrize("batch", [((7,), ()), ((), (7,)), ((4, 1), (3,)), ((2, 3, 2), (2, 1, 2))])
def test_batches(batch):
    for m, n, k in ((5, 300, 100), (300, 5, 2100), (40, 60, 33)):
        for layout in LAYOUTS:
            a, b = matrix((*batch[0], m, k), layout[0]), matrix((*batch[1], k, n), layout[1])
            check(a, b)


@needs_cuda
@pytest.mark.parametrize("m, n", [(90, 128), (90, 131), (20001, 30), (3, 700)])
@pytest.mark.parametrize("k", [100, 5000])
def test_epilogues(m, n, k):
    """Stores by pairs and by elements, with and without split-K, have the bits of tiled64."""
    tiled64.check_epilogues(KERNELS, m, n, k, dtype=torch.float64, device="cuda")


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
    for k in (3, 16, 61, 1021):
        a, b = special((300, k), spread, generator), special((k, 310), spread, generator)
        expected = torch_tiled.matmul(a, b, algorithm="tiled64")
        nan = expected.isnan()
        for kernel in KERNELS:
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
        check(a, b)


@needs_hopper
@pytest.mark.parametrize("kernel", KERNELS)
def test_k_is_not_split_if_partial_sums_do_not_fit(kernel):
    tiled64.check_without_memory(kernel, *operands((64, 64, 65536), "NN"))


@needs_cuda
@pytest.mark.parametrize("problem", [(130, 500, 3000), (12, 500, 3000), (300, 40, 50, 60)])
def test_capture(problem, collected):
    tiled64.check_capture(*operands(problem, "NT"))


def test_the_host_has_the_same_bits(device):
    """On a CPU both are computed as tiled64 is, which the GPU's products are compared with."""
    for k in (1, 100, 1030):
        a, b = (matrix(shape, device="cpu") for shape in ((33, k), (k, 50)))
        expected = torch_tiled.matmul(a, b, algorithm="tiled64")
        for kernel in KERNELS:
            result = torch_tiled.matmul(a.to(device), b.to(device), algorithm=kernel)
            assert torch.equal(result.cpu(), expected)
