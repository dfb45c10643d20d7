"""torch_tiled.override, which takes over PyTorch's functions."""

import contextlib
import itertools
import operator

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS
from helpers.needs import needs_cuda
from helpers.overriding import Products, operands, ours_alone
from helpers.overriding import region as in_region
from helpers.reference import REAL, assert_within, rounded_bound
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiled
from torch_tiled._routes import ROUTES

CALLS = {
    "torch.matmul": (torch.matmul, (2, 3, 4), (4, 5)),
    "torch.linalg.matmul": (torch.linalg.matmul, (3, 4), (4, 5)),
    "Tensor.matmul": (torch.Tensor.matmul, (4,), (4, 5)),
    "@": (lambda a, b: a @ b, (3, 4), (4,)),
    "__rmatmul__": (lambda a, b: b.__rmatmul__(a), (3, 4), (4, 5)),
    "@=": (operator.imatmul, (4, 4), (4, 4)),
    "dot by matmul": (torch.matmul, (4,), (4,)),
    "torch.mm": (torch.mm, (3, 4), (4, 5)),
    "torch.mm by name": (lambda a, b: torch.mm(input=a, mat2=b), (3, 4), (4, 5)),
    "Tensor.mm": (torch.Tensor.mm, (3, 4), (4, 5)),
    "torch.bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "Tensor.bmm": (torch.Tensor.bmm, (2, 3, 4), (2, 4, 5)),
    "torch.mv": (torch.mv, (3, 4), (4,)),
    "Tensor.mv": (torch.Tensor.mv, (3, 4), (4,)),
    "torch.addmm": (torch.addmm, (5,), (3, 4), (4, 5)),
    "torch.addmm, scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        (3, 5),
        (3, 4),
        (4, 5),
    ),
    "Tensor.addmm by name": (lambda c, a, b: c.addmm(mat1=a, mat2=b), (3, 1), (3, 4), (4, 5)),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b, alpha=-1), (3, 5), (3, 4), (4, 5)),
    "torch.baddbmm": (torch.baddbmm, (1, 5), (2, 3, 4), (2, 4, 5)),
    "Tensor.baddbmm": (lambda c, a, b: c.baddbmm(a, b, beta=-1), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "baddbmm_": (lambda c, a, b: c.clone().baddbmm_(a, b), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=3), (3,), (3, 4), (4,)),
    "Tensor.addmv": (torch.Tensor.addmv, (3,), (3, 4), (4,)),
    "addmv_": (lambda c, a, b: c.clone().addmv_(a, b), (3,), (3, 4), (4,)),
    "torch.addbmm": (torch.addbmm, (5,), (2, 3, 4), (2, 4, 5)),
    "Tensor.addbmm": (
        lambda c, a, b: c.addbmm(batch1=a, batch2=b, alpha=2),
        (3, 5),
        (2, 3, 4),
        (2, 4, 5),
    ),
    "addbmm_": (lambda c, a, b: c.clone().addbmm_(a, b, beta=-1), (3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.inner": (torch.inner, (3, 4), (5, 4)),
    "Tensor.inner": (torch.Tensor.inner, (4,), (2, 5, 4)),
    "F.linear": (F.linear, (2, 3, 4), (5, 4)),
    "F.linear with bias": (F.linear, (2, 3, 4), (5, 4), (5,)),
    "torch.nn.Linear": (
        lambda x, w, b: torch.func.functional_call(
            torch.nn.Linear(4, 5), {"weight": w, "bias": b}, x
        ),
        (3, 4),
        (5, 4),
        (5,),
    ),
    "F.conv1d": (F.conv1d, (2, 4, 3), (5, 4, 1), (5,)),
    "F.conv2d by name": (
        lambda x, w: F.conv2d(input=x, weight=w, padding="same"),
        (2, 4, 3, 2),
        (5, 4, 1, 1),
    ),
    "F.conv3d": (F.conv3d, (2, 4, 3, 2, 1), (5, 4, 1, 1, 1), (5,)),
    "torch.einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "torch.einsum of a list": (lambda *x: torch.einsum("ij,jk,kl", x), (3, 4), (4, 5), (5, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_product_and_gradients_are_computed_by_torch_tiled(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, requires_grad=True)
    expected = function(*tensors)
    wanted = torch.autograd.grad(expected.sum(), tensors)
    with ours_alone(), torch_tiled.override(strict=True):
        result = function(*tensors)
    assert result.dtype == expected.dtype
    assert_close(result, expected)
    with Products() as seen:
        gradients = torch.autograd.grad(result.sum(), tensors)
    assert seen.products()[0] == 0
    assert_close(gradients, wanted)


def product_names():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    with Products() as seen:
        a @ b
    return [name for name, _, _ in seen.calls]


def test_nothing_is_left_behind():
    with pytest.raises(ZeroDivisionError), torch_tiled.override():
        assert any("tiled::" in name for name in product_names())
        raise ZeroDivisionError
    assert not any("tiled::" in name for name in product_names())
    again = torch_tiled.override()
    for _ in range(2):
        with again:
            assert any("tiled::" in name for name in product_names())


def test_the_innermost_counts():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    called = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "tiled::" in func.name():
                called.append((kwargs or {}).get("precision", "fp32"))
            return func(*args, **(kwargs or {}))

    outer, inner = torch_tiled.override(precision="ieee"), torch_tiled.override()
    with Spy(), outer:
        a @ b
        with inner:
            a @ b
        a @ b
    assert called == ["ieee", "fp32", "ieee"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        torch_tiled.override(precision="exact")


def test_making_one_computes_nothing():
    with Products() as seen:
        torch_tiled.override(precision="ieee")
        torch_tiled.convert(torch.nn.ReLU())
    assert seen.products() == (0, 0)


@pytest.mark.parametrize("name", ["torch.matmul", "torch.mm", "torch.bmm", "torch.mv"])
def test_out(name, device):
    function, *shapes = CALLS[name]
    a, b = operands(*shapes, device=device)
    out = torch.full_like(a @ b, torch.nan)
    with ours_alone(), torch_tiled.override(strict=True):
        assert function(a, b, out=out) is out
    assert_close(out, a @ b)
    empty = torch.empty(0, device=device, dtype=a.dtype)
    with torch_tiled.override():
        function(a, b, out=empty)  # which PyTorch resizes
    assert_close(empty, a @ b)


def test_functions_are_named_as_they_are_called():
    """PyTorch's resolve_name takes the last of a function's names: torch.spmm for torch.mm."""
    a = torch.ones(2, 2, dtype=torch.int64)
    calls = {
        "torch.mm": lambda: torch.mm(a, a),
        "torch.Tensor.mm": lambda: a.mm(a),
        "torch.einsum": lambda: torch.einsum("ij,jk->ik", a, a),
        "torch.nn.functional.linear": lambda: torch.nn.functional.linear(a, a),
    }
    for name, call in calls.items():
        with torch_tiled.override(strict=True), pytest.warns(UserWarning) as caught:
            call()
        assert f"PyTorch computes {name}, since" in str(caught[0].message)


def test_out_dtype():
    a, b = operands((3, 4), (4, 5), dtype=torch.bfloat16)
    with torch_tiled.override(strict=True):
        result = torch.mm(a, b, out_dtype=torch.float32)
        assert torch.equal(result, torch.mm(a, b, torch.float32))
    assert torch.equal(result, torch_tiled.matmul(a, b, out_dtype=torch.float32))


@pytest.mark.parametrize(
    "name", ["torch.matmul", "torch.addmm", "F.linear with bias", "torch.einsum"]
)
def test_autocast(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, dtype=torch.float32)
    with torch.autocast(device, torch.bfloat16):
        expected = function(*tensors)
        with Products() as seen, torch_tiled.override():
            result = function(*tensors)
    assert seen.products()[0] == 0
    assert result.dtype == expected.dtype == torch.bfloat16
    rounded = [x.bfloat16().double() for x in tensors]
    exact, size = function(*rounded), function(*(x.abs() for x in rounded))
    assert_within(result, exact, rounded_bound(exact, size, 8, 1, torch.bfloat16))


# --- addmm and its kin: alpha=0, beta=0, and what broadcasts -------------------------------------


SUMS = {
    "addmm": [(3, 5), (3, 4), (4, 5)],
    "addbmm": [(3, 5), (2, 3, 4), (2, 4, 5)],
    "baddbmm": [(2, 3, 5), (2, 3, 4), (2, 4, 5)],
    "addmv": [(3,), (3, 4), (4,)],
}
FORMS = {
    "function": lambda name, c, a, b, **scales: getattr(torch, name)(c, a, b, **scales),
    "method": lambda name, c, a, b, **scales: getattr(c, name)(a, b, **scales),
    "in place": lambda name, c, a, b, **scales: getattr(c.clone(), name + "_")(a, b, **scales),
    "out": lambda name, c, a, b, **scales: getattr(torch, name)(
        c, a, b, **scales, out=c.new_empty(SUMS[name][0])
    ),
}


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_alpha_0(name, form, dtype, bad, device):
    """What NaN does differs among PyTorch's own functions, dtypes and devices."""
    c, a, b = (torch.randn(shape, device=device).to(dtype) for shape in SUMS[name])
    a[..., 1, 2] = bad
    for beta in (1, 0.5, 0):
        expected = FORMS[form](name, c, a, b, alpha=0, beta=beta)
        with torch_tiled.override():
            result = FORMS[form](name, c, a, b, alpha=0, beta=beta)
        assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SUMS)
def test_alpha_0_compiled(name, backend, device, fresh_compiler):
    c, a, b = (torch.randn(shape, device=device) for shape in SUMS[name])
    a[..., 1, 2] = torch.nan

    def scaled(c, a, b):
        return getattr(torch, name)(c, a, b, alpha=0, beta=0.5)

    expected = torch.compile(scaled, backend=backend, fullgraph=True)(c, a, b)
    with torch_tiled.override():
        result = torch.compile(scaled, backend=backend, fullgraph=True)(c, a, b)
    assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_alpha_0_has_gradients(device):
    shapes = SUMS["addmm"]
    c, a, b = (torch.randn(shape, device=device, requires_grad=True) for shape in shapes)
    with torch_tiled.override():
        torch.addmm(c, a, b, alpha=0).sum().backward()
    assert torch.equal(c.grad, torch.ones_like(c))
    assert torch.equal(a.grad, torch.zeros_like(a)) and torch.equal(b.grad, torch.zeros_like(b))


@pytest.mark.parametrize("beta", [0, 0.5])
@pytest.mark.parametrize("shape", [(4,), (2, 5), (7, 7), (1, 3, 5), (2, 2, 3, 5), (0,)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SUMS)
def test_a_tensor_that_does_not_broadcast(name, form, shape, beta, device):
    """Errors are PyTorch's own."""
    _, a, b = (torch.randn(shape, device=device) for shape in SUMS[name])
    c = torch.randn(shape, device=device)

    def outcome():
        try:
            return FORMS[form](name, c, a, b, alpha=2, beta=beta)
        except RuntimeError as error:
            return str(error)

    expected = outcome()
    with torch_tiled.override():
        result = outcome()
    if isinstance(expected, str):
        assert result == expected
    else:
        assert_close(result, expected)


@pytest.mark.parametrize("beta", [0, 0.5])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (3, 1), (1, 1)], ids=str)
def test_a_tensor_that_broadcasts(shape, beta, device):
    c = torch.randn(shape, device=device)
    a, b = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device)
    expected = torch.addmm(c, a, b, alpha=2, beta=beta)
    with torch.no_grad(), torch_tiled.override(strict=True):
        assert_close(torch.addmm(c, a, b, alpha=2, beta=beta), expected)


