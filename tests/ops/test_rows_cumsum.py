"""Running sums of rows: the bits of the specification on a CPU, and of the CPU on a GPU."""

import functools

import pytest
import torch
from helpers import rows_specification as specification
from helpers.needs import needs_cuda
from helpers.reference import REAL, SMALLEST, U, assert_same, assert_within
from helpers.rows import LAYOUTS, SIZES, assert_rows
from helpers.strategies import random_problems
from helpers.thinning import each_value, pairwise
from hypothesis import given
from hypothesis import strategies as st

from torch_tiled._op.namespace import operators

row_cumsum = operators._row_cumsum.default
INF, NAN = torch.inf, torch.nan

check = functools.partial(assert_rows, specification.running_sums, row_cumsum)


@pairwise
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("columns", [*SIZES, 3, 4, 130, 9000, 33000])
def test_bits(device, poisoned, columns, dtype, layout, reverse):
    x = torch.randn(2, 3, columns, dtype=torch.float64).to(dtype)
    check(device, [x], reverse, layout=layout)


@each_value
@pytest.mark.parametrize("rows", [1, 7, 64, 700])
@pytest.mark.parametrize("columns", [5, 64, 128, 300, 2048, 8200])
def test_bits_of_few_and_many_rows(device, rows, columns):
    check(device, [torch.randn(rows, columns)], False)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", [2**20 + 1, 2**21 + 5000])
def test_sums_of_superchunks(device, columns, reverse):
    check(device, [torch.randn(1, columns)], reverse)


VALUES = {
    "negative zeros": [-0.0, -0.0],
    "Inf": [1.0, INF, 1.0],
    "both": [INF, -INF, 1.0],
    "NaN": [1.0, NAN, 2.0],
    "overflow": [3e38, 3e38, -3e38],
    "cancellation": [1e30, 1.0, -1e30],
    "subnormal": [1e-45, 3e-45],
}


@each_value
@pytest.mark.parametrize("repeats", [1, 1000])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("reverse", [False, True])
def test_values(device, name, repeats, reverse):
    check(device, [torch.tensor(VALUES[name]).expand(repeats, -1).flatten()[None]], reverse)


@pytest.mark.parametrize("dtype", REAL)
@random_problems(100, 30)
@given(data=st.data())
def test_a_sum_depends_on_the_elements_up_to_it_alone(device, dtype, data):
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3000))
    x = torch.randn(rows, columns, device=device).to(dtype)
    reverse = data.draw(st.booleans())
    row, shorter = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(1, columns))
    sums, alone = row_cumsum(x, reverse)[row], x[row]
    if reverse:
        assert_same(row_cumsum(alone[-shorter:], True), sums[-shorter:])
    else:
        assert_same(row_cumsum(alone[:shorter], False), sums[:shorter])


@each_value
@pytest.mark.parametrize("columns", [1, 100, 1024, 70000])
@pytest.mark.parametrize("dtype", REAL)
def test_accuracy(device, columns, dtype):
    """A term meets at most 3 + 5 roundings in its segment, 8 in its chunk, one for each chunk of
    1024, and 3 where the sums of all these are added."""
    x = torch.randn(3, columns).to(dtype)
    exact, magnitudes = x.double().cumsum(-1), x.double().abs().cumsum(-1)
    roundings = (19 + columns / 1024) * U[
        torch.float64 if dtype == torch.float64 else torch.float32
    ]
    limit = 1.01 * roundings * magnitudes
    if dtype == torch.float64:  # the sum above, in sequence, errs, too
        limit = limit + 1.01 * columns * U[dtype] * magnitudes
    limit = limit + U[dtype] * (exact.abs() + limit) + SMALLEST[dtype]
    assert_within(row_cumsum(x.to(device), False).cpu(), exact, limit)


@pytest.mark.parametrize(
    "shape", [(0,), (5,), (0, 5), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)], ids=str
)
@pytest.mark.parametrize("reverse", [False, True])
def test_shapes(device, poisoned, shape, reverse):
    x = torch.randn(shape, device=device)
    found = row_cumsum(x, reverse)
    torch.testing.assert_close(found, x.flip(-1).cumsum(-1).flip(-1) if reverse else x.cumsum(-1))
    meta = row_cumsum(x.to("meta"), reverse)
    assert (meta.shape, meta.stride(), meta.dtype) == (found.shape, found.stride(), found.dtype)


BAD = {
    "integers": (
        lambda x: x.int(),
        r"tiled::_row_cumsum: x is torch.int32; it must be torch.float32",
    ),
    "a number": (lambda x: x[0, 0], r"tiled::_row_cumsum: x is \(\); it must have a dimension"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("of", ["cpu", "meta", pytest.param("cuda", marks=needs_cuda)])
def test_errors(of, name):
    make, sentence = BAD[name]
    with pytest.raises(RuntimeError, match=sentence):
        row_cumsum(make(torch.ones(2, 3).to(of)), False)


def test_opcheck(device):
    torch.library.opcheck(row_cumsum, (torch.randn(3, 50, device=device), True))


@needs_cuda
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", [100, 1024, 5000, 2**31 + 9])
def test_beyond_2_to_31_elements(columns, reverse, claim_memory):
    rows = 2**31 // columns + 2
    claim_memory(5 * rows * columns)
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.float16)
    x[:, 0], x[:, -1] = 1, 2
    sums = row_cumsum(x, reverse)
    assert (sums[:, -1] == (2 if reverse else 3)).all()
    assert (sums[:, 0] == (3 if reverse else 1)).all()
