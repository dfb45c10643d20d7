"""Bad calls: each raises a sentence, word for word as here, and leaves the process able to work."""

import numpy as np
import pytest
import torch
from needs import needs_cuda
from reference import takes

import torch_tiled

APIS = [torch_tiled, torch.ops.tiled]
ALGORITHMS = ", ".join(["auto", *torch_tiled.algorithms()])
UNSUPPORTED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
SUPPORTED_ARE = (
    "supported are float32, float64, float16 and bfloat16: convert it, for example with "
    ".to(torch.float32)"
)
NO_RUNG = f'there is no algorithm "magic"; choose {ALGORITHMS}'
NO_PRECISION = 'there is no precision "fp8"; choose fp32, ieee or tf32'
FLOAT32_ONLY = (
    'algorithm "fp16x3" takes float32 operands; choose auto, naive or tiled for other dtypes, or '
    "mma for float16 and bfloat16"
)
HALVES_ONLY = (
    'algorithm "mma" takes float16 and bfloat16 operands; choose auto, naive or tiled for other '
    "dtypes, or simt or fp16x3 for float32"
)
NOT_IEEE = (
    'algorithm "fp16x3" does not sum by IEEE FMAs, as precision ieee asks; choose auto, naive, '
    "tiled or simt, or precision fp32"
)
TF32_ALONE = (
    'algorithm "tf32" rounds operands to 11 bits, which precision tf32 alone allows; choose auto, '
    "or precision tf32"
)
FP16X3 = {"algorithm": "fp16x3"}
MMA = {"algorithm": "mma"}
SIMT = {"algorithm": "simt"}
IEEE_FP16X3 = FP16X3 | {"precision": "ieee"}
TF32 = {"algorithm": "tf32"}
IEEE_TF32 = TF32 | {"precision": "ieee"}
NO_SCALARS = "both need at least one dimension (torch.mul multiplies by a scalar)"
ONE_DTYPE = "convert one of them so that both have one dtype"
PASS_A_CLONE = "pass a clone() of one of them"


def zeros_on(device):
    """A function that makes a tensor of zeros of a shape given dimension by dimension."""

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=device)

    return zeros


def assert_still_multiplies(device):
    """Compares a product with what it must be, which on CUDA also waits for every launch."""
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


# --- calls that are wrong by shapes, dtypes and options alone -------------------------------------
#
# Each takes the namespace (torch_tiled or torch.ops.tiled) and a function that makes tensors.

