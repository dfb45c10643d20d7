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
"""

import math

import torch

U = 2.0**-24
TILE = 64


def attention_bound(q, k, v, mask=None, causal_offset=None, scale=None, *, weights):
    """The bound for each element of the result; `weights` are exact() ones of helpers.attention."""
    q, k, v = (x.double().abs() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    columns, keys = q.shape[-1], k.shape[2]
    scale = abs(columns**-0.5 if scale is None else scale)
    largest = q.amax(-1, keepdim=True) * k.amax(-1, keepdim=True).mT
    magnitudes = q @ k.mT
    steps = math.ceil(columns / 16)
    scores = scale * ((11 * steps + 12) * U * magnitudes + columns * 2.0**-38 * largest)
    scores = scores + 2 * U * scale * magnitudes
    if mask is not None and mask.dtype != torch.bool:
        bias = mask.double().abs()
        scores = scores + 2 * U * torch.where(bias.isinf(), 0, bias)
    relative = torch.where(weights > 0, scores + U * math.log(2) + 3.6 * U, 0)
    tiles = math.ceil(keys / TILE)
    numerator = weights * (relative + (12 + 4 * 11 + tiles) * U)
    denominator = (weights * (relative + (18 + tiles) * U)).sum(-1, keepdim=True)
    values = weights @ v
    small = (weights * v.amax(-1)[:, :, None]).sum(-1, keepdim=True) * TILE * 2.0**-38
    first_order = numerator @ v + (denominator + U) * values + small
    return first_order * 1.001 + keys * 2.0**-104
