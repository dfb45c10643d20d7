"""Convolutions as three float16 products, by numpy: csrc/core/order_convolution.h."""

import numpy as np
import torch
from helpers.specification import (
    CHUNK,
    chunked_product,
    fma,
    is_coarse,
    small_numbers_cost_too_much,
    split,
    tensor_core,
)

STEP = 32  # to which the channels of a tap are padded


def windows_of(x, taps, stride, padding, dilation):
    """The windows of one image (channels, *sizes): (windows, taps * padded channels)."""
    dims = x.dim() - 1
    pads = [each for side in reversed(padding) for each in (side, side)]
    x = torch.nn.functional.pad(x, (*pads, 0, -x.shape[0] % STEP))
    for d in range(dims):
        extent = dilation[d] * (taps[d] - 1) + 1
        x = x.unfold(d + 1, extent, stride[d])[..., :: dilation[d]]
    # (channels, *windows, *taps) becomes (*windows, *taps, channels).
    return x.movedim(0, -1).reshape(x.shape[1 : dims + 1].numel(), -1)


def filters_of(weight):
    """(filters, taps * padded channels)."""
    padded = torch.nn.functional.pad(weight.movedim(1, -1), (0, -weight.shape[1] % STEP))
    return padded.reshape(len(weight), -1)


def _chunk(a, b, image, a_small, promotion):
    """The sums of a chunk of windows `a` by filters `b`, and which of them are flagged.

    Args:
        image: as one row.
        a_small: of each window, the small numbers of the pixels that the chunk touches.
    """
    _, _, scale, _ = split(image)
    scaled = np.ldexp(a, scale[0])
    a_hi = scaled.astype(np.float16).astype(np.float32)
    a_lo = ((scaled - a_hi) * np.float32(2**11)).astype(np.float16).astype(np.float64)
    a_hi = a_hi.astype(np.float64)
    b_hi, b_lo, b_scale, b_small = split(b)
    total, low = np.zeros((len(a), len(b)), np.float32), np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], promotion):
        part = np.zeros(total.shape)
        for k in range(start, min(start + promotion, a.shape[1]), 16):
            k16 = slice(k, k + 16)
            part = tensor_core(part, a_hi[:, k16], b_hi[:, k16].T)
            low = tensor_core(low, a_lo[:, k16], b_hi[:, k16].T)
            low = tensor_core(low, a_hi[:, k16], b_lo[:, k16].T)
        total += part.astype(np.float32)
    low, total = torch.from_numpy(low).float(), torch.from_numpy(total)
    coarse = torch.from_numpy(is_coarse(image, scale)[:, None] | is_coarse(b, b_scale))
    may_be_cut = (low != 0) & (total.view(torch.int32) % 4 != 0) & ~coarse
    expected = torch.tensor((0.84375 if promotion == 16 else 1.265625) * 2.0**-13)
    low = torch.where(may_be_cut, fma(total, expected, low), low)
    scaled = fma(low, torch.tensor(2.0**-11), total).double().numpy()
    a_small = a_small.clip(max=CHUNK)
    ones = np.broadcast_to(image.any(), (len(a), 1))
    flagged = small_numbers_cost_too_much(scaled, ones, b.T, a_small, b_small)
    return np.ldexp(scaled, -(scale[0] + b_scale)).astype(np.float32), flagged


def convolution(x, weight, stride, padding, dilation):
    """The convolution of finite x (images, channels, *sizes) by finite filters, without a bias."""
    b, results = filters_of(weight), []
    for image in x:
        a = windows_of(image, weight.shape[2:], stride, padding, dilation)
        promotion = 16 if a.shape[1] < 512 else 32
        total = np.full((len(a), len(b)), -0.0, np.float32)
        suspect = np.zeros(total.shape, bool)
        flat = image.reshape(1, -1).numpy()
        channels = -(-image.shape[0] // STEP) * STEP
        small = (a != 0) & (a.abs() < np.ldexp(1.0, -13 - int(split(flat)[2][0])))
        small = small.unflatten(1, (-1, channels)).sum(2).numpy()  # (windows, taps)
        for start in range(0, a.shape[1], CHUNK):
            chunk = slice(start, start + CHUNK)
            taps = slice(start // channels, -(-min(start + CHUNK, a.shape[1]) // channels))
            counts = small[:, taps].sum(axis=1)
            part, wide = _chunk(a[:, chunk].numpy(), b[:, chunk].numpy(), flat, counts, promotion)
            total, suspect = total + part, suspect | wide
        result, suspect = torch.from_numpy(total), torch.from_numpy(suspect)
        results.append(torch.where(suspect, chunked_product(a, b.T), result).T)
    y = torch.stack(results)
    sizes = [
        (x.shape[d + 2] + 2 * padding[d] - dilation[d] * (taps - 1) - 1) // stride[d] + 1
        for d, taps in enumerate(weight.shape[2:])
    ]
    return y.reshape(len(x), len(weight), *sizes)
