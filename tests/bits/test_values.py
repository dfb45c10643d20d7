"""Values at the edges of the formats: every bit pattern, rounding, overflow, zeros, NaN and Inf.

The kernels sum from +0, most of them by FMAs in ascending k, so that the bits of a result are known
if its sum has one term, or if all partial sums are exact. `auto` on the CPU is torch.matmul, and is
left out of tests of more than PyTorch promises.
"""

import pytest
import torch
from helpers.reference import (
    ALGORITHMS,
    FLOATS_16BIT,
    NAMED,
    REAL,
    assert_within,
    bound,
    one_hot_bound,
    order,
    product,
)
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled._op.registry import family

BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

every_algorithm = pytest.mark.parametrize("algorithm", NAMED)
every_float = pytest.mark.parametrize("dtype", REAL, ids=str)
every_16bit_float = pytest.mark.parametrize("dtype", FLOATS_16BIT, ids=str)


def all_16bit_floats(dtype):
    """Every number of a 16-bit type, with all NaNs."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def random_patterns(dtype, count):
    """Numbers of random bits: every exponent is equally likely, and NaN and Inf occur."""
    size = torch.finfo(dtype).bits // 8
    return torch.randint(0, 256, (count * size,), dtype=torch.uint8).view(dtype)


def assert_same_values(actual, expected):
    """Asserts equal values: any NaN equals any other, and -0 equals +0, since sums start at +0."""
    assert actual.dtype == expected.dtype
    actual, expected = actual.cpu(), expected.cpu()
    differ = actual.view(BITS[actual.dtype]) != expected.view(BITS[actual.dtype])
    differ &= ~(actual.isnan() & expected.isnan()) & ~((actual == 0) & (expected == 0))
    if differ.any():
        x, y = actual[differ][0].item(), expected[differ][0].item()
        count = int(differ.sum())
        raise AssertionError(f"{count} of {differ.numel()} differ, the first: {x!r}, not {y!r}")


# --- one term: every bit is known ----------------------------------------------------------------


FEW = [1.5, 0.75, 1.25, 3.0, 2.0**-7, 3 * 2.0**-12, 5 * 2.0**6]


def special(dtype):
    top, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    x = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, top, -top, smallest, -smallest]
    return torch.tensor(x, dtype=dtype)


# Functions of a dtype that make a column and a row, and the dtypes.
TERMS = {
    "every 16-bit float by 1": (lambda d: (all_16bit_floats(d), torch.ones(1)), FLOATS_16BIT),
    "1 by every 16-bit float": (lambda d: (torch.ones(1), all_16bit_floats(d)), FLOATS_16BIT),
    "every 16-bit float by few": (
        lambda d: (all_16bit_floats(d), torch.tensor(FEW)),
        FLOATS_16BIT,
    ),
    # The products have all magnitudes, with overflow to Inf and with denormals, which are kept.
    "random patterns": (lambda d: (random_patterns(d, 600), random_patterns(d, 400)), REAL),
    "special values": (lambda d: (special(d), special(d)), REAL),
}


@every_algorithm
@pytest.mark.parametrize(
    "dtype, name", [(dtype, name) for name, (_, dtypes) in TERMS.items() for dtype in dtypes]
)
def test_a_product_of_two_is_rounded_once(device, dtype, name, algorithm):
    column, row = (x.to(dtype) for x in TERMS[name][0](dtype))
    a, b = column[:, None], row[None, :]
    actual = torch_tiled.matmul(a.to(device), b.to(device), algorithm=algorithm)
    assert_same_values(actual, a * b)


@every_algorithm
@every_16bit_float
def test_every_16bit_float_widens_exactly(device, dtype, algorithm):
    x = all_16bit_floats(dtype).to(device)[:, None]
    one = torch.ones(1, 1, dtype=dtype, device=device)
    wide = torch_tiled.matmul(x, one, algorithm=algorithm, out_dtype=torch.float32)
    assert_same_values(wide, x.cpu().float())


# --- rounding of the sum -------------------------------------------------------------------------


@every_algorithm
@every_16bit_float
def test_sum_is_rounded_to_16_bits_as_by_torch(device, dtype, algorithm):
    """Random float32 numbers that are exact sums of three 16-bit ones, so that only the result is
    rounded."""
    x = random_patterns(torch.float32, 2**20)
    limit = 2.0**15 if dtype == torch.float16 else 2.0**126
    # A tensor core aligns subnormal factors as if they were the smallest normal number.
    truncates = family(algorithm)[0].order == "mma" and dtype == torch.float16
    least = 2.0**-14 if truncates else 2.0**-27
    x = x[x.isfinite() & (x.abs() < limit) & (x.abs() > least)]
    high = x.to(dtype)
    middle = ((x - high.float()) * 2.0**12).to(dtype)
    low = ((x - high.float() - middle.float() * 2.0**-12) * 2.0**24).to(dtype)
    a = torch.stack([low, middle, high], dim=1)
    b = torch.tensor([2.0**-24, 2.0**-12, 1.0]).to(dtype)
    partial = low.float() * 2.0**-24 + middle.float() * 2.0**-12
    whole = partial + high.float() == x
    a, x = a[whole], x[whole]
    assert len(x) > 100_000
    a, b = a.to(device), b[:, None].to(device)
    wide = torch_tiled.matmul(a, b, algorithm=algorithm, out_dtype=torch.float32)
    assert torch.equal(wide.cpu()[:, 0], x)
    assert_same_values(torch_tiled.matmul(a, b, algorithm=algorithm)[:, 0], x.to(dtype))


@every_algorithm
@pytest.mark.parametrize(
    "dtype, terms, expected",
    [
        (torch.bfloat16, [1, 2.0**-8], 1),  # a tie, rounded down to even
        (torch.bfloat16, [1 + 2.0**-7, 2.0**-8], 1 + 2.0**-6),  # and up
        (torch.bfloat16, [1, 2.0**-8, 2.0**-20], 1 + 2.0**-7),  # no tie
        (torch.bfloat16, [3.3895313892515355e38, 6e35], 3.3895313892515355e38),
        (torch.bfloat16, [3.3895313892515355e38, 7e35], torch.inf),
        (torch.float16, [1, 2.0**-11], 1),
        (torch.float16, [1 + 2.0**-10, 2.0**-11], 1 + 2.0**-9),
        (torch.float16, [1, 2.0**-11, 2.0**-20], 1 + 2.0**-10),
        (torch.float16, [65504, 15.99], 65504),
        (torch.float16, [65504, 16], torch.inf),
        (torch.float16, [-65504, -16], -torch.inf),
        (torch.float16, [65504, 65504, -65504], 65504),  # sums have the range of float32
    ],
    ids=str,
)
def test_ties_and_overflow_of_16bit_floats(device, algorithm, dtype, terms, expected):
    a = torch.tensor([terms], dtype=dtype, device=device)
    b = torch.ones(len(terms), 1, dtype=dtype, device=device)
    assert torch_tiled.matmul(a, b, algorithm=algorithm).item() == expected


@every_algorithm
@pytest.mark.parametrize("dtype, bits", [(torch.float32, 24), (torch.float64, 53)], ids=str)
def test_fmas_are_used(device, algorithm, dtype, bits):
    e = 2.0 ** -(bits // 2)
    top = torch.finfo(dtype).max
    a = torch.tensor([[-(1 + 2 * e), 1 + e], [-top, top]], dtype=dtype, device=device)
    b = torch.tensor([[1, 1], [1 + e, 2]], dtype=dtype, device=device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    # (1 + e)^2 = 1 + 2e + e^2: rounded before the sum, the last term would be lost.
    assert c[0, 0].item() == e * e
    # Nor does a product beyond the largest number overflow before the sum brings it back.
    assert c[1, 1].item() == top


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sums_beyond_the_largest_number_are_inf(device, algorithm, dtype):
    top = torch.finfo(dtype).max
    a = torch.tensor([[top, top, 1], [-top, -top, 1], [top, -top, 1]], dtype=dtype, device=device)
    b = torch.ones(3, 1, dtype=dtype, device=device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    small = 0 if order(algorithm, a) == "mma" else 1  # a tensor core truncates 1 beside top
    assert c.flatten().tolist() == [torch.inf, -torch.inf, small]


@every_algorithm
@every_float
def test_denormals_are_kept(device, algorithm, dtype):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    a = torch.full((3, 5), smallest, dtype=dtype, device=device)
    b = torch.ones(5, 4, dtype=dtype, device=device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    assert smallest > 0
    assert torch.equal(c.double().cpu(), torch.full((3, 4), 5 * smallest, dtype=torch.float64))


@pairwise
@every_algorithm
@every_float
@pytest.mark.parametrize("k", [0, 1, 2, 17])
def test_a_sum_of_zeros_is_positive_zero(device, algorithm, dtype, k):
    a = torch.full((3, k), -0.0, dtype=dtype, device=device)
    b = torch.ones(k, 4, dtype=dtype, device=device)
    for c in (
        torch_tiled.matmul(a, b, algorithm=algorithm),
        torch_tiled.matmul(a[0], b[:, 0], algorithm=algorithm),
    ):
        assert not c.any() and not c.signbit().any()


# --- exact sums ----------------------------------------------------------------------------------


@pairwise
@every_algorithm
@every_float
@pytest.mark.parametrize("k", [1, 63, 1024, 1025, 3001])
def test_integers_are_exact(device, algorithm, dtype, k):
    a = torch.randint(-63, 64, (19, k))
    b = torch.randint(-63, 64, (k, 35))  # |A||B| stays below 2^24
    exact = a @ b
    out_dtype = torch.float32 if dtype in FLOATS_16BIT else dtype
    a, b = a.to(device, dtype), b.to(device, dtype)
    c = torch_tiled.matmul(a, b, algorithm=algorithm, out_dtype=out_dtype)
    assert torch.equal(c.cpu(), exact.to(out_dtype))
    if dtype in FLOATS_16BIT:
        c = torch_tiled.matmul(a, b, algorithm=algorithm)
        assert torch.equal(c.cpu(), exact.float().to(dtype))


@every_algorithm
@every_float
def test_one_hot_rows_pick_elements(device, algorithm, dtype):
    k, n = 1500, 33
    x = random_patterns(dtype, 4 * k * n)
    x = x[x.isfinite()][: k * n].reshape(k, n).to(device)
    picked = torch.randint(k, (37,), device=device)
    one_hot = torch.nn.functional.one_hot(picked, k).to(dtype)
    rows = torch_tiled.matmul(one_hot, x, algorithm=algorithm)
    cols = torch_tiled.matmul(x.mT, one_hot.mT, algorithm=algorithm)
    for actual, expected in ((rows, x[picked]), (cols, x[picked].mT)):
        if order(algorithm, one_hot) == "fp16x3":
            assert_within(actual, expected.double(), one_hot_bound(expected))
        else:
            assert_same_values(actual, expected)


# --- NaN and Inf ---------------------------------------------------------------------------------


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@every_float
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (17, 33, 65), (65, 129, 33)], ids=str)
def test_nan_and_inf_go_where_torch_has_them(device, algorithm, dtype, shape):
    """Corners have an Inf, which must not meet the padding of a tile."""
    m, k, n = shape
    a = torch.randn(m, k, dtype=dtype, device=device)
    b = torch.randn(k, n, dtype=dtype, device=device)
    a[-1, -1] = torch.inf
    a[m // 2, 0] = torch.nan
    a[m // 3, k // 2] = -torch.inf
    b[-1, -1] = -torch.inf
    b[k // 2, n // 2] = torch.inf
    b[0, n // 3] = 0
    actual = torch_tiled.matmul(a, b, algorithm=algorithm)
    expectations = [torch.matmul(a, b), product(a, b)]
    # On some CPUs PyTorch's 16-bit products are NaN in finite rows beside an Inf.
    torch_is_odd = device == "cpu" and dtype in (torch.float16, torch.bfloat16)
    if torch_is_odd:
        expectations = expectations[:1] if algorithm == "auto" else expectations[1:]
    for expected in expectations:
        assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.equal(actual.isposinf(), expected.isposinf())
        assert torch.equal(actual.isneginf(), expected.isneginf())
    if torch_is_odd and algorithm == "auto":
        return
    rows, cols = a.isfinite().all(1), b.isfinite().all(0)
    a, b = a[rows], b[:, cols]
    assert_within(actual[rows][:, cols], product(a, b), bound(a, b, algorithm=algorithm))
