"""Prepared operands under autograd, transforms, autocast, torch.compile and torch.export."""

import itertools

import pytest
import torch
from helpers.calls import Calls
from helpers.chaining import flat, two_of_each
from helpers.compiling import VIEWS, count_compilations
from helpers.presplit import assert_same_bits, presplit_algorithm, takes_presplit
from helpers.reference import ACTIVATIONS
from helpers.thinning import each_value
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled

ops = torch.ops.tiled

pytestmark = pytest.mark.usefixtures("fresh_compiler")

# --- autograd and transforms ---------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_the_unprepared(device, activation):
    options = {"algorithm": presplit_algorithm(device), "activation": activation}
    weight = torch.randn(70, 140, device=device)
    prepared = torch_tiled.prepare(weight.mT).mT
    x = torch.randn(2, 9, 140, device=device, requires_grad=True)
    bias = torch.randn(70, device=device, requires_grad=True)
    results = []
    for operand in (prepared, weight):
        y = torch_tiled.linear(x, operand, bias, **options)
        first = torch.autograd.grad(y.sin().sum(), (x, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), (x, bias))
        results.append((y, *first, *second))
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours.detach(), theirs.detach())


@pytest.mark.parametrize("a_shape", [(140,), (9, 140), (2, 3, 140)], ids=str)
def test_gradients_of_matmul_are_those_of_the_unprepared(device, a_shape):
    b = torch.randn(140, 30, device=device)
    a = torch.randn(*a_shape, device=device, requires_grad=True)
    options = {"algorithm": presplit_algorithm(device)}
    grads = []
    for operand in (torch_tiled.prepare(b), b):
        loss = torch_tiled.matmul(a, operand, **options).sin().sum()
        grads += torch.autograd.grad(loss, a)
    assert_same_bits(*grads)


def test_backward_keeps_the_operand_and_nothing_else(device):
    b = torch.randn(140, 30, device=device)
    prepared = torch_tiled.prepare(b)
    a = torch.randn(9, 140, device=device, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = torch_tiled.matmul(a, prepared, algorithm="tiled16", precision="ieee")
    assert [t.data_ptr() for t in saved] == [b.data_ptr()]
    with Calls() as record:
        out.sum().backward()
    ((_, _, options),) = (call for call in record.calls if call[0] == "tiled::matmul")
    assert options == {"algorithm": "tiled16", "precision": "ieee"}


TRANSFORMS = {
    "grad": lambda f: grad(lambda a: f(a).sin().sum()),
    "vjp": lambda f: lambda a: vjp(f, a)[1](f(a).cos()),
    "jvp": lambda f: lambda a: jvp(f, (a,), (a.cos(),)),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda a: f(a).sin().sum()),
    "vmap": lambda f: lambda a: vmap(f)(*two_of_each(a)),
    "vmap last": lambda f: lambda a: vmap(f, -1, -1)(torch.stack([a, a.cos()], -1)),
}


@each_value
@pytest.mark.parametrize("activation", [None, "none", "relu", "gelu"])
@pytest.mark.parametrize("a_shape", [(129,), (2, 129)], ids=str)
def test_pairs_of_transforms(device, a_shape, activation):
    """Only three elements of a vary, since Jacobians of long rows are large."""
    b, bias = torch.randn(129, 2, device=device), torch.randn(2, device=device)
    a = torch.randn(*a_shape, device=device)
    options = {"algorithm": presplit_algorithm(device)}

    def f(operand):
        def g(part):  # part has three elements
            x = torch.cat([part, a.reshape(-1)[part.numel() :]]).reshape(a_shape)
            if activation is None:
                return torch_tiled.matmul(x, operand, **options)
            return torch_tiled.linear(x, operand.mT, bias, activation=activation, **options)

        return g

    prepared = torch_tiled.prepare(b)
    for outer, inner in itertools.product(TRANSFORMS, repeat=2):
        ours, theirs = (
            flat(TRANSFORMS[outer](flat(TRANSFORMS[inner](flat(f(operand))))))
            for operand in (prepared, b)
        )
        start = a.reshape(-1)[:3]
        torch.testing.assert_close(ours(start), theirs(start), msg=f"{outer} of {inner}")


