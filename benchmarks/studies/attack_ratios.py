"""How close elements come to the bounds of docs/guide/numerics.md, and which are flagged.

Operands are rows of K numbers each, those of a and those of b. `products` is the library's product
of them, and the product in the order of "ieee", whose bits flagged elements must have.
"""

import math

import torch
from helpers import specification

from benchmarks.gemm.check import reference

FINITE = 2.0**127  # a finite result is promised where |A||B| is less


def promised(order, a, b, size):
    """The elementwise bound where the magnitudes of the products add up to `size`."""
    k = a.shape[1]
    lost = reference.TF32_LOSS * size if order.summed == "tf32" else 0.0
    roundings = reference.roundings(k, order.summed)
    if order.summed == "fp16x3":
        roundings = roundings - reference.COARSE * reference.is_coarse(a, b.mT)
    gamma = reference.gamma(roundings, reference.U[torch.float32])
    return lost + gamma * (size + lost) + k * reference.SMALLEST[torch.float32]


def flagged(order, a, b):
    """Which elements of the product of rows a and rows b the guard flags, by the specification."""
    flags = torch.zeros(len(a), len(b), dtype=torch.bool)
    if order.is_guarded:
        for first in range(0, a.shape[1], order.chunk):
            chunk = slice(first, first + order.chunk)
            of_chunk = flagged_in_chunk(order, a[:, chunk].numpy(), b[:, chunk].numpy(), a.shape[1])
            flags |= torch.from_numpy(of_chunk)
    return flags


def flagged_in_chunk(order, a, b, k):
    """Which sums of a chunk are flagged. Float64 products decide it except near the threshold,
    where those rows and columns are summed as specified."""
    (a_hi, a_lo, _, a_small), (b_hi, b_lo, _, b_small) = map(specification.split, (a, b))
    small = a_small[:, None] + b_small
    if not small.any():
        return small > 0
    if order.summed == "fp16x3":
        a_hi, b_hi = a_hi + a_lo * 2.0**-11, b_hi + b_lo * 2.0**-11
    sums, sizes = abs(a_hi @ b_hi.T), abs(a_hi) @ abs(b_hi).T
    roundings = reference.roundings(k, order.summed)
    slack = reference.gamma(roundings, reference.U[torch.float32]) * sizes + 2.0**-18 * small

    def are_flagged(scaled):
        return specification.small_numbers_cost_too_much(scaled, a, b.T, a_small, b_small)

    flags, doubtful = are_flagged(sums + slack), are_flagged((sums - slack).clip(min=0))
    doubtful &= ~flags
    if doubtful.any():
        rows, cols = doubtful.any(1), doubtful.any(0)
        flags[rows[:, None] & cols] = sums_as_specified(order, a[rows], b[cols].T, k)[1].flatten()
    return flags


def sums_as_specified(order, a, b, k):
    """A chunk's sums, and which of them are flagged."""
    if order.summed == "tf32":
        return specification.tf32_chunk(a, b)
    return specification.fp16x3_chunk(a, b, reference.promotion(k))


def ratios(order, a, b, products, flags, error, size):
    """Errors over bounds; 0 where nothing is promised, and infinite where a result is not finite or
    a flagged element has other bits than those of "ieee"."""
    result, ieee = products
    ratio = torch.where(result.isfinite(), error / promised(order, a, b, size), math.inf)
    same = result.view(torch.int32) == ieee.view(torch.int32)
    ratio = torch.where(flags, torch.where(same, 0.0, math.inf), ratio)
    return torch.where(size < FINITE, ratio, 0.0)


def magnitudes(order, x):
    """What errors are relative to: magnitudes in float64."""
    return reference.raised(x) if order.summed == "mma" else x.double().abs()


def approximate_ratios(order, a, b, products, flags):
    """The ratios of all elements of the product of rows a and rows b, by float64 products."""
    size = magnitudes(order, a) @ magnitudes(order, b).mT
    error = (products[0].double() - a.double() @ b.double().mT).abs()
    return ratios(order, a, b, products, flags, error, size)


def exact_ratio(order, a, b, products):
    """The ratio of one element. Products of float32 numbers are exact in float64, and math.fsum
    rounds once the sum of them and of the result."""
    addends = (a.double() * b.double()).flatten().tolist()
    result = products[0].double().item()
    error = abs(math.fsum([*addends, -result])) if math.isfinite(result) else math.inf
    size = math.fsum((magnitudes(order, a) * magnitudes(order, b)).flatten().tolist())
    error, size = (torch.full((1, 1), x, dtype=torch.float64) for x in (error, size))
    return ratios(order, a, b, products, flagged(order, a, b), error, size).item()
