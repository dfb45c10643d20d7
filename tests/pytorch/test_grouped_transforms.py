"""Grouped products by autograd, transforms, compilers, autocast and torch_tiled.override."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS, count_compilations
from helpers.operands import MIXED
from helpers.overriding import ours_alone
from helpers.reference import FLOATS_16BIT
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, vmap
from torch.testing import assert_close

import torch_tiled
from torch_tiled._internals import torch_grouped_mm

SIZES = (3, 0, 6)  # of the groups; two rows are no group's
LENGTH = 11
CASES = {  # the shapes of a, b and bias
    "rows": ((LENGTH, 7), (3, 7, 5)),
    "rows, bias": ((LENGTH, 7), (3, 7, 5), (5,)),
    "rows, biases": ((LENGTH, 7), (3, 7, 5), (3, 5)),
    "columns": ((3, 4, 7), (7, LENGTH)),
    "k": ((4, LENGTH), (LENGTH, 5)),
    "k, bias": ((4, LENGTH), (LENGTH, 5), (5,)),
    "k, biases": ((4, LENGTH), (LENGTH, 5), (3, 5)),
    "batch": ((3, 4, 7), (3, 7, 5)),
    "batch, bias": ((3, 4, 7), (3, 7, 5), (5,)),
    "batch, biases": ((3, 4, 7), (3, 7, 5), (3, 5)),
}
each_case = pytest.mark.parametrize("case", CASES)


def offsets(device, sizes=SIZES):
    return torch.tensor([*itertools.accumulate(sizes)], dtype=torch.int32, device=device)


def make(case, device, dtype=torch.float64, requires_grad=True):
    """The operands, and a function of them."""
    tensors = [
        torch.randn(shape, dtype=dtype, device=device, requires_grad=requires_grad)
        for shape in CASES[case]
    ]
    offs = None if case.startswith("batch") else offsets(device)

    def multiply(a, b, bias=None, offs=offs, **options):
        return torch_tiled.grouped_mm(a, b, offs=offs, bias=bias, **options)

    return tensors, multiply


def reference(a, b, bias=None, offs=None):
    """The same by torch.matmul and masks, which every transform of PyTorch takes."""
    groups = a.shape[0] if a.dim() == 3 else b.shape[0]
    if offs is None:
        c = a @ b
        return c if bias is None else c + (bias if bias.dim() == 1 else bias[:, None])
    length = a.shape[-1] if a.dim() == b.dim() == 2 else a.shape[0] if a.dim() == 2 else b.shape[1]
    groups = offs.shape[0]
    index = torch.arange(length, device=a.device)
    begins = torch.cat([torch.zeros_like(offs[:1]), offs[:-1]])
    member = ((index >= begins[:, None]) & (index < offs[:, None])).to(a.dtype)  # (groups, length)
    if a.dim() == b.dim() == 2:
        c = (member[:, None] * a) @ b
        return c if bias is None else c + (bias if bias.dim() == 1 else bias[:, None])
    if a.dim() == 3:
        return ((a @ b) * member[:, None]).sum(0)
    c = a @ b
    if bias is not None:
        c = c + bias.expand(groups, -1)[:, None]
    return (c * member[..., None]).sum(0)


def reference_of(multiply_case, device):
    offs = None if multiply_case.startswith("batch") else offsets(device)
    return functools.partial(reference, offs=offs)


@each_case
def test_derivatives(case, device):
    tensors, multiply = make(case, device)
    assert_close(multiply(*tensors), reference_of(case, device)(*tensors))
    assert gradcheck(
        multiply,
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(multiply, tensors, check_fwd_over_rev=True, check_rev_over_rev=True)


@each_case
def test_each_gradient_alone(case, device):
    """Which gradients are needed, and which are asked for, by the fast path and with an option."""
    tensors, multiply = make(case, device, requires_grad=False)
    for options in ({}, {"precision": "ieee"}):
        for needed in itertools.product([False, True], repeat=len(tensors)):
            if not any(needed):
                continue
            given = [x.clone().requires_grad_(y) for x, y in zip(tensors, needed, strict=True)]
            live = [x for x in given if x.requires_grad]
            out = multiply(*given, **options)
            seed = torch.randn_like(out)
            expected = torch.autograd.grad(reference_of(case, device)(*given), live, seed)
            for x, wanted in zip(live, expected, strict=True):
                (found,) = torch.autograd.grad(out, x, seed, retain_graph=True)
                assert_close(found, wanted)
            assert_close(torch.autograd.grad(out, live, seed), expected)


def test_gradients_are_grouped_products(device):
    """Each row of dX and each group of dW has the bits of the product of its group."""
    x = torch.randn(300, 160, device=device, requires_grad=True)
    weight = torch.randn(2, 160, 40, device=device, requires_grad=True)
    offs = offsets(device, (100, 150))
    y = torch_tiled.grouped_mm(x, weight, offs=offs)
    dy = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    for group, (begin, end) in enumerate([(0, 100), (100, 250)]):
        rows = slice(begin, end)
        assert torch.equal(dx[rows], torch_tiled.matmul(dy[rows], weight[group].mT))
        assert torch.equal(dw[group], torch_tiled.matmul(x[rows].mT, dy[rows]))
    assert not dx[250:].any()


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("case", ["rows, biases", "rows, bias", "k, biases"])
def test_gradients_of_mixed_products_are_rounded_once(kind, case, device):
    """They are the upcast operands', with the upcast gradient, and rounded at the end."""
    *dtypes, out_dtype, of_bias = MIXED[kind]
    tensors, multiply = make(case, device, torch.float32, requires_grad=False)
    tensors = [
        x.to(dtype).requires_grad_() for x, dtype in zip(tensors, (*dtypes, of_bias), strict=True)
    ]
    out = multiply(*tensors, out_dtype=out_dtype)
    assert out.dtype == out_dtype
    seed = torch.randn_like(out)
    grads = torch.autograd.grad(out, tensors, seed)
    wide = [x.detach().float().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(multiply(*wide), wide, seed.float())
    for x, found, exact in zip(tensors, grads, expected, strict=True):
        assert found.dtype == x.dtype
        assert torch.equal(found, exact.to(x.dtype))


@pytest.mark.parametrize("dtype", FLOATS_16BIT, ids=str)
def test_gradients_of_16_bits(dtype, device):
    tensors, multiply = make("rows, biases", device, torch.float32, requires_grad=False)
    tensors = [x.to(dtype).requires_grad_() for x in tensors]
    out = multiply(*tensors)
    seed = torch.randn_like(out)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(reference_of("rows", device)(*wide), wide, seed.double())
    for found, exact in zip(torch.autograd.grad(out, tensors, seed), expected, strict=True):
        assert found.dtype == dtype
        assert_close(found, exact.to(dtype))


@each_case
def test_tangents(case, device):
    """Of each operand alone, by a level of forward AD and by torch.func."""
    tensors, multiply = make(case, device, requires_grad=False)
    theirs = reference_of(case, device)
    for i, x in enumerate(tensors):
        tangent = torch.randn_like(x)

        def alone(x, multiply, i=i):
            return multiply(*tensors[:i], x, *tensors[i + 1 :])

        (_, expected) = torch.func.jvp(lambda x: alone(x, theirs), (x,), (tangent,))
        (_, found) = torch.func.jvp(lambda x: alone(x, multiply), (x,), (tangent,))
        assert_close(found, expected)
        with forward_ad.dual_level():
            dual = alone(forward_ad.make_dual(x, tangent), multiply)
            assert_close(forward_ad.unpack_dual(dual).tangent, expected)
        assert_close(jacfwd(lambda x: alone(x, multiply))(x), jacrev(lambda x: alone(x, theirs))(x))


def batched(x, dim, count):
    return torch.stack([x + i for i in range(count)], dim)


@each_case
@pytest.mark.parametrize("dim", [0, -1])
def test_vmap(case, dim, device):
    """Over each choice of operands."""
    tensors, multiply = make(case, device, requires_grad=False)
    for mapped in itertools.product([False, True], repeat=len(tensors)):
        if not any(mapped):
            continue
        given = [batched(x, dim, 3) if yes else x for x, yes in zip(tensors, mapped, strict=True)]
        dims = tuple(dim if yes else None for yes in mapped)
        pairs = [*zip(given, mapped, strict=True)]
        expected = [
            multiply(*(x.select(dim, i) if yes else x for x, yes in pairs)) for i in range(3)
        ]
        found = vmap(multiply, in_dims=dims, out_dims=1)(*given)
        assert_close(found, torch.stack(expected, 1))
        empty = [x.narrow(dim, 0, 0) if yes else x for x, yes in pairs]
        assert vmap(multiply, in_dims=dims)(*empty).shape == (0, *expected[0].shape)


def test_vmap_over_offsets(device):
    (a, b), multiply = make("rows", device, requires_grad=False)
    offs = torch.stack([offsets(device), offsets(device, (1, 9, 1)), offsets(device, (0, 0, 0))])
    found = vmap(lambda offs: multiply(a, b, offs=offs))(offs)
    assert_close(found, torch.stack([multiply(a, b, offs=x) for x in offs]))


def test_gradients_of_each_sample(device):
    (a, b), multiply = make("rows", device, requires_grad=False)
    a = batched(a, 0, 3)

    def loss(multiply):
        return lambda b, a: multiply(a, b).sin().sum()

    found = vmap(grad(loss(multiply)), in_dims=(None, 0))(b, a)
    theirs = functools.partial(reference, offs=offsets(device))
    assert_close(found, vmap(grad(loss(theirs)), in_dims=(None, 0))(b, a))


def test_vmap_refuses_bad_examples(device):
    (a, b), multiply = make("rows", device, requires_grad=False)
    with pytest.raises(RuntimeError, match=r"a is \(7,\) and b is \(3, 7, 5\); each must have 2"):
        vmap(lambda a: multiply(a, b))(a)


@each_case
def test_opcheck(case, device):
    (a, b, *bias), _ = make(case, device)
    offs = None if case.startswith("batch") else offsets(device)
    found = torch.library.opcheck(torch.ops.tiled.grouped_mm.default, (a, b, offs, *bias))
    assert set(found.values()) == {"SUCCESS"}


# --- compilers -----------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(case, backend, device, fresh_compiler):
    tensors, multiply = make(case, device)

    def loss(*tensors):
        return multiply(*tensors).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    expected = torch.autograd.grad(loss(*tensors), tensors)
    assert_close(torch.autograd.grad(compiled(*tensors), tensors), expected)


def test_compiled_once_for_all_sizes(device, fresh_compiler):
    def multiply(a, b, offs, bias):
        return torch_tiled.grouped_mm(a, b, offs=offs, bias=bias)

    def inputs(length, groups, k, n):
        return (
            torch.randn(length, k, device=device),
            torch.randn(groups, k, n, device=device),
            offsets(device, [length // groups] * groups),
            torch.randn(groups, n, device=device),
        )

    sizes = ((9, 2, 5, 6), (30, 3, 8, 7), (31, 4, 9, 17))
    assert count_compilations(multiply, [inputs(*x) for x in sizes]) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_unbacked_sizes(backend, device, fresh_compiler):
    """The rows of a mask, and groups that the values of a tensor count."""

    def multiply(x, mask, weight, ids):
        rows = x[mask]
        offs = torch.bincount(ids, minlength=weight.shape[0]).cumsum(0, dtype=torch.int32)
        torch._check(offs.shape[0] == weight.shape[0])
        return torch_tiled.grouped_mm(rows, weight, offs=offs).sum(0)

    x, weight = torch.randn(20, 8, device=device), torch.randn(3, 8, 4, device=device)
    mask = torch.rand(20, device=device) < 0.6
    ids = torch.tensor([0, 0, 2], device=device)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(multiply, fullgraph=True, backend=backend)
        assert_close(compiled(x, mask, weight, ids), multiply(x, mask, weight, ids))


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 8, 4))
        self.bias = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x, offs):
        return torch_tiled.grouped_mm(x, self.weight, offs=offs, bias=self.bias).relu()


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_exported(is_dynamic, device, tmp_path):
    model = Experts().to(device)
    rows = torch.export.Dim("rows") if is_dynamic else None
    program = torch.export.export(
        model,
        (torch.randn(9, 8, device=device), offsets(device, (3, 0, 6))),
        dynamic_shapes={"x": {0: rows} if is_dynamic else None, "offs": None},
    )
    assert "tiled.grouped_mm.default" in str(program.graph)
    torch.export.save(program, tmp_path / "experts.pt2")
    loaded = torch.export.load(tmp_path / "experts.pt2").module()
    for length in (9, 14, 2) if is_dynamic else (9,):
        x, offs = torch.randn(length, 8, device=device), offsets(device, (1, 0, length - 1))
        assert torch.equal(loaded(x, offs), model(x, offs))


