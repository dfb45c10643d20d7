"""Sums, means and running sums of rows: the bits of the specification on a CPU, and of the CPU on a
GPU."""

import functools

import numpy as np
import pytest
import torch
from helpers import rows_specification as specification
from helpers.needs import needs_cuda
from helpers.reference import REAL, SMALLEST, U, assert_same, assert_within
from helpers.rows import LAYOUTS, MANY, SIZES, assert_rows
from helpers.strategies import random_problems
from helpers.thinning import each_value, pairwise
from hypothesis import given
from hypothesis import strategies as st

from torch_tiled._op.namespace import operators

row_sum, row_cumsum = operators._row_sum.default, operators._row_cumsum.default
INF, NAN = torch.inf, torch.nan
# The operator and its option, and PyTorch's.
SUMS = {
    "sum": (row_sum, False, lambda x: x.sum(-1)),
    "mean": (row_sum, True, lambda x: x.mean(-1)),
    "cumsum": (row_cumsum, False, lambda x: x.cumsum(-1)),
    "cumsum, reversed": (row_cumsum, True, lambda x: x.flip(-1).cumsum(-1).flip(-1)),
}
each_sum = pytest.mark.parametrize("name", SUMS)


def specified(operator, x, option):
    if operator is row_cumsum:
        return specification.running_sums(x, option)
    with np.errstate(all="ignore"):
        total = specification.sum_row(x)
        return total / x.dtype.type(x.shape[1]) if option else total


def check(device, name, x, layout="contiguous"):
    operator, option, _ = SUMS[name]
    of_operator = functools.partial(specified, operator)
    assert_rows(of_operator, operator, device, [x], option, layout=layout)


@pairwise
@each_sum
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("columns", [*SIZES, 3, 4, 130, 9000, 33000])
def test_bits(device, poisoned, columns, dtype, layout, name):
    check(device, name, torch.randn(2, 3, columns, dtype=torch.float64).to(dtype), layout)


@pytest.mark.parametrize("columns", [1, 6, 64, 128])
@pytest.mark.parametrize("dtype", REAL)
def test_many_short_rows(device, poisoned, columns, dtype):
    check(device, "mean", torch.randn(MANY + 3, columns, dtype=torch.float64).to(dtype))


@each_value
@pytest.mark.parametrize("rows", [1, 7, 64, 700])
@pytest.mark.parametrize("columns", [5, 64, 128, 300, 2048, 8200])
def test_running_sums_of_few_and_many_rows(device, rows, columns):
    check(device, "cumsum", torch.randn(rows, columns))


@pairwise
@pytest.mark.parametrize("columns", [1, 2, 31, 128, 129, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("shape", [(2, 40), (1, 33), (3, 5, 7)], ids=str)
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", REAL)
def test_another_dimension(device, poisoned, columns, shape, mean, dtype):
    """A sum over a dimension that is not the last one reads it in place on a GPU."""
    x = torch.randn(shape[0], columns, *shape[1:], dtype=torch.float64).to(dtype).to(device)
    found = row_sum(x.movedim(1, -1), mean)
    assert_same(found, row_sum(x.movedim(1, -1).contiguous(), mean))


def test_another_long_dimension(device, poisoned):
    x = torch.randn(2**20 + 5000, 3, device=device)
    assert_same(row_sum(x.T, True), row_sum(x.T.contiguous(), True))


@needs_cuda
def test_no_memory_for_sums_of_another_dimension():
    x = torch.ones(64, device="cuda").expand(2**45, 64)
    with pytest.raises(torch.OutOfMemoryError, match="tiled::_row_sum: out of memory"):
        row_sum(x.T, False)
    assert (row_sum(x[:2000].T, False) == 2000).all()


@pytest.mark.parametrize("name", ["sum", "cumsum", "cumsum, reversed"])
@pytest.mark.parametrize("columns", [2**20 + 1, 2**21 + 5000])
def test_sums_of_sums_of_chunks(device, columns, name):
    check(device, name, torch.randn(1, columns))


VALUES = {
    "negative zeros": [-0.0, -0.0],
    "Inf": [1.0, INF, 1.0],
    "both": [INF, -INF, 1.0],
    "NaN": [1.0, NAN, 2.0],
    "overflow": [3e38, 3e38],
    "overflow and back": [3e38, 3e38, -3e38],
    "cancellation": [1e30, 1.0, -1e30],
    "subnormal": [1e-45, 3e-45],
}


@each_value
@pytest.mark.parametrize("repeats", [1, 1000])
@pytest.mark.parametrize("value", VALUES)
@each_sum
def test_values(device, name, value, repeats):
    check(device, name, torch.tensor(VALUES[value]).expand(repeats, -1).flatten()[None])


@each_value
@pytest.mark.parametrize("columns", [1, 31, 130, 1024, 1500, 9000, 40000])
@pytest.mark.parametrize("dtype", REAL)
def test_a_row_has_the_same_bits_alone(device, columns, dtype):
    x = torch.randn(2, 7, columns, device=device).to(dtype)
    sums = row_sum(x, False)
    for row in ((0, 0), (0, 6), (1, 3)):
        assert_same(row_sum(x[row], False), sums[row])


@pytest.mark.parametrize("columns, longer", [(5, 6), (100, 1000), (1000, 1100), (3000, 20000)])
def test_zeros_after_the_end_change_no_bit(device, columns, longer):
    x = torch.randn(3, columns, device=device)
    padded = torch.nn.functional.pad(x, (0, longer - columns))
    assert_same(row_sum(padded, False), row_sum(x, False))


@pytest.mark.parametrize("dtype", REAL)
@random_problems(100, 30)
@given(data=st.data())
def test_a_running_sum_depends_on_the_elements_up_to_it_alone(device, dtype, data):
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3000))
    x = torch.randn(rows, columns, device=device).to(dtype)
    reverse = data.draw(st.booleans())
    row, shorter = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(1, columns))
    part = slice(-shorter, None) if reverse else slice(shorter)
    assert_same(row_cumsum(x[row][part], reverse), row_cumsum(x, reverse)[row][part])


