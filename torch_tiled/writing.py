"""What is particular to the operators that write into an argument: matmul.out and gemm_.

They have no derivative, so at the Autograd key they refuse where one is asked for. At the key
ADInplaceOrView they record the write, so that autograd notices a saved tensor that was overwritten.
At the key Negative they resolve lazy negation, as in z.conj().imag: for operands PyTorch does it,
for what is written only where an operator returns it.
"""

import torch
from torch.autograd.graph import increment_version

from ._internals import (
    AFTER_AUTOGRAD,
    AFTER_INPLACE,
    redispatch_without_python,
)
from .autograd import differentiated, what_flows
from .errors import raise_if_out_of_memory
from .sharding import register_if_needed

_matmul_out = torch.ops.tiled.matmul.out
_gemm = torch.ops.tiled.gemm_.default
_redispatch_matmul_out = redispatch_without_python(_matmul_out)
_redispatch_gemm = redispatch_without_python(_gemm)


def matmul_out(keyset, a, b, *, out, **options):
    register_if_needed()
    _refuse_derivatives("tiled::matmul", "out", a=a, b=b, out=out)
    try:
        _redispatch_matmul_out(keyset & AFTER_AUTOGRAD, a, b, out=out, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def gemm_(keyset, c, a, b, **options):
    register_if_needed()
    _refuse_derivatives("tiled::gemm_", "c", c=c, a=a, b=b)
    try:
        _redispatch_gemm(keyset & AFTER_AUTOGRAD, c, a, b, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _refuse_derivatives(op, written, **operands):
    if not differentiated(*operands.values()):
        return
    for name, tensor in operands.items():
        if trouble := what_flows(tensor):
            raise RuntimeError(
                f"{op}: {written} is written in place, which has no derivative, but {name} of "
                f"shape {tuple(tensor.shape)} {trouble}; call torch_tiled.matmul or linear, which "
                f"are differentiable, or detach {name} first"
            )


def record_matmul_out(keyset, a, b, *, out, **options):
    _refuse_inference_tensor("tiled::matmul", "out", out)
    _redispatch_matmul_out(keyset & AFTER_INPLACE, a, b, out=out, **options)
    _record_write(out)


def record_gemm_(keyset, c, a, b, **options):
    _refuse_inference_tensor("tiled::gemm_", "c", c)
    _redispatch_gemm(keyset & AFTER_INPLACE, c, a, b, **options)
    _record_write(c)


def _refuse_inference_tensor(op, written, tensor):
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{op}: {written} of shape {tuple(tensor.shape)} was made under "
            f"torch.inference_mode() and can't be written outside it; clone it first"
        )


def _record_write(tensor):
    if not tensor.is_inference():
        increment_version(tensor)


def negative_gemm_(c, a, b, **options):
    resolved = c.resolve_neg()
    _gemm(resolved, a.resolve_neg(), b.resolve_neg(), **options)
    if c.is_neg():
        c.copy_(resolved)


def negative_matmul_out(a, b, *, out, **options):
    resolved = out.resolve_neg()
    _matmul_out(a.resolve_neg(), b.resolve_neg(), out=resolved, **options)
    if out.is_neg():
        out.copy_(resolved)


def register(library):
    library.impl("matmul.out", matmul_out, "Autograd", with_keyset=True)
    library.impl("gemm_", gemm_, "Autograd", with_keyset=True)
    library.impl("matmul.out", record_matmul_out, "ADInplaceOrView", with_keyset=True)
    library.impl("gemm_", record_gemm_, "ADInplaceOrView", with_keyset=True)
    library.impl("matmul.out", negative_matmul_out, "Negative")
    library.impl("gemm_", negative_gemm_, "Negative")