# --- autocast and override -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS_16BIT, ids=str)
def test_autocast(dtype, device):
    tensors, multiply = make("rows, bias", device, torch.float32)
    expected = multiply(*(x.to(dtype) for x in tensors))
    with torch.autocast(device, dtype):
        y = multiply(*tensors)
    assert torch.equal(y, expected)
    grads = torch.autograd.grad(y, tensors, torch.ones_like(y))
    assert [x.dtype for x in grads] == [torch.float32] * 3
    wide, _ = make("rows, bias", device)
    with torch.autocast(device, dtype):
        assert multiply(*wide).dtype == torch.float64


CALLS = {
    "functional": F.grouped_mm,
    "torch": torch_grouped_mm,
    "by position": lambda a, b, offs: torch_grouped_mm(a, b, offs),
    "by name": lambda a, b, offs: F.grouped_mm(mat_a=a, mat_b=b, offs=offs),
    "torch, by name": lambda a, b, offs: torch_grouped_mm(input=a, mat2=b, offs=offs),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, *FLOATS_16BIT], ids=str)
@pytest.mark.parametrize("case", ["rows", "columns", "k", "batch"])
def test_override(call, dtype, case, device):
    """Sizes and strides that PyTorch takes, of multiples of 16 bytes."""
    shapes = {
        "rows": ((32, 16), (3, 16, 8)),
        "columns": ((3, 16, 16), (16, 32)),
        "k": ((16, 32), (32, 8)),
        "batch": ((3, 16, 16), (3, 16, 8)),
    }[case]
    a, b = (torch.randn(x, device=device).to(dtype).requires_grad_() for x in shapes)
    offs = None if case == "batch" else offsets(device, (8, 0, 24))
    with torch_tiled.override(strict=True), ours_alone():
        y = CALLS[call](a, b, offs=offs)
        grads = torch.autograd.grad(y, (a, b), torch.ones_like(y))
    assert torch.equal(y, torch_tiled.grouped_mm(a, b, offs=offs))
    expected = F.grouped_mm(a, b, offs=offs)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    assert_close(y, expected)
    assert_close(grads, torch.autograd.grad(expected, (a, b), torch.ones_like(expected)))


