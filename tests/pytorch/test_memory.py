"""Memory that steps of training keep: none, though the garbage collector is off.

A Function of autograd that refers to its own output would keep it, and the output the Function.
"""

import contextlib
import functools

import pytest
import torch
from helpers.converting import as_converted
from helpers.memory import bytes_kept
from helpers.reference import ACTIVATIONS
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import torch_tiled

ROWS, IN, OUT = 32, 64, 48


def parameters(device):
    """A weight of linear, and a bias."""
    shapes = (OUT, IN), (OUT,)
    return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]


def linear(activation, device, **options):
    weight, bias = parameters(device)
    return lambda x: torch_tiled.linear(x, weight, bias, activation=activation, **options)


def prepared_linear(activation, device):
    weight, bias = parameters(device)
    weight = torch_tiled.prepare(weight.detach().mT).mT
    return lambda x: torch_tiled.linear(x, weight, bias, activation=activation)


def matmul(device, **options):
    weight, _ = parameters(device)
    return lambda x: torch_tiled.matmul(x, weight.mT, **options)


def prepared_matmul(device):
    b = torch_tiled.prepare(parameters(device)[0].detach().mT)
    return lambda x: torch_tiled.matmul(x, b)


def out(device):
    weight = parameters(device)[0].detach()

    def f(x):
        written = torch.empty(ROWS, OUT, device=device)
        return torch_tiled.matmul(x.detach(), weight.mT, out=written) * x.sum()

    return f


def gemm(device):
    weight = parameters(device)[0].detach()

    def f(x):
        c = torch.ones(ROWS, OUT, device=device)
        return torch_tiled.gemm_(c, x.detach(), weight.mT) * x.sum()

    return f


def raising(device):
    weight, bias = parameters(device)

    def f(x):
        with contextlib.suppress(RuntimeError):
            torch_tiled.linear(x, weight.mT, bias, activation="relu")
        return torch_tiled.linear(x, weight, bias)

    return f


def layer(activation, device):
    return torch_tiled.nn.Linear(IN, OUT, activation=activation, device=device)


def frozen(activation, device):
    made = layer(activation, device)
    made.weight.requires_grad_(False)
    return torch_tiled.freeze(made)


def converted(device):
    model = as_converted(torch.nn.Linear(IN, OUT, device=device))
    return model


def overridden(device):
    model = torch.nn.Sequential(torch.nn.Linear(IN, OUT, device=device), torch.nn.ReLU())

    def f(x):
        with torch_tiled.override():
            return model(x)

    return f


CASES = {
    "matmul": matmul,
    "matmul tiled": functools.partial(matmul, algorithm="tiled"),
    "matmul prepared": prepared_matmul,
    "matmul out": out,
    "gemm_": gemm,
    "raising": raising,
    "converted": converted,
    "overridden": overridden,
    "linear tiled relu": functools.partial(linear, "relu", algorithm="tiled"),
}
for _activation in ACTIVATIONS:
    for _make in (linear, prepared_linear, layer, frozen):
        CASES[f"{_make.__name__} {_activation}"] = functools.partial(_make, _activation)

REGIONS = {
    "plain": lambda f, x: f(x),
    "checkpointed": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "inside": lambda f, x: checkpoint(lambda x: f(x * 1).sin(), x, use_reentrant=False),
}


def train(f, device, region):
    """A step: forward, backward, no gradients left."""
    x = torch.randn(ROWS, IN, device=device, requires_grad=True)

    def step():
        region(f, x).sum().backward()
        x.grad = None

    return step


@pytest.mark.parametrize("case", CASES)
def test_steps_keep_no_memory(case, device):
    f = CASES[case](device)
    steps = [train(f, device, region) for region in REGIONS.values()]
    assert bytes_kept(lambda: [step() for step in steps], device) == 0


def test_a_whole_recomputation_keeps_no_memory(device):
    def nested(f, x):
        return checkpoint(lambda x: checkpoint(f, x, use_reentrant=False), x, use_reentrant=False)

    f = layer("relu", device)
    assert bytes_kept(train(f, device, nested), device) == 0
    with set_checkpoint_early_stop(False):
        assert bytes_kept(train(f, device, REGIONS["checkpointed"]), device) == 0


def test_a_hook_that_raises_keeps_no_memory(device):
    """A hook on saved tensors that raises ends a Function as a checkpoint does."""
    f, x = layer("relu", device), torch.randn(ROWS, IN, device=device, requires_grad=True)

    def refuse(tensor):
        if tensor.shape == (ROWS, OUT):
            raise ValueError
        return tensor

    def step():
        hooks = torch.autograd.graph.saved_tensors_hooks(refuse, lambda tensor: tensor)
        with contextlib.suppress(ValueError), hooks:
            f(x)

    assert bytes_kept(step, device) == 0


@pytest.mark.parametrize("region", ["plain", "checkpointed"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_compiled_steps_keep_no_memory(activation, region, device, fresh_compiler):
    f = layer(activation, device)
    compiled = torch.compile(lambda x: REGIONS[region](f, x), backend="aot_eager", fullgraph=True)
    step = train(compiled, device, REGIONS["plain"])
    assert bytes_kept(step, device) == 0


@pytest.mark.parametrize("kind", ["layer", "prepared_linear"])
def test_compiled_in_a_checkpoint_keeps_no_memory(kind, device, fresh_compiler):
    f = torch.compile(CASES[f"{kind} relu"](device), backend="aot_eager")
    assert bytes_kept(train(f, device, REGIONS["checkpointed"]), device) == 0


def test_a_write_to_the_output_of_a_relu_is_noticed(device):
    """The saved alias shares the output's version: its derivative is not computed from a write."""
    y = layer("relu", device)(torch.randn(ROWS, IN, device=device))
    y.mul_(-1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
