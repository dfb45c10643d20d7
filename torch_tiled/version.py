"""The versions of the package and of the bits of its products."""

__version__ = "0.2.0"
"""The version of the package."""

numerics_version = 3
"""An integer that rises when a product of the same operands gets other bits."""
