"""Warnings that name the line they are about."""

import sys
import warnings


def warn(text: str) -> None:
    """Warns, and names the innermost line outside of torch and this package as the cause."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_internal(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_internal(module: str | None) -> bool:
    """Returns whether a module is of torch or this package; None is code that torch generated."""
    return module is None or f"{module}.".startswith(("torch.", f"{__package__}."))
