"""Layers and converted models in what PyTorch does with modules: autocast, torch.func, forward AD.

The operators alone are in test_autocast.py, test_transforms.py, test_compile.py and test_cuda.py.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.modules import (
    KINDS,
    TRAINED,
    make,
    plain_model,
    products_by_pytorch,
    results,
    serving_model,
    trainable,
)
from helpers.reference import assert_within, bound, linear_bound, product, rounded_bound
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.testing import assert_close
from torch.utils._pytree import tree_map

pytestmark = pytest.mark.usefixtures("splits_on_cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_of_these_is_torch_tiled_s(kind, device):
    model, x = serving_model(kind, device), torch.randn(9, 140, device=device)
    with Calls() as record:
        results(model, x)
    name = "tiled::linear.prepared" if kind == "frozen" else "tiled::linear"
    in_backward = 2 if kind == "frozen" else 4  # for inputs, and for weights
    assert sorted(record.names()) == [name] * 2 + ["tiled::matmul"] * in_backward
    assert not products_by_pytorch(record)


def watched(model):
    """Two lists that calls fill: the dtypes of modules, and inputs and outputs of products."""
    flow, products = [], []

    def note(module, inputs, output):
        flow.append((inputs[0].dtype, output.dtype))
        if isinstance(module, torch.nn.Linear):
            output.retain_grad()
            products.append((module, inputs[0], output))

    for module in model.modules():
        module.register_forward_hook(note)
    return flow, products


@pytest.mark.parametrize("region", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, region, device):
    theirs = plain_model(torch.nn.GELU(), torch.nn.LayerNorm(150), device=device)
    ours = make(kind, theirs)
    for p, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        p.requires_grad_(other.requires_grad)
    x = torch.randn(9, 140, device=device, requires_grad=True)
    flows = []
    for model in (theirs, ours):
        flow, products = watched(model)
        with torch.autocast(device, region):
            y = model(x)
        x.grad = None
        y.float().square().sum().backward()
        flows.append([*flow, x.grad.dtype, *(p.grad.dtype for p in trainable(model))])
    assert flows[0] == flows[1]
    assert y.dtype == region and flows[1][-1] == torch.float32
    for layer, x_in, y in products:
        weight, bias, of_y = layer.weight.detach().to(region), layer.bias.to(region), y.grad
        x_in = x_in.detach().to(region)
        exact = F.linear(x_in.double(), weight.double(), bias.double())
        assert_within(y, exact, linear_bound(x_in, weight, bias))
        assert of_y.dtype == region
        if layer.weight.requires_grad:
            assert_within(layer.weight.grad, product(of_y.mT, x_in), bound(of_y.mT, x_in))
        exact, size = of_y.double().sum(0), of_y.double().abs().sum(0)
        assert_within(layer.bias.grad, exact, rounded_bound(exact, size, 9, 1, region))
        if layer is ours[0]:
            assert_within(x.grad, product(of_y, weight), bound(of_y, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_nested_regions(kind, device):
    model, x = make(kind, plain_model(device=device)), torch.randn(9, 140, device=device)
    outside = model(x)
    with torch.autocast(device, torch.bfloat16):
        first = model(x)
        with torch.autocast(device, enabled=False):
            assert torch.equal(model(x), outside)
        with torch.autocast(device, torch.float16):
            assert model(x).dtype == torch.float16
        assert torch.equal(model(x), first)
    assert (outside.dtype, first.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(model(x), outside)


def scalar(f):
    return lambda *args: f(*args).sin().sum()


def other(tree):
    return tree_map(torch.cos, tree)


def pair(tree):
    return tree_map(lambda leaf: torch.stack([leaf, leaf.sin()]), tree)


# Each transforms f(parameters, x).
TRANSFORMS = {
    "functional_call": lambda f: lambda p, x: f(other(p), x),
    "grad": lambda f: grad(scalar(f), argnums=(0, 1)),
    "vjp": lambda f: lambda p, x: vjp(f, p, x)[1](f(p, x).cos()),
    "jvp": lambda f: lambda p, x: jvp(f, (p, x), (other(p), other(x))),
    "linearize": lambda f: lambda p, x: linearize(f, p, x)[1](other(p), other(x)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(scalar(f), argnums=(0, 1)),
    "vmap over inputs": lambda f: vmap(f, (None, 0)),
    "vmap over parameters": lambda f: lambda p, x: vmap(f, (0, None))(pair(p), x),
    "vmap over both": lambda f: lambda p, x: vmap(f)(pair(p), pair(x)),
    "per-sample gradients": lambda f: vmap(grad(scalar(f)), (None, 0)),
}


def for_derivatives(kind, device):
    theirs = plain_model(torch.nn.Tanh(), sizes=(4, 5, 3), device=device, dtype=torch.float64)
    return make(kind, theirs), theirs, torch.randn(2, 4, device=device, dtype=torch.float64)


def by_parameters(model):
    return lambda parameters, x: functional_call(model, parameters, (x,))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_transforms(kind, name, device):
    ours, theirs, x = for_derivatives(kind, device)
    parameters = {name: p.detach() for name, p in theirs.named_parameters()}
    expected = TRANSFORMS[name](by_parameters(theirs))(parameters, x)
    transformed = TRANSFORMS[name](by_parameters(ours))
    assert_close(transformed(parameters, x), expected)
    with Calls() as record:
        transformed(parameters, x)
    assert record.names() and not products_by_pytorch(record)


@pytest.mark.parametrize("kind", TRAINED)
def test_ensemble(kind, device):
    """The ensemble of PyTorch's tutorial: stacked parameters, and a model on the meta device."""
    models = [for_derivatives(kind, device)[0] for _ in range(3)]
    _, _, x = for_derivatives(kind, device)
    state = stack_module_state(models)
    empty = copy.deepcopy(models[0]).to("meta")

    def run(parameters, buffers, x):
        return functional_call(empty, (parameters, buffers), (x,))

    y = vmap(run, (0, 0, None))(*state, x)
    assert_close(y, torch.stack([model(x) for model in models]))
    gradients = vmap(grad(scalar(run)), (0, 0, None))(*state, x)
    for i, model in enumerate(models):
        expected = torch.autograd.grad(model(x).sin().sum(), trainable(model))
        assert_close([gradient[i] for gradient in gradients.values()], list(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_ad(kind, device):
    """Input and parameters have tangents, and so have the output and the gradients."""
    ours, theirs, x = for_derivatives(kind, device)
    x.requires_grad_()
    tangents = []
    for model in (ours, theirs):
        own = dict(ours.named_parameters())  # a frozen layer takes no tangent to its weight
        live = {name: p for name, p in model.named_parameters() if own[name].requires_grad}
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(p, p.cos()) for name, p in live.items()}
            dual = forward_ad.make_dual(x, x.cos())
            y = functional_call(model, duals, (dual,))
            gradients = torch.autograd.grad(y.sin().sum(), [x, *live.values()], create_graph=True)
            tangents.append([forward_ad.unpack_dual(z).tangent for z in (y, *gradients)])
    assert_close(*tangents)
