"""The derivatives of attention: a kernel for gradients, and else a composite.

A composite of products and reductions of rows computes the weights, the softmax of the scores,
anew: a number for each query and key of each head. It has derivatives itself, of any order. The
heads of q that share a head of k and v are folded into rows, so that no product copies k or v.
Those of 16-bit tensors are computed in float32, and rounded.
"""

import torch

from .._internals import (
    SingleLevelFunction,
    gradients_asked_for,
    primal_of,
    set_forward_ad_enabled,
    transforms_active,
)
from .derivatives import _product, _sum
from .lazy import resolve_for_python
from .namespace import operators
from .out_of_memory import raise_if_out_of_memory
from .sharding import gather_folded
from .supported import PLAIN_TYPES, is_traced

_MOST_COLUMNS = 128  # of q, k and v, that the gradients' kernels take on a GPU


def _softmax(scores):
    return operators._row_softmax.default(scores, False)


def _total(x):
    return operators._row_sum.default(x, False)[..., None]


def _fold_heads(x, kv_heads):
    """(batch, heads, rows, columns) as (batch, kv_heads, heads / kv_heads * rows, columns)."""
    batch, heads, rows, columns = x.shape
    group = 1 if kv_heads == 0 else heads // kv_heads
    if group == 1:
        return x
    return gather_folded(x, kv_heads).reshape(batch, kv_heads, group * rows, columns)


def _attention_weights(q, k, mask, causal_offset, scale):
    """The softmax of the scores, with zeros for a query that sees no key; heads are folded."""
    scores = _product(_fold_heads(q, k.shape[1]) * scale, k.mT, {})
    if mask is None and causal_offset is None:
        return _softmax(scores)
    folded, scores = scores.shape, scores.reshape(*q.shape[:3], k.shape[2])
    if causal_offset is not None:
        hidden = scores.new_ones(scores.shape[2:], dtype=torch.bool).triu(causal_offset + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is None and causal_offset >= 0:  # each query sees a key
        return _softmax(scores).reshape(folded)
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask
    sees_nothing = (scores == -torch.inf).all(-1, keepdim=True)
    weights = _softmax(scores.masked_fill(sees_nothing, 0))
    return weights.masked_fill(sees_nothing, 0).reshape(folded)


def _attention_backward(grad, q, k, v, mask, out, causal_offset, scale, needed):
    """The gradients of q, k, v and mask, from that of out; None for one that is not needed."""
    needs_q, needs_k, needs_v, needs_mask = needed
    grad_q = grad_k = grad_v = grad_mask = None
    kv_heads = k.shape[1]
    weights = _attention_weights(q, k, mask, causal_offset, scale)
    grad = _fold_heads(grad, kv_heads)
    if needs_v:
        grad_v = _product(weights.mT, grad, {})
    if needs_q or needs_k or needs_mask:
        mean = _total(grad * _fold_heads(out, kv_heads))
        grad_scores = weights * (_product(grad, v.mT, {}) - mean)
        if needs_mask:
            scores = grad_scores.reshape(*q.shape[:3], k.shape[2])
            grad_mask = scores.sum_to_size(mask.shape)
        if needs_q:
            grad_q = _product(grad_scores, k, {}).reshape(q.shape) * scale
        if needs_k:
            grad_k = _product(grad_scores.mT, _fold_heads(q, kv_heads) * scale, {})
    return grad_q, grad_k, grad_v, grad_mask


def _in_float32(*tensors):
    """16-bit tensors as float32 ones: their derivatives are float32's, rounded."""
    is_16bit = torch.bfloat16, torch.float16
    return [x.float() if x is not None and x.dtype in is_16bit else x for x in tensors]


def _has_kernel(grad, q, k, v, mask, out):
    """Returns whether one kernel computes these gradients: nothing differentiates them, and no
    tensor on a GPU has too many columns."""
    if torch.is_grad_enabled() or transforms_active():
        return False
    if not q.is_cpu and (not q.is_cuda or max(q.shape[-1], v.shape[-1]) > _MOST_COLUMNS):
        return False
    tensors = [x for x in (grad, q, k, v, mask, out) if x is not None]
    return all(type(x) in PLAIN_TYPES or is_traced(x) for x in tensors)


def _run_kernel(operator, grad, *arguments):
    (grad,) = resolve_for_python(grad)
    try:
        return operator.default(grad, *arguments)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _by_kernel(grad, q, k, v, mask, out, denominator, exponent, causal_offset, scale, needed):
    saved = q, k, v, mask, out, denominator, exponent
    operator = operators._attention_backward
    *grads, of_scores = _run_kernel(operator, grad, *saved, causal_offset, scale, *needed)
    of_mask = of_scores.sum_to_size(mask.shape) if needed[3] else None
    return *(x if need else None for x, need in zip(grads, needed, strict=False)), of_mask


def _attention_tangent(q, k, v, mask, causal_offset, scale, tangents):
    """The tangent of out, from those of q, k, v and mask (or None)."""
    of_q, of_k, of_v, of_mask = tangents
    kv_heads, out_shape = k.shape[1], (*q.shape[:3], v.shape[3])
    weights = _attention_weights(q, k, mask, causal_offset, scale)
    of_scores = of_out = None
    if of_q is not None:
        of_scores = _product(_fold_heads(of_q, kv_heads) * scale, k.mT, {})
    if of_k is not None:
        from_k = _product(_fold_heads(q, kv_heads) * scale, of_k.mT, {})
        of_scores = _sum(of_scores, from_k)
    if of_mask is not None:
        of_mask = of_mask.expand(*q.shape[:3], k.shape[2]).reshape(weights.shape)
        of_scores = _sum(of_scores, of_mask)
    if of_scores is not None:
        of_weights = weights * of_scores
        of_weights = of_weights - weights * _total(of_weights)
        of_out = _product(of_weights, v, {})
    if of_v is not None:
        of_out = _sum(of_out, _product(weights, of_v, {}))
    return of_out.reshape(out_shape)


class Attention(SingleLevelFunction):
    """Attention, and its softmax's denominator, which has no derivative.

    Its arguments are `below`, a function that computes this one level down; the operator's options;
    q, k, v and mask (or None).
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        below, ctx.options, q, k, v, mask = inputs
        out, denominator, exponent = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(denominator, exponent)
        ctx.save_for_backward(q, k, v, mask, out, denominator, exponent)
        ctx.save_for_forward(q, k, v, mask)
        below.ctx = ctx  # for forget_saved()

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 6
        needed = gradients_asked_for(ctx, ctx.needs_input_grad[2:])
        *saved, denominator, exponent = ctx.saved_tensors
        dtypes = [None if x is None else x.dtype for x in saved[:4]]
        grad, *saved = _in_float32(grad, *saved)
        if _has_kernel(grad, *saved):
            grads = _by_kernel(grad, *saved, denominator, exponent, **ctx.options, needed=needed)
        else:
            grads = _attention_backward(grad, *saved, **ctx.options, needed=needed)
        casts = zip(grads, dtypes, strict=True)
        return None, None, *(None if x is None else x.to(dtype) for x, dtype in casts)

    @staticmethod
    def jvp(ctx, _, __, *tangents):
        with set_forward_ad_enabled(True):  # a jvp runs with it off; the level below may need it
            tensors = [*map(primal_of, ctx.saved_tensors)]
            dtype, tensors = tensors[0].dtype, _in_float32(*tensors)
            tangent = _attention_tangent(*tensors, **ctx.options, tangents=_in_float32(*tangents))
            return tangent.to(dtype), None, None