@each_value
@pytest.mark.parametrize("columns", [1, 100, 1024, 70000])
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", ["sum", "cumsum"])
def test_accuracy(device, name, columns, dtype):
    """A term of a sum meets at most 8 + 7 roundings in its chunk and as many among chunks; one of a
    running sum 3 + 5 in its segment, 8 in its chunk, one for each chunk of 1024, and 3 where the
    sums of all these are added."""
    operator, option, theirs = SUMS[name]
    x = torch.randn(3, columns).to(dtype)
    exact, magnitudes = theirs(x.double()), theirs(x.double().abs())
    u = U[torch.float64 if dtype == torch.float64 else torch.float32]
    limit = 1.01 * (30 if name == "sum" else 19 + columns / 1024) * u * magnitudes
    if dtype == torch.float64:  # PyTorch's sum errs, too, and its running sum in sequence
        limit = 2 * limit if name == "sum" else limit + 1.01 * columns * u * magnitudes
    limit = limit + U[dtype] * (exact.abs() + limit) + SMALLEST[dtype]
    assert_within(operator(x.to(device), option).cpu(), exact, limit)


EMPTY = [(0,), (5,), (0, 5), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@each_sum
def test_shapes(device, poisoned, shape, name):
    operator, option, theirs = SUMS[name]
    x = torch.randn(shape, device=device)
    found, meta = operator(x, option), operator(x.to("meta"), option)
    torch.testing.assert_close(found, theirs(x), equal_nan=True)
    assert (meta.shape, meta.stride(), meta.dtype) == (found.shape, found.stride(), found.dtype)


BAD = {
    "integers": (lambda x: x.int(), "x is torch.int32; it must be torch.float32"),
    "bool": (lambda x: x.bool(), "x is torch.bool; it must be torch.float32"),
    "a number": (lambda x: x[0, 0], r"x is \(\); it must have a dimension"),
}


@pytest.mark.parametrize("operator", [row_sum, row_cumsum])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("of", ["cpu", "meta", pytest.param("cuda", marks=needs_cuda)])
def test_errors(of, bad, operator):
    make, sentence = BAD[bad]
    with pytest.raises(RuntimeError, match=f"{operator.name().partition('.')[0]}: {sentence}"):
        operator(make(torch.ones(2, 3).to(of)), False)


@pytest.mark.parametrize("operator", [row_sum, row_cumsum])
def test_opcheck(device, operator):
    torch.library.opcheck(operator, (torch.randn(3, 50, device=device), True))


@needs_cuda
@pytest.mark.parametrize("name", ["sum", "cumsum", "cumsum, reversed"])
@pytest.mark.parametrize("columns", [100, 1024, 5000, 2**31 + 9])
def test_beyond_2_to_31_elements(columns, name, claim_memory):
    operator, option, _ = SUMS[name]
    rows = 2**31 // columns + 2
    claim_memory(5 * rows * columns)
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.float16)
    x[:, 0], x[:, -1] = 1, 2
    found = operator(x, option)
    first, last = {"sum": (3, 3), "cumsum": (1, 3), "cumsum, reversed": (3, 2)}[name]
    ends = found[:, None] if name == "sum" else found
    assert (ends[:, 0] == first).all() and (ends[:, -1] == last).all()


@needs_cuda
def test_rows_beyond_one_grid(claim_memory):
    """Each row is a block's, and is read through a stride of 0."""
    rows = 2**31 + 5
    claim_memory(5 * rows)
    x = torch.ones(1, 1025, device="cuda", dtype=torch.float16).expand(rows, 1025)
    sums = row_sum(x, True)
    assert (sums[-9:] == 1).all() and (sums[:9] == 1).all() and sums.max() == sums.min() == 1
