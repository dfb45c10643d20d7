"""Refuses sparse, quantized, nested and mkldnn tensors, and names a remedy for each.

The kernels take dense strided tensors. Without the registrations here a call with another layout
would end in the dispatcher's text on a missing kernel.
"""

import functools

import torch

from .._internals import argument_names
from .namespace import name_in_texts, operators

# A jagged nested tensor is a Python subclass: its __torch_dispatch__ runs before any backend's key,
# so it is refused at AutogradNestedTensor, which comes earlier.
_REFUSED_KEYS = (
    "SparseCPU",
    "SparseCUDA",
    "SparseCsrCPU",
    "SparseCsrCUDA",
    "QuantizedCPU",
    "QuantizedCUDA",
    "NestedTensorCPU",
    "NestedTensorCUDA",
    "MkldnnCPU",
    "AutogradNestedTensor",
)


def why_not_dense(name, tensor):
    """Returns what a tensor that is not dense is, and the expression to use in its place; or None.

    Args:
        name: the tensor's, for the expression.
    """
    if tensor.is_nested:
        kind = "nested"
        remedy = f"torch.nested.to_padded_tensor({name}, 0.0), or a loop over {name}.unbind()"
    elif tensor.is_quantized:
        kind, remedy = "quantized", f"{name}.dequantize()"
    elif tensor.is_mkldnn:
        kind, remedy = "mkldnn", f"{name}.to_dense()"
    elif tensor.layout is not torch.strided:
        kind, remedy = "sparse", f"{name}.to_dense(), or torch.sparse.mm"
    else:
        return None
    return f"{kind} tensor ({tensor.layout}, {tensor.dtype})", remedy


def check_are_dense(op, arguments):
    """Raises a RuntimeError of op for the first argument that is a tensor and not a dense one."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and (found := why_not_dense(name, value)):
            kind, remedy = found
            raise RuntimeError(
                f"{op}: {name} is a {kind}, and only dense tensors are taken; use {remedy}"
            )


def _refuse_layout(op, *args, **options):
    """A kernel of op for other layouts."""
    arguments = dict(zip(argument_names(op), args, strict=False)) | options
    check_are_dense(name_in_texts(op), arguments)


def register(library):
    matmul, linear = operators.matmul, operators.linear
    overloads = (
        *(matmul.default, matmul.out, matmul.prepared, operators.gemm_.default),
        *(linear.default, linear.prepared, operators.grouped_mm.default),
        *(operators.attention.default, operators.attention_packed.default),
        *(operators._conv.default, operators._conv_transposed.default),
        operators._conv_filter_gradient.default,
        *(operators._row_softmax.default, operators._row_logsumexp.default),
        *(operators._row_sum.default, operators._row_cumsum.default, operators._row_norm.default),
        operators.prepare.default,
    )
    for op in overloads:
        for key in _REFUSED_KEYS:
            library.impl(op, functools.partial(_refuse_layout, op), key)
