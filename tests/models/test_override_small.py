"""torch_tiled.override: random calls with sides of 0 and 1 return or raise as PyTorch does."""

import random

import pytest
import torch
import torch.nn.functional as F

import torch_tiled

CALLS = 120
# Functions, and the shapes of their tensors by the batch d and m, n, k.
SUMS = {
    "addmm": lambda d, m, n, k: ((m, n), (m, k), (k, n)),
    "baddbmm": lambda d, m, n, k: ((d, m, n), (d, m, k), (d, k, n)),
    "addbmm": lambda d, m, n, k: ((m, n), (d, m, k), (d, k, n)),
    "addmv": lambda d, m, n, k: ((m,), (m, k), (k,)),
}
PRODUCTS = {
    "mm": lambda d, m, n, k: ((m, k), (k, n)),
    "bmm": lambda d, m, n, k: ((d, m, k), (d, k, n)),
    "mv": lambda d, m, n, k: ((m, k), (k,)),
    "matmul": lambda d, m, n, k: ((d, m, k), (k, n)),
    "inner": lambda d, m, n, k: ((d, m, k), (n, k)),
}
LINEAR = {
    "linear": lambda d, m, n, k: ((d, m, k), (n, k), (n,)),
    "linear of rows": lambda d, m, n, k: ((m, k), (n, k), (n,)),
}
SHAPES = SUMS | {f"{name}_": shapes for name, shapes in SUMS.items()} | PRODUCTS | LINEAR


def function_of(name):
    if name.startswith("linear"):
        return F.linear
    return getattr(torch.Tensor, name) if name.endswith("_") else getattr(torch, name)


def some_tensors(rng, name, size):
    """Tensors of integers that mostly fit. What is added may broadcast."""
    shapes = [
        [size() if rng.random() < 0.05 else side for side in shape]
        for shape in SHAPES[name](*(size() for _ in range(4)))
    ]
    added = {"add": 0, "bad": 0, "lin": 2}.get(name[:3])
    if added is not None and rng.random() < 0.5:
        shape = [rng.choice([side, 1]) for side in shapes[added]]
        shapes[added] = shape[rng.choice([0, 0, 1]) :]
    return [torch.randint(-3, 4, shape).float() for shape in shapes]


def outcome(function, tensors, differentiated, **options):
    """The result and its gradients, or None for an error."""
    tensors = [x.clone().requires_grad_(differentiated) for x in tensors]
    if "out" in options:
        options["out"] = options["out"].clone()
    try:
        result = function(*tensors, **options)
        if differentiated:
            return result, *torch.autograd.grad(result.sum(), tensors, allow_unused=True)
    except (RuntimeError, IndexError):
        return None
    return (result,)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", SHAPES)
def test_small_shapes(name):
    rng = random.Random(name)
    for _ in range(CALLS):
        tensors = some_tensors(rng, name, lambda: rng.choice([0, 0, 1, 1, 2, 3]))
        differentiated = not name.endswith("_") and rng.random() < 0.3
        options = {}
        if name.startswith(("add", "badd")):
            options = {"alpha": rng.choice([1, 2, 0]), "beta": rng.choice([1, 0, 0.5])}
        if name.startswith(("add", "badd")) and not (name.endswith("_") or differentiated):
            if rng.random() < 0.3:
                options["out"] = torch.full(SUMS[name](1, 2, 3, 1)[0], 7.0)
        expected = outcome(function_of(name), tensors, differentiated, **options)
        with torch_tiled.override():
            found = outcome(function_of(name), tensors, differentiated, **options)
        text = f"{[tuple(x.shape) for x in tensors]}, {options}"
        assert (found is None) == (expected is None), text
        for x, y in zip(found or (), expected or (), strict=True):
            assert (x is None) == (y is None), text
            assert x is None or (x.shape == y.shape and torch.equal(x, y)), text
