"""Raises torch.OutOfMemoryError for the shared library, which can only raise RuntimeError.

PyTorch's stable ABI carries an exception's text and not its type.
"""

import re

import torch

_OUT_OF_MEMORY = re.compile(r"tiled::\w+: out of memory: ")


def raise_if_out_of_memory(error):
    """Raises a torch.OutOfMemoryError with error's text if that says that memory ran out."""
    if type(error) is RuntimeError and _OUT_OF_MEMORY.match(str(error)):
        raise torch.OutOfMemoryError(str(error)) from None
