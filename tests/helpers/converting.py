"""A model to convert."""

import torch

import torch_tiled


def small_model(device="cpu", dtype=None):
    """Layers at three depths, one of them shared, and two that tie their weights."""
    shared = torch.nn.Linear(8, 8)
    tied = torch.nn.Linear(8, 8, bias=False)
    tied.weight = shared.weight
    inner = torch.nn.Sequential(shared, torch.nn.GELU(), torch.nn.Sequential(shared, tied))
    return torch.nn.Sequential(torch.nn.Linear(6, 8), inner, torch.nn.Linear(8, 3)).to(
        device, dtype
    )


NAMES = ["0", "1.0", "1.2.1", "2"]


def classes(model):
    return {name: type(module) for name, module in model.named_modules()}


def as_converted(model, **options):
    torch_tiled.convert(model, **options)
    return model
