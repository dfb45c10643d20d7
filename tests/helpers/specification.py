"""The orders of summation a second time: slowly, by numpy, in float64.

Results of the library have these bits. The orders are those of csrc/core/order_chunked.h,
order_fp16x3.h, order_mma.h and order_tf32.h. Nothing here calls the library.
"""

import numpy as np
import torch

CHUNK = 1024  # of K in the chunked and the fp16x3 order
MMA_CHUNK = 8192  # of K in the mma and the tf32 order


def fma(x, y, z):
    """round(x y + z) of float32 tensors. The sum is rounded to odd in float64, after which a second
    rounding is safe (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008)."""
    product, z = x.double() * y.double(), z.double()  # the product is exact
    total = product + z
    shift = total - product
    lost = (product - (total - shift)) + (z - shift)
    toward = torch.where(lost > 0, torch.inf, -torch.inf).double()
    even = total.view(torch.int64) % 2 == 0
    return torch.where((lost != 0) & even, torch.nextafter(total, toward), total).float()


def chunked_product(a, b, chunk=CHUNK):
    """FMAs ascending in k from +0; sums of chunks are added in order."""
    (m, k), n = a.shape, b.shape[1]
    total = torch.full((m, n), -0.0)
    for start in range(0, k, chunk):
        part = torch.zeros(m, n)
        for i in range(start, min(start + chunk, k)):
            part = fma(a[:, i : i + 1], b[i], part)
        total = total + part
    return total


def exponent(x, smallest):
    """floor(log2 |x|), at least `smallest`; far below all others for 0."""
    return np.where(x == 0, -9999, np.maximum(np.frexp(x)[1] - 1, smallest))


def tensor_core(c, a, b, smallest=-14):
    """c + a b as a tensor core sums it: c (m, n), a (m, 16), b (16, n), all in float64. `smallest`
    is the smallest exponent of a factor, that of float16 or of another type."""
    a, b = a[:, None, :], b.T[None, :, :]
    addends = np.concatenate([a * b, c[:, :, None]], axis=2)
    exponents = [exponent(a, smallest) + exponent(b, smallest), exponent(c, -126)[:, :, None]]
    top = np.concatenate(exponents, axis=2).max(axis=2).clip(min=-133)
    total = np.trunc(np.ldexp(addends, 25 - top[:, :, None])).sum(axis=2)
    bits = np.frexp(total)[1]
    total = np.ldexp(np.trunc(np.ldexp(total, 24 - bits)), bits - 24)
    return np.ldexp(total, top - 25) + 0.0  # a sum of zeros is +0


def split(x):
    """The hi/lo split of finite float32 rows (m, k): hi, lo, the exponent of each row's scale, and
    how many small numbers each row holds."""
    largest = np.abs(x).max(axis=1)
    scale = np.where(largest == 0, 0, np.minimum(14 - exponent(largest, -149), 127))
    scaled = np.ldexp(x, scale[:, None])
    small = ((x != 0) & (np.abs(scaled) < 2.0**-13)).sum(axis=1)
    hi = scaled.astype(np.float16)
    lo = ((scaled - hi.astype(np.float32)) * np.float32(2**11)).astype(np.float16)
    padding = [(0, 0), (0, -x.shape[1] % 16)]
    return *(np.pad(part.astype(np.float64), padding) for part in (hi, lo)), scale, small


def is_coarse(x, scale):
    """Which rows of a float32 matrix consist of bfloat16 numbers, with 16 zeros as their last bits,
    that are 0 or at least 2^7 when scaled by 2^scale."""
    scaled = np.abs(np.ldexp(x, scale[:, None]))
    is_bfloat16 = x.view(np.int32) % 2**16 == 0
    return (is_bfloat16 & ((x == 0) | (scaled >= 2.0**7))).all(axis=1)


def fp16x3_chunk(a, b, promotion):
    """The sums of a chunk in the fp16x3 order, and which of them are flagged."""
    a_hi, a_lo, a_scale, a_small = split(a)
    b_hi, b_lo, b_scale, b_small = split(b.T)
    b_hi, b_lo = b_hi.T, b_lo.T
    total = np.zeros((len(a), b.shape[1]), np.float32)
    low = np.zeros(total.shape)
    for start in range(0, a_hi.shape[1], promotion):
        part = np.zeros(total.shape)
        for k in range(start, min(start + promotion, a_hi.shape[1]), 16):
            k16 = slice(k, k + 16)
            part = tensor_core(part, a_hi[:, k16], b_hi[k16])
            low = tensor_core(low, a_lo[:, k16], b_hi[k16])
            low = tensor_core(low, a_hi[:, k16], b_lo[k16])
        total += part.astype(np.float32)
    low, total = torch.from_numpy(low).float(), torch.from_numpy(total)
    coarse = torch.from_numpy(is_coarse(a, a_scale)[:, None] | is_coarse(b.T, b_scale))
    may_be_cut = (low != 0) & (total.view(torch.int32) % 4 != 0) & ~coarse
    expected = torch.tensor((0.84375 if promotion == 16 else 1.265625) * 2.0**-13)
    low = torch.where(may_be_cut, fma(total, expected, low), low)
    scaled = fma(low, torch.tensor(2.0**-11), total).double().numpy()
    flagged = small_numbers_cost_too_much(scaled, a, b, a_small, b_small)
    with np.errstate(over="ignore"):
        return np.ldexp(scaled, -(a_scale[:, None] + b_scale)).astype(np.float32), flagged


