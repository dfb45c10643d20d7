"""Transposed convolutions of torch.nn.functional by torch_tiled."""

import math

import torch
import torch.nn.functional as F

from .._op.call import call, entry_points
from .._op.namespace import operators
from .convolutions import (
    check_algorithm,
    check_are_tensors,
    check_dims,
    may_take,
    numbers,
    why_torch,
)

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "takes_transposed"]

_transposed = entry_points(operators._conv_transposed.default)
_TORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def conv_transpose1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv_transpose1d by float16 products, as conv_transpose2d computes it.

    Args:
        input: (images, channels, length), or without images. Any strides.
        weight: (channels, filters / groups, length).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: as for PyTorch's function.
        output_padding: as for PyTorch's function.
        groups: as for PyTorch's function.
        dilation: as for PyTorch's function.
        algorithm: as for conv2d.

    Returns:
        (images, filters, length).

    Raises:
        RuntimeError: as conv2d does.
        torch.OutOfMemoryError: as conv2d does.

    Examples:
        >>> x, weight = torch.randn(2, 8, 9), torch.randn(8, 4, 3)
        >>> torch_tiled.nn.functional.conv_transpose1d(x, weight, stride=2).shape
        torch.Size([2, 4, 19])
    """
    given = (input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm)
    return _convolve(1, *given)


def conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv_transpose2d by float16 products at float32's error.

    It is the gradient of conv2d's input, and has its bits.

    Args:
        input: (images, channels, height, width), or without images. Any strides.
        weight: (channels, filters / groups, height, width).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: as for PyTorch's function.
        output_padding: as for PyTorch's function; "fp16x3" takes less than the stride.
        groups: as for PyTorch's function.
        dilation: as for PyTorch's function.
        algorithm: as for conv2d. "auto" is fp16x3 under the same conditions; the weights of a
            filter are those of one element of the result, which a stride divides.

    Returns:
        (images, filters, height, width); in channels_last if input or weight is.

    Raises:
        RuntimeError: as conv2d does.
        torch.OutOfMemoryError: as conv2d does.

    Examples:
        >>> x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 4, 3, 3)
        >>> torch_tiled.nn.functional.conv_transpose2d(x, weight, stride=2, padding=1).shape
        torch.Size([2, 4, 9, 9])
    """
    given = (input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm)
    return _convolve(2, *given)


def conv_transpose3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv_transpose3d by float16 products, as conv_transpose2d computes it.

    Args:
        input: (images, channels, depth, height, width), or without images. Any strides.
        weight: (channels, filters / groups, depth, height, width).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: as for PyTorch's function.
        output_padding: as for conv_transpose2d.
        groups: as for PyTorch's function.
        dilation: as for PyTorch's function.
        algorithm: as for conv2d.

    Returns:
        (images, filters, depth, height, width).

    Raises:
        RuntimeError: as conv2d does.
        torch.OutOfMemoryError: as conv2d does.

    Examples:
        >>> x, weight = torch.randn(2, 8, *(5,) * 3), torch.randn(8, 4, 3, 3, 3)
        >>> torch_tiled.nn.functional.conv_transpose3d(x, weight).shape
        torch.Size([2, 4, 7, 7, 7])
    """
    given = (input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm)
    return _convolve(3, *given)


def _convolve(
    rank, input, weight, bias, stride, padding, output_padding, groups, dilation, algorithm
):
    name = f"torch_tiled.nn.functional.conv_transpose{rank}d"
    check_algorithm(name, algorithm)
    check_are_tensors(name, {"input": input, "weight": weight})
    options = stride, padding, output_padding, groups, dilation
    if algorithm == "torch" or (
        algorithm == "auto" and not takes_transposed(rank, input, weight, bias, *options)
    ):
        return _TORCH[rank](input, weight, bias, *options)
    check_dims(name, rank, input, weight)
    stride, padding, added, dilation = (
        numbers(rank, *each)
        for each in (
            *(("stride", stride), ("padding", padding)),
            *(("output_padding", output_padding), ("dilation", dilation)),
        )
    )
    for each, step in zip(added, stride, strict=True):
        if not 0 <= each < step:
            raise RuntimeError(
                f'{name}: output_padding is {added} and stride is {stride}; "fp16x3" takes '
                f'numbers from 0 to below the stride; pass those, or algorithm="torch"'
            )
    is_batch = input.dim() == rank + 2
    x = input if is_batch else input.unsqueeze(0)
    size = [
        (n - 1) * step - 2 * pad + far * (taps - 1) + more + 1
        for n, step, pad, far, taps, more in zip(
            x.shape[2:], stride, padding, dilation, weight.shape[2:], added, strict=True
        )
    ]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = call(_transposed, x, weight, size=size, **options)
    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] != y.shape[1]:
            raise RuntimeError(
                f"{name}: bias is {tuple(bias.shape)} and weight is {tuple(weight.shape)}; with "
                f"groups={groups} bias must be ({y.shape[1]},)"
            )
        y = y + bias.reshape(-1, *[1] * rank)
    return y if is_batch else y.squeeze(0)


def takes_transposed(
    rank, input, weight, bias, stride, padding, output_padding, groups, dilation
) -> bool:
    """Returns whether "auto" is fp16x3."""
    if not may_take(rank, input, weight, bias) or input.shape[-rank - 1] != weight.shape[0]:
        return False
    try:
        options = stride, padding, output_padding, groups, dilation
        return why_torch_transposed(rank, weight.shape, *options) is None
    except RuntimeError:
        return False  # PyTorch's function refuses it


def why_torch_transposed(rank, shape, stride, padding, output_padding, groups, dilation):
    """Why "auto" is PyTorch's function for a layer with weights of a shape, or None."""
    stride, added = numbers(rank, "stride", stride), numbers(rank, "output_padding", output_padding)
    if any(not 0 <= each < step for each, step in zip(added, stride, strict=True)):
        return f"Its output_padding is {added}, which is not below its stride {stride}."
    if groups < 1 or shape[0] % groups:
        return f"{shape[0]} channels are no {groups} groups."
    dilation = numbers(rank, "dilation", dilation)
    # An element of the result has the taps of one remainder of the stride.
    taps = [
        math.ceil(n / (step // math.gcd(step, far)))
        for n, step, far in zip(shape[2:], stride, dilation, strict=True)
    ]
    as_convolution = (shape[1] * groups, shape[0] // groups, *taps)
    if math.prod(taps) == 1:
        return "An element of the result has one tap: PyTorch's kernels compute a matrix product."
    padding = numbers(rank, "padding", padding)
    extents = [far * (n - 1) + 1 for far, n in zip(dilation, shape[2:], strict=True)]
    reason = why_torch(rank, as_convolution, 1, 0, 1, groups)
    return reason or why_torch(rank, (2**20, 2**20, *extents), stride, padding, 1, 1)
