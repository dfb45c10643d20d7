"""Matrix multiplication for PyTorch: many kernels, from naive to tensor cores, in one operator.

The functions are in ops.py, the layer and attention in nn/, whole models in convert.py,
override.py, inductor.py and layers.py, and a check of models in invariance.py. _op/ is the plumbing
of the operators in PyTorch's dispatcher.
"""

# First, since it checks torch's version and loads the shared library.
from . import _op  # noqa: F401

# isort: split
from . import attention, experts, inductor, layers, nn, stream
from .convert import convert, enabled, revert
from .frozen import freeze, frozen_bytes, refreeze, unfreeze
from .grouped import grouped_mm, segment_matmul
from .invariance import invariance
from .invariant import invariant
from .ops import algorithms, explain, gemm_, linear, matmul, prepare
from .override import override
from .prepared import Prepared
from .version import __version__, numerics_version

__all__ = [
    "Prepared",
    "__version__",
    "algorithms",
    "attention",
    "convert",
    "enabled",
    "experts",
    "explain",
    "freeze",
    "frozen_bytes",
    "gemm_",
    "grouped_mm",
    "inductor",
    "invariance",
    "invariant",
    "layers",
    "linear",
    "matmul",
    "nn",
    "numerics_version",
    "override",
    "prepare",
    "refreeze",
    "revert",
    "segment_matmul",
    "stream",
    "unfreeze",
]
