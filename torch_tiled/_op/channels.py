"""_channel_affine: a scale and a shift for each channel, with gradients of a fixed order.

Broadcasting would do but for the gradients, which autograd sums by torch.sum.
"""

import torch

from .._internals import SingleLevelFunction, primal_of, set_forward_ad_enabled
from .namespace import NAMESPACE, operators
from .rows import autograd_kernel, vmap_by_example, widened

SCHEMA = "_channel_affine(Tensor x, Tensor? weight, Tensor? bias) -> Tensor"
_sum = operators._row_sum.default


def _affine(x, weight, bias):
    """x (samples, channels, places) times weight (channels,) plus bias (channels,); or None."""
    y = widened(x) * (1 if weight is None else weight[:, None])
    if bias is not None:
        y = y + bias[:, None]
    return y.to(x.dtype)


def _sum_by_channel(x):
    """Sums over each sample, and then over the samples: (channels,)."""
    return _sum(_sum(x, False).mT, False)


class Affine(SingleLevelFunction):
    """x * weight + bias by channels."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, x, weight, bias = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 5
        x, weight, bias = ctx.saved_tensors
        _, _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if needs_x:
            grad_x = operators._channel_affine.default(grad, weight, None)
        if needs_weight:
            grad_weight = _sum_by_channel(widened(grad) * x).to(weight.dtype)
        if needs_bias:
            grad_bias = _sum_by_channel(widened(grad)).to(bias.dtype)
        return None, None, grad_x, grad_weight, grad_bias

    @staticmethod
    def jvp(ctx, _, __, of_x, of_weight, of_bias):
        with set_forward_ad_enabled(True):
            x, weight = map(primal_of, ctx.saved_tensors)
            tangent = None if of_x is None else _affine(of_x, weight, None)
            for of, factor in ((of_weight, x), (of_bias, None)):
                if of is not None:
                    term = of[:, None] if factor is None else factor * of[:, None]
                    tangent = term if tangent is None else tangent + term
            return tangent.expand(x.shape).to(x.dtype)


def _vmap(info, in_dims, x, weight, bias):
    op, (x_dim, *of_params) = operators._channel_affine.default, in_dims
    if of_params == [None, None]:  # examples are samples
        x = x.movedim(x_dim, 0)
        return op(x.flatten(0, 1), weight, bias).unflatten(0, x.shape[:2]), 0
    return torch.stack(vmap_by_example(op, info, in_dims, x, weight, bias)), 0


def register(library):
    library.define(SCHEMA)
    library.impl("_channel_affine", _affine, "CompositeExplicitAutograd")
    kernel = autograd_kernel("_channel_affine", Affine)
    library.impl("_channel_affine", kernel, "Autograd", with_keyset=True)
    torch.library.register_fake(
        f"{NAMESPACE}::_channel_affine", lambda x, weight, bias: x.new_empty(x.shape), lib=library
    )
    torch.library.register_vmap(f"{NAMESPACE}::_channel_affine", _vmap, lib=library)
