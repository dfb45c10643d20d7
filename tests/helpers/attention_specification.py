"""The order of attention a second time: slowly, by numpy, in float64.

Results of the library have these bits. The order is that of csrc/core/order_attention.h. Nothing
here calls the library.
"""

import numpy as np
import torch
from helpers.specification import exponent, fma, tensor_core

TILE = 64  # keys
MASKED, LOWEST = -(2**30), -(2**29)
LARGEST_WHOLE, LARGE_LOG2 = 2.0**28, 2.0**22
VALUE_SCALE_OF_ZEROS, MOST_VALUE_SCALE = 80, 103
SUM_SHIFT, COUNTED = 13, 50
EXP2 = [
    float.fromhex(c)
    for c in (
        *("0x1.5c08d2p-10", "0x1.3d0c52p-7", "0x1.c6b6e6p-5"),
        *("0x1.ebf918p-3", "0x1.62e428p-1", "0x1.000002p0"),
    )
]
F32 = np.float32


def _fma(x, y, z):
    """round(x y + z) of float32 arrays, which broadcast."""
    x, y, z = (torch.from_numpy(np.asarray(a, F32).copy()) for a in np.broadcast_arrays(x, y, z))
    return fma(x, y, z).numpy()


def _power(exponents):
    """2^exponent in float32, or 0 below the normal numbers."""
    normal = np.ldexp(1.0, np.maximum(exponents, -126))
    return np.where(exponents < -126, 0, normal).astype(F32)


def _scaled(x, exponents):
    """x 2^exponent, or 0 if the exponent is below -252."""
    return np.where(exponents < -252, 0 * x, np.ldexp(x.astype(np.float64), exponents)).astype(F32)


def _row_scale(x, of_zeros=0, most=127):
    """The exponent s of each row's scale, from its finite elements."""
    largest = np.where(np.isfinite(x), np.abs(x), 0).max(axis=1, initial=0)
    return np.where(largest == 0, of_zeros, np.minimum(14 - exponent(largest, -149), most))


def _inverse_scale(x):
    """2^-s of each row, or 0 for a row of zeros."""
    return np.ldexp(F32(1), -_row_scale(x, of_zeros=9999))


def _parts(scaled):
    """hi and lo of float32 numbers, in float64; and which are not finite. Those are zeros here."""
    finite = np.isfinite(scaled)
    scaled = np.where(finite, scaled, 0).astype(F32)
    hi = scaled.astype(np.float16)
    lo = (scaled - hi.astype(F32)).astype(np.float16)
    return hi.astype(np.float64), lo.astype(np.float64), ~finite


def _scaled_parts(x, scale):
    with np.errstate(under="ignore"):
        return _parts(np.ldexp(x, scale[:, None]).astype(F32))


def _chains(a, b):
    """lo_a hi_b, then hi_a lo_b, then hi_a hi_b, from 0 on, ascending in k by 16."""
    (a_hi, a_lo, a_bad), (b_hi, b_lo, b_bad) = a, b
    padding = -a_hi.shape[1] % 16
    total = np.zeros((len(a_hi), b_hi.shape[1]))
    for x, y in ((a_lo, b_hi), (a_hi, b_lo), (a_hi, b_hi)):
        x, y = np.pad(x, [(0, 0), (0, padding)]), np.pad(y, [(0, padding), (0, 0)])
        for k in range(0, x.shape[1], 16):
            total = tensor_core(total, x[:, k : k + 16], y[k : k + 16])
    bad = a_bad.any(axis=1)[:, None] | b_bad.any(axis=0)
    return np.where(bad, np.nan, total).astype(F32)


def _round_large(x):
    whole = np.rint(np.clip(np.where(np.isnan(x), -np.inf, x), -LARGEST_WHOLE, LARGEST_WHOLE))
    return whole, np.where(np.isnan(x), np.nan, 0)


def _round(x, y):
    """x y as an integer and a fraction, if it is not large."""
    whole = np.rint(x.astype(np.float64) * y)  # the product is exact
    whole = np.where(np.abs(whole) <= LARGE_LOG2, whole, 0)  # others are not used
    return whole, _fma(x, y, -whole)


def _log2(x, y, bias):
    """x y + bias log2(e) as an integer and a fraction."""
    product = x * y
    log2_bias = bias * F32(float.fromhex("0x1.715476p0"))
    is_large = ~((np.abs(product) < LARGE_LOG2) & (np.abs(log2_bias) < LARGE_LOG2))
    large = _round_large(_fma(x, y, log2_bias))
    (whole, fraction), (bias_whole, bias_fraction) = _round(x, y), _round(log2_bias, F32(1))
    fraction = fraction + bias_fraction
    carried = np.rint(fraction)
    whole, fraction = whole + bias_whole + carried, fraction - carried
    return np.where(is_large, large[0], whole).astype(int), np.where(is_large, large[1], fraction)


