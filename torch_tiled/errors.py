"""Errors that the shared object can't raise by itself."""

import functools
import re

import torch

from ._internals import argument_names

_OUT_OF_MEMORY = re.compile(r"tiled::\w+: out of memory: ")

# No kernel is ever called with a tensor that has one of these dispatch keys. (Jagged nested tensors
# have none but the last that comes before their own Python code.)
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


def raise_if_out_of_memory(error):
    """Raises error again as torch.OutOfMemoryError if its text says that memory ran out."""
    if type(error) is RuntimeError and _OUT_OF_MEMORY.match(str(error)):
        raise torch.OutOfMemoryError(str(error)) from None


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


def refuse_layout(op, *args, **options):
    """A kernel that says which argument of op is not a dense tensor, and what to do."""
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
            library.impl(op, functools.partial(refuse_layout, op), key)
