"""Bad calls raise a sentence, word for word as here, and leave the process able to work."""

import numpy as np
import pytest
import torch
from helpers.bad_calls import (
    BAD_CALLS,
    FP16X3,
    IEEE_FP16X3,
    MMA,
    NO_ALGORITHM,
    NO_PRECISION,
    NO_SCALARS,
    NOT_IEEE,
    TF32,
    TF32_ALONE,
    not_taken,
    unsupported,
)
from helpers.needs import needs_cuda
from helpers.reference import takes

import torch_tiled

APIS = [torch_tiled, torch.ops.tiled]


def zeros_on(device):
    """A function that makes zeros on the device, of a shape given by its arguments."""

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=device)

    return zeros


def assert_still_multiplies(device):
    """Checks a product of every algorithm, and on CUDA waits for earlier launches."""
    a = torch.arange(6.0, device=device).reshape(2, 3)
    for algorithm in (*torch_tiled.algorithms(), "auto"):
        if not takes(algorithm, a.dtype, a.device.type):
            continue
        c = torch_tiled.matmul(a, a.mT, algorithm=algorithm)
        assert c.tolist() == [[5.0, 14.0], [14.0, 50.0]]


def assert_raises(sentence, call, *args, kind=RuntimeError, **options):
    with pytest.raises(kind) as raised:
        call(*args, **options)
    assert type(raised.value) is kind
    assert str(raised.value) == sentence


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
@pytest.mark.parametrize("call, sentence", BAD_CALLS)
def test_bad_call(device, api, call, sentence):
    assert_raises(sentence, call, api, zeros_on(device))
    assert_still_multiplies(device)


@pytest.mark.parametrize("call, sentence", BAD_CALLS)
def test_bad_call_raises_the_same_sentence_on_meta_tensors(call, sentence):
    assert_raises(sentence, call, torch.ops.tiled, zeros_on("meta"))


@needs_cuda
def test_a_gpu_without_the_tensor_cores_is_refused():
    capability = torch.cuda.get_device_capability()
    if capability == (9, 0):
        pytest.skip("this GPU has them")
    x = torch.ones(64, 64, device="cuda")
    sentence = (
        'tiled::matmul: algorithm "fp16x3" needs a Hopper GPU (compute capability 9.0), and this '
        f"one has {capability[0]}.{capability[1]}; choose auto, naive, tiled or simt"
    )
    assert_raises(sentence, torch_tiled.matmul, x, x, **FP16X3)
    of_tf32 = sentence.replace("fp16x3", "tf32")
    assert_raises(of_tf32, torch_tiled.matmul, x, x, precision="tf32", **TF32)
    of_mma = sentence.replace("fp16x3", "mma_tma").replace("or simt", "or mma_sync")
    assert_raises(of_mma, torch_tiled.matmul, x.half(), x.half(), algorithm="mma_tma")
    simt = torch_tiled.matmul(x, x, algorithm="simt")
    assert torch.equal(simt, torch_tiled.matmul(x, x, algorithm="tiled"))


@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
def test_explain_refuses_what_matmul_refuses(device, api):
    t = zeros_on(device)
    for sentence, a, b, options in (
        (f"a is () and b is (3,); {NO_SCALARS}", t(), t(3), {}),
        ("a is (3, 4) and b is (5, 6); a's columns must equal b's rows", t(3, 4), t(5, 6), {}),
        (f"a is {unsupported(torch.int64)}", t(3, dtype=torch.int64), t(3), {}),
        (NO_ALGORITHM, t(3), t(3), {"algorithm": "magic"}),
        (NO_PRECISION, t(3), t(3), {"precision": "fp8"}),
        (TF32_ALONE, t(3), t(3), TF32),
        (NOT_IEEE, t(3), t(3), IEEE_FP16X3),
        (not_taken("fp16x3", torch.half), t(3, dtype=torch.half), t(3, dtype=torch.half), FP16X3),
        (not_taken("mma", torch.float32), t(3), t(3), MMA),
    ):
        assert_raises(f"tiled::explain: {sentence}", api.explain, a, b, **options)


H200 = {"compute_capability": 90, "sms": 132}


