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


def _kind_and_remedy(tensor):
    if tensor.is_nested:
        return "nested", "torch.nested.to_padded_tensor({}, 0.0), or a loop over {}.unbind()"
    if tensor.is_quantized:
        return "quantized", "{}.dequantize()"
    if tensor.is_mkldnn:
        return "mkldnn", "{}.to_dense()"
    if tensor.layout is not torch.strided:
        return "sparse", "{}.to_dense(), or torch.sparse.mm"
    return None


def _refuse_layout(op, *args, **options):
    """A kernel of op that raises for its first argument that is not a dense tensor."""
    arguments = dict(zip(argument_names(op), args, strict=False)) | options
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and (found := _kind_and_remedy(value)):
            kind, remedy = found
            raise RuntimeError(
                f"{name_in_texts(op)}: {name} is a {kind} tensor ({value.layout}, {value.dtype}), "
                f"and only dense tensors are taken; use {remedy.replace('{}', name)}"
            )


def register(library):
    matmul, linear = operators.matmul, operators.linear
    overloads = (
        *(matmul.default, matmul.out, matmul.prepared, operators.gemm_.default),
        *(linear.default, linear.prepared, operators.prepare.default),
    )
    for op in overloads:
        for key in _REFUSED_KEYS:
            library.impl(op, functools.partial(_refuse_layout, op), key)
