"""cross_entropy, nll_loss and selective_log_softmax with sums of a fixed order.

Classes are moved to the last dimension, and a target picks one of each row. Losses of 16-bit floats
are float32 until the result is rounded.
"""

import torch
from torch.compiler import is_compiling

from .._internals import autocast_active
from .._op.gather import Gather
from .._op.row_calls import RowCall
from .._op.rows import Softmax, widened
from .._warning import warn
from . import reductions
from ._arguments import autocast, full_name, operand

__all__ = ["cross_entropy", "nll_loss", "selective_log_softmax"]

_softmax = RowCall("_row_softmax", Softmax)
_gather = RowCall("_row_gather", Gather, 2)


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """torch.nn.functional.cross_entropy with sums of a fixed order.

    The bits of a position's loss, and of its gradient, depend on its own numbers and target alone.
    The losses are one row of sum(), in the order of target's positions. So positions that are
    ignored after the last one that counts change no bit.

    Args:
        input: (classes,), (samples, classes) or (samples, classes, ...), any strides; of float32,
            float64, float16 or bfloat16. Autocast regions cast it to float32, as PyTorch does.
        target: classes, of torch.int64 or torch.uint8, in input's shape without its classes; or
            their probabilities, in input's shape.
        weight: (classes,), of input's dtype; without a gradient if target has classes.
        size_average: as for PyTorch's function, where reduction replaces it.
        ignore_index: the class of positions that do not count.
        reduce: as for PyTorch's function, where reduction replaces it.
        reduction: "none", "sum" or "mean". The mean is the sum divided by that of the targets'
            weights, or by the number of positions if target has probabilities.
        label_smoothing: the part of a target that all classes share, from 0 to 1.

    Returns:
        A number; or, if reduction is "none", the losses in input's shape without its classes.

    Raises:
        IndexError: a target on the CPU is no class.
        RuntimeError: dtypes or devices that do not fit, or label_smoothing.
        TypeError: input or target is no tensor.
        ValueError: shapes that do not fit, or no such reduction.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> logits, target = torch.zeros(3, 4), torch.tensor([1, 0, -100])
        >>> torch_tiled.nn.functional.cross_entropy(logits, target)
        tensor(1.3863)
    """
    name = "cross_entropy"
    x, weight, reduction = _arguments(name, input, target, weight, size_average, reduce, reduction)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(
            f"{full_name(name)}: label_smoothing is {label_smoothing}; pass a number from 0 to 1"
        )
    if target.shape != input.shape or input.dim() == 0:
        _check_classes(name, x, target, weight)
        log_p = _softmax(x, True)
        return _loss(name, log_p, target, weight, ignore_index, reduction, label_smoothing)
    if not target.is_floating_point():
        raise RuntimeError(
            f"{full_name(name)}: target is {target.dtype} in input's shape, {tuple(input.shape)}; "
            f"pass probabilities, target.to(input.dtype), or classes, without that dimension"
        )
    if ignore_index >= 0:
        raise RuntimeError(
            f"{full_name(name)}: ignore_index is {ignore_index} and target has probabilities, of "
            f"which none is ignored; leave it out"
        )
    target = target.movedim(_class_dim(input), -1)
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / x.shape[-1]
    log_p = _softmax(x, True)
    dtype = torch.promote_types(x.dtype, target.dtype)
    terms = widened(log_p) * target
    if weight is not None:
        dtype = torch.promote_types(dtype, weight.dtype)
        terms = terms * weight
    losses = -reductions.sum(terms, -1)
    return _reduced(losses, losses.numel(), reduction).to(dtype)


def nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """torch.nn.functional.nll_loss with sums of a fixed order.

    Bits are as for cross_entropy.

    Args:
        input: as for cross_entropy; logarithms of probabilities.
        target: classes, as for cross_entropy.
        weight: as for cross_entropy.
        size_average: as for cross_entropy.
        ignore_index: as for cross_entropy.
        reduce: as for cross_entropy.
        reduction: as for cross_entropy.

    Returns:
        A number; or, if reduction is "none", the losses in input's shape without its classes.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError, torch.OutOfMemoryError: as cross_entropy
            does.

    Examples:
        >>> log_p, target = torch.full((3, 4), -2.0), torch.tensor([1, 0, -100])
        >>> torch_tiled.nn.functional.nll_loss(log_p, target, reduction="sum")
        tensor(4.)
    """
    name = "nll_loss"
    x, weight, reduction = _arguments(name, input, target, weight, size_average, reduce, reduction)
    _check_classes(name, x, target, weight)
    return _loss(name, x, target, weight, ignore_index, reduction)


def selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of chosen classes, as a policy's loss takes them.

    They have the bits of log_softmax(logits, -1).gather(-1, index), which depend on a row's logits
    alone. Gradients of a class that a row names more than once are summed in the order of index.

    Args:
        logits: (..., classes), as for softmax.
        index: (..., k), of torch.int64, with the leading dimensions of logits; or without the last
            dimension, for one class of each row.

    Returns:
        index's shape, of the dtype of log_softmax(logits, -1).

    Raises:
        IndexError: an index on the CPU is no class.
        RuntimeError: dtypes or devices that do not fit.
        TypeError: logits or index is no tensor.
        ValueError: shapes that do not fit.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> logits, tokens = torch.randn(2, 5, 100), torch.randint(100, (2, 5))
        >>> torch_tiled.nn.functional.selective_log_softmax(logits, tokens).shape
        torch.Size([2, 5])
    """
    name = full_name("selective_log_softmax")
    x = operand("selective_log_softmax", logits, name="logits")
    if not isinstance(index, torch.Tensor):
        raise TypeError(f"{name}: index is of type {type(index).__name__}; pass a tensor")
    if index.dtype != torch.int64:
        raise RuntimeError(f"{name}: index is {index.dtype}; pass index.long()")
    leading = x.shape[:-1]
    if x.dim() == 0 or index.shape[: x.dim() - 1] != leading or index.dim() > x.dim():
        raise ValueError(
            f"{name}: logits is {tuple(x.shape)} and index is {tuple(index.shape)}; index must "
            f"have the dimensions of logits but for the last, and one more for several classes"
        )
    log_p = _softmax(x, True)
    if index.dim() < x.dim():
        return _select(name, "index", log_p, index[..., None])[..., 0]
    return _select(name, "index", log_p, index)


# --- arguments -----------------------------------------------------------------------------------


def _arguments(function, input, target, weight, size_average, reduce, reduction):
    """input with its classes in the last dimension, weight, and a reduction; checked."""
    x = operand(function, input)
    if not isinstance(target, torch.Tensor):
        raise TypeError(
            f"{full_name(function)}: target is of type {type(target).__name__}; pass a tensor"
        )
    if autocast_active():
        _, weight = autocast(function, x, weight)
    if size_average is not None or reduce is not None:
        sums = "mean" if size_average or size_average is None else "sum"
        reduction = sums if reduce or reduce is None else "none"
        if not is_compiling():
            warn(
                f"{full_name(function)}: size_average and reduce are deprecated, as in PyTorch; "
                f'pass reduction="{reduction}"'
            )
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(
            f'{full_name(function)}: reduction is {reduction!r}; pass "none", "sum" or "mean"'
        )
    if x.dim() == 0:
        raise ValueError(
            f"{full_name(function)}: input is (); it must be (classes,) or (samples, classes, ...)"
        )
    return x.movedim(_class_dim(x), -1), weight, reduction


def _class_dim(input):
    return 0 if input.dim() == 1 else 1


def _check_classes(function, x, target, weight):
    name = full_name(function)
    if target.shape != x.shape[:-1]:
        shape = (*x.shape[:1], *x.shape[-1:], *x.shape[1:-1]) if x.dim() > 1 else tuple(x.shape)
        raise ValueError(
            f"{name}: input is {shape} and target is {tuple(target.shape)}; target must be "
            f"{tuple(x.shape[:-1])}, input's shape without its classes"
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"{name}: target is {target.dtype}; pass classes, target.long()")
    if weight is None:
        return
    if weight.shape != x.shape[-1:]:
        raise RuntimeError(
            f"{name}: weight is {tuple(weight.shape)}; it must be ({x.shape[-1]},), a number for "
            f"each class"
        )
    if weight.dtype != x.dtype:
        raise RuntimeError(
            f"{name}: weight is {weight.dtype} and input is {x.dtype}; pass both in one dtype, for "
            f"example with .double()"
        )
    if weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{name}: weight requires grad, and it has no derivative; pass weight.detach()"
        )


# --- losses --------------------------------------------------------------------------------------


def _loss(function, log_p, target, weight, ignore_index, reduction, smoothing=0.0):
    """The loss of classes, from their logarithms in the last dimension of log_p."""
    counts = target != ignore_index
    target = torch.where(counts, target, 0).long()
    losses = -widened(_select(full_name(function), "target", log_p, target[..., None])[..., 0])
    weights = counts
    if weight is not None:
        weight = widened(weight.detach())
        weights = torch.where(counts, weight[target], 0)
        losses = losses * weights
    if smoothing > 0:
        of_all = widened(log_p) if weight is None else widened(log_p) * weight
        shared = reductions.sum(of_all, -1) * (smoothing / log_p.shape[-1])
        losses = losses * (1 - smoothing) - shared
    losses = torch.where(counts, losses, 0)
    total = reductions.sum(weights) if reduction == "mean" else None
    return _reduced(losses, total, reduction).to(log_p.dtype)


def _reduced(losses, total, reduction):
    if reduction == "none":
        return losses
    result = reductions.sum(losses)
    return result / total if reduction == "mean" else result


def _select(function, name, x, index):
    """x.gather(-1, index) with a sentence for what is no class, as far as that can be seen."""
    try:
        return _gather(x, index)
    except RuntimeError:
        if is_compiling() or not index.is_cpu or not index.numel():
            raise
        least, most = (int(each) for each in index.aminmax())
        if least >= 0 and most < x.shape[-1]:
            raise
        wrong = least if least < 0 else most
        raise IndexError(
            f"{function}: {name} has {wrong}, and there are {x.shape[-1]} classes; pass 0 to "
            f"{x.shape[-1] - 1}"
        ) from None
