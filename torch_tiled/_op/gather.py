"""_row_gather: elements of rows by their indices, with a gradient that is summed in order.

torch.gather's gradient adds with atomics on a GPU, so an index that a row names thrice or more
would get sums of any order.
"""

import torch

from .._internals import (
    SingleLevelFunction,
    primal_of,
    set_forward_ad_enabled,
    transforms_active,
)
from .namespace import NAMESPACE, operators
from .rows import autograd_kernel

SCHEMA = "_row_gather(Tensor x, Tensor index) -> Tensor"


def _gather(x, index):
    """x (..., columns) at index (..., k): (..., k)."""
    return x.gather(-1, index)


class Gather(SingleLevelFunction):
    """x.gather(-1, index)."""

    @staticmethod
    def forward(below, options, x, index):
        return below(x, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, x, index = inputs
        ctx.set_materialize_grads(False)
        ctx.columns = x.shape[-1]
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 4
        (index,) = ctx.saved_tensors
        return None, None, _scatter(grad, index, ctx.columns), None

    @staticmethod
    def jvp(ctx, _, __, tangent, ___):
        with set_forward_ad_enabled(True):
            return tangent.gather(-1, primal_of(ctx.saved_tensors[0]))


def _scatter(grad, index, columns):
    """The sums of grad (..., k) at the same index, in its order: (..., columns)."""
    result = grad.new_zeros(*index.shape[:-1], columns)
    if index.shape[-1] == 1:
        return result.scatter(-1, index, grad)
    for k in range(index.shape[-1]):
        column = -1, index[..., k : k + 1], grad[..., k : k + 1]
        if transforms_active():
            result = result.scatter_add(*column)
        else:
            result.scatter_add_(*column)
    return result


def _vmap(info, in_dims, x, index):
    x, index = (
        y.expand(info.batch_size, *y.shape) if dim is None else y.movedim(dim, 0)
        for y, dim in zip((x, index), in_dims, strict=True)
    )
    return operators._row_gather.default(x, index), 0


def register(library):
    library.define(SCHEMA)
    library.impl("_row_gather", _gather, "CompositeExplicitAutograd")
    library.impl(
        "_row_gather", autograd_kernel("_row_gather", Gather), "Autograd", with_keyset=True
    )
    torch.library.register_fake(
        f"{NAMESPACE}::_row_gather", lambda x, index: x.new_empty(index.shape), lib=library
    )
    torch.library.register_vmap(f"{NAMESPACE}::_row_gather", _vmap, lib=library)
