"""Reductions of rows, softmax, logsumexp, sums, running sums and norms: derivatives and vmap.

A kernel computes a gradient, and a row's bits do not depend on the batch. If something may
differentiate the gradient, a composite of the same operators computes it, which has derivatives of
any order. Gradients of 16-bit norms are computed in float32 and rounded.
"""

from itertools import compress

import torch

from .._internals import (
    AFTER_AUTOGRAD,
    SingleLevelFunction,
    gradients_asked_for,
    primal_of,
    redispatch_without_python,
    set_forward_ad_enabled,
    transforms_active,
)
from .autograd import apply
from .gradient_flow import is_differentiated_in_graph
from .lazy import resolve_for_python
from .namespace import NAMESPACE, operators
from .out_of_memory import raise_if_out_of_memory
from .sharding import register_if_needed

_softmax = operators._row_softmax.default
_sum = operators._row_sum.default
_cumsum = operators._row_cumsum.default


def _total(x):
    return _sum(x, False)[..., None]


def _mean(x):
    return _sum(x, True)[..., None]


def _run_kernel(operator, grad, *arguments):
    """The results of a gradient's operator, or None if something may differentiate them."""
    if torch.is_grad_enabled() or transforms_active():
        return None
    (grad,) = resolve_for_python(grad)
    return operator.default(grad, *arguments)


class Softmax(SingleLevelFunction):
    """softmax(x), or its logarithm. Its matrix of derivatives is symmetric, or its transpose's."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None
        (y,) = ctx.saved_tensors
        is_log = ctx.options["log"]
        grad_x = _run_kernel(operators._row_softmax_backward, grad, y, is_log)
        if grad_x is None:
            grad_x = grad - y.exp() * _total(grad) if is_log else y * (grad - _total(grad * y))
        return None, None, grad_x

    @staticmethod
    def jvp(ctx, _, __, tangent):
        with set_forward_ad_enabled(True):  # a jvp runs with it off; the level below may need it
            y = primal_of(ctx.saved_tensors[0])
            if ctx.options["log"]:
                return tangent - _total(tangent * y.exp())
            return y * (tangent - _total(tangent * y))


class LogSumExp(SingleLevelFunction):
    """The logarithm of a row's sum of exponentials. That of no finite one has a gradient of 0."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, x = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None
        return None, None, grad[..., None] * _weights(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, _, __, tangent):
        with set_forward_ad_enabled(True):
            return _sum(tangent * _weights(*map(primal_of, ctx.saved_tensors)), False)


def _weights(x, logsumexp):
    """The derivatives of logsumexp(x) by x."""
    return _softmax(x, False).masked_fill(logsumexp[..., None] == -torch.inf, 0)


class Sum(SingleLevelFunction):
    """The sum or the mean of a row."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, x = inputs
        ctx.set_materialize_grads(False)
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None
        grad = grad[..., None]
        return None, None, (grad / ctx.shape[-1] if ctx.options["mean"] else grad).expand(ctx.shape)

    @staticmethod
    def jvp(ctx, _, __, tangent):
        with set_forward_ad_enabled(True):
            return _sum(tangent, ctx.options["mean"])


class CumSum(SingleLevelFunction):
    """The running sums of a row. Those of the gradient run the other way."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, options, _ = inputs
        ctx.reverse = options["reverse"]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad):
        return None, None, None if grad is None else _cumsum(grad, not ctx.reverse)

    @staticmethod
    def jvp(ctx, _, __, tangent):
        with set_forward_ad_enabled(True):
            return _cumsum(tangent, ctx.reverse)


