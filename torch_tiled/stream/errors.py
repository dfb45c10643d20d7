"""The sentences of bad arguments."""

import functools

__all__ = ["fail", "named"]


class _BadArgument(RuntimeError):
    """A sentence that does not begin with the function's name yet."""


def fail(sentence):
    """Raises the RuntimeError of a bad argument; the function that was called adds its name."""
    raise _BadArgument(sentence) from None


def named(function):
    """Makes the sentences that `fail` raises in a public function begin with its name."""

    @functools.wraps(function)
    def call(*args, **options):
        try:
            return function(*args, **options)
        except _BadArgument as error:
            raise RuntimeError(f"torch_tiled.stream.{function.__name__}: {error}") from None

    return call
