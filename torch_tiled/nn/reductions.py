"""softmax, log_softmax, logsumexp, sum, mean and cumsum with sums of a fixed order."""

from collections.abc import Sequence

import torch

from .._op import rows
from .._op.row_calls import RowCall
from .._op.sharding import gather_from
from ._arguments import dimension, dimensions, full_name, operand

__all__ = ["cumsum", "log_softmax", "logsumexp", "mean", "softmax", "sum"]

_softmax = RowCall("_row_softmax", rows.Softmax)
_logsumexp = RowCall("_row_logsumexp", rows.LogSumExp)
_sum = RowCall("_row_sum", rows.Sum)
_cumsum = RowCall("_row_cumsum", rows.CumSum)


def _along(function, operator, x, dim, *options):
    """The operator along a dimension. The result is contiguous, as PyTorch's is."""
    rank = x.dim()
    if rank and (dim == -1 or dim == rank - 1):
        return operator(x, *options)
    dim = dimension(function, dim, rank)
    if rank == 0:
        return operator(x[None], *options)[0]
    return operator(x.movedim(dim, -1), *options).movedim(-1, dim).contiguous()


def _over(function, operator, x, dim, keepdim, *options):
    """The operator over dimensions, which become one. It reads views of any strides."""
    rank = x.dim()
    if rank and (dim == -1 or dim == rank - 1):
        result = operator(x, *options)
        return result.unsqueeze(-1) if keepdim else result
    dims = dimensions(function, dim, rank)
    if len(dims) == rank:
        result = operator(gather_from(x, 0).reshape(-1), *options)
    else:
        moved = x.movedim(dims, tuple(range(-len(dims), 0)))
        if len(dims) > 1:
            moved = gather_from(moved, rank - len(dims)).flatten(-len(dims))
        result = operator(moved, *options)
    if not keepdim:
        return result
    return result.reshape([1 if i in dims else size for i, size in enumerate(x.shape)])


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.softmax with sums of a fixed order.

    The bits of a row's softmax depend on its numbers alone; -inf after its last number changes
    none. So do those of its gradient. An exponential is off by 1e-7 of itself; in float64 it is the
    math library's.

    Args:
        input: any shape and strides; of float32, float64, float16 or bfloat16, which is computed in
            float32 and rounded once. Autocast regions of CUDA cast it to float32, as PyTorch does.
        dim: the dimension of the rows.
        dtype: the dtype to which input is cast first.

    Returns:
        input's shape, contiguous, of input's dtype or of `dtype`.

    Raises:
        IndexError: there is no such dim.
        RuntimeError: input is of another dtype.
        TypeError: input is no tensor.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> x = torch.randn(3, 1000)
        >>> y = torch_tiled.nn.functional.softmax(x, -1)
        >>> torch.equal(torch_tiled.nn.functional.softmax(x[1], -1), y[1])
        True
    """
    x = operand("softmax", input, dtype)
    return _along("softmax", _softmax, x, dim, False)


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.log_softmax with sums of a fixed order, and the bits of softmax: a row's own.

    Args:
        input: as for softmax.
        dim: the dimension of the rows.
        dtype: the dtype to which input is cast first.

    Returns:
        input's shape, contiguous, of input's dtype or of `dtype`.

    Raises:
        IndexError, RuntimeError, TypeError, torch.OutOfMemoryError: as softmax does.

    Examples:
        >>> torch_tiled.nn.functional.log_softmax(torch.zeros(2, 4), -1)[0]
        tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    """
    x = operand("log_softmax", input, dtype)
    return _along("log_softmax", _softmax, x, dim, True)


