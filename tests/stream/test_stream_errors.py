"""Bad calls of torch_tiled.stream are sentences that name the values and the remedy."""

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

MATMUL, LINEAR = torch_tiled.stream.matmul, torch_tiled.stream.linear
X = torch.zeros(3, 4)
Y = torch.zeros(4, 5)


def sparse():
    return torch.eye(4).to_sparse()


def out(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


# A name, the arguments, and parts of the sentence.
BAD_OPERANDS = [
    ("columns and rows", (X, X), ["(3, 4)", "a's columns must equal b's rows"]),
    ("a scalar", (torch.tensor(1.0), Y), ["()", "at least one dimension"]),
    ("a scalar b", (X, torch.tensor(1.0)), ["()", "at least one dimension"]),
    ("batches", (out(2, 3, 4), out(3, 4, 5)), ["(2,)", "(3,)", "do not broadcast"]),
    ("two dtypes", (X, Y.double()), ["float32", "float64", ".to(torch.float64)"]),
    ("mixed operands", (X, Y.half()), ["float32", "float16", "one dtype", ".to(torch.float32)"]),
    ("integers", (X.int(), Y.int()), ["a is torch.int32", "convert it"]),
    ("booleans", (X.bool(), Y.bool()), ["a is torch.bool", "convert it"]),
    ("complex32", (X.to(torch.complex32), Y.to(torch.complex32)), ["complex32", ".to("]),
    ("float8", (X.to(torch.float8_e5m2), Y), ["float8_e5m2", "convert it"]),
    ("numpy a", (X.numpy(), Y), ["a is of type ndarray", "torch.from_numpy"]),
    ("numpy b", (X, Y.numpy()), ["b is of type ndarray", "torch.from_numpy"]),
    ("a list", ([[1.0]], Y), ["a is of type list", "pass a tensor"]),
    ("None", (X, None), ["b is of type NoneType", "pass a tensor"]),
    ("a number", (1.5, Y), ["a is of type float", "pass a tensor"]),
    ("sparse a", (sparse(), Y), ["a is a sparse tensor (torch.sparse_coo", "use a.to_dense()"]),
    (
        "sparse b",
        (X, sparse().to_sparse_csr()),
        ["b is a sparse tensor (torch.sparse_csr", "use b.to_dense()"],
    ),
    ("meta", (X.to("meta"), Y), ["a is on meta", "must be on the CPU"]),
    ("a buffer", (torch.nn.Buffer(X).as_subclass(torch.nn.Buffer), Y), ["a is a Buffer"]),
    ("a gradient of a", (X.clone().requires_grad_(), Y), ["a requires", "a.detach()"]),
    ("a gradient of b", (X, torch.nn.Parameter(Y)), ["b requires", "b.detach()"]),
    ("no shape", (out(0), out(3)), ["(0,)", "(3,)", "a's columns must equal b's rows"]),
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
# Options of both products.
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
W, B = torch.zeros(5, 4), torch.zeros(5)
Z = torch.complex64
# A name, the arguments of linear, the options, and parts of the sentence.
BAD_LINEAR = [
    ("features", (X, W.mT), {}, ["x is (3, 4)", "weight is (4, 5)", "x's last dimension"]),
    ("a scalar", (torch.tensor(1.0), W), {}, ["x is ()", "x's last dimension"]),
    ("a vector", (X, W[0]), {}, ["weight is (4,)", "(out_features, in_features)"]),
    ("a batch", (X, W[None]), {}, ["weight is (1, 5, 4)", "(out_features, in_features)"]),
    ("two dtypes", (X, W.double()), {}, ["float32", "float64", ".to(torch.float64)"]),
    ("mixed operands", (X.half(), W), {}, ["x is torch.float16", ".to(torch.float32)"]),
    ("integers", (X.int(), W.int()), {}, ["x is torch.int32", "convert it"]),
    ("numpy", (X, W.numpy()), {}, ["weight is of type ndarray", "torch.from_numpy"]),
    ("prepared", (X, torch_tiled.prepare(W.mT).mT), {}, ["weight of shape (5, 4) is", ".tensor"]),
    ("length of bias", (X, W, B[:4]), {}, ["bias is (4,)", "must be (out_features,)"]),
    ("a matrix as bias", (X, W, B[None]), {}, ["bias is (1, 5)", "must be (out_features,)"]),
    ("a scalar as bias", (X, W, B[0]), {}, ["bias is ()", "must be (out_features,)"]),
    ("a number as bias", (X, W, 1.0), {}, ["bias is of type float", "pass a tensor"]),
    ("dtype of bias", (X, W, B.double()), {}, ["bias is torch.float64", "x is torch.float32"]),
    ("bias on meta", (X, W, B.to("meta")), {}, ["bias is on meta", "CPU or a CUDA device"]),
    ("gradient of x", (X.clone().requires_grad_(), W), {}, ["x requires", "x.detach()"]),
    ("gradient of weight", (X, torch.nn.Parameter(W)), {}, ["weight requires", "weight.detach()"]),
    (
        "gradient of bias",
        (X, W, torch.nn.Parameter(B)),
        {},
        ["bias requires", "torch_tiled.linear"],
    ),
    ("activation", (X, W), {"activation": "elu"}, ['no activation "elu"', "choose none, relu"]),
    ("no activation", (X, W), {"activation": None}, ['no activation "None"', "choose none"]),
    ("a complex one", (X.to(Z), W.to(Z)), {"activation": "relu"}, ["real numbers", "choose none"]),
    ("algorithm", (X, W), {"algorithm": "magic"}, ['no algorithm "magic"', "choose auto"]),
    ("precision", (X, W), {"precision": "fp8"}, ['no precision "fp8"', "choose fp32"]),
    ("shape of out", (X, W), {"out": torch.zeros(5, 3)}, ["out is (5, 3)", "(3, 5)"]),
    ("dtype of out", (X.half(), W.half()), {"out": torch.zeros(3, 5)}, ["float32", "x's dtype"]),
    ("out", (X, W), {"out": torch.zeros(1, 5).expand(3, 5)}, ["out has", "share memory"]),
    ("out is x", (X, W[:4]), {"out": X}, ["out may share memory with x", "another tensor"]),
    ("out is bias", (X[:1], W, B), {"out": B[None]}, ["memory with bias", "another tensor"]),
    ("devices", (X, W), {"devices": []}, ["devices is empty"]),
    ("bytes", (X, W), {"max_device_bytes": -1}, ["max_device_bytes is -1", "positive"]),
]
CALLS = [
    *((f"matmul, {name}", MATMUL, args, {}, parts) for name, args, parts in BAD_OPERANDS),
    *((f"matmul, out, {name}", MATMUL, (X, Y), {"out": x}, parts) for name, x, parts in BAD_OUT),
    *((f"matmul, {name}", MATMUL, (X, Y), x, parts) for name, x, parts in BAD_OPTIONS),
    *((f"linear, {name}", LINEAR, *rest) for name, *rest in BAD_LINEAR),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Sparse CSR")
@pytest.mark.parametrize("devices", [None, "cpu"])
@pytest.mark.parametrize("call, args, options, parts", cases(CALLS))
def test_bad_calls(call, args, options, parts, devices):
    text = sentence_of(call, *args, **{"devices": devices} | options)
    assert [part for part in parts if part not in text] == [], text
    if call is MATMUL and options and "out" not in options:
        plan = {"devices": devices, "max_device_bytes": 1 << 30}
        assert sentence_of(torch_tiled.stream.plan, *args, **options, **plan) == text


def test_results_that_are_conjugate():
    x, y = X.to(torch.complex64), Y.to(torch.complex64)
    result = torch.zeros(3, 5, dtype=torch.complex64).conj()
    text = sentence_of(MATMUL, x, y, out=result)
    assert text.startswith("out is a conjugate or negative view; pass")


@pytest.mark.parametrize("view", [lambda m: m[:9], lambda m: m[4:13], lambda m: m[8:17]])
def test_results_that_share_memory(view):
    memory = torch.zeros(20)
    a, b = memory[:9].view(3, 3), torch.zeros(3, 3)
    result = view(memory).view(3, 3)
    assert sentence_of(MATMUL, a, b, out=result) == (
        "out may share memory with a, which is read meanwhile: their elements have addresses in "
        "one range, or places in one part of a file; pass another tensor"
    )
    assert "memory with b" in sentence_of(MATMUL, b, a, out=result)
    beside = memory[9:18].view(3, 3)
    assert MATMUL(a, b, out=beside) is beside


@pytest.mark.parametrize("of_out", [slice(30, 40), slice(0, 10)])
def test_columns_of_one_matrix(of_out):
    """Those beside an operand's share no element with it."""
    memory = torch.randn(20, 40)
    a, b, out = memory[:, 10:30], torch.randn(20, 10), memory[:, of_out]
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    MATMUL(a, b, out=out, algorithm="tiled", devices="cpu")
    assert torch.equal(out, expected)
    text = sentence_of(MATMUL, a, b, out=memory[:, 29:39])
    assert text.startswith("out may share memory with a")


def test_results_beyond_memory():
    a, b = torch.empty(1).expand(2**33, 1), torch.empty(1).expand(1, 2**20)
    with pytest.raises(torch.OutOfMemoryError, match=r"bytes of the host's memory; pass an out"):
        MATMUL(a, b)
    a, b = torch.empty(1).expand(2**31, 2**31, 1), torch.empty(1).expand(1, 4)
    for call in (MATMUL, torch_tiled.stream.plan):
        text = sentence_of(call, a, b, max_device_bytes=2**30)
        assert text.startswith("the result would be (2147483648, 2147483648, 4)")


def test_tracers_are_refused():
    """They would record a result that nothing has written."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def of(call, other):
        return lambda x: call(x, other)

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for call, other in ((MATMUL, y), (LINEAR, y.mT)):
        for trace in (lambda f: make_fx(f)(x), lambda f: torch.jit.trace(f, (x,))):
            with pytest.raises(RuntimeError, match="torch.jit.trace or a torch dispatch mode"):
                trace(of(call, other))
        with torch._subclasses.FakeTensorMode():
            assert "dispatch mode" in sentence_of(call, x, other)


@needs_cuda
def test_operands_that_are_both_on_the_gpu():
    text = sentence_of(MATMUL, X.cuda(), Y.cuda())
    assert "one of them must be on the CPU" in text and "torch_tiled.matmul" in text


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors(dtype):
    x, y = (torch.quantize_per_tensor(t, 0.1, 0, dtype) for t in (X, Y))
    for args in ((x, y), (X, y), (x, Y)):
        text = sentence_of(MATMUL, *args)
        assert f"is a quantized tensor (torch.strided, {dtype}); use" in text


class Tagged(torch.Tensor):
    pass


def nested(layout):
    return torch.nested.nested_tensor([X, X], layout=layout)


NESTED = (
    "a nested tensor ({}, torch.float32); use torch.nested.to_padded_tensor(a, 0.0), or a loop "
    "over a.unbind()"
)
# A name, a function that makes a tensor, the sentence after "a is", and what its remedy makes.
NOT_PLAIN = [
    *(
        (
            str(x),
            lambda x=x: nested(x),
            NESTED.format(x),
            lambda a: [a.to_padded_tensor(0), *a.unbind()],
        )
        for x in (torch.strided, torch.jagged)
    ),
    (
        "masked",
        lambda: torch.masked.masked_tensor(X, X == 0),
        "a MaskedTensor; pass a.to_tensor(0), with zeros where the mask is False",
        lambda a: [a.to_tensor(0)],
    ),
    (
        "another",
        lambda: X.as_subclass(Tagged),
        "a Tagged, a subclass of torch.Tensor; pass a.as_subclass(torch.Tensor)",
        lambda a: [a.as_subclass(torch.Tensor)],
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make, sentence, remedy", cases(NOT_PLAIN))
def test_tensors_that_are_not_plain(make, sentence, remedy):
    assert sentence_of(MATMUL, make(), Y) == f"a is {sentence}"
    for plain in remedy(make()):
        assert torch.equal(MATMUL(plain, Y), torch_tiled.matmul(plain, Y))


def test_fake_tensors():
    with FakeTensorMode():
        fake = torch.zeros(4, 5)
    text = sentence_of(torch_tiled.stream.plan, X, fake, max_device_bytes=1 << 30)
    assert text == (
        "b is a FakeTensor; pass a tensor with elements, or to torch_tiled.stream.plan one on meta"
    )


@pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")
def test_dtensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = distribute_tensor(X, init_device_mesh("cpu", (1,)), [Shard(0)])
        text = sentence_of(MATMUL, sharded, Y)
        remedy = "pass a.full_tensor(), or a.to_local(), the part of this process"
        assert text == f"a is a DTensor; {remedy}"
        for plain in (sharded.full_tensor(), sharded.to_local()):
            MATMUL(plain, Y)
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
        MATMUL(x, y)
    except RuntimeError as error:
        assert str(error).startswith("torch_tiled.stream.matmul: a is ")


EMPTY_OUT = {
    "expanded": lambda: torch.zeros(1, 5).expand(3, 5)[:0],
    "no strides": lambda: torch.zeros(1, 1).expand(0, 5),
}


@pytest.mark.parametrize("make_out", EMPTY_OUT.values(), ids=EMPTY_OUT)
def test_results_of_no_elements_share_none(make_out):
    result = make_out()
    assert MATMUL(X[:0], Y, out=result) is result
    assert LINEAR(X[:0], Y.mT, out=result) is result
    plan = torch_tiled.stream.plan(X[:0], Y, out=result, max_device_bytes=1)
    assert plan.bytes_out == 0


def test_a_bad_call_leaves_out_as_it_was():
    result = torch.ones(3, 5)
    sentence_of(MATMUL, X, Y, out=result, devices=[])
    sentence_of(MATMUL, X, Y, out=result, max_device_bytes=-1)
    assert (result == 1).all()


def test_forward_mode_tangents():
    x = torch.randn(3, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match="b has a forward-mode tangent"):
            MATMUL(x, dual)


def test_transforms():
    x = torch.randn(3, 3)
    for transformed in (
        torch.vmap(MATMUL, in_dims=(0, None)),
        lambda a, b: torch.func.jvp(MATMUL, (a, b), (a, b)),
    ):
        with pytest.raises(RuntimeError, match="torch.vmap and the transforms of torch.func"):
            transformed(x[None], x)


def test_compiled_callers():
    """The call breaks the graph, without a warning."""
    shares = []

    def function(x, y):
        product = MATMUL(
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


# --- options -------------------------------------------------------------------------------------

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
# Whatever devices are there, and with the remedy of each.
NOT_POSITIVE = [0, -1, -(2**40), np.int64(0), torch.tensor(-3)]
NO_NUMBERS = [
    True,
    np.True_,
    1.5,
    16e9,
    "16GiB",
    [1],
    np.ones(3),
    float("nan"),
    float("inf"),
    object,
]
NO_DEVICES = [
    *("gpu", "", "cuda:x", "cuda:-1", "cuda:1000", f"cuda:{2**40}", b"cuda", 1.5, object, True),
    *(-1, 200, 2**40, np.int64(-1), np.True_, np.zeros(2), {0}, {1.5}, {"cuda": 0}, iter("ab")),
    *([None], [["cuda"]], [0, -5], [0, 200], [False], [b"cuda"], ["cuda", ""], (0, None)),
]
BAD_DEVICES = [
    ("empty", [], "devices is empty; name a GPU, or pass None"),
    ("empty tuple", (), "devices is empty; name a GPU, or pass None"),
    ("cpu and cuda", ["cpu", "cuda:0"], "devices has cpu; each must be a CUDA device"),
    ("cuda and cpu", ["cuda:0", "cpu"], "devices has "),
    ("the CPU twice", ["cpu", "cpu"], "devices has cpu; each must be a CUDA device"),
    ("meta", "meta", "devices has meta; each must be a CUDA device, or the CPU alone"),
    ("other kinds", ["xpu"], "devices has xpu; each must be a CUDA device, or the CPU alone"),
    ("beyond those here", 127, "devices has cuda:127, which is not here; pass "),
    ("a device that wrapped", torch.device("cuda", 200), "devices has cuda:-56, which is not here"),
]
both_calls = pytest.mark.parametrize(
    "call", [MATMUL, torch_tiled.stream.plan], ids=["matmul", "plan"]
)


def in_one_line(value):
    return " ".join(repr(value).split())


@both_calls
@pytest.mark.parametrize("value", NOT_POSITIVE, ids=str)
def test_bytes_that_are_not_positive(value, call):
    text = sentence_of(call, X, Y, max_device_bytes=value)
    assert text == f"max_device_bytes is {int(value)}; it must be positive"


@both_calls
@pytest.mark.parametrize("value", NO_NUMBERS, ids=str)
def test_bytes_that_are_no_whole_number(value, call):
    assert sentence_of(call, X, Y, max_device_bytes=value) == (
        f"max_device_bytes is {in_one_line(value)}; pass a whole number of bytes, such as int(16e9)"
    )


@pytest.mark.parametrize("kind", [int, np.int32, np.uint64, torch.tensor])
def test_bytes_of_any_integer_type(kind):
    plan = torch_tiled.stream.plan(X, Y, devices="cpu", max_device_bytes=kind(1 << 30))
    assert plan == torch_tiled.stream.plan(X, Y, devices="cpu", max_device_bytes=1 << 30)


@both_calls
@pytest.mark.parametrize("devices, begin", cases(BAD_DEVICES))
def test_bad_devices(devices, begin, call):
    text = sentence_of(call, X, Y, devices=devices, max_device_bytes=1 << 30)
    assert text.startswith(begin)


@both_calls
@pytest.mark.parametrize("devices", NO_DEVICES)
def test_what_names_no_devices(devices, call):
    text = sentence_of(call, X, Y, devices=devices, max_device_bytes=1 << 30)
    begin = f"devices is {in_one_line(devices)}, which names no devices; "
    gpus = torch.cuda.device_count()
    remedy = f'pass "cpu", or one or a list of the {gpus} GPUs here, such as 0 or "cuda:0"'
    assert text == begin + (remedy if gpus else 'pass "cpu" or None, since there is no GPU here')


@no_gpu
@pytest.mark.parametrize(
    "devices", ["cuda", "cuda:0", ["cuda:0", "cuda:1"], 0, np.int64(0), [torch.device("cuda")]]
)
def test_devices_that_are_not_there(devices):
    text = sentence_of(MATMUL, X, Y, devices=devices)
    assert text.startswith("devices has cuda") and "no GPU here" in text


@pytest.mark.parametrize("progress", ["x", "", 1, 0, np.True_, [], object()])
def test_progress_that_is_no_function(progress):
    text = sentence_of(MATMUL, X, Y, progress=progress)
    remedy = "pass True, False or a function of a Progress"
    assert text == f"progress is {in_one_line(progress)}; {remedy}"


@pytest.mark.parametrize("progress", [None, False, True, lambda progress: None, print, str])
def test_progress_that_is_taken(progress, capsys):
    MATMUL(X, Y, devices="cpu", progress=progress)


def test_a_call_within_a_call_has_its_own_name():
    def nested(progress):
        torch_tiled.stream.plan(X, Y, max_device_bytes=0)

    with pytest.raises(RuntimeError, match="^torch_tiled.stream.plan: max_device_bytes is 0"):
        MATMUL(X, Y, devices="cpu", progress=nested)


@needs_cuda
def test_a_device_that_is_named_twice():
    text = sentence_of(MATMUL, X, Y, devices=["cuda:0", "cuda:0"])
    assert text == "devices names a GPU twice: cuda:0, cuda:0"


@no_gpu
def test_a_plan_without_a_gpu_needs_bytes():
    text = sentence_of(torch_tiled.stream.plan, X, Y)
    assert text == "there is no GPU whose memory counts; pass max_device_bytes"


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_bar_without_stderr(is_closed, tmp_path, monkeypatch):
    """Processes without a console have none, and draw nothing."""
    file = open(tmp_path / "closed", "w") if is_closed else None
    if is_closed:
        file.close()
    monkeypatch.setattr("sys.stderr", file)
    x = torch.randn(5, 5)
    assert MATMUL(x, x, progress=True).shape == (5, 5)
