"""addmm and its kin under override(): alpha=0, beta=0, and what broadcasts."""

import contextlib

import pytest
import torch
from helpers.compiling import BACKENDS
from helpers.needs import needs_cuda
from helpers.overriding import Products, operands, ours_alone
from helpers.reference import REAL
from torch.testing import assert_close

import torch_tiled

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
