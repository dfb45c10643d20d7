"""The tasks of examples/tasks.py, and one more, in a size for CPUs."""

import dataclasses

import pytest
import torch
from tasks import TASKS, Task


def physics_by_func(full):
    """A physics-informed network that learns u'' = -u, with derivatives by torch.func."""
    layers = [torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh()]

    def loss(model, batch):
        def u(point):
            return model(point)[0]

        (x,) = batch
        second = torch.func.vmap(torch.func.hessian(u))(x)[:, 0, 0]
        return (second + torch.func.vmap(u)(x)).square().mean()

    def points():
        return (torch.linspace(0, 1, 11)[:, None],)

    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    return Task(model, loss, points, learning_rate=1e-3)


MODELS = {**TASKS, "physics_by_func": physics_by_func}


def small(name, device):
    """A task in float64, in which two models that compute the same train the same."""

    def moved(x):
        return x.to(device, torch.float64 if x.is_floating_point() else x.dtype)

    try:  # six tasks need transformers
        task = MODELS[name](full=False)
    except ModuleNotFoundError as error:
        pytest.skip(f"no {error.name}")
    if task.has_experts:  # PyTorch's grouped_mm takes no float64
        task.model.set_experts_implementation("eager")
    draw = task.batch
    return dataclasses.replace(
        task,
        model=task.model.to(device, torch.float64),
        batch=lambda: tuple(moved(x) for x in draw()),
    )
