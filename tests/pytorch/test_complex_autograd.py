"""Gradients, tangents and transforms of complex products, by PyTorch's convention.

The gradient of a real loss by a complex a is that of grad @ b^H.
"""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.chaining import batched, in_dims
from helpers.complex_operands import VIEWS as LAZY_VIEWS
from helpers.complex_operands import every_complex
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.complex128, requires_grad=True)

A_OF_RANK = {1: (3,), 2: (2, 3), 3: (2, 2, 3), 4: (2, 1, 2, 3)}
B_OF_RANK = {1: (3,), 2: (3, 2), 3: (2, 3, 2), 4: (1, 2, 3, 2)}
SHAPES = [(a, b) for a in A_OF_RANK.values() for b in B_OF_RANK.values()]
SHAPES += [((2, 2, 3), (1, 3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 2))]

VIEWS = LAZY_VIEWS | {"adjoint": lambda x: x.mT.contiguous().mH.conj()}


def check_derivatives(f, inputs):
    gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    gradcheck(f, inputs, check_undefined_grad=True)
    gradgradcheck(f, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_matmul_derivatives(a_shape, b_shape, device):
    inputs = randn(*a_shape, device=device), randn(*b_shape, device=device)
    check_derivatives(torch_tiled.matmul, inputs)


@pytest.mark.parametrize("b_view", VIEWS)
@pytest.mark.parametrize("a_view", VIEWS)
def test_matmul_derivatives_of_lazy_views(a_view, b_view, device):
    inputs = randn(2, 2, 3, device=device), randn(3, 2, device=device)
    check_derivatives(lambda a, b: torch_tiled.matmul(VIEWS[a_view](a), VIEWS[b_view](b)), inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("x_shape", [(3,), (4, 3), (2, 2, 3), (0, 3)], ids=str)
def test_linear_derivatives(x_shape, bias, device):
    inputs = [randn(*x_shape, device=device), randn(2, 3, device=device)]
    if bias:
        inputs.append(randn(2, device=device))
    check_derivatives(torch_tiled.linear, inputs)


@pytest.mark.parametrize("view", VIEWS)
def test_linear_derivatives_of_lazy_views(view, device):
    change = VIEWS[view]
    inputs = [randn(*shape, device=device) for shape in ((4, 3), (2, 3), (1, 2))]
    check_derivatives(
        lambda x, weight, bias: torch_tiled.linear(change(x), change(weight), change(bias)[0]),
        inputs,
    )


@pytest.mark.parametrize("kernel", ["naive", "tiled", "f64"])
def test_derivatives_by_algorithm(kernel, device):
    inputs = randn(2, 3, 2, device=device), randn(2, 4, device=device)
    options = {"algorithm": kernel, "precision": "ieee"}
    check_derivatives(lambda a, b: torch_tiled.matmul(a, b.conj(), **options), inputs)
    with Calls() as record:
        torch_tiled.matmul(*inputs, **options).abs().square().sum().backward()
    calls = [given for name, _, given in record.calls if name.startswith("tiled::")]
    assert len(calls) == 3
    assert all(options.items() <= given.items() for given in calls)


LOSSES = {
    "energy": lambda y: y.abs().square().sum(),
    "real": lambda y: y.real.sum(),
    "imaginary": lambda y: y.imag.sin().sum(),
    "parts": lambda y: torch.view_as_real(y).exp().mean(),
    "angle": lambda y: y.angle().sum(),
}


@every_complex
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_real_losses(name, dtype, device):
    tensors = [randn(*s, device=device, dtype=dtype) for s in ((5, 4, 8), (3, 8), (3,))]
    losses = [LOSSES[name](f(*tensors)) for f in (torch_tiled.linear, F.linear)]
    assert_close(*(torch.autograd.grad(loss, tensors) for loss in losses))
    a, b = tensors[0], tensors[1].detach().mH.contiguous().requires_grad_()
    losses = [LOSSES[name](f(a, b)) for f in (torch_tiled.matmul, torch.matmul)]
    assert_close(*(torch.autograd.grad(loss, (a, b)) for loss in losses))


def test_the_convention_is_pytorch_s(device):
    a, b = randn(4, 3, device=device), randn(3, 2, device=device)
    seed = randn(4, 2, device=device, requires_grad=False)
    grads = torch.autograd.grad(torch_tiled.matmul(a, b), (a, b), seed)
    assert_close(grads, (seed @ b.detach().mH, a.detach().mH @ seed))


def test_complex_numbers_of_real_parameters(device):
    """Real parameters become complex numbers upstream, and their gradients are real."""
    real = [
        torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 3), (4, 3), (3, 2, 2), (2, 2))
    ]

    def operands(re, im, pairs, bias):
        return torch.complex(re, im), torch.view_as_complex(pairs), torch.view_as_complex(bias)

    def ours(*tensors):
        a, b, bias = operands(*tensors)
        return torch_tiled.linear(torch_tiled.matmul(a, b), b.mH @ b, bias.conj()).abs()

    def theirs(*tensors):
        a, b, bias = operands(*tensors)
        return F.linear(torch.matmul(a, b), b.mH @ b, bias.conj()).abs()

    gradcheck(ours, real, check_forward_ad=True)
    grads = [torch.autograd.grad(f(*real).square().sum(), real) for f in (ours, theirs)]
    assert all(each.dtype == torch.float64 for each in grads[0])
    assert_close(*grads)


