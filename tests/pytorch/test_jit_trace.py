"""torch.jit.trace: traces have gradients, and can be saved."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from helpers.reference import ACTIVATIONS
from torch.testing import assert_close

import torch_tiled

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}


def loaded(traced):
    """What was traced, after a way through a file."""
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    return torch.jit.load(file)


def operators(traced):
    """The operators in a graph that are not PyTorch's: ours, and Python functions."""
    kinds = [node.kind() for node in traced.inlined_graph.nodes()]
    return [kind for kind in kinds if not kind.startswith(("aten::", "prim::"))] + [
        kind for kind in kinds if kind == "prim::PythonOp"
    ]


def results(f, inputs):
    """The result of f, and its derivatives with respect to all inputs."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    assert y.requires_grad
    return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]


def assert_alike(results, expected):
    """On a GPU TorchScript fuses, so that the roundings of the largest terms differ."""
    for x, y in zip(results, expected, strict=True):
        assert_close(x, y, rtol=0, atol=64 * 2**-23 * y.abs().max().item())


def written(write):
    """A function that multiplies into a new tensor, and has gradients of something else."""

    def f(x, weight, bias):
        c = torch.ones(3, 5, device=x.device)
        write(c, x.detach(), weight.detach().mT)
        return c * x.sum() * weight.sum() + bias

    return f


def overridden(x, weight, bias):
    with torch_tiled.override():
        y = F.linear(x, weight, bias) + torch.addmm(bias, x, weight.mT)
        return y + torch.einsum("ij,kj->ik", x, weight)


def activated(activation):
    return lambda x, weight, bias: torch_tiled.linear(x, weight, bias, activation=activation)


MATMUL, GEMM, LINEAR = "tiled::matmul", "tiled::gemm_", "tiled::linear"
FUNCTIONS = {
    "matmul": (lambda x, w, b: torch_tiled.matmul(x, w.mT) + b, [MATMUL]),
    "algorithm": (lambda x, w, b: torch_tiled.matmul(x, w.mT, algorithm="tiled") + b, [MATMUL]),
    "precision": (lambda x, w, b: torch_tiled.matmul(x, w.mT, precision="ieee") + b, [MATMUL]),
    "out_dtype": (
        lambda x, w, b: (
            torch_tiled.matmul(x.half(), w.mT.half(), algorithm="tiled", out_dtype=torch.float) + b
        ),
        [MATMUL],
    ),
    "out": (written(lambda c, x, w: torch_tiled.matmul(x, w, out=c)), [MATMUL]),
    "gemm_": (written(lambda c, x, w: torch_tiled.gemm_(c, x, w, alpha=2, beta=0.5)), [GEMM]),
    "vector": (lambda x, w, b: torch_tiled.matmul(w, x[0]) + b, [MATMUL]),
    "batch": (lambda x, w, b: torch_tiled.matmul(x.expand(2, 3, 64), w.mT) + b, [MATMUL]),
    "override": (overridden, [LINEAR, LINEAR, MATMUL]),
}
for _activation in ACTIVATIONS:
    FUNCTIONS[f"linear {_activation}"] = (activated(_activation), [LINEAR])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_gradients(name, mode, device):
    f, expected_operators = FUNCTIONS[name]
    inputs = [torch.randn(shape, device=device) for shape in ((3, 64), (5, 64), (5,))]
    examples = [x.clone().requires_grad_(mode == "grad") for x in inputs]
    with MODES[mode]():
        traced = torch.jit.trace(f, examples)
    assert sorted(operators(traced)) == sorted(expected_operators)
    expected = results(f, inputs)
    for served in (traced, loaded(traced)):
        for _ in range(3):  # TorchScript optimizes what it has run
            assert_alike(results(served, inputs), expected)


@pytest.mark.parametrize("mode", MODES)
def test_prepared_operands(mode, device):
    """A prepared weight becomes a constant of the trace; the other operand has a gradient."""
    weight, x = torch.randn(5, 64, device=device), torch.randn(3, 64, device=device)
    b = torch_tiled.prepare(weight.mT)

    def f(x):
        y = torch_tiled.linear(x, b.mT, activation="relu")
        return y + torch_tiled.matmul(x, b, algorithm="fp16x3")

    if device == "cuda" and b.nbytes == 0:
        pytest.skip("no presplit operands on this GPU")
    with MODES[mode]():
        traced = torch.jit.trace(f, (x,))
    for served in (traced, loaded(traced)):
        assert_close(results(served, [x]), results(f, [x]))


def plain_model(device):
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)
    return torch.nn.Sequential(*layers).to(device, torch.float64)


def converted(model):
    torch_tiled.convert(model, strict=True)
    return model


def of_layers(model):
    first = torch_tiled.nn.Linear(64, 32, activation="relu")
    last = torch_tiled.nn.Linear(32, 5)
    for ours, theirs in ((first, model[0]), (last, model[2])):
        ours.weight, ours.bias = theirs.weight, theirs.bias
    return torch.nn.Sequential(first, torch.nn.Identity(), last)


def frozen(model):
    return torch_tiled.freeze(of_layers(model).eval())


def frozen_without_gradients(model):
    return torch_tiled.freeze(of_layers(model.requires_grad_(False)))


KINDS = [converted, of_layers, frozen, frozen_without_gradients]


def losses(model, x):
    """The losses of a few steps of training, in which every parameter has a gradient."""
    parameters = list(model.parameters())
    for p in parameters:
        p.requires_grad_()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    recorded = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        assert all(p.grad is not None for p in parameters)
        optimizer.step()
        recorded.append(loss.detach())
    return torch.stack(recorded)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_models_train_after_a_trace(kind, mode, device):
    theirs = plain_model(device)
    x = torch.randn(3, 64, device=device, dtype=torch.float64)
    expected = losses(copy.deepcopy(theirs), x)
    for through_file in (False, True):
        model = kind(copy.deepcopy(theirs))
        with MODES[mode]():
            traced = torch.jit.trace(model, (x,))
        served = loaded(traced) if through_file else traced
        assert_close(losses(served, x), expected)


def test_a_traced_frozen_layer_reads_what_is_loaded(device):
    """A traced layer takes another state_dict, where a split would serve the old weight."""
    layer, other = (torch_tiled.nn.Linear(64, 5, device=device) for _ in range(2))
    torch_tiled.freeze(layer)
    x = torch.randn(3, 64, device=device)
    with torch.no_grad():
        traced = torch.jit.trace(layer, (x,))
        traced.load_state_dict(other.state_dict(), strict=False)
        assert torch.equal(traced(x), other(x))
        layer.weight.add_(1)  # what the layer itself notices
        assert torch.equal(torch.jit.trace(layer, (x,))(x), torch_tiled.unfreeze(layer)(x))


def test_other_sizes(device):
    model = of_layers(plain_model(device))
    x = torch.randn(7, 64, device=device, dtype=torch.float64)
    assert torch.equal(torch.jit.trace(model, (x[:3],))(x), model(x))


def test_autocast(device):
    x = torch.randn(3, 64, device=device)
    model = converted(plain_model(device).float())
    with torch.autocast(device, dtype=torch.bfloat16):
        traced = torch.jit.trace(model, (x,))
        expected = model(x)
    y = traced(x)
    assert y.dtype == torch.bfloat16 and y.requires_grad and torch.equal(y, expected)


def test_freeze_and_script(device):
    """TorchScript takes a trace apart: torch.jit.freeze, and a script that calls it."""
    x = torch.randn(3, 64, device=device, dtype=torch.float64)
    model = converted(plain_model(device)).eval()
    traced = torch.jit.trace(model, (x,))

    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = traced

        def forward(self, x):
            return self.inner(x) * 2

    assert torch.equal(torch.jit.freeze(traced)(x), model(x))
    assert torch.equal(torch.jit.script(Around())(x), model(x) * 2)


TRANSFORMED = {
    "vmap": lambda f: torch.vmap(f),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_are_refused(name, device):
    """A trace sees Python's tensors, not those of a transform: a sentence says so."""
    x, w = torch.randn(3, 64, device=device), torch.randn(64, 5, device=device)
    f = TRANSFORMED[name](lambda x: torch_tiled.matmul(x, w))
    with pytest.raises(RuntimeError, match="tiled::matmul: torch.jit.trace does not record what"):
        torch.jit.trace(f, (x,))
