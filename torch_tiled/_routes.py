"""The functions that torch_tiled.override runs in place of PyTorch's.

ROUTES maps a function of PyTorch to one that takes Products, which say how to multiply, and the
same arguments. It returns the result, or None if PyTorch has to compute it.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from . import ops
from ._internals import attention_by, torch_grouped_mm
from ._op.gradient_flow import why_differentiated
from ._op.supported import SIXTEEN_BIT, is_supported
from .einsum import einsum
from .grouped import grouped_mm
from .nn.convolutions import conv1d, conv2d, conv3d
from .nn.convolutions import takes as takes_convolution
from .nn.functional import attention, runs_on_gpu
from .nn.transposed_convolutions import (
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    takes_transposed,
)
from .pointwise import pointwise

__all__ = [
    *("ATTENTION", "PRODUCTS", "ROUTES", "UNREACHED", "Products"),
    *("autocast", "broadcasts", "is_autocast", "is_cast", "linear", "takes"),
]


class Products:
    """How routes multiply.

    Attributes:
        precision: as for torch_tiled.matmul.
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self._options = {"precision": precision}

    def options(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, str]:
        """Returns the options of torch_tiled.matmul for these operands, before autocast."""
        return self._options

    def uncast(self, device_type: str, function: Callable, *args, **options):
        """Computes in an autocast region what PyTorch casts nothing for, or returns None."""
        return None

    def total(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """Returns the sum over dimensions that no product sums over."""
        return x.sum(dims)


PRODUCTS = {precision: Products(precision) for precision in ("fp32", "ieee", "tf32")}


def takes(*tensors: torch.Tensor) -> bool:
    """Returns whether torch_tiled multiplies these: one dtype, or autocast makes it one."""
    one_dtype = True
    for tensor in tensors:
        if not is_supported(tensor):
            return False
        one_dtype = one_dtype and tensor.dtype is tensors[0].dtype
    if one_dtype:
        return True
    return all(is_cast(tensor.dtype) for tensor in tensors) and is_autocast(tensors[0])


def is_cast(dtype: torch.dtype) -> bool:
    """Autocast leaves float64 and complex numbers as they are."""
    return dtype.is_floating_point and dtype != torch.float64


def is_autocast(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor's device is in an autocast region."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Casts tensors as autocast does, if it is on."""
    if not is_autocast(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x.to(dtype) if is_cast(x.dtype) else x for x in tensors)


def broadcasts(tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Returns whether a tensor can be expanded to this shape."""
    if tensor.dim() > len(shape):
        return False
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return all(size == 1 or size == wanted for size, wanted in sizes)


def _uncast_on(device_type: str, route: Callable) -> Callable:
    """A route of a function for which PyTorch casts nothing in autocast regions of a device.

    tests/models/test_override.py compares all routes with PyTorch's lists.
    """

    def uncast(products, input, *args, **options):
        if isinstance(input, torch.Tensor) and input.device.type == device_type:
            if is_autocast(input):
                return products.uncast(device_type, route, products, input, *args, **options)
        return route(products, input, *args, **options)

    return uncast


def _multiply(products, a, b, *, out=None, out_dtype=None, ranks=None):
    """a @ b, if a and b have these ranks."""
    if not takes(a, b) or (ranks is not None and not _have_ranks(a, b, ranks)):
        return None
    if a.dim() == 0 or b.dim() == 0:
        return None
    if out_dtype is not None:
        if out_dtype not in (a.dtype, torch.float32):
            return None
        if is_autocast(a):  # it is not cast then
            given = {"out": out, "out_dtype": out_dtype, "ranks": ranks}
            return products.uncast(a.device.type, _multiply, products, a, b, **given)
        if out_dtype == a.dtype:
            out_dtype = None
    if out is None:
        return ops.matmul(a, b, **products.options(a, b), out_dtype=out_dtype)
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    cols = b.shape[-1:] if b.dim() > 1 else ()
    try:
        shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *cols)
    except RuntimeError:
        return None
    if not takes(out) or out.shape != shape or out.dtype != (out_dtype or a.dtype):
        return None
    return ops.matmul(a, b, **products.options(a, b), out=out)


def _have_ranks(a, b, ranks) -> bool:
    """Returns whether a and b have these ranks and the same batch: no function broadcasts it."""
    if (a.dim(), b.dim()) != ranks:
        return False
    return ranks[0] == 2 or a.shape[:-2] == b.shape[:-2]


def _matmul(products, input, other, *, out=None):
    return _multiply(products, input, other, out=out)


def _of_ranks(*ranks: int) -> Callable:
    """mm, bmm or mv, which take operands of these ranks."""

    def multiply(products, input, other=None, out_dtype=None, **options):
        if options:
            for name in ("mat2", "vec"):
                other = options.pop(name, other)
        return _multiply(products, input, other, ranks=ranks, out_dtype=out_dtype, **options)

    return multiply


def _rmatmul(products, self, other):
    return _multiply(products, other, self)


@functools.partial(_uncast_on, "cuda")
def _inner(products, input, other, *, out=None):
    if out is not None or not takes(input, other) or input.dtype != other.dtype:
        return None
    if min(input.dim(), other.dim()) == 0 or max(input.dim(), other.dim()) == 1:
        return None
    if input.shape[-1] != other.shape[-1]:
        return None
    rows = other.shape[:-1]
    other = other.reshape(math.prod(rows), other.shape[-1])
    return ops.matmul(input, other.mT, **products.options(input, other)).reshape(
        *input.shape[:-1], *rows
    )


def _overflows(factor: float, dtype: torch.dtype) -> bool:
    """Whether a finite factor is infinite in the dtype of a sum."""
    if factor in (0, 1):
        return False
    most = torch.finfo(torch.float32 if dtype in SIXTEEN_BIT else dtype).max
    return any(most < abs(part) < math.inf for part in (factor.real, factor.imag))


def _adding(*ranks: int, sum_batch: bool = False) -> Callable:
    """addmm, baddbmm or addmv; or addbmm: its sum over the batch becomes a part of K."""

    def add(products, input, a=None, b=None, *others, beta=1, alpha=1, out=None, **named):
        for name in ("mat1", "batch1", "mat"):
            a = named.pop(name, a)
        for name in ("mat2", "batch2", "vec"):
            b = named.pop(name, b)
        if others or named or not takes(input, a, b):
            return None
        if any(_overflows(x, input.dtype) for x in (alpha, beta)):  # PyTorch refuses it
            return None
        if alpha == 0:  # no product counts; PyTorch's backends differ in what NaN and Inf do then
            return None
        if out is not None:
            if any(map(why_differentiated, (input, a, b, out))):
                return None
            return _write(products, out, add, input, a, b, beta=beta, alpha=alpha)
        if not _have_ranks(a, b, ranks):
            return None
        if b.dim() == 1 and 0 in a.shape:  # PyTorch does not expand input then
            return None
        if not input.is_complex() and any(isinstance(x, complex) for x in (alpha, beta)):
            return None
        if beta == 0 and input.requires_grad:  # its gradient is zeros, and not None
            return None
        if sum_batch:
            if a.shape[2] != b.shape[1]:  # a batch of 0 would hide it
                return None
            a, b = a.transpose(0, 1).flatten(1), b.flatten(0, 1)
        if (alpha, beta) == (1, 1) and b.dim() == 2 and input.shape == b.shape[1:]:
            return ops.linear(a, b.mT, input, **products.options(a, b))
        shape = (*a.shape[:-1], *b.shape[max(b.dim() - 1, 1) :])
        if input.device != a.device or not (input.shape == shape or broadcasts(input, shape)):
            return None
        input, a, b = autocast(input, a, b)
        # The sum of 16-bit floats is rounded once, at the end, as in PyTorch.
        is_16bit = a.dtype in SIXTEEN_BIT
        out_dtype = torch.float32 if is_16bit and a.dtype == b.dtype else None
        result = ops.matmul(a, b, **products.options(a, b), out_dtype=out_dtype)
        if alpha != 1:
            result = result * alpha
        if beta != 0:
            input = input.to(result.dtype)
            result = result + (input if beta == 1 else beta * input)
        return result.to(a.dtype)

    return add


def _write(products, tensor, add, *args, **options):
    """Writes the sum to a tensor of its shape. PyTorch does not autocast these functions."""
    if is_autocast(tensor):
        given = products, tensor, add, *args
        return products.uncast(tensor.device.type, _write, *given, **options)
    result = add(products, *args, **options)
    if result is None or not takes(result, tensor):
        return None
    fits = (result.shape, result.device) == (tensor.shape, tensor.device)
    return tensor.copy_(result) if fits else None


def _in_place(add: Callable) -> Callable:
    def add_(products, self, *args, **options):
        return _write(products, self, add, self, *args, **options)

    return add_


def linear(products, input, weight, bias=None):
    """torch.nn.functional.linear: its bias may broadcast. None if PyTorch has to compute it."""
    if not takes(input, weight, *(() if bias is None else (bias,))):
        return None
    if input.dim() == 0 or weight.dim() != 2:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        is_row = bias.dim() == 2 and bias.shape[0] == 1 and input.dim() > 1
        row = bias.squeeze(0) if is_row else bias
        if broadcasts(row, weight.shape[:1]):
            bias = row.expand(weight.shape[:1])
        elif input.dim() == 2:
            return _addmm(products, bias, input, weight.mT)
        else:  # PyTorch takes some of these, by the strides of input
            return None
    return ops.linear(input, weight, bias, **products.options(input, weight))


def _einsum(products, equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    if not isinstance(equation, str) or len(operands) < 2 or not takes(*operands):
        return None

    def multiply(a, b):
        return ops.matmul(a, b, **products.options(a, b))

    if operands[0].is_cuda and is_autocast(operands[0]):  # PyTorch casts once, before all of it
        operands = autocast(*operands)
        with torch.autocast("cuda", enabled=False):
            return einsum(equation, *operands, multiply=multiply, total=products.total)
    # On the CPU each product casts.
    return einsum(equation, *operands, multiply=multiply, total=products.total)


@functools.partial(_uncast_on, "cpu")
@functools.partial(_uncast_on, "cuda")
def _grouped_mm(products, a, b=None, offs=None, bias=None, out_dtype=None, **named):
    b = named.pop("mat2", named.pop("mat_b", b))
    # PyTorch takes no bias, no other out_dtype and no float64.
    if named or bias is not None or not takes(a, b) or out_dtype not in (None, a.dtype):
        return None
    if a.dtype not in (torch.float32, *SIXTEEN_BIT):
        return None
    # No kernel for groups rounds to TF32.
    precision = "ieee" if products.precision == "ieee" else "fp32"
    return grouped_mm(a, b, offs=offs, precision=precision)


def _conv(rank: int) -> Callable:
    """torch.nn.functional.conv1d, conv2d or conv3d, if fp16x3 or a matrix product computes it."""

    kernel, by_fp16x3 = (1,) * rank, (conv1d, conv2d, conv3d)[rank - 1]

    def conv(products, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        options = stride, padding, dilation, groups
        if products.precision == "fp32" and takes_convolution(rank, input, weight, bias, *options):
            return by_fp16x3(input, weight, bias, *options, algorithm="fp16x3")
        if groups != 1 or not takes(input, weight, *(() if bias is None else (bias,))):
            return None
        shape, dims = weight.shape, input.dim()
        if shape[2:] != kernel or dims not in (rank + 1, rank + 2):
            return None
        if not _are(stride, rank, 1):
            return None
        if not _are(dilation, rank) or not (padding in ("valid", "same") or _are(padding, rank, 0)):
            return None
        x = input if dims == rank + 2 else input.unsqueeze(0)
        sizes = x.shape[1:]
        if sizes[0] != shape[1] or 0 in sizes or shape[0] == 0:
            return None
        if bias is not None and bias.shape != shape[:1]:
            return None
        result = pointwise(x, weight, bias, products.options(x, weight))
        return result if x is input else result.squeeze(0)

    return conv


def _conv_transposed(rank: int) -> Callable:
    """torch.nn.functional.conv_transpose1d, 2d or 3d, if fp16x3 computes it."""
    by_fp16x3 = (conv_transpose1d, conv_transpose2d, conv_transpose3d)[rank - 1]

    def conv(
        products,
        input,
        weight,
        bias=None,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        dilation=1,
    ):
        options = stride, padding, output_padding, groups, dilation
        if products.precision != "fp32":
            return None
        if not takes_transposed(rank, input, weight, bias, *options):
            return None
        return by_fp16x3(input, weight, bias, *options, algorithm="fp16x3")

    return conv


def _are(given, rank: int, wanted: int | None = None) -> bool:
    """Returns whether an option of a convolution is this integer, or without one positive."""
    values = given if isinstance(given, (tuple, list)) else (given,)
    for value in values:
        if not isinstance(value, int) or (value < 1 if wanted is None else value != wanted):
            return False
    return len(values) in (1, rank)


def _attention(
    products,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
):
    # Its products are split, which "ieee" does not allow.
    if products.precision == "ieee" or dropout_p != 0:
        return None
    if not runs_on_gpu(query, key, value, attn_mask):
        return None
    return attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _linear_or_torch(products, input, weight, bias=None):
    result = linear(products, input, weight, bias)
    return F.linear(input, weight, bias) if result is None else result


def _attention_or_torch(products, *args):
    result = _attention(products, *args)
    return F.scaled_dot_product_attention(*args) if result is None else result


# torch.nn.functional.multi_head_attention_forward with projections and attention by torch_tiled.
ATTENTION = {
    precision: attention_by(
        *(functools.partial(f, products) for f in (_linear_or_torch, _attention_or_torch))
    )
    for precision, products in PRODUCTS.items()
}

_mm, _bmm, _mv = _of_ranks(2, 2), _of_ranks(3, 3), _uncast_on("cpu", _of_ranks(2, 1))
_addmm, _baddbmm, _addmv = _adding(2, 2), _adding(3, 3), _uncast_on("cpu", _adding(2, 1))
_addbmm = _adding(3, 3, sum_batch=True)

ROUTES = {
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
    F.linear: linear,
    torch.einsum: _einsum,
    F.grouped_mm: _grouped_mm,
    torch_grouped_mm: _grouped_mm,
    F.scaled_dot_product_attention: _attention,
    F.conv1d: _conv(1),
    F.conv2d: _conv(2),
    F.conv3d: _conv(3),
    F.conv_transpose1d: _conv_transposed(1),
    F.conv_transpose2d: _conv_transposed(2),
    F.conv_transpose3d: _conv_transposed(3),
}

# Functions with products inside of them, which no TorchFunctionMode sees.
UNREACHED = {
    F.multi_head_attention_forward,
    F.bilinear,
    torch.bilinear,
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
}
