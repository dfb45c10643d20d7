"""The derivatives of attention of packed sequences: kernels for gradients on a GPU, and else the
composite of attention.py for a padded batch.
"""

import torch

from .._internals import (
    SingleLevelFunction,
    gradients_asked_for,
    primal_of,
    set_forward_ad_enabled,
)
from .attention import _attention_backward, _attention_tangent, _has_kernel, _run_kernel
from .namespace import operators


def row_of_place(offsets, length, rows):
    """The row of each place of (sequences, length), and whether its sequence has this place."""
    starts, ends = offsets[:-1, None].long(), offsets[1:, None].clamp(max=rows)
    places = starts + torch.arange(length, device=starts.device)
    return places.clamp(0, max(rows - 1, 0)), (places >= 0) & (places < ends)


def pad(x, offsets, length):
    """(rows, heads, columns) as (sequences, heads, length, columns), with zeros for no row."""
    rows, has = row_of_place(offsets, length, x.shape[0])
    if x.shape[0] == 0:
        return x.new_zeros(*rows.shape, *x.shape[1:]).transpose(1, 2)
    return x[rows].where(has[:, :, None, None], 0).transpose(1, 2)


def unpad(x, offsets, rows):
    """(sequences, heads, length, columns) as (rows, heads, columns), zeros for no sequence."""
    x = x.transpose(1, 2)
    sequences, length = x.shape[:2]
    if sequences * length == 0:
        return x.new_zeros(rows, *x.shape[2:])
    row = torch.arange(rows, device=x.device)
    found = torch.searchsorted(offsets, row.to(offsets.dtype), right=True) - 1
    sequence = found.clamp(0, sequences - 1)
    place = row - offsets[sequence]
    has = (found == sequence) & (place >= 0) & (place < length)
    return x[sequence, place.clamp(0, length - 1)].where(has[:, None, None], 0)


def mask_of_keys(offsets, length, rows):
    """The mask of the keys that sequences have, (sequences, 1, 1, length)."""
    return row_of_place(offsets, length, rows)[1][:, None, None]


class AttentionPacked(SingleLevelFunction):
    """Attention of packed sequences, and its softmax's denominator, which has no derivative.

    Its arguments are `below`, a function that computes this one level down; the operator's options;
    q, k, v and the offsets of q and of k.
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        below, ctx.options, *tensors = inputs
        out, denominator, exponent = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(denominator, exponent)
        ctx.save_for_backward(*tensors, out, denominator, exponent)
        ctx.save_for_forward(*tensors)
        below.ctx = ctx  # for forget_saved()

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 7
        needed = *gradients_asked_for(ctx, ctx.needs_input_grad[2:5]), False
        q, k, v, *offsets, out, _, _ = ctx.saved_tensors
        if q.is_cuda and _has_kernel(grad, q, k, v, None, out):
            grads = _by_kernel(grad, *ctx.saved_tensors, **ctx.options, needed=needed[:3])
            return None, None, *grads, None, None
        batch = _Batch(*offsets, ctx.options, k.shape[0])
        padded = batch.queries(grad), *batch.operands(q, k, v), batch.mask, batch.queries(out)
        grads = _attention_backward(*padded, **batch.options, needed=needed)
        ends = offsets[0], offsets[1], offsets[1]
        rows = q.shape[0], k.shape[0], v.shape[0]
        grads = (
            None if x is None else unpad(x, *of)
            for x, *of in zip(grads[:3], ends, rows, strict=True)
        )
        return None, None, *grads, None, None

    @staticmethod
    def jvp(ctx, _, __, *tangents):
        with set_forward_ad_enabled(True):  # a jvp runs with it off; the level below may need it
            q, k, v, *offsets = map(primal_of, ctx.saved_tensors)
            batch = _Batch(*offsets, ctx.options, k.shape[0])
            operands, tangents = batch.operands(q, k, v), batch.operands(*tangents[:3])
            of_out = _attention_tangent(
                *operands, batch.mask, **batch.options, tangents=(*tangents, None)
            )
            return unpad(of_out, offsets[0], q.shape[0]), None, None


def _by_kernel(grad, *saved, max_q, max_k, is_causal, scale, needed):
    options = max_q, max_k, is_causal, scale
    grads = _run_kernel(operators._attention_packed_backward, grad, *saved, *options, *needed)
    return [x if need else None for x, need in zip(grads, needed, strict=True)]


class _Batch:
    """A padded batch: its tensors, a mask of its keys, and the options of attention."""

    def __init__(self, offsets_q, offsets_k, options, rows_of_k):
        self.sides = (offsets_q, options["max_q"]), (offsets_k, options["max_k"])
        self.mask = mask_of_keys(*self.sides[1], rows_of_k)
        causal_offset = 0 if options["is_causal"] else None
        self.options = {"causal_offset": causal_offset, "scale": options["scale"]}

    def queries(self, x):
        return pad(x, *self.sides[0])

    def operands(self, q, k, v):
        of_q, of_k = self.sides
        pairs = (q, of_q), (k, of_k), (v, of_k)
        return tuple(None if x is None else pad(x, *side) for x, side in pairs)