MATMUL = {
    # ranks and shapes
    "a_scalar": (
        lambda m, t: m.matmul(t(), t(3)),
        f"a is () and b is (3,); {NO_SCALARS}",
    ),
    "b_scalar": (
        lambda m, t: m.matmul(t(2, 3), t()),
        f"a is (2, 3) and b is (); {NO_SCALARS}",
    ),
    "inner": (
        lambda m, t: m.matmul(t(3, 4), t(5, 6)),
        "a is (3, 4) and b is (5, 6); a's columns must equal b's rows",
    ),
    "inner_empty": (
        lambda m, t: m.matmul(t(3, 0), t(1, 6)),
        "a is (3, 0) and b is (1, 6); a's columns must equal b's rows",
    ),
    "inner_vectors": (
        lambda m, t: m.matmul(t(3), t(4)),
        "a is (3,) and b is (4,); a's columns must equal b's rows",
    ),
    "inner_vector_matrix": (
        lambda m, t: m.matmul(t(3), t(4, 3)),
        "a is (3,) and b is (4, 3); a's columns must equal b's rows",
    ),
    "inner_batch_vector": (
        lambda m, t: m.matmul(t(2, 4, 3), t(4)),
        "a is (2, 4, 3) and b is (4,); a's columns must equal b's rows",
    ),
    "batch": (
        lambda m, t: m.matmul(t(2, 3, 4), t(3, 4, 5)),
        "a is (2, 3, 4) and b is (3, 4, 5); their batch dimensions (2,) and (3,) do not broadcast",
    ),
    "batch_ranks": (
        lambda m, t: m.matmul(t(7, 2, 3, 4), t(7, 4, 5)),
        "a is (7, 2, 3, 4) and b is (7, 4, 5); their batch dimensions (7, 2) and (7,) do not "
        "broadcast",
    ),
    "batch_empty": (
        lambda m, t: m.matmul(t(0, 3, 4), t(2, 4, 5)),
        "a is (0, 3, 4) and b is (2, 4, 5); their batch dimensions (0,) and (2,) do not broadcast",
    ),
    # dtypes
    **{
        f"a_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(t(2, 2, dtype=dtype), t(2, 2)),
            f"a is {dtype}; {SUPPORTED_ARE}",
        )
        for dtype in UNSUPPORTED
    },
    "b_int64": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2, dtype=torch.int64)),
        f"b is torch.int64; {SUPPORTED_ARE}",
    ),
    "mixed_floats": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2, dtype=torch.float64)),
        f"a is torch.float32 and b is torch.float64; {ONE_DTYPE}",
    ),
    "mixed_halves": (
        lambda m, t: m.matmul(t(2, dtype=torch.bfloat16), t(2, 2, dtype=torch.float16)),
        f"a is torch.bfloat16 and b is torch.float16; {ONE_DTYPE}",
    ),
    **{
        f"out_dtype_{of}_{to}": (
            lambda m, t, of=of, to=to: m.matmul(t(2, 2, dtype=of), t(2, 2, dtype=of), out_dtype=to),
            f"out_dtype is {to} and the operands are {of}; it may be the operands' dtype or, for "
            "float16 and bfloat16, torch.float32",
        )
        for of, to in [
            (torch.float32, torch.float64),
            (torch.float32, torch.float16),
            (torch.float64, torch.float32),
            (torch.float16, torch.bfloat16),
            (torch.bfloat16, torch.float64),
            (torch.float16, torch.int32),
        ]
    },
    # options
    "algorithm": (lambda m, t: m.matmul(t(2, 2), t(2, 2), algorithm="magic"), NO_RUNG),
    "algorithm_empty_result": (lambda m, t: m.matmul(t(0, 2), t(2, 0), algorithm="magic"), NO_RUNG),
    "precision": (lambda m, t: m.matmul(t(2, 2), t(2, 2), precision="fp8"), NO_PRECISION),
    "precision_float64": (
        lambda m, t: m.matmul(
            t(2, 2, dtype=torch.float64), t(2, 2, dtype=torch.float64), precision="fp8"
        ),
        NO_PRECISION,
    ),
    "tf32": (lambda m, t: m.matmul(t(2, 2), t(2, 2), **TF32), TF32_ALONE),
    "tf32_ieee": (lambda m, t: m.matmul(t(2, 2), t(2, 2), **IEEE_TF32), TF32_ALONE),
    "tf32_tma": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2), algorithm="tf32_tma"),
        TF32_ALONE.replace("tf32", "tf32_tma", 1),
    ),
    **{
        f"tf32_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(
                t(2, 2, dtype=dtype), t(2, 2, dtype=dtype), precision="tf32", **TF32
            ),
            FLOAT32_ONLY.replace("fp16x3", "tf32"),
        )
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    },
    "fp16x3_ieee": (lambda m, t: m.matmul(t(2, 2), t(2, 2), **IEEE_FP16X3), NOT_IEEE),
    "simt_float64": (
        lambda m, t: m.matmul(t(2, 2, dtype=torch.float64), t(2, 2, dtype=torch.float64), **SIMT),
        FLOAT32_ONLY.replace("fp16x3", "simt"),
    ),
    **{
        f"fp16x3_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(
                t(2, 2, dtype=dtype), t(2, 2, dtype=dtype), **FP16X3
            ),
            FLOAT32_ONLY,
        )
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    },
    **{
        f"mma_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(t(2, 2, dtype=dtype), t(2, 2, dtype=dtype), **MMA),
            HALVES_ONLY,
        )
        for dtype in (torch.float32, torch.float64)
    },
    "mma_tma": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2), algorithm="mma_tma"),
        HALVES_ONLY.replace("mma", "mma_tma"),
    ),
    # out
    "out_shape": (
        lambda m, t: m.matmul(t(2, 3), t(3, 4), out=t(4, 2)),
        "out is (4, 2) and the product is (2, 4); pass an out of that shape (it is never resized)",
    ),
    "out_empty": (
        lambda m, t: m.matmul(t(2, 3), t(3, 4), out=t(0)),
        "out is (0,) and the product is (2, 4); pass an out of that shape (it is never resized)",
    ),
    "out_rank": (
        lambda m, t: m.matmul(t(3), t(3), out=t(1)),
        "out is (1,) and the product is (); pass an out of that shape (it is never resized)",
    ),
    "out_dtype": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2), out=t(2, 2, dtype=torch.float64)),
        "out is torch.float64 and the operands are torch.float32; it may have the operands' dtype "
        "or, for float16 and bfloat16, torch.float32",
    ),
    "out_inner": (
        lambda m, t: m.matmul(t(3, 4), t(5, 6), out=t(3, 6)),
        "a is (3, 4) and b is (5, 6); a's columns must equal b's rows",
    ),
    "out_algorithm": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2), out=t(2, 2), algorithm="magic"),
        NO_RUNG,
    ),
    "out_expanded": (
        lambda m, t: m.matmul(t(2, 3), t(3, 4), out=t(2, 1).expand(2, 4)),
        "out has elements that share memory (shape (2, 4), strides (1, 0)); pass a tensor whose "
        "elements lie apart, such as its clone()",
    ),
}

