"""Derivatives of the operators, under every transform of PyTorch.

A differentiable operator has a kernel at the Autograd key that applies a SingleLevelFunction: the
function of one level of differentiation. Its forward calls the same operator one level down; its
backward and jvp call the operators anew, so that derivatives have derivatives and the transforms
of torch.func nest in any order. Where nothing is to be differentiated the kernel goes down a level
at once.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import unpack_dual

from . import plain
from ._internals import (
    AFTER_AUTOGRAD,
    BelowAutograd,
    SingleLevelFunction,
    allow_single_level_function,
    autocast_active,
    forward_ad_active,
    gradients_asked_for,
    redispatch_without_python,
    set_forward_ad_enabled,
    transforms_active,
)
from .errors import raise_if_out_of_memory
from .plain import is_plain
from .sharding import register_if_needed, with_parts_in_front

_matmul = torch.ops.tiled.matmul.default
_linear = torch.ops.tiled.linear.default
_redispatch_matmul = redispatch_without_python(_matmul)
_redispatch_linear = redispatch_without_python(_linear)
_redispatch_prepare = redispatch_without_python(torch.ops.tiled.prepare.default)
_redispatch_prepared_matmul = redispatch_without_python(torch.ops.tiled.matmul.prepared)
_redispatch_prepared_linear = redispatch_without_python(torch.ops.tiled.linear.prepared)
_threshold_backward = torch.ops.aten.threshold_backward.default

# The derivative of these needs their argument, so where one is asked for the product runs alone
# and PyTorch's own function follows. That of relu needs only the sign of the result.
ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": F.silu,
}


def differentiated(*tensors):
    """Whether a gradient or a tangent may flow through these tensors (or None)."""
    if forward_ad_active():
        return True
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def what_flows(tensor):
    """What makes a derivative flow through this tensor, in words; None where nothing does."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return "requires grad"
    if forward_ad_active() and unpack_dual(tensor).tangent is not None:
        return "has a forward-mode tangent"
    return None


def refuse_derivative_of_prepared(op, name, tensor):
    if trouble := what_flows(tensor):
        raise RuntimeError(
            f"{op}: {name} of shape {tuple(tensor.shape)} {trouble}, and what was split "
            f"beforehand has no derivative; call torch_tiled.unfreeze(model) to train a frozen "
            f"layer, or work under torch.no_grad(), or prepare {name}.detach()"
        )


def _apply(function, redispatch, keyset, options, *tensors):
    """Applies function, whose forward is the operator one level down."""
    grad_mode = torch.is_grad_enabled()
    keyset = keyset & AFTER_AUTOGRAD

    def below(*tensors):
        with BelowAutograd():
            if not transforms_active():
                return redispatch(keyset, *tensors, **options)
            # A Function runs its forward with grad mode and forward AD off; the level below may be
            # a transform that differentiates as well.
            with torch.set_grad_enabled(grad_mode), set_forward_ad_enabled(True):
                return redispatch(keyset, *tensors, **options)

    if transforms_active():
        with allow_single_level_function():
            return function.apply(below, options, *tensors)
    return function.apply(below, options, *tensors)


def _without(options, name):
    return {key: value for key, value in options.items() if key != name}


def _sum(x, y):
    return y if x is None else x if y is None else x + y


def _in_rows(x, y):
    """(*batch, q, p) and (*batch, q, r) as (rows, p) and (rows, r): a batch's laid end to end."""
    if x.dim() == 2:
        return x, y
    x, y = with_parts_in_front(x, y)
    rows = math.prod(x.shape[:-1])
    return x.reshape(rows, x.shape[-1]), y.reshape(rows, y.shape[-1])


def _product(x, y, options):
    """x @ y, which in a backward pass nobody watches, as a rule."""
    if not options and is_plain(x, y):
        return plain_matmul(x, y)
    return _matmul(x, y, **options)


