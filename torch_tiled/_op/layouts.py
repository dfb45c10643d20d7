"""Refuses sparse, quantized, nested and mkldnn tensors, and names a remedy for each.

The kernels take dense strided tensors. Without the registrations here a call with another layout
would end in the dispatcher's text on a missing kernel.
"""

import functools

import torch

from .._internals import argument_names

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
    op_name, _, _ = op.name().partition(".")
    arguments = dict(zip(argument_names(op), args, strict=False)) | options
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and (found := _kind_and_remedy(value)):
            kind, remedy = found
            raise RuntimeError(
                f"{op_name}: {name} is a {kind} tensor ({value.layout}, {value.dtype}), "
                f"and only dense tensors are taken; use {remedy.replace('{}', name)}"
            )


def register(library):
    tiled = torch.ops.tiled
    operators = (
        *(tiled.matmul.default, tiled.matmul.out, tiled.matmul.prepared, tiled.gemm_.default),
        *(tiled.linear.default, tiled.linear.prepared, tiled.prepare.default),
    )
    for op in operators:
        for key in _REFUSED_KEYS:
            library.impl(op, functools.partial(_refuse_layout, op), key)
