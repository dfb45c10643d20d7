"""Softmax, its gradient and logsumexp of rows: the bits of the specification on a CPU, and of the
CPU on a GPU."""

import functools

import pytest
import torch
from helpers import rows_specification as specification
from helpers.needs import needs_cuda
from helpers.reference import FLOATS_16BIT, SMALLEST, U, assert_same, assert_within
from helpers.rows import LAYOUTS, MANY, SIZES, assert_rows, to_matrix
from helpers.thinning import each_value, pairwise

from torch_tiled._op.namespace import operators

softmax = operators._row_softmax.default
backward = operators._row_softmax_backward.default
logsumexp = operators._row_logsumexp.default
INF, NAN = torch.inf, torch.nan
FLOATS = (torch.float32, *FLOATS_16BIT)

check_softmax = functools.partial(assert_rows, specification.softmax, softmax)
check_backward = functools.partial(assert_rows, specification.softmax_backward, backward)
check_logsumexp = functools.partial(assert_rows, specification.logsumexp, logsumexp)


def draw(columns, dtype=torch.float32, rows=2):
    return (torch.randn(2, rows, columns) * 4).to(dtype)


@pairwise
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", SIZES)
def test_bits(device, poisoned, columns, dtype, layout, log):
    x, grad = draw(columns, dtype), draw(columns, dtype)
    check_softmax(device, [x], log, layout=layout)
    check_logsumexp(device, [x], layout=layout)
    check_backward(device, [grad, softmax(x, log)], log, layout=layout)


@pytest.mark.parametrize("columns", [1, 6, 64, 128])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("log", [False, True])
def test_many_short_rows(device, poisoned, columns, dtype, log):
    x, grad = (draw(columns, dtype, rows=MANY + 3)[0] for _ in range(2))
    check_softmax(device, [x], log)
    check_logsumexp(device, [x])
    check_backward(device, [grad, softmax(x, log)], log)


VALUES = {
    "one": [-3.0],
    "zeros": [0.0, -0.0, 0.0],
    "far apart": [0.0, -87.0, -103.9, -104.1, -1e30],
    "large": [3e38, 3e38, -3e38],
    "small": [1e-40, -1e-45, 0.0],
    "-Inf": [1.0, -INF, 2.0],
    "-Inf alone": [-INF, -INF],
    "Inf": [1.0, INF, -INF],
    "two Inf": [INF, INF],
    "NaN": [1.0, NAN, INF],
    "NaN last": [INF, -INF, NAN],
}


@each_value
@pytest.mark.parametrize("repeats", [1, 1000, 5000])  # each kernel of a GPU
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("log", [False, True])
def test_values(device, name, repeats, log):
    """Results are as PyTorch's where they are not finite."""
    x = torch.tensor(VALUES[name]).expand(repeats, -1).flatten()[None]
    check_softmax(device, [x], log)
    check_logsumexp(device, [x])
    found, reduced = softmax(x.to(device), log).cpu(), logsumexp(x.to(device)).cpu()
    theirs = torch.log_softmax(x, -1) if log else torch.softmax(x, -1)
    torch.testing.assert_close(found, theirs, equal_nan=True)
    torch.testing.assert_close(reduced, torch.logsumexp(x, -1), equal_nan=True)


@each_value
@pytest.mark.parametrize("columns", [1, 31, 130, 1024, 1500, 9000, 40000])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
@pytest.mark.parametrize("log", [False, True])
def test_a_row_has_the_same_bits_alone(device, columns, dtype, log):
    x, grad = (draw(columns, dtype, rows=7).to(device) for _ in range(2))
    y = softmax(x, log)
    gradient, reduced = backward(grad, y, log), logsumexp(x)
    for row in ((0, 0), (0, 6), (1, 3)):
        assert_same(softmax(x[row], log), y[row])
        assert_same(backward(grad[row], y[row], log), gradient[row])
        assert_same(logsumexp(x[row]), reduced[row])


