"""Complex layers, conversions, overrides and prepared operands."""

import copy
import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.complex_operands import VIEWS, every_complex
from helpers.copies import saved
from helpers.overriding import Products
from helpers.reference import assert_same, assert_within, linear_bound, product
from torch.testing import assert_close

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.complex64)


# --- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
@every_complex
def test_gemm_of_complex_factors(dtype, view, device):
    change = VIEWS[view]
    a, b = randn(3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    for alpha, beta in ((1 + 2j, 0.5), (2, -1j), (0, 1j), (1j, 0), (1.5, 0.25)):
        memory = randn(3, 5, device=device, dtype=dtype)
        expected = change(alpha * (change(a) @ b) + beta * change(memory))
        version = memory._version
        torch_tiled.gemm_(change(memory), change(a), b, alpha=alpha, beta=beta)
        assert_close(memory, expected.resolve_conj().resolve_neg())
        assert memory._version == version + 1


@pytest.mark.parametrize("name", ["complex64", "complex128", "float32", "int64"])
def test_factors_of_numpy(name, device):
    numpy = pytest.importorskip("numpy")
    a, b = randn(3, 4, device=device), randn(4, 5, device=device)
    alpha = numpy.dtype(name).type(1 + 2j if name.startswith("complex") else 3)
    c = torch_tiled.gemm_(randn(3, 5, device=device), a, b, alpha=alpha, beta=0)
    assert_close(c, complex(alpha) * (a @ b))


@pytest.mark.parametrize("weight_view", VIEWS)
@pytest.mark.parametrize("view", VIEWS)
@every_complex
def test_plain_calls_of_lazy_views(dtype, view, weight_view, device):
    """Calls without options, with and without gradients, which take the fast path."""
    x, weight, bias = (
        randn(*shape, device=device, dtype=dtype) for shape in ((3, 40), (5, 40), (5,))
    )
    x, weight, bias = VIEWS[view](x), VIEWS[weight_view](weight), VIEWS[view](bias)
    exact = product(x, weight.mT) + bias.to(torch.complex128)
    limit = linear_bound(x, weight, bias)
    for requires_grad in (False, True):
        weight = weight.detach().requires_grad_(requires_grad)
        result = torch_tiled.linear(x, weight, bias)
        assert not result.is_conj() and not result.is_neg()
        if device != "cpu":  # PyTorch computes on the CPU, and rounds the product first
            assert_within(result.detach(), exact, limit)
        assert_close(result.detach(), exact.to(dtype))
        assert_close(torch_tiled.matmul(x, weight.mT), x @ weight.mT)


@pytest.mark.parametrize("algorithm", ["auto", "naive"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@every_complex
def test_lazy_views_in_a_dispatch_mode(dtype, mode, view, algorithm, device):
    """PyTorch excludes the keys of lazy views where a TorchDispatchMode runs an operator."""
    a, b, memory = (
        VIEWS[view](randn(*s, device=device, dtype=dtype)) for s in ((3, 40), (40, 5), (3, 5))
    )
    expected = a @ b
    c, out = (VIEWS[view](torch.zeros_like(memory)) for _ in range(2))
    with mode(), Products():
        results = [
            torch_tiled.matmul(a, b, algorithm=algorithm),
            torch_tiled.linear(a, b.mT, algorithm=algorithm),
            torch_tiled.gemm_(c, a, b, algorithm=algorithm),
            torch_tiled.matmul(a, b, algorithm=algorithm, out=out),
        ]
        row = torch_tiled.matmul(a[0], b, algorithm=algorithm)
        biased = torch_tiled.linear(a, b.mT, memory[0], algorithm=algorithm)
    for result in (*results, c):
        assert_close(result.resolve_conj().resolve_neg(), expected)
    assert_close(row, a[0] @ b)
    assert_close(biased, expected + memory[0])


# --- layers --------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """Complex layers with an activation of magnitudes."""

    def __init__(self, linear, dtype, device):
        super().__init__()
        self.first = linear(6, 8, dtype=dtype, device=device)
        self.second = linear(8, 3, bias=False, dtype=dtype, device=device)

    def forward(self, x):
        y = self.first(x)
        return self.second(y / (1 + y.abs())).abs()


def losses_of(model, x):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@every_complex
@pytest.mark.parametrize("how", ["layers", "convert", "override"])
def test_complex_models_train_to_the_same_losses(how, dtype, device):
    theirs = Model(torch.nn.Linear, dtype, device)
    ours = copy.deepcopy(theirs)
    x = randn(16, 6, device=device, dtype=dtype)
    if how == "layers":
        ours = Model(torch_tiled.nn.Linear, dtype, device)
        ours.load_state_dict(theirs.state_dict())
    if how == "convert":
        assert torch_tiled.convert(ours, strict=True).changed == ["first", "second"]
    if how == "override":
        with torch_tiled.override(strict=True), Products() as record:
            losses = losses_of(ours, x)
    else:
        with Products() as record:
            losses = losses_of(ours, x)
    theirs_count, ours_count = record.products()
    assert theirs_count == 0 and ours_count == 5 * 5  # two forward and three backward
    assert losses[-1] < losses[0]
    assert_close(losses, losses_of(theirs, x))


def test_no_layer_of_complex32():
    with pytest.raises(RuntimeError, match="dtype is torch.complex32.*choose torch.complex64"):
        torch_tiled.nn.Linear(6, 3, dtype=torch.complex32)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "silu"])
def test_a_complex_layer_has_no_activation(activation, device):
    sentence = f'activation "{activation}" is one of real numbers, and'
    with pytest.raises(RuntimeError, match=f"{sentence} dtype is torch.complex64; choose none"):
        torch_tiled.nn.Linear(6, 3, dtype=torch.complex64, device=device, activation=activation)
    layer = torch_tiled.nn.Linear(6, 3, device=device, activation=activation)
    layer, x = layer.to(torch.complex64), randn(2, 6, device=device)
    for requires_grad in (True, False):
        layer.requires_grad_(requires_grad)
        with pytest.raises(RuntimeError, match=f"{sentence} x is torch.complex64; choose none"):
            layer(x)


@every_complex
def test_frozen_layers(dtype, device):
    layer = torch_tiled.nn.Linear(300, 5, dtype=dtype, device=device)
    x = randn(4, 300, device=device, dtype=dtype)
    with torch.no_grad():
        expected = layer(x.conj())
        torch_tiled.freeze(layer)
        assert_same(layer(x.conj()), expected)
        layer.weight.mul_(1j)
        expected = torch_tiled.linear(x, layer.weight, layer.bias)
        assert_same(layer(x), expected)


# --- override ------------------------------------------------------------------------------------

FUNCTIONS = {
    "matmul": lambda a, b, c: a @ b,
    "mm": lambda a, b, c: torch.mm(a, b),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "mv": lambda a, b, c: torch.mv(a, b[:, 0]),
    "inner": lambda a, b, c: torch.inner(a, b.mT),
    "addmm": lambda a, b, c: torch.addmm(c, a, b, alpha=1 + 2j, beta=0.5j),
    "addmm_": lambda a, b, c: c.clone().addmm_(a, b, alpha=1j),
    "baddbmm": lambda a, b, c: torch.baddbmm(c, a[None], b[None], beta=2j),
    "addmv": lambda a, b, c: torch.addmv(c[:, 0], a, b[:, 0]),
    "linear": lambda a, b, c: F.linear(a, b.mT, c[0]),
    "einsum": lambda a, b, c: torch.einsum("ij,jk,lk->il", a, b, c),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", FUNCTIONS)
@every_complex
def test_override(dtype, name, view, device):
    tensors = [randn(*s, device=device, dtype=dtype) for s in ((3, 4), (4, 5), (3, 5))]
    a, b, c = map(VIEWS[view], tensors)
    f = FUNCTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch_tiled.override(strict=True, precision="ieee"), Products() as record:
            result = f(a, b, c)
    theirs, ours = record.products()
    assert (theirs, ours) == (0, 2 if name == "einsum" else 1)
    options = [given for called, _, given in record.calls if called.startswith("tiled::")]
    assert all(given.get("precision") == "ieee" for given in options)
    assert_close(result, f(a, b, c).resolve_conj().resolve_neg())


@pytest.mark.parametrize("name", ["matmul", "linear", "baddbmm", "addmm", "einsum"])
@every_complex
def test_autocast_leaves_complex_numbers_alone(dtype, name, device):
    tensors = [randn(*s, device=device, dtype=dtype) for s in ((3, 4), (4, 5), (3, 5))]
    f, (a, b, c) = FUNCTIONS[name], tensors
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = f(a, b, c)
        with torch_tiled.override():
            result = f(a, b, c)
        direct = torch_tiled.linear(a, b.mT, c[0])
        prepared = torch_tiled.matmul(a, torch_tiled.prepare(b))
    assert_close(result, expected)
    assert_close(direct, a @ b + c[0])
    assert_close(prepared, a @ b)


# --- prepare -------------------------------------------------------------------------------------


def prepared_algorithms(dtype):
    return ("tiled", "fp16x3") if dtype == torch.complex64 else ("tiled", "f64")


@pytest.mark.parametrize("a_view", VIEWS)
@pytest.mark.parametrize("b_view", VIEWS)
@every_complex
def test_prepared_operands_change_no_bits(dtype, a_view, b_view, device):
    a, b = randn(5, 150, device=device, dtype=dtype), randn(150, 7, device=device, dtype=dtype)
    a, b, bias = VIEWS[a_view](a), VIEWS[b_view](b), VIEWS[a_view](a[0, :7])
    prepared = torch_tiled.prepare(b)
    for algorithm in prepared_algorithms(dtype):
        result = torch_tiled.matmul(a, prepared, algorithm=algorithm)
        assert_same(result, torch_tiled.matmul(a, b, algorithm=algorithm))
        layer = torch_tiled.linear(a, prepared.mT, bias, algorithm=algorithm)
        assert_same(layer, torch_tiled.linear(a, b.mT, bias, algorithm=algorithm))


@pytest.mark.parametrize("view", VIEWS)
@every_complex
def test_prepared_operands_are_saved(dtype, view, device):
    a, b = randn(5, 150, device=device, dtype=dtype), randn(150, 7, device=device, dtype=dtype)
    prepared = torch_tiled.prepare(VIEWS[view](b))
    for other in (saved(prepared, weights_only=True), copy.deepcopy(prepared)):
        assert other.nbytes == prepared.nbytes
        for algorithm in prepared_algorithms(dtype):
            results = [
                torch_tiled.matmul(a, each, algorithm=algorithm) for each in (prepared, other)
            ]
            assert_same(*results)


def test_prepared_bytes():
    b = randn(2048, 64, device="cpu")
    assert 4 * b.nbytes <= torch_tiled.prepare(b).nbytes < 4.01 * b.nbytes
    b = b.to(torch.complex128)
    assert torch_tiled.prepare(b).nbytes == 0  # kernels read it as it lies


def test_gradients_beside_a_prepared_operand(device):
    a, b = randn(5, 150, device=device, requires_grad=True), randn(150, 7, device=device)
    for view in VIEWS.values():
        results = [torch_tiled.matmul(a, f(view(b))) for f in (torch_tiled.prepare, lambda x: x)]
        grads = [torch.autograd.grad(y.abs().square().sum(), a) for y in results]
        assert_close(*grads)
    with pytest.raises(RuntimeError, match="a prepared operand has no derivative"):
        torch_tiled.matmul(a, torch_tiled.prepare(b.requires_grad_()))
