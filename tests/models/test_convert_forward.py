"""Forwards that were set on a converted layer, by accelerate's hooks or by hand, when it is
reverted."""

import copy
import functools

import pytest
import torch
from helpers.copies import pickled
from torch.testing import assert_close

import torch_tiled
from torch_tiled import converted


def add_hook(module):
    """Sets a forward as accelerate's add_hook_to_module does."""
    module._old_forward = module.forward

    def new_forward(module, *args, **kwargs):
        module.calls = getattr(module, "calls", 0) + 1
        return module._old_forward(*args, **kwargs)

    partial = functools.partial(new_forward, module)
    module.forward = functools.update_wrapper(partial, module._old_forward)


def remove_hook(module):
    """Undoes add_hook as accelerate's remove_hook_from_module does."""
    module.forward = module._old_forward
    del module._old_forward


def wrap(module):
    forward = module.forward
    module.forward = lambda input: forward(input)


def compile_forward(module):
    module.forward = torch.compile(module.forward, backend="eager", fullgraph=True)


SETS = [add_hook, wrap, compile_forward]


def small_model():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("set_forward", SETS)
@torch.no_grad()
def test_a_layer_whose_forward_was_wrapped_is_reverted(set_forward, freeze):
    """revert(model) after accelerate.cpu_offload(model) made every call an AttributeError."""
    torch.compiler.reset()
    model, x = small_model(), torch.randn(3, 6)
    expected = model(x)
    torch_tiled.convert(model)
    if freeze:
        torch_tiled.freeze(model)
    for layer in model[::2]:
        set_forward(layer)
    assert_close(model(x), expected)
    assert torch_tiled.revert(model).changed == ["0", "2"]
    assert type(model[0]) is torch.nn.Linear
    assert torch.equal(model(x), expected)
    assert set_forward is not add_hook or model[0].calls == 2


@pytest.mark.parametrize("set_forward", SETS)
def test_enabled_is_left_after_a_forward_was_wrapped(set_forward):
    """Leaving enabled() after layer.forward = wrap(layer.forward) broke the layer."""
    torch.compiler.reset()
    model, x = small_model(), torch.randn(3, 6)
    expected = model(x)
    with torch_tiled.enabled(model):
        set_forward(model[0])
        assert_close(model(x), expected)
    assert torch.equal(model(x), expected)
    torch.autograd.grad(model(x).sum(), list(model.parameters()))


def test_a_bound_forward_that_was_kept():
    """A method that was taken from a converted layer outlives the conversion."""
    layer, x = torch.nn.Linear(6, 8), torch.randn(3, 6)
    torch_tiled.convert(layer)
    forward = layer.forward
    torch_tiled.revert(layer)
    assert torch.equal(forward(x), layer(x))
    torch_tiled.convert(layer)
    assert torch.equal(forward(x), layer(x))


def test_a_layer_whose_hook_was_removed_is_converted():
    """Accelerate leaves the bound forward of the class on the instance, and convert refused it."""
    model, x = small_model(), torch.randn(3, 6)
    expected = model(x)
    for _ in range(2):
        for layer in model[::2]:
            add_hook(layer)
        assert torch_tiled.convert(model).changed == []  # the hook's forward is not the class's
        for layer in model[::2]:
            remove_hook(layer)
        assert torch_tiled.convert(model, precision="ieee").changed == ["0", "2"]
        assert type(model[0]) is converted.Linear
        assert_close(model(x), expected)
        for layer in model[::2]:  # the hook comes and goes while the layer is converted
            add_hook(layer)
            remove_hook(layer)
        assert torch_tiled.convert(model, strict=True).changed == ["0", "2"]
        assert torch_tiled.revert(model).changed == ["0", "2"]
        assert "forward" not in vars(model[0])
        assert torch.equal(model(x), expected)


def test_the_forward_of_another_layer_stays():
    model, x = small_model(), torch.randn(3, 6)
    model[0].forward = torch.nn.Linear(6, 8).forward
    expected = model(x)
    report = torch_tiled.convert(model)
    assert report.left["0"] == "it has a forward of its own, set on the instance"
    assert_close(model(x), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_of_a_layer_whose_hook_was_removed(copied):
    model, x = small_model(), torch.randn(3, 6)
    add_hook(model[0])
    remove_hook(model[0])
    other = copied(model)
    torch.nn.init.ones_(other[0].weight)
    assert torch_tiled.convert(other, strict=True).changed == ["0", "2"]
    assert_close(other(x), copied(other)(x))
    assert not torch.equal(other(x), model(x))


@torch.no_grad()
def test_offloaded_by_accelerate():
    accelerate = pytest.importorskip("accelerate")
    model, x = small_model(), torch.randn(3, 6)
    expected = model(x)
    torch_tiled.convert(model)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert_close(model(x), expected)
    torch_tiled.revert(model)
    assert torch.equal(model(x), expected)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert torch_tiled.convert(model).changed == ["0", "2"]
    assert_close(model(x), expected)
