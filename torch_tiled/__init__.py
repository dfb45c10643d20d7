"""Matrix multiplication for PyTorch: many kernels, from naive to tensor cores, in one operator.

The functions are in ops.py, the layer in nn.py, whole models in convert.py, override.py and
inductor.py. _op/ is the plumbing of the operators in PyTorch's dispatcher.
"""

# First, since it checks torch's version and loads the shared library.
from torch_tiled import _op  # noqa: F401

# isort: split
from torch_tiled import inductor, nn
from torch_tiled.convert import convert, enabled, revert
from torch_tiled.frozen import freeze, frozen_bytes, refreeze, unfreeze
from torch_tiled.ops import algorithms, explain, gemm_, linear, matmul, prepare
from torch_tiled.override import override
from torch_tiled.prepared import Prepared
from torch_tiled.version import __version__, numerics_version

__all__ = [
    "Prepared",
    "__version__",
    "algorithms",
    "convert",
    "enabled",
    "explain",
    "freeze",
    "frozen_bytes",
    "gemm_",
    "inductor",
    "linear",
    "matmul",
    "nn",
    "numerics_version",
    "override",
    "prepare",
    "refreeze",
    "revert",
    "unfreeze",
]
