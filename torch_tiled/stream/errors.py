"""The sentences of bad arguments, and what several arguments are checked for."""

import functools
import operator
import sys

import torch

__all__ = ["fail", "public", "shown", "whole_number"]


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
