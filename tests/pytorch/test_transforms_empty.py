"""torch.vmap over 0 examples, such as an empty batch."""

import functools

import pytest
import torch
import torch.nn.functional as F
from helpers.chaining import batched
from helpers.compiling import BACKENDS
from helpers.reference import ACTIVATIONS
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import torch_tiled

MATMUL_DIMS = [(0, 0), (0, None), (None, 0), (1, 0), (0, 2)]
LINEAR_DIMS = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, 0, 1)]
RANKS = [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5))]


def operands(shapes, dims, device):
    """Tensors of these shapes, with a dimension of size 0 where one is mapped over."""
    pairs = zip(shapes, dims, strict=True)
    return [torch.randn(batched(shape, dim, 0), device=device) for shape, dim in pairs]


def assert_same(ours, theirs, dims, inputs):
    """Compares results, per-example gradients, tangents, and gradients through vmap."""
    assert_close(vmap(ours, dims)(*inputs), vmap(theirs, dims)(*inputs))

    def by_example(f):
        return grad(lambda *args: f(*args).sum(), tuple(range(len(inputs))))

    gradients = vmap(by_example(ours), dims)(*inputs)
    assert [g.shape[0] for g in gradients] == [0] * len(inputs)

    def tangents(f):
        return vmap(lambda *args: jvp(f, args, args), dims)(*inputs)

    assert_close(tangents(ours), tangents(theirs))
    recorded = [x.detach().requires_grad_() for x in inputs]

    def through(f):
        return torch.autograd.grad(vmap(f, dims)(*recorded).sum(), recorded)

    assert_close(through(ours), through(theirs))


@pytest.mark.parametrize("dims", MATMUL_DIMS, ids=str)
@pytest.mark.parametrize("shapes", RANKS, ids=str)
def test_matmul(shapes, dims, device):
    dims = tuple(d and min(d, len(s)) for d, s in zip(dims, shapes, strict=True))
    assert_same(torch_tiled.matmul, torch.matmul, dims, operands(shapes, dims, device))


@pytest.mark.parametrize("dims", LINEAR_DIMS, ids=str)
@pytest.mark.parametrize("x_shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_linear(activation, x_shape, dims, device):
    ours = functools.partial(torch_tiled.linear, activation=activation)
    act = ACTIVATIONS[activation]
    inputs = operands([x_shape, (5, 4), (5,)], dims, device)
    assert_same(ours, lambda *args: act(F.linear(*args)), dims, inputs)


def test_writing(device):
    c, a, b = (torch.randn(0, *shape, device=device) for shape in ((3, 5), (3, 4), (4, 5)))
    assert vmap(torch_tiled.gemm_)(c, a, b).shape == (0, 3, 5)
    assert vmap(lambda out, a, b: torch_tiled.matmul(a, b, out=out))(c, a, b).shape == (0, 3, 5)


def test_prepared(device):
    prepared = torch_tiled.prepare(torch.randn(64, 5, device=device))
    x = torch.randn(0, 3, 64, device=device)
    assert vmap(lambda x: torch_tiled.matmul(x, prepared))(x).shape == (0, 3, 5)
    weight = torch_tiled.prepare(torch.randn(5, 64, device=device).mT).mT
    assert vmap(lambda x: torch_tiled.linear(x, weight))(x).shape == (0, 3, 5)


def frozen(layer):
    return torch_tiled.freeze(layer.requires_grad_(False))


def converted(layer):
    torch_tiled.convert(layer)
    return layer


@pytest.mark.parametrize("kind", ["layer", "converted", "frozen", "overridden"])
def test_layers(kind, device):
    if kind in ("converted", "overridden"):
        layer = torch.nn.Linear(64, 5, device=device)
    else:
        layer = torch_tiled.nn.Linear(64, 5, activation="relu", device=device)
    layer = {"converted": converted, "frozen": frozen}.get(kind, lambda x: x)(layer)
    x = torch.randn(0, 3, 64, device=device)

    def run():
        assert vmap(layer)(x).shape == (0, 3, 5)
        if kind != "frozen":
            parameters = dict(layer.named_parameters())
            loss = lambda p, x: functional_call(layer, p, x).sum()  # noqa: E731
            by_example = vmap(grad(loss), (None, 0))(parameters, x)
            assert by_example["weight"].shape == (0, 5, 64)
            assert by_example["bias"].shape == (0, 5)

    if kind == "overridden":
        with torch_tiled.override():
            return run()
    return run()


@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian])
def test_jacobians_of_nothing(transform, device):
    """A Jacobian maps over a basis, which has no vector if there is no element."""
    w, x = torch.randn(4, 5, device=device), torch.randn(0, 4, device=device)
    ours = transform(lambda x: torch_tiled.matmul(x, w))(x)
    assert_close(ours, transform(lambda x: torch.matmul(x, w))(x))


def test_nested(device):
    for lead in ((2, 0), (0, 2), (0, 0)):
        a, b = (torch.randn(*lead, *shape, device=device) for shape in ((3, 4), (4, 5)))
        assert vmap(vmap(torch_tiled.matmul))(a, b).shape == (*lead, 3, 5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend, device, fresh_compiler):
    f = torch.compile(vmap(torch_tiled.matmul), fullgraph=True, dynamic=True, backend=backend)
    for n in (3, 0, 2):
        a, b = (torch.randn(n, *shape, device=device) for shape in ((3, 4), (4, 5)))
        assert_close(f(a, b), torch.matmul(a, b))


def test_shapes_are_checked_still(device):
    """A bad shape in an empty batch is an error, as in PyTorch, and needs no memory to be found."""
    a, b = torch.empty(0, 2**22, 2**22, device=device), torch.empty(0, 5, 6, device=device)
    with pytest.raises(RuntimeError, match=r"a is \(4194304, 4194304\) and b is \(5, 6\)"):
        vmap(torch_tiled.matmul)(a, b)