@needs_cuda
def test_an_unread_tensor_on_another_device():
    """PyTorch looks at the device of a tensor that beta=0 leaves unread."""
    c, a, b = torch.empty(3, 5), torch.randn(3, 4, device="cuda"), torch.randn(4, 5, device="cuda")
    for statement in (torch.no_grad(), torch_tiled.override()):
        with statement, pytest.raises(RuntimeError, match="same device"):
            torch.addmm(c, a, b, beta=0)


def test_an_input_that_does_not_count_has_a_gradient():
    c, a, b = operands((3, 5), (3, 4), (4, 5), requires_grad=True)
    with torch_tiled.override():
        result = torch.addmm(c * torch.inf, a, b, beta=0)
    assert_close(result, a @ b)
    with torch.no_grad(), Products() as seen, torch_tiled.override():
        assert_close(torch.addmm(c * torch.inf, a, b, beta=0), result)
    assert seen.products()[0] == 0


def test_complex_scales_are_refused_as_by_pytorch():
    c, a, b = operands((3, 5), (3, 4), (4, 5))
    with torch_tiled.override(), pytest.raises(RuntimeError):
        torch.addmm(c, a, b, alpha=1j)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("scale", [{"alpha": 1e39}, {"beta": -1e39}], ids=str)
def test_scales_beyond_the_dtype_are_refused_as_by_pytorch(scale, dtype, device):
    c, a, b = (x.to(dtype) for x in operands((3, 5), (3, 4), (4, 5), device=device))
    for context in (contextlib.nullcontext(), torch_tiled.override()):
        with context, pytest.raises(RuntimeError, match="without overflow"):
            torch.addmm(c, a, b, **scale)


