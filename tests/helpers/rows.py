"""Tensors of rows for tests of reductions, and their comparison with the specification."""

import math

import torch

from .reference import assert_same

# Rows of a warp, of a block, of clusters of two to eight blocks, and longer ones.
SIZES = [0, 1, 2, 31, 127, 128, 129, 1023, 1024, 1025, 5000, 8193, 40000, 65536, 70000]
MANY = 8500  # rows that are enough for four in a warp, on any GPU

# Ways to store rows: each returns a tensor with the same elements.
LAYOUTS = {
    "contiguous": lambda x: x,
    "a pitch": lambda x: _padded(x, 4)[..., : x.shape[-1]],
    "an odd pitch": lambda x: _padded(x, 1)[..., : x.shape[-1]],
    "misaligned": lambda x: _padded(x, 4, first=1)[..., 1 : x.shape[-1] + 1],
    "columns apart": lambda x: x.mT.contiguous().mT,
    "every second row": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], -2)[..., 0, :],
    "rows in another order": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}


def _padded(x, columns, first=0):
    """A tensor with NaN around x."""
    padded = x.new_full((*x.shape[:-1], x.shape[-1] + columns), torch.nan)
    padded[..., first : first + x.shape[-1]] = x
    return padded


def to_matrix(x):
    """The rows of a tensor as a matrix of numpy, of 16-bit floats in float32."""
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return wide.reshape(math.prod(x.shape[:-1]), x.shape[-1]).contiguous().numpy()


def assert_rows(specified, operator, device, tensors, *options, layout="contiguous"):
    """Asserts the specification's bits on the CPU, and the CPU's on a GPU.

    specified: a function of numpy's matrices and the options.
    """
    found = operator(*(LAYOUTS[layout](x.to(device)) for x in tensors), *options)
    if device == "cpu":
        expected = torch.from_numpy(specified(*map(to_matrix, tensors), *options))
        expected = expected.to(tensors[0].dtype).reshape(found.shape)
    else:
        expected = operator(*tensors, *options)
    assert found.is_contiguous()
    assert_same(found.cpu(), expected)
