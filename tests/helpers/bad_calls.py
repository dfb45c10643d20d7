"""Calls that are wrong by shapes, dtypes and options alone, with the sentence each raises."""

import pytest
import torch

import torch_tiled

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
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
SUPPORTED_ARE = "supported are float32, float64, float16, bfloat16, complex64 and complex128: "


def unsupported(dtype):
    """The sentence on an operand of this dtype, whose remedy loses nothing or says what."""
    if dtype.is_complex:
        remedy = "convert it, for example with .to(torch.complex64)"
    elif dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64):
        remedy = "convert it, for example with .to(torch.float64), exact for integers up to 2**53"
    else:
        remedy = "convert it, for example with .to(torch.float32)"
    return f"{dtype}; {SUPPORTED_ARE}{remedy}"


def one_dtype(dtype):
    return f"pass both in one dtype, for example with .to({dtype}), which has all values of both"


NO_ALGORITHM = f'there is no algorithm "magic"; choose {ALGORITHMS}'
NO_PRECISION = 'there is no precision "fp8"; choose fp32, ieee or tf32'


def not_taken(algorithm, dtype):
    """The sentence for operands of a dtype that the algorithm does not take."""
    family, given = algorithm.partition("_")[0], str(dtype).removeprefix("torch.")
    taken = {"f64": "float64 and complex128", "mma": "float16 and bfloat16"}
    wide = dtype in (torch.float64, torch.complex128)
    others = "mma" if dtype.itemsize == 2 else "f64" if wide else "simt or fp16x3"
    return (
        f'algorithm "{algorithm}" takes {taken.get(family, "float32 and complex64")} operands, and '
        f"these are {given}; choose auto, naive or tiled, or {others}"
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


# --- calls that are wrong by shapes, dtypes and options alone ------------------------------------
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
            f"a is {unsupported(dtype)}",
        )
        for dtype in UNSUPPORTED
    },
    "b_int64": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2, dtype=torch.int64)),
        f"b is {unsupported(torch.int64)}",
    ),
    "mixed_floats": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2, dtype=torch.float64)),
        f"a is torch.float32 and b is torch.float64; {one_dtype(torch.float64)}",
    ),
    "mixed_16bit_floats": (
        lambda m, t: m.matmul(t(2, dtype=torch.bfloat16), t(2, 2, dtype=torch.float16)),
        f"a is torch.bfloat16 and b is torch.float16; {one_dtype(torch.float32)}",
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
    "algorithm": (lambda m, t: m.matmul(t(2, 2), t(2, 2), algorithm="magic"), NO_ALGORITHM),
    "algorithm_empty_result": (
        lambda m, t: m.matmul(t(0, 2), t(2, 0), algorithm="magic"),
        NO_ALGORITHM,
    ),
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
            not_taken("tf32", dtype),
        )
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    },
    "fp16x3_ieee": (lambda m, t: m.matmul(t(2, 2), t(2, 2), **IEEE_FP16X3), NOT_IEEE),
    "simt_float64": (
        lambda m, t: m.matmul(t(2, 2, dtype=torch.float64), t(2, 2, dtype=torch.float64), **SIMT),
        not_taken("simt", torch.float64),
    ),
    **{
        f"fp16x3_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(
                t(2, 2, dtype=dtype), t(2, 2, dtype=dtype), **FP16X3
            ),
            not_taken("fp16x3", dtype),
        )
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    },
    **{
        f"mma_{dtype}": (
            lambda m, t, dtype=dtype: m.matmul(t(2, 2, dtype=dtype), t(2, 2, dtype=dtype), **MMA),
            not_taken("mma", dtype),
        )
        for dtype in (torch.float32, torch.float64)
    },
    **{
        name: (
            lambda m, t, name=name: m.matmul(
                t(2, 2, dtype=torch.half), t(2, 2, dtype=torch.half), algorithm=name
            ),
            not_taken(name, torch.half),
        )
        for name in ("f64_direct", "f64_mma")
    },
    "mma_tma": (
        lambda m, t: m.matmul(t(2, 2), t(2, 2), algorithm="mma_tma"),
        not_taken("mma_tma", torch.float32),
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
        NO_ALGORITHM,
    ),
    "out_expanded": (
        lambda m, t: m.matmul(t(2, 3), t(3, 4), out=t(2, 1).expand(2, 4)),
        "out has elements that share memory (shape (2, 4), strides (1, 0)); pass a tensor whose "
        "elements lie apart, such as its clone(), which then has the result",
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
        f"a is {unsupported(torch.int32)}",
    ),
    "c_dtype": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2, dtype=torch.half), t(2, 2, dtype=torch.half)),
        f"c is torch.float32 and a is torch.float16; {one_dtype(torch.float32)}",
    ),
    "b_dtype": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2, dtype=torch.float64)),
        f"a is torch.float32 and b is torch.float64; {one_dtype(torch.float64)}",
    ),
    "algorithm": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), algorithm="magic"), NO_ALGORITHM),
    "precision": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), precision="fp8"), NO_PRECISION),
    "tf32": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **TF32), TF32_ALONE),
    "fp16x3_ieee": (lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **IEEE_FP16X3), NOT_IEEE),
    "fp16x3_float64": (
        lambda m, t: m.gemm_(*(t(2, 2, dtype=torch.float64) for _ in "cab"), **FP16X3),
        not_taken("fp16x3", torch.float64),
    ),
    "mma_float32": (
        lambda m, t: m.gemm_(t(2, 2), t(2, 2), t(2, 2), **MMA),
        not_taken("mma", torch.float32),
    ),
    "c_expanded": (
        lambda m, t: m.gemm_(t(1, 4).expand(2, 4), t(2, 3), t(3, 4)),
        "c has elements that share memory (shape (2, 4), strides (0, 1)); pass a tensor whose "
        "elements lie apart, such as its clone(), which then has the result",
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
        f"bias is torch.float64 and x is torch.float32; {one_dtype(torch.float64)}",
    ),
    "x_int": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.int64), t(4, 3)),
        f"x is {unsupported(torch.int64)}",
    ),
    "weight_float8": (
        lambda m, t: m.linear(t(2, 3), t(4, 3, dtype=torch.float8_e4m3fn)),
        f"weight is {unsupported(torch.float8_e4m3fn)}",
    ),
    "mixed": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.bfloat16), t(4, 3)),
        f"x is torch.bfloat16 and weight is torch.float32; {one_dtype(torch.float32)}",
    ),
    "activation": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), activation="swish"),
        'there is no activation "swish"; choose none, relu, gelu, gelu_tanh, tanh or silu',
    ),
    "algorithm": (lambda m, t: m.linear(t(2, 3), t(4, 3), algorithm="magic"), NO_ALGORITHM),
    "precision": (lambda m, t: m.linear(t(2, 3), t(4, 3), precision="fp8"), NO_PRECISION),
    "tf32": (lambda m, t: m.linear(t(2, 3), t(4, 3), **TF32), TF32_ALONE),
    "fp16x3_ieee": (lambda m, t: m.linear(t(2, 3), t(4, 3), **IEEE_FP16X3), NOT_IEEE),
    "fp16x3_float16": (
        lambda m, t: m.linear(t(2, 3, dtype=torch.half), t(4, 3, dtype=torch.half), **FP16X3),
        not_taken("fp16x3", torch.float16),
    ),
    "mma_float32": (
        lambda m, t: m.linear(t(2, 3), t(4, 3), **MMA),
        not_taken("mma", torch.float32),
    ),
}

BAD_CALLS = [
    pytest.param(call, f"tiled::{op}: {sentence}", id=f"{op}-{name}")
    for op, calls in (("matmul", MATMUL), ("gemm_", GEMM), ("linear", LINEAR))
    for name, (call, sentence) in calls.items()
]