def test_vmap(device):
    b = torch.randn(140, 30, device=device)
    prepared = torch_tiled.prepare(b)
    options = {"algorithm": presplit_algorithm(device)}
    for shape, dim in (((5, 140), 0), ((140, 5), 1), ((9, 5, 140), 1), ((2, 9, 140, 5), 3)):
        a = torch.randn(*shape, device=device)
        with Calls() as record:
            ours = vmap(lambda a, p: torch_tiled.matmul(a, p, **options), (dim, None))(a, prepared)
        assert record.names() == ["tiled::matmul.prepared"]
        moved = a.movedim(dim, 0)
        assert_same_bits(ours, torch.stack([torch_tiled.matmul(x, b, **options) for x in moved]))
        with Calls() as record:
            y = vmap(lambda x: torch_tiled.linear(x, prepared.mT, **options), dim)(a)
        assert record.names() == ["tiled::linear.prepared"]
        assert_same_bits(y, ours)


def test_vmap_over_what_was_prepared(device):
    options = {"algorithm": presplit_algorithm(device)}
    bs, a, biases = (torch.randn(*s, device=device) for s in ((3, 140, 30), (9, 140), (3, 30)))
    parts = [torch.stack(t) for t in zip(*(ops.prepare(b) for b in bs), strict=True)]

    def product(b, hi_lo, inverse_scales):
        return ops.matmul.prepared(a, b, hi_lo, inverse_scales, **options)

    expected = torch.stack([torch_tiled.matmul(a, b, **options) for b in bs])
    assert_same_bits(vmap(product)(bs, *parts), expected)

    def layer(b, hi_lo, inverse_scales, bias):
        return ops.linear.prepared(
            a, b.mT, hi_lo, inverse_scales, bias, activation="relu", **options
        )

    for dims in ((0, 0, 0, 0), (None, None, None, 0)):
        args = (bs, *parts, biases) if dims[0] == 0 else (bs[0], parts[0][0], parts[1][0], biases)
        expected = torch.stack(
            [
                torch_tiled.linear(
                    a, (bs[0] if dims[0] is None else bs[i]).mT, biases[i], activation="relu"
                )
                for i in range(3)
            ]
        )
        assert_close(vmap(layer, dims)(*args), expected)
    with pytest.raises(RuntimeError, match=r"tiled::prepare: under vmap b of shape \(3, 140, 30\)"):
        vmap(torch_tiled.prepare)(bs)


def test_autocast_computes_the_unprepared(device):
    a, b, bias = (torch.randn(*s, device=device) for s in ((9, 140), (140, 30), (30,)))
    prepared = torch_tiled.prepare(b)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=dtype):
            product = torch_tiled.matmul(a, prepared)
            assert product.dtype == dtype
            assert_same_bits(product, torch_tiled.matmul(a, b))
            y = torch_tiled.linear(a, prepared.mT, bias, activation="relu")
            assert_same_bits(y, torch_tiled.linear(a, b.mT, bias, activation="relu"))
            x = a.clone().requires_grad_()
            torch_tiled.matmul(x, prepared).sum().backward()
            assert x.grad.dtype == torch.float32
            assert torch_tiled.prepare(b).nbytes == prepared.nbytes


# --- shapes without data, torch.compile, torch.export --------------------------------------------


@pytest.mark.parametrize("shape", [(128, 5), (127, 5), (1025, 130), (128, 0), (0, 5)], ids=str)
def test_meta(device, shape):
    b = torch.randn(*shape, device=device)
    if takes_presplit(device):
        for real, meta in zip(ops.prepare(b), ops.prepare(b.to("meta")), strict=True):
            assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, (1,))
    a = torch.randn(2, 3, shape[0], device="meta")
    prepared = torch_tiled.prepare(b.to("meta"))
    assert torch_tiled.matmul(a, prepared).shape == (2, 3, shape[1])
    assert torch_tiled.linear(a, prepared.mT).shape == (2, 3, shape[1])


