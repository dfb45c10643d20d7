"""Matrix multiplication for PyTorch: a ladder of kernels behind one operator."""

from pathlib import Path

import torch

from torch_tiled.version import __version__

_LIBRARY = Path(__file__).resolve().with_name("_C.so")


def _load() -> None:
    """Loads the C++ operators, once a process.

    Everything that would take the process down, or end in a linker's words, is found out before.
    """
    if str(_LIBRARY) in torch.ops.loaded_libraries:
        return
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        raise ImportError(
            f"torch_tiled {__version__} needs torch 2.11 or later, and this is torch "
            f"{torch.__version__}. Upgrade torch; torch_tiled itself need not be built again."
        )
    if not _LIBRARY.exists():
        raise ImportError(
            f"torch_tiled is not built: {_LIBRARY} does not exist. In a checkout run `make build`, "
            "or install with `pip install --no-build-isolation .`, and mind that Python started "
            "in a checkout imports that one rather than what is installed."
        )
    if hasattr(torch.ops.tiled, "matmul"):
        raise ImportError(
            f"The operator tiled::matmul exists already, so {_LIBRARY} cannot be loaded: this "
            "process has loaded a second copy of torch_tiled (an installed one and a checkout?). "
            f"Loaded so far: {', '.join(sorted(torch.ops.loaded_libraries)) or 'none'}. "
            "Uninstall one, or take its folder off sys.path."
        )
    try:
        torch.ops.load_library(str(_LIBRARY))
    except OSError as error:
        raise ImportError(
            f"torch_tiled could not load {_LIBRARY}: {error}. Build it again on this machine "
            "with `pip install --no-build-isolation .` or, in a checkout, with `make build`."
        ) from error


_load()

from torch_tiled import inductor, nn  # noqa: E402
from torch_tiled.conversion import convert, enabled, revert  # noqa: E402
from torch_tiled.nn import freeze, frozen_bytes, unfreeze  # noqa: E402
from torch_tiled.ops import algorithms, explain, gemm_, linear, matmul, prepare  # noqa: E402
from torch_tiled.prepared import Prepared  # noqa: E402
from torch_tiled.rerouting import override  # noqa: E402

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
    "override",
    "prepare",
    "revert",
    "unfreeze",
]
