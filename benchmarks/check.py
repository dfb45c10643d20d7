"""Holds a kernel's result against float64 before its time is reported."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

# The reference and its bound are the tests' own: a kernel is timed by the rule it is tested by.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import reference

MOST_ROWS = 256
MOST_MATRICES = 16


@dataclass(frozen=True)
class Verdict:
    """Relative Frobenius errors, and what is wrong with our result, if anything is."""

    error: float
    peer_error: float
    fault: str | None


@contextmanager
def full_precision_peer(precision: str):
    """torch.matmul in the precision asked for, while this context lasts.

    TF32 for float32 only where the precision is "tf32", and no reduction in less than fp32 for
    the halves.
    """
    flags = torch.backends.cuda.matmul
    wanted = {
        "allow_tf32": precision == "tf32",
        "allow_fp16_reduced_precision_reduction": False,
        "allow_bf16_reduced_precision_reduction": False,
    }
    found = {name: getattr(flags, name) for name in wanted}
    for name, value in wanted.items():
        setattr(flags, name, value)
    try:
        yield
    finally:
        for name, value in found.items():
            setattr(flags, name, value)


def check(ours, peer, a, b, *, precision: str, algorithm: str) -> Verdict:
    """Runs `ours(a, b, out=)` and `peer(a, b)` once and judges them by float64.

    The output is full of NaN beforehand, and must be finite everywhere after. The elements are
    compared on whole rows: at most MOST_ROWS of at most MOST_MATRICES matrices, spread evenly
    with the first and the last among them, since the reference costs more than the product.
    """
    out = a.new_full((*a.shape[:-1], b.shape[-1]), float("nan"))
    ours(a, b, out=out)
    left = int((~out.isfinite()).sum())
    if left:
        return Verdict(float("nan"), float("nan"), f"{left} of {out.numel()} elements not finite")

    rows = _spread(a.shape[-2], MOST_ROWS, a.device)
    a_rows, ours_rows, peer_rows = a[..., rows, :], out[..., rows, :], peer(a, b)[..., rows, :]
    if a.dim() == 3:
        matrices = _spread(a.shape[0], MOST_MATRICES, a.device)
        a_rows, ours_rows, peer_rows, b = (
            tensor[matrices] for tensor in (a_rows, ours_rows, peer_rows, b)
        )
    exact = reference.product(a_rows, b)
    bound = reference.bound(a_rows, b, precision=precision, algorithm=algorithm)
    excess = (ours_rows.double() - exact).abs() - bound
    fault = None
    if bool((excess > 0).any()):
        worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        where = (*worst[:-2], int(rows[worst[-2]]), worst[-1])
        if a.dim() == 3:
            where = (int(matrices[worst[0]]), *where[1:])
        fault = (
            f"element {where} is {ours_rows[worst].item():.9g} where float64 says "
            f"{exact[worst].item():.9g} within {bound[worst].item():.2g}"
        )
    errors = (reference.relative_error(rows, exact) for rows in (ours_rows, peer_rows))
    return Verdict(*errors, fault)


def _spread(count: int, most: int, device: torch.device) -> torch.Tensor:
    steps = min(count, most)
    return torch.linspace(0, count - 1, steps, dtype=torch.float64, device=device).round().long()