GEMM = {
    "ranks": (
        lambda m, t: m.gemm_(t(2, 4), t(3), t(3, 4)),
        "c is (2, 4), a is (3,) and b is (3, 4); each must be a matrix or a batch of matrices",
    ),
    "c_rank": (
        lambda m, t: m.gemm_(t(4), t(1, 3), t(3, 4)),
        "c is (4,), a is (1, 3) and b is (3, 4); each must be a matrix or a batch of matrices",
    ),
    "inner": (
        lambda m, t: m.gemm_(t(2, 4), t(2, 3), t(5, 4)),
        "a is (2, 3) and b is (5, 4); a's columns must equal b's rows",
    ),
    "inner_unread": (
        lambda m, t: m.gemm_(t(2, 4), t(2, 3), t(5, 4), alpha=0),
        "a is (2, 3) and b is (5, 4); a's columns must equal b's rows",
    ),
    "batch": (
        lambda m, t: m.gemm_(t(2, 3, 5), t(2, 3, 4), t(3, 4, 5)),
        "a is (2, 3, 4) and b is (3, 4, 5); their batch dimensions (2,) and (3,) do not broadcast",
    ),
    "c_transposed": (
        lambda m, t: m.gemm_(t(4, 2), t(2, 3), t(3, 4)),
        "c is (4, 2) and the product is (2, 4); c must have that shape, or more batch dimensions",
    ),
    "c_broadcasts": (
        lambda m, t: m.gemm_(t(1, 4), t(2, 3), t(3, 4)),
        "c is (1, 4) and the product is (2, 4); c must have that shape, or more batch dimensions",
    ),
    "product_broadcasts": (
        lambda m, t: m.gemm_(t(2, 4), t(1, 3), t(3, 4)),
        "c is (2, 4) and the product is (1, 4); c must have that shape, or more batch dimensions",
    ),
    "c_batch_is_one": (
        lambda m, t: m.gemm_(t(1, 2, 4), t(5, 2, 3), t(3, 4)),
        "c is (1, 2, 4) and the product is (5, 2, 4); c must have that shape, or more batch "
        "dimensions",
    ),
    "c_has_no_batch": (
        lambda m, t: m.gemm_(t(2, 4), t(5, 2, 3), t(3, 4)),
        "c is (2, 4) and the product is (5, 2, 4); c must have that shape, or more batch "
        "dimensions",
    ),
    "a_int": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2, dtype=torch.int32), t(2, 2)),
        f"a is torch.int32; {SUPPORTED_ARE}",
    ),
    "c_dtype": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2, dtype=torch.half), t(2, 2, dtype=torch.half)),
        f"c is torch.float32 and a is torch.float16; {ONE_DTYPE}",
    ),
    "b_dtype": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2, dtype=torch.float64)),
        f"a is torch.float32 and b is torch.float64; {ONE_DTYPE}",
    ),
    "algorithm": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), algorithm="magic"), NO_RUNG),
    "precision": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), precision="fp8"), NO_PRECISION),
    "tf32": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **TF32), TF32_ALONE),
    "fp16x3_ieee": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **IEEE_FP16X3), NOT_IEEE),
    "fp16x3_float64": (
        lambda m, t: m.gemm_(*(t(2, 2, dtype=torch.float64) for _ in "cab"), **FP16X3),
        FLOAT32_ONLY,
    ),
    "mma_float32": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **MMA), HALVES_ONLY),
    "c_expanded": (
        lambda m, t: m.gemm_(t(1, 4).expand(2, 4), t(2, 3), t(3, 4)),
        "c has elements that share memory (shape (2, 4), strides (0, 1)); pass a tensor whose "
        "elements lie apart, such as its clone()",
    ),
}

