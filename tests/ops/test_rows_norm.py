"""Layer norm and RMS norm: the bits of the specification on a CPU and on a GPU, and errors."""

import itertools
import math

import pytest
import torch
from helpers import norms_specification as specification
from helpers.needs import needs_cuda
from helpers.reference import assert_same, assert_within
from helpers.rows import MANY
from helpers.strategies import layouts, random_problems
from helpers.thinning import pairwise
from hypothesis import given
from hypothesis import strategies as st

from torch_tiled._op.namespace import operators

norm = operators._row_norm.default
backward = operators._row_norm_backward.default
EPS = 1e-5
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Whether it is a layer norm, whether it has a weight and a bias, and whether these are float32.
KINDS = {
    "layer": (True, True, True, False),
    "layer, wide": (True, True, True, True),
    "layer, weight": (True, True, False, False),
    "layer, bias": (True, False, True, False),
    "layer, bare": (True, False, False, False),
    "rms": (False, True, False, False),
    "rms, wide": (False, True, False, True),
    "rms, bare": (False, False, False, False),
}


def is_16bit(dtype):
    return dtype.itemsize == 2


def draw(rows, columns, dtype, kind="layer"):
    """dy, x, weight, bias and whether it is a layer norm."""
    centered, has_weight, has_bias, is_wide = KINDS[kind]
    dtype_of_params = torch.float32 if is_wide and is_16bit(dtype) else dtype
    x = (torch.randn(rows, columns) * torch.rand(rows, 1).exp() + torch.randn(rows, 1)).to(dtype)
    weight, bias = (
        torch.randn(columns).to(dtype_of_params) if has else None for has in (has_weight, has_bias)
    )
    return torch.randn(rows, columns).to(dtype), x, weight, bias, centered


def move(device, *tensors):
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in tensors]


def compute(dy, x, weight, bias, centered, eps=EPS):
    """y, mean and inverse, and the gradients of x, the weight and, of a layer norm, the bias."""
    saved = norm(x, weight, bias, eps, centered)
    return *saved, *backward(dy, x, weight, *saved[1:], centered, True, True, centered)


