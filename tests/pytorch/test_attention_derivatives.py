"""Attention by autograd, forward AD, transforms, compilers, export and checkpoints."""

import functools

import pytest
import torch
from helpers.attention import draw, operator, ours, reference, to
from helpers.compiling import BACKENDS
from helpers.needs import cpu_and_hopper  # noqa: F401
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import torch_tiled
from torch_tiled._op.attention import _attention_weights

GQA = {"enable_gqa": True}
CASES = {  # options, and the shape of an additive mask
    "plain": ({}, None),
    "causal": ({"is_causal": True}, None),
    "bias": ({}, (5, 7)),
    "bias of keys": ({}, (2, 1, 1, 7)),
    "bias of heads": ({}, (1, 4, 5, 1)),
}
each_case = pytest.mark.parametrize("case", CASES)


def make(case, device="cpu", requires_grad=True):
    """The operands, and the function and PyTorch's of them."""
    options, mask = CASES[case]
    tensors = to(device, *draw(2, 4, 2, 5, 7, 8, 6))
    if mask is not None:
        tensors.append(torch.randn(mask, device=device))
    tensors = [x.requires_grad_(requires_grad) for x in tensors]
    return tensors, *(functools.partial(f, **options, **GQA) for f in (ours, reference))


def composite_attention(q, k, v, mask, causal_offset, scale):
    """attention of any dtype, by the weights and the products that its derivatives have."""
    weights = _attention_weights(q, k, mask, causal_offset, scale)
    return torch_tiled.matmul(weights, v).reshape(*q.shape[:3], v.shape[3])


def assert_all_close(found, expected, tolerance=1e-5):
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, rtol=tolerance, atol=tolerance)


@each_case
def test_gradients(case, device):
    tensors, *functions = make(case, device)
    direction = torch.randn(2, 4, 5, 6, device=device)
    found, expected = (torch.autograd.grad(f(*tensors), tensors, direction) for f in functions)
    assert_all_close(found, expected, 5e-5)
    for needed in range(len(tensors)):  # one alone
        one = torch.autograd.grad(functions[0](*tensors), tensors[needed], direction)[0]
        assert_close(one, found[needed])


@each_case
def test_second_gradients(case, device):
    tensors, *functions = make(case, device)

    def second(function):
        first = torch.autograd.grad(function(*tensors).sin().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), tensors)

    assert_all_close(*map(second, functions), 1e-3)


