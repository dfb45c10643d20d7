"""Convolutions with a kernel of 1 as matrix products, which read the input through its strides."""

import math

import torch

from . import ops
from ._internals import autocast_active
from ._op import fast_path
from ._op.fast_path import is_plain
from ._op.out_of_memory import raise_if_out_of_memory

__all__ = ["is_channels_last", "pointwise"]


def pointwise(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    options: dict[str, str],
) -> torch.Tensor:
    """The convolution of a batch with a kernel of 1, stride 1, no padding and one group.

    A channels_last input is x @ weight.T + bias, in one launch, and so are images of one pixel. Any
    other is weight @ x for each image, and the bias is added to its rounded elements. Both have the
    bits of that product, which differ in "fp32", as products of exchanged operands do.

    Args:
        input: (n, c, *sizes) with no empty dimension but n.
        weight: (o, c, 1, ...).
        bias: (o,), or None.
        options: of torch_tiled.matmul.

    Returns:
        (n, o, *sizes), in the memory format of the input.
    """
    pixels = input.shape[2:]
    channels_last = is_channels_last(input)
    by_rows = channels_last or math.prod(pixels) == 1
    if options["precision"] == "fp32" and input.is_cuda and _is_plain(input, weight, bias):
        try:
            y = fast_path.pointwise(input, weight, bias if by_rows else None, channels_last)
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise
        return y if by_rows or bias is None else y.add_(bias.view(-1, *(1,) * len(pixels)))
    weight = weight.flatten(1)
    if channels_last:
        return _of_rows(input, weight, bias, options)
    if by_rows:
        y = _of_rows(input, weight, bias, options).flatten(1)
    else:
        is_flat = input.is_contiguous() or _is_flat(pixels, input.stride()[2:])
        x = input.flatten(2) if is_flat else input.movedim(1, -2)  # else by rows of the image
        y = ops.matmul(weight, x, **options)
        if bias is not None:
            if bias.dtype != y.dtype:  # autocast has cast y
                bias = bias.to(y.dtype)
            y = y + bias.unsqueeze(-1)
        if not is_flat:
            y = y.movedim(-2, 1).flatten(1)
    return y.reshape(input.shape[0], weight.shape[0], *pixels)


def _is_plain(input, weight, bias) -> bool:
    """Returns whether one operator may compute this, without views that autograd would record."""
    if input.is_complex() or autocast_active():
        return False
    grad = input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if grad and torch.is_grad_enabled():
        return False
    return is_plain(input, weight) if bias is None else is_plain(input, weight, bias)


def _of_rows(input, weight, bias, options):
    """The convolution with a row of the product for each pixel: its strides are channels_last."""
    return ops.linear(input.movedim(1, -1), weight, bias, **options).movedim(-1, 1)


def is_channels_last(x) -> bool:
    """Returns whether PyTorch takes x for channels_last or channels_last_3d, by its strides.

    Strides of dimensions of 1 can fit several formats. The rule is Tensor.suggest_memory_format()
    in C++; convolutions in one dimension have no such format.
    """
    sizes, strides = x.shape, x.stride()
    if len(sizes) < 4 or strides[-1] < strides[1] * sizes[1] or strides[1] == 0 or x.numel() == 0:
        return False
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * sizes[d]
    return True


def _is_flat(sizes, strides) -> bool:
    """Returns whether dimensions of these sizes and strides can be viewed as one."""
    wanted = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if wanted is not None and stride != wanted:
                return False
            wanted = size * stride
    return True
