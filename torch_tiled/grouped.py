"""Products of groups: grouped_mm, and segment_matmul with the arguments of pyg-lib."""

import torch
from torch.compiler import is_dynamo_compiling

from ._internals import dispatch_modes, is_jit_tracing, unwrapped
from ._op.call import call, entry_points
from ._op.checks import check_segment_matmul
from ._op.derivatives import plain_grouped_mm
from ._op.fast_path import is_plain
from ._op.namespace import operators
from ._op.supported import PLAIN_TYPES

__all__ = ["grouped_mm", "segment_matmul"]

_grouped_mm = entry_points(operators.grouped_mm.default)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "fp32",
) -> torch.Tensor:
    """The products of groups in one launch, with the semantics of torch.nn.functional.grouped_mm.

    A matrix (two dimensions) is cut into groups, the first of which begins at 0 and each other one
    at the end of the group before. A batch (three dimensions) has a matrix for each group.

    A group's product has the bits of torch_tiled.matmul of its operands, or with a bias of
    torch_tiled.linear, whatever the other groups are. Rows or columns that no group has are 0.

    Args:
        a: (rows, k), cut by rows; (groups, m, k); or, if b is a matrix too, (m, k), cut along k. It
            has any strides and one of the real dtypes of torch_tiled.matmul.
        b: (groups, k, n); (k, columns), cut by columns; or, if a is a matrix too, (k, n), cut along
            k. It is on a's device and of its dtype, or mixed as in torch_tiled.matmul.
        offs: (groups,), the end of each group, ascending, of torch.int32 and on a's device; it is
            read there, so a CUDA graph may be replayed with others. None if a and b are batches.
        bias: (n,), or (groups, n) with a row for each group; of the dtype of a, b or the result;
            not for a b that is cut by columns. Or None.
        out_dtype: as for torch_tiled.matmul.
        precision: as for torch_tiled.matmul, but groups of float32 on Hopper GPUs have no "tf32".

    Returns:
        (rows, n) if a is cut by rows, (m, columns) if b is cut by columns, and else (groups, m, n);
        contiguous, of torch_tiled.matmul's dtype.

    Raises:
        RuntimeError: as torch_tiled.matmul does; also for an offs of another dtype or shape and, on
            the CPU, one that descends or ends outside. On a GPU such an offs raises nothing: groups
            end where the matrix does, and are empty if they end before they begin.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> tokens, experts = torch.randn(10, 16), torch.randn(3, 16, 8)
        >>> offs = torch.tensor([4, 4, 9], dtype=torch.int32)
        >>> torch_tiled.grouped_mm(tokens, experts, offs=offs).shape
        torch.Size([10, 8])
    """
    given = (a, b) if offs is None else (a, b, offs)
    if bias is not None:
        given = (*given, bias)
    if precision == "fp32" and out_dtype is None:
        if is_plain(*given):
            return plain_grouped_mm(a, b, offs, bias)
        return call(_grouped_mm, a, b, offs, bias)
    options = {"precision": precision}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    return call(_grouped_mm, a, b, offs, bias, **options)


def segment_matmul(
    x: torch.Tensor, ptr: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x[ptr[i]:ptr[i + 1]] @ weight[i] + bias[i] for each i, as pyg_lib.ops.segment_matmul.

    Args:
        x: (rows, k), of the dtypes of torch_tiled.grouped_mm.
        ptr: (groups + 1,), ascending from 0 on and on x's device, of torch.int32, or of
            torch.int64, which is converted first, in two launches on a GPU.
        weight: (groups, k, n).
        bias: (groups, n), or None.

    Returns:
        (rows, n). Rows from ptr[-1] on are 0.

    Raises:
        RuntimeError: as torch_tiled.grouped_mm does; also for a ptr of another dtype or shape and,
            on the CPU, one that does not begin with 0. On a GPU, under a TorchDispatchMode and in a
            compiled or traced graph the first group begins at row 0, whatever ptr[0] is.

    Examples:
        >>> ptr = torch.tensor([0, 4, 9])
        >>> torch_tiled.segment_matmul(torch.randn(9, 16), ptr, torch.randn(2, 16, 8)).shape
        torch.Size([9, 8])
    """
    op = "torch_tiled.segment_matmul"
    if (
        (is_plain(x, ptr, weight) if bias is None else is_plain(x, ptr, weight, bias))
        and ptr.dtype is torch.int32
        and ptr.dim() == 1
        and weight.dim() == 3
        and (bias is None or bias.dim() == 2)
        and (ptr.is_cuda or (ptr.is_cpu and not _begins_late(ptr)))
    ):  # as below, with fewer questions
        try:
            return plain_grouped_mm(x, weight, ptr[1:], bias)
        except RuntimeError:
            check_segment_matmul(x, ptr, weight, bias, has_values=ptr.is_cpu)
            raise
    if not isinstance(ptr, torch.Tensor) or ptr.dtype not in (torch.int64, torch.int32):
        given = ptr.dtype if isinstance(ptr, torch.Tensor) else f"of type {type(ptr).__name__}"
        raise RuntimeError(f"{op}: ptr is {given}; pass a tensor of torch.int64 or torch.int32")
    for name, given in (("x", x), ("weight", weight), ("bias", x if bias is None else bias)):
        if not isinstance(given, torch.Tensor):
            raise RuntimeError(f"{op}: {name} is of type {type(given).__name__}; pass a tensor")
    has_values = ptr.is_cpu and not (is_dynamo_compiling() or is_jit_tracing() or dispatch_modes())
    has_values = has_values and type(unwrapped(ptr)) in PLAIN_TYPES
    ranks = x.dim(), ptr.dim(), weight.dim(), 2 if bias is None else bias.dim()
    if ranks != (2, 1, 3, 2) or (has_values and _begins_late(ptr)):
        check_segment_matmul(x, ptr, weight, bias, has_values=has_values)
    ends = ptr[1:]
    if ends.dtype == torch.int64:
        ends = ends.clamp(-1, 2**31 - 1).to(torch.int32)  # what is outside stays outside
    if is_dynamo_compiling():  # it shows an error that is raised in a handler as a repr
        return grouped_mm(x, weight, offs=ends, bias=bias)
    try:
        return grouped_mm(x, weight, offs=ends, bias=bias)
    except RuntimeError:
        check_segment_matmul(x, ptr, weight, bias, has_values=has_values)
        raise


def _begins_late(ptr):
    """Returns whether ptr, or one that torch.vmap maps, does not begin with 0."""
    first = unwrapped(ptr[:1])
    return first.numel() > 0 and (first.item() != 0 if first.numel() == 1 else first.any())