def test_real_operands_from_lazy_views(device):
    """The imaginary part of a conjugate is a real tensor with the bit of a negative."""
    inputs = [randn(*shape, device=device) for shape in ((4, 3), (2, 3), (2, 1))]
    assert inputs[0].conj().imag.is_neg()

    def ours(x, weight, bias):
        x, weight, bias = (each.conj().imag for each in (x, weight, bias))
        return torch_tiled.linear(torch_tiled.matmul(x, weight.mT), weight.mT, bias[0].expand(3))

    inputs[2] = randn(1, 1, device=device)
    check_derivatives(ours, inputs)


# --- torch.func ----------------------------------------------------------------------------------


def real(f):
    return lambda *args: f(*args).abs().square().sum()


def by_parts(f):
    """f as a function of real tensors: PyTorch has no Jacobians of complex ones."""

    def of_parts(*args):
        return torch.view_as_real(f(*map(torch.view_as_complex, args)).resolve_conj())

    return of_parts


def two_of(x):
    return torch.stack([x, 0.5j * x])


TRANSFORMS = {
    "grad": lambda f: grad(real(f), argnums=(0, 1)),
    "vjp": lambda f: lambda a, b: vjp(f, a, b)[1](1j * f(a, b)),
    "jvp": lambda f: lambda a, b: jvp(f, (a, b), (a.conj(), 1j * b)),
    "jacrev": lambda f: lambda a, b: jacrev(by_parts(f), (0, 1))(*map(torch.view_as_real, (a, b))),
    "vmap": lambda f: lambda a, b: vmap(f)(two_of(a), two_of(b)),
    "vmap a": lambda f: lambda a, b: vmap(f, (0, None))(two_of(a), b),
    "vmap b": lambda f: lambda a, b: vmap(f, (None, 0))(a, two_of(b)),
}
OUTER = ("vmap", "vmap a", "vmap b", "jvp")


def of_views(matmul):
    return lambda a, b: matmul(a.conj(), b.conj())


@pytest.mark.parametrize("views", [False, True], ids=["plain", "views"])
@pytest.mark.parametrize("ranks", [*itertools.product((1, 2, 3), repeat=2)], ids=str)
def test_matmul_under_transforms(ranks, views, device):
    a = randn(*A_OF_RANK[ranks[0]], device=device, requires_grad=False)
    b = randn(*B_OF_RANK[ranks[1]], device=device, requires_grad=False)
    ours, theirs = (of_views(f) if views else f for f in (torch_tiled.matmul, torch.matmul))
    for name, transform in TRANSFORMS.items():
        assert_close(transform(ours)(a, b), transform(theirs)(a, b))
        if name.startswith("vmap"):
            continue
        for outer in OUTER:
            nested = [TRANSFORMS[outer](transform(f)) for f in (ours, theirs)]
            assert_close(nested[0](a, b), nested[1](a, b))


def test_hessian_by_real_parts(device):
    parts = [
        torch.randn(shape, device=device, dtype=torch.float64) for shape in ((2, 3, 2), (3, 2, 2))
    ]

    def loss(matmul):
        return lambda a, b: real(matmul)(torch.view_as_complex(a), torch.view_as_complex(b).conj())

    for transform in (hessian, lambda f, argnums: jacrev(jacfwd(f, argnums), argnums)):
        ours, theirs = (
            transform(loss(f), argnums=(0, 1)) for f in (torch_tiled.matmul, torch.matmul)
        )
        assert_close(ours(*parts), theirs(*parts))


@pytest.mark.parametrize("b_rank", [1, 2, 3])
@pytest.mark.parametrize("a_rank", [1, 2, 3])
def test_vmap_over_every_dimension(a_rank, b_rank, device):
    for dims in in_dims(a_rank, b_rank):
        a = randn(*batched(A_OF_RANK[a_rank], dims[0]), device=device, requires_grad=False).conj()
        b = randn(
            *batched(B_OF_RANK[b_rank], dims[1]), device=device, requires_grad=False
        )._neg_view()
        for transform in (lambda f: f, lambda f: grad(real(f), argnums=(0, 1))):
            ours, theirs = (vmap(transform(f), dims) for f in (torch_tiled.matmul, torch.matmul))
            assert_close(ours(a, b), theirs(a, b))


@pytest.mark.parametrize("x_shape", [(3,), (4, 3), (2, 4, 3)], ids=str)
def test_vmap_of_linear_over_every_dimension(x_shape, device):
    for dims in in_dims(len(x_shape), 2, 1):
        tensors = [
            randn(*batched(shape, dim), device=device, requires_grad=False)
            for shape, dim in zip((x_shape, (2, 3), (2,)), dims, strict=True)
        ]
        tensors[1] = tensors[1].conj()
        for transform in (lambda f: f, lambda f: grad(real(f), argnums=(0, 1, 2))):
            ours, theirs = (vmap(transform(f), dims) for f in (torch_tiled.linear, F.linear))
            assert_close(ours(*tensors), theirs(*tensors))


def test_gemm_under_vmap(device):
    """c is a conjugate outside of vmap, and its conjugate inside. PyTorch maps no other views."""
    shapes = (2, 4, 5), (5, 2, 3), (3, 4)
    memory, a, b = (randn(*shape, device=device, requires_grad=False) for shape in shapes)
    c = memory.conj()

    def write(c, a, b):
        torch_tiled.gemm_(c.conj(), a.conj(), b, alpha=0.5 - 1j, beta=2j)
        return c * 1

    product = torch.einsum("imk,kn->mni", a.conj(), b)
    expected = (2j * c.conj() + (0.5 - 1j) * product).conj()
    assert_close(vmap(write, (2, 0, None), out_dims=2)(c, a, b), expected)
    assert_close(c, expected)
    assert_close(memory, expected.conj())
