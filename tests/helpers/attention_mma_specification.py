"""The order of attention of 16-bit floats a second time: slowly, by numpy, in float64.

Results of the library have these bits. The order is that of csrc/core/order_attention_mma.h.
Nothing here calls the library.
"""

import numpy as np
import torch
from helpers.attention_specification import _fma, _power
from helpers.attention_specification import attention as attention_of_heads
from helpers.specification import tensor_core

TILE, CHUNK, SPAN = 64, 256, 128
LARGEST, MOST_GROWTH = 2**22, 39
SHIFT = {torch.float16: 15, torch.bfloat16: 3}
SMALLEST = {torch.float16: -14, torch.bfloat16: -126}  # exponents of normal numbers
EXP2 = [
    float.fromhex(c) for c in ("0x1.c3f760p-5", "0x1.f0de1ap-3", "0x1.62f31ap-1", "0x1.fff692p-1")
]
LOG2_E = np.float32(float.fromhex("0x1.715476p0"))
F32 = np.float32


def _chain(total, a, b, smallest):
    """total + a b, ascending in k by 16; where a sum is not finite, it is added in float64."""
    padding = -a.shape[1] % 16
    a, b = np.pad(a, [(0, 0), (0, padding)]), np.pad(b, [(0, padding), (0, 0)])
    total = total.astype(np.float64)
    for k in range(0, a.shape[1], 16):
        x, y = a[:, k : k + 16], b[k : k + 16]
        plain = total + (x[:, :, None] * y[None]).sum(axis=1)
        bad = (
            ~np.isfinite(total) | ~np.isfinite(x).all(axis=1)[:, None] | ~np.isfinite(y).all(axis=0)
        )
        finite = [np.nan_to_num(z, nan=0, posinf=0, neginf=0) for z in (total, x, y)]
        with np.errstate(over="ignore"):
            total = (
                np.where(bad, plain, tensor_core(*finite, smallest)).astype(F32).astype(np.float64)
            )
    return total.astype(F32)


def _rounded(x, dtype):
    """float32 numbers rounded to dtype."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(dtype).float().numpy()


def _log2_bias(bias):
    limited = np.clip(bias * LOG2_E, -LARGEST / 2, LARGEST / 2)
    return np.where(np.isnan(bias), bias, limited).astype(F32)


def _weight(place, shift):
    """2^(128 (place - 1) + shift)"""
    scaled = place.astype(np.float64) * SPAN  # exact
    whole = np.rint(scaled)
    fraction = (scaled - whole).astype(F32)
    p = np.full(fraction.shape, EXP2[0], F32)
    for c in EXP2[1:]:
        p = _fma(p, fraction, c)
    return np.ldexp(p, (whole + shift - SPAN).astype(int)).astype(F32)


def attention_of_head(q, k, v, scale, dtype, mask=None, causal_offset=None):
    """out, sum and exponent for q (queries, columns), k (keys, columns), v (keys, columns of out)
    and a mask (queries, keys), all numpy arrays of float32."""
    with np.errstate(all="ignore"):
        return _attention_of_head(q, k, v, scale, dtype, mask, causal_offset)


def _attention_of_head(q, k, v, scale, dtype, mask, causal_offset):
    rows, keys = len(q), len(k)
    shift, smallest = SHIFT[dtype], SMALLEST[dtype]
    c = F32(np.float64(F32(scale)) * float.fromhex("0x1.71547652b82fep0"))
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    seen = np.ones((rows, keys), bool)
    bias = np.zeros((rows, keys), F32)
    if causal_offset is not None:
        seen &= np.arange(keys) < np.arange(rows)[:, None] + causal_offset + 1
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        seen &= mask != -np.inf
        bias = _log2_bias(mask)
    top, total = np.full(rows, -LARGEST), np.zeros(rows, F32)
    out = np.zeros((rows, v.shape[1]), F32)
    for first in range(0, keys, CHUNK):
        chunk_top, sums = np.full(rows, -LARGEST), np.zeros((rows, 4), F32)
        chunk_out = np.zeros(out.shape, F32)
        for begin in range(first, min(first + CHUNK, keys), TILE):
            tile = slice(begin, min(begin + TILE, keys))
            raw = _chain(np.zeros((rows, tile.stop - begin), F32), q, k[tile].T, smallest)
            z = np.where(seen[:, tile], _fma(raw, c, bias[:, tile]), -np.inf)
            largest = z.max(axis=1)  # NaN if one is
            is_nan = np.isnan(largest)
            whole = np.ceil(np.clip(np.where(is_nan, -np.inf, largest), -LARGEST, LARGEST))
            grown = np.maximum(chunk_top, whole.astype(int))
            growth = grown - chunk_top
            factor = np.where(growth > MOST_GROWTH, 0, _power(-growth)).astype(F32)
            chunk_top, chunk_out = grown, chunk_out * factor[:, None]
            sums = sums * factor[:, None]
            sums[is_nan, 0] = np.nan
            zero = _fma(-grown[:, None].astype(F32), F32(1 / SPAN), F32(1))
            zero = _fma(bias[:, tile], F32(1 / SPAN), zero)
            place = np.clip(np.nan_to_num(_fma(raw, F32(c * F32(1 / SPAN)), zero), nan=0), 0, 1)
            p = _rounded(np.where(seen[:, tile], _weight(place, shift), 0).astype(F32), dtype)
            for j in range(p.shape[1]):
                sums[:, j // 2 % 4] += p[:, j]
            chunk_out = _chain(chunk_out, p.astype(np.float64), v[tile], smallest)
        chunk_total = (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])
        joined = np.maximum(top, chunk_top)
        old, new = _power(top - joined), _power(chunk_top - joined)
        total = _fma(chunk_total, new, total * old)
        out = _fma(chunk_out, new[:, None], out * old[:, None])
        top = joined
    inverse = np.where(total == 0, 0, F32(1) / total).astype(F32)
    return _fma(out, inverse[:, None], F32(0)), total, top - shift


def attention(q, k, v, mask, causal_offset, scale):
    """The operator's results, of tensors of four dimensions with some batch."""
    wide = (x.float() for x in (q, k, v))
    out, *sums = attention_of_heads(
        *wide, mask, causal_offset, scale, q.dtype, of_head=attention_of_head
    )
    return out.to(q.dtype), *sums
