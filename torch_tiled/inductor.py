"""torch_tiled's products among those that Inductor's autotuning chooses from."""

import torch

from ._internals import InductorCandidates
from .version import __version__

__all__ = ["disable", "enable"]


def tiled_mm(a, b):
    return torch.ops.tiled.matmul(a, b)


def tiled_bmm(a, b):
    return torch.ops.tiled.matmul(a, b)


def tiled_addmm(bias, a, b):
    if bias.dim() == 2:  # torch 2.11 has it expanded
        bias = bias[0]
    return torch.ops.tiled.linear(a, b.mT, bias)


def _candidate(op, dtypes, strides, scalars):
    """What computes aten::op of operands of these dtypes and strides, or None."""
    if set(dtypes) != {torch.float32}:
        return None
    if op == "addmm":  # a linear layer's
        is_bias = len(strides[0]) == 1 or strides[0][0] == 0
        return tiled_addmm if is_bias and scalars["alpha"] == scalars["beta"] == 1 else None
    return {"mm": tiled_mm, "bmm": tiled_bmm}.get(op)


_candidates = InductorCandidates(
    f"torch_tiled {__version__}", (tiled_mm, tiled_bmm, tiled_addmm), _candidate
)


def choices():
    """What torch._inductor.config.inductor_choices_class calls while this is enabled."""
    return _candidates.choices()


def enable() -> None:
    """Lets Inductor's autotuning choose torch_tiled's products where they are the fastest.

    With mode="max-autotune" torch.compile times PyTorch's own product and Triton's, and keeps the
    fastest. From now on torch_tiled's are timed too, in what this thread compiles, forward and
    backward: mm, bmm, and addmm with a bias, of float32 operands, wherever PyTorch's own are
    ("ATEN" in torch._inductor.config.max_autotune_gemm_backends).

    This is for models that are compiled as they are. Which product is the fastest may change from
    one compilation to the next, and with it the order of sums: torch_tiled.convert(model) and
    override() leave no such choice. AOTInductor, whose packages have no Python, is offered none.

    Raises:
        RuntimeError: torch._inductor.config.inductor_choices_class is somebody else's.

    Example::

        >>> torch_tiled.inductor.enable()
        >>> model = torch.compile(model, mode="max-autotune")
    """
    _candidates.enable(choices)


def disable() -> None:
    """Undoes enable(), for what is compiled from now on. What was compiled stays as it is.

    Example::

        >>> torch_tiled.inductor.disable()
    """
    _candidates.disable(choices)
