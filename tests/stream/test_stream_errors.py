"""Bad calls of torch_tiled.stream.matmul are sentences that name the values and the remedy."""

import numpy as np
import pytest
import torch
from helpers.needs import needs_cuda

import torch_tiled

X = torch.zeros(3, 4)
Y = torch.zeros(4, 5)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")


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
    ("sparse a", (sparse(), Y), {}, ["a is a Tensor of layout torch.sparse_coo", "strided"]),
    ("sparse b", (X, sparse().to_sparse_csr()), {}, ["b is a", "torch.sparse_csr", "strided"]),
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
    ("sparse", torch.eye(3, 5).to_sparse(), ["out is a Tensor of layout", "strided"]),
    ("gradient", out(3, 5).requires_grad_(), ["out requires a gradient", "out.detach()"]),
]
BAD_OPTIONS = [
    ("algorithm", {"algorithm": "magic"}, ['no algorithm "magic"', "choose auto"]),
    ("algorithm of a type", {"algorithm": None}, ['no algorithm "None"', "choose auto"]),
    ("algorithm of a list", {"algorithm": ["auto"]}, ["no algorithm", "choose auto"]),
    ("precision", {"precision": "fp8"}, ['no precision "fp8"', "choose fp32, ieee or tf32"]),
    ("precision of a type", {"precision": 32}, ['no precision "32"', "choose fp32"]),
    ("mma", {"algorithm": "mma"}, ['"mma" takes float16 and bfloat16', "choose auto"]),
    ("f64", {"algorithm": "f64_mma"}, ['"f64_mma" takes float64', "choose auto"]),
    ("tf32", {"algorithm": "tf32"}, ["tf32", "choose auto, or precision tf32"]),
    ("ieee", {"algorithm": "fp16x3", "precision": "ieee"}, ["fp16x3", "ieee", "choose auto"]),
]
# Whatever devices are there, and with the remedy of each.
BAD_BYTES = [0, -1, -(2**40), True, 1.5, 2.0**34, "16GiB", [1], float("nan"), np.int64(5), object]
BAD_DEVICES = [
    ("empty", [], "devices is empty; name a GPU, or pass None"),
    ("empty tuple", (), "devices is empty; name a GPU, or pass None"),
    ("unknown name", "gpu", "devices is ['gpu']"),
    ("no name", "", "devices is ['']"),
    ("a bad index", "cuda:x", "devices is ['cuda:x']"),
    ("a number that is none", 1.5, "devices is 1.5"),
    ("None in a list", [None], "devices is [None]"),
    ("a nested list", [["cuda"]], "devices is [['cuda']]"),
    ("an object", object, "devices is "),
    ("negative", -1, "devices is [-1]"),
    ("negative in a list", [0, -5], "devices is [0, -5]"),
    ("huge", 2**40, "devices is [1099511627776]"),
    ("too large", 300, "devices"),
    ("True", True, "devices is [True]"),
    ("a set of numbers", {1.5}, "devices is {1.5}"),
    ("cpu and cuda", ["cpu", "cuda:0"], "devices has cpu; each must be a CUDA device"),
    ("cuda and cpu", ["cuda:0", "cpu"], "devices has "),
    ("meta", "meta", "devices has meta; each must be a CUDA device, or the CPU alone"),
    ("other kinds", ["xpu"], "devices has xpu; each must be a CUDA device, or the CPU alone"),
]


def sentence_of(call, *args, **options):
    """The text of the RuntimeError that a call raises, after the name."""
    with pytest.raises(RuntimeError) as raised:
        call(*args, **options)
    assert type(raised.value) is RuntimeError
    text = str(raised.value)
    name = f"torch_tiled.stream.{call.__name__}: "
    assert text.startswith(name) and "\n" not in text
    return text.removeprefix(name)


def cases(table):
    return [pytest.param(*rest, id=name) for name, *rest in table]


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
        "out shares memory with a, which is read meanwhile; pass another tensor"
    )
    assert "memory with b" in sentence_of(torch_tiled.stream.matmul, b, a, out=result)
    beside = memory[9:18].view(3, 3)
    assert torch_tiled.stream.matmul(a, b, out=beside) is beside


@pytest.mark.parametrize("options, parts", cases(BAD_OPTIONS))
def test_bad_options(options, parts):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, **options)
    assert [part for part in parts if part not in text] == [], text
    plan = {"max_device_bytes": 1 << 30}
    assert sentence_of(torch_tiled.stream.plan, X, Y, **options, **plan) == text


@pytest.mark.parametrize("call", ["matmul", "plan"])
@pytest.mark.parametrize("value", BAD_BYTES, ids=str)
def test_bad_bytes(value, call):
    call = getattr(torch_tiled.stream, call)
    text = sentence_of(call, X, Y, max_device_bytes=value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    remedy = "it must be positive" if is_number else "it must be a whole number of bytes"
    assert text == f"max_device_bytes is {value!r}; {remedy}"


@pytest.mark.parametrize("call", ["matmul", "plan"])
@pytest.mark.parametrize("devices, begin", cases(BAD_DEVICES))
def test_bad_devices(devices, begin, call):
    call = getattr(torch_tiled.stream, call)
    text = sentence_of(call, X, Y, devices=devices, max_device_bytes=1 << 30)
    assert text.startswith(begin)


@no_gpu
@pytest.mark.parametrize(
    "devices", ["cuda", "cuda:0", ["cuda:0", "cuda:1"], 0, [torch.device("cuda")]]
)
def test_devices_that_are_not_there(devices):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, devices=devices)
    assert text.startswith("devices has cuda") and text.endswith("and there are 0 GPUs here")


@needs_cuda
def test_a_device_that_is_named_twice():
    text = sentence_of(torch_tiled.stream.matmul, X, Y, devices=["cuda:0", "cuda:0"])
    assert text == "devices names a GPU twice: cuda:0, cuda:0"


@needs_cuda
def test_operands_that_are_both_on_the_gpu():
    text = sentence_of(torch_tiled.stream.matmul, X.cuda(), Y.cuda())
    assert "one of them must be on the CPU" in text and "torch_tiled.matmul" in text


@no_gpu
def test_a_plan_without_a_gpu_needs_bytes():
    text = sentence_of(torch_tiled.stream.plan, X, Y)
    assert text == "there is no GPU whose memory counts; pass max_device_bytes"


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors(dtype):
    x, y = (torch.quantize_per_tensor(t, 0.1, 0, dtype) for t in (X, Y))
    for args in ((x, y), (X, y), (x, Y)):
        text = sentence_of(torch_tiled.stream.matmul, *args)
        assert f"is quantized ({dtype}); pass" in text


def test_nested_tensors():
    nested = torch.nested.nested_tensor([X, X])
    assert "pass a plain" in sentence_of(torch_tiled.stream.matmul, nested, Y)


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


def test_gradients_that_are_off_are_no_error():
    weight = torch.nn.Parameter(Y)
    with torch.no_grad():
        assert not torch_tiled.stream.matmul(X, weight).requires_grad


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
