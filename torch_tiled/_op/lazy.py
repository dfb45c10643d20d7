"""The operators on lazy views: their values are conjugates or negatives of the numbers in memory.

csrc reads the bits of complex tensors, and multiplies by the numbers in memory with other signs. So
a complex tensor falls through the key Conjugate, and passes Negative, which it may have as well:
-x.conj() is such a view.

Two kinds of tensors are resolved here as by torch.matmul, and written tensors get the result:
- real ones with the bit of a negative, such as z.conj().imag;
- complex ones that an operator writes to, or reads while it writes, if Python passes them on,
  unless they are traced.
"""

import functools
import sys

import torch

from .._internals import (
    DispatchKey,
    argument_names,
    dispatch_modes,
    keys_after,
    redispatch_without_python,
)
from .namespace import operators
from .supported import PLAIN_TYPES, is_traced

_matmul, _linear = operators.matmul, operators.linear
_WRITING = {  # and the name of what is written
    _matmul.out: "out",
    operators._plain_matmul_out.default: "out",
    operators.gemm_.default: "c",
    operators._plain_gemm_.default: "c",
}
_READING = (
    *(_matmul.default, _matmul.prepared, _linear.default, _linear.prepared),
    *(operators.prepare.default, operators.explain.default, operators._gemm.default),
    *(operators._plain_matmul.default, operators._plain_linear.default),
    operators._plain_linear.prepared,
    *(operators.grouped_mm.default, operators._plain_grouped_mm.default),
    *(operators._multiply_into_.default, operators._add_chunk_.default),  # to plain tensors
)


def _reads_bits(op, tensors):
    """Returns whether csrc gets these tensors as they are, and reads their bits."""
    if not any(x.is_complex() for x in tensors):
        return False
    is_read_alone = not dispatch_modes() and all(type(x) in PLAIN_TYPES for x in tensors)
    return op not in _WRITING or is_read_alone or all(map(is_traced, tensors))


def resolve_for_python(*tensors):
    """Resolves lazy views that Python would pass on: in a TorchDispatchMode, and DTensors.

    PyTorch excludes the keys Conjugate and Negative there. So csrc could not ask for the bits, and
    DTensor of torch 2.13 loses them when it divides a tensor into addends or gathers its shards.
    Tensors that are traced keep them for the graph.
    """
    if not (dispatch_modes() or "torch.distributed.tensor" in sys.modules):
        return tensors
    return tuple(_resolve(x) if _is_passed_on(x) else x for x in tensors)


def _is_passed_on(x):
    if x is None or x.layout is not torch.strided or is_traced(x):
        return False
    return dispatch_modes() > 0 or type(x) not in PLAIN_TYPES


def _resolve(x):
    return x.resolve_conj().resolve_neg()


def _kernel(op, below, keyset, *args, **options):
    names = argument_names(op)
    named = dict(zip(names, args, strict=False)) | options
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    if _reads_bits(op, tensors.values()):
        return redispatch_without_python(op)(keyset & below, *args, **options)
    resolved = named | {name: _resolve(x) for name, x in tensors.items()}
    positional = [resolved[name] for name in names[: len(args)]]
    result = op(*positional, **{name: resolved[name] for name in options})
    written = _WRITING.get(op)
    if written and resolved[written] is not named[written]:
        named[written].copy_(resolved[written])
    return result


def register(library):
    after = {name: keys_after(getattr(DispatchKey, name)) for name in ("Conjugate", "Negative")}
    for op in (*_READING, *_WRITING):
        name = op._name.split("::")[1].removesuffix(".default")
        for key, below in after.items():
            if key == "Conjugate" and op in _READING:
                library.impl(name, torch.library.fallthrough_kernel, key)
            else:
                kernel = functools.partial(_kernel, op, below)
                library.impl(name, kernel, key, with_keyset=True)
    library.impl("_conj_bit", torch.library.fallthrough_kernel, "Negative")
