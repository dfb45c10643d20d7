"""The derivatives of matmul, linear and grouped_mm, as autograd Functions.

A Function here is a SingleLevelFunction: it differentiates one level of PyTorch's transforms. Its
forward calls the same operator one level down. Its backward and jvp call the operators at the top
again, so that derivatives have derivatives and transforms of torch.func nest in any order.

A gradient has its tensor's dtype. If operands and result differ in theirs, it is computed in
float32, by mixed products, and the autograd engine rounds it once when backward returns it.
"""

import math

import torch

from .._internals import (
    SingleLevelFunction,
    autocast_active,
    gradients_asked_for,
    set_forward_ad_enabled,
)
from . import fast_path
from .fast_path import is_plain
from .gradient_flow import may_require_grad
from .namespace import operators
from .out_of_memory import raise_if_out_of_memory
from .sharding import move_shards_to_front
from .supported import SIXTEEN_BIT

_matmul = operators.matmul.default
_linear = operators.linear.default
_grouped_mm = operators.grouped_mm.default
_OF_MIXED = {"fp32": "fp16x3", "ieee": "tiled", "tf32": "tf32"}
_threshold_backward = torch.ops.aten.threshold_backward.default


def without(options, name):
    return {key: value for key, value in options.items() if key != name}


def _sum(x, y):
    return y if x is None else x if y is None else x + y


def _fold_batch_into_rows(x, y):
    """(*batch, q, p) and (*batch, q, r) as (rows, p) and (rows, r), with rows = prod(batch) * q."""
    if x.dim() == 2:
        return x, y
    x, y = move_shards_to_front(x, y)
    rows = math.prod(x.shape[:-1])
    return x.reshape(rows, x.shape[-1]), y.reshape(rows, y.shape[-1])


def _product(x, y, options):
    """x @ y, by the fast path if it may be taken, as in most backward passes."""
    if not options and is_plain(x, y):
        return plain_matmul(x, y)
    if x.dtype != y.dtype and options.get("algorithm", "auto").startswith("mma"):
        # A float32 gradient times 16-bit numbers is a product of float32.
        named = _OF_MIXED[options.get("precision", "fp32")]
        options = {**options, "algorithm": named}
    return _matmul(x, y, **options)


def _product_reduced_to(shape, batch, x, y, options):
    """(*batch, p, q) @ (*batch, q, r), summed to shape, (..., p, r), which was broadcast to batch.

    If shape has no batch, one product sums over the batch as well: q of all batches is one long K.
    """
    (p, q), r = x.shape[-2:], y.shape[-1]
    if len(batch) > 0 and all(isinstance(size, int) and size == 1 for size in shape[:-2]):
        x, y = _fold_batch_into_rows(x.mT.expand(*batch, q, p), y.expand(*batch, q, r))
        return _product(x.mT, y, options).reshape(shape)
    return _product(x, y, options).sum_to_size(shape)


def _gradients_of_matrices(grad, a, b, needs_a, needs_b, options):
    """The gradients of two matrices, from that of a @ b. None for one that is not needed."""
    grad_a = _product(grad, b.mH, options) if needs_a else None
    return grad_a, _product(a.mH, grad, options) if needs_b else None


def _gradients_of_layer(grad, x, weight, needed, options):
    """The gradients of x, weight and bias, from that of x @ weight.T + bias.

    Args:
        needed: whether each of the three is needed; the gradients of others are None.
    """
    needs_x, needs_weight, needs_bias = needed
    grad_x = grad_weight = grad_bias = None
    if needs_x:
        grad_x = _product(grad, weight.conj(), options)
    if needs_weight or needs_bias:
        by_row, x_by_row = _fold_batch_into_rows(grad, x if needs_weight else grad)
    if needs_weight:
        grad_weight = _product(by_row.mT, x_by_row.conj(), options)
    if needs_bias:
        grad_bias = by_row.sum(0)
    return grad_x, grad_weight, grad_bias


