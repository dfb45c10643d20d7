"""What the operators return, computed from shapes alone: fake kernels and flop formulas.

The checks and their sentences are those of csrc/ops.cpp, so that a bad call fails alike on meta
tensors, under torch.compile and on a device. Sizes may be symbolic.
"""

import math

import torch
from torch.utils.flop_counter import register_flop_formula

PRECISIONS = ("fp32", "ieee", "tf32")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "tanh", "silu")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


def _shape(tensor):
    return tuple(tensor.shape)


def _check_precision(op, precision):
    if precision not in PRECISIONS:
        raise RuntimeError(f'{op}: there is no precision "{precision}"; choose fp32, ieee or tf32')


def check_activation(op, activation):
    if activation not in ACTIVATIONS:
        raise RuntimeError(
            f'{op}: there is no activation "{activation}"; '
            f"choose none, relu, gelu, gelu_tanh, tanh or silu"
        )


def _check_algorithm(op, algorithm, precision, dtype):
    if precision == "tf32" and dtype == torch.float32:
        raise RuntimeError(f'{op}: no rung offers precision "tf32" yet; choose "fp32" or "ieee"')
    names = ["auto", *torch.ops.tiled.algorithms()]
    if algorithm not in names:
        raise RuntimeError(f'{op}: there is no algorithm "{algorithm}"; choose {", ".join(names)}')


def _check_same_device(op, x_name, x, y_name, y):
    if x.device != y.device:
        raise RuntimeError(
            f"{op}: {x_name} is on {x.device} and {y_name} is on {y.device}; "
            f"move one of them so that both are on one device"
        )


def _check_dtype(op, name, tensor):
    if tensor.dtype not in DTYPES:
        raise RuntimeError(
            f"{op}: {name} is {tensor.dtype}; supported are float32, float64, float16 and "
            f"bfloat16: convert it, for example with .to(torch.float32)"
        )


def _check_same_dtype(op, x_name, x, y_name, y):
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"{op}: {x_name} is {x.dtype} and {y_name} is {y.dtype}; "
            f"convert one of them so that both have one dtype"
        )


def _check_operands(op, x_name, x, y_name, y):
    _check_same_device(op, x_name, x, y_name, y)
    _check_dtype(op, x_name, x)
    _check_dtype(op, y_name, y)
    _check_same_dtype(op, x_name, x, y_name, y)