@pytest.mark.parametrize("name", SUMS)
def test_out_of_sums(name, device):
    function, (c, a, b) = getattr(torch, name), operands(*SUMS[name], device=device)
    expected = function(c, a, b, beta=0.5, alpha=2)
    strided = c.movedim(0, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 0)
    for out in (strided, c):
        with ours_alone(), torch_tiled.override(strict=True):
            assert function(c, a, b, beta=0.5, alpha=2, out=out) is out
        assert_close(out, expected)


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_pytorch_writes(name, device):
    function, method = getattr(torch, name), getattr(torch.Tensor, name + "_")
    c, a, b = operands(*SUMS[name], device=device, dtype=torch.float32)
    expected = function(c, a, b)
    with torch.autocast(device, torch.bfloat16), torch_tiled.override():
        assert torch.equal(function(c, a, b, out=torch.empty_like(c)), expected)
        assert torch.equal(method(c.clone(), a, b), expected)
    with torch_tiled.override():
        assert torch.equal(function(c, a, b, out=c.new_empty(0)), expected)  # resized
    weight = a.clone().requires_grad_()
    for operand, out in ((a, torch.empty_like(c, dtype=torch.float64)), (weight, c.clone())):
        errors = []
        for statement in (contextlib.nullcontext(), torch_tiled.override()):
            with statement, pytest.raises(RuntimeError) as error:
                function(c, operand, b, out=out)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def test_sums_written_as_they_once_were():
    c, a, b = operands((3, 5), (3, 4), (4, 5))
    with torch_tiled.override():
        assert_close(torch.addmm(0.5, c, 2, a, b), 0.5 * c + 2 * (a @ b))
        assert_close(c.clone().addmm_(0.5, a, b), 0.5 * c + a @ b)