class Matmul(SingleLevelFunction):
    """a @ b.

    Its arguments are `below`, a function that computes a @ b one level down; the operator's
    options; a and b.
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, a, b = inputs
        _, _, needs_a, needs_b = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.save_for_forward(a, b)
        ctx.a_shape, ctx.b_shape, ctx.is_mixed = a.shape, b.shape, a.dtype != b.dtype

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None
        a, b = ctx.saved_tensors
        needs_a, needs_b = gradients_asked_for(ctx, ctx.needs_input_grad[2:])
        options = without(ctx.options, "out_dtype")
        if ctx.is_mixed:
            grad = grad.float()
        if len(ctx.a_shape) == len(ctx.b_shape) == 2:
            return None, None, *_gradients_of_matrices(grad, a, b, needs_a, needs_b, options)
        grad_a = grad_b = None
        # Vectors become matrices: a is a row, b a column.
        a_shape, b_shape = ctx.a_shape, ctx.b_shape
        if len(b_shape) == 1:
            b_shape, grad = (*b_shape, 1), grad.unsqueeze(-1)
        if len(a_shape) == 1:
            a_shape, grad = (1, *a_shape), grad.unsqueeze(-2)
        batch = grad.shape[:-2]
        if needs_a:
            b = b.reshape(b_shape)
            grad_a = _product_reduced_to(a_shape, batch, grad, b.mH, options).reshape(ctx.a_shape)
        if needs_b:
            a = a.reshape(a_shape)
            grad_b = _product_reduced_to(b_shape, batch, a.mH, grad, options).reshape(ctx.b_shape)
        return None, None, grad_a, grad_b

    @staticmethod
    def jvp(ctx, _, __, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        from_a = None if a_tangent is None else _matmul(a_tangent, b, **ctx.options)
        from_b = None if b_tangent is None else _matmul(a, b_tangent, **ctx.options)
        with set_forward_ad_enabled(True):  # a jvp runs with it off; the level below may need it
            return _sum(from_a, from_b)


class PlainMatmul(SingleLevelFunction):
    """a @ b of two matrices that are is_plain(): Matmul with as little as a small product allows.

    Its arguments are a and b. It has no jvp, since no level of forward AD is active.
    """

    @staticmethod
    def forward(ctx, a, b):
        needs_a, needs_b = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        return fast_path.matmul(a, b)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None
        a, b = ctx.saved_tensors
        needs_a, needs_b = gradients_asked_for(ctx, ctx.needs_input_grad)
        return _gradients_of_matrices(grad, a, b, needs_a, needs_b, {})


class Linear(SingleLevelFunction):
    """x @ weight.T + bias, with or without a relu: its derivative needs only the result's sign.

    Its arguments are `below`, a function that computes this one level down; the operator's options;
    x, weight and bias (or None).
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        below, options, x, weight, _ = inputs
        _, _, needs_x, needs_weight, _ = ctx.needs_input_grad
        is_relu = options.get("activation") == "relu"
        ctx.set_materialize_grads(False)
        # The output itself is saved, since PyTorch's relu has a second derivative by it, of zeros.
        relu = output if is_relu else None
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, relu)
        ctx.save_for_forward(x, weight, output.detach() if is_relu else None)
        if is_relu:
            below.ctx = ctx  # for forget_saved()
        ctx.options, ctx.shape = without(options, "activation"), output.shape
        ctx.is_mixed, ctx.dtype = x.dtype != weight.dtype, output.dtype

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None, None
        x, weight, relu = ctx.saved_tensors
        needed = gradients_asked_for(ctx, ctx.needs_input_grad[2:])
        if relu is not None:
            grad = _threshold_backward(grad, relu, 0)
        if ctx.is_mixed:
            grad = grad.float()
        options = without(ctx.options, "out_dtype")
        return None, None, *_gradients_of_layer(grad, x, weight, needed, options)

    @staticmethod
    def jvp(ctx, _, __, x_tangent, weight_tangent, bias_tangent):
        x, weight, relu = ctx.saved_tensors
        from_x = from_weight = None
        if x_tangent is not None:
            from_x = _linear(x_tangent, weight, bias_tangent, **ctx.options)
        if weight_tangent is not None:
            from_weight = _linear(x, weight_tangent, **ctx.options)
        with set_forward_ad_enabled(True):  # a jvp runs with it off; the level below may need it
            if x_tangent is None and bias_tangent is not None:
                # The clone is needed: a tangent may neither alias another nor overlap itself.
                from_x = bias_tangent.to(ctx.dtype).expand(ctx.shape)
                from_x = from_x.clone(memory_format=torch.contiguous_format)
            tangent = _sum(from_x, from_weight)
            return tangent if relu is None else _threshold_backward(tangent, relu, 0)


