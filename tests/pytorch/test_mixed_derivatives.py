"""Derivatives of mixed products, transforms and graphs, against upcast operands' derivatives."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS
from helpers.operands import MIXED
from helpers.reference import ACTIVATIONS
from torch.autograd import forward_ad
from torch.func import grad, vmap
from torch.testing import assert_close

import torch_tiled


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize(
    "a_shape, b_shape", [((5, 9), (9, 3)), ((2, 5, 9), (9, 3)), ((9,), (9,))], ids=str
)
def test_gradients_of_mixed_products_are_rounded_once(a_shape, b_shape, kind, device):
    *dtypes, out_dtype, _ = MIXED[kind]
    a, b = (
        torch.randn(shape, device=device).to(dtype).requires_grad_()
        for shape, dtype in zip((a_shape, b_shape), dtypes, strict=True)
    )
    options = {"algorithm": "tiled", "precision": "ieee"}
    out = torch_tiled.matmul(a, b, out_dtype=out_dtype, **options)
    assert out.dtype == out_dtype
    seed = torch.randn_like(out)
    grads = torch.autograd.grad(out, (a, b), seed)
    wide = [x.detach().float().requires_grad_() for x in (a, b)]
    expected = torch.autograd.grad(torch_tiled.matmul(*wide, **options), wide, seed.float())
    for x, found, exact in zip((a, b), grads, expected, strict=True):
        assert torch.equal(found, exact.to(x.dtype))

    def multiply(x, y, **out):
        return torch.func.jvp(
            lambda x: torch_tiled.matmul(x, y, **out, **options), (x,), (torch.ones_like(x),)
        )

    (_, tangent), (_, exact) = multiply(a, b, out_dtype=out_dtype), multiply(*wide)
    assert torch.equal(tangent, exact.to(out_dtype))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("kind", MIXED)
def test_second_derivatives_of_mixed_layers(kind, activation, device):
    """The gradients are the upcast operands'; autograd rounds the gradients of a cast once."""
    *dtypes, out_dtype, of_bias = MIXED[kind]
    tensors = [
        (torch.randn(shape) / 4).to(device, dtype).requires_grad_()
        for shape, dtype in zip(((4, 6), (3, 6), (3,)), (*dtypes, of_bias), strict=True)
    ]

    def ours(*tensors):
        return torch_tiled.linear(*tensors, activation=activation, out_dtype=out_dtype)

    def theirs(*tensors):
        y = F.linear(*(x.float() for x in tensors))
        return ACTIVATIONS[activation](y).to(out_dtype)

    found = []
    for layer in (ours, theirs):
        y = layer(*tensors)
        first = torch.autograd.grad(y.float().sin().sum(), tensors, create_graph=True)
        total = sum(x.float().square().sum() for x in first)
        second = torch.autograd.grad(total, tensors)
        assert [x.dtype for x in (*first, *second)] == [x.dtype for x in tensors] * 2
        found.append([y, *first, *second])
    tolerance = 0.05 if torch.bfloat16 in MIXED[kind] else 0.005
    assert_close(*found, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("live", ["x", "weight", "bias"])
@pytest.mark.parametrize("kind", MIXED)
def test_tangents_of_mixed_layers(kind, live, device):
    *dtypes, out_dtype, of_bias = MIXED[kind]
    tensors = {
        name: (torch.randn(shape) / 4).to(device, dtype)
        for (name, shape), dtype in zip(
            {"x": (4, 6), "weight": (3, 6), "bias": (3,)}.items(), (*dtypes, of_bias), strict=True
        )
    }
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensors[live], torch.ones_like(tensors[live]))
        out = torch_tiled.linear(**(tensors | {live: dual}), out_dtype=out_dtype)
        tangent = forward_ad.unpack_dual(out).tangent
    wide = {name: x.float() for name, x in tensors.items()}
    _, expected = torch.func.jvp(
        lambda x: F.linear(*(wide | {live: x}).values()),
        (wide[live],),
        (torch.ones_like(wide[live]),),
    )
    assert_close(tangent, expected.to(out_dtype))