class Norm(SingleLevelFunction):
    """A layer norm or an RMS norm of x, with a weight and a bias (or None).

    The other results, a row's mean and the inverse of its deviation, have no derivative.
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.options, x, weight, bias = inputs
        _, mean, inverse = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, inverse)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.save_for_forward(x, weight, bias)

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 5
        x, weight, bias, mean, inverse = ctx.saved_tensors
        given = [y is not None for y in (x, weight, bias)]
        asked = iter(gradients_asked_for(ctx, [*compress(ctx.needs_input_grad[2:], given)]))
        needed = [is_given and next(asked) for is_given in given]
        operator, is_centered = operators._row_norm_backward, ctx.options["centered"]
        arguments = x, weight, mean, inverse, is_centered, *needed
        grads = _run_kernel(operator, grad, *arguments)
        if grads is None:
            grads = _gradients_of_norm(grad, x, weight, **ctx.options)
        pairs = zip(grads, (x, weight, bias), needed, strict=True)
        return None, None, *(y.to(z.dtype) if need else None for y, z, need in pairs)

    @staticmethod
    def jvp(ctx, _, __, of_x, of_weight, of_bias):
        with set_forward_ad_enabled(True):
            x, weight, _ = map(primal_of, ctx.saved_tensors)
            h, inverse = _normalized(x, **ctx.options)
            tangent = None
            if of_x is not None:
                of_x = widened(of_x)
                of_x = of_x - _mean(of_x) if ctx.options["centered"] else of_x
                tangent = (of_x - h * _mean(of_x * h)) * inverse
                tangent = tangent if weight is None else tangent * weight
            for term in (None if of_weight is None else h * of_weight, of_bias):
                if term is not None:
                    tangent = term if tangent is None else tangent + term
            return tangent.expand(x.shape).to(x.dtype), None, None


def widened(x):
    return x if x.dtype == torch.float64 else x.float()


def _normalized(x, eps, centered):
    """The rows of x with a mean of 0, if they are centered, and a variance of 1; and what that took
    to multiply them by."""
    x = widened(x)
    if centered:
        x = x - _mean(x)
    inverse = (_mean(x * x) + eps).rsqrt()
    return x * inverse, inverse


def _gradients_of_norm(grad, x, weight, eps, centered):
    """The composite for the gradients of x, weight and bias, in float32 or float64."""
    h, inverse = _normalized(x, eps, centered)
    grad = widened(grad)
    of_h = grad if weight is None else grad * weight
    grad_x = of_h - h * _mean(of_h * h)
    grad_x = (grad_x - _mean(of_h) if centered else grad_x) * inverse
    by_row = grad.flatten(0, -2) if grad.dim() > 1 else grad[None]
    terms = by_row * h.reshape(by_row.shape), by_row
    return grad_x, *(_sum(each.mT, False) for each in terms)


def autograd_kernel(name, function, *options):
    """The kernel at the Autograd key of an operator of tensors, followed by these options."""
    redispatch = redispatch_without_python(getattr(operators, name).default)

    def kernel(keyset, *arguments):
        register_if_needed()
        tensors = arguments[: len(arguments) - len(options)]
        values = dict(zip(options, arguments[len(tensors) :], strict=True))
        try:
            tensors = resolve_for_python(*tensors)
            if not is_differentiated_in_graph(*tensors):
                return redispatch(keyset & AFTER_AUTOGRAD, *tensors, **values)
            return apply(function, redispatch, keyset, values, *tensors)
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise

    return kernel


# --- vmap ----------------------------------------------------------------------------------------


def _vmap_rows(name):
    """The rule of an operator of one tensor: examples are rows."""
    op = getattr(operators, name).default

    def rule(info, in_dims, x, *options):
        return op(x.movedim(in_dims[0], 0), *options), 0

    return rule


def _vmap_norm(info, in_dims, x, weight, bias, *options):
    op, (x_dim, *param_dims, _, _) = operators._row_norm.default, in_dims
    if param_dims == [None, None]:
        return op(x.movedim(x_dim, 0), weight, bias, *options), (0, 0, 0)
    results = vmap_by_example(op, info, in_dims, x, weight, bias, *options)
    return tuple(map(torch.stack, zip(*results, strict=True))), (0, 0, 0)


def vmap_by_example(op, info, in_dims, *arguments):
    """The operator's results for each example."""
    pairs = list(zip(arguments, in_dims, strict=True))
    return [
        op(*(y if dim is None else y.select(dim, i) for y, dim in pairs))
        for i in range(info.batch_size)
    ]


def register(library):
    for name, *given in (
        ("_row_softmax", Softmax, "log"),
        ("_row_logsumexp", LogSumExp),
        ("_row_sum", Sum, "mean"),
        ("_row_cumsum", CumSum, "reverse"),
        ("_row_norm", Norm, "eps", "centered"),
    ):
        library.impl(name, autograd_kernel(name, *given), "Autograd", with_keyset=True)
    for name in ("_row_softmax", "_row_logsumexp", "_row_sum", "_row_cumsum"):
        torch.library.register_vmap(f"{NAMESPACE}::{name}", _vmap_rows(name), lib=library)
    torch.library.register_vmap(f"{NAMESPACE}::_row_norm", _vmap_norm, lib=library)
