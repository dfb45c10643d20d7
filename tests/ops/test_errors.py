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
    assert_raises,
    assert_still_multiplies,
    each_api,
    not_taken,
    unsupported,
    zeros_on,
)
from helpers.needs import needs_cuda

import torch_tiled

ops = torch.ops.tiled


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@each_api
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


@each_api
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


def test_imaginary_factors_of_real_tensors_are_refused(device):
    for name in ("alpha", "beta"):
        sentence = (
            f"tiled::gemm_: {name} has the imaginary part 0.500000 and c is torch.float32; pass a "
            f"real {name}, or complex tensors"
        )
        for x in (torch.zeros(2, 2, device=device), torch.zeros(2, 2, device="meta")):
            assert_raises(sentence, ops.gemm_, x, x + 1, x + 1, **{f"{name}_imag": 0.5})
            assert_raises(sentence, torch_tiled.gemm_, x, x + 1, x + 1, **{name: 0.5j})


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
    "value, kind", [(3, "int"), (2.5, "float"), (np.ones((2, 2), np.float32), "ndarray")], ids=str
)
def test_operators_refuse_numbers_and_arrays(device, value, kind):
    """test_errors_types.py has the sentences of the functions."""
    x = torch.zeros(2, 2, device=device)
    for name, call in (
        ("a", lambda: ops.matmul(value, x)),
        ("b", lambda: ops.matmul(x, value)),
        ("b", lambda: ops.gemm_(x, x, value)),
        ("weight", lambda: ops.linear(x, value)),
    ):
        text = f"{name} is of type {kind}; pass a tensor"
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
NESTED = (
    f"is a nested tensor ({{0.layout}}, torch.float32), {DENSE_ONLY} "
    "torch.nested.to_padded_tensor({1}, 0.0), or a loop over {1}.unbind()"
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
    "nested": (lambda x: torch.nested.as_nested_tensor([x, x]), NESTED),
    "jagged": (lambda x: torch.nested.as_nested_tensor([x, x], layout=torch.jagged), NESTED),
    "mkldnn": (
        torch.Tensor.to_mkldnn,
        f"is a mkldnn tensor (torch._mkldnn, torch.float32), {DENSE_ONLY} {{1}}.to_dense()",
    ),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated)")
@each_api
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_only_dense_tensors_are_taken(device, api, kind, requires_grad):
    if kind == "mkldnn" and not (device == "cpu" and torch.backends.mkldnn.is_available()):
        pytest.skip("mkldnn tensors are PyTorch's on a CPU with oneDNN")
    make, sentence = NOT_DENSE[kind]
    dense = torch.eye(2, device=device, requires_grad=requires_grad)
    other = make(dense.detach() if kind in ("quantized", "mkldnn") else dense)
    calls = (
        ("matmul", "a", lambda: api.matmul(other, dense)),
        ("matmul", "a", lambda: api.matmul(other, other)),
        ("matmul", "b", lambda: api.matmul(dense, other)),
        ("matmul", "out", lambda: api.matmul(dense, dense, out=other)),
        ("gemm_", "c", lambda: api.gemm_(other, dense, dense)),
        ("gemm_", "a", lambda: api.gemm_(dense, other, dense)),
        ("gemm_", "b", lambda: api.gemm_(dense, dense, other)),
        ("linear", "x", lambda: api.linear(other, dense)),
        ("linear", "weight", lambda: api.linear(dense, other)),
        ("linear", "weight", lambda: api.linear(dense, other, activation="gelu")),
        ("linear", "bias", lambda: api.linear(dense, dense, other)),
    )
    for op, name, call in calls:
        writes = name in ("c", "out") or op == "gemm_"
        with torch.set_grad_enabled(requires_grad and not writes):
            assert_raises(f"tiled::{op}: {name} {sentence.format(other, name)}", call)
    assert torch.equal(dense, torch.eye(2, device=device))
    assert_still_multiplies(device)


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["meta", pytest.param("cuda", marks=needs_cuda)])
@each_api
def test_operands_are_on_one_device(api, other, device):
    if other == device:
        pytest.skip("one device")
    here, there = torch.zeros(2, 2, device=device), torch.zeros(2, 2, device=other)
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
    for each in {device, other} - {"meta"}:
        assert_still_multiplies(each)


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
    for memory in (
        torch.arange(12.0, device=device).view(2, 6),
        torch.randn(24, 72, device=device),
    ):
        a, b, out = memory[:, 0::3], memory[:, 1::3], memory[:, 2::3]
        kept = a.clone(), b.clone()
        expected = torch_tiled.matmul(*kept, algorithm=algorithm)
        assert torch_tiled.matmul(a, b, out=out, algorithm=algorithm) is out
        assert torch.equal(out, expected)
        assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