def small_numbers_cost_too_much(scaled, a, b, a_small, b_small):
    """Which of a chunk's sums in scaled units are flagged. Rows and columns of zeros flag none."""
    proven = 32 * (a_small[:, None] + b_small)
    return (a.any(axis=1)[:, None] & b.any(axis=0)) & ~(np.abs(scaled) >= proven)


def fp16x3_with_flags(a, b, promotion=None):
    """a @ b of float32 matrices, K at least 64, before anything is recomputed, and which elements
    are flagged. Another promotion than the specified one may be passed."""
    (m, k), n = a.shape, b.shape[1]
    rows, cols = a.isfinite().all(1), b.isfinite().all(0)
    flagged = ~(rows[:, None] & cols)
    finite_a, finite_b = a[rows].numpy(), b[:, cols].numpy()
    total = np.full((len(finite_a), finite_b.shape[1]), -0.0, np.float32)
    suspect = np.zeros(total.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, k, CHUNK):
            chunk = slice(start, start + CHUNK)
            p = promotion or (16 if k < 512 else 32)
            part, wide = fp16x3_chunk(finite_a[:, chunk], finite_b[chunk], p)
            total, suspect = total + part, suspect | wide
    suspect |= np.isnan(total)  # Inf - Inf
    result = torch.zeros(m, n)
    result[rows[:, None] & cols] = torch.from_numpy(total).flatten()
    flagged[rows[:, None] & cols] |= torch.from_numpy(suspect).flatten()
    return result, flagged


def fp16x3_product(a, b):
    """The fp16x3 order: flagged elements are recomputed in the chunked order."""
    result, flagged = fp16x3_with_flags(a, b)
    return torch.where(flagged, chunked_product(a, b), result) if flagged.any() else result


def rounded_by_tensor_core(x):
    """Sums of 24 bits in float32: subnormal ones are truncated, and those out of range are Inf."""
    truncated = np.ldexp(np.trunc(np.ldexp(x, 149)), -149) + 0.0
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < 2.0**-126, truncated, x).astype(np.float32)


def mma_product(a, b, chunk=MMA_CHUNK):
    """a @ b of float16 or bfloat16 matrices, in float32. A chunk is accumulated by the tensor core
    from +0; sums of chunks are added in order, from +0. A sum that meets Inf or NaN is that of IEEE
    754."""
    smallest = {torch.float16: -14, torch.bfloat16: -126}[a.dtype]
    padding = -a.shape[1] % 16
    a = np.pad(a.double().numpy(), [(0, 0), (0, padding)])
    b = np.pad(b.double().numpy(), [(0, padding), (0, 0)])
    finite_a, finite_b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
    total = np.zeros((len(a), b.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, max(a.shape[1], 1), chunk):
            part = np.zeros(total.shape, np.float32)
            for k in range(start, min(start + chunk, a.shape[1]), 16):
                k16 = slice(k, k + 16)
                c = part.astype(np.float64)
                ieee = c + (a[:, None, k16] * b.T[None, :, k16]).sum(axis=2)
                c = np.where(np.isfinite(c), c, 0)
                sums = tensor_core(c, finite_a[:, k16], finite_b[k16], smallest)
                part = rounded_by_tensor_core(sums)
                part = np.where(np.isfinite(ieee), part, ieee).astype(np.float32)
            total = total + part
    return torch.from_numpy(total)


def tf32_chunk(a, b):
    """The sums of a chunk in the tf32 order, and which of them are flagged."""
    a_hi, _, a_scale, a_small = split(a)
    b_hi, _, b_scale, b_small = split(b.T)
    scaled = np.zeros((len(a), b.shape[1]))
    for k in range(0, a_hi.shape[1], 16):
        k16 = slice(k, k + 16)
        scaled = tensor_core(scaled, a_hi[:, k16], b_hi[:, k16].T)
    flagged = small_numbers_cost_too_much(scaled, a, b, a_small, b_small)
    with np.errstate(over="ignore"):
        return np.ldexp(scaled, -(a_scale[:, None] + b_scale)).astype(np.float32), flagged


def tf32_with_flags(a, b):
    """a @ b of float32 matrices, K at least 64, before anything is recomputed, and which elements
    are flagged."""
    (m, k), n = a.shape, b.shape[1]
    rows, cols = a.isfinite().all(1).numpy(), b.isfinite().all(0).numpy()
    finite = np.ix_(rows, cols)
    a, b = a.numpy()[rows], b.numpy()[:, cols]
    total = np.zeros((m, n), np.float32)
    flagged = np.ones((m, n), bool)
    flagged[finite] = False
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, k, MMA_CHUNK):
            chunk = slice(start, start + MMA_CHUNK)
            part, of_chunk = tf32_chunk(a[:, chunk], b[chunk])
            total[finite] += part
            flagged[finite] |= of_chunk
    flagged |= np.isnan(total)  # Inf - Inf
    return torch.from_numpy(total), torch.from_numpy(flagged)


def tf32_product(a, b):
    """The tf32 order: flagged elements are recomputed in the chunked order."""
    result, flagged = tf32_with_flags(a, b)
    return torch.where(flagged, chunked_product(a, b), result) if flagged.any() else result