# --- autocast, which casts neither mv nor outer products on the CPU, on CUDA not inner -----------


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
# Operands of each function that override() takes over, or an equation and operands.
ADDMM = [[(5,), (3, 4), (4, 5)], [(3, 5), (3, 4), (4, 5)]]
ADDMV = [[(3,), (3, 4), (4,)], [(1,), (3, 4), (4,)]]
BADDBMM = [[(2, 3, 5), (2, 3, 4), (2, 4, 5)]]
ADDBMM = [[(3, 5), (2, 3, 4), (2, 4, 5)]]
MATMUL = [[(3, 4), (4, 5)], [(2, 3, 4), (4, 5)], [(3, 4), (4,)], [(4,), (4, 5)], [(4,), (4,)]]
INNER = [[(3, 4), (5, 4)], [(4,), (5, 4)], [(4,), (4,)], [(2, 3, 4), (5, 4)], [(3, 1), (5, 1)]]
LINEAR = [
    [(3, 4), (5, 4)],
    [(2, 3, 4), (5, 4), (5,)],
    [(4,), (5, 4), (5,)],
    [(3, 4), (5, 4), (3, 1)],
]
EINSUM = [
    ["ij,jk->ik", (3, 4), (4, 5)],
    ["ij,jk->ik", (3, 1), (1, 5)],  # sums of one element
    ["ij,jk->ik", (3, 1), (4, 5)],
    ["i,i->", (1,), (1,)],
    ["i,j->ij", (3,), (4,)],  # an outer product
    ["ij,ij->ij", (3, 4), (3, 4)],
    ["ij,ij->", (3, 4), (3, 4)],
    ["ij,k->i", (3, 4), (5,)],  # sums, and no product
    ["ij,ik->i", (3, 4), (3, 5)],
    ["bij,bjk->bik", (2, 3, 4), (2, 4, 5)],
    ["ij,jk,kl->il", (3, 4), (4, 5), (5, 6)],
    ["ij,jk,l->ikl", (3, 4), (4, 5), (6,)],
]
GROUPED = [[(2, 8, 16), (2, 16, 16)]]
OPERANDS = {
    "matmul": MATMUL,
    "linalg_matmul": MATMUL,
    "__matmul__": MATMUL,
    "__rmatmul__": [[b, a] for a, b in MATMUL],
    "mm": [[(3, 4), (4, 5)]],
    "bmm": [[(2, 3, 4), (2, 4, 5)]],
    "scaled_dot_product_attention": [[(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)]],
    "mv": [[(3, 4), (4,)]],
    "addmm": ADDMM,
    "addmm_": ADDMM[1:],
    "addmv": ADDMV,
    "addmv_": ADDMV[:1],
    "baddbmm": BADDBMM,
    "baddbmm_": BADDBMM,
    "addbmm": ADDBMM,
    "addbmm_": ADDBMM,
    "inner": INNER,
    "linear": LINEAR,
    "einsum": EINSUM,
    "conv1d": [[(2, 4, 3), (5, 4, 1)], [(4, 3), (5, 4, 1), (5,)]],
    "conv2d": [[(2, 4, 3, 2), (5, 4, 1, 1)], [(2, 4, 3, 2), (5, 4, 1, 1), (5,)]],
    "conv3d": [[(2, 4, 3, 2, 1), (5, 4, 1, 1, 1)], [(4, 3, 2, 1), (5, 4, 1, 1, 1), (5,)]],
    "conv_transpose1d": [[(2, 4, 3), (4, 5, 1)], [(4, 3), (4, 5, 1), (5,)]],
    "conv_transpose2d": [[(2, 4, 3, 2), (4, 5, 1, 1)], [(4, 3, 2), (4, 5, 1, 1), (5,)]],
    "conv_transpose3d": [[(2, 4, 3, 2, 1), (4, 5, 1, 1, 1)]],
    "grouped_mm": GROUPED,
    "_grouped_mm": GROUPED,
}