@each_case
def test_forward_mode(case, device):
    tensors, *functions = make(case, device, requires_grad=False)
    tensors, tangents = tuple(tensors), tuple(map(torch.randn_like, tensors))
    found, expected = (jvp(f, tensors, tangents) for f in functions)
    assert_all_close(found, expected, 5e-5)
    assert torch.equal(found[0], functions[0](*tensors))
    for i in range(len(tensors)):  # one tangent alone, without a transform
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(x, tangents[i]) if x is tensors[i] else x for x in tensors
            ]
            one = forward_ad.unpack_dual(functions[0](*duals)).tangent
        alone = [t if j == i else torch.zeros_like(t) for j, t in enumerate(tangents)]
        assert_close(one, jvp(functions[1], tensors, tuple(alone))[1], rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("order", ["jvp of jvp", "grad of jvp", "jvp of grad"])
def test_transforms_of_transforms(order, device):
    tensors, *functions = make("bias", device, requires_grad=False)
    tensors, tangents = tuple(tensors), tuple(map(torch.randn_like, tensors))

    def gradients(function):
        places = tuple(range(len(tensors)))
        return grad(lambda *x: function(*x).square().sum(), argnums=places)

    def along(function):
        return lambda *x: jvp(function, x, tangents)[1]

    nested = {
        "jvp of jvp": lambda f: [along(along(f))(*tensors)],
        "grad of jvp": lambda f: gradients(along(f))(*tensors),
        "jvp of grad": lambda f: along(gradients(f))(*tensors),
    }[order]
    assert_all_close(*map(nested, functions), 1e-3)


@pytest.mark.parametrize("offset", [None, 0, 2, -2])
@pytest.mark.parametrize("mask", ["none", "float", "bool"])
def test_the_composite_by_gradcheck(offset, mask):
    q, k, v = draw(1, 2, 1, 3, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    given = {"none": None, "float": bias, "bool": torch.rand(2, 3, 4) > 0.4}[mask]
    tensors = (q, k, v, bias) if mask == "float" else (q, k, v)

    def function(*tensors):
        return composite_attention(*(*tensors, given)[:4], offset, 0.7)

    assert gradcheck(function, tensors, check_forward_ad=True)
    assert gradgradcheck(function, tensors)


def test_gradients_of_queries_that_see_nothing(device):
    q, k, v = (x.requires_grad_() for x in to(device, *draw(1, 2, 2, 4, 5, 8)))
    mask = torch.ones(4, 5, dtype=torch.bool, device=device)
    mask[2] = False
    found, expected = (
        torch.autograd.grad(f(q, k, v, mask).sum(), (q, k, v)) for f in (ours, reference)
    )
    assert not found[0][:, :, 2].any()
    assert_all_close(found, expected)


EMPTY = [(1, 2, 2, 0, 5, 8), (1, 2, 1, 4, 0, 8), (0, 2, 1, 4, 5, 8), (1, 0, 0, 4, 5, 8)]
EMPTY += [(1, 2, 1, 4, 5, 0), (1, 2, 2, 4, 5, 8, 0)]


@pytest.mark.parametrize("sizes", EMPTY, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_empty_tensors_are_zeros(sizes, is_causal):
    tensors = [x.requires_grad_() for x in draw(*sizes)]
    ours(*tensors, is_causal=is_causal, **GQA).sum().backward()
    assert not any(x.grad.any() for x in tensors)


MAPPED = [(1, 1, 1, 1), (1, None, None, None), (None, 0, 2, None), (None, None, None, 0)]


@pytest.mark.parametrize("dims", MAPPED, ids=str)
@pytest.mark.parametrize("kind", ["value", "gradients"])
@pytest.mark.parametrize("mask", [(2, 4, 5, 7), (5, 7), (1, 4, 1, 7)])
def test_vmap(device, dims, kind, mask):
    """The bits of a loop over the examples."""
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), mask
    dims = (*dims[:3], dims[3] if dims[3] is None or len(mask) > 2 else 0)
    tensors = [
        torch.randn(shape if dim is None else (*shape[:dim], 3, *shape[dim:]), device=device)
        for shape, dim in zip(shapes, dims, strict=True)
    ]

    def function(*x):
        if kind == "value":
            return (ours(*x, **GQA),)
        return grad(lambda *y: ours(*y, **GQA).sin().sum(), argnums=(0, 1, 2, 3))(*x)

    found = vmap(function, in_dims=dims)(*tensors)
    examples = [
        function(*(x if d is None else x.select(d, i) for x, d in zip(tensors, dims, strict=True)))
        for i in range(3)
    ]
    for x, y in zip(found, map(torch.stack, zip(*examples, strict=True)), strict=True):
        if kind == "value":
            assert torch.equal(x, y)
        else:
            assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_vmap_of_nothing():
    q, k, v = draw(1, 2, 2, 4, 5, 8)
    assert vmap(ours, in_dims=(0, None, None))(q.new_empty(0, *q.shape), k, v).shape[0] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["causal", "bias"])
def test_compiled(device, backend, case, fresh_compiler):
    tensors, function, _ = make(case, device)
    compiled = torch.compile(lambda *x: function(*x) * 2, backend=backend, fullgraph=True)
    found, expected = compiled(*tensors), function(*tensors) * 2
    assert torch.equal(found, expected)
    direction = torch.randn_like(expected)
    assert_all_close(
        torch.autograd.grad(found, tensors, direction),
        torch.autograd.grad(expected, tensors, direction),
    )


def test_other_sizes_compile_nothing_more(fresh_compiler):
    counter = CompileCounterWithBackend("aot_eager")
    function = functools.partial(ours, is_causal=True)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    counts = set()
    for size in (7, 9, 17):
        tensors = draw(2, 4, 4, size, size + 6, 8, 5)
        assert torch.equal(compiled(*tensors), function(*tensors))
        counts.add(counter.frame_count)
    assert len(counts) == 1


def test_auto_compiles(device, fresh_compiler):
    auto = torch_tiled.nn.functional.scaled_dot_product_attention
    q, k, v = to(device, *draw(1, 2, 2, 5, 7, 8))
    compiled = torch.compile(auto, backend="aot_eager", fullgraph=True)
    assert_close(compiled(q, k, v), auto(q, k, v))


def test_exported(device):
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return ours(q, k, v, is_causal=True, **GQA)

    queries, keys = torch.export.Dim("queries"), torch.export.Dim("keys")
    dims = {2: queries}, {2: keys}, {2: keys}
    example = tuple(to(device, *draw(2, 4, 2, 5, 7, 8)))
    program = torch.export.export(Attention(), example, dynamic_shapes=dims)
    others = to(device, *draw(2, 4, 2, 9, 12, 8))
    assert torch.equal(program.module()(*others), ours(*others, is_causal=True, **GQA))


@each_case
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(device, case, use_reentrant):
    tensors, function, _ = make(case, device)
    gradients = []
    for y in (checkpoint(function, *tensors, use_reentrant=use_reentrant), function(*tensors)):
        for x in tensors:
            x.grad = None
        y.sum().backward()
        gradients.append([x.grad for x in tensors])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("offset", [None, 1])
@pytest.mark.parametrize("mask", [None, torch.float32, torch.bool])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_opcheck(device, offset, mask, is_transposed):
    q, k, v = to(device, *draw(2, 4, 2, 5, 7, 8, 6))
    if is_transposed:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    bias = None
    if mask is not None:
        bias = torch.randn(4, 1, 7, device=device)
        bias = bias > 0 if mask == torch.bool else bias.requires_grad_()
    tensors = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(operator, (*tensors, bias, offset, 0.3))


def test_the_denominator_has_no_gradient():
    q, k, v = (x.requires_grad_() for x in draw(1, 2, 2, 4, 5, 8))
    out, total, exponent = operator(q, k, v, None, None, 0.3)
    assert out.requires_grad and not total.requires_grad and not exponent.requires_grad
