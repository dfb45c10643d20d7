"""Complex products and lazy views in torch.compile, torch.export and torch.library.opcheck."""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS
from helpers.complex_operands import VIEWS as LAZY_VIEWS
from helpers.complex_operands import every_complex
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.complex128)

pytestmark = pytest.mark.usefixtures("fresh_compiler")
ops = torch.ops.tiled
VIEWS = LAZY_VIEWS | {"adjoint": lambda x: x.mT.contiguous().mH}
every_view = pytest.mark.parametrize("view", VIEWS)


# --- opcheck, FakeTensors and meta tensors -------------------------------------------------------


@every_complex
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_products(requires_grad, dtype, device):
    a, b = randn(2, 3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    bias = randn(5, device=device, dtype=dtype)
    for x in (a, b, bias):
        x.requires_grad_(requires_grad)
    for operands in ((a, b), (a[0], b), (a, b[:, 0])):
        torch.library.opcheck(ops.matmul.default, operands)
    torch.library.opcheck(ops.linear.default, (a, b.mT, bias))


@every_complex
def test_opcheck_writing(dtype, device):
    a, b = randn(2, 3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    c = randn(2, 3, 5, device=device, dtype=dtype)
    factors = {"alpha": 0.5, "alpha_imag": 1.5, "beta": 2.0, "beta_imag": -1.0}
    torch.library.opcheck(ops.gemm_.default, (c, a, b), factors)
    torch.library.opcheck(ops.matmul.out, (a, b), {"out": c})
    torch.library.opcheck(ops._gemm.default, (c, a, b), factors)
    torch.library.opcheck(ops._gemm.default, (c.conj(), a, b), {"beta": 0.0})


@every_complex
@pytest.mark.parametrize("k", [4, 130])
def test_opcheck_prepared(k, dtype, device):
    a, b = randn(3, k, device=device, dtype=dtype), randn(k, 5, device=device, dtype=dtype)
    torch.library.opcheck(ops.prepare.default, (b,))
    parts = ops.prepare(b)
    torch.library.opcheck(ops.matmul.prepared, (a, b, *parts))
    torch.library.opcheck(ops.linear.prepared, (a, b.mT, *parts, b[0]))


def described(x):
    return x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()


@every_view
@every_complex
def test_results_without_data(dtype, view, device):
    a, b = randn(2, 3, 130, device=device, dtype=dtype), randn(130, 6, device=device, dtype=dtype)

    def results(a, b):
        a, b = VIEWS[view](a), VIEWS[view](b)
        prepared = torch_tiled.prepare(b)
        c = a.new_zeros(2, 3, 6).conj()
        torch_tiled.gemm_(c, a, b, alpha=1j)
        return [
            torch_tiled.matmul(a, b),
            torch_tiled.matmul(a, prepared),
            torch_tiled.linear(a, b.mT, b[0]),
            *(prepared.hi_lo, prepared.inverse_scales, c),
        ]

    expected = [described(x) for x in results(a, b)]
    with FakeTensorMode() as mode:
        assert [described(x) for x in results(*map(mode.from_tensor, (a, b)))] == expected
    if device == "cpu":
        assert [described(x) for x in results(a.to("meta"), b.to("meta"))] == expected


# --- torch.compile -------------------------------------------------------------------------------


def loss(linear, matmul, x, weight, bias):
    """Products of conjugates that are made in the graph."""
    y = linear(2 * x, weight.conj(), bias.conj())
    z = matmul(y.mH, x.conj())
    return (z.abs() + (z * weight.conj()).imag).square().sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@every_complex
def test_compile(dtype, backend, dynamic, device):
    def ours(*tensors):
        return loss(torch_tiled.linear, torch_tiled.matmul, *tensors)

    compiled = torch.compile(ours, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (4, 7):
        tensors = [
            randn(*shape, device=device, dtype=dtype, requires_grad=True)
            for shape in ((rows, 6), (5, 6), (5,))
        ]
        values = [compiled(*tensors), loss(F.linear, torch.matmul, *tensors)]
        assert_close(*values)
        assert_close(*(torch.autograd.grad(value, tensors) for value in values))


@every_view
@pytest.mark.parametrize("backend", BACKENDS)
def test_lazy_views_from_outside_and_inside(backend, view, device):
    """A graph that was traced for a plain tensor may not serve its conjugate."""

    def inside(a, b):
        return torch_tiled.matmul(VIEWS[view](a), VIEWS[view](b).mT)

    a, b = randn(3, 4, device=device), randn(5, 4, device=device)
    expected = VIEWS[view](a) @ VIEWS[view](b).mT
    assert_close(torch.compile(inside, fullgraph=True, backend=backend)(a, b), expected)
    compiled = torch.compile(torch_tiled.matmul, fullgraph=True, backend=backend)
    assert_close(compiled(a, b.mT), a @ b.mT)
    assert_close(compiled(VIEWS[view](a), VIEWS[view](b).mT), expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@every_complex
def test_writes(dtype, backend, dynamic, device):
    """Each has the bits of the same call that is not compiled."""

    def write(c, d, e, a, b):
        torch_tiled.gemm_(c, a, b, alpha=1 + 2j, beta=-1j, algorithm="naive", precision="ieee")
        ops.gemm_(c=c[1:, ..., ::2], a=a[1:], b=b[..., ::2], alpha=0.3, algorithm="naive")
        torch_tiled.gemm_(d.mT, a, b.mH.contiguous().mH, beta=0, algorithm="naive")
        torch_tiled.gemm_(d, b.mT, a.mT, alpha=0, beta=2)
        torch_tiled.matmul(a[0, :, 0], b, out=e, algorithm="naive")
        return c + d.mT + e

    compiled = torch.compile(write, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (3, 5):
        shapes = (2, rows, 6), (2, 6, rows), (6,), (2, rows, rows), (rows, 6)
        tensors = [randn(*shape, device=device, dtype=dtype) for shape in shapes]
        copies = [x.clone() for x in tensors]
        assert torch.equal(compiled(*tensors), write(*copies))
        assert all(map(torch.equal, tensors, copies))


def test_writes_that_are_refused_where_they_are_traced(device):
    c, a, b = (randn(*shape, device=device) for shape in ((3, 5), (3, 4), (4, 5)))
    for sentence, call in {
        "c is (3, 4) and the product is (3, 5)": lambda: torch_tiled.gemm_(c[:, :4] * 1, a, b),
        "out is (2, 5) and the product is": lambda: torch_tiled.matmul(a, b, out=c[:2]),
        "c has elements that share memory": lambda: torch_tiled.gemm_(c[:1].expand(3, 5), a, b),
        'there is no algorithm "x"': lambda: torch_tiled.gemm_(c, a, b, algorithm="x"),
    }.items():
        for f in (call, torch.compile(call, fullgraph=True)):
            with pytest.raises(Exception, match=re.escape(sentence)):
                f()


def test_writes_take_no_derivative(device):
    c, a, b = (randn(*shape, device=device) for shape in ((3, 5), (3, 4), (4, 5)))
    b.requires_grad_()

    def write(c, a, b):
        torch_tiled.gemm_(c, a, b, alpha=1j)
        return c * 1

    sentence = "c is written in place, which has no derivative, but b of shape"
    with pytest.raises(Exception, match=sentence):
        torch.compile(write, fullgraph=True)(c, a, b)
    with pytest.raises(RuntimeError, match=f"tiled::gemm_: {sentence}"):
        ops._gemm(c, a, b)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expected = write(c.clone(), a, b)
            written = c.clone()
            assert_close(torch.compile(write, fullgraph=True)(written, a, b), expected)
            assert_close(written, expected)


@pytest.mark.parametrize("view", ["plain", "conj", "neg", "both"])
def test_writes_of_lazy_views(view, device):
    change = VIEWS[view]

    def write(c, d, a, b):
        torch_tiled.gemm_(change(c), a.conj(), change(b), alpha=1 + 2j, beta=-1j)
        torch_tiled.matmul(change(a), b, out=change(d))
        return c + d

    a, b, before = (randn(*shape, device=device) for shape in ((3, 4), (4, 5), (3, 5)))
    sums = change((1 + 2j) * (a.conj() @ change(b)) - 1j * change(before))
    product = change(change(a) @ b)
    for f in (write, *(torch.compile(write, fullgraph=True, backend=x) for x in BACKENDS)):
        c, d = before.clone(), torch.zeros_like(before)
        assert_close(f(c, d, a, b), sums + product)
        assert_close((c, d), (sums.resolve_conj().resolve_neg(), product.resolve_conj()))


def of_slices_of_a_conjugate(c, a, b):
    torch_tiled.gemm_(c.conj()[1:], a[1:], b, beta=1j)
    ops.matmul.out(a[1:].conj(), b, out=c.mH[:, :3].mT)


def of_a_negative(c, a, b):
    torch_tiled.gemm_(c.conj().imag, a.conj().imag, b.real)


def of_examples(c, a, b):
    c, a = (x.view(2, 2, 4) for x in (c, a))
    torch.func.vmap(torch_tiled.gemm_, in_dims=(0, 0, None))(c, a, b.conj())


def of_part(part):
    def write(c, a, b):
        a = a.real.contiguous()
        torch_tiled.gemm_(part(c), a, a, beta=0.5)
        torch_tiled.gemm_(part(c)[1:3], a[:2], a)

    return write


PARTS = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "transpose": lambda z: z.real.mT,
    "view_as_real": lambda z: torch.view_as_real(z)[..., 1],
}
WRITES = {name: of_part(part) for name, part in PARTS.items()}
WRITES |= {f.__name__: f for f in (of_slices_of_a_conjugate, of_a_negative, of_examples)}


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("backend", BACKENDS)
@every_complex
def test_writes_of_views(dtype, backend, kind, device):
    """Each writes what it does in a call that is not compiled."""

    def write(c, a, b):
        WRITES[kind](c, a, b)
        return c * 1

    c, a, b = (randn(4, 4, device=device, dtype=dtype) for _ in range(3))
    expected = c.clone()
    assert_close(write(expected, a, b), expected)
    assert_close(torch.compile(write, fullgraph=True, backend=backend)(c, a, b), expected)
    assert_close(c, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alpha", [2, 2.5, 1 + 2j])
def test_factors_in_a_graph(alpha, backend, device):
    def f(c, a, b):
        return torch_tiled.gemm_(c.clone(), a, b, alpha=alpha, beta=alpha) * 1

    c, a, b = (randn(*shape, device=device) for shape in ((3, 5), (3, 4), (4, 5)))
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    assert_close(compiled(c, a, b), alpha * (a @ b + c))


@pytest.mark.parametrize("backend", BACKENDS)
def test_prepared_in_a_graph(backend, device):
    a, b = randn(5, 130, device=device), randn(130, 6, device=device)

    def f(a, b, prepared):
        y = torch_tiled.matmul(a.conj(), torch_tiled.prepare(b.conj()))
        return y, torch_tiled.linear(a, prepared, b[0].conj())

    prepared = torch_tiled.prepare(b).mT
    expected = a.conj() @ b.conj(), a @ b + b[0].conj()
    assert_close(torch.compile(f, fullgraph=True, backend=backend)(a, b, prepared), expected)


# --- torch.export --------------------------------------------------------------------------------


class Writing(torch.nn.Module):
    def forward(self, c, a, b):
        torch_tiled.gemm_(c, a.conj(), b, alpha=2j)
        return c * 1


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_write(strict, device):
    tensors = [randn(*shape, device=device) for shape in ((3, 5), (3, 4), (4, 5))]
    c, a, b = tensors
    expected = c + 2j * (a.conj() @ b)
    program = torch.export.export(Writing(), tuple(tensors), strict=strict)
    for p in (program, program.run_decompositions()):
        written = c.clone()
        assert_close(p.module()(written, a, b), expected)
        assert_close(written, expected)