@pytest.mark.parametrize(
    "gpu, sentence",
    [
        ({"compute_capability": 90}, "compute_capability is given without sms; give both"),
        ({"sms": 132}, "sms is given without compute_capability; give both"),
        (
            H200 | {"compute_capability": 75},
            "compute_capability is 75 and sms is 132; a GPU has at least 80 (for 8.0) and from 1 "
            "to 65536 SMs, such as 90 and 132",
        ),
    ],
)
def test_explain_refuses_a_gpu_that_cannot_be(gpu, sentence):
    x = torch.ones(64, 64)
    assert_raises(f"tiled::explain: {sentence}", torch_tiled.explain, x, x, **gpu)


def test_explain_plans_for_meta_tensors_where_a_gpu_is_named():
    a, b = torch.ones(300, 700), torch.ones(500, 700).mT
    plan = torch_tiled.explain(a.to("meta"), b.to("meta"), **H200)
    assert plan == torch_tiled.explain(a, b, **H200)
    sentence = (
        "tiled::explain: no kernel runs on the meta device; pass the compute_capability and sms of "
        "a GPU, such as 90 and 132"
    )
    assert_raises(sentence, torch_tiled.explain, a.to("meta"), b.to("meta"))


def test_explain_refuses_a_prepared_operand():
    a, b = torch.ones(3, 64), torch_tiled.prepare(torch.ones(64, 5))
    sentence = "tiled::explain: b is prepared; pass b.tensor, the unprepared operand"
    assert_raises(sentence, torch_tiled.explain, a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_precision_is_ignored_but_for_float32(device, dtype):
    a = torch.eye(3, dtype=dtype, device=device)
    for precision in ("fp32", "ieee", "tf32"):
        assert torch.equal(torch_tiled.matmul(a, a, precision=precision), a)


# --- arguments that are no dense tensors ---------------------------------------------------------


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda t: torch_tiled.matmul(t, None), "tiled::matmul: b is None; it must be a tensor"),
        (lambda t: torch_tiled.matmul(None, t), "tiled::matmul: a is None; it must be a tensor"),
        (lambda t: torch_tiled.gemm_(t, t, None), "tiled::gemm_: b is None; it must be a tensor"),
        (lambda t: torch_tiled.linear(None, t), "tiled::linear: x is None; it must be a tensor"),
    ],
)
def test_none_is_refused(device, call, sentence):
    assert_raises(sentence, call, torch.zeros(2, 2, device=device))
    assert_still_multiplies(device)


@pytest.mark.parametrize(
    "value, kind", [(3, "int"), (2.5, "float"), (np.ones((2, 2), np.float32), "ndarray")], ids=str
)
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
def test_numbers_and_arrays_are_refused(device, api, value, kind):
    """The functions say what to pass; PyTorch's dispatcher refuses the operators' arguments."""
    x = torch.zeros(2, 2, device=device)
    for name, call in (
        ("a", lambda: api.matmul(value, x)),
        ("b", lambda: api.matmul(x, value)),
        ("b", lambda: api.gemm_(x, x, value)),
        ("weight", lambda: api.linear(x, value)),
    ):
        text = f"{name} is of type {kind}; pass a tensor"
        if api is torch.ops.tiled:
            text = f"type 'Tensor' for argument '{name}' but instead found type '{kind}'"
        with pytest.raises(RuntimeError, match=text):
            call()
    assert_still_multiplies(device)


def quantize(x):
    return torch.quantize_per_tensor(x, scale=1.0, zero_point=0, dtype=torch.qint8)