LINEAR = {
    "weight_vector": (
        lambda m, t: m.linear(t(2, 3), t(3)),
        "x is (2, 3) and weight is (3,); weight must be (out_features, in_features)",
    ),
    "weight_batch": (
        lambda m, t: m.linear(t(2, 3), t(2, 4, 3)),
        "x is (2, 3) and weight is (2, 4, 3); weight must be (out_features, in_features)",
    ),
    "x_scalar": (
        lambda m, t: m.linear(t(), t(4, 3)),
        "x is () and weight is (4, 3); x's last dimension must equal weight's",
    ),
    "inner": (
        lambda m, t: m.linear(t(2, 4), t(4, 3)),
        "x is (2, 4) and weight is (4, 3); x's last dimension must equal weight's",
    ),
    "bias_length": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), t(3)),
        "bias is (3,) and weight is (4, 3); bias must be (out_features,)",
    ),
    "bias_one": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), t(1)),
        "bias is (1,) and weight is (4, 3); bias must be (out_features,)",
    ),
    "bias_scalar": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), t()),
        "bias is () and weight is (4, 3); bias must be (out_features,)",
    ),
    "bias_matrix": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), t(1, 4)),
        "bias is (1, 4) and weight is (4, 3); bias must be (out_features,)",
    ),
    "bias_dtype": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), t(4, dtype=torch.float64)),
        f"bias is torch.float64 and x is torch.float32; {ONE_DTYPE}",
    ),
    "x_int": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.int64), t(4, 3)),
        f"x is torch.int64; {SUPPORTED_ARE}",
    ),
    "weight_float8": (
        lambda m, t: m.linear(t(2, 3), t(4, 3, dtype=torch.float8_e4m3fn)),
        f"weight is torch.float8_e4m3fn; {SUPPORTED_ARE}",
    ),
    "mixed": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.bfloat16), t(4, 3)),
        f"x is torch.bfloat16 and weight is torch.float32; {ONE_DTYPE}",
    ),
    "activation": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), activation="swish"),
        'there is no activation "swish"; choose none, relu, gelu, gelu_tanh, tanh or silu',
    ),
    "algorithm": (lambda m, t: m.linear(t(2, 3), t(4, 3), algorithm="magic"), NO_RUNG),
    "precision": (lambda m, t: m.linear(t(2, 3), t(4, 3), precision="fp8"), NO_PRECISION),
    "tf32": (lambda m, t: m.linear(t(2, 3), t(4, 3), **TF32), TF32_ALONE),
    "fp16x3_ieee": (lambda m, t: m.linear(t(2, 3), t(4, 3), **IEEE_FP16X3), NOT_IEEE),
    "fp16x3_half": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.half), t(4, 3, dtype=torch.half), **FP16X3),
        FLOAT32_ONLY,
    ),
    "mma_float32": (lambda m, t: m.linear(t(2, 3), t(4, 3), **MMA), HALVES_ONLY),
}

