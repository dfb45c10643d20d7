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
SPANS = 64  # of the chunks of a gradient of filters, at most


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


def taps_of(images, taps, stride, padding, dilation):
    """The windows of (images, channels, *sizes): (taps * channels, windows)."""
    parts = []
    for x in images:
        of_image = windows_of(x, taps, stride, padding, dilation)
        of_image = of_image.unflatten(1, (-1, -(-len(x) // STEP) * STEP))[..., : len(x)]
        parts.append(of_image.flatten(1))
    return torch.cat(parts).T


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


def filter_gradient(x, grad, taps, stride, padding, dilation):
    """The gradient of filters of (filters, channels, *taps), from x and that of the result."""
    a = taps_of(x, taps, stride, padding, dilation)
    b = grad.movedim(1, 0).flatten(1)
    k = a.shape[1]
    promotion = 16 if k < 512 else 32
    flat = x.reshape(1, -1).numpy()
    small = (a != 0) & (a.abs() < np.ldexp(1.0, -13 - int(split(flat)[2][0])))
    # Of all channels of a pixel: of the rows of a tap.
    small = small.unflatten(0, (-1, x.shape[1])).sum(1, keepdim=True)
    small = small.expand(-1, x.shape[1], -1).flatten(0, 1).numpy()
    chunks = -(-k // CHUNK)
    spans = min(chunks, SPANS)
    total, suspect = np.full((len(a), len(b)), -0.0, np.float32), np.zeros((len(a), len(b)), bool)
    for span in range(spans):
        of_span = np.full(total.shape, -0.0, np.float32)
        for chunk in range(span * chunks // spans, (span + 1) * chunks // spans):
            at = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, k))
            pads = (0, -(at.stop - at.start) % 16)
            part, wide = _chunk(
                *(
                    torch.nn.functional.pad(each[:, at], pads).contiguous().numpy()
                    for each in (a, b)
                ),
                *(flat, small[:, at].sum(axis=1), promotion),
            )
            of_span, suspect = of_span + part, suspect | wide
        total = total + of_span
    result = torch.where(
        torch.from_numpy(suspect), chunked_product(a, b.T), torch.from_numpy(total)
    )
    return result.reshape(*taps, x.shape[1], len(b)).movedim((-1, -2), (0, 1))