def _exp2(fraction):
    p = np.full(fraction.shape, EXP2[0], F32)
    for c in EXP2[1:]:
        p = _fma(p, fraction, c)
    return p


def _query_factor(scale, q_scale):
    factor = F32(np.float64(F32(scale)) * float.fromhex("0x1.71547652b82fep0"))
    return (factor * np.ldexp(F32(1), -q_scale)).astype(F32)[:, None]


def _read_mask(rows, keys, mask, causal_offset):
    """Which keys a query sees, what is added to the scores, and the end of each query's keys."""
    seen, bias = np.ones((rows, keys), bool), np.zeros((rows, keys), F32)
    end = np.full(rows, keys)
    if causal_offset is not None:
        end = np.clip(np.arange(rows) + causal_offset + 1, 0, keys)
        seen &= np.arange(keys) < end[:, None]
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        seen &= mask != -np.inf
        bias = mask
    return seen, bias, end


def attention_of_head(q, k, v, scale, mask=None, causal_offset=None):
    """out, sum and exponent for q (queries, columns), k (keys, columns), v (keys, columns of out)
    and a mask (queries, keys), all numpy arrays."""
    with np.errstate(all="ignore"):
        return _attention_of_head(q, k, v, scale, mask, causal_offset)


def _attention_of_head(q, k, v, scale, mask, causal_offset):
    rows, keys = len(q), len(k)
    q_scale = _row_scale(q)
    q_parts = _scaled_parts(q, q_scale)
    factor = _query_factor(scale, q_scale)
    seen, bias, end = _read_mask(rows, keys, mask, causal_offset)
    top, total, out = np.full(rows, LOWEST), np.zeros(rows, F32), np.zeros((rows, v.shape[1]), F32)
    for first in range(0, keys, TILE):
        tile = slice(first, first + TILE)
        k_scale = _row_scale(k[tile])
        v_scale = _row_scale(v[tile], VALUE_SCALE_OF_ZEROS, MOST_VALUE_SCALE)
        raw = _chains(q_parts, [x.T for x in _scaled_parts(k[tile], k_scale)])
        x = (raw * np.ldexp(F32(1), -k_scale)).astype(F32)
        whole, fraction = _log2(x, np.broadcast_to(factor, x.shape), bias[:, tile])
        exponents = np.where(seen[:, tile], whole - v_scale, MASKED)
        fraction = np.where(seen[:, tile], fraction, 0).astype(F32)
        tile_top = np.maximum(exponents.max(axis=1), LOWEST)
        value = _exp2(fraction)
        share = value * _power(exponents - tile_top[:, None] + 14)
        whole = np.where(seen[:, tile], whole, MASKED)
        counts = (share == 0) & (whole >= np.maximum(whole.max(axis=1), LOWEST)[:, None] - COUNTED)
        rescued = _power(whole - tile_top[:, None] + 14 - SUM_SHIFT)
        parts = np.zeros((rows, 4), F32)
        for j in range(share.shape[1]):
            part = j // 2 % 4
            counted = np.where(counts[:, j], value[:, j], share[:, j])
            power = np.where(counts[:, j], rescued[:, j], _power(v_scale[j] - SUM_SHIFT))
            parts[:, part] = _fma(counted, power, parts[:, part])
        tile_total = (parts[:, 0] + parts[:, 1]) + (parts[:, 2] + parts[:, 3])
        tile_out = _chains(_parts(share), _scaled_parts(v[tile], v_scale))
        joined = np.maximum(top, tile_top)
        old, new = _power(top - joined), _power(tile_top - joined)
        is_seen = first < end  # the tiles of a row end with the last key that it may see
        both = _scaled(total, top - joined) + _scaled(tile_total, tile_top - joined)
        total = np.where(is_seen, both, total)
        joined_out = _fma(tile_out, new[:, None], out * old[:, None])
        out = np.where(is_seen[:, None], joined_out, out)
        top = np.where(is_seen, joined, top)
    mantissa, power = np.frexp(total)
    power = np.where(np.isfinite(total), 1 - SUM_SHIFT - power.astype(int), 0)
    inverse = np.where(total == 0, 0, F32(1) / (2 * mantissa)).astype(F32)
    quotient = out.astype(np.float64) * inverse[:, None]
    rounded = np.ldexp(quotient.astype(F32).astype(np.float64), power[:, None]).astype(F32)
    exponents = np.where(np.isnan(total), 0, top - 14 + SUM_SHIFT)
    return rounded, total, exponents