def logsumexp(input: torch.Tensor, dim: int | Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """torch.logsumexp with sums of a fixed order.

    A row's bits depend on its numbers alone; -inf after its last number changes none.

    Args:
        input: as for softmax; integers and torch.bool are cast to the default dtype.
        dim: the dimension that is reduced, or several, which are one row in their order in input.
        keepdim: keep the dimensions that are reduced, with size 1.

    Returns:
        input's shape without the dimensions that are reduced, of input's dtype.

    Raises:
        IndexError, RuntimeError, TypeError, torch.OutOfMemoryError: as softmax does; also a
            RuntimeError if dim names a dimension twice.

    Examples:
        >>> torch_tiled.nn.functional.logsumexp(torch.zeros(2, 3, 4), (1, 2)).shape
        torch.Size([2])
    """
    if isinstance(input, torch.Tensor) and not _is_inexact(input.dtype):
        input = input.to(torch.get_default_dtype())
    if dim is None:
        raise TypeError(
            f"{full_name('logsumexp')}: dim is None; pass tuple(range(input.dim())) to reduce all"
        )
    x = operand("logsumexp", input)
    return _over("logsumexp", _logsumexp, x, dim, keepdim)


def sum(
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """torch.sum in a fixed order.

    A sum's bits depend on its numbers and their places in the row alone; zeros after the last
    number change none. So the sum of a sequence that is padded on the right has the same bits as
    without padding. A term meets at most 15 roundings in a row of up to 1024 numbers, and 30 in one
    of up to a million.

    Args:
        input: as for softmax. The sums of integers and torch.bool, which are exact, are PyTorch's.
        dim: the dimension that is reduced, or several, which are one row in their order in input;
            None and () are all.
        keepdim: keep the dimensions that are reduced, with size 1.
        dtype: the dtype to which input is cast first.

    Returns:
        input's shape without the dimensions that are reduced; of input's dtype or of `dtype`, or of
        torch.int64 for integers.

    Raises:
        IndexError, RuntimeError, TypeError, torch.OutOfMemoryError: as logsumexp does.

    Examples:
        >>> x = torch.randn(3, 100)
        >>> padded = torch.nn.functional.pad(x, (0, 28))
        >>> a, b = (torch_tiled.nn.functional.sum(each, -1) for each in (x, padded))
        >>> torch.equal(a, b)
        True
    """
    if isinstance(input, torch.Tensor) and not _is_inexact(dtype or input.dtype):
        return torch.sum(input, dim, keepdim, dtype=dtype)
    return _over("sum", _sum, operand("sum", input, dtype), dim, keepdim, False)


def mean(
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """torch.mean in a fixed order: sum(), divided by the length of the row before it is rounded.

    Its bits depend on the numbers of a row, their places and the length of the row.

    Args:
        input: as for softmax. Integers need a dtype.
        dim: as for sum.
        keepdim: as for sum.
        dtype: the dtype to which input is cast first.

    Returns:
        input's shape without the dimensions that are reduced, of input's dtype or of `dtype`.

    Raises:
        IndexError, RuntimeError, TypeError, torch.OutOfMemoryError: as logsumexp does.

    Examples:
        >>> torch_tiled.nn.functional.mean(torch.ones(2, 3, 4), (0, -1), keepdim=True).shape
        torch.Size([1, 3, 1])
    """
    return _over("mean", _sum, operand("mean", input, dtype), dim, keepdim, True)


def cumsum(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.cumsum in a fixed order.

    The bits of a sum depend on the numbers up to its own and their places in the row alone. In
    float32 the error may be 8 times that of torch.cumsum on a CPU, which adds in float64.

    Args:
        input: as for softmax. The sums of integers and torch.bool, which are exact, are PyTorch's.
        dim: the dimension along which input is summed.
        dtype: the dtype to which input is cast first.

    Returns:
        input's shape, contiguous; of input's dtype or of `dtype`, or of torch.int64 for integers.

    Raises:
        IndexError, RuntimeError, TypeError, torch.OutOfMemoryError: as softmax does.

    Examples:
        >>> torch_tiled.nn.functional.cumsum(torch.ones(4), 0)
        tensor([1., 2., 3., 4.])
    """
    if isinstance(input, torch.Tensor) and not _is_inexact(dtype or input.dtype):
        return torch.cumsum(input, dim, dtype=dtype)
    return _along("cumsum", _cumsum, operand("cumsum", input, dtype), dim, False)


def _is_inexact(dtype):
    return dtype.is_floating_point or dtype.is_complex
