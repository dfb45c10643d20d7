"""torch_tiled.nn.Linear beside torch.nn.Linear."""

import copy

import pytest
import torch
from helpers.copies import pickled
from helpers.reference import ACTIVATIONS
from helpers.thinning import pairwise
from torch.testing import assert_close

import torch_tiled


def pair(*args, device, activation="none", **kwargs):
    """Our layer and PyTorch's, with the same parameters."""
    torch.manual_seed(1)
    ours = torch_tiled.nn.Linear(*args, device=device, activation=activation, **kwargs)
    torch.manual_seed(1)
    theirs = torch.nn.Linear(*args, device=device, **kwargs)
    return ours, theirs


@pairwise
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(8,), (4, 8), (2, 4, 8), (2, 1, 4, 8), (0, 8)], ids=str)
def test_equals_torch(shape, activation, bias, device):
    ours, theirs = pair(8, 3, bias, device=device, activation=activation, dtype=torch.float64)
    x = torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
    expected = ACTIVATIONS[activation](theirs(x))
    assert_close(ours(x), expected)
    losses = ours(x).square().sum(), expected.square().sum()
    of_ours, of_theirs = (
        torch.autograd.grad(loss, [x, *layer.parameters()])
        for loss, layer in zip(losses, (ours, theirs), strict=True)
    )
    assert_close(of_ours, of_theirs)
    with torch.no_grad():
        assert_close(ours(x), expected)


def test_same_initial_values_and_state_dict(device):
    ours, theirs = pair(8, 3, device=device)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight", "bias"]
    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=0, atol=0)
    other = torch_tiled.nn.Linear(8, 3, device=device)
    other.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(other.state_dict())
    assert torch.equal(other.weight, ours.weight)
    assert isinstance(ours, torch.nn.Linear)


def test_options_reach_the_operator(device):
    x = torch.randn(4, 8, device=device)
    layer = torch_tiled.nn.Linear(8, 3, device=device, precision="ieee")
    layer.algorithm = "no such"
    with pytest.raises(RuntimeError, match='no algorithm "no such"'):
        layer(x)
    layer.algorithm, layer.precision = "naive", "no such"
    with pytest.raises(RuntimeError, match='no precision "no such"'):
        layer(x)
    layer.precision = "fp32"
    layer.activation = "no such"
    with pytest.raises(RuntimeError, match='no activation "no such"'):
        layer(x)
    layer.activation = "relu"
    naive = torch.ops.tiled.linear(
        x, layer.weight, layer.bias, activation="relu", algorithm="naive"
    )
    assert torch.equal(layer(x), naive)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.usefixtures("splits_on_cpu")
def test_out_dtype(dtype, frozen, device):
    """The sums of a layer of 16-bit floats, and a layer of mixed operands."""
    layer = torch_tiled.nn.Linear(160, 3, device=device, dtype=dtype, out_dtype=torch.float32)
    layer = torch_tiled.freeze(layer.eval()) if frozen else layer
    assert "out_dtype=torch.float32" in repr(layer)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    for given in {torch.bfloat16, dtype} if dtype != torch.float16 else {dtype}:
        x = torch.randn(4, 160, device=device).to(given)
        with torch.no_grad():
            y = layer(x)
        assert y.dtype == torch.float32
        assert_close(y, torch.nn.functional.linear(x.float(), weight.float(), bias.float()))


def test_repr():
    layer = torch_tiled.nn.Linear(8, 3, activation="gelu", algorithm="tiled")
    assert repr(layer) == (
        "Linear(in_features=8, out_features=3, bias=True, activation=gelu, precision=fp32, "
        "algorithm=tiled)"
    )


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies(duplicate, device):
    layer = torch_tiled.nn.Linear(8, 3, activation="silu", algorithm="tiled16", device=device)
    twin = duplicate(layer)
    x = torch.randn(4, 8, device=device)
    assert torch.equal(twin(x), layer(x))
    assert repr(twin) == repr(layer)
    assert twin.weight is not layer.weight


def test_moves_with_module_methods(device):
    layer = torch_tiled.nn.Linear(8, 3, bias=False, device="meta")
    assert layer(torch.empty(2, 8, device="meta")).shape == (2, 3)
    layer = layer.to_empty(device=device)
    layer.reset_parameters()
    assert layer.double()(torch.randn(2, 8, device=device).double()).dtype == torch.float64
    assert layer.bfloat16()(torch.randn(2, 8, device=device).bfloat16()).dtype == torch.bfloat16
