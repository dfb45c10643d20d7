"""Presplit operands, frozen layers, and comparisons of both with their unsplit twins."""

import copy
from contextlib import contextmanager

import pytest
import torch
from helpers.calls import Calls
from helpers.reference import takes

import torch_tiled
from torch_tiled import frozen


def takes_presplit(device):
    """True if the device has kernels that read operands split into hi and lo beforehand."""
    return takes("fp16x3", torch.float32, device)


def skip_without_presplit(device):
    if not takes_presplit(device):
        pytest.skip("this GPU reads no presplit operands")


def presplit_algorithm(device):
    """The algorithm whose kernels read presplit operands; auto where the device has none."""
    return "fp16x3" if takes_presplit(device) else "auto"


@contextmanager
def splits_on_cpu():
    """Frozen layers split weights on the CPU as on a GPU: what they notice needs no GPU to test."""
    original = frozen._splits
    frozen._splits = lambda weight: True
    try:
        yield
    finally:
        frozen._splits = original


def same_bits(x, y):
    return x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def assert_same_bits(x, y):
    assert x.shape == y.shape
    assert same_bits(x.contiguous(), y.contiguous())


def hard_columns(k, n, device):
    """A random matrix whose first and last eight columns are hard to split, each in another way."""
    b = torch.randn(k, n, device=device)
    columns = [
        lambda x: x * 0,
        lambda x: x * torch.nan,
        lambda x: torch.where(torch.arange(k, device=device) == k // 2, torch.inf, x),
        lambda x: x * 1e-42,  # subnormal
        lambda x: x * 1e38,
        lambda x: x * torch.randn(k, device=device).mul(8).exp(),  # wide
        lambda x: torch.where(torch.arange(k, device=device) == k - 1, 1e30, x),
        lambda x: x.sign(),  # coarse
        lambda x: torch.where(torch.arange(k, device=device) < 1024, x.sign(), x),
    ]
    for column, change in enumerate(columns[:n]):
        b[:, -column] = change(b[:, -column])
    return b


def make_model(device, **options):
    """Two layers of torch_tiled, which freeze() splits, around one of PyTorch."""
    options = {"device": device, "algorithm": presplit_algorithm(device)} | options
    model = torch.nn.Sequential(
        torch_tiled.nn.Linear(140, 130, activation="gelu", **options),
        torch.nn.Linear(130, 150, device=device),
        torch_tiled.nn.Linear(150, 30, bias=False, **options),
    )
    return model.requires_grad_(False)


def assert_like_unfrozen(model, x):
    """Compares a frozen model with its unfrozen copy. The frozen one runs first, so that a stale
    split shows."""
    ours = model(x)
    twin = torch_tiled.unfreeze(copy.deepcopy(model))
    assert_same_bits(ours, twin(x))


def launched(f, *args):
    """The names of torch_tiled's operators that a call runs."""
    with Calls() as record:
        f(*args)
    return record.names()


def recorder(backend):
    """A list of what each compiled graph calls, and the backend that fills it."""
    graphs = []

    def record(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    return graphs, record