class PlainLinear(SingleLevelFunction):
    """x @ weight.T + bias of tensors that are is_plain(): Linear with as little as that allows.

    Its arguments are x, weight and bias (or None). It has no jvp, as PlainMatmul.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return fast_path.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None
        x, weight = ctx.saved_tensors
        needed = gradients_asked_for(ctx, ctx.needs_input_grad)
        return _gradients_of_layer(grad, x, weight, needed, {})


def _grouped_product(x, y, offs, options):
    """grouped_mm(x, y), by the fast path if it may be taken."""
    if not options and (is_plain(x, y) if offs is None else is_plain(x, y, offs)):
        return plain_grouped_mm(x, y, offs, None)
    return _grouped_mm(x, y, offs, **options)


def _gradients_of_groups(grad, a, b, offs, bias_dim, needed, options):
    """The gradients of a, b and bias, from that of grouped_mm(a, b): grouped products again.

    Args:
        bias_dim: the number of the bias's dimensions.
        needed: whether each of the three is needed; the gradients of others are None.
    """
    needs_a, needs_b, needs_bias = needed
    grad_a = grad_b = grad_bias = None
    if needs_a:
        grad_a = _grouped_product(grad, b.mT, offs, options)
    if needs_b:
        grad_b = _grouped_product(a.mT, grad, offs, options)
    if needs_bias:
        if grad.dim() == 2:  # the sums of each group's rows: the others have no bias
            ones = grad.new_ones(1, 1).expand(1, grad.shape[0])
            wide = {"out_dtype": torch.float32} if grad.dtype in SIXTEEN_BIT else {}
            grad = _grouped_product(ones, grad, offs, wide)
        grad_bias = grad.sum(1 if bias_dim == 2 else (0, 1))
    return grad_a, grad_b, grad_bias


class GroupedMm(SingleLevelFunction):
    """The products of groups.

    Its arguments are `below`, a function that computes them one level down; the operator's options;
    a, b, bias and offs (or None).
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, a, b, bias, offs = inputs
        _, _, needs_a, needs_b, _, _ = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offs)
        ctx.save_for_forward(a, b, offs)
        ctx.is_mixed, ctx.shape, ctx.dtype = a.dtype != b.dtype, output.shape, output.dtype
        ctx.bias_dim = 0 if bias is None else bias.dim()

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None, None, None
        a, b, offs = ctx.saved_tensors
        needed = gradients_asked_for(ctx, ctx.needs_input_grad[2:5])
        if ctx.is_mixed:
            grad = grad.float()
        options = without(ctx.options, "out_dtype")
        grads = _gradients_of_groups(grad, a, b, offs, ctx.bias_dim, needed, options)
        return None, None, *grads, None

    @staticmethod
    def jvp(ctx, _, __, a_tangent, b_tangent, bias_tangent, ___):
        a, b, offs = ctx.saved_tensors
        tangent = None
        if a_tangent is not None:
            tangent = _grouped_mm(a_tangent, b, offs, bias_tangent, **ctx.options)
        if b_tangent is not None:
            bias = bias_tangent if a_tangent is None else None
            from_b = _grouped_mm(a, b_tangent, offs, bias, **ctx.options)
            with set_forward_ad_enabled(True):  # a jvp runs with it off
                return _sum(tangent, from_b)
        if tangent is not None:
            return tangent
        # The bias alone: its rows are the product of a column of ones by them.
        ones = bias_tangent.new_ones(1, 1)
        if len(ctx.shape) == 2:
            groups, ones = offs.shape[0], ones.expand(ctx.shape[0], 1)
        else:
            groups, offs, ones = ctx.shape[0], None, ones.expand(*ctx.shape[:2], 1)
        rows = bias_tangent.unsqueeze(-2).expand(groups, 1, ctx.shape[-1])
        result = _grouped_mm(ones, rows, offs)
        with set_forward_ad_enabled(True):
            return result.to(ctx.dtype)


class PlainGroupedMm(SingleLevelFunction):
    """The products of groups that are is_plain(): GroupedMm with as little as that allows.

    Its arguments are a, b, bias and offs (or None). It has no jvp, as PlainMatmul.
    """

    @staticmethod
    def forward(ctx, a, b, bias, offs):
        needs_a, needs_b, _, _ = ctx.needs_input_grad
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offs)
        ctx.is_mixed, ctx.bias_dim = a.dtype != b.dtype, 0 if bias is None else bias.dim()
        return fast_path.grouped_mm(a, b, offs, bias)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None
        a, b, offs = ctx.saved_tensors
        needed = gradients_asked_for(ctx, ctx.needs_input_grad[:3])
        if ctx.is_mixed:
            grad = grad.float()
        return *_gradients_of_groups(grad, a, b, offs, ctx.bias_dim, needed, {}), None


def forget_saved(below):
    """Ends the references between a Linear and its output if saving them has raised.

    torch.utils.checkpoint ends a recomputation by an exception amid the saving.
    """
    if ctx := getattr(below, "ctx", None):
        ctx.save_for_backward()


# The fast path's products, differentiable: what matmul and linear compute without options for
# tensors that are is_plain(). The general operators take autocast, which is one more key.


def plain_matmul(a, b):
    try:
        if not ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled()):
            return fast_path.matmul(a, b)
        if not autocast_active():
            if a.dim() == b.dim() == 2:
                return PlainMatmul.apply(a, b)
            return Matmul.apply(fast_path.matmul, {}, a, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return _matmul(a, b)


def plain_prepared_linear(x, weight, hi_lo, inverse_scales, bias):
    try:
        if not may_require_grad(x, weight, bias):
            return fast_path.prepared_linear(x, weight, hi_lo, inverse_scales, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return operators.linear.prepared(x, weight, hi_lo, inverse_scales, bias)


def plain_linear(x, weight, bias):
    try:
        if not may_require_grad(x, weight, bias):
            return fast_path.linear(x, weight, bias)
        if not autocast_active():
            return PlainLinear.apply(x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return _linear(x, weight, bias)


def plain_grouped_mm(a, b, offs, bias):
    try:
        grad = a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
        if not (grad and torch.is_grad_enabled()):
            return fast_path.grouped_mm(a, b, offs, bias)
        if not autocast_active():
            return PlainGroupedMm.apply(a, b, bias, offs)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    return _grouped_mm(a, b, offs, bias)