@pytest.mark.parametrize("columns, longer", [(5, 6), (100, 1000), (1000, 1100), (3000, 20000)])
def test_exponentials_of_zero_change_no_bit(device, columns, longer):
    """-Inf after the last element, as masks append it."""
    x = draw(columns).to(device)
    padded = torch.nn.functional.pad(x, (0, longer - columns), value=-INF)
    for log in (False, True):
        assert_same(softmax(padded, log)[..., :columns], softmax(x, log))
    assert_same(logsumexp(padded), logsumexp(x))


# --- Accuracy ------------------------------------------------------------------------------------
# u = U[float32]. A sum of up to 2^20 terms meets at most 8 + 7 roundings in a chunk and as many
# among chunks. An exponential is off by 1e-7 of it, or by two subnormal units, and by the rounding
# of x - m, which is u of x - m.

ROUNDINGS = 2 * (8 + 7)
OF_EXP, OF_SUBNORMAL_EXP = 1e-7, 2 * SMALLEST[torch.float32]


def rounded(exact, dtype):
    """How far rounding to a dtype changes a number at most."""
    return U[dtype] * exact.abs() + SMALLEST[dtype]


def unit(dtype):
    return U[torch.float64 if dtype == torch.float64 else torch.float32]


def error_of_sum(x, dtype):
    """The relative errors of each exponential, and of their sum."""
    distance = (x.max(-1, keepdim=True).values - x).clamp(max=104)
    of_exp = (OF_EXP if dtype != torch.float64 else 2 * U[dtype]) + distance * unit(dtype)
    return of_exp, of_exp.amax(-1, keepdim=True) + 1.01 * ROUNDINGS * unit(dtype)


@each_value
@pytest.mark.parametrize("columns", [1, 100, 1024, 4000, 70000])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_accuracy(device, columns, dtype, scale):
    x = (torch.randn(3, columns) * scale).to(dtype)
    exact, u = x.double(), 1.01 * unit(dtype)
    of_exp, of_sum = error_of_sum(exact, dtype)
    # float64 results are compared with others of float64, which err as much.
    slack = 2 if dtype == torch.float64 else 1

    y = exact.softmax(-1)
    limit = y * (of_exp + of_sum + 2 * u) + (OF_SUBNORMAL_EXP if slack == 1 else 0.0)
    assert_within(softmax(x.to(device), False).cpu(), y, slack * (limit + rounded(y, dtype)))

    m, total = exact.max(-1, keepdim=True).values, exact.logsumexp(-1, keepdim=True)
    log_sum = total - m
    y = exact - total
    limit = of_sum + u * ((exact - m).abs() + 2 * log_sum + y.abs())
    assert_within(softmax(x.to(device), True).cpu(), y, slack * (limit + rounded(y, dtype)))

    limit = of_sum + u * (2 * log_sum + total.abs())
    limit = slack * (limit + rounded(total, dtype))
    assert_within(logsumexp(x.to(device)).cpu(), total[..., 0], limit[..., 0])


@each_value
@pytest.mark.parametrize("columns", [1, 100, 1024, 4000, 70000])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_accuracy_of_gradients(device, columns, dtype):
    x, grad = (torch.randn(3, columns).to(dtype) for _ in range(2))
    u = 1.01 * unit(dtype)
    slack = 2 if dtype == torch.float64 else 1
    for log in (False, True):
        y = softmax(x, log)
        found = backward(grad.to(device), y.to(device), log).cpu()
        g, z = grad.double(), y.double()
        terms = g if log else g * z
        total = terms.sum(-1, keepdim=True)
        of_sum = u * ROUNDINGS * terms.abs().sum(-1, keepdim=True)
        p = z.exp() if log else z
        exact = g - p * total if log else p * (g - total)
        limit = p * (of_sum + 2 * u * (g.abs() + total.abs()) + (OF_EXP + u) * total.abs())
        limit = slack * (limit + u * exact.abs() + rounded(exact, dtype))
        assert_within(found, exact, limit)


