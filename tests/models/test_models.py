"""Whole models, converted: they compute, train and load like the originals."""

import copy

import pytest
import torch
from helpers.copies import COPIES
from helpers.small_models import MODELS, TASKS, small
from torch.testing import assert_close

import torch_tiled

STEPS = 10


def train(task, model, batch):
    """The losses of some steps, and the gradients of the last."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = task.loss(model, batch)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients
    return losses, gradients


# Those of the examples are compared step by step in tests/examples/test_examples.py.
@pytest.mark.parametrize("name", MODELS.keys() - TASKS)
def test_trains_alike(name, device):
    task = small(name, device)
    model, batch = task.model, task.batch()
    other = copy.deepcopy(model)
    report = torch_tiled.convert(other, strict=True)
    assert report.changed
    assert_close(task.loss(other, batch), task.loss(model, batch))
    losses, gradients = train(task, model, batch)
    other_losses, other_gradients = train(task, other, batch)
    assert_close(other_losses, losses)
    assert_close(other_gradients, gradients)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_is_kept_and_loaded(name, device):
    task = small(name, device)
    model, batch = task.model, task.batch()
    expected = task.loss(model, batch)
    converted = copy.deepcopy(model)
    names = torch_tiled.convert(converted, strict=True).changed
    assert_close(dict(converted.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    for copied in COPIES:
        other = copied(converted)
        assert torch_tiled.convert(other, dry_run=True, strict=True).changed == names
        assert_close(task.loss(other, batch), expected)
        assert torch_tiled.revert(other).changed == names
        assert_close(task.loss(other, batch), expected)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    converted.load_state_dict(model.state_dict())
    assert_close(task.loss(converted, batch), task.loss(model, batch))


@pytest.mark.parametrize("name", ["gpt2", "vit", "graph"])
def test_trains_alike_under_override(name, device):
    task = small(name, device)
    model, batch = task.model, task.batch()
    other = copy.deepcopy(model)
    losses, gradients = train(task, model, batch)
    with torch_tiled.override():
        other_losses, other_gradients = train(task, other, batch)
    assert_close(other_losses, losses)
    assert_close(other_gradients, gradients)
