"""PyTorch's own functions made to compute by torch_tiled, within a with statement."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode, resolve_name

from . import ops
from .autograd import what_flows
from .einsum import einsum
from .supported import why_unsupported
from .warning import warn

__all__ = ["override"]


class override(TorchFunctionMode):
    """A with statement in which PyTorch's matrix products are torch_tiled's.

    torch.matmul, mm, bmm, mv, inner, addmm, addbmm, baddbmm, addmv, their methods and in-place
    forms, @, torch.nn.functional.linear and torch.einsum, as called by Python code in the
    statement, are computed by torch_tiled, and so are their gradients, whenever those are. Results,
    dtypes and shapes are PyTorch's but for rounding, and errors are RuntimeErrors as there.

    What torch_tiled does not multiply goes on to PyTorch: integers, complex numbers, sparse, nested
    and quantized tensors, other devices, an out= that would be resized, sums written in autocast
    regions, and single operands of einsum. So do products that are inside of other functions, which
    no such statement sees: scaled_dot_product_attention, multi_head_attention_forward (of
    torch.nn.MultiheadAttention and the Transformer layers), RNNs, multi_dot, matrix_power,
    tensordot, bilinear, dot, cdist and convolutions. With strict=True each of them warns.

    Statements nest, the innermost one counts, and each holds for its thread alone. Compiled
    functions may be called in one, or have one. torch.compile compiles them anew for it.
    What a backward pass computes again for torch.utils.checkpoint is in no statement around it:
    have one in the function, or say context_fn=lambda: (override(), override()).

    Args:
        precision: as for torch_tiled.matmul.
        strict: warn where a product is left to PyTorch; in compiled code, where it is traced.

    Raises:
        RuntimeError: an unknown precision.

    Example::

        >>> with torch_tiled.override(precision="ieee"):
        ...     y = torch.randn(4, 8) @ torch.randn(8, 3)
    """

    def __init__(self, precision: str = "fp32", *, strict: bool = False) -> None:
        super().__init__()
        if not is_compiling():
            ops.check_precision(precision)
        self.precision = precision
        self.strict = strict

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _ROUTES:
            result = _ROUTES[func](self.precision, *args, **kwargs)
            if result is not None:
                return result
        if self.strict and (func in _ROUTES or func in _UNSEEN):
            _say(func)
        return func(*args, **kwargs)


@torch.compiler.assume_constant_result
def _say(func: Callable) -> None:
    """Warns that PyTorch computes. In compiled code it runs where a graph is traced."""
    reason = (
        "its operands or options are none that torch_tiled takes"
        if func in _ROUTES
        else "the products are inside of it"
    )
    warn(f"torch_tiled.override: PyTorch computes {resolve_name(func)}, since {reason}")


# What follows returns None for what is PyTorch's.


def _takes(*tensors: torch.Tensor) -> bool:
    """Whether torch_tiled multiplies these."""
    dtypes = set()
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or why_unsupported(tensor) is not None:
            return False
        dtypes.add(tensor.dtype)
    return len(dtypes) == 1 or _is_autocast(tensors[0])


def _is_autocast(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As autocast has them, where it is on."""
    if not _is_autocast(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def _multiply(precision, a, b, *, out=None, out_dtype=None, ranks=None):
    """a @ b, where a and b have those ranks."""
    if not _takes(a, b) or (ranks is not None and not _have_ranks(a, b, ranks)):
        return None
    if a.dim() == 0 or b.dim() == 0 or out_dtype not in (None, a.dtype, torch.float32):
        return None
    if out_dtype == a.dtype:
        out_dtype = None
    if out is None:
        return ops.matmul(a, b, precision=precision, out_dtype=out_dtype)
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    cols = b.shape[-1:] if b.dim() > 1 else ()
    try:
        shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *cols)
    except RuntimeError:
        return None
    if out.shape != shape or out.dtype != (out_dtype or a.dtype):
        return None
    return ops.matmul(a, b, precision=precision, out=out)


def _have_ranks(a, b, ranks) -> bool:
    """Also whether a batch, which these functions do not broadcast, is the same."""
    return (a.dim(), b.dim()) == ranks and a.shape[:-2] == b.shape[: max(b.dim() - 2, 0)]


def _matmul(precision, input, other, *, out=None):
    return _multiply(precision, input, other, out=out)


def _of_ranks(*ranks: int) -> Callable:
    """mm, bmm and mv, which are named by the ranks that they take."""

    def multiply(precision, input, other=None, out_dtype=None, **options):
        for name in ("mat2", "vec"):
            other = options.pop(name, other)
        return _multiply(precision, input, other, ranks=ranks, out_dtype=out_dtype, **options)

    return multiply


def _rmatmul(precision, self, other):
    return _multiply(precision, other, self)


def _inner(precision, input, other, *, out=None):
    if out is not None or not _takes(input, other):
        return None
    if min(input.dim(), other.dim()) == 0 or max(input.dim(), other.dim()) == 1:
        return None
    if input.shape[-1] != other.shape[-1]:
        return None
    rows = other.shape[:-1]
    other = other.reshape(math.prod(rows), other.shape[-1])
    return ops.matmul(input, other.mT, precision=precision).reshape(*input.shape[:-1], *rows)


