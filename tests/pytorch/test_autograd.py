"""Gradients, double gradients and tangents of the operators, and what autograd must not do."""

import functools
import weakref

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.complex_operands import VIEWS as LAZY_VIEWS
from helpers.complex_operands import every_complex
from helpers.reference import ACTIVATIONS, NAMED, takes
from helpers.thinning import pairwise
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.float64, requires_grad=True)

# Every pair of ranks from 1 to 4, broadcast both ways, then empty dimensions and K == 0.
A_OF_RANK = {1: (3,), 2: (2, 3), 3: (2, 2, 3), 4: (2, 1, 2, 3)}
B_OF_RANK = {1: (3,), 2: (3, 2), 3: (2, 3, 2), 4: (1, 2, 3, 2)}
SHAPES = [(a, b) for a in A_OF_RANK.values() for b in B_OF_RANK.values()] + [
    ((1, 2, 3), (2, 3, 2)),
    ((2, 2, 3), (1, 3, 2)),
    ((1, 1, 2, 3), (2, 3, 2)),
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((2, 0), (0, 3)),
    ((0,), (0,)),
    ((2, 2, 0), (0, 3)),
    ((0, 2, 3), (3, 2)),
]


every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
KINDS = [*((torch.float64, name) for name in ACTIVATIONS), (torch.complex128, "none")]
VIEWS = LAZY_VIEWS | {"adjoint": lambda x: x.mT.contiguous().mH.conj()}
complex_randn = functools.partial(randn, dtype=torch.complex128)


def check_derivatives(f, inputs):
    is_real = not inputs[0].is_complex()
    gradcheck(
        f,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=is_real,
        check_undefined_grad=True,
    )
    gradgradcheck(f, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)
    if is_real:
        gradgradcheck(f, inputs, check_batched_grad=True)


@every_dtype
@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_matmul_derivatives(a_shape, b_shape, dtype, device):
    inputs = (randn(*shape, dtype=dtype, device=device) for shape in (a_shape, b_shape))
    check_derivatives(torch_tiled.matmul, tuple(inputs))


FLOAT64_ALGORITHMS = [name for name in NAMED if takes(name, torch.float64)]


@every_dtype
@pytest.mark.parametrize("algorithm", FLOAT64_ALGORITHMS)
def test_matmul_derivatives_by_algorithm(algorithm, dtype, device):
    inputs = tuple(randn(*shape, dtype=dtype, device=device) for shape in ((2, 3, 2), (2, 4)))
    options = {"algorithm": algorithm, "precision": "ieee"}
    check_derivatives(lambda a, b: torch_tiled.matmul(a, b.conj(), **options), inputs)
    with Calls() as record:
        torch_tiled.matmul(*inputs, **options).abs().square().sum().backward()
    calls = [given for name, _, given in record.calls if name.startswith("tiled::")]
    assert len(calls) == 3
    assert all(options.items() <= given.items() for given in calls)


@pairwise
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype, activation", KINDS, ids=str)
@pytest.mark.parametrize("x_shape", [(3,), (4, 3), (2, 2, 3), (0, 3)], ids=str)
def test_linear_derivatives(x_shape, dtype, activation, bias, device):
    shapes = (x_shape, (2, 3), (2,))[: 3 if bias else 2]
    inputs = [randn(*shape, dtype=dtype, device=device) for shape in shapes]
    check_derivatives(lambda *ts: torch_tiled.linear(*ts, activation=activation), inputs)


