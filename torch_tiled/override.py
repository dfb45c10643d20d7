"""override: a with statement in which PyTorch's own functions compute by torch_tiled."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling
from torch.overrides import resolve_name

from ._internals import assume_constant_result
from ._op.supported import PLAIN_TYPES
from ._routes import ATTENTION, PRODUCTS, ROUTES, UNREACHED
from ._statement import Statement
from ._warning import warn
from .ops import check_precision

__all__ = ["override"]


class override(Statement):
    """A with statement in which PyTorch's matrix products are torch_tiled's.

    Python code in the statement that calls torch.matmul, mm, bmm, mv, inner, addmm, addbmm,
    baddbmm, addmv, their methods and in-place forms, @, torch.einsum, or of torch.nn.functional
    linear, conv1d, conv2d and conv3d with a kernel of 1 (stride 1, no padding, groups 1), with
    "fp32" also those of float32 that torch_tiled.nn.functional.conv2d computes on Hopper, likewise
    conv_transpose1d, conv_transpose2d and conv_transpose3d, and the projections of
    multi_head_attention_forward, gets the result from torch_tiled. So it does the gradients, even
    if they are computed after the statement. Results are PyTorch's except for rounding; dtypes and
    shapes are the same, and errors are RuntimeErrors, too.

    float64 products are torch_tiled's, too. On an H100 they have 0.95 of the speed of cuBLAS's for
    squares from 2048 on, and 0.85 with 1 to 128 rows.

    torch.nn.functional.grouped_mm of float32, float16 and bfloat16 is torch_tiled.grouped_mm,
    except in autocast regions, where PyTorch does not cast it, and in compiled code.
    scaled_dot_product_attention is torch_tiled.nn.functional's for float32 tensors of up to 128
    columns on a Hopper GPU, without dropout, and unless the precision is "ieee"; so it is inside of
    multi_head_attention_forward if that returns no weights.

    PyTorch computes what torch_tiled does not multiply: integers, complex32, real beside complex
    operands, sparse, nested and quantized tensors, tensor subclasses that are not PyTorch's own,
    other devices, an out= that would be resized, sums with alpha=0, addmv of an empty matrix, and
    einsum of a single operand; in autocast regions also sums that are written, products with
    out_dtype, and functions that PyTorch does not cast there (mv and addmv on the CPU, inner on
    CUDA). It also computes products inside of other functions, which the statement does not see:
    others of multi_head_attention_forward, RNNs, multi_dot, matrix_power, tensordot, bilinear, dot,
    cdist and other convolutions. With strict=True each of them warns.

    Statements nest, and the innermost one counts. A statement holds for its own thread.
    `@torch_tiled.override()` is one around each call of a function. Compiled functions may be
    called in one or contain one; torch.compile recompiles a function that is called both in a
    statement and outside. A function that torch.utils.checkpoint recomputes in the backward pass is
    outside of the statement then: put one into the function, or pass
    context_fn=lambda: (override(), override()).

    Args:
        precision: as for torch_tiled.matmul.
        strict: warn of each product that is left to PyTorch; in compiled code, once it is traced.

    Raises:
        RuntimeError: there is no such precision.

    Examples:
        >>> with torch_tiled.override(precision="ieee"):
        ...     y = torch.randn(4, 8) @ torch.randn(8, 3)
    """

    def __init__(self, precision: str = "fp32", *, strict: bool = False) -> None:
        super().__init__()
        if not is_compiling():
            check_precision("torch_tiled.override", precision)
        self.precision = precision
        self.strict = strict

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        route = ROUTES.get(func)
        if route is not None:
            result = route(PRODUCTS[self.precision], *args, **kwargs)
            if result is not None:
                return result
        if self.strict and (route is not None or func in UNREACHED):
            _tell(func)
        if func is F.multi_head_attention_forward and PLAIN_TYPES.issuperset(types):
            return ATTENTION[self.precision](*args, **kwargs)
        return func(*args, **kwargs)


@assume_constant_result
def _tell(func: Callable) -> None:
    """Warns that PyTorch computes func. In compiled code this runs while a graph is traced."""
    reason = "its products are inside of it"
    if func in ROUTES:
        reason = "torch_tiled does not take its operands or options"
    elif func is F.multi_head_attention_forward:
        reason = "only its projections and attention without weights can be taken out of it"
    name = f"torch.{func.__name__}"  # torch.mm has other names, such as torch.spmm
    if func not in ROUTES or getattr(torch, func.__name__, None) != func:
        name = resolve_name(func)
    warn(f"torch_tiled.override: PyTorch computes {name}, since {reason}")
