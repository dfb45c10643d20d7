"""The tensors and dimensions that the reductions of torch_tiled.nn.functional take."""

import torch

from .._internals import autocast_active, has_kernel
from .._op.row_checks import DTYPES
from .._op.supported import PLAIN_TYPES, SIXTEEN_BIT

# Functions of which autocast casts the arguments to float32. PyTorch's list for CUDA does not have
# the last two, but log_softmax, which they call.
_CAST_ON_CUDA = {
    *("softmax", "log_softmax", "logsumexp", "sum", "cumsum"),
    *("layer_norm", "group_norm", "nll_loss", "cross_entropy", "selective_log_softmax"),
}
if has_kernel("aten::rms_norm", "AutocastCUDA"):  # not that of torch 2.11
    _CAST_ON_CUDA.add("rms_norm")
_CAST = {"cuda": _CAST_ON_CUDA, "cpu": {"nll_loss", "cross_entropy"}}


def full_name(function: str) -> str:
    return f"torch_tiled.nn.functional.{function}"


def operand(function, input, dtype=None, name="input"):
    """The tensor that is reduced: in `dtype`, or as autocast casts it; checked."""
    if type(input) not in PLAIN_TYPES and not isinstance(input, torch.Tensor):
        raise TypeError(
            f"{full_name(function)}: {name} is of type {type(input).__name__}; pass a tensor"
        )
    if dtype is not None:
        input = input.to(dtype)
    elif autocast_active():
        (input,) = autocast(function, input)
    if input.dtype not in DTYPES:
        _refuse_dtype(function, name, input.dtype)
    return input


def _refuse_dtype(function, name, dtype):
    *others, last = map(str, DTYPES)
    remedy = f"{name}.double()"
    if dtype.is_complex:
        remedy = f"torch.view_as_real({name}), its parts"
    raise RuntimeError(
        f"{full_name(function)}: {name} is {dtype}; it must be {', '.join(others)} or {last}: pass "
        f"{remedy}"
    )


def autocast(function, input, *others):
    """The tensors (or None) as autocast casts those of PyTorch's function."""
    device = input.device.type
    if function not in _CAST.get(device, ()) or not torch.is_autocast_enabled(device):
        return input, *others
    return tuple(
        x.float() if x is not None and x.dtype in SIXTEEN_BIT else x for x in (input, *others)
    )


def dimension(function, dim, rank):
    """The dimension from 0 on that `dim` is among so many; those of a number are 0 and -1."""
    most = max(rank, 1)
    if dim is None or isinstance(dim, (bool, float, str)):
        raise TypeError(
            f"{full_name(function)}: dim is {dim!r}, of type {type(dim).__name__}; pass an integer"
        )
    if not -most <= dim < most:
        raise IndexError(
            f"{full_name(function)}: dim is {dim}, and input has {rank} dimensions; pass a dim "
            f"from {-most} to {most - 1}"
        )
    return dim % most


def dimensions(function, dim, rank):
    """The dimensions that `dim` says, ascending: an integer, some of them, or None for all."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(rank))
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    named = [dimension(function, each, rank) for each in given]
    dims = [i for i in range(max(rank, 1)) if any(i == each for each in named)]
    if len(dims) < len(named):
        raise RuntimeError(
            f"{full_name(function)}: dim is {tuple(given)}, which names a dimension twice; name "
            f"each once"
        )
    return dims if rank else []