@pytest.mark.parametrize("view", VIEWS)
def test_opcheck(device, view):
    make = VIEWS[view]
    b = make(129, 5, device=device)
    torch.library.opcheck(ops.prepare.default, (b,))
    hi_lo, inverse_scales = ops.prepare(b)
    bias = torch.randn(5, device=device)
    for live in (False, True):
        for shape in ((3, 129), (2, 3, 129)):
            a = make(*shape, device=device).detach().requires_grad_(live)
            args = (b, hi_lo, inverse_scales)
            torch.library.opcheck(ops.matmul.prepared, (a, *args))
            args = (b.mT, hi_lo, inverse_scales, bias)
            torch.library.opcheck(ops.linear.prepared, (a, *args), {"activation": "gelu"})


def test_flops(device):
    a, b = torch.randn(2, 9, 140, device=device), torch.randn(140, 30, device=device)
    prepared = torch_tiled.prepare(b)
    for call in (
        lambda: torch_tiled.matmul(a, prepared),
        lambda: torch_tiled.linear(a, prepared.mT),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * 2 * 9 * 140 * 30


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device, backend, dynamic):
    options = {"algorithm": presplit_algorithm(device)}

    def f(a, prepared, weight):
        y = torch_tiled.matmul(a * 2, prepared, **options)
        return torch_tiled.linear(y + 1, weight, activation="relu", **options)

    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for k, n in ((140, 70), (1030, 90)):
        b, weight = torch.randn(k, n, device=device), torch.randn(40, n, device=device)
        prepared = torch_tiled.prepare(b), torch_tiled.prepare(weight.mT).mT
        a = torch.randn(9, k, device=device, requires_grad=True)
        results = []
        for value in (compiled(a, *prepared), f(a, b, weight)):
            (a_grad,) = torch.autograd.grad(value, a, torch.ones_like(value))
            results.append((value.detach(), a_grad))
        for ours, theirs in zip(*results, strict=True):
            assert_same_bits(ours, theirs)


def test_dynamic_shapes_need_no_guards_of_ours(device):
    sizes = [(4, 66, 140), (7, 80, 190), (10, 300, 1200)]
    inputs = [
        (torch.randn(m, k, device=device), torch_tiled.prepare(torch.randn(k, n, device=device)))
        for m, n, k in sizes
    ]
    assert count_compilations(torch_tiled.matmul, inputs) == 1
    torch.compiler.reset()
    assert count_compilations(lambda a, p: torch_tiled.linear(a, p.mT), inputs) == 1


def test_prepare_when_compiled(device):
    compiled = torch.compile(torch_tiled.prepare, fullgraph=True, backend="aot_eager")
    b = torch.randn(140, 30, device=device)
    (ours, our_spec), (theirs, spec) = map(tree_flatten, (compiled(b), torch_tiled.prepare(b)))
    assert our_spec == spec
    for x, y in zip(ours, theirs, strict=True):
        assert_same_bits(x, y)


class Product(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, a, prepared):
        return torch_tiled.matmul(a, prepared, **self.options)


@pytest.mark.parametrize("strict", [False, True])
def test_export(device, strict, tmp_path):
    options = {"algorithm": presplit_algorithm(device)}
    b = torch.randn(140, 30, device=device)
    args = (torch.randn(9, 140, device=device), torch_tiled.prepare(b))
    program = torch.export.export(Product(**options), args, strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called == [ops.matmul.prepared]
    torch.export.save(program, tmp_path / "product.pt2")
    loaded = torch.export.load(tmp_path / "product.pt2")
    for p in (program, loaded, program.run_decompositions()):
        assert_same_bits(p.module()(*args), torch_tiled.matmul(args[0], b, **options))
