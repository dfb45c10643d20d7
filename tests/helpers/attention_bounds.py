"""How far attention may be from float64, by its roundings.

U is the unit roundoff of float32. For a query the following is derived from the order of
csrc/core/order_attention.h, to first order in U, for logits below LARGE_LOG2 and values that no
scale brings out of range.

scores: a part lo is off by 2^-22 of its number at most, and lo lo is left out, which is another
    2^-22 of a product's magnitude: 12 U for q, k and lo lo. A tensor-core sum of 16 products and a
    partial sum truncates 17 addends below 2^-25 of the largest one's power of two, and its result
    below 2^-23 of its own: 10.5 U of the sum of magnitudes. There is one such sum for 16 columns;
    those with lo parts are smaller by 2^-11 or more, so that 11 U bounds all three.
logarithms: the factor scale log2(e) is rounded as scale and as the product, 2 U of the score; a
    bias is rounded as a product with a rounded log2(e), 2 U; the fraction is rounded by U at most.
weights: exp2_fraction() is off by 3.6 U.
sums: a weight's part of l meets 16 + 2 roundings in its tile and one for each tile that is joined.
    The parts of a weight and of a value lose 12 U with lo lo, the four tensor-core sums 11 U each,
    and each join is a rounding. The quotient is one more.
small parts: a part below 2^-14 is off by 2^-25 in scaled units, in which a row's largest number is
    at least 2^14: 2^-39 of that for each factor. A value row is scaled by 2^117 at most, but
    one of zeros in its tile has 2^80, so that each key may add 2^-104.

For gradients, P and dS are those of the header, and dP is the product of dout and v:

P: as a weight, with the errors of the denominator, and two roundings of its quotient.
delta: as out is off; its FMAs and sums are 4 + log2(columns / 4) roundings.
dP: as a score.
dS: P, dP and delta as they are off, and 2 roundings.
sums: as above, with a rounding for each tile of 64 rows, and one for scale. A factor below 2^-14 in
    scaled units is off by 2^-25, as the largest of its tile is 2^14 at least; 2^-s is at most
    2^-14 of its row's largest number.
"""

import math

import torch

U = 2.0**-24
TILE = 64


def _product_error(a, b):
    """Of a b^T for rows that are scaled and split, of magnitudes in float64."""
    columns = a.shape[-1]
    largest = a.amax(-1, keepdim=True) * b.amax(-1, keepdim=True).mT
    return (11 * math.ceil(columns / 16) + 12) * U * (a @ b.mT) + columns * 2.0**-38 * largest


def _weight_errors(q, k, mask, scale, weights):
    """Of exponentials: relative errors. Of their sum: its relative error."""
    scores = abs(scale) * (_product_error(q, k) + 2 * U * (q @ k.mT))
    if mask is not None and mask.dtype != torch.bool:
        bias = mask.double().abs()
        scores = scores + 2 * U * torch.where(bias.isinf(), 0, bias)
    relative = torch.where(weights > 0, scores + U * math.log(2) + 3.6 * U, 0)
    tiles = math.ceil(k.shape[2] / TILE)
    return relative, (weights * (relative + (18 + tiles) * U)).sum(-1, keepdim=True)


def _magnitudes(q, k, v):
    """In float64, with a copy of k and v for each head of q."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().abs() for x in (q, k, v))
    return q, *(x.repeat_interleave(group, 1) for x in (k, v))


def attention_bound(q, k, v, mask=None, causal_offset=None, scale=None, *, weights):
    """The bound for each element of the result; `weights` are exact() ones of helpers.attention."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = _magnitudes(q, k, v)
    keys, tiles = k.shape[2], math.ceil(k.shape[2] / TILE)
    relative, of_sum = _weight_errors(q, k, mask, scale, weights)
    numerator = weights * (relative + (12 + 4 * 11 + tiles) * U)
    values = weights @ v
    small = (weights * v.amax(-1)[:, :, None]).sum(-1, keepdim=True) * TILE * 2.0**-38
    first_order = numerator @ v + (of_sum + U) * values + small
    return first_order * 1.001 + keys * 2.0**-104


def _sum_error(weights, errors, x, tiles):
    """Of the sums over rows of x, by weights (..., rows of the result, rows of x) with errors."""
    magnitudes = weights.abs() + errors
    small = (magnitudes * x.amax(-1)[..., None, :]).amax(-1, keepdim=True) * x.shape[-2] * 2.0**-37
    return errors @ x + (12 + 4 * 11 + tiles + 1) * U * (magnitudes @ x) + small


def gradient_bounds(grad, q, k, v, mask=None, causal_offset=None, scale=None, *, weights):
    """The bounds of the gradients of q, k, v and a float mask by grad, that of the result."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    off = attention_bound(q, k, v, mask, causal_offset, scale, weights=weights)
    group, kv_heads = q.shape[1] // k.shape[1], k.shape[1]
    exact_v, exact_grad = v.double().repeat_interleave(group, 1), grad.double()
    (q, k, v), grad = _magnitudes(q, k, v), grad.double().abs()
    relative, of_sum = _weight_errors(q, k, mask, scale, weights)
    of_weights = weights * (relative + of_sum + 2 * U)
    out = weights @ exact_v
    delta = (exact_grad * out).sum(-1, keepdim=True)
    roundings = 5 + math.ceil(math.log2(max(v.shape[-1] / 4, 1)))
    of_delta = (grad * off + roundings * U * grad * out.abs()).sum(-1, keepdim=True)
    difference = exact_grad @ exact_v.mT - delta
    of_difference = _product_error(grad, v) + of_delta + U * difference.abs()
    scores = weights * difference
    of_scores = of_weights * (difference.abs() + of_difference) + weights * of_difference
    of_scores = of_scores + U * scores.abs()
    tiles = math.ceil(k.shape[2] / TILE), group * math.ceil(q.shape[2] / TILE)
    dq = _sum_error(scores, of_scores, k, tiles[0]) * abs(scale)
    dk = _sum_error(scores.mT, of_scores.mT, q, tiles[1]) * abs(scale)
    dv = _sum_error(weights.mT, of_weights.mT, grad, tiles[1])
    dk, dv = (x.unflatten(1, (kv_heads, group)).sum(2) for x in (dk, dv))
    bounds = [dq, dk, dv]
    if mask is not None and mask.dtype != torch.bool:
        addends = scores.numel() // max(mask.numel(), 1)
        of_sum = of_scores + (addends - 1) * U * (scores.abs() + of_scores)
        bounds.append(of_sum.sum_to_size(mask.shape))
    return [x * 1.001 + 2.0**-100 for x in bounds]
