"""The sentences of bad arguments, and what several arguments are checked for."""

import functools
import operator

from .._internals import keep_out_of_graphs

__all__ = ["fail", "public", "shown", "whole_number"]


class _BadArgument(RuntimeError):
    """A sentence that does not begin with the function's name yet."""


def fail(sentence):
    """Raises the RuntimeError of a bad argument; the function that was called adds its name."""
    raise _BadArgument(sentence) from None


def public(function):
    """Makes the sentences that `fail` raises in a public function begin with its name.

    torch.compile breaks the graph at a call of it.
    """

    @functools.wraps(function)
    def call(*args, **options):
        try:
            return function(*args, **options)
        except _BadArgument as error:
            raise RuntimeError(f"torch_tiled.stream.{function.__name__}: {error}") from None

    keep_out_of_graphs(call, "torch_tiled.stream is no operator")
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
