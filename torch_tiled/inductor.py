"""Offers torch_tiled's products to the autotuning of Inductor, torch.compile's code generator."""

import torch

from ._internals import InductorCandidates
from ._op.namespace import NAMESPACE, operators
from .version import __version__

__all__ = ["disable", "enable"]


def mm(a, b):
    return operators.matmul(a, b)


def bmm(a, b):
    return operators.matmul(a, b)


def addmm(bias, a, b):
    if bias.dim() == 2:  # torch 2.11 passes it expanded
        bias = bias[0]
    return operators.linear(a, b.mT, bias)


def _candidate(op, dtypes, strides, scalars):
    """Returns the function that computes aten::op of such operands, or None."""
    if set(dtypes) != {torch.float32}:
        return None
    if op == "addmm":  # of a linear layer, if its first operand is a vector
        is_bias = len(strides[0]) == 1 or strides[0][0] == 0
        return addmm if is_bias and scalars["alpha"] == scalars["beta"] == 1 else None
    return {"mm": mm, "bmm": bmm}.get(op)


_candidates = InductorCandidates(
    f"{NAMESPACE} {__version__}",
    {f"{NAMESPACE}_{f.__name__}": f for f in (mm, bmm, addmm)},
    _candidate,
)


def choices():
    """The value of torch._inductor.config.inductor_choices_class after enable()."""
    return _candidates.choices()


def enable() -> None:
    """Lets Inductor's autotuning choose torch_tiled's products if they are the fastest.

    With mode="max-autotune", torch.compile times PyTorch's own product and Triton's, and keeps the
    fastest. After this call it also times torch_tiled's for models that this thread compiles,
    forward and backward: mm, bmm, and addmm with a bias, of float32 operands, wherever it times
    PyTorch's own ("ATEN" in torch._inductor.config.max_autotune_gemm_backends).

    This is for models that are not converted. The fastest product may change from one compilation
    to the next, and with it the order of sums; torch_tiled.convert(model) and override() leave no
    such choice. AOTInductor is offered no candidates, since its packages contain no Python.

    Raises:
        RuntimeError: torch._inductor.config.inductor_choices_class is set to another class.

    Examples:
        >>> torch_tiled.inductor.enable()
        >>> model = torch.compile(torch.nn.Linear(64, 8), mode="max-autotune")
        >>> torch_tiled.inductor.disable()
    """
    _candidates.enable(choices)


def disable() -> None:
    """Undoes enable() for later compilations. Models that are compiled already keep their products.

    Examples:
        >>> torch_tiled.inductor.disable()
    """
    _candidates.disable(choices)
