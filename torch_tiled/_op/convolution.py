"""Convolutions of float32: _conv, its transpose, and the gradient of its filters.

Each of the three is linear in two tensors, and its derivatives are the other two, so there are
derivatives of any order.
"""

import torch

from .._internals import SingleLevelFunction, primal_of, set_forward_ad_enabled
from .activations import ACTIVATIONS
from .checks import _check, _check_same_device, _shape
from .gradient_flow import is_differentiated_in_graph
from .namespace import NAMESPACE, operators
from .rows import autograd_kernel

_GEOMETRY = ("stride", "padding", "dilation", "groups")

_conv = operators._conv.default
_transposed = operators._conv_transposed.default
_filter_gradient = operators._conv_filter_gradient.default


# --- derivatives ---------------------------------------------------------------------------------


def _tangent(*terms):
    terms = [x for x in terms if x is not None]
    return sum(terms[1:], start=terms[0])


class Conv(SingleLevelFunction):
    """The convolution of x by weight, plus bias (or None)."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, options, x, weight, bias = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.geometry = [options[name] for name in _GEOMETRY]
        ctx.shape = output.shape

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 5
        x, weight = ctx.saved_tensors
        _, _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        if needs_x:
            grad_x = _transposed(grad, weight, x.shape[2:], *ctx.geometry)
        if needs_weight:
            grad_weight = _filter_gradient(x, grad, weight.shape[2:], *ctx.geometry)
        if needs_bias:
            grad_bias = grad.sum((0, *range(2, grad.dim())))
        return None, None, grad_x, grad_weight, grad_bias

    @staticmethod
    def jvp(ctx, _, __, of_x, of_weight, of_bias):
        with set_forward_ad_enabled(True):
            x, weight = map(primal_of, ctx.saved_tensors)
            by_x = None if of_x is None else _conv(of_x, weight, None, *ctx.geometry, "none")
            by_weight = None
            if of_weight is not None:
                by_weight = _conv(x, of_weight, None, *ctx.geometry, "none")
            if of_bias is not None:
                of_bias = of_bias.view(-1, *(1,) * (len(ctx.shape) - 2)).expand(ctx.shape).clone()
            return _tangent(by_x, by_weight, of_bias)


def _bilinear(compute, of_first, of_second):
    """The Function of an operator of two tensors that is linear in each, with a result of a size.

    Its arguments are `below`, as for Conv; the operator's options; the two tensors.

    Args:
        compute: the operator, of both tensors, the size and the geometry.
        of_first: the gradient of the first tensor, from that of the result, both tensors and the
            geometry.
        of_second: the gradient of the second tensor.
    """

    class Bilinear(SingleLevelFunction):
        @staticmethod
        def setup_context(ctx, inputs, output):
            _, options, first, second = inputs
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(first, second)
            ctx.save_for_forward(first, second)
            ctx.size, ctx.geometry = options["size"], [options[name] for name in _GEOMETRY]

        @staticmethod
        def backward(ctx, grad):
            if grad is None:
                return (None,) * 4
            _, _, needs_first, needs_second = ctx.needs_input_grad
            given = grad, *ctx.saved_tensors, *ctx.geometry
            grad_first = of_first(*given) if needs_first else None
            return None, None, grad_first, of_second(*given) if needs_second else None

        @staticmethod
        def jvp(ctx, _, __, first_tangent, second_tangent):
            with set_forward_ad_enabled(True):
                first, second = map(primal_of, ctx.saved_tensors)
                options = ctx.size, *ctx.geometry
                by_first = by_second = None
                if first_tangent is not None:
                    by_first = compute(first_tangent, second, *options)
                if second_tangent is not None:
                    by_second = compute(first, second_tangent, *options)
                return _tangent(by_first, by_second)

    return Bilinear


# The gradient of x from that of the result, grad.
Transposed = _bilinear(
    _transposed,
    lambda of_x, grad, weight, *geometry: _conv(of_x, weight, None, *geometry, "none"),
    lambda of_x, grad, weight, *geometry: _filter_gradient(of_x, grad, weight.shape[2:], *geometry),
)
# The gradient of filters from x and the gradient of the result.
FilterGradient = _bilinear(
    _filter_gradient,
    lambda of_weight, x, grad, *geometry: _transposed(grad, of_weight, x.shape[2:], *geometry),
    lambda of_weight, x, grad, *geometry: _conv(x, of_weight, None, *geometry, "none"),
)


def _with_activation(kernel):
    """The kernel of _conv at Autograd, which differentiates an activation as an operator."""

    def with_activation(keyset, x, weight, bias, *options):
        *geometry, activation = options
        if activation not in ACTIVATIONS or not is_differentiated_in_graph(x, weight, bias):
            return kernel(keyset, x, weight, bias, *options)
        return ACTIVATIONS[activation](kernel(keyset, x, weight, bias, *geometry, "none"))

    return with_activation


# --- checks (csrc/binding/convolution.cpp) and tensors without data ------------------------------


def _check_float32(op, name, x):
    if x.dtype != torch.float32:
        raise RuntimeError(
            f"{op}: {name} is {x.dtype}; it must be torch.float32. torch.nn.functional computes "
            f"other convolutions"
        )


def _shape_of_result(op, x, weight, stride, padding, dilation, groups):
    """The shape of the result, from the shapes of x and weight."""
    given = f"x is {_shape_text(x)} and weight is {_shape_text(weight)}; "
    if not 3 <= len(x) <= 5 or len(x) != len(weight):
        raise RuntimeError(f"{op}: {given}both must have 3 to 5 dimensions, as many as one another")
    dims = len(x) - 2
    for name, values, least in (
        *(("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)),
    ):
        if len(values) != dims or any(not least <= value < 2**31 for value in values):
            raise RuntimeError(
                f"{op}: {name} is {_shape_text(values)}; it must have {dims} numbers, each at "
                f"least {least} and below 2**31"
            )
    _check(
        groups >= 1 and weight[0] % groups == 0 and x[1] == weight[1] * groups,
        lambda: (
            f"{op}: {given}x must have {groups} times weight's channels, and weight's filters must "
            f"be a multiple of that, since groups is {groups}"
        ),
    )
    sizes = []
    for d, (size, taps) in enumerate(zip(x[2:], weight[2:], strict=True)):
        extent, padded = dilation[d] * (taps - 1) + 1, size + 2 * padding[d]

        def sentence(d=d, extent=extent, padded=padded):
            return (
                f"{op}: {given}a filter reaches over {extent} elements of dimension {d + 2}, of "
                f"which x has {padded} with its padding; pass a larger x, or more padding"
            )

        _check(taps >= 1, sentence)
        _check(extent <= padded, sentence)
        sizes.append((padded - extent) // stride[d] + 1)
    return (x[0], weight[0], *sizes)


def _shape_text(sizes):
    return str(tuple(sizes))


def _is_channels_last(x):
    """Returns whether x is in channels_last, and not in the default format as well."""
    if x.is_contiguous() or x.dim() not in (4, 5):
        return x.dim() == 3 and not x.is_contiguous() and x.mT.is_contiguous()
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return x.is_contiguous(memory_format=last)


def _empty_images(shape, *like):
    """An empty tensor, in channels_last if one of `like` is."""
    if not any(map(_is_channels_last, like)):
        return like[0].new_empty(shape)
    order = (0, *range(2, len(shape)), 1)
    return torch.empty_permuted(shape, order, dtype=torch.float32, device=like[0].device)


def _fake_conv(x, weight, bias, stride, padding, dilation, groups, activation):
    op = "tiled::_conv"
    _check_float32(op, "x", x)
    _check_float32(op, "weight", weight)
    _check_same_device(op, "weight", weight, "x", x)
    shape = _shape_of_result(op, x.shape, weight.shape, stride, padding, dilation, groups)
    if bias is not None:
        _check_float32(op, "bias", bias)
        _check_same_device(op, "bias", bias, "x", x)
        _check(
            bias.dim() == 1 and bias.shape[0] == weight.shape[0],
            lambda: (
                f"{op}: bias is {_shape(bias)} and weight is {_shape(weight)}; bias must be "
                f"(filters,)"
            ),
        )
    return _empty_images(shape, x, weight)


def _check_grad(op, grad, x, weight, *geometry):
    """Checks the gradient of a result, by the shapes of x and weight."""
    shape = _shape_of_result(op, x, weight, *geometry)
    _check(
        len(shape) == grad.dim() and tuple(grad.shape) == shape,
        lambda: (
            f"{op}: grad is {_shape(grad)}; it must be {_shape_text(shape)}, since x is "
            f"{_shape_text(x)} and weight is {_shape_text(weight)}"
        ),
    )


def _fake_transposed(grad, weight, size, *geometry):
    op = "tiled::_conv_transposed"
    _check_float32(op, "grad", grad)
    _check_float32(op, "weight", weight)
    _check_same_device(op, "weight", weight, "grad", grad)
    x = (grad.shape[0], weight.shape[1] * geometry[-1], *size)
    _check_grad(op, grad, x, tuple(weight.shape), *geometry)
    return _empty_images(x, grad, weight)


def _fake_filter_gradient(x, grad, size, *geometry):
    op = "tiled::_conv_filter_gradient"
    _check_float32(op, "x", x)
    _check_float32(op, "grad", grad)
    _check_same_device(op, "grad", grad, "x", x)
    weight = (grad.shape[1], x.shape[1] // geometry[-1], *size)
    _check_grad(op, grad, tuple(x.shape), weight, *geometry)
    return _empty_images(weight, x, grad)


# --- vmap ----------------------------------------------------------------------------------------


def _fold(x, dim, into, count):
    """The examples of x in its dimension `into`: one after another."""
    x = x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.movedim(0, into).flatten(into, into + 1)


def _vmap_conv(info, in_dims, x, weight, bias, *options):
    x_dim, weight_dim, bias_dim = in_dims[:3]
    count, (*geometry, groups, activation) = info.batch_size, options
    if weight_dim is None and bias_dim is None:
        y = _conv(_fold(x, x_dim, 0, count), weight, bias, *options)
        return y.unflatten(0, (count, -1) if count else (0, x.shape[0 if x_dim else 1])), 0
    # The examples are groups.
    x, weight = _fold(x, x_dim, 1, count), _fold(weight, weight_dim, 0, count)
    if bias is not None:
        bias = _fold(bias, bias_dim, 0, count)
    y = _conv(x, weight, bias, *geometry, groups * count, activation)
    return y.unflatten(1, (count, weight.shape[0] // count)), 1


def _vmap_transposed(info, in_dims, grad, weight, size, *options):
    grad_dim, weight_dim = in_dims[:2]
    count, (*geometry, groups) = info.batch_size, options
    if weight_dim is None:
        x = _transposed(_fold(grad, grad_dim, 0, count), weight, size, *options)
        return x.unflatten(0, (count, -1)), 0
    grad, weight = _fold(grad, grad_dim, 1, count), _fold(weight, weight_dim, 0, count)
    x = _transposed(grad, weight, size, *geometry, groups * count)
    return x.unflatten(1, (count, -1)), 1


def _vmap_filter_gradient(info, in_dims, x, grad, size, *options):
    count, (*geometry, groups) = info.batch_size, options
    x, grad = _fold(x, in_dims[0], 1, count), _fold(grad, in_dims[1], 1, count)
    weight = _filter_gradient(x, grad, size, *geometry, groups * count)
    return weight.unflatten(0, (count, -1)), 0


def register(library):
    conv = autograd_kernel("_conv", Conv, *_GEOMETRY, "activation")
    library.impl("_conv", _with_activation(conv), "Autograd", with_keyset=True)
    for name, function in (
        ("_conv_transposed", Transposed),
        ("_conv_filter_gradient", FilterGradient),
    ):
        kernel = autograd_kernel(name, function, "size", *_GEOMETRY)
        library.impl(name, kernel, "Autograd", with_keyset=True)
    for name, fake, vmap in (
        ("_conv", _fake_conv, _vmap_conv),
        ("_conv_transposed", _fake_transposed, _vmap_transposed),
        ("_conv_filter_gradient", _fake_filter_gradient, _vmap_filter_gradient),
    ):
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
        torch.library.register_vmap(f"{NAMESPACE}::{name}", vmap, lib=library)