@pytest.mark.parametrize("live", ["x", "weight", "bias"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_linear_derivatives_of_one_argument(live, activation, device):
    tensors = {"x": (4, 3), "weight": (2, 3), "bias": (2,)}
    tensors = {
        name: randn(*shape, device=device, requires_grad=name == live)
        for name, shape in tensors.items()
    }
    check_derivatives(
        lambda t: torch_tiled.linear(**(tensors | {live: t}), activation=activation),
        (tensors[live],),
    )


@pytest.mark.parametrize("b_view", VIEWS)
@pytest.mark.parametrize("a_view", VIEWS)
def test_matmul_derivatives_of_lazy_views(a_view, b_view, device):
    inputs = complex_randn(2, 2, 3, device=device), complex_randn(3, 2, device=device)
    check_derivatives(lambda a, b: torch_tiled.matmul(VIEWS[a_view](a), VIEWS[b_view](b)), inputs)


@pytest.mark.parametrize("view", VIEWS)
def test_linear_derivatives_of_lazy_views(view, device):
    change = VIEWS[view]
    inputs = [complex_randn(*shape, device=device) for shape in ((4, 3), (2, 3), (1, 2))]
    check_derivatives(
        lambda x, weight, bias: torch_tiled.linear(change(x), change(weight), change(bias)[0]),
        inputs,
    )


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
    tensors = [complex_randn(*s, device=device, dtype=dtype) for s in ((5, 4, 8), (3, 8), (3,))]
    losses = [LOSSES[name](f(*tensors)) for f in (torch_tiled.linear, F.linear)]
    assert_close(*(torch.autograd.grad(loss, tensors) for loss in losses))
    a, b = tensors[0], tensors[1].detach().mH.contiguous().requires_grad_()
    losses = [LOSSES[name](f(a, b)) for f in (torch_tiled.matmul, torch.matmul)]
    assert_close(*(torch.autograd.grad(loss, (a, b)) for loss in losses))


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
    inputs = [complex_randn(*shape, device=device) for shape in ((4, 3), (2, 3), (2, 1))]
    assert inputs[0].conj().imag.is_neg()

    def ours(x, weight, bias):
        x, weight, bias = (each.conj().imag for each in (x, weight, bias))
        return torch_tiled.linear(torch_tiled.matmul(x, weight.mT), weight.mT, bias[0].expand(3))

    inputs[2] = complex_randn(1, 1, device=device)
    check_derivatives(ours, inputs)


# --- what is computed, and what is kept ----------------------------------------------------------


@pytest.mark.parametrize(
    "a_shape, b_shape, folded",
    [
        ((8, 5, 3), (3, 2), ("b", (3, 40), (40, 2))),
        ((2, 4, 5, 3), (3, 2), ("b", (3, 40), (40, 2))),
        ((8, 5, 3), (1, 3, 2), ("b", (3, 40), (40, 2))),
        ((5, 3), (8, 3, 2), ("a", (5, 16), (16, 3))),
        ((8, 5, 3), (3,), ("b", (3, 40), (40, 1))),
    ],
    ids=str,
)
def test_gradient_of_a_broadcast_operand_is_one_product(a_shape, b_shape, folded, device):
    name, *factors = folded
    operands = {
        "a": randn(*a_shape, device=device, requires_grad=name == "a"),
        "b": randn(*b_shape, device=device, requires_grad=name == "b"),
    }
    out = torch_tiled.matmul(**operands)
    with Calls() as record:
        out.sum().backward()
    assert record.names() == ["tiled::matmul"]
    (args,) = (args for op, args, _ in record.calls if op == "tiled::matmul")
    assert [tuple(arg.shape) for arg in args] == factors
    assert operands[name].grad.shape == operands[name].shape
    assert operands[name].grad.is_contiguous()


def test_gradient_of_linear_is_two_products(device):
    x, weight, bias = (randn(*s, device=device) for s in ((2, 4, 3), (5, 3), (5,)))
    out = torch_tiled.linear(x, weight, bias)
    with Calls() as record:
        out.sum().backward()
    assert record.names() == ["tiled::matmul"] * 2
    assert weight.grad.is_contiguous()


@pytest.mark.parametrize("inner", [False, True], ids=["leaf", "inner"])
@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_gradients_that_nobody_asks_for_are_not_computed(op, inner, device):
    """A gradient penalty calls torch.autograd.grad(y, x) of a weight that requires a gradient."""
    x, weight = randn(4, 3, device=device), randn(3, 3, device=device)
    factor = x * 1 if inner else x
    y = getattr(torch_tiled, op)(factor, weight)
    for inputs in (x, weight), (x,), (weight,):
        with Calls() as record:
            gradients = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
        assert record.names() == ["tiled::matmul"] * len(inputs)
        for gradient, tensor in zip(gradients, inputs, strict=True):
            theirs = torch.matmul(x, weight if op == "matmul" else weight.mT)
            assert_close(gradient, *torch.autograd.grad(theirs.sum(), tensor))


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_nobody_watching_and_somebody_give_the_same(op, device):
    """The fast path bypasses the operators' Python kernels; a dispatch mode turns it off."""
    x, weight = randn(4, 3, device=device), randn(3, 3, device=device)

    def run():
        y = getattr(torch_tiled, op)(x, weight)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y, *torch.autograd.grad(first.square().sum(), (x, weight))

    alone = run()
    with Calls() as record:
        watched = run()
    assert set(record.names()) == {"tiled::matmul", f"tiled::{op}"}
    assert all(torch.equal(*pair) for pair in zip(alone, watched, strict=True))


def saved_by(f):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        f()
    return saved


@pytest.mark.parametrize("needs", ["a", "b", "ab"])
def test_matmul_saves_an_operand_only_for_the_other(needs, device):
    a = randn(2, 3, device=device, requires_grad="a" in needs)
    b = randn(3, 4, device=device, requires_grad="b" in needs)
    saved = {t.data_ptr() for t in saved_by(lambda: torch_tiled.matmul(a, b))}
    expected = {"a": {b}, "b": {a}, "ab": {a, b}}[needs]
    assert saved == {t.data_ptr() for t in expected}


@pytest.mark.parametrize(
    "needs, kept", [("x", {"weight"}), ("weight", {"x"}), ("bias", set())], ids=str
)
def test_linear_saves_an_operand_only_for_the_other(needs, kept, device):
    tensors = {"x": (4, 3), "weight": (2, 3), "bias": (2,)}
    tensors = {
        name: randn(*shape, device=device, requires_grad=name == needs)
        for name, shape in tensors.items()
    }
    saved = {t.data_ptr() for t in saved_by(lambda: torch_tiled.linear(**tensors))}
    assert saved == {tensors[name].data_ptr() for name in kept}


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_an_operand_that_is_not_kept_is_freed(activation, device):
    x, weight = randn(4, 3, device=device), randn(2, 3, device=device, requires_grad=False)
    for f in (
        lambda a: torch_tiled.matmul(a, weight.mT),
        lambda a: torch_tiled.linear(a, weight, activation=activation),
    ):
        operand = x * 1
        freed = weakref.ref(operand)
        out = f(operand)
        del operand
        assert freed() is None
        assert out.requires_grad


def test_relu_keeps_its_result_and_no_argument(device):
    x, weight = randn(4, 3, device=device), randn(2, 3, device=device)
    with Calls() as record:
        saved = saved_by(lambda: torch_tiled.linear(x, weight, activation="relu"))
    assert record.names() == ["tiled::linear"]
    assert "aten::relu" not in record.names("aten")
    assert sorted(t.numel() for t in saved) == sorted((x.numel(), weight.numel(), 8))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_is_fused_where_no_gradient_needs_its_argument(activation, device):
    x, weight = randn(4, 3, device=device), randn(2, 3, device=device)
    launched = []
    for grad_mode in (False, True):
        with Calls() as record, torch.set_grad_enabled(grad_mode):
            y = torch_tiled.linear(x, weight, activation=activation)
        assert record.names() == ["tiled::linear"]
        assert_close(y.detach(), ACTIVATIONS[activation](F.linear(x, weight)).detach())
        (kwargs,) = (kwargs for op, _, kwargs in record.calls if op == "tiled::linear")
        launched.append(kwargs.get("activation", "none"))
    with_gradient = activation if activation == "relu" else "none"
    assert launched == [activation, with_gradient]


def test_options_reach_the_products_of_backward(device):
    a, b, weight = (randn(*s, device=device) for s in ((2, 3), (3, 4), (5, 4)))
    options = {"algorithm": "tiled16", "precision": "ieee"}
    with Calls() as record:
        out = torch_tiled.linear(torch_tiled.matmul(a, b, **options), weight, **options)
        grads = torch.autograd.grad(out.sum(), (a, b, weight), create_graph=True)
        sum(g.square().sum() for g in grads).backward()
    products = [kwargs for op, _, kwargs in record.calls if op.startswith("tiled::")]
    assert len(products) > 6
    assert all(kwargs == options for kwargs in products)


def test_nothing_is_recorded_without_need(device):
    a, b = randn(2, 3, device=device), randn(3, 4, device=device)
    for op in (torch_tiled.matmul, torch.ops.tiled.matmul):
        with torch.no_grad():
            assert not op(a, b).requires_grad
        assert not op(a.detach(), b.detach()).requires_grad
        assert op(a, b.detach()).requires_grad
        with torch.inference_mode():
            assert op(a, b).is_inference()


def test_inference_tensors_outside_inference_mode(device):
    with torch.inference_mode():
        a = torch.ones(2, 3, device=device)
    b = torch.ones(3, 4, device=device)
    assert_close(torch_tiled.matmul(a, b), torch.full((2, 4), 3.0, device=device))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        torch_tiled.matmul(a, b.requires_grad_())


def test_checkpoint(device):
    x, weight = randn(4, 3, device=device), randn(5, 3, device=device)

    def f(x, weight):
        return torch_tiled.linear(x, weight, activation="gelu").sum()

    ours = torch.autograd.grad(checkpoint(f, x, weight, use_reentrant=False), (x, weight))
    assert_close(ours, torch.autograd.grad(f(x, weight), (x, weight)))


def test_zero_tensors(device):
    zero = torch._efficientzerotensor((2, 3), device=device, dtype=torch.float64)
    for b in (randn(3, 4, device=device), randn(3, 4, device=device, requires_grad=False)):
        assert_close(torch_tiled.matmul(zero, b).detach(), torch.zeros_like(zero @ b).detach())
    c = torch.ones(2, 4, device=device, dtype=torch.float64)
    assert_close(torch_tiled.gemm_(c, zero, b), torch.ones_like(c))


# --- operators that write refuse derivatives and count as writes ---------------------------------


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