BAD_CALLS = [
    pytest.param(call, f"tiled::{op}: {sentence}", id=f"{op}-{name}")
    for op, calls in (("matmul", MATMUL), ("gemm_", GEMM), ("linear", LINEAR))
    for name, (call, sentence) in calls.items()
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
@pytest.mark.parametrize("call, sentence", BAD_CALLS)
def test_bad_call(device, api, call, sentence):
    assert_raises(sentence, call, api, zeros_on(device))
    assert_still_multiplies(device)


@pytest.mark.parametrize("call, sentence", BAD_CALLS)
def test_bad_call_fails_alike_on_meta_tensors(call, sentence):
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
    of_halves = sentence.replace("fp16x3", "mma_tma").replace("or simt", "or mma_sync")
    assert_raises(of_halves, torch_tiled.matmul, x.half(), x.half(), algorithm="mma_tma")
    simt = torch_tiled.matmul(x, x, algorithm="simt")
    assert torch.equal(simt, torch_tiled.matmul(x, x, algorithm="tiled"))


@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
def test_explain_refuses_what_matmul_refuses(device, api):
    t = zeros_on(device)
    for sentence, a, b, options in (
        (f"a is () and b is (3,); {NO_SCALARS}", t(), t(3), {}),
        ("a is (3, 4) and b is (5, 6); a's columns must equal b's rows", t(3, 4), t(5, 6), {}),
        (f"a is torch.int64; {SUPPORTED_ARE}", t(3, dtype=torch.int64), t(3), {}),
        (NO_RUNG, t(3), t(3), {"algorithm": "magic"}),
        (NO_PRECISION, t(3), t(3), {"precision": "fp8"}),
        (TF32_ALONE, t(3), t(3), TF32),
        (NOT_IEEE, t(3), t(3), IEEE_FP16X3),
        (FLOAT32_ONLY, t(3, dtype=torch.half), t(3, dtype=torch.half), FP16X3),
        (HALVES_ONLY, t(3), t(3), MMA),
    ):
        assert_raises(f"tiled::explain: {sentence}", api.explain, a, b, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_precision_is_ignored_but_for_float32(device, dtype):
    a = torch.eye(3, dtype=dtype, device=device)
    for precision in ("fp32", "ieee", "tf32"):
        assert torch.equal(torch_tiled.matmul(a, a, precision=precision), a)


# --- arguments that are no dense tensors ----------------------------------------------------------


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda t: torch_tiled.matmul(t, None), "tiled::matmul: b is None; it must be a tensor"),
        (lambda t: torch_tiled.matmul(None, t), "tiled::matmul: a is None; it must be a tensor"),
        (lambda t: torch_tiled.gemm_(t, t, None), "tiled::gemm_: b is None; it must be a tensor"),
        (lambda t: torch_tiled.linear(None, t), "tiled::linear: x is None; it must be a tensor"),
    ],
)
def test_none_is_no_operand(device, call, sentence):
    assert_raises(sentence, call, torch.zeros(2, 2, device=device))
    assert_still_multiplies(device)


@pytest.mark.parametrize(
    "value, kind", [(3, "int"), (2.5, "float"), (np.ones((2, 2), np.float32), "ndarray")], ids=str
)
@pytest.mark.parametrize("api", APIS, ids=["torch_tiled", "torch.ops.tiled"])
def test_numbers_and_arrays_are_no_operands(device, api, value, kind):
    """PyTorch's dispatcher refuses them, as it does for its own operators."""
    x = torch.zeros(2, 2, device=device)
    for name, call in (
        ("a", lambda: api.matmul(value, x)),
        ("b", lambda: api.matmul(x, value)),
        ("b", lambda: api.gemm_(x, x, value)),
        ("weight", lambda: api.linear(x, value)),
    ):
        text = f"type 'Tensor' for argument '{name}' but instead found type '{kind}'"
        with pytest.raises(RuntimeError, match=f"Expected a value of {text}"):
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


# --- devices --------------------------------------------------------------------------------------

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


# --- outputs that share memory --------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["naive", "auto"])
def test_written_tensor_shares_no_memory(device, algorithm):
    memory = torch.arange(64.0, device=device)
    before = memory.clone()
    a, b = memory[0:4].view(2, 2), memory[4:8].view(2, 2)

    def refused(name, written):
        other = f"shares memory with {name}; {PASS_A_CLONE}"
        matmul, gemm_ = torch_tiled.matmul, torch_tiled.gemm_
        assert_raises(f"tiled::matmul: out {other}", matmul, a, b, out=written, algorithm=algorithm)
        assert_raises(f"tiled::gemm_: c {other}", gemm_, written, a, b, algorithm=algorithm)

    refused("a", a)
    refused("a", a.mT)
    refused("b", b)
    refused("a", memory[3:7].view(2, 2))  # of both, a is named
    refused("b", memory[7:11].view(2, 2))
    refused("b", memory[1:33].view(2, 16)[:, 5:7])
    assert torch.equal(memory, before)

    windows = torch.as_strided(memory, (2, 2), (1, 1), 32)
    assert_raises(
        "tiled::matmul: out has elements that share memory (shape (2, 2), strides (1, 1)); pass a "
        "tensor whose elements lie apart, such as its clone()",
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


# --- results too large ----------------------------------------------------------------------------


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
        pytest.skip("the rung needs another GPU")
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