def test_gradients_in_float64_have_the_bits_of_the_specification(device):
    """exp() alone may differ: softmax's gradient has none."""
    grad, y = torch.randn(2, 1100, dtype=torch.float64), torch.rand(2, 1100, dtype=torch.float64)
    expected = torch.from_numpy(
        specification.softmax_backward(to_matrix(grad), to_matrix(y), False)
    )
    assert_same(backward(grad.to(device), y.to(device), False).cpu(), expected)


# --- Calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(0,), (5,), (0, 5), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)], ids=str
)
def test_shapes(device, poisoned, shape):
    x = torch.randn(shape, device=device)
    for log in (False, True):
        y = softmax(x, log)
        torch.testing.assert_close(y, torch.log_softmax(x, -1) if log else torch.softmax(x, -1))
        assert backward(x, y, log).shape == x.shape
    expected = torch.logsumexp(x, -1) if x.shape[-1] else torch.full(x.shape[:-1], -INF)
    torch.testing.assert_close(logsumexp(x), expected.to(device))
    meta = x.to("meta")
    for found, real in (
        (softmax(meta, True), x),
        (backward(meta, meta, True), x),
        (logsumexp(meta), logsumexp(x)),
    ):
        assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), x.dtype)


def test_expanded_rows(device):
    x = torch.randn(1, 1, 1500, device=device)
    for expanded in (x.expand(3, 5, 1500), x.expand(1, 5, 1500)):
        assert_same(softmax(expanded, False), softmax(x, False).expand_as(expanded))
    column = torch.randn(3, 1, device=device).expand(3, 40)
    assert_same(softmax(column, False), softmax(column.contiguous(), False))


BAD = {
    "softmax(x.long(), False)": "_row_softmax: x is torch.int64; it must be ",
    "logsumexp(x.cfloat())": "_row_logsumexp: x is torch.complex64; it must ",
    "softmax(x[0, 0], False)": "_row_softmax: x is (); it must have a dim",
    "backward(x, x[:1], False)": (
        "backward: grad is (2, 3) and y is (1, 3); they must have one shape"
    ),
    "backward(x, x[0], False)": (
        "backward: grad is (2, 3) and y is (3,); they must have one shape"
    ),
    "backward(x, x.half(), False)": (
        "backward: grad is torch.float32 and y is torch.float16; pass both in one dtype, for "
        "example with .to(torch.float32)"
    ),
    "backward(x.int(), x.int(), True)": (
        "backward: grad is torch.int32; it must be torch.float32, torch.float64, torch.float16 or"
    ),
}


@pytest.mark.parametrize("code", BAD)
@pytest.mark.parametrize("of", ["cpu", "meta", pytest.param("cuda", marks=needs_cuda)])
def test_errors(of, code):
    with pytest.raises(RuntimeError) as raised:
        eval(code, globals() | {"x": torch.ones(2, 3).to(of)})
    assert BAD[code] in str(raised.value)


@needs_cuda
def test_two_devices():
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="grad is on cuda:0 and y is on cpu; move one of them"):
        backward(x.cuda(), x, False)


def test_opcheck(device):
    x = draw(50).to(device)
    for log in (False, True):
        torch.library.opcheck(softmax, (x, log))
        torch.library.opcheck(backward, (x, softmax(x, log), log))
    torch.library.opcheck(logsumexp, (x.mT,))


# --- Large tensors -------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("columns", [1024, 5000, 2**31 + 8])
def test_beyond_2_to_31_elements(columns, claim_memory):
    rows = 2**31 // columns + 2
    claim_memory(12 * rows * columns)
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    x[-1, -1] = 1
    y = softmax(x, False)
    for row in {0, rows // 2, rows - 1}:
        assert_same(y[row], softmax(x[row].clone(), False))
    assert_same(logsumexp(x)[-1], logsumexp(x[-1].clone()))
    del y
    gradient = backward(x, x, False)
    assert_same(gradient[-1], backward(x[-1].clone(), x[-1].clone(), False))
