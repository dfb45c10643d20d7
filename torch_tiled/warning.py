"""Warnings that name the line they are about."""

import sys
import warnings


def warn(text: str) -> None:
    """Warns of the innermost line outside of torch and this package."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_theirs(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_theirs(module: str | None) -> bool:
    """Whether a module is torch's or ours. Code that torch has generated is in none."""
    return module is None or module.partition(".")[0] in ("torch", __package__)
