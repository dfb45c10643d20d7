"""Bad calls of torch_tiled.stream.matmul are sentences that name the values and the remedy."""

import warnings

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.distributed as dist
from helpers.needs import needs_cuda
from helpers.streaming import cases, sentence_of
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_tiled

X = torch.zeros(3, 4)
Y = torch.zeros(4, 5)


def sparse():
    return torch.eye(4).to_sparse()


def out(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


# A name, the arguments, and parts of the sentence.
BAD_OPERANDS = [
    ("columns and rows", (X, X), {}, ["(3, 4)", "a's columns must equal b's rows"]),
    ("a scalar", (torch.tensor(1.0), Y), {}, ["()", "at least one dimension"]),
    ("a scalar b", (X, torch.tensor(1.0)), {}, ["()", "at least one dimension"]),
    ("batches", (out(2, 3, 4), out(3, 4, 5)), {}, ["(2,)", "(3,)", "do not broadcast"]),
    ("two dtypes", (X, Y.double()), {}, ["float32", "float64", ".to(torch.float64)"]),
    ("integers", (X.int(), Y.int()), {}, ["a is torch.int32", "convert it"]),
    ("booleans", (X.bool(), Y.bool()), {}, ["a is torch.bool", "convert it"]),
    ("complex32", (X.to(torch.complex32), Y.to(torch.complex32)), {}, ["complex32", ".to("]),
    ("float8", (X.to(torch.float8_e5m2), Y), {}, ["float8_e5m2", "convert it"]),
    ("numpy a", (X.numpy(), Y), {}, ["a is of type ndarray", "torch.from_numpy"]),
    ("numpy b", (X, Y.numpy()), {}, ["b is of type ndarray", "torch.from_numpy"]),
    ("a list", ([[1.0]], Y), {}, ["a is of type list", "pass a tensor"]),
    ("None", (X, None), {}, ["b is of type NoneType", "pass a tensor"]),
    ("a number", (1.5, Y), {}, ["a is of type float", "pass a tensor"]),
    ("sparse a", (sparse(), Y), {}, ["a is a sparse tensor (torch.sparse_coo", "use a.to_dense()"]),
    (
        "sparse b",
        (X, sparse().to_sparse_csr()),
        {},
        ["b is a sparse tensor (torch.sparse_csr", "use b.to_dense()"],
    ),
    ("meta", (X.to("meta"), Y), {}, ["a is on meta", "must be on the CPU"]),
    ("a buffer", (torch.nn.Buffer(X).as_subclass(torch.nn.Buffer), Y), {}, ["a is a Buffer"]),
    ("a gradient of a", (X.clone().requires_grad_(), Y), {}, ["a requires", "a.detach()"]),
    ("a gradient of b", (X, torch.nn.Parameter(Y)), {}, ["b requires", "b.detach()"]),
    ("no shape", (out(0), out(3)), {}, ["(0,)", "(3,)", "a's columns must equal b's rows"]),
]
BAD_OUT = [
    ("shape", out(3, 6), ["out is (3, 6)", "(3, 5)"]),
    ("rank", out(1, 3, 5), ["out is (1, 3, 5)", "(3, 5)"]),
    ("dtype", out(3, 5, dtype=torch.float64), ["out is torch.float64", "float32"]),
    ("integers", out(3, 5, dtype=torch.int32), ["out is torch.int32", "float32"]),
    ("expanded", out(1, 5).expand(3, 5), ["out has", "share memory", "pass a tensor"]),
    ("overlapping", out(20).as_strided((3, 5), (2, 1)), ["(2, 1)", "share memory"]),
    ("negative", torch._neg_view(out(3, 5)), ["out is a conjugate or negative view"]),
    ("numpy", np.zeros((3, 5), np.float32), ["out is of type ndarray", "torch.from_numpy"]),
    ("meta", out(3, 5).to("meta"), ["out is on meta", "must be on the CPU"]),
    ("sparse", torch.eye(3, 5).to_sparse(), ["out is a sparse tensor", "use out.to_dense()"]),
    ("gradient", out(3, 5).requires_grad_(), ["out requires a gradient", "out.detach()"]),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Sparse CSR")
@pytest.mark.parametrize("devices", [None, "cpu"])
@pytest.mark.parametrize("args, options, parts", cases(BAD_OPERANDS))
def test_bad_operands(args, options, parts, devices):
    text = sentence_of(torch_tiled.stream.matmul, *args, **options, devices=devices)
    assert [part for part in parts if part not in text] == [], text


@pytest.mark.parametrize("result, parts", cases(BAD_OUT))
def test_bad_results(result, parts):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, out=result)
    assert [part for part in parts if part not in text] == [], text


def test_results_that_are_conjugate():
    x, y = X.to(torch.complex64), Y.to(torch.complex64)
    result = torch.zeros(3, 5, dtype=torch.complex64).conj()
    text = sentence_of(torch_tiled.stream.matmul, x, y, out=result)
    assert text.startswith("out is a conjugate or negative view; pass")


@pytest.mark.parametrize("view", [lambda m: m[:9], lambda m: m[4:13], lambda m: m[8:17]])
def test_results_that_share_memory(view):
    memory = torch.zeros(20)
    a, b = memory[:9].view(3, 3), torch.zeros(3, 3)
    result = view(memory).view(3, 3)
    assert sentence_of(torch_tiled.stream.matmul, a, b, out=result) == (
        "out may share memory with a, which is read meanwhile: their elements have addresses in "
        "one range, or places in one part of a file; pass another tensor"
    )
    assert "memory with b" in sentence_of(torch_tiled.stream.matmul, b, a, out=result)
    beside = memory[9:18].view(3, 3)
    assert torch_tiled.stream.matmul(a, b, out=beside) is beside


@pytest.mark.parametrize("of_out", [slice(30, 40), slice(0, 10)])
def test_columns_of_one_matrix(of_out):
    """Those beside an operand's share no element with it."""
    memory = torch.randn(20, 40)
    a, b, out = memory[:, 10:30], torch.randn(20, 10), memory[:, of_out]
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    torch_tiled.stream.matmul(a, b, out=out, algorithm="tiled", devices="cpu")
    assert torch.equal(out, expected)
    text = sentence_of(torch_tiled.stream.matmul, a, b, out=memory[:, 29:39])
    assert text.startswith("out may share memory with a")


def test_results_beyond_memory():
    a, b = torch.empty(1).expand(2**33, 1), torch.empty(1).expand(1, 2**20)
    with pytest.raises(torch.OutOfMemoryError, match=r"bytes of the host's memory; pass an out"):
        torch_tiled.stream.matmul(a, b)
    a, b = torch.empty(1).expand(2**31, 2**31, 1), torch.empty(1).expand(1, 4)
    for call in (torch_tiled.stream.matmul, torch_tiled.stream.plan):
        text = sentence_of(call, a, b, max_device_bytes=2**30)
        assert text.startswith("the result would be (2147483648, 2147483648, 4)")


def test_tracers_are_refused():
    """They would record a result that nothing has written."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def of(call, other):
        return lambda x: call(x, other)

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for call, other in ((torch_tiled.stream.matmul, y), (torch_tiled.stream.linear, y.mT)):
        for trace in (lambda f: make_fx(f)(x), lambda f: torch.jit.trace(f, (x,))):
            with pytest.raises(RuntimeError, match="torch.jit.trace or a torch dispatch mode"):
                trace(of(call, other))
        with torch._subclasses.FakeTensorMode():
            assert "dispatch mode" in sentence_of(call, x, other)


@needs_cuda
def test_operands_that_are_both_on_the_gpu():
    text = sentence_of(torch_tiled.stream.matmul, X.cuda(), Y.cuda())
    assert "one of them must be on the CPU" in text and "torch_tiled.matmul" in text


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors(dtype):
    x, y = (torch.quantize_per_tensor(t, 0.1, 0, dtype) for t in (X, Y))
    for args in ((x, y), (X, y), (x, Y)):
        text = sentence_of(torch_tiled.stream.matmul, *args)
        assert f"is a quantized tensor (torch.strided, {dtype}); use" in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([X, X], layout=layout)
    text = sentence_of(torch_tiled.stream.matmul, nested, Y)
    assert text == (
        f"a is a nested tensor ({layout}, torch.float32); use "
        "torch.nested.to_padded_tensor(a, 0.0), or a loop over a.unbind()"
    )
    padded = torch_tiled.stream.matmul(nested.to_padded_tensor(0), Y)
    one_by_one = [torch_tiled.stream.matmul(x, Y) for x in nested.unbind()]
    assert torch.equal(padded, torch.stack(one_by_one))


@pytest.mark.filterwarnings("ignore")
def test_masked_tensors():
    masked = torch.masked.masked_tensor(X, X == 0)
    text = sentence_of(torch_tiled.stream.matmul, masked, Y)
    assert text == ("a is a MaskedTensor; pass a.to_tensor(0), with zeros where the mask is False")
    torch_tiled.stream.matmul(masked.to_tensor(0), Y)


def test_fake_tensors():
    with FakeTensorMode():
        fake = torch.zeros(4, 5)
    text = sentence_of(torch_tiled.stream.plan, X, fake, max_device_bytes=1 << 30)
    assert text == (
        "b is a FakeTensor; pass a tensor with elements, or to torch_tiled.stream.plan one on meta"
    )


def test_other_subclasses():
    class Tagged(torch.Tensor):
        pass

    tagged = X.as_subclass(Tagged)
    text = sentence_of(torch_tiled.stream.matmul, tagged, Y)
    name = Tagged.__qualname__
    assert text == f"a is a {name}, a subclass of torch.Tensor; pass a.as_subclass(torch.Tensor)"
    torch_tiled.stream.matmul(tagged.as_subclass(torch.Tensor), Y)


@pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")
def test_dtensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = distribute_tensor(X, init_device_mesh("cpu", (1,)), [Shard(0)])
        text = sentence_of(torch_tiled.stream.matmul, sharded, Y)
        remedy = "pass a.full_tensor(), or a.to_local(), the part of this process"
        assert text == f"a is a DTensor; {remedy}"
        for plain in (sharded.full_tensor(), sharded.to_local()):
            torch_tiled.stream.matmul(plain, Y)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [x for x in vars(torch).values() if isinstance(x, torch.dtype)])
@pytest.mark.filterwarnings("ignore")
def test_every_dtype_is_taken_or_a_sentence(dtype):
    try:
        x, y = (torch.empty(t.shape, dtype=dtype) for t in (X, Y))
    except RuntimeError:
        pytest.skip("tensors of this dtype cannot be made")
    try:
        torch_tiled.stream.matmul(x, y)
    except RuntimeError as error:
        assert str(error).startswith("torch_tiled.stream.matmul: a is ")


EMPTY_OUT = {
    "expanded": lambda: torch.zeros(1, 5).expand(3, 5)[:0],
    "no strides": lambda: torch.zeros(1, 1).expand(0, 5),
}


@pytest.mark.parametrize("make_out", EMPTY_OUT.values(), ids=EMPTY_OUT)
def test_results_of_no_elements_share_none(make_out):
    result = make_out()
    assert torch_tiled.stream.matmul(X[:0], Y, out=result) is result
    assert torch_tiled.stream.linear(X[:0], Y.mT, out=result) is result
    plan = torch_tiled.stream.plan(X[:0], Y, out=result, max_device_bytes=1)
    assert plan.bytes_out == 0


def test_a_bad_call_leaves_out_as_it_was():
    result = torch.ones(3, 5)
    sentence_of(torch_tiled.stream.matmul, X, Y, out=result, devices=[])
    sentence_of(torch_tiled.stream.matmul, X, Y, out=result, max_device_bytes=-1)
    assert (result == 1).all()


def test_forward_mode_tangents():
    x = torch.randn(3, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match="b has a forward-mode tangent"):
            torch_tiled.stream.matmul(x, dual)


def test_transforms():
    x = torch.randn(3, 3)
    for transformed in (
        torch.vmap(torch_tiled.stream.matmul, in_dims=(0, None)),
        lambda a, b: torch.func.jvp(torch_tiled.stream.matmul, (a, b), (a, b)),
    ):
        with pytest.raises(RuntimeError, match="torch.vmap and the transforms of torch.func"):
            transformed(x[None], x)


def test_compiled_callers():
    """The call breaks the graph, without a warning."""
    shares = []

    def function(x, y):
        product = torch_tiled.stream.matmul(
            2 * x, y, devices="cpu", progress=lambda progress: shares.append(progress.share)
        )
        return product + 1

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    expected = function(x, y)
    counter = torch._dynamo.testing.CompileCounter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.compile(function, backend=counter)(x, y)
    assert torch.equal(found, expected) and shares == [0, 1, 0, 1]
    assert counter.frame_count == 2