def _product_for(shape, batch, x, y, options):
    """(*batch, p, q) times (*batch, q, r), summed over what was broadcast from shape, (..., p, r).

    Where shape has no batch of its own, the sum over the batch is a part of the product: the q of
    all batches are laid end to end, and one product is all there is.
    """
    (p, q), r = x.shape[-2:], y.shape[-1]
    if len(batch) > 0 and all(isinstance(size, int) and size == 1 for size in shape[:-2]):
        x, y = _in_rows(x.mT.expand(*batch, q, p), y.expand(*batch, q, r))
        return _product(x.mT, y, options).reshape(shape)
    return _product(x, y, options).sum_to_size(shape)


class _Matmul(SingleLevelFunction):
    @staticmethod
    def forward(below, options, a, b):
        return below(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, a, b = inputs
        _, _, needs_a, needs_b = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.save_for_forward(a, b)
        ctx.a_shape, ctx.b_shape, ctx.dtype = a.shape, b.shape, a.dtype

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None
        a, b = ctx.saved_tensors
        needs_a, needs_b = gradients_asked_for(ctx, ctx.needs_input_grad[2:])
        options = _without(ctx.options, "out_dtype")
        grad = grad.to(ctx.dtype)
        grad_a = grad_b = None
        if len(ctx.a_shape) == len(ctx.b_shape) == 2:
            if needs_a:
                grad_a = _product(grad, b.mT, options)
            if needs_b:
                grad_b = _product(a.mT, grad, options)
            return None, None, grad_a, grad_b
        # Vectors become matrices: a is a row, b a column.
        a_shape, b_shape = ctx.a_shape, ctx.b_shape
        if len(b_shape) == 1:
            b_shape, grad = (*b_shape, 1), grad.unsqueeze(-1)
        if len(a_shape) == 1:
            a_shape, grad = (1, *a_shape), grad.unsqueeze(-2)
        batch = grad.shape[:-2]
        if needs_a:
            b = b.reshape(b_shape)
            grad_a = _product_for(a_shape, batch, grad, b.mT, options).reshape(ctx.a_shape)
        if needs_b:
            a = a.reshape(a_shape)
            grad_b = _product_for(b_shape, batch, a.mT, grad, options).reshape(ctx.b_shape)
        return None, None, grad_a, grad_b

    @staticmethod
    def jvp(ctx, _, __, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        from_a = None if a_tangent is None else _matmul(a_tangent, b, **ctx.options)
        from_b = None if b_tangent is None else _matmul(a, b_tangent, **ctx.options)
        with set_forward_ad_enabled(True):  # off here, but the level below may need it
            return _sum(from_a, from_b)


class _Linear(SingleLevelFunction):
    """linear with no activation, or with relu."""

    @staticmethod
    def forward(below, options, x, weight, bias):
        return below(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, options, x, weight, _ = inputs
        _, _, needs_x, needs_weight, _ = ctx.needs_input_grad
        relu = output if options.get("activation") == "relu" else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, relu)
        ctx.save_for_forward(x, weight, relu)
        ctx.options, ctx.shape = _without(options, "activation"), output.shape

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None, None
        x, weight, relu = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        needs_x, needs_weight, needs_bias = gradients_asked_for(ctx, needed)
        if relu is not None:
            grad = _threshold_backward(grad, relu, 0)
        grad_x = grad_weight = grad_bias = None
        if needs_x:
            grad_x = _product(grad, weight, ctx.options)
        if needs_weight or needs_bias:
            by_row, x_by_row = _in_rows(grad, x if needs_weight else grad)
        if needs_weight:
            grad_weight = _product(by_row.mT, x_by_row, ctx.options)
        if needs_bias:
            grad_bias = by_row.sum(0)
        return None, None, grad_x, grad_weight, grad_bias

    @staticmethod
    def jvp(ctx, _, __, x_tangent, weight_tangent, bias_tangent):
        x, weight, relu = ctx.saved_tensors
        from_x = from_weight = None
        if x_tangent is not None:
            from_x = _linear(x_tangent, weight, bias_tangent, **ctx.options)
        if weight_tangent is not None:
            from_weight = _linear(x, weight_tangent, **ctx.options)
        with set_forward_ad_enabled(True):  # off here, but the level below may need it
            if x_tangent is None and bias_tangent is not None:
                # A tensor of its own: a tangent may neither alias another nor overlap itself.
                from_x = bias_tangent.expand(ctx.shape).clone(memory_format=torch.contiguous_format)
            tangent = _sum(from_x, from_weight)
            return tangent if relu is None else _threshold_backward(tangent, relu, 0)


# What the operators compute without options, for plain tensors. Autocast is another level.


def plain_matmul(a, b):
    try:
        if not ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled()):
            return plain.matmul(a, b)
        if not autocast_active():
            return _Matmul.apply(plain.matmul, {}, a, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return _matmul(a, b)


def plain_linear(x, weight, bias):
    try:
        if not differentiated(x, weight, bias):
            return plain.linear(x, weight, bias)
        if not autocast_active():
            return _Linear.apply(plain.linear, {}, x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return _linear(x, weight, bias)


# The kernels. Most calls find nothing to differentiate and pay for every frame on their way down.


def matmul(keyset, a, b, **options):
    register_if_needed()
    try:
        if differentiated(a, b):
            return _apply(_Matmul, _redispatch_matmul, keyset, options, a, b)
        return _redispatch_matmul(keyset & AFTER_AUTOGRAD, a, b, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def linear(keyset, x, weight, bias=None, **options):
    register_if_needed()
    try:
        if not differentiated(x, weight, bias):
            return _redispatch_linear(keyset & AFTER_AUTOGRAD, x, weight, bias, **options)
        return _differentiable_linear(_redispatch_linear, keyset, options, x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _differentiable_linear(redispatch, keyset, options, *tensors):
    activation = options.get("activation", "none")
    if activation not in ACTIVATIONS or activation == "relu":
        return _apply(_Linear, redispatch, keyset, options, *tensors)
    y = _apply(_Linear, redispatch, keyset, _without(options, "activation"), *tensors)
    return ACTIVATIONS[activation](y)


def prepare(keyset, b):
    register_if_needed()
    try:
        return _redispatch_prepare(keyset & AFTER_AUTOGRAD, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


# With a prepared operand, which itself has no derivative, the functions are the same: what was
# split rides along to the level below.


def prepared_matmul(keyset, a, b, hi_lo, inverse_scales, **options):
    def redispatch(keyset, a, b, **options):
        return _redispatch_prepared_matmul(keyset, a, b, hi_lo, inverse_scales, **options)

    register_if_needed()
    try:
        if not differentiated(a, b):
            return redispatch(keyset & AFTER_AUTOGRAD, a, b, **options)
        refuse_derivative_of_prepared("tiled::matmul", "b", b)
        return _apply(_Matmul, redispatch, keyset, options, a, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def prepared_linear(keyset, x, weight, hi_lo, inverse_scales, bias=None, **options):
    def redispatch(keyset, x, weight, bias, **options):
        return _redispatch_prepared_linear(keyset, x, weight, hi_lo, inverse_scales, bias, **options)

    register_if_needed()
    try:
        if not differentiated(x, weight, bias):
            return redispatch(keyset & AFTER_AUTOGRAD, x, weight, bias, **options)
        refuse_derivative_of_prepared("tiled::linear", "weight", weight)
        return _differentiable_linear(redispatch, keyset, options, x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def register(library):
    library.impl("matmul", matmul, "Autograd", with_keyset=True)
    library.impl("linear", linear, "Autograd", with_keyset=True)
    library.impl("matmul.prepared", prepared_matmul, "Autograd", with_keyset=True)
    library.impl("linear.prepared", prepared_linear, "Autograd", with_keyset=True)
    library.impl("prepare", prepare, "Autograd", with_keyset=True)
