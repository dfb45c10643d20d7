"""Layer norm and RMS norm a second time: slowly, by numpy.

Results of the library have these bits. The order is that of csrc/core/order_rows.h. Nothing here
calls the library. Functions take and return arrays of float32 or of float64, to which 16-bit floats
are widened; results are rounded to them at the end.
"""

import numpy as np
from helpers.rows_specification import CHUNK, fma, sum_row


def sum_columns(x, y=None):
    """The sum over rows of x, or of x y by FMAs."""
    columns = x.shape[1]
    if columns > 4096:  # in parts, which take less memory
        parts = np.array_split(np.arange(columns), -(-columns // 4096))
        return np.concatenate([sum_columns(x[:, i], None if y is None else y[:, i]) for i in parts])
    total = np.zeros(x.shape[1], x.dtype)
    for first in range(0, len(x), CHUNK):
        chunk = slice(first, first + CHUNK)
        total = total + sum_row(x[chunk].T, None if y is None else y[chunk].T)
    return total


def norm(x, weight, bias, eps, centered):
    """y, the mean and the inverse deviation of each row of x, (rows, columns)."""
    with np.errstate(all="ignore"):
        number = x.dtype.type
        count = number(x.shape[1])
        mean = sum_row(x) / count if centered else np.zeros(len(x), x.dtype)
        deviations = x - mean[:, None]
        squares = sum_row(deviations, deviations)
        inverse = number(1) / np.sqrt(squares / count + number(eps))
        y = deviations * inverse[:, None]
        if bias is not None:
            y = fma(y, np.ones_like(y) if weight is None else weight, bias)
        elif weight is not None:
            y = y * weight
        return y, mean, inverse


def gradients(dy, x, weight, mean, inverse, centered):
    """The gradients of x, of the weight and of the bias; mean and inverse are norm()'s."""
    with np.errstate(all="ignore"):
        count = x.dtype.type(x.shape[1])
        g = dy if weight is None else dy * weight
        h = (x - mean[:, None]) * inverse[:, None]
        mean_g = sum_row(g) / count if centered else np.zeros(len(x), x.dtype)
        mean_gh = sum_row(g, h) / count
        dx = fma(-h, mean_gh[:, None], g - mean_g[:, None]) * inverse[:, None]
        return dx, sum_columns(dy, h), sum_columns(dy)
