"""Biases that broadcast, as F.linear takes them, in override() and in converted layers."""

import pytest
import torch
import torch.nn.functional as F
from helpers.converting import as_converted
from helpers.overriding import ours_alone
from torch.testing import assert_close

import torch_tiled

M, N, K = 3, 5, 4
BIASES = [(), (1,), (N,), (1, N), (1, 1), (M, 1), (M, N), (1, 1, N)]
INPUTS = {
    "vector": lambda **options: torch.randn(K, **options),
    "matrix": lambda **options: torch.randn(M, K, **options),
    "batch": lambda **options: torch.randn(2, M, K, **options),
    "strided batch": lambda **options: torch.randn(2, M, 2 * K, **options)[..., ::2],
    "batch of one row": lambda **options: torch.randn(2, 1, K, **options),
    "two batches": lambda **options: torch.randn(2, 2, M, K, **options),
    "no rows": lambda **options: torch.randn(0, K, **options),
}


def attempt(function, *args):
    """The result and gradients of a call, or the error."""
    tensors = [x.detach().requires_grad_() for x in args]
    try:
        result = function(*tensors)
    except RuntimeError as error:
        return error
    return [result, *torch.autograd.grad(result.square().sum(), tensors)]


def assert_alike(result, expected):
    if isinstance(expected, RuntimeError):
        assert isinstance(result, RuntimeError)
    else:
        assert_close(result, expected)


@pytest.mark.filterwarnings("ignore:torch_tiled. the model")
@pytest.mark.parametrize("shape", BIASES, ids=str)
@pytest.mark.parametrize("of", INPUTS)
def test_as_in_pytorch(of, shape, device):
    """Where PyTorch refuses a bias, by the strides of the input too, it is refused."""
    options = {"device": device, "dtype": torch.float64}
    x, w = INPUTS[of](**options), torch.randn(N, K, **options)
    bias = torch.randn(shape, **options)
    expected = attempt(F.linear, x, w, bias)
    with torch_tiled.override():
        assert_alike(attempt(F.linear, x, w, bias), expected)
    layer = as_converted(torch.nn.Linear(K, N, **options))

    def layered(x, w, bias):
        return torch.func.functional_call(layer, {"weight": w, "bias": bias}, x)

    assert_alike(attempt(layered, x, w, bias), expected)


OURS = [(), (1,), (1, N), (1, 1), (M, 1), (M, N)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("shape", OURS, ids=str)
def test_products_are_ours(shape, compiled, device, fresh_compiler):
    layer = torch.nn.Linear(K, N, device=device)
    layer.bias = torch.nn.Parameter(torch.randn(shape, device=device))
    x = torch.randn(M, K, device=device)
    expected = F.linear(x, layer.weight, layer.bias)
    function, method = F.linear, layer
    torch_tiled.convert(layer, strict=True)
    if compiled:
        function = torch.compile(F.linear, backend="aot_eager", fullgraph=True)
        method = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch_tiled.override(strict=True):
        assert_close(function(x, layer.weight, layer.bias), expected)
        if not compiled:
            with ours_alone():
                F.linear(x, layer.weight, layer.bias)
    assert_close(method(x), expected)
    with ours_alone():
        layer(x)


@pytest.mark.parametrize("shape", OURS, ids=str)
def test_in_autocast(shape, device):
    layer = torch.nn.Linear(K, N, device=device)
    layer.bias = torch.nn.Parameter(torch.randn(shape, device=device))
    x = torch.randn(M, K, device=device)
    with torch.autocast(device, torch.bfloat16):
        expected = layer(x)
        with torch_tiled.override():
            overridden = layer(x)
        torch_tiled.convert(layer, strict=True)
        converted = layer(x)
    assert overridden.dtype == converted.dtype == expected.dtype == torch.bfloat16
    assert_close(overridden, expected)
    assert_close(converted, expected)


@pytest.mark.parametrize("shape", OURS, ids=str)
def test_a_frozen_layer(shape, device):
    layer = torch.nn.Linear(64, N, device=device).eval()
    layer.bias = torch.nn.Parameter(torch.randn(shape, device=device))
    x = torch.randn(M, 64, device=device)
    with torch.no_grad():
        expected = layer(x)
        torch_tiled.convert(layer, strict=True)
        assert_close(torch_tiled.freeze(layer)(x), expected)


def test_a_bias_that_fits_nothing(device):
    layer = as_converted(torch.nn.Linear(K, N, device=device))
    for shape in ((7,), (7, 7), (N, M)):
        layer.bias = torch.nn.Parameter(torch.randn(shape, device=device))
        with pytest.raises(
            RuntimeError, match=r"tiled::linear: bias is .*must be \(out_features,\)"
        ):
            layer(torch.randn(M, K, device=device))


def test_vmap_over_biases(device):
    """An ensemble of layers, each with a bias of one row."""
    layer = as_converted(torch.nn.Linear(K, N, device=device), strict=True)
    x, w = torch.randn(M, K, device=device), torch.randn(7, N, K, device=device)
    bias = torch.randn(7, 1, N, device=device)

    def layered(w, bias):
        return torch.func.functional_call(layer, {"weight": w, "bias": bias}, x)

    assert_close(torch.vmap(layered)(w, bias), x @ w.mT + bias)