def outcomes(function, device, **options):
    """The result's dtype for operands of all dtypes, or "error"."""
    found = {}
    for given in OPERANDS[function.__name__]:
        equation = [x for x in given if isinstance(x, str)]
        shapes = given[len(equation) :]
        for dtypes in itertools.product(DTYPES, repeat=len(shapes)):
            tensors = [
                torch.ones(shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            try:
                result = function(*equation, *tensors, **options).dtype
            except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
                # PyTorch's complex conv1d of FakeTensors asks for the GPU.
                result = "unknown" if "not linked with support" in str(error) else "error"
            found[(*equation, *shapes, *dtypes)] = result
    return found


def differences(function, device, region, **options):
    with in_region(device, region):
        expected = outcomes(function, device, **options)
        with torch_tiled.override():
            found = outcomes(function, device, **options)
    return {
        call: (dtype, expected[call])
        for call, dtype in found.items()
        if expected[call] not in (dtype, "unknown")
    }


REGIONS = pytest.mark.parametrize("region", [torch.bfloat16, torch.float16], ids=str)


@REGIONS
@pytest.mark.parametrize("function", ROUTES, ids=torch.overrides.resolve_name)
def test_dtypes_are_pytorch_s(function, region, device):
    assert differences(function, device, region) == {}


@REGIONS
@pytest.mark.parametrize("function", ROUTES, ids=torch.overrides.resolve_name)
def test_dtypes_are_pytorch_s_on_a_gpu_that_is_not_there(function, region):
    """FakeTensors have the dtypes of CUDA tensors, by PyTorch's own list."""
    with FakeTensorMode():
        assert differences(function, "cuda", region) == {}


@REGIONS
@pytest.mark.parametrize("function", [torch.mm, torch.bmm], ids=torch.overrides.resolve_name)
def test_dtypes_with_out_dtype(function, region, device):
    """PyTorch does not cast then, and on the CPU it knows no out_dtype."""
    assert differences(function, device, region, out_dtype=torch.float32) == {}


def test_products_that_are_not_cast_have_their_precision():
    a, b = torch.randn(3, 4), torch.randn(4)
    with torch.autocast("cpu", torch.bfloat16), torch_tiled.override():
        assert_close(torch.mv(a, b), torch.mv(a, b.double().float()))
        assert torch.equal(torch.einsum("i,j->ij", b, b), b[:, None] * b)
        assert_close(torch.einsum("ij,j->i", a, b), torch.matmul(a, b))


@REGIONS
def test_compiled_code_has_the_same(region, device, fresh_compiler):
    a, b = torch.randn(3, 4, device=device), torch.randn(4, device=device)

    def products(a, b):
        with torch.autocast(device, region):
            results = torch.mv(a, b), torch.addmv(a[:, 0], a, b), torch.inner(a, a), a @ b
            return *results, torch.einsum("i,j->ij", b, b), torch.einsum("ij,k->i", a, b)

    expected = [x.dtype for x in products(a, b)]
    with torch_tiled.override():
        compiled = torch.compile(products, backend="aot_eager", fullgraph=True)
        assert [x.dtype for x in compiled(a, b)] == expected
