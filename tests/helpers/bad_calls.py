"""Bad calls: those that are wrong by shapes, dtypes and options alone, and how each is checked."""

import pytest
import torch
from helpers.reference import takes

import torch_tiled

each_api = pytest.mark.parametrize(
    "api", [torch_tiled, torch.ops.tiled], ids=["torch_tiled", "torch.ops.tiled"]
)


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


ALGORITHMS = ", ".join(["auto", *torch_tiled.algorithms()])
UNSUPPORTED = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e4m3fn),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
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


def unsupported_in_groups(dtype):
    """The sentence on an operand of this dtype: groups have no complex numbers."""
    sentence = unsupported(dtype).replace(", bfloat16, complex64 and complex128", " and bfloat16")
    if not dtype.is_complex:
        return sentence
    return sentence.partition(": ")[0] + ": call torch_tiled.matmul for each group"


def one_dtype(dtype):
    return f"pass both in one dtype, for example with .to({dtype}), which has all values of both"


NO_ALGORITHM = f'there is no algorithm "magic"; choose {ALGORITHMS}'
NO_PRECISION = 'there is no precision "fp8"; choose fp32, ieee or tf32'


def not_taken(algorithm, dtype, *others):
    """The sentence for operands of a dtype, or of two, that the algorithm does not take."""
    family = algorithm.partition("_")[0]
    given = " and ".join(str(x).removeprefix("torch.") for x in (dtype, *others))
    taken = {"f64": "float64 and complex128", "mma": "float16 and bfloat16"}
    wide = dtype in (torch.float64, torch.complex128)
    is_16bit = dtype.itemsize == 2 and not others
    families = "mma" if is_16bit else "f64" if wide else "simt or fp16x3"
    return (
        f'algorithm "{algorithm}" takes {taken.get(family, "float32 and complex64")} operands, and '
        f"these are {given}; choose auto, naive or tiled, or {families}"
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
IEEE_FP16X3 = FP16X3 | {"precision": "ieee"}
TF32 = {"algorithm": "tf32"}
NO_SCALARS = "both need at least one dimension (torch.mul multiplies by a scalar)"


def inner(a, b):
    return f"a is {a} and b is {b}; a's columns must equal b's rows"


def batches(a, b):
    leads = (str(tuple(shape[:-2])) for shape in (a, b))
    return f"a is {a} and b is {b}; their batch dimensions {' and '.join(leads)} do not broadcast"


def mixed(a, a_dtype, b, b_dtype, wide):
    return f"{a} is torch.{a_dtype} and {b} is torch.{b_dtype}; {one_dtype(wide)}"


def out_dtype(to, of):
    return (
        f"out_dtype is torch.{to} and the operands are torch.{of}; it may be the operands' dtype "
        "or, for float16 and bfloat16, torch.float32"
    )


def out_shape(out, product):
    remedy = "pass an out of that shape (it is never resized)"
    return f"out is {out} and the product is {product}; {remedy}"


def shared(name, shape, strides):
    return (
        f"{name} has elements that share memory (shape {shape}, strides {strides}); pass a tensor "
        "whose elements lie apart, such as its clone(), which then has the result"
    )


def c_ranks(c, a):
    return f"c is {c}, a is {a} and b is (3, 4); each must be a matrix or a batch of matrices"


def c_shape(c, product):
    return (
        f"c is {c} and the product is {product}; c must have that shape, or more batch dimensions"
    )


def weight(x, weight):
    return f"x is {x} and weight is {weight}; weight must be (out_features, in_features)"


def x_shape(x):
    return f"x is {x} and weight is (4, 3); x's last dimension must equal weight's"


def bias(shape):
    return f"bias is {shape} and weight is (4, 3); bias must be (out_features,)"


# --- calls that are wrong by shapes, dtypes and options alone ------------------------------------
#
# Each is code with the names of torch, of an operator, and t, a function that makes tensors.

X = "t(2, 2)"
MATMUL, GEMM, LINEAR = f"matmul({X}, {X}, ", f"gemm_({X}, {X}, {X}, ", "linear(t(2, 3), t(4, 3), "


def of_dtype(dtype, *options):
    """A product of two matrices of this dtype."""
    x = f"t(2, 2, dtype={str(dtype).removeprefix('torch.')})"
    return f"matmul({', '.join((x, x, *options))})"


SENTENCES = {
    # ranks and shapes
    "matmul(t(), t(3))": f"a is () and b is (3,); {NO_SCALARS}",
    "matmul(t(2, 3), t())": f"a is (2, 3) and b is (); {NO_SCALARS}",
    "matmul(t(3, 4), t(5, 6))": inner((3, 4), (5, 6)),
    "matmul(t(3, 0), t(1, 6))": inner((3, 0), (1, 6)),
    "matmul(t(3), t(4))": inner((3,), (4,)),
    "matmul(t(3), t(4, 3))": inner((3,), (4, 3)),
    "matmul(t(2, 4, 3), t(4))": inner((2, 4, 3), (4,)),
    "matmul(t(3, 4), t(5, 6), out=t(3, 6))": inner((3, 4), (5, 6)),
    "matmul(t(2, 3, 4), t(3, 4, 5))": batches((2, 3, 4), (3, 4, 5)),
    "matmul(t(7, 2, 3, 4), t(7, 4, 5))": batches((7, 2, 3, 4), (7, 4, 5)),
    "matmul(t(7, 2, 3, 4), t(2, 2, 4, 5))": batches((7, 2, 3, 4), (2, 2, 4, 5)),
    "matmul(t(0, 3, 4), t(2, 4, 5))": batches((0, 3, 4), (2, 4, 5)),
    # dtypes
    **{
        f"matmul(t(2, 2, dtype={str(dtype)[6:]}), {X})": f"a is {unsupported(dtype)}"
        for dtype in UNSUPPORTED
    },
    f"matmul({X}, t(2, 2, dtype=int64))": f"b is {unsupported(torch.int64)}",
    f"matmul({X}, t(2, 2, dtype=float64))": mixed("a", "float32", "b", "float64", torch.float64),
    "matmul(t(2, dtype=bfloat16), t(2, 2, dtype=half))": mixed(
        "a", "bfloat16", "b", "float16", torch.float32
    ),
    "matmul(t(2, 2, dtype=float64), t(2, 2, dtype=half))": mixed(
        "a", "float64", "b", "float16", torch.float64
    ),
    "matmul(t(2, 2, dtype=half), t(2, 2, dtype=cfloat))": mixed(
        "a", "float16", "b", "complex64", torch.complex64
    ),
    f"matmul(t(2, 2, dtype=half), {X}, out_dtype=float64)": out_dtype(
        "float64", "float16 and torch.float32"
    ),
    f"matmul(t(2, 2, dtype=half), {X}, algorithm='mma')": not_taken(
        "mma", torch.float16, torch.float32
    ),
    f"matmul({X}, t(2, 2, dtype=bfloat16), out={X}, algorithm='mma')": not_taken(
        "mma", torch.float32, torch.bfloat16
    ),
    f"gemm_({X}, {X}, t(2, 2, dtype=half), alpha=0, algorithm='f64')": not_taken(
        "f64", torch.float32, torch.float16
    ),
    f"linear({X}, t(2, 2, dtype=half), algorithm='mma')": not_taken(
        "mma", torch.float32, torch.float16
    ),
    f"matmul({X}, t(2, 2, dtype=half), out=t(2, 2, dtype=bfloat16))": (
        "out is torch.bfloat16 and the operands are torch.float32 and torch.float16; it may have "
        "the operands' dtype or, for float16 and bfloat16, torch.float32"
    ),
    **{
        of_dtype(of, f"out_dtype={to}"): out_dtype(to, of)
        for of, to in (
            *(("float32", "float64"), ("float32", "float16"), ("float64", "float32")),
            *(("float16", "bfloat16"), ("bfloat16", "float64"), ("float16", "int32")),
        )
    },
    # options
    f"{MATMUL}algorithm='magic')": NO_ALGORITHM,
    "matmul(t(0, 2), t(2, 0), algorithm='magic')": NO_ALGORITHM,
    f"{MATMUL}out={X}, algorithm='magic')": NO_ALGORITHM,
    f"{MATMUL}precision='fp8')": NO_PRECISION,
    of_dtype(torch.float64, "precision='fp8'"): NO_PRECISION,
    f"{MATMUL}algorithm='tf32')": TF32_ALONE,
    f"{MATMUL}algorithm='tf32', precision='ieee')": TF32_ALONE,
    f"{MATMUL}algorithm='tf32_tma')": TF32_ALONE.replace("tf32", "tf32_tma", 1),
    f"{MATMUL}algorithm='fp16x3', precision='ieee')": NOT_IEEE,
    f"{MATMUL}algorithm='mma_tma')": not_taken("mma_tma", torch.float32),
    **{
        of_dtype(dtype, "precision='tf32'", "algorithm='tf32'"): not_taken("tf32", dtype)
        for dtype in (torch.float64, torch.float16, torch.bfloat16)
    },
    **{
        of_dtype(dtype, f"algorithm='{name}'"): not_taken(name, dtype)
        for name, dtypes in {
            "simt": [torch.float64],
            "fp16x3": [torch.float64, torch.float16, torch.bfloat16],
            "mma": [torch.float32, torch.float64],
            "f64_direct": [torch.float16],
            "f64_mma": [torch.float16],
        }.items()
        for dtype in dtypes
    },
    # out
    "matmul(t(2, 3), t(3, 4), out=t(4, 2))": out_shape((4, 2), (2, 4)),
    "matmul(t(2, 3), t(3, 4), out=t(0))": out_shape((0,), (2, 4)),
    "matmul(t(3), t(3), out=t(1))": out_shape((1,), ()),
    "matmul(t(3, 4), t(4), out=t(3, 1))": out_shape((3, 1), (3,)),
    f"{MATMUL}out=t(2, 2, dtype=float64))": (
        "out is torch.float64 and the operands are torch.float32; it may have the operands' dtype "
        "or, for float16 and bfloat16, torch.float32"
    ),
    f"{MATMUL}out=t(2, 2, dtype=cfloat))": (
        "out is torch.complex64 and the operands are torch.float32; it may have the operands' "
        "dtype or, for float16 and bfloat16, torch.float32"
    ),
    of_dtype(torch.cfloat, f"out={X}"): (
        "out is torch.float32 and the operands are torch.complex64; it may have the operands' "
        "dtype or, for float16 and bfloat16, torch.float32"
    ),
    "matmul(t(2, 3), t(3, 4), out=t(2, 1).expand(2, 4))": shared("out", (2, 4), (1, 0)),
    # gemm_
    "gemm_(t(2, 4), t(3), t(3, 4))": c_ranks((2, 4), (3,)),
    "gemm_(t(4), t(1, 3), t(3, 4))": c_ranks((4,), (1, 3)),
    "gemm_(t(2, 4), t(2, 3), t(5, 4))": inner((2, 3), (5, 4)),
    "gemm_(t(2, 4), t(2, 3), t(5, 4), alpha=0)": inner((2, 3), (5, 4)),
    "gemm_(t(2, 3, 5), t(2, 3, 4), t(3, 4, 5))": batches((2, 3, 4), (3, 4, 5)),
    "gemm_(t(4, 2), t(2, 3), t(3, 4))": c_shape((4, 2), (2, 4)),
    "gemm_(t(1, 4), t(2, 3), t(3, 4))": c_shape((1, 4), (2, 4)),
    "gemm_(t(2, 4), t(1, 3), t(3, 4))": c_shape((2, 4), (1, 4)),
    "gemm_(t(1, 2, 4), t(5, 2, 3), t(3, 4))": c_shape((1, 2, 4), (5, 2, 4)),
    "gemm_(t(2, 4), t(5, 2, 3), t(3, 4))": c_shape((2, 4), (5, 2, 4)),
    f"gemm_({X}, t(2, 2, dtype=int32), {X})": f"a is {unsupported(torch.int32)}",
    f"gemm_(t(2, 2, dtype=half), {X}, {X})": mixed("c", "float16", "a", "float32", torch.float32),
    f"gemm_(t(2, 2, dtype=half), t(2, 2, dtype=half), {X})": mixed(
        "c", "float16", "b", "float32", torch.float32
    ),
    f"gemm_(t(2, 2, dtype=float64), t(2, 2, dtype=half), {X})": mixed(
        "c", "float64", "a", "float16", torch.float64
    ),
    f"gemm_({X}, {X}, t(2, 2, dtype=float64))": mixed(
        "a", "float32", "b", "float64", torch.float64
    ),
    f"{GEMM}algorithm='magic')": NO_ALGORITHM,
    f"{GEMM}precision='fp8')": NO_PRECISION,
    f"{GEMM}precision='')": NO_PRECISION.replace("fp8", ""),
    f"{GEMM}algorithm='tf32')": TF32_ALONE,
    f"{GEMM}algorithm='fp16x3', precision='ieee')": NOT_IEEE,
    "gemm_(*(t(2, 2, dtype=float64) for _ in 'cab'), algorithm='fp16x3')": not_taken(
        "fp16x3", torch.float64
    ),
    f"{GEMM}algorithm='mma')": not_taken("mma", torch.float32),
    "gemm_(t(1, 4).expand(2, 4), t(2, 3), t(3, 4))": shared("c", (2, 4), (0, 1)),
    # linear
    "linear(t(2, 3), t(3))": weight((2, 3), (3,)),
    "linear(t(2, 3), t(2, 4, 3))": weight((2, 3), (2, 4, 3)),
    "linear(t(), t(4, 3))": x_shape(()),
    "linear(t(2, 4), t(4, 3))": x_shape((2, 4)),
    f"{LINEAR}t(3))": bias((3,)),
    f"{LINEAR}t(1))": bias((1,)),
    f"{LINEAR}t())": bias(()),
    f"{LINEAR}t(1, 4))": bias((1, 4)),
    f"{LINEAR}t(4, dtype=float64))": mixed("bias", "float64", "x", "float32", torch.float64),
    "linear(t(2, 3, dtype=int64), t(4, 3))": f"x is {unsupported(torch.int64)}",
    "linear(t(2, 3), t(4, 3, dtype=float8_e4m3fn))": (
        f"weight is {unsupported(torch.float8_e4m3fn)}"
    ),
    "linear(t(2, 3, dtype=bfloat16), t(4, 3, dtype=half))": mixed(
        "x", "bfloat16", "weight", "float16", torch.float32
    ),
    "linear(t(2, 3, dtype=bfloat16), t(4, 3), out_dtype=half)": out_dtype(
        "float16", "bfloat16 and torch.float32"
    ),
    f"{LINEAR}out_dtype=half)": out_dtype("float16", "float32"),
    "linear(t(2, 3, dtype=bfloat16), t(4, 3, dtype=bfloat16), t(4))": mixed(
        "bias", "float32", "x", "bfloat16", torch.float32
    ),
    "linear(t(2, 3, dtype=bfloat16), t(4, 3), t(4, dtype=half))": mixed(
        "bias", "float16", "x", "bfloat16", torch.float32
    ),
    f"{LINEAR}activation='swish')": (
        'there is no activation "swish"; choose none, relu, gelu, gelu_tanh, tanh or silu'
    ),
    "linear(t(2, 3, dtype=cfloat), t(4, 3, dtype=cfloat), activation='relu')": (
        'activation "relu" is one of real numbers, and x is torch.complex64; choose none'
    ),
    f"{LINEAR}algorithm='magic')": NO_ALGORITHM,
    f"{LINEAR}precision='fp8')": NO_PRECISION,
    f"{LINEAR}algorithm='tf32')": TF32_ALONE,
    f"{LINEAR}algorithm='tf32_tma', precision='ieee')": TF32_ALONE.replace("tf32", "tf32_tma", 1),
    f"{LINEAR}algorithm='fp16x3', precision='ieee')": NOT_IEEE,
    "linear(t(2, 3, dtype=half), t(4, 3, dtype=half), algorithm='fp16x3')": not_taken(
        "fp16x3", torch.float16
    ),
    f"{LINEAR}algorithm='mma')": not_taken("mma", torch.float32),
}


def call_of(code):
    """A call of the operators of a namespace on tensors that t makes."""
    return lambda namespace, t: eval(f"namespace.{code}", vars(torch) | locals())


BAD_CALLS = [
    pytest.param(call_of(code), f"tiled::{code.partition('(')[0]}: {sentence}", id=code)
    for code, sentence in SENTENCES.items()
]
