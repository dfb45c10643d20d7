"""The sentences of bad arguments, and what several arguments are checked for."""

import functools
import operator
import sys

import torch

from .._op.layouts import why_not_dense
from .._op.supported import PLAIN_TYPES

__all__ = ["fail", "public", "shown", "whole_number", "why_not_plain"]

# PyTorch's subclasses without their elements in as_subclass(), and the expression that does.
_REMEDIES = {
    "AsyncCollectiveTensor": "pass {0}.wait()",
    "DTensor": "pass {0}.full_tensor(), or {0}.to_local(), the part of this process",
    "FakeTensor": "pass a tensor with elements, or to torch_tiled.stream.plan one on meta",
    "FunctionalTensor": "call it outside of torch.compile and torch.export",
    "MaskedTensor": "pass {0}.to_tensor(0), with zeros where the mask is False",
}


class _BadArgument(RuntimeError):
    """A sentence that does not begin with the function's name yet."""


def fail(sentence):
    """Raises the RuntimeError of a bad argument; the function that was called adds its name."""
    raise _BadArgument(sentence) from None


def public(function):
    """Makes the sentences that `fail` raises in a public function begin with its name.

    torch.compile breaks the graph at a call of it, and compiles nothing within.
    """

    @functools.wraps(function)
    def call(*args, **options):
        target = function
        if "torch._dynamo" in sys.modules:  # which torch.compiler.disable() takes seconds to import
            target = torch.compiler.disable(function, reason="torch_tiled.stream is no operator")
        try:
            return target(*args, **options)
        except _BadArgument as error:
            raise RuntimeError(f"torch_tiled.stream.{function.__name__}: {error}") from None

    return call


def shown(value):
    """The value as it is written in Python, in one line."""
    return " ".join(repr(value).split())


def whole_number(value):
    """The int that a value is, or None. A bool counts as none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def why_not_plain(name, x):
    """Returns why a tensor cannot be streamed by its strides, and the remedy; or None."""
    kind = type(x).__qualname__
    if kind in _REMEDIES:
        return f"is a {kind}; {_REMEDIES[kind].format(name)}"
    if found := why_not_dense(name, x):
        return "is a {}; use {}".format(*found)
    if type(x) not in PLAIN_TYPES:
        return f"is a {kind}, a subclass of torch.Tensor; pass {name}.as_subclass(torch.Tensor)"
    return None