DENSE_ONLY = "and only dense tensors are taken; use"
SPARSE = (
    f"is a sparse tensor ({{0.layout}}, torch.float32), {DENSE_ONLY} {{1}}.to_dense(), or "
    "torch.sparse.mm"
)
NOT_DENSE = {
    "coo": (torch.Tensor.to_sparse, SPARSE),
    "csr": (torch.Tensor.to_sparse_csr, SPARSE),
    "csc": (torch.Tensor.to_sparse_csc, SPARSE),
    "bsr": (lambda x: x.to_sparse_bsr((1, 1)), SPARSE),
    "bsc": (lambda x: x.to_sparse_bsc((1, 1)), SPARSE),
    "quantized": (
        quantize,
        f"is a quantized tensor (torch.strided, torch.qint8), {DENSE_ONLY} {{1}}.dequantize()",
    ),
    "nested": (
        lambda x: torch.nested.nested_tensor([x, x]),
        f"is a nested tensor (torch.strided, torch.float32), {DENSE_ONLY} "
        "torch.nested.to_padded_tensor({1}, 0.0), or a loop over {1}.unbind()",
    ),
    "mkldnn": (
        torch.Tensor.to_mkldnn,
        f"is a mkldnn tensor (torch._mkldnn, torch.float32), {DENSE_ONLY} {{1}}.to_dense()",
    ),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated)")
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_only_dense_tensors_are_taken(device, api, kind):
    if kind == "mkldnn" and not (device == "cpu" and torch.backends.mkldnn.is_available()):
        pytest.skip("mkldnn tensors are PyTorch's on a CPU with oneDNN")
    make, sentence = NOT_DENSE[kind]
    dense = torch.eye(2, device=device)
    other = make(dense)
    for op, name, call in (
        ("matmul", "a", lambda: api.matmul(other, dense)),
        ("matmul", "b", lambda: api.matmul(dense, other)),
        ("matmul", "out", lambda: api.matmul(dense, dense, out=other)),
        ("gemm_", "c", lambda: api.gemm_(other, dense, dense)),
        ("gemm_", "a", lambda: api.gemm_(dense, other, dense)),
        ("gemm_", "b", lambda: api.gemm_(dense, dense, other)),
        ("linear", "x", lambda: api.linear(other, dense)),
        ("linear", "weight", lambda: api.linear(dense, other)),
        ("linear", "bias", lambda: api.linear(dense, dense, other)),
    ):
        assert_raises(f"tiled::{op}: {name} {sentence.format(other, name)}", call)
    assert_still_multiplies(device)


# --- devices -------------------------------------------------------------------------------------

OTHER_DEVICES = ["meta", pytest.param("cuda", marks=needs_cuda)]


@pytest.mark.parametrize("other", OTHER_DEVICES)
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
def test_operands_are_on_one_device(api, other):
    here, there = torch.zeros(2, 2), torch.zeros(2, 2, device=other)
    for op, x, y, call in (
        ("matmul", ("a", here), ("b", there), lambda: api.matmul(here, there)),
        ("matmul", ("a", there), ("b", here), lambda: api.matmul(there, here)),
        ("matmul", ("out", there), ("a", here), lambda: api.matmul(here, here, out=there)),
        ("matmul", ("out", here), ("a", there), lambda: api.matmul(there, there, out=here)),
        ("gemm_", ("c", there), ("a", here), lambda: api.gemm_(there, here, here)),
        ("gemm_", ("a", here), ("b", there), lambda: api.gemm_(here, here, there)),
        ("linear", ("x", here), ("weight", there), lambda: api.linear(here, there)),
        ("linear", ("bias", there[0]), ("x", here), lambda: api.linear(here, here, there[0])),
        ("linear", ("bias", here[0]), ("x", there), lambda: api.linear(there, there, here[0])),
    ):
        (x_name, x), (y_name, y) = x, y
        assert_raises(
            f"tiled::{op}: {x_name} is on {x.device} and {y_name} is on {y.device}; "
            "move one of them so that both are on one device",
            call,
        )
    assert_still_multiplies("cpu")
    if other == "cuda":
        assert_still_multiplies("cuda")