def test_override_in_tf32(device):
    """No kernel for groups rounds to TF32."""
    a, b = torch.randn(32, 16, device=device), torch.randn(3, 16, 8, device=device)
    offs = offsets(device, (8, 0, 24))
    for precision, same in (("fp32", "fp32"), ("tf32", "fp32"), ("ieee", "ieee")):
        with torch_tiled.override(precision=precision):
            y = F.grouped_mm(a, b, offs=offs)
        assert torch.equal(y, torch_tiled.grouped_mm(a, b, offs=offs, precision=same))


def test_override_leaves_the_others(device):
    a, b = torch.randn(32, 16, device=device), torch.randn(3, 16, 8, device=device)
    offs = offsets(device, (8, 0, 24))
    for x, y, options in (
        (a.double(), b.double(), {}),
        (a.bfloat16(), b, {}),
        (a, b, {"bias": b[0, 0]}),
        (a, b, {"out_dtype": torch.float64}),
    ):
        texts = []
        for context in (torch.no_grad(), torch_tiled.override()):
            with context, pytest.raises((RuntimeError, ValueError)) as raised:
                F.grouped_mm(x, y, offs=offs, **options)
            texts.append((type(raised.value), str(raised.value)))
        assert len(set(texts)) == 1


def test_override_leaves_compiled_code(device, fresh_compiler):
    """Dynamo passes torch._grouped_mm to no TorchFunctionMode."""
    a, b = (torch.randn(x, device=device).bfloat16() for x in ((32, 16), (3, 16, 8)))
    offs = offsets(device, (8, 0, 24))

    def multiply(a, b):
        return F.grouped_mm(a, b, offs=offs)

    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    with torch_tiled.override():
        torch.compile(multiply, fullgraph=True, backend=keep)(a, b)
    assert torch_grouped_mm in [node.target for node in graphs[0].graph.nodes]
