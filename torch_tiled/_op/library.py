"""Loads _C.so, which defines the operators, when this module is imported.

Conditions that would crash the process, or end in a message of the dynamic linker, are checked
before the library is loaded, and raise an ImportError that says what to do.
"""

import platform
import re

import torch

from ..version import __version__
from .namespace import LIBRARY, NAMESPACE, operators


def _load() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        raise ImportError(
            f"torch_tiled {__version__} needs torch 2.11 or later, and this is torch "
            f"{torch.__version__}. Upgrade torch; torch_tiled itself need not be rebuilt."
        )
    if not LIBRARY.exists():
        raise ImportError(
            f"torch_tiled is not built: {LIBRARY} does not exist. In a checkout run `make build`; "
            "otherwise install with `pip install --no-build-isolation .`. Python started inside a "
            "checkout imports the checkout and not the installed package."
        )
    if hasattr(operators, "matmul"):
        raise ImportError(
            f"The operator {NAMESPACE}::matmul exists already, so {LIBRARY} cannot be loaded: this "
            "process has loaded a second copy of torch_tiled (an installed one and a checkout?). "
            f"Loaded so far: {', '.join(sorted(torch.ops.loaded_libraries)) or 'none'}. "
            "Uninstall one of them, or remove its folder from sys.path."
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        rebuild = "Rebuild"
        if needed := re.search(r"version `GLIBC_([\d.]+)' not found", str(error)):
            rebuild = (
                f"This system has glibc {platform.libc_ver()[1]}, and the library was built for "
                f"{needed[1]} or later. Install a wheel, which takes glibc 2.28, or rebuild"
            )
        raise ImportError(
            f"torch_tiled could not load {LIBRARY}: {error}. {rebuild} it on this machine with "
            "`pip install --no-build-isolation .` or, in a checkout, with `make build`."
        ) from error


if str(LIBRARY.resolve()) not in torch.ops.loaded_libraries:
    _load()
if not hasattr(operators, "matmul"):
    raise ImportError(
        f"{LIBRARY} has no operator {NAMESPACE}::matmul: it was built for another namespace than "
        f"the one in {LIBRARY.with_suffix('.json')}. Build it again, which writes both files."
    )