# --- outputs that share memory -------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["naive", "auto"])
def test_output_that_shares_memory_is_refused(device, algorithm):
    memory = torch.arange(64.0, device=device)
    before = memory.clone()
    a, b = memory[0:4].view(2, 2), memory[4:8].view(2, 2)

    def refused(name, written):
        other = f"shares memory with {name}; pass {name}.clone()"
        matmul, gemm_ = torch_tiled.matmul, torch_tiled.gemm_
        assert_raises(f"tiled::matmul: out {other}", matmul, a, b, out=written, algorithm=algorithm)
        assert_raises(f"tiled::gemm_: c {other}", gemm_, written, a, b, algorithm=algorithm)

    refused("a", a)
    refused("a", a.mT)
    refused("b", b)
    refused("a", memory[3:7].view(2, 2))  # shares memory with a and b
    refused("b", memory[7:11].view(2, 2))
    refused("b", memory[1:33].view(2, 16)[:, 5:7])
    assert torch.equal(memory, before)

    windows = torch.as_strided(memory, (2, 2), (1, 1), 32)
    assert_raises(
        "tiled::matmul: out has elements that share memory (shape (2, 2), strides (1, 1)); pass a "
        "tensor whose elements lie apart, such as its clone(), which then has the result",
        torch_tiled.matmul,
        a,
        b,
        out=windows,
        algorithm=algorithm,
    )
    assert torch.equal(memory, before)
    assert_still_multiplies(device)


@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
def test_interleaved_columns_of_one_storage_are_fine(device, algorithm):
    memory = torch.arange(12.0, device=device).view(2, 6)
    a, b, out = memory[:, 0::3], memory[:, 1::3], memory[:, 2::3]
    expected = a.clone() @ b.clone()
    kept = a.clone(), b.clone()
    assert torch_tiled.matmul(a, b, out=out, algorithm=algorithm) is out
    assert torch.equal(out, expected)
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])


# --- results too large ---------------------------------------------------------------------------


def expanded(device, rows, cols, dtype=torch.float32):
    """The operands of a (rows, cols) product, which themselves take no memory."""
    one = torch.ones(1, 1, dtype=dtype, device=device)
    return one.expand(rows, 1), one.expand(1, cols)


@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
def test_result_of_more_bytes_than_can_be_counted(device, api, algorithm):
    a, b = expanded(device, 2**40, 2**40)
    shape = "(1099511627776, 1099511627776)"
    sentence = f"the result would be {shape}, more bytes than 63 bits can count"
    assert_raises(f"tiled::matmul: {sentence}", api.matmul, a, b, algorithm=algorithm)
    assert_raises(f"tiled::linear: {sentence}", api.linear, a, b.mT, algorithm=algorithm)
    assert_still_multiplies(device)


@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
def test_out_of_memory(device, api, algorithm):
    for dtype, size in ((torch.float32, 2**60), (torch.bfloat16, 2**59)):
        if not takes(algorithm, dtype, device):
            continue
        a, b = expanded(device, 2**30, 2**28, dtype)
        sentence = (
            f"out of memory: the result (1073741824, 268435456) of {dtype} needs {size} bytes on "
            f"{a.device}"
        )
        for op, call, x, y in (("matmul", api.matmul, a, b), ("linear", api.linear, a, b.mT)):
            assert_raises(
                f"tiled::{op}: {sentence}",
                call,
                x,
                y,
                kind=torch.OutOfMemoryError,
                algorithm=algorithm,
            )
    assert a[0, 0] == 1 and b[0, 0] == 1
    assert_still_multiplies(device)


def test_out_of_memory_where_gradients_are_wanted_or_ruled_out(device):
    a, b = expanded(device, 2**30, 2**28)
    with pytest.raises(torch.OutOfMemoryError, match=f"needs {2**60} bytes"):
        torch_tiled.matmul(a.requires_grad_(), b)
    with torch.inference_mode(), pytest.raises(torch.OutOfMemoryError, match=f"{2**60} bytes"):
        torch_tiled.matmul(a, b)


@needs_cuda
@pytest.mark.parametrize("algorithm", torch_tiled.algorithms())
def test_out_of_the_memory_that_a_gpu_has(algorithm):
    if not takes(algorithm, torch.float32, "cuda"):
        pytest.skip("the algorithm needs another GPU")
    rows = torch.cuda.get_device_properties("cuda").total_memory // 2**20 + 1
    a, b = expanded("cuda", rows, 2**18)  # rows of a mebibyte
    assert_raises(
        f"tiled::matmul: out of memory: the result ({rows}, 262144) of torch.float32 needs "
        f"{rows * 2**20} bytes on cuda:0",
        torch_tiled.matmul,
        a,
        b,
        kind=torch.OutOfMemoryError,
        algorithm=algorithm,
    )
    assert_still_multiplies("cuda")
