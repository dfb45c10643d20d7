"""Gradients of reductions of rows; tests/models/test_reductions.py has transforms and graphs."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from torch.testing import assert_close

from torch_tiled._op.namespace import operators

EPS = 1e-5


def norm(centered, x, *params):
    return operators._row_norm.default(x, *params, *[None] * (2 - len(params)), EPS, centered)[0]


def torch_norm(centered, x, *params):
    if centered:
        return F.layer_norm(x, x.shape[-1:], *params, eps=EPS)
    return F.rms_norm(x, x.shape[-1:], *params, eps=EPS)


def on_last(function, *options):
    return lambda x: function(x, *options)


# Ours, PyTorch's, and the number of parameters.
FUNCTIONS = {
    "softmax": (on_last(operators._row_softmax.default, False), on_last(torch.softmax, -1), 0),
    "log_softmax": (
        on_last(operators._row_softmax.default, True),
        on_last(torch.log_softmax, -1),
        0,
    ),
    "logsumexp": (operators._row_logsumexp.default, on_last(torch.logsumexp, -1), 0),
    "sum": (on_last(operators._row_sum.default, False), on_last(torch.sum, -1), 0),
    "mean": (on_last(operators._row_sum.default, True), on_last(torch.mean, -1), 0),
    "cumsum": (on_last(operators._row_cumsum.default, False), on_last(torch.cumsum, -1), 0),
    "cumsum, reversed": (
        on_last(operators._row_cumsum.default, True),
        lambda x: x.flip(-1).cumsum(-1).flip(-1),
        0,
    ),
    "layer_norm": (*(functools.partial(f, True) for f in (norm, torch_norm)), 2),
    "layer_norm, bare": (*(functools.partial(f, True) for f in (norm, torch_norm)), 0),
    "rms_norm": (*(functools.partial(f, False) for f in (norm, torch_norm)), 1),
    "rms_norm, bare": (*(functools.partial(f, False) for f in (norm, torch_norm)), 0),
}


def draw(name, device, rows=(3,), columns=5, dtype=torch.float64):
    """Rows and parameters that require gradients."""
    shapes = (*rows, columns), *[(columns,)] * FUNCTIONS[name][2]
    return [torch.randn(x, dtype=dtype, device=device, requires_grad=True) for x in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_pytorch_s(device, name, dtype):
    ours, theirs, _ = FUNCTIONS[name]
    tensors = draw(name, device, (2, 3), 1500, dtype)
    # PyTorch's sums of 16-bit numbers are rounded at each step in some kernels.
    wide = [x.detach().float().requires_grad_() for x in tensors] if dtype.itemsize < 4 else tensors
    expected = theirs(*wide)
    weights = torch.randn_like(expected).to(dtype)
    found = torch.autograd.grad(ours(*tensors), tensors, weights)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    for x, y in zip(found, torch.autograd.grad(expected, wide, weights.to(expected)), strict=True):
        assert x.dtype == dtype
        assert_close(x, y.to(dtype), **tolerance or {"rtol": 0.05, "atol": 0.05})


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_of_a_norm_with_some_parameters(device, has_weight, has_bias):
    x = torch.randn(5, 40, device=device, dtype=torch.float64)
    params = [torch.randn(40, device=device, dtype=torch.float64) for _ in range(2)]
    given = [p if has else None for p, has in zip(params, (has_weight, has_bias), strict=True)]
    tensors = [p.requires_grad_() for p in (x, *given) if p is not None]
    found = operators._row_norm.default(x, *given, 1e-5, True)[0]
    theirs = torch.nn.functional.layer_norm(x, (40,), *given)
    for wanted in itertools.combinations(tensors, min(2, len(tensors))):
        ours, expected = (
            torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)
            for y in (found, theirs)
        )
        assert_close(ours, expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_a_gradient_is_a_kernel_s_with_the_bits_of_a_row_alone(device, name):
    function, *_ = FUNCTIONS[name]
    x, *params = draw(name, device, (7,), 200, torch.float32)
    weights = torch.randn_like(x)
    with Calls() as seen:
        (gradient,) = torch.autograd.grad(function(x, *params), x, weights)
    assert any(each.endswith("_backward") for each in seen.names())
    one = x[3:4].detach().requires_grad_()
    (alone,) = torch.autograd.grad(function(one, *params), one, weights[3:4])
    assert torch.equal(alone[0], gradient[3])


def test_a_gradient_that_is_not_asked_for(device):
    x, weight, bias = draw("layer_norm", device)
    y = norm(True, x, weight, bias.detach())
    with Calls() as seen:
        torch.autograd.grad(y.sum(), weight)
    (arguments,) = [a for name, a, _ in seen.calls if name == "tiled::_row_norm_backward"]
    assert arguments[-3:] == (False, True, False)