def attention(q, k, v, mask, causal_offset, *options, of_head=attention_of_head):
    """The operator's results, of tensors of four dimensions with some batch; the options of a head
    begin with its scale."""
    batch, heads, rows = q.shape[:3]
    group = heads // k.shape[1]
    if mask is not None:
        mask = mask.expand(batch, heads, rows, k.shape[2]).numpy()
    q, k, v = (x.numpy() for x in (q, k, v))
    found = [
        of_head(
            *(q[b, h], k[b, h // group], v[b, h // group], *options),
            *(None if mask is None else mask[b, h], causal_offset),
        )
        for b in range(batch)
        for h in range(heads)
    ]
    out, total, top = (torch.from_numpy(np.stack(x)) for x in zip(*found, strict=True))
    shape = batch, heads, rows
    return out.reshape(*shape, -1), total.reshape(shape), top.reshape(shape).int()


# --- Gradients -----------------------------------------------------------------------------------


def _deltas(grad, out):
    """The sum over columns of grad and out for each row: FMAs of four columns, then pairs."""
    groups = -(-grad.shape[1] // 4)
    parts = np.zeros((len(grad), 2 ** max(groups - 1, 0).bit_length()), F32)
    for c in range(grad.shape[1]):
        parts[:, c // 4] = _fma(grad[:, c], out[:, c], parts[:, c // 4])
    while parts.shape[1] > 1:
        parts = parts[:, ::2] + parts[:, 1::2]
    return parts


def _probabilities(q, k, total, exponents, scale, mask, causal_offset):
    seen, bias, _ = _read_mask(len(q), len(k), mask, causal_offset)
    q_scale, k_scale = _row_scale(q), _row_scale(k)
    raw = _chains(_scaled_parts(q, q_scale), [x.T for x in _scaled_parts(k, k_scale)])
    x = (raw * _inverse_scale(k)).astype(F32)
    whole, fraction = _log2(x, np.broadcast_to(_query_factor(scale, q_scale), x.shape), bias)
    whole, fraction = np.where(seen, whole, MASKED), np.where(seen, fraction, 0).astype(F32)
    is_normal = (total >= 2.0**-126) & (total < np.inf)
    mantissa, power = np.frexp(np.where(is_normal, total, 1))
    inverse = np.where(is_normal, F32(0.5) / mantissa, F32(1) / total)
    inverse = np.where(total == 0, 0, inverse).astype(F32)
    exponents = exponents + np.where(is_normal, power - 1, 0)
    return _exp2(fraction) * _power(whole - exponents[:, None]) * inverse[:, None]


def _score_gradients(probabilities, grad, v, deltas):
    rows = [_scaled_parts(x, _row_scale(x)) for x in (grad, v)]
    raw = _chains(rows[0], [x.T for x in rows[1]])
    return probabilities * _fma(raw * _inverse_scale(v), _inverse_scale(grad)[:, None], -deltas)


def _add_rows(total, weights, x):
    """total, and the sums over tiles of x's rows, by weights (rows of total, rows of x)."""
    factors, scale = weights * _inverse_scale(x), _row_scale(x)
    for first in range(0, len(x), TILE):
        tile = slice(first, first + TILE)
        of_tile = factors[:, tile]
        parts = _scaled_parts(of_tile, _row_scale(of_tile))
        products = _chains(parts, _scaled_parts(x[tile], scale[tile]))
        total = _fma(products, _inverse_scale(of_tile)[:, None], total)
    return total


def gradients(grad, q, k, v, mask, out, total, exponents, causal_offset, scale):
    """The gradients of q, k, v and the scores by that of out, of tensors of four dimensions. out,
    total and exponents are attention()'s."""
    batch, heads, rows = q.shape[:3]
    group = heads // k.shape[1]
    if mask is not None:
        mask = mask.expand(batch, heads, rows, k.shape[2]).numpy()
    tensors = grad, q, k, v, out, total, exponents
    grad, q, k, v, out, total, exponents = (x.numpy() for x in tensors)
    dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
    dscores = np.zeros((*q.shape[:3], k.shape[2]), F32)
    with np.errstate(all="ignore"):
        for b, h in np.ndindex(batch, heads):
            i, j = (b, h), (b, h // group)
            options = scale, None if mask is None else mask[i], causal_offset
            p = _probabilities(q[i], k[j], total[i], exponents[i], *options)
            ds = _score_gradients(p, grad[i], v[j], _deltas(grad[i], out[i]))
            dscores[i] = np.where(p == 0, 0, ds)
            dq[i] = _add_rows(dq[i], ds, k[j])
            dk[j], dv[j] = _add_rows(dk[j], ds.T, q[i]), _add_rows(dv[j], p.T, grad[i])
        return [torch.from_numpy(x) for x in (dq * F32(scale), dk * F32(scale), dv, dscores)]
