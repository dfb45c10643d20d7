"""Situation: a model was changed in a statement of torch_tiled.enabled, which failed on leaving.

Reverting raised an AttributeError about _origin; parametrizing hid the exception of the statement.
"""

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

import torch_tiled
from torch_tiled.converted import Converted


def model_of_two():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    torch_tiled.convert(model, include="1")
    return model


def test_reverted_in_the_statement():
    model = model_of_two()
    with torch_tiled.enabled(model, precision="ieee"):
        torch_tiled.revert(model)
    for layer in model:
        assert type(layer) is torch.nn.Linear and "_origin" not in vars(layer)


def test_a_layer_that_is_parametrized_in_the_statement():
    model = model_of_two()
    sentence = "stay converted. 0: it was parametrized since"
    with pytest.raises(RuntimeError, match=sentence), torch_tiled.enabled(model):
        parametrizations.weight_norm(model[0])


def test_an_exception_of_the_statement_is_seen():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with pytest.raises(ZeroDivisionError), torch_tiled.enabled(model):
        parametrizations.weight_norm(model[0])
        raise ZeroDivisionError
    assert isinstance(model[0], Converted) and type(model[1]) is torch.nn.Linear


def test_the_remedy_works():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    torch_tiled.convert(model)
    parametrizations.weight_norm(model[0])
    expected = model[0].weight.clone()
    with pytest.raises(RuntimeError, match=r'remove_parametrizations\(layer, "weight"\)'):
        torch_tiled.revert(model)
    parametrize.remove_parametrizations(model[0], "weight")
    assert torch_tiled.revert(model).changed == ["0"]
    assert type(model[0]) is torch.nn.Linear and torch.equal(model[0].weight, expected)
