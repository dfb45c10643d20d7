"""The operators that write, under autograd: they refuse derivatives and count as writes."""

import functools

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.float64, requires_grad=True)


def test_writing_to_views_that_negate(device):
    a, b = randn(2, 3, device=device).detach(), randn(3, 4, device=device).detach()
    for write in (
        lambda c: torch_tiled.gemm_(c, a, b, beta=2),
        lambda c: torch_tiled.matmul(a, b, out=c),
        lambda c: torch_tiled.matmul(a, (-b).to(torch.complex128).mul(1j).conj().imag, out=c),
    ):
        c = torch.zeros(2, 4, device=device, dtype=torch.complex128).conj().imag
        assert c.is_neg()
        write(c)
        assert c.is_neg()
        assert_close(c.resolve_neg(), a @ b)


def writing_calls(device):
    a, b = randn(2, 3, device=device), randn(3, 4, device=device)
    c = torch.zeros(2, 4, device=device, dtype=torch.float64)
    return {
        "gemm_": (torch_tiled.gemm_, (c, a, b), {}),
        "out": (torch_tiled.matmul, (a, b), {"out": c}),
        "op gemm_": (torch.ops.tiled.gemm_, (c, a, b), {}),
        "op out": (torch.ops.tiled.matmul.out, (a, b), {"out": c}),
    }


@pytest.fixture(params=["gemm_", "out", "op gemm_", "op out"])
def writing(request, device):
    """A call that writes, c, and the operands a and b, which require gradients."""
    f, args, kwargs = writing_calls(device)[request.param]
    c = kwargs.get("out", args[0])
    return lambda: f(*args, **kwargs), c, args[-2], args[-1]


def test_writing_refuses_gradients(writing):
    write, c, a, b = writing
    with pytest.raises(RuntimeError, match=r"has no derivative, but a of shape \(2, 3\) requires"):
        write()
    assert not c.any() and c._version == 0
    with torch.no_grad():
        write()
        assert_close(c, a @ b)
    a.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"has no derivative, but b of shape \(3, 4\) requires"):
        write()
    b.requires_grad_(False)
    write()
    c.requires_grad_()
    with pytest.raises(RuntimeError, match=r"but (c|out) of shape \(2, 4\) requires grad"):
        write()


def test_writing_refuses_tangents(device):
    a, b = randn(2, 3, device=device).detach(), randn(3, 4, device=device).detach()
    c = a.new_zeros(2, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        sentence = r"but a of shape \(2, 3\) has a forward-mode tangent"
        with pytest.raises(RuntimeError, match=sentence):
            torch_tiled.gemm_(c, dual, b)
        with pytest.raises(RuntimeError, match=sentence):
            torch_tiled.matmul(dual, b, out=c)
        torch_tiled.gemm_(c, a, b)
    assert_close(c, a @ b)


def test_writing_to_a_saved_tensor_is_noticed(writing):
    write, c, a, b = writing
    x = torch.ones(2, 4, dtype=c.dtype, device=c.device, requires_grad=True)
    y = (x * c).sum()
    with torch.no_grad():
        write()
    assert c._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_writing_under_inference_mode_is_noticed(writing):
    write, c, a, b = writing
    with torch.inference_mode():
        write()
    assert c._version > 0


def test_writing_to_an_inference_tensor(device):
    a, b = torch.ones(2, 3, device=device), torch.ones(3, 4, device=device)
    with torch.inference_mode():
        c = torch.zeros(2, 4, device=device)
        torch_tiled.gemm_(c, a, b)
        assert_close(c, a @ b)
    for write in (lambda: torch_tiled.gemm_(c, a, b), lambda: torch_tiled.matmul(a, b, out=c)):
        with pytest.raises(RuntimeError, match=r"of shape \(2, 4\) was made under torch.inference"):
            write()
    assert_close(c.clone(), torch.full((2, 4), 3.0, device=device))


def test_a_refused_write_leaves_the_version(device):
    a, b, c = torch.ones(2, 3), torch.ones(4, 4), torch.zeros(2, 4)
    with pytest.raises(RuntimeError, match="columns"):
        torch_tiled.gemm_(c, a, b)
    assert c._version == 0