# The dtypes of x, weight and bias, and of the result, if they are not all the same.
LAYERS = [
    (dtypes, out_dtype)
    for dtypes in itertools.product((torch.bfloat16, torch.float32), repeat=3)
    for out_dtype in (torch.float32, torch.bfloat16)
    if dtypes[0] != dtypes[1] or (dtypes[0], out_dtype) == (torch.bfloat16, torch.float32)
]


@pytest.mark.parametrize("dtypes, out_dtype", LAYERS, ids=str)
def test_gradients_under_vmap(dtypes, out_dtype, device):
    """Each of x, weight and bias is mapped over or not, and differentiated within."""
    tensors = [
        (torch.randn(shape) / 4).to(device, dtype)
        for shape, dtype in zip(((4, 3, 5), (4, 2, 5), (4, 2)), dtypes, strict=True)
    ]

    def ours(*tensors):
        y = torch_tiled.linear(*tensors, activation="gelu", out_dtype=out_dtype)
        assert y.dtype == out_dtype
        return y.float().sin().sum()

    def theirs(*tensors):
        y = F.gelu(F.linear(*(x.float() for x in tensors)))
        return y.to(out_dtype).float().sin().sum()

    for mapped in itertools.product((0, None), repeat=3):
        if mapped == (None,) * 3:
            continue
        given = [x if dim == 0 else x[0] for x, dim in zip(tensors, mapped, strict=True)]
        found, expected = (vmap(grad(f, argnums=(0, 1, 2)), mapped)(*given) for f in (ours, theirs))
        assert [x.dtype for x in found] == list(dtypes)
        assert_close(found, expected, rtol=0.05, atol=0.05)


def loss(x, weight, bias, c):
    y = torch_tiled.linear(2 * x, weight, bias, activation="gelu")
    z = torch_tiled.matmul(x, weight.detach().bfloat16().mT, out_dtype=torch.float32)
    with torch.no_grad():
        c = torch_tiled.gemm_(c.clone(), x, weight.mT, beta=2)
        d = torch_tiled.matmul(x, weight.mT, out=torch.empty_like(c))
    return (y * (c + d + z)).sum()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(backend, device):
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=backend)
    for rows in (4, 7):
        x = torch.randn(rows, 6, device=device, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(5, 6, device=device, requires_grad=True)
        bias = torch.randn(5, device=device, dtype=torch.bfloat16, requires_grad=True)
        tensors = x, weight, bias
        grads = [
            torch.autograd.grad(f(*tensors, torch.ones(rows, 5, device=device)), tensors)
            for f in (compiled, loss)
        ]
        assert [grad.dtype for grad in grads[0]] == [t.dtype for t in tensors]
        assert_close(*grads)


def test_export(device):
    layer = torch_tiled.nn.Linear(6, 5, device=device, out_dtype=torch.float32).bfloat16()
    x = torch.randn(4, 6, device=device)
    for given in (x, x.bfloat16()):
        program = torch.export.export(layer, (given,))
        assert program.module()(given).dtype == torch.float32
        assert torch.equal(program.module()(given), layer(given))


def test_functionalization(device):
    a = torch.randn(4, 6, device=device, dtype=torch.bfloat16)
    b = torch.randn(6, 5, device=device)
    functional = torch.func.functionalize(torch_tiled.matmul)
    assert torch.equal(functional(a, b), torch_tiled.matmul(a, b))


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
def test_gradients_of_a_float32_result_by_mma(precision, device):
    """They are products of a float32 gradient, which algorithm "mma" does not take."""
    a, b = (torch.randn(shape, device=device).bfloat16() for shape in ((4, 160), (160, 5)))
    grads = []
    for x, y, options in (
        (a, b, {"algorithm": "mma", "precision": precision, "out_dtype": torch.float32}),
        (a.double(), b.double(), {"algorithm": "tiled"}),
    ):
        x, y = x.requires_grad_(), y.requires_grad_()
        out = torch_tiled.matmul(x, y, **options)
        grads.append(torch.autograd.grad(out.sum(), (x, y)))
    for found, exact in zip(*grads, strict=True):
        assert_close(found, exact.bfloat16())
