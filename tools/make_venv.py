"""Makes .venv, where the Makefile builds, tests and measures this checkout.

With torch 2.11 or later in the Python that runs this, the .venv sees what that Python sees, and
only what is missing is installed, into the .venv: the user's own environment stays as it is, and a
machine without a network will do. Otherwise torch and the rest are installed into the .venv.
"""

import os
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"

TORCH = "torch==2.13.0"
NEEDED = ["setuptools>=70.1", "pytest"]
# Without these the tests that use them are skipped.
WELCOME = ["expecttest", "hypothesis", "numpy"]


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(
            f"torch_tiled needs Python 3.11 or later, and {sys.executable} is "
            f"{sys.version.split()[0]}. Name another one: make PYTHON=python3.12 ..."
        )
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError:
        sys.exit(
            f"{sys.executable} cannot make virtual environments. On Debian or Ubuntu: "
            "apt install python3-venv. Or name another Python: make PYTHON=..."
        )

    torch = torch_here()
    if torch:
        print(f"torch_tiled: making {VENV} with torch {torch} of {sys.executable}.", flush=True)
    else:
        print(
            f"torch_tiled: making {VENV} with {TORCH}, because {sys.executable} has no torch 2.11 "
            "or later. On Linux PyPI's brings CUDA along, some gigabytes. To have another, say a "
            "CPU-only one, install it into that Python first.",
            flush=True,
        )
    venv.create(VENV, clear=True, with_pip=True, system_site_packages=bool(torch))
    packages = next((VENV / "lib").glob("python3.*/site-packages"))
    if (packages / "setuptools").exists():  # an old one that comes with pip and hides a newer one
        pip("uninstall", "--yes", "setuptools")
    write_paths(packages, see_this_python=bool(torch))

    if not pip("install", *(NEEDED if torch else [TORCH, *NEEDED])):
        sys.exit("torch_tiled: the packages above are needed and could not be installed.")
    if not pip("install", *WELCOME):
        print(
            f"torch_tiled: not all of {', '.join(WELCOME)} could be installed; tests that need "
            "the missing ones are skipped. To try again, delete .venv.",
            flush=True,
        )


def torch_here() -> str | None:
    """The version of this Python's torch, if it is new enough."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")
    except PackageNotFoundError:
        return None
    return torch if tuple(map(int, torch.split(".")[:2])) >= (2, 11) else None


def write_paths(packages: Path, see_this_python: bool) -> None:
    """Puts the checkout on the path, and this Python's packages if it is itself in a venv."""
    lines = [str(ROOT)]
    if see_this_python and sys.prefix != sys.base_prefix:  # a venv of a venv sees the base only
        lines += [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "torch_tiled_checkout.pth").write_text("\n".join(lines) + "\n")


def pip(command: str, *arguments: str) -> bool:
    """Runs the .venv's pip; whether all went well."""
    call = [VENV / "bin" / "python", "-m", "pip", command, "--quiet", *arguments]
    patience = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1"}
    return subprocess.run(call, env={**os.environ, **patience}).returncode == 0


if __name__ == "__main__":
    main()