def specified(dy, x, weight, bias, centered, eps=EPS):
    """compute() by the specification, of matrices."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    dtype_of_params = x.dtype if weight is None else weight.dtype
    dy, x_wide, weight, bias = (
        None if a is None else a.to(wide).numpy() for a in (dy, x, weight, bias)
    )
    y, mean, inverse = specification.norm(x_wide, weight, bias, eps, centered)
    dx, dweight, dbias = specification.gradients(dy, x_wide, weight, mean, inverse, centered)
    if not centered:
        mean, dbias = mean[:0], dbias[:0]
    dtypes = x.dtype, wide, wide, x.dtype, dtype_of_params, dtype_of_params
    found = zip((y, mean, inverse, dx, dweight, dbias), dtypes, strict=True)
    return [torch.from_numpy(a).to(dtype) for a, dtype in found]


def assert_all_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert_same(a.cpu(), b.cpu())


def check(device, *operands, **options):
    assert_all_same(compute(*move(device, *operands), **options), specified(*operands, **options))


# --- Bits ----------------------------------------------------------------------------------------


@pairwise
@pytest.mark.parametrize("columns", [1, 2, 31, 64, 127, 128, 129, 1023, 1024, 1025, 4096, 5000])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns(device, poisoned, columns, rows, kind, dtype):
    check(device, *draw(rows, columns, dtype, kind))


@pytest.mark.parametrize("rows, columns", [(3, 70000), (2, 9216), (1, 2**20 + 5)])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_many_columns(device, poisoned, rows, columns, kind):
    check(device, *draw(rows, columns, torch.float32, kind))


@pairwise
@pytest.mark.parametrize("rows", [31, 33, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("columns", [1, 33, 64, 130])
@pytest.mark.parametrize("kind", ["layer, wide", "layer, bare", "rms"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(device, poisoned, rows, columns, kind, dtype):
    check(device, *draw(rows, columns, dtype, kind))


@pytest.mark.parametrize("columns", [1, 33, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_short_rows(device, poisoned, columns, dtype):
    check(device, *draw(MANY + 3, columns, dtype))


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.0])
@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e18])
def test_small_and_large_values(device, eps, scale):
    dy, x, *others = draw(3, 300, torch.float32)
    check(device, dy, x * scale, *others, eps=eps)
    check(device, dy * scale, x, *others, eps=eps)


@pytest.mark.parametrize("kind", ["layer, wide", "rms"])
@pytest.mark.parametrize("columns", [100, 1024, 1028, 1501])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(device, columns, kind):
    dy, x, *others = move(device, *draw(40, columns, torch.bfloat16, kind))
    expected = compute(dy, x, *others)
    for rows in (slice(0, 1), slice(39, 40), slice(3, 20)):
        found = compute(dy[rows], x[rows], *others)
        assert_all_same(found[:4], [a[rows] for a in expected[:4]])
    folded = compute(dy.view(2, 5, 4, -1), x.view(2, 5, 4, -1), *others)
    assert_all_same(folded[4:], expected[4:])
    for a, b in zip(folded[:4], expected[:4], strict=True):
        assert torch.equal(a.flatten(), b.flatten())


def test_each_gradient_alone(device):
    dy, x, weight, bias, centered = move(device, *draw(1500, 70, torch.bfloat16, "layer, wide"))
    saved = norm(x, weight, bias, EPS, centered)[1:]
    expected = backward(dy, x, weight, *saved, centered, True, True, True)
    for needs in itertools.product([False, True], repeat=3):
        found = backward(dy, x, weight, *saved, centered, *needs)
        for i in range(3):
            assert found[i].dtype == expected[i].dtype
            assert torch.equal(found[i], expected[i] if needs[i] else expected[i].new_empty(0))


# --- Strides -------------------------------------------------------------------------------------


@st.composite
def problems(draw_one):
    """A shape, and layouts of dy, x, the weight and the bias."""
    columns = draw_one(st.sampled_from([1, 3, 8, 130, 1030]))
    lead = draw_one(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    shape = (*lead, columns)
    return shape, [draw_one(layouts(x)) for x in (shape, shape, (columns,), (columns,))]


@given(
    problem=problems(),
    dtype=st.sampled_from(DTYPES),
    is_wide=st.booleans(),
    seed=st.integers(0, 2**20),
)
@random_problems(200, 30)
def test_layouts(device, problem, dtype, is_wide, seed):
    """Any strides, with NaN between the elements, have the bits of contiguous tensors."""
    shape, lays = problem
    torch.manual_seed(seed)
    dy, x, weight, bias = (
        lay(torch.randn(each).to(dtype))
        for lay, each in zip(lays, (shape, shape, shape[-1:], shape[-1:]), strict=True)
    )
    if is_wide and is_16bit(dtype):
        weight, bias = weight.float(), bias.float()
    contiguous = [a.contiguous() for a in (dy, x, weight, bias)]
    expected = compute(*contiguous, True)
    assert_all_same(compute(*move(device, dy, x, weight, bias), True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [64, 128, 1028])
@pytest.mark.parametrize("offset, gap", [(0, 4), (4, 0), (1, 0), (0, 1), (2, 6)])
def test_misaligned_views(device, dtype, columns, offset, gap):
    dy, x, weight, bias, centered = move(device, *draw(5, columns, dtype))
    expected = compute(dy, x, weight, bias, centered)

    def shifted(values):
        rows = len(values) if values.dim() == 2 else 1
        memory = values.new_full((offset + rows * (columns + gap),), torch.nan)
        view = memory[offset:].view(rows, columns + gap)[:, :columns]
        view.copy_(values)
        return view if values.dim() == 2 else view[0]

    assert_all_same(compute(*map(shifted, (dy, x, weight, bias)), centered), expected)
    assert_all_same(compute(dy, shifted(x), weight, bias, centered), expected)


# --- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [5, 2000])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_inf_are_where_pytorch_has_them(device, columns, value, dtype):
    _, x, weight, bias, _ = move(device, *draw(4, columns, dtype))
    x[1, columns // 2] = value
    x[2, 0], x[2, -1] = value, -value
    shape = (columns,)

    def rms_norm(x, weight):  # PyTorch's on a GPU makes the whole row NaN for some lengths
        return torch.nn.functional.rms_norm(x.cpu(), shape, weight.cpu(), EPS).to(device)

    for found, expected in (
        (
            norm(x, weight, bias, EPS, True)[0],
            torch.nn.functional.layer_norm(x, shape, weight, bias),
        ),
        (norm(x, weight, None, EPS, False)[0], rms_norm(x, weight)),
    ):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())


def bounds(dy, x, weight, bias, centered, u, u_out):
    """The exact results in float64, and limits of the errors: y, dx, dweight and dbias.

    u: the unit roundoff of sums, and u_out that of results. Terms of u^2 are in the factor 1.01.
    """
    rows, columns = x.shape
    dy, x = dy.double(), x.double()
    weight = x.new_ones(columns) if weight is None else weight.double()
    bias = x.new_zeros(columns) if bias is None else bias.double()
    depth = 15 * max(math.ceil(math.log(columns, 1024)), 1) + 1  # roundings of a row's mean

    def mean(values):
        return values.mean(1, keepdim=True)

    of_rows = mean(x) if centered else 0 * mean(x)
    d = x - of_rows
    variance = mean(d * d) + EPS
    inverse = variance.rsqrt()
    h, g = d * inverse, dy * weight
    error_d = depth * u * mean(x.abs()) * centered + u * d.abs()
    error_variance = (depth + 2) * u + 2 * mean(error_d * d.abs()) / variance
    error_inverse = error_variance / 2 + 2 * u  # relative, as is that of the variance
    error_h = error_d * inverse + h.abs() * (error_inverse + u)
    y = h * weight + bias
    mean_g, mean_gh = mean(g) * centered, mean(g * h)
    error_g = depth * u * mean(g.abs()) * centered + 2 * u * g.abs()
    error_gh = mean(g.abs() * error_h) + (depth + 2) * u * mean((g * h).abs())
    inner = g - mean_g - h * mean_gh
    error_inner = error_g + error_h * mean_gh.abs() + h.abs() * error_gh
    error_inner = error_inner + 2 * u * (g.abs() + mean_g.abs() + (h * mean_gh).abs())
    dx = inner * inverse
    chain = 8 + 7 + math.ceil(rows / 1024)  # roundings of a column's sum
    found = (
        (y, error_h * weight.abs() + u_out * y.abs()),
        (dx, error_inner * inverse + dx.abs() * error_inverse + u_out * dx.abs()),
        ((dy * h).sum(0), (dy.abs() * (error_h + chain * u * h.abs())).sum(0)),
        (dy.sum(0), chain * u * dy.abs().sum(0)),
    )
    return [
        (exact, 1.01 * (limit + (u_out * exact.abs() if exact.dim() == 1 else 0)) + 1e-300)
        for exact, limit in found
    ]


@pytest.mark.parametrize("rows, columns", [(40, 300), (1500, 20), (3, 5000)])
@pytest.mark.parametrize("kind", ["layer", "rms", "layer, bare"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_of_results(device, rows, columns, kind, dtype):
    operands = draw(rows, columns, dtype, kind)
    y, _, _, dx, dweight, dbias = compute(*move(device, *operands))
    u_out = torch.finfo(dtype).eps / 2
    limits = bounds(*operands, u=2.0**-24, u_out=u_out)
    for found, (exact, limit) in zip((y, dx, dweight, dbias), limits, strict=True):
        if found.numel() > 0:
            assert_within(found.cpu(), exact, limit)


@pytest.mark.parametrize("centered", [True, False])
def test_gradients_are_those_of_pytorch_in_float64(device, centered):
    operands = draw(6, 50, torch.float64, "layer" if centered else "rms")
    dy, x, weight, bias, _ = move(device, *operands)
    leaves = [a.detach().requires_grad_() for a in (x, weight, *([bias] if centered else []))]
    function = torch.nn.functional.layer_norm if centered else torch.nn.functional.rms_norm
    y = function(leaves[0], (50,), *leaves[1:], eps=EPS)
    expected = y, *torch.autograd.grad(y, leaves, dy)
    found = compute(dy, x, weight, bias, centered)
    for a, b in zip((found[0], *found[3:]), expected, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# --- Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 4), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_empty(device, poisoned, shape, dtype):
    x = torch.empty(shape, dtype=dtype, device=device)
    weight = torch.ones(shape[-1], dtype=dtype, device=device)
    y, mean, inverse, dx, dweight, dbias = compute(x, x, weight, weight, True)
    assert y.shape == dx.shape == shape
    assert mean.shape == inverse.shape == shape[:-1]
    wanted = torch.native_layer_norm(x.cpu(), shape[-1:], weight.cpu(), weight.cpu(), EPS)
    for found, expected in zip((mean, inverse), wanted[1:], strict=True):
        assert torch.equal(found.cpu().isnan(), expected.flatten(-1).isnan().view(shape[:-1]))
    for sums in (dweight, dbias):
        assert torch.equal(sums, torch.zeros(shape[-1], dtype=dtype, device=device))


def test_a_vector_is_one_row(device):
    dy, x, *others = move(device, *draw(1, 70, torch.float32))
    expected = compute(dy, x, *others)
    found = compute(dy[0], x[0], *others)
    assert found[1].shape == found[2].shape == ()
    assert_all_same([a.view(b.shape) for a, b in zip(found, expected, strict=True)], expected)


@needs_cuda
@pytest.mark.parametrize(
    "rows, columns", [(2**21 + 1, 1028), (2**31 // 12 + 7, 12), (3, 2**30 + 4)]
)
def test_more_than_31_bits_of_elements(claim_memory, rows, columns):
    claim_memory(rows * columns * 2 * 5)
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").normal_()
    found = compute(x, x, None, None, True)
    for part in (slice(0, 2), slice(rows - 2, rows)):
        alone = compute(x[part], x[part], None, None, True)
        assert_all_same([a[part] for a in found[:4]], alone[:4])
    last = slice(columns - 3, columns)
    sums = x.new_zeros(3, dtype=torch.float32)
    if rows <= 3:
        for row in x[:, last].float():
            sums += row
        assert torch.equal(found[5][last], sums.bfloat16())


# --- Calls ---------------------------------------------------------------------------------------


def f32(*shape):
    return torch.ones(shape)


X, W, ROWS, NONE = f32(2, 3), f32(3), f32(2), f32(0)
HALF = X.half()
OF_DTYPE = "it must be torch.float32, torch.float64, torch.float16 or torch.bfloat16"
BAD_CALLS = {
    "norm(X.int(), None, None, EPS, True)": f"x is torch.int32; {OF_DTYPE}",
    "norm(X.to(torch.complex64), None, None, EPS, True)": f"x is torch.complex64; {OF_DTYPE}",
    "norm(X[0, 0], None, None, EPS, True)": "x is (); it must have a dimension",
    "norm(X, W.double(), None, EPS, True)": (
        "weight is torch.float64 and x is torch.float32; weight must have x's dtype"
    ),
    "norm(X.double(), W.double(), W, EPS, True)": (
        "bias is torch.float32 and x is torch.float64; bias must have x's dtype"
    ),
    "norm(HALF, None, W.bfloat16(), EPS, True)": (
        "bias is torch.bfloat16 and x is torch.float16; bias must have x's dtype or be "
        "torch.float32"
    ),
    "norm(HALF, W, W.half(), EPS, True)": (
        "weight is torch.float32 and bias is torch.float16; both must have one dtype"
    ),
    "norm(X, f32(2), None, EPS, True)": "weight is (2,) and x is (2, 3); weight must be (columns,)",
    "norm(X, None, W, EPS, False)": "bias is given and centered is False; RMS norm has no bias",
    "backward(HALF, X, W, ROWS, ROWS, True, True, True, True)": (
        "grad is (2, 3) of torch.float16; it must be (2, 3) of torch.float32"
    ),
    "backward(f32(2, 4), X, W, ROWS, ROWS, True, True, True, True)": (
        "grad is (2, 4) of torch.float32; it must be (2, 3) of torch.float32"
    ),
    "backward(X, X, W, NONE, ROWS, True, True, True, True)": (
        "mean is (0,) of torch.float32; it must be (2,) of torch.float32"
    ),
    "backward(X, X, W, ROWS, ROWS, False, True, True, False)": (
        "mean is (2,) of torch.float32; it must be (0,) of torch.float32"
    ),
    "backward(X, X, W, ROWS, ROWS.double(), True, True, True, True)": (
        "inverse is (2,) of torch.float64; it must be (2,) of torch.float32"
    ),
    "backward(X, X, W, NONE, ROWS, False, True, True, True)": (
        "needs_bias is True and centered is False; RMS norm has no bias"
    ),
}


@pytest.mark.parametrize("on", ["cpu", pytest.param("cuda", marks=needs_cuda), "meta"])
@pytest.mark.parametrize("code", BAD_CALLS)
def test_bad_calls(code, on):
    tensors = {"X": X, "W": W, "ROWS": ROWS, "NONE": NONE, "HALF": HALF}
    moved = {name: x.to(on) for name, x in tensors.items()}
    moved["f32"] = lambda *shape: f32(*shape).to(on)
    with pytest.raises(RuntimeError) as raised:
        eval(code, globals() | moved)
    op = "tiled::_row_norm" + ("_backward" if code.startswith("backward") else "")
    assert str(raised.value).splitlines()[0] == f"{op}: {BAD_CALLS[code]}"


@needs_cuda
def test_two_devices():
    with pytest.raises(RuntimeError, match="weight is on cpu and x is on cuda:0; move one"):
        norm(X.cuda(), W, None, EPS, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_meta_tensors(kind, dtype):
    operands = draw(4, 6, dtype, kind)
    for found, fake in zip(compute(*operands), compute(*move("meta", *operands)), strict=True):
        assert (found.shape, found.dtype) == (fake.shape, fake.dtype)
        assert found.stride() == fake.stride()


@pytest.mark.parametrize("kind", ["layer, wide", "rms"])
def test_opcheck(device, kind):
    dy, x, weight, bias, centered = move(device, *draw(4, 6, torch.bfloat16, kind))
    torch.library.opcheck(norm, (x, weight, bias, EPS, centered))
    saved = norm(x, weight, bias, EPS, centered)[1:]
    needs = True, True, centered
    torch.library.opcheck(backward, (dy, x, weight, *saved, centered, *needs))
