"""The fast path: products with default options of tensors that only autograd may observe.

The dispatcher's Python kernels and the parsing of options cost as much as a small product. The
operators tiled::_plain_matmul, _plain_linear, _plain_grouped_mm, _plain_matmul_out and _plain_gemm_
have neither, and is_plain() finds out if they may be called. derivatives.py wraps the first three
for tensors that require grad, and inplace.py the others, which count no write in the tensor's
version. The overload _plain_linear.prepared and _plain_pointwise are for calls in which nothing is
differentiated, and the latter for calls in which nothing is cast either.
"""

import torch
from torch.compiler import is_dynamo_compiling

from .._internals import (
    call_without_python,
    dispatch_modes,
    forward_ad_active,
    function_modes,
    is_jit_tracing,
    transforms_active,
)
from .namespace import operators
from .supported import PLAIN_TYPES

matmul = call_without_python(operators._plain_matmul.default)
linear = call_without_python(operators._plain_linear.default)
prepared_linear = call_without_python(operators._plain_linear.prepared)
matmul_out = call_without_python(operators._plain_matmul_out.default)
grouped_mm = call_without_python(operators._plain_grouped_mm.default)
pointwise = call_without_python(operators._plain_pointwise.default)
gemm_ = call_without_python(operators._plain_gemm_.default)


def is_plain(*tensors):
    """Returns whether nothing but grad mode and autocast can observe a product of these tensors.

    All are tensors and none is of a subclass; no transform, mode, forward AD, compiler or
    torch.jit.trace is active.
    """
    for tensor in tensors:
        if type(tensor) not in PLAIN_TYPES:
            return False
    return not (
        is_dynamo_compiling()
        or is_jit_tracing()  # it would record an operator that has no gradient
        or function_modes()
        or dispatch_modes()
        or transforms_active()
        or forward_ad_active()
    )


# is_plain() does not look at layout, device and autocast. Tensors with one of these keys are passed
# to the general operators, which cast or refuse them.
_GENERAL_KEYS = (
    "CompositeExplicitAutograd",
    "NestedTensorCPU",
    "NestedTensorCUDA",
    "AutocastCPU",
    "AutocastCUDA",
)


def _general_matmul(a, b):
    return operators.matmul.default(a, b)


def _general_linear(x, weight, bias):
    return operators.linear.default(x, weight, bias)


def _general_prepared_linear(x, weight, hi_lo, inverse_scales, bias):
    return operators.linear.prepared(x, weight, hi_lo, inverse_scales, bias)


def _general_matmul_out(a, b, out):
    return operators.matmul.out(a, b, out=out)


def _general_grouped_mm(a, b, offs, bias):
    return operators.grouped_mm.default(a, b, offs, bias)


def _general_gemm_(c, a, b, alpha, beta):
    return operators.gemm_.default(c, a, b, alpha=alpha, beta=beta)


def register(library):
    for name, kernel in (
        ("_plain_matmul", _general_matmul),
        ("_plain_linear", _general_linear),
        ("_plain_linear.prepared", _general_prepared_linear),
        ("_plain_matmul_out", _general_matmul_out),
        ("_plain_gemm_", _general_gemm_),
        ("_plain_grouped_mm", _general_grouped_mm),
    ):
        for key in _GENERAL_KEYS:
            library.impl(name, kernel, key)
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    library.impl("_plain_pointwise", torch.library.fallthrough_kernel, "Autograd")
