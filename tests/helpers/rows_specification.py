"""The order of reductions of rows a second time: slowly, by numpy.

Results of the library have these bits. The order is that of csrc/core/order_rows.h. Nothing here
calls the library. Arrays have a row in each row, in float32; sums also take float64.
"""

import numpy as np
import torch
from helpers.specification import fma as fma_of_tensors

CHUNK, PARTS = 1024, 128
SEGMENT, GROUP = 128, 4
LOG2E, REST_OF_LOG2E = (float.fromhex(c) for c in ("0x1.715476p0", "0x1.4ae0cp-26"))
EXP2 = [
    float.fromhex(c)
    for c in (
        *("0x1.41fbbap-13", "0x1.5f3e54p-10", "0x1.3b2d4cp-7", "0x1.c6aee8p-5"),
        *("0x1.ebfbdcp-3", "0x1.62e43p-1", "0x1p0"),
    )
]
LN2 = float.fromhex("0x1.62e42fefa39efp-1")
BITS_OF_SQRT_HALF = 0x3F3504F3
F32, F64 = np.float32, np.float64


def _two_sum(x, y):
    total = x + y
    shift = total - x
    return total, (x - (total - shift)) + (y - shift)


def _two_product(x, y):
    def parts(a):
        shifted = a * (2.0**27 + 1)
        hi = shifted - (shifted - a)
        return hi, a - hi

    product, (x_hi, x_lo), (y_hi, y_lo) = x * y, parts(x), parts(y)
    return product, ((x_hi * y_hi - product) + x_hi * y_lo + x_lo * y_hi) + x_lo * y_lo


def _fma64(x, y, z):
    """round(x y + z) of float64 arrays without overflow and underflow (Boldo and Melquiond,
    Emulation of a FMA and correctly rounded sums, 2008)."""
    product, rest = _two_product(x, y)
    low, lowest = _two_sum(z, rest)
    high, low = _two_sum(product, low)
    odd, lost = _two_sum(low, lowest)
    is_even = np.ascontiguousarray(odd).view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & is_even, np.nextafter(odd, np.copysign(np.inf, lost)), odd)
    return high + odd


def fma(x, y, z):
    """round(x y + z) of arrays of one dtype, which broadcast."""
    x, y, z = np.broadcast_arrays(x, y, z)
    if F64 in (x.dtype, y.dtype, z.dtype):
        return _fma64(x, y, z)
    return fma_of_tensors(*(torch.from_numpy(a.astype(F32)) for a in (x, y, z))).numpy()


def sum_row(x, y=None):
    """S(x) of each row, or S(x y), with the products added by FMAs."""
    rows, n = x.shape
    chunks = max(-(-n // CHUNK), 1)
    steps = CHUNK // PARTS if chunks > 1 else max(-(-n // PARTS), 1)

    def split(terms, filler):
        """Terms as (row, chunk, step, part). A filler adds nothing."""
        padded = np.full((rows, chunks * steps * PARTS), filler, terms.dtype)
        padded[:, :n] = terms
        return padded.reshape(rows, chunks, -1, PARTS)

    x, y = split(x, -0.0), None if y is None else split(y, 0.0)
    parts = np.zeros((rows, chunks, PARTS), x.dtype)
    for step in range(steps):
        terms = x[:, :, step]
        parts = parts + terms if y is None else fma(terms, y[:, :, step], parts)
    while parts.shape[2] > 1:
        width = parts.shape[2] // 2
        parts = parts[:, :, :width] + parts[:, :, width:]
    sums = parts[:, :, 0]
    return sum_row(sums) if chunks > 1 else sums[:, 0]


def _sums_before(x):
    """The sums of the numbers before each, and of all, along the last axis: from +0, ascending."""
    return np.add.accumulate(np.concatenate([np.zeros_like(x[..., :1]), x], -1), -1)


def running_sums(x, reverse=False):
    """The sum of the elements up to each one, or back from the last one."""
    if reverse:
        return running_sums(x[:, ::-1])[:, ::-1].copy()
    rows, n = x.shape
    superchunks = -(-n // CHUNK**2)
    chunks = min(max(-(-n // CHUNK), 1), CHUNK)
    padded = np.zeros((rows, superchunks * chunks * CHUNK), x.dtype)
    padded[:, :n] = x
    with np.errstate(all="ignore"):
        in_groups = np.add.accumulate(
            padded.reshape(rows, superchunks, chunks, CHUNK // SEGMENT, SEGMENT // GROUP, GROUP), -1
        )
        totals, width = in_groups[..., -1], 1
        while width < SEGMENT // GROUP:
            later = totals[..., :-width] + totals[..., width:]
            totals, width = np.concatenate([totals[..., :width], later], -1), 2 * width
        before_groups = np.concatenate([np.zeros_like(totals[..., :1]), totals[..., :-1]], -1)
        before_segments = _sums_before(totals[..., -1])
        before_chunks = _sums_before(before_segments[..., -1])
        before_superchunks = _sums_before(before_chunks[..., -1])
        starts = before_segments[..., :-1, None] + before_groups
        carries = before_superchunks[..., :-1, None] + before_chunks[..., :-1]
        sums = (carries[..., None, None] + starts)[..., None] + in_groups
    return sums.reshape(rows, -1)[:, :n]


def exp_of(x):
    """exp(x) of float32 numbers up to 0."""
    x = np.where(x < -104, F32(-104), x)
    whole = np.rint(x.astype(F64) * LOG2E)  # the product is exact
    f = fma(x, F32(REST_OF_LOG2E), fma(x, F32(LOG2E), -whole.astype(F32)))
    p = np.full(x.shape, EXP2[0], F32)
    for c in EXP2[1:]:
        p = fma(p, f, F32(c))
    whole = np.where(np.isnan(whole), 0, whole)
    half = np.trunc(whole / 2)
    return p * np.exp2(half).astype(F32) * np.exp2(whole - half).astype(F32)


def log_of(x):
    """log(x) of float32 numbers that are normal, 0, Inf or NaN."""
    is_normal = (x > 0) & (x < np.inf)
    bits = np.where(is_normal, x, 1).astype(F32).view(np.int32)
    exponent = (bits - BITS_OF_SQRT_HALF) >> 23
    mantissa = (bits - (exponent << 23)).view(F32).astype(F64)
    s = (mantissa - 1) / (mantissa + 1)
    square, series = s * s, np.zeros(x.shape)
    for odd in range(21, 0, -2):
        series = series * square + 1.0 / odd
    log = (exponent * LN2 + 2 * s * series).astype(F32)
    return np.where(is_normal, log, np.where(x == 0, F32(-np.inf), x))


def _largest_and_sum(x):
    """m, in a column, and L of each row."""
    m = x.max(axis=1, initial=-np.inf, keepdims=True)  # NaN if an element is
    return m, sum_row(exp_of(x - m))


def softmax(x, log):
    with np.errstate(all="ignore"):
        m, total = _largest_and_sum(x)
        by = log_of(total) if log else F32(1) / total
        return (x - m) - by[:, None] if log else exp_of(x - m) * by[:, None]


def softmax_backward(grad, y, log):
    """The gradient of x, from that of y = softmax(x, log)."""
    with np.errstate(all="ignore"):
        total = sum_row(grad)[:, None] if log else sum_row(grad, y)[:, None]
        return fma(-exp_of(y), total, grad) if log else y * (grad - total)


def logsumexp(x):
    with np.errstate(all="ignore"):
        m, total = _largest_and_sum(x)
        return np.where(np.isinf(m[:, 0]), m[:, 0], m[:, 0] + log_of(total))
