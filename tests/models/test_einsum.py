"""torch.einsum under torch_tiled.override: equations, errors, and the order of its products."""

import itertools
import types
import warnings

import pytest
import torch
from helpers.calls import Calls
from helpers.overriding import operands
from torch.backends import opt_einsum
from torch.testing import assert_close

import torch_tiled

EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,kj->ki", (3, 4), (5, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij , ...jk", (2, 1, 3, 4), (6, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (4,), (4,)),
    ("i,i->i", (4,), (4,)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 6)),
    ("ab,ab->b", (3, 4), (3, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhqk,bhkd->bqhd", (2, 3, 4, 6), (2, 3, 6, 5)),
    ("ij,kl->jl", (3, 4), (5, 6)),
    ("i...,i...->...", (3, 2, 4), (3, 2, 4)),
    ("i...,i...->", (3, 2, 4), (3, 2, 4)),
    ("ij,jk->ik", (3, 0), (0, 5)),
    ("bij,jk->bik", (2, 3, 4), (1, 5)),
    ("...,...->...", (2, 3), (3,)),
    ("ab,b,a->", (3, 4), (4,), (3,)),
    ("Ab,bC", (3, 4), (4, 2)),
    ("ij,jk->k", (3, 1), (4, 5)),
]


@pytest.mark.parametrize("equation, shapes", [(x, y) for x, *y in EQUATIONS], ids=str)
def test_einsum(equation, shapes, device):
    tensors = operands(*shapes, device=device, requires_grad=True)
    expected = torch.einsum(equation, *tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch_tiled.override(strict=True):
            result = torch.einsum(equation, *tensors)
    assert_close(result, expected)
    gradients = [torch.autograd.grad(x.sum(), tensors) for x in (result, expected)]
    assert_close(*gradients)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (5, 6)]),
        ("ij,jk->iz", [(3, 4), (4, 6)]),
        ("ij,jk->ii", [(3, 4), (4, 6)]),
        ("ij,jk", [(3, 4, 5), (4, 6)]),
        ("ij", [(3, 4), (4, 6)]),
        ("i1,1k", [(3, 4), (4, 6)]),
        ("ii,ij->ij", [(3, 1), (3, 6)]),
    ],
    ids=str,
)
def test_einsum_s_errors_are_pytorch_s(equation, shapes):
    tensors = operands(*shapes)
    with pytest.raises(RuntimeError) as expected:
        torch.einsum(equation, *tensors)
    with torch_tiled.override(), pytest.raises(RuntimeError) as error:
        torch.einsum(equation, *tensors)
    assert str(error.value) == str(expected.value)


def einsum_s_products(equation, *tensors):
    """Checks torch.einsum under override, and returns the shapes of its products' operands."""
    with Calls() as calls, torch_tiled.override(strict=True):
        result = torch.einsum(equation, *tensors)
    assert_close(result, torch.einsum(equation, *tensors))
    return [
        tuple(tuple(x.shape) for x in args)
        for name, args, _ in calls.calls
        if name == "tiled::matmul"
    ]


FROM_THE_LEFT = [((30, 4), (4, 50)), ((30, 50), (50, 3))]
FROM_THE_RIGHT = [((4, 50), (50, 3)), ((30, 4), (4, 3))]


@pytest.mark.skipif(not opt_einsum.is_available(), reason="no opt_einsum")
@pytest.mark.parametrize("strategy", ["auto", "greedy", "optimal"])
def test_einsum_in_the_order_of_opt_einsum(strategy, device):
    tensors = operands((30, 4), (4, 50), (50, 3), device=device)
    with opt_einsum.flags(enabled=True, strategy=strategy):
        assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_RIGHT
    with opt_einsum.flags(enabled=False):
        assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_LEFT


def test_einsum_in_any_order(monkeypatch):
    """Paths that opt_einsum might find, which need not be installed for this."""

    def take(path):
        found = types.SimpleNamespace(contract_path=lambda *_, **__: (path, ""))
        module = types.SimpleNamespace(enabled=True, strategy="", get_opt_einsum=lambda: found)
        monkeypatch.setattr(torch_tiled.einsum, "opt_einsum", module)

    take([(1, 2), (0, 1)])
    tensors = operands((30, 4), (4, 50), (50, 3))
    assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_RIGHT
    compiled = torch.compile(torch.einsum, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch_tiled.override(strict=True):
        assert_close(compiled("ij,jk,kl", *tensors), torch.einsum("ij,jk,kl", *tensors))
    tensors = operands((2, 3), (2, 3, 4), (4, 5), (2, 5, 6))
    for path in itertools.product(*(itertools.permutations(range(n), 2) for n in (4, 3, 2))):
        take(path)
        einsum_s_products("ab,abc,cd,ade->ae", *tensors)
