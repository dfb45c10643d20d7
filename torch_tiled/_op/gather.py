"""_row_gather and _row_scatter: elements of rows by their indices, and the sums that undo it.

They are each other's derivative. torch.gather's gradient adds by atomics on a GPU, and so in any
order if a row names an index three times.
"""

import torch

from .._internals import SingleLevelFunction, primal_of, set_forward_ad_enabled
from .namespace import NAMESPACE, operators
from .rows import autograd_kernel

GATHER = "_row_gather(Tensor x, Tensor index) -> Tensor"
SCATTER = "_row_scatter(Tensor x, Tensor index, SymInt columns) -> Tensor"


def _gather(x, index):
    """x (..., columns) at index (..., k): (..., k)."""
    return x.gather(-1, index)


def _scatter(x, index, columns):
    """The sums of x (..., k) of the same index, in the order of k: (..., columns)."""
    result = x.new_zeros(*index.shape[:-1], columns)
    if index.shape[-1] == 1:
        return result.scatter_(-1, index, x)
    for k in range(index.shape[-1]):
        result.scatter_add_(-1, index[..., k : k + 1], x[..., k : k + 1])
    return result


class Gather(SingleLevelFunction):
    """x.gather(-1, index)."""

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
        return None, None, operators._row_scatter.default(grad, index, ctx.columns), None

    @staticmethod
    def jvp(ctx, _, __, tangent, ___):
        with set_forward_ad_enabled(True):
            return operators._row_gather.default(tangent, primal_of(ctx.saved_tensors[0]))


class Scatter(SingleLevelFunction):
    """zeros.scatter_add(-1, index, x)."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, options, _, index = inputs
        ctx.set_materialize_grads(False)
        ctx.columns = options["columns"]
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 4
        (index,) = ctx.saved_tensors
        return None, None, operators._row_gather.default(grad, index), None

    @staticmethod
    def jvp(ctx, _, __, tangent, ___):
        with set_forward_ad_enabled(True):
            index = primal_of(ctx.saved_tensors[0])
            return operators._row_scatter.default(tangent, index, ctx.columns)


def _vmap(name):
    op = getattr(operators, name).default

    def rule(info, in_dims, x, index, *columns):
        x, index = (
            y.expand(info.batch_size, *y.shape) if dim is None else y.movedim(dim, 0)
            for y, dim in zip((x, index), in_dims, strict=False)
        )
        return op(x, index, *columns), 0

    return rule


def register(library):
    for schema, kernel, function, fake, *options in (
        (GATHER, _gather, Gather, lambda x, index: x.new_empty(index.shape)),
        (
            *(SCATTER, _scatter, Scatter),
            lambda x, index, columns: x.new_empty(*index.shape[:-1], columns),
            "columns",
        ),
    ):
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, kernel, "CompositeExplicitAutograd")
        kernel = autograd_kernel(name, function, *options)
        library.impl(name, kernel, "Autograd", with_keyset=True)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
        torch.library.register_vmap(f"{NAMESPACE}::{name}", _vmap(name), lib=library)
