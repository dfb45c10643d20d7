"""Holds a kernel's result against float64, or complex128, before its time is reported."""

from collections.abc import Callable
from contextlib import contextmanager

import torch
from helpers import reference

# A product of given operands; and a function of operands to the exact product and its bound.
Product = Callable[[], torch.Tensor]
Truth = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

MOST_ROWS = 256
MOST_MATRICES = 16


class Wrong(Exception):
    """A result is outside the bound; the message says where."""


@contextmanager
def full_precision_peer(precision: str):
    """torch.matmul, and cuDNN, in the precision asked for, while this context lasts.

    float32 may be rounded to TF32 only where the precision is "tf32", and 16-bit floats are
    reduced in float32. cuDNN times its algorithms and takes the fastest.
    """
    flags, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    wanted = {
        "allow_tf32": precision == "tf32",
        "allow_fp16_reduced_precision_reduction": False,
        "allow_bf16_reduced_precision_reduction": False,
    }
    found = {name: getattr(flags, name) for name in wanted}
    for name, value in wanted.items():
        setattr(flags, name, value)
    try:
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=True,
            deterministic=cudnn.deterministic,
            allow_tf32=precision == "tf32",
        ):
            yield
    finally:
        for name, value in found.items():
            setattr(flags, name, value)


@contextmanager
def _poisoned():
    """Fresh memory holds NaN while this context lasts."""
    enabled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which fills it, see torch.utils.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled)


def judge(ours: Product, peer: Product, a, b, truth: Truth) -> tuple[float, float]:
    """Returns the relative Frobenius errors of `ours` and `peer`, both the product of a and b.

    The result's memory holds NaN beforehand, and every element must be finite afterwards if its
    operands are. Whole rows are compared: at most MOST_ROWS of at most MOST_MATRICES matrices,
    spread evenly with the first and the last among them, since the reference costs more than the
    product. Raises Wrong if our result is outside the bound.
    """
    with _poisoned():
        out = ours()
    finite = a.isfinite().all(-1)[..., None] & b.isfinite().all(-2)[..., None, :]
    if left := int((~out.isfinite() & finite).sum()):
        raise Wrong(f"{left} of {out.numel()} elements not finite; its time is not reported")

    rows = _spread(a.shape[-2], MOST_ROWS, a.device)
    a_rows, ours_rows, peer_rows = a[..., rows, :], out[..., rows, :], peer()[..., rows, :]
    if a.dim() == 3:
        matrices = _spread(a.shape[0], MOST_MATRICES, a.device)
        a_rows, ours_rows, peer_rows, b = (x[matrices] for x in (a_rows, ours_rows, peer_rows, b))
    exact, bound = truth(a_rows, b)
    is_complex = exact.is_complex()
    if is_complex:  # each part of an element has a bound of its own
        exact, ours_rows, peer_rows = map(reference.parts, (exact, ours_rows, peer_rows))
    same = (ours_rows == exact) | (ours_rows.isnan() & exact.isnan())  # for Inf and NaN
    finite = exact.isfinite()
    excess = torch.where(finite, (ours_rows.double() - exact).abs() - bound, (~same).double())
    if bool((excess > 0).any()):
        worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        part = ("real", "imaginary")[worst[-1]] + " part of " if is_complex else ""
        *batch, row, column = worst[:-1] if is_complex else worst
        where = (*(int(matrices[matrix]) for matrix in batch), int(rows[row]), column)
        raise Wrong(
            f"{part}element {where} is {ours_rows[worst].item():.9g} where float64 says "
            f"{exact[worst].item():.9g} within {bound[worst].item():.2g}; its time is not reported"
        )
    error, peer_error = (
        reference.relative_error(rows.where(finite, 0), exact.where(finite, 0))
        for rows in (ours_rows, peer_rows)
    )
    return error, peer_error


def _spread(count: int, most: int, device: torch.device) -> torch.Tensor:
    steps = min(count, most)
    return torch.linspace(0, count - 1, steps, dtype=torch.float64, device=device).round().long()