def _product_shape(op, a, b):
    """The shape of torch.matmul(a, b)."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() == 0:
            raise RuntimeError(
                f"{op}: {name} has no dimensions; both operands need at least one "
                f"(torch.mul multiplies by a scalar)"
            )
    rows = b.shape[-2] if b.dim() > 1 else b.shape[0]
    torch._check(
        a.shape[-1] == rows,
        lambda: f"{op}: a is {_shape(a)} and b is {_shape(b)}; a's columns must equal b's rows",
    )
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise RuntimeError(
            f"{op}: a is {_shape(a)} and b is {_shape(b)}; their batch dimensions "
            f"{tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do not broadcast"
        ) from None
    m = a.shape[-2:-1]
    n = b.shape[-1:] if b.dim() > 1 else ()
    return (*batch, *m, *n)


def _check_written(op, name, tensor):
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if isinstance(stride, int) and stride == 0 and size > 1:
            raise RuntimeError(
                f"{op}: {name} has elements that share memory (shape {_shape(tensor)}, strides "
                f"{tuple(tensor.stride())}); pass a tensor whose elements are apart, such as its "
                f".clone()"
            )


def matmul(a, b, *, algorithm="auto", precision="fp32", out_dtype=None):
    op = "tiled::matmul"
    _check_precision(op, precision)
    _check_operands(op, "a", a, "b", b)
    dtype = a.dtype if out_dtype is None else out_dtype
    if dtype != a.dtype and not (dtype == torch.float32 and a.dtype in HALVES):
        raise RuntimeError(
            f"{op}: out_dtype is {dtype} and the operands are {a.dtype}; it may be the operands' "
            f"dtype or, for float16 and bfloat16, torch.float32"
        )
    shape = _product_shape(op, a, b)
    _check_algorithm(op, algorithm, precision, a.dtype)
    return torch.empty(shape, dtype=dtype, device=a.device)


def matmul_out(a, b, *, algorithm="auto", precision="fp32", out):
    op = "tiled::matmul"
    _check_precision(op, precision)
    _check_operands(op, "a", a, "b", b)
    _check_same_device(op, "a", a, "out", out)
    if out.dtype != a.dtype and not (out.dtype == torch.float32 and a.dtype in HALVES):
        raise RuntimeError(
            f"{op}: out is {out.dtype} and the operands are {a.dtype}; it may have the operands' "
            f"dtype or, for float16 and bfloat16, torch.float32"
        )
    shape = _product_shape(op, a, b)
    torch._check(
        out.shape == shape,
        lambda: (
            f"{op}: out is {_shape(out)} and the product is {shape}; "
            f"pass an out of that shape (it is never resized)"
        ),
    )
    _check_written(op, "out", out)
    _check_algorithm(op, algorithm, precision, a.dtype)


def gemm_(c, a, b, *, alpha=1.0, beta=1.0, algorithm="auto", precision="fp32"):
    op = "tiled::gemm_"
    _check_precision(op, precision)
    _check_operands(op, "a", a, "b", b)
    _check_same_device(op, "c", c, "a", a)
    _check_same_dtype(op, "c", c, "a", a)
    if min(a.dim(), b.dim(), c.dim()) < 2:
        raise RuntimeError(
            f"{op}: c is {_shape(c)}, a is {_shape(a)} and b is {_shape(b)}; "
            f"all must be matrices or batches of them"
        )
    shape = _product_shape(op, a, b)
    try:
        fits = c.shape[-2:] == shape[-2:] and torch.broadcast_shapes(c.shape, shape) == c.shape
    except RuntimeError:
        fits = False
    torch._check(
        fits,
        lambda: (
            f"{op}: c is {_shape(c)} and the product of a {_shape(a)} and b {_shape(b)} is "
            f"{shape}; c must have that shape, or more batch dimensions"
        ),
    )
    _check_written(op, "c", c)
    _check_algorithm(op, algorithm, precision, a.dtype)


def linear(x, weight, bias=None, *, activation="none", algorithm="auto", precision="fp32"):
    op = "tiled::linear"
    _check_precision(op, precision)
    check_activation(op, activation)
    _check_operands(op, "x", x, "weight", weight)
    if x.dim() == 0:
        raise RuntimeError(f"{op}: x has no dimensions; it must be (..., in_features)")
    if weight.dim() != 2:
        raise RuntimeError(
            f"{op}: weight is {_shape(weight)}; it must be (out_features, in_features)"
        )
    torch._check(
        x.shape[-1] == weight.shape[1],
        lambda: (
            f"{op}: x is {_shape(x)} and weight is {_shape(weight)}; "
            f"x's last dimension must equal weight's"
        ),
    )
    _check_algorithm(op, algorithm, precision, x.dtype)
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def _product_flops(a_shape, b_shape):
    """Two for every multiply-add of torch.matmul."""
    batch = torch.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    m = math.prod(a_shape[-2:-1])
    n = math.prod(b_shape[-1:]) if len(b_shape) > 1 else 1
    return 2 * math.prod(batch) * m * n * a_shape[-1]


def _matmul_flops(a_shape, b_shape, *_, **__):
    return _product_flops(a_shape, b_shape)


def _gemm_flops(c_shape, a_shape, b_shape, *_, **__):
    return 2 * math.prod(c_shape) * a_shape[-1]


def _linear_flops(x_shape, weight_shape, *_, **__):
    return 2 * math.prod(x_shape) * weight_shape[0]


def register(library):
    for name, kernel in (
        ("matmul", matmul),
        ("matmul.out", matmul_out),
        ("gemm_", gemm_),
        ("linear", linear),
    ):
        torch.library.register_fake(f"tiled::{name}", kernel, lib=library)
    register_flop_formula(torch.ops.tiled.matmul)(_matmul_flops)
    register_flop_formula(torch.ops.tiled.gemm_)(_gemm_flops)
    register_flop_formula(torch.ops.tiled.linear)(_linear_flops)
