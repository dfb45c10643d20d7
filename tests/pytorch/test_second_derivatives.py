"""Second derivatives are None, zeros or numbers exactly where PyTorch's are."""

import random

import pytest
import torch
import torch.nn.functional as F
from helpers.reference import ACTIVATIONS

import torch_tiled

CALLS = 60


def derivatives(function, tensors, needed, asked, grad):
    """First derivatives of a function, and then those of their sum by all that needs any."""
    tensors = [x.clone().requires_grad_(need) for x, need in zip(tensors, needed, strict=True)]
    grad = grad.clone().requires_grad_(grad.requires_grad)
    inputs = [tensors[i] for i in asked]
    first = torch.autograd.grad(function(*tensors), inputs, grad, create_graph=True)
    total = sum((x * x.detach().cos()).sum() for x in first)
    if not total.requires_grad:
        return [*first, *([None] * (len(tensors) + 1))]
    by = [x for x in (*tensors, grad) if x.requires_grad]
    return [*first, *torch.autograd.grad(total, by, allow_unused=True, create_graph=True)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear(activation):
    rng = random.Random(activation)
    for _ in range(CALLS):
        d, m, n, k = rng.choices([1, 1, 2, 3], k=4)
        shapes = [rng.choice([(k,), (m, k), (d, m, k)]), (n, k), (n,)][: rng.choice([2, 3, 3])]
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        needed = [rng.random() < 0.6 for _ in shapes]
        needed[rng.randrange(len(shapes))] = True
        may_be_asked = [i for i, need in enumerate(needed) if need]
        asked = rng.sample(may_be_asked, rng.randint(1, len(may_be_asked)))
        grad = torch.randn(*shapes[0][:-1], n, dtype=torch.float64)
        grad.requires_grad_(rng.random() < 0.5)

        def ours(*tensors):
            return torch_tiled.linear(*tensors, activation=activation)

        def theirs(*tensors):
            return ACTIVATIONS[activation](F.linear(*tensors))

        found, expected = (derivatives(f, tensors, needed, asked, grad) for f in (ours, theirs))
        text = f"{shapes}, gradients of {needed}, asked for {asked}"
        for x, y in zip(found, expected, strict=True):
            assert (x is None) == (y is None), text
            if x is not None:
                assert x.requires_grad == y.requires_grad, text
                torch.testing.assert_close(x, y)
