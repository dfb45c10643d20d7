"""The operators on lazy views, whose values are conjugates or negatives of the numbers in memory.

Conjugate
    falls through to the next key: csrc reads the bit of a complex tensor, and multiplies by the
    numbers in memory with other signs.
Negative
    does the same for complex tensors, such as -x.conj(). Real ones, such as z.conj().imag, are
    resolved as by torch.matmul. PyTorch's own kernel would resolve complex operands as well, and a
    written tensor only if the operator returns it.
"""

import functools

import torch

from .._internals import DispatchKey, argument_names, redispatch_without_python
from .namespace import operators

_matmul, _linear = operators.matmul, operators.linear
_WRITTEN = ("c", "out")  # the names of tensors that operators write to


def _negative_kernel(op, keyset, *args, **options):
    names = argument_names(op)
    named = dict(zip(names, args, strict=False)) | options
    if any(isinstance(x, torch.Tensor) and x.is_complex() for x in named.values()):
        below = keyset.remove(DispatchKey.Negative)
        return redispatch_without_python(op)(below, *args, **options)
    resolved = {
        name: x.resolve_neg() if isinstance(x, torch.Tensor) else x for name, x in named.items()
    }
    positional = [resolved[name] for name in names[: len(args)]]
    result = op(*positional, **{name: resolved[name] for name in options})
    for name in _WRITTEN:
        if name in named and named[name].is_neg():
            named[name].copy_(resolved[name])
    return result


def register(library):
    for op in (
        *(_matmul.default, _matmul.out, _matmul.prepared, operators.gemm_.default),
        *(_linear.default, _linear.prepared, operators.prepare.default),
        *(operators._plain_matmul.default, operators._plain_linear.default),
        operators.explain.default,
    ):
        name = op._name.split("::")[1].removesuffix(".default")
        library.impl(name, torch.library.fallthrough_kernel, "Conjugate")
        library.impl(name, functools.partial(_negative_kernel, op), "Negative", with_keyset=True)
    library.impl("_is_conj", torch.library.fallthrough_kernel, "Negative")
