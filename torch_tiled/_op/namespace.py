"""The operators' namespace in PyTorch's dispatcher: "tiled", or another that the build was given.

Two copies of this package share a process if their namespaces differ. setup.py records a library's
namespace in _C.json; one without a record has the default. library.py checks that it is right.
"""

import json
from pathlib import Path

import torch

__all__ = ["LIBRARY", "NAMESPACE", "name_in_texts", "operators"]

# Links are not followed: in a cache of downloads each file may be one, into a folder of blobs.
LIBRARY = Path(__file__).absolute().parents[1] / "_C.so"


def _recorded() -> str:
    try:
        return json.loads(LIBRARY.with_suffix(".json").read_text())["namespace"]
    except (OSError, ValueError, KeyError):
        return "tiled"


NAMESPACE = _recorded()
operators = getattr(torch.ops, NAMESPACE)  # torch.ops.tiled


def name_in_texts(op) -> str:
    """Returns the name that error texts give to an overload's operator, such as "tiled::matmul".

    It is the same in every namespace.
    """
    return "tiled::" + op.name().partition("::")[2].partition(".")[0]
