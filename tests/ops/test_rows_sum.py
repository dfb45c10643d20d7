"""Sums and means of rows: the bits of the specification on a CPU, and of the CPU on a GPU."""

import functools

import numpy as np
import pytest
import torch
from helpers import rows_specification as specification
from helpers.needs import needs_cuda
from helpers.reference import REAL, SMALLEST, U, assert_same, assert_within
from helpers.rows import LAYOUTS, MANY, SIZES, assert_rows
from helpers.thinning import each_value, pairwise

from torch_tiled._op.namespace import operators

row_sum = operators._row_sum.default
INF, NAN = torch.inf, torch.nan


def specified(x, mean):
    with np.errstate(all="ignore"):
        total = specification.sum_row(x)
        return total / x.dtype.type(x.shape[1]) if mean else total


check = functools.partial(assert_rows, specified, row_sum)


@pairwise
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("columns", SIZES)
def test_bits(device, poisoned, columns, dtype, layout, mean):
    check(device, [torch.randn(2, 3, columns, dtype=torch.float64).to(dtype)], mean, layout=layout)


@pytest.mark.parametrize("columns", [1, 6, 64, 128])
@pytest.mark.parametrize("dtype", REAL)
def test_many_short_rows(device, poisoned, columns, dtype):
    check(device, [torch.randn(MANY + 3, columns, dtype=torch.float64).to(dtype)], True)


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


@pytest.mark.parametrize("columns", [2**20 + 1, 2**21 + 5000])
def test_sums_of_sums_of_chunks(device, columns):
    check(device, [torch.randn(1, columns)], False)


VALUES = {
    "negative zeros": [-0.0, -0.0],
    "Inf": [1.0, INF],
    "both": [INF, -INF],
    "NaN": [NAN, 2.0],
    "overflow": [3e38, 3e38],
    "cancellation": [1e30, 1.0, -1e30],
    "subnormal": [1e-45, 3e-45],
}


@each_value
@pytest.mark.parametrize("repeats", [1, 1000])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("mean", [False, True])
def test_values(device, name, repeats, mean):
    check(device, [torch.tensor(VALUES[name]).expand(repeats, -1).flatten()[None]], mean)


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


@each_value
@pytest.mark.parametrize("columns", [1, 100, 1024, 70000])
@pytest.mark.parametrize("dtype", REAL)
def test_accuracy(device, columns, dtype):
    """A term meets at most 8 + 7 roundings in its chunk and as many among chunks."""
    x = torch.randn(3, columns).to(dtype)
    exact = x.double().sum(-1)
    roundings = 30 * U[torch.float64 if dtype == torch.float64 else torch.float32]
    limit = 1.01 * roundings * x.double().abs().sum(-1)
    limit = (2 if dtype == torch.float64 else 1) * limit  # the sum above errs, too
    limit = limit + U[dtype] * (exact.abs() + limit) + SMALLEST[dtype]
    assert_within(row_sum(x.to(device), False).cpu(), exact, limit)


@pytest.mark.parametrize(
    "shape", [(0,), (5,), (0, 5), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)], ids=str
)
@pytest.mark.parametrize("mean", [False, True])
def test_shapes(device, poisoned, shape, mean):
    x = torch.randn(shape, device=device)
    found = row_sum(x, mean)
    torch.testing.assert_close(found, x.mean(-1) if mean else x.sum(-1), equal_nan=True)
    meta = row_sum(x.to("meta"), mean)
    assert (meta.shape, meta.stride(), meta.dtype) == (found.shape, found.stride(), found.dtype)


BAD = {
    "integers": (lambda x: x.int(), r"tiled::_row_sum: x is torch.int32; it must be torch.float32"),
    "bool": (lambda x: x.bool(), r"tiled::_row_sum: x is torch.bool; it must be torch.float32"),
    "a number": (lambda x: x[0, 0], r"tiled::_row_sum: x is \(\); it must have a dimension"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("of", ["cpu", "meta", pytest.param("cuda", marks=needs_cuda)])
def test_errors(of, name):
    make, sentence = BAD[name]
    with pytest.raises(RuntimeError, match=sentence):
        row_sum(make(torch.ones(2, 3).to(of)), False)


def test_opcheck(device):
    torch.library.opcheck(row_sum, (torch.randn(3, 50, device=device), True))


@needs_cuda
@pytest.mark.parametrize("columns", [1024, 5000, 2**31 + 9])
def test_beyond_2_to_31_elements(columns, claim_memory):
    rows = 2**31 // columns + 2
    claim_memory(3 * rows * columns)
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.float16)
    x[:, 0], x[:, -1] = 1, 2
    assert (row_sum(x, False) == 3).all()


@needs_cuda
def test_rows_beyond_one_grid(claim_memory):
    """Each row is a block's, and is read through a stride of 0."""
    rows = 2**31 + 5
    claim_memory(5 * rows)
    x = torch.ones(1, 1025, device="cuda", dtype=torch.float16).expand(rows, 1025)
    sums = row_sum(x, True)
    assert (sums[-9:] == 1).all() and (sums[:9] == 1).all() and sums.max() == sums.min() == 1
