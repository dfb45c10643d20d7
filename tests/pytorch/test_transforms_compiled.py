"""Transforms in compiled and exported graphs.

A graph enters a level of forward AD without telling Python, and must not lose a product's tangent.
"""

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import torch_tiled

X, B, W = torch.randn(3, 3), torch.randn(3, 3), torch.randn(4, 3)


def product(multiply):
    """A product and a second term, so that a lost tangent shows as a wrong value."""
    return lambda x: multiply(x) + x.sum()


MULTIPLY = {
    "matmul": (lambda x: torch_tiled.matmul(x, B), lambda x: torch.matmul(x, B)),
    "linear": (
        lambda x: torch_tiled.linear(x, W, activation="tanh"),
        lambda x: torch.tanh(torch.nn.functional.linear(x, W)),
    ),
}


def dual(f):
    def tangent(x):
        with fwad.dual_level():
            return fwad.unpack_dual(f(fwad.make_dual(x, x * 2))).tangent

    return tangent


DERIVATIVES = {
    "jvp": lambda f: lambda x: jvp(f, (x,), (x * 2,))[1],
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda x: f(x).square().sum()),
    "vmap of jvp": lambda f: (
        lambda x: vmap(lambda t: jvp(f, (x,), (t,))[1])(torch.stack([x, x * 2]))
    ),
    "grad of jvp": lambda f: grad(lambda x: jvp(f, (x,), (x * 2,))[1].square().sum()),
    "jvp of grad": lambda f: lambda x: jvp(grad(lambda x: f(x).square().sum()), (x,), (x * 2,))[1],
    "dual_level": dual,
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("multiply", MULTIPLY)
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_compiled_tangents(derivative, multiply, backend):
    ours, torchs = (DERIVATIVES[derivative](product(f)) for f in MULTIPLY[multiply])
    expected = torchs(X)
    torch.testing.assert_close(ours(X), expected)
    torch.testing.assert_close(torch.compile(ours, backend=backend)(X), expected)


def exported(f):
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    return torch.export.export(Module(), (X,), strict=False).module()


def test_exported_tangents():
    ours, torchs = (DERIVATIVES["jvp"](product(f)) for f in MULTIPLY["matmul"])
    try:
        exported(torchs)
    except AssertionError as error:
        pytest.skip(f"torch {torch.__version__} exports no jvp of torch.matmul: {error}")
    torch.testing.assert_close(exported(ours)(X), torchs(X))


def test_compiled_tangents_of_converted_layers():
    layer = torch.nn.Linear(3, 4)
    f = lambda x: jvp(lambda x: layer(x) + x.sum(), (x,), (x * 2,))[1]  # noqa: E731
    expected = f(X)
    torch_tiled.convert(layer)
    torch.testing.assert_close(torch.compile(f, backend="aot_eager")(X), expected)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_compiled_gradients_of_examples(dtype, dynamic, device):
    a, b = (torch.randn(3, *shape, device=device, dtype=dtype) for shape in ((4, 5), (5, 6)))

    def f(matmul, a, b):
        def value(a, b):
            y = matmul(a.conj(), b)
            return y.abs().square().sum() if dtype.is_complex else y.sin().sum()

        jacobian = None if dtype.is_complex else jacrev(value)(a, b)  # PyTorch has real ones alone
        return vmap(grad(value, argnums=(0, 1)))(a, b), jacobian

    compiled = torch.compile(
        lambda a, b: f(torch_tiled.matmul, a, b),
        fullgraph=True,
        dynamic=dynamic,
        backend="aot_eager",
    )
    torch.testing.assert_close(compiled(a, b), f(torch.matmul, a, b))