def _adding(*ranks: int, sum_batch: bool = False) -> Callable:
    """addmm, baddbmm and addmv; and addbmm, whose sum over the batch is a part of the product."""

    def add(precision, input, a=None, b=None, *others, beta=1, alpha=1, out=None, **named):
        for name in ("mat1", "batch1", "mat"):
            a = named.pop(name, a)
        for name in ("mat2", "batch2", "vec"):
            b = named.pop(name, b)
        if others or named or not _takes(input, a, b):
            return None
        if out is not None:
            if any(map(what_flows, (input, a, b, out))):
                return None
            return _write(out, add, precision, input, a, b, beta=beta, alpha=alpha)
        if not _have_ranks(a, b, ranks):
            return None
        if isinstance(beta, complex) or isinstance(alpha, complex):
            return None
        if beta == 0 and input.requires_grad:  # it has a gradient, of zeros
            return None
        if sum_batch:
            a, b = a.transpose(0, 1).flatten(1), b.flatten(0, 1)
        if (alpha, beta) == (1, 1) and b.dim() == 2 and input.shape == b.shape[1:]:
            return ops.linear(a, b.mT, input, precision=precision)
        input, a, b = _autocast(input, a, b)
        # Halves are rounded once, at the end, as PyTorch does.
        half = a.dtype in (torch.float16, torch.bfloat16)
        out_dtype = torch.float32 if half and a.dtype == b.dtype else None
        result = ops.matmul(a, b, precision=precision, out_dtype=out_dtype)
        shape, dtype = result.shape, result.dtype if out_dtype is None else a.dtype
        if alpha != 1:
            result = result * alpha
        if beta != 0:
            input = input.to(result.dtype)
            result = result + (input if beta == 1 else beta * input)
        return result.to(dtype) if result.shape == shape else None

    return add


def _write(tensor, add, *args, **options):
    """The sum in a tensor that it fits, and not autocast: PyTorch casts nothing where it writes."""
    result = None if _is_autocast(tensor) else add(*args, **options)
    if result is None or not _takes(result, tensor):
        return None
    fits = (result.shape, result.device) == (tensor.shape, tensor.device)
    return tensor.copy_(result) if fits else None


def _in_place(add: Callable) -> Callable:
    def add_(precision, self, *args, **options):
        return _write(self, add, precision, self, *args, **options)

    return add_


def _linear(precision, input, weight, bias=None):
    if not _takes(input, weight, *(() if bias is None else (bias,))):
        return None
    if input.dim() == 0 or weight.dim() != 2:
        return None
    return ops.linear(input, weight, bias, precision=precision)


def _einsum(precision, equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    if not isinstance(equation, str) or len(operands) < 2 or not _takes(*operands):
        return None
    operands = _autocast(*operands)
    return einsum(equation, *operands, multiply=lambda a, b: ops.matmul(a, b, precision=precision))


_mm, _bmm, _mv = _of_ranks(2, 2), _of_ranks(3, 3), _of_ranks(2, 1)
_addmm, _baddbmm, _addmv = _adding(2, 2), _adding(3, 3), _adding(2, 1)
_addbmm = _adding(3, 3, sum_batch=True)

_ROUTES = {
    torch.matmul: _matmul,
    torch.linalg.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: _rmatmul,
    torch.mm: _mm,
    torch.Tensor.mm: _mm,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.mv: _mv,
    torch.Tensor.mv: _mv,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.Tensor.addmm_: _in_place(_addmm),
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
    torch.Tensor.baddbmm_: _in_place(_baddbmm),
    torch.addmv: _addmv,
    torch.Tensor.addmv: _addmv,
    torch.Tensor.addmv_: _in_place(_addmv),
    torch.addbmm: _addbmm,
    torch.Tensor.addbmm: _addbmm,
    torch.Tensor.addbmm_: _in_place(_addbmm),
    torch.inner: _inner,
    torch.Tensor.inner: _inner,
    F.linear: _linear,
    torch.einsum: _einsum,
}

# Functions that multiply inside.
_UNSEEN = {
    F.multi_head_attention_forward,
    F.scaled_dot_product_attention,
    F.bilinear,
    torch.bilinear,
    F.grouped_mm,
    F.scaled_mm,
    F.scaled_grouped_mm,
    torch.linalg.multi_dot,
    torch.chain_matmul,
    torch.tensordot,
    torch.matrix_power,
    torch.Tensor.matrix_power,
    torch.linalg.matrix_power,
    torch.matrix_exp,
    torch.Tensor.matrix_exp,
    torch.linalg.matrix_exp,
    torch.cov,
    torch.Tensor.cov,
    torch.corrcoef,
    torch.Tensor.corrcoef,
    torch.dot,
    torch.Tensor.dot,
    torch.vdot,
    torch.Tensor.vdot,
    torch.linalg.vecdot,
    torch.cdist,
    torch.lstm,
    torch.gru,
    torch.rnn_tanh,
    torch.rnn_relu,
    torch.lstm_cell,
    torch.gru_cell,
    torch.rnn_tanh_cell,
    torch.rnn_relu_cell,
    F.conv_tbc,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
}
