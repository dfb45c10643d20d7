"""layer_norm, rms_norm and group_norm with sums of a fixed order."""

import math
from collections.abc import Sequence

import torch

from .._internals import autocast_active
from .._op.channels import Affine
from .._op.row_calls import RowCall
from .._op.rows import Norm
from .._op.sharding import gather_from
from .._op.supported import SIXTEEN_BIT
from ._arguments import autocast, full_name, operand

__all__ = ["group_norm", "layer_norm", "rms_norm"]

_norm = RowCall("_row_norm", Norm, 3)
_affine = RowCall("_channel_affine", Affine, 3)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch.nn.functional.layer_norm with sums of a fixed order.

    The bits of a row's norm, and of its gradient, depend on its numbers, its length and the
    parameters alone. Gradients of weight and bias are summed over chunks of 1024 rows, and then
    over the chunks, in ascending order.

    Args:
        input: (..., *normalized_shape), any strides; of float32, float64, float16 or bfloat16,
            which is computed in float32 and rounded once. Autocast regions of CUDA cast it to
            float32, as PyTorch does.
        normalized_shape: the sizes of the last dimensions, which are one row.
        weight: normalized_shape, of input's dtype, or of float32 beside a 16-bit input.
        bias: the same.
        eps: what is added to the variance.

    Returns:
        input's shape, contiguous, of input's dtype.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit.
        TypeError: input is no tensor, or normalized_shape is no sequence.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> x = torch.randn(3, 100)
        >>> y = torch_tiled.nn.functional.layer_norm(x, (100,))
        >>> torch.equal(torch_tiled.nn.functional.layer_norm(x[1], (100,)), y[1])
        True
    """
    x = operand("layer_norm", input)
    if autocast_active():
        _, weight, bias = autocast("layer_norm", x, weight, bias)
    return _norm_last("layer_norm", x, normalized_shape, weight, bias, eps, True)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """torch.nn.functional.rms_norm with sums of a fixed order.

    Bits are as for layer_norm.

    Args:
        input: as for layer_norm. Autocast regions of CUDA cast it if PyTorch's do (not in torch
            2.11).
        normalized_shape: as for layer_norm.
        weight: normalized_shape. One of another dtype than layer_norm takes is cast.
        eps: what is added to the mean square; by default torch.finfo(torch.float32).eps, or that of
            torch.float64 for an input of it.

    Returns:
        input's shape, contiguous, of input's dtype.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as layer_norm does.

    Examples:
        >>> torch_tiled.nn.functional.rms_norm(torch.full((2, 4), 3.0), (4,), eps=0.0)[0]
        tensor([1., 1., 1., 1.])
    """
    x = operand("rms_norm", input)
    if autocast_active():
        _, weight = autocast("rms_norm", x, weight)
    sums = x.dtype if x.dtype == torch.float64 else torch.float32
    if weight is not None and weight.dtype != x.dtype:
        weight = weight.to(sums)
    if eps is None:
        eps = torch.finfo(sums).eps
    return _norm_last("rms_norm", x, normalized_shape, weight, None, eps, False)


def _norm_last(function, x, normalized_shape, weight, bias, eps, centered):
    """The norm over the last dimensions, which become one row."""
    try:
        count = len(normalized_shape)
    except TypeError:
        raise TypeError(
            f"{full_name(function)}: normalized_shape is {normalized_shape!r}; pass a tuple of the "
            f"sizes of the last dimensions, such as input.shape[-1:]"
        ) from None
    shape = x.shape[-count:]
    if count == 0 or x.dim() < count or shape != tuple(normalized_shape):
        raise RuntimeError(
            f"{full_name(function)}: normalized_shape is {tuple(normalized_shape)} and input is "
            f"{tuple(x.shape)}; pass the sizes of its last dimensions, one at least"
        )
    for name, param in (("weight", weight), ("bias", bias)):
        if param is not None and param.shape != shape:
            raise RuntimeError(
                f"{full_name(function)}: {name} is {tuple(param.shape)} and normalized_shape is "
                f"{tuple(shape)}; they must be equal"
            )
    if count == 1:
        return _norm(x, weight, bias, eps, centered)[0]
    weight, bias = (None if param is None else param.reshape(-1) for param in (weight, bias))
    rows = gather_from(x, x.dim() - count).flatten(-count)
    y, _, _ = _norm(rows, weight, bias, eps, centered)
    return y.reshape(x.shape)


def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch.nn.functional.group_norm with sums of a fixed order.

    The bits of a sample's norm, and of its gradient, depend on its numbers, its shape and the
    parameters alone. Gradients of weight and bias are sums over each sample, and then over the
    samples, in the order of sum().

    Args:
        input: (samples, channels, ...), as for layer_norm.
        num_groups: a divisor of the channels. The channels of a group are one row.
        weight: (channels,), of input's dtype, or of float32 beside a 16-bit input.
        bias: the same.
        eps: what is added to the variance.

    Returns:
        input's shape, contiguous, of input's dtype.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as layer_norm does.
        ValueError: groups have one number each, and there is one sample.

    Examples:
        >>> x, weight = torch.randn(3, 6, 5, 5), torch.ones(6)
        >>> y = torch_tiled.nn.functional.group_norm(x, 2, weight)
        >>> torch.equal(torch_tiled.nn.functional.group_norm(x[1:2], 2, weight), y[1:2])
        True
    """
    x = operand("group_norm", input)
    if autocast_active():
        _, weight, bias = autocast("group_norm", x, weight, bias)
    _check_groups(x, num_groups, weight, bias)
    samples, channels, *rest = x.shape
    columns = channels // num_groups * math.prod(rest)
    rows = gather_from(x, 1).reshape(samples, num_groups, columns)
    if weight is None and bias is None:
        return _norm(rows, None, None, eps, True)[0].reshape(x.shape)
    if x.dtype in SIXTEEN_BIT:
        rows = rows.float()  # so that the result is rounded once
    y, _, _ = _norm(rows, None, None, eps, True)
    y = y.reshape(samples, channels, math.prod(rest))
    return _affine(y, weight, bias).to(x.dtype).reshape(x.shape)


def _check_groups(x, num_groups, weight, bias):
    name, shape = full_name("group_norm"), tuple(x.shape)
    if x.dim() < 2:
        raise RuntimeError(f"{name}: input is {shape}; it must be (samples, channels, ...)")
    if num_groups < 1 or shape[1] % num_groups:
        raise RuntimeError(
            f"{name}: num_groups is {num_groups} and input is {shape}; it must be a divisor of the "
            f"{shape[1]} channels"
        )
    if shape[0] * (shape[1] // num_groups) * math.prod(shape[2:]) == 1:
        raise ValueError(
            f"{name}: input is {shape} and num_groups is {num_groups}; a group must have more than "
            f"one number: pass fewer groups"
        )
    for of, param in (("weight", weight), ("bias", bias)):
        if param is None:
            continue
        if param.shape != shape[1:2]:
            raise RuntimeError(
                f"{name}: {of} is {tuple(param.shape)} and input is {shape}; {of} must be "
                f"({shape[1]},), a number for each channel"
            )
        is_wide = x.dtype in SIXTEEN_BIT and param.dtype == torch.float32
        if param.dtype != x.dtype and not is_wide:
            raise RuntimeError(
                f"{name}: {of} is {param.dtype} and input is {x.dtype}; pass both in one dtype, "
                f"which has all values of both, for example with .double()"
            )
