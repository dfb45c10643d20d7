"""The kernels at the Autograd key: matmul, linear, grouped_mm, attention and prepare.

If a derivative is asked for, a kernel applies a Function of derivatives.py; elsewhere it goes
down a level at once. Most calls do the latter and pay for every Python frame on their way, so each
kernel spells out the same steps: register DTensor's rules, dispatch, translate an error. gemm_ and
matmul.out, which have no derivative, have their kernels in inplace.py.
"""

import torch

from .._internals import (
    AFTER_AUTOGRAD,
    BelowAutograd,
    allow_single_level_function,
    redispatch_without_python,
    set_forward_ad_enabled,
    transforms_active,
)
from .activations import ACTIVATIONS
from .attention import Attention
from .attention_packed import AttentionPacked
from .derivatives import GroupedMm, Linear, Matmul, forget_saved, without
from .gradient_flow import is_differentiated_in_graph, refuse_derivative_of_prepared
from .lazy import resolve_for_python
from .namespace import operators
from .out_of_memory import raise_if_out_of_memory
from .sharding import register_if_needed

_redispatch_matmul = redispatch_without_python(operators.matmul.default)
_redispatch_linear = redispatch_without_python(operators.linear.default)
_redispatch_grouped_mm = redispatch_without_python(operators.grouped_mm.default)
_redispatch_attention = redispatch_without_python(operators.attention.default)
_redispatch_attention_packed = redispatch_without_python(operators.attention_packed.default)
_redispatch_prepare = redispatch_without_python(operators.prepare.default)
_redispatch_prepared_matmul = redispatch_without_python(operators.matmul.prepared)
_redispatch_prepared_linear = redispatch_without_python(operators.linear.prepared)


def apply(function, redispatch, keyset, options, *tensors):
    """Applies a Function with a forward that redispatches the operator below Autograd."""
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

    try:
        if transforms_active():
            with allow_single_level_function():
                return function.apply(below, options, *tensors)
        return function.apply(below, options, *tensors)
    except BaseException:
        forget_saved(below)
        raise


def _matmul(keyset, a, b, **options):
    register_if_needed()
    try:
        a, b = resolve_for_python(a, b)
        if is_differentiated_in_graph(a, b):
            return apply(Matmul, _redispatch_matmul, keyset, options, a, b)
        return _redispatch_matmul(keyset & AFTER_AUTOGRAD, a, b, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _linear(keyset, x, weight, bias=None, **options):
    register_if_needed()
    try:
        x, weight, bias = resolve_for_python(x, weight, bias)
        if not is_differentiated_in_graph(x, weight, bias):
            return _redispatch_linear(keyset & AFTER_AUTOGRAD, x, weight, bias, **options)
        return _differentiated_linear(_redispatch_linear, keyset, options, x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _differentiated_linear(redispatch, keyset, options, *tensors):
    """linear, with an activation other than relu as a second operator.

    The derivatives of those need the product before the activation, which a fused kernel does not
    store. Complex operands have none, which the operator says.
    """
    activation = options.get("activation", "none")
    if activation not in ACTIVATIONS or activation == "relu" or tensors[0].is_complex():
        return apply(Linear, redispatch, keyset, options, *tensors)
    y = apply(Linear, redispatch, keyset, without(options, "activation"), *tensors)
    return ACTIVATIONS[activation](y)


def _grouped_mm(keyset, a, b, offs=None, bias=None, **options):
    register_if_needed()
    try:
        a, b, bias = resolve_for_python(a, b, bias)
        if not is_differentiated_in_graph(a, b, bias):
            return _redispatch_grouped_mm(keyset & AFTER_AUTOGRAD, a, b, offs, bias, **options)
        return apply(GroupedMm, _grouped_mm_below, keyset, options, a, b, bias, offs)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _grouped_mm_below(keyset, a, b, bias, offs, **options):
    return _redispatch_grouped_mm(keyset, a, b, offs, bias, **options)


def _attention(keyset, q, k, v, mask, causal_offset, scale):
    register_if_needed()
    options = {"causal_offset": causal_offset, "scale": scale}
    try:
        q, k, v, mask = resolve_for_python(q, k, v, mask)
        if not is_differentiated_in_graph(q, k, v, mask):
            return _redispatch_attention(keyset & AFTER_AUTOGRAD, q, k, v, mask, **options)
        return apply(Attention, _redispatch_attention, keyset, options, q, k, v, mask)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _attention_packed(keyset, q, k, v, offsets_q, offsets_k, max_q, max_k, is_causal, scale):
    register_if_needed()
    options = {"max_q": max_q, "max_k": max_k, "is_causal": is_causal, "scale": scale}
    try:
        tensors = *resolve_for_python(q, k, v), offsets_q, offsets_k
        if not is_differentiated_in_graph(*tensors[:3]):
            return _redispatch_attention_packed(keyset & AFTER_AUTOGRAD, *tensors, **options)
        return apply(AttentionPacked, _redispatch_attention_packed, keyset, options, *tensors)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _prepare(keyset, b):
    register_if_needed()
    try:
        return _redispatch_prepare(keyset & AFTER_AUTOGRAD, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


# A prepared operand has no derivative. The derivatives of the other operand read the tensor itself,
# so the Functions are the same; hi_lo and inverse_scales are passed to the level below.


def _prepared_matmul(keyset, a, b, hi_lo, inverse_scales, **options):
    def redispatch(keyset, a, b, **options):
        return _redispatch_prepared_matmul(keyset, a, b, hi_lo, inverse_scales, **options)

    register_if_needed()
    try:
        a, b = resolve_for_python(a, b)
        if not is_differentiated_in_graph(a, b):
            return redispatch(keyset & AFTER_AUTOGRAD, a, b, **options)
        refuse_derivative_of_prepared("tiled::matmul", "b", b)
        return apply(Matmul, redispatch, keyset, options, a, b)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _prepared_linear(keyset, x, weight, hi_lo, inverse_scales, bias=None, **options):
    def redispatch(keyset, x, weight, bias, **options):
        return _redispatch_prepared_linear(
            keyset, x, weight, hi_lo, inverse_scales, bias, **options
        )

    register_if_needed()
    try:
        x, weight, bias = resolve_for_python(x, weight, bias)
        if not is_differentiated_in_graph(x, weight, bias):
            return redispatch(keyset & AFTER_AUTOGRAD, x, weight, bias, **options)
        refuse_derivative_of_prepared("tiled::linear", "weight", weight)
        return _differentiated_linear(redispatch, keyset, options, x, weight, bias)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def register(library):
    library.impl("matmul", _matmul, "Autograd", with_keyset=True)
    library.impl("linear", _linear, "Autograd", with_keyset=True)
    library.impl("grouped_mm", _grouped_mm, "Autograd", with_keyset=True)
    library.impl("matmul.prepared", _prepared_matmul, "Autograd", with_keyset=True)
    library.impl("linear.prepared", _prepared_linear, "Autograd", with_keyset=True)
    library.impl("attention", _attention, "Autograd", with_keyset=True)
    library.impl("attention_packed", _attention_packed, "Autograd", with_keyset=True)
    library.impl("prepare", _prepare, "Autograd", with_keyset=True)
