"""torch_tiled.override, which takes over PyTorch's functions."""

import operator

import pytest
import torch
import torch.nn.functional as F
from helpers.overriding import Products, operands, ours_alone
from helpers.reference import assert_within, rounded_bound
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiled

CALLS = {
    "torch.matmul": (torch.matmul, (2, 3, 4), (4, 5)),
    "torch.linalg.matmul": (torch.linalg.matmul, (3, 4), (4, 5)),
    "Tensor.matmul": (torch.Tensor.matmul, (4,), (4, 5)),
    "@": (lambda a, b: a @ b, (3, 4), (4,)),
    "__rmatmul__": (lambda a, b: b.__rmatmul__(a), (3, 4), (4, 5)),
    "@=": (operator.imatmul, (4, 4), (4, 4)),
    "dot by matmul": (torch.matmul, (4,), (4,)),
    "torch.mm": (torch.mm, (3, 4), (4, 5)),
    "torch.mm by name": (lambda a, b: torch.mm(input=a, mat2=b), (3, 4), (4, 5)),
    "Tensor.mm": (torch.Tensor.mm, (3, 4), (4, 5)),
    "torch.bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "Tensor.bmm": (torch.Tensor.bmm, (2, 3, 4), (2, 4, 5)),
    "torch.mv": (torch.mv, (3, 4), (4,)),
    "Tensor.mv": (torch.Tensor.mv, (3, 4), (4,)),
    "torch.addmm": (torch.addmm, (5,), (3, 4), (4, 5)),
    "torch.addmm, scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        (3, 5),
        (3, 4),
        (4, 5),
    ),
    "Tensor.addmm by name": (lambda c, a, b: c.addmm(mat1=a, mat2=b), (3, 1), (3, 4), (4, 5)),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b, alpha=-1), (3, 5), (3, 4), (4, 5)),
    "torch.baddbmm": (torch.baddbmm, (1, 5), (2, 3, 4), (2, 4, 5)),
    "Tensor.baddbmm": (lambda c, a, b: c.baddbmm(a, b, beta=-1), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "baddbmm_": (lambda c, a, b: c.clone().baddbmm_(a, b), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=3), (3,), (3, 4), (4,)),
    "Tensor.addmv": (torch.Tensor.addmv, (3,), (3, 4), (4,)),
    "addmv_": (lambda c, a, b: c.clone().addmv_(a, b), (3,), (3, 4), (4,)),
    "torch.addbmm": (torch.addbmm, (5,), (2, 3, 4), (2, 4, 5)),
    "Tensor.addbmm": (
        lambda c, a, b: c.addbmm(batch1=a, batch2=b, alpha=2),
        (3, 5),
        (2, 3, 4),
        (2, 4, 5),
    ),
    "addbmm_": (lambda c, a, b: c.clone().addbmm_(a, b, beta=-1), (3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.inner": (torch.inner, (3, 4), (5, 4)),
    "Tensor.inner": (torch.Tensor.inner, (4,), (2, 5, 4)),
    "F.linear": (F.linear, (2, 3, 4), (5, 4)),
    "F.linear with bias": (F.linear, (2, 3, 4), (5, 4), (5,)),
    "torch.nn.Linear": (
        lambda x, w, b: torch.func.functional_call(
            torch.nn.Linear(4, 5), {"weight": w, "bias": b}, x
        ),
        (3, 4),
        (5, 4),
        (5,),
    ),
    "torch.einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "torch.einsum of a list": (lambda *x: torch.einsum("ij,jk,kl", x), (3, 4), (4, 5), (5, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_product_and_gradients_are_computed_by_torch_tiled(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, requires_grad=True)
    expected = function(*tensors)
    wanted = torch.autograd.grad(expected.sum(), tensors)
    with ours_alone(), torch_tiled.override(strict=True):
        result = function(*tensors)
    assert result.dtype == expected.dtype
    assert_close(result, expected)
    with Products() as seen:
        gradients = torch.autograd.grad(result.sum(), tensors)
    assert seen.products()[0] == 0
    assert_close(gradients, wanted)


def product_names():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    with Products() as seen:
        a @ b
    return [name for name, _, _ in seen.calls]


def test_nothing_is_left_behind():
    with pytest.raises(ZeroDivisionError), torch_tiled.override():
        assert any("tiled::" in name for name in product_names())
        raise ZeroDivisionError
    assert not any("tiled::" in name for name in product_names())
    again = torch_tiled.override()
    for _ in range(2):
        with again:
            assert any("tiled::" in name for name in product_names())


def test_the_innermost_counts():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    called = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "tiled::" in func.name():
                called.append((kwargs or {}).get("precision", "fp32"))
            return func(*args, **(kwargs or {}))

    outer, inner = torch_tiled.override(precision="ieee"), torch_tiled.override()
    with Spy(), outer:
        a @ b
        with inner:
            a @ b
        a @ b
    assert called == ["ieee", "fp32", "ieee"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        torch_tiled.override(precision="exact")


def test_making_one_computes_nothing():
    with Products() as seen:
        torch_tiled.override(precision="ieee")
        torch_tiled.convert(torch.nn.ReLU())
    assert seen.products() == (0, 0)


@pytest.mark.parametrize("name", ["torch.matmul", "torch.mm", "torch.bmm", "torch.mv"])
def test_out(name, device):
    function, *shapes = CALLS[name]
    a, b = operands(*shapes, device=device)
    out = torch.full_like(a @ b, torch.nan)
    with ours_alone(), torch_tiled.override(strict=True):
        assert function(a, b, out=out) is out
    assert_close(out, a @ b)
    empty = torch.empty(0, device=device, dtype=a.dtype)
    with torch_tiled.override():
        function(a, b, out=empty)  # which PyTorch resizes
    assert_close(empty, a @ b)


def test_functions_are_named_as_they_are_called():
    """PyTorch's resolve_name takes the last of a function's names: torch.spmm for torch.mm."""
    a = torch.ones(2, 2, dtype=torch.int64)
    calls = {
        "torch.mm": lambda: torch.mm(a, a),
        "torch.Tensor.mm": lambda: a.mm(a),
        "torch.einsum": lambda: torch.einsum("ij,jk->ik", a, a),
        "torch.nn.functional.linear": lambda: torch.nn.functional.linear(a, a),
    }
    for name, call in calls.items():
        with torch_tiled.override(strict=True), pytest.warns(UserWarning) as caught:
            call()
        assert f"PyTorch computes {name}, since" in str(caught[0].message)


def test_out_dtype():
    a, b = operands((3, 4), (4, 5), dtype=torch.bfloat16)
    with torch_tiled.override(strict=True):
        result = torch.mm(a, b, out_dtype=torch.float32)
        assert torch.equal(result, torch.mm(a, b, torch.float32))
    assert torch.equal(result, torch_tiled.matmul(a, b, out_dtype=torch.float32))


@pytest.mark.parametrize(
    "name", ["torch.matmul", "torch.addmm", "F.linear with bias", "torch.einsum"]
)
def test_autocast(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, dtype=torch.float32)
    with torch.autocast(device, torch.bfloat16):
        expected = function(*tensors)
        with Products() as seen, torch_tiled.override():
            result = function(*tensors)
    assert seen.products()[0] == 0
    assert result.dtype == expected.dtype == torch.bfloat16
    rounded = [x.bfloat16().double() for x in tensors]
    exact, size = function(*rounded), function(*(x.abs() for x in rounded))
    assert_within(result, exact, rounded_bound(exact, size, 8, 1, torch.bfloat16))
