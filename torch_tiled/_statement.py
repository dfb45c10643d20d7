"""Modes of functions of PyTorch that are decorators, too, as torch.no_grad is."""

import functools
import inspect
from collections.abc import Callable

from torch.overrides import TorchFunctionMode

__all__ = ["Statement"]


class Statement(TorchFunctionMode):
    """A with statement of a precision; as a decorator, one around each call of a function."""

    precision: str
    strict: bool

    def __call__(self, function: Callable) -> Callable:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise RuntimeError(
                f"torch_tiled.{type(self).__name__}: {function.__name__} is a generator or a "
                f"coroutine, whose body runs after the call; write the with statement in it"
            )
        statement, precision, strict = type(self), self.precision, self.strict

        @functools.wraps(function)
        def call(*args, **kwargs):
            with statement(precision, strict=strict):
                return function(*args, **kwargs)

        return call
