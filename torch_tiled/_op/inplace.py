"""The kernels of the operators that write into an argument: matmul.out and gemm_.

In a graph, _gemm takes the place of a gemm_ of complex tensors: see functional.py. It is refused
derivatives in the same words.

Autograd
    raises if a derivative would flow through the write, which has none.
ADInplaceOrView
    counts the write in the tensor's version: autograd compares versions to notice that a saved
    tensor was overwritten.
"""

import functools

import torch
from torch.autograd.graph import increment_version

from .._internals import (
    AFTER_AUTOGRAD,
    AFTER_INPLACE,
    autocast_active,
    is_wrapped,
    redispatch_without_python,
    transforms_active,
)
from . import fast_path
from .fast_path import is_plain
from .gradient_flow import is_differentiated_in_graph, why_differentiated
from .lazy import resolve_for_python
from .namespace import operators
from .out_of_memory import raise_if_out_of_memory
from .sharding import register_if_needed

_matmul_out = operators.matmul.out
_gemm = operators.gemm_.default
_redispatch_matmul_out = redispatch_without_python(_matmul_out)
_redispatch_gemm = redispatch_without_python(_gemm)
_redispatch_functional_gemm = redispatch_without_python(operators._gemm.default)


# --- Autograd ------------------------------------------------------------------------------------


def _autograd_matmul_out(keyset, a, b, *, out, **options):
    register_if_needed()
    _refuse_derivatives("tiled::matmul", "out", a=a, b=b, out=out)
    try:
        a, b = resolve_for_python(a, b)
        _redispatch_matmul_out(keyset & AFTER_AUTOGRAD, a, b, out=out, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _autograd_gemm(redispatch, keyset, c, a, b, **options):
    register_if_needed()
    _refuse_derivatives("tiled::gemm_", "c", c=c, a=a, b=b)
    try:
        a, b = resolve_for_python(a, b)
        return redispatch(keyset & AFTER_AUTOGRAD, c, a, b, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def _refuse_derivatives(op, written, **tensors):
    if not is_differentiated_in_graph(*tensors.values()):
        return
    for name, tensor in tensors.items():
        if why := why_differentiated(tensor):
            raise RuntimeError(
                f"{op}: {written} is written in place, which has no derivative, but {name} of "
                f"shape {tuple(tensor.shape)} {why}; call torch_tiled.matmul or linear, which "
                f"are differentiable, or, if no derivative is needed, detach {name} first"
            )


def constant_factor(name, factor):
    """The number in a factor of gemm_ that is a tensor of one element."""
    if transforms_active() and is_wrapped(factor):
        raise RuntimeError(
            f"tiled::gemm_: {name} is a tensor that a transform of torch.func maps or "
            f"differentiates, and a factor is a constant; pass a number"
        )
    _refuse_derivatives("tiled::gemm_", "c", **{name: factor})
    return factor.item()


# --- ADInplaceOrView -----------------------------------------------------------------------------


def _record_matmul_out(keyset, a, b, *, out, **options):
    _refuse_inference_tensor("tiled::matmul", "out", out)
    _redispatch_matmul_out(keyset & AFTER_INPLACE, a, b, out=out, **options)
    _record_write(out)


def _record_gemm(keyset, c, a, b, **options):
    _refuse_inference_tensor("tiled::gemm_", "c", c)
    _redispatch_gemm(keyset & AFTER_INPLACE, c, a, b, **options)
    _record_write(c)


def _refuse_inference_tensor(op, written, tensor):
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{op}: {written} of shape {tuple(tensor.shape)} was made under "
            f"torch.inference_mode() and can't be written outside it; pass its clone(), which "
            f"then has the result"
        )


def _record_write(tensor):
    if not tensor.is_inference():
        increment_version(tensor)


# --- The fast path -------------------------------------------------------------------------------


def is_plain_write(written, a, b):
    """Returns whether nothing but the version of `written` can observe a product that it gets."""
    if not is_plain(written, a, b) or written.is_inference() or autocast_active():
        return False
    needs_grad = written.requires_grad or a.requires_grad or b.requires_grad
    return not (needs_grad and torch.is_grad_enabled())


def is_plain_gemm(c, a, b, alpha, beta):
    """is_plain_write() of gemm_, whose factors are floats, or integers that a float holds."""
    for factor in (alpha, beta):
        if type(factor) is not float and not (type(factor) is int and abs(factor) < 1 << 53):
            return False
    return is_plain_write(c, a, b)


def plain_matmul_out(a, b, out):
    """matmul.out without options, if is_plain_write(out, a, b)."""
    try:
        fast_path.matmul_out(a, b, out)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    increment_version(out)


def plain_gemm_(c, a, b, alpha, beta):
    """gemm_ without options, if is_plain_gemm(c, a, b, alpha, beta)."""
    try:
        fast_path.gemm_(c, a, b, alpha, beta)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise
    increment_version(c)


def register(library):
    library.impl("matmul.out", _autograd_matmul_out, "Autograd", with_keyset=True)
    for name, redispatch in (
        ("gemm_", _redispatch_gemm),
        ("_gemm", _redispatch_functional_gemm),
    ):
        kernel = functools.partial(_autograd_gemm, redispatch)
        library.impl(name, kernel, "Autograd", with_keyset=True)
    library.impl("matmul.out", _record_matmul_out, "ADInplaceOrView", with_keyset=True)
    library.impl("gemm_", _record_gemm, "ADInplaceOrView", with_keyset=True)
