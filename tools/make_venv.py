"""Makes .venv, where the Makefile builds, tests and measures this checkout.

    python tools/make_venv.py .venv
    python tools/make_venv.py .venv-2.14.1 2.14.1    to test with that torch

With torch 2.11 or later, or the one that is named, in the Python that runs this, the environment
sees what that Python sees, and only what is missing is installed, into the environment: the user's
own stays as it is, and a machine without a network will do. Otherwise torch and the rest are
installed into the environment.
"""

import argparse
import os
import site
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OLDEST_TORCH = "torch>=2.11"
TORCH = "2.13.0"
NEEDED = ["setuptools>=70.1", "pytest", "pytest-xdist"]
WELCOME = [
    "expecttest",
    "hypothesis",
    "ipykernel",
    "kernels>=0.17",
    "matplotlib",
    "nbclient",
    "numpy",
    "opt_einsum",
    "rich",
    "scikit-learn",
    "transformers",
]


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(
            f"torch_tiled needs Python 3.11 or later, and {sys.executable} is "
            f"{sys.version.split()[0]}. Name another one: make PYTHON=python3.12 ..."
        )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="the environment, in the checkout")
    parser.add_argument("torch", nargs="?", help="its version of torch; without, 2.11 or later")
    args = parser.parse_args()
    folder, wanted = ROOT / args.folder, args.torch
    torch = installed(OLDEST_TORCH)
    if wanted and torch and wanted not in (torch, torch.partition("+")[0]):
        torch = None
    to_install = f"torch=={wanted or TORCH}"
    needed, welcome = [to_install, *NEEDED], WELCOME
    if torch:
        say(f"making {folder} with torch {torch} of {sys.executable}.")
        needed = [package for package in NEEDED if not installed(package)]
        welcome = [package for package in WELCOME if not installed(package)]
    else:
        say(
            f"making {folder} with {to_install}, because {sys.executable} has no torch "
            f"{wanted or '2.11 or later'}. On Linux PyPI's brings CUDA along, some gigabytes; to "
            "have another, say a CPU-only one, install it into that Python first."
        )
    make(folder, see_this_python=bool(torch))

    if needed and not pip(folder, "install", *needed):
        sys.exit(f"torch_tiled needs {', '.join(needed)}, which could not be installed.")
    if welcome and not pip(folder, "install", *welcome):
        say(
            f"could not install {', '.join(welcome)}: tests that need them are skipped. "
            f"To try again, delete {folder.name}."
        )


def say(line: str) -> None:
    print(f"torch_tiled: {line}", flush=True)


def installed(package: str) -> str | None:
    """The version of a package, given as name or name>=major.minor, that this Python has."""
    name, _, oldest = package.partition(">=")
    try:
        found = version(name)
    except PackageNotFoundError:
        return None
    return found if numbers(found) >= numbers(oldest) else None


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")[:2] if part.isdigit()]


def make(folder: Path, see_this_python: bool) -> None:
    """Makes the environment: the checkout on its path, and this Python's packages if asked for."""
    with_pip = find_spec("ensurepip") is not None
    if not with_pip and not (see_this_python and find_spec("pip")):
        sys.exit(
            f"{sys.executable} cannot make virtual environments with pip in them. On Debian or "
            "Ubuntu: apt install python3-venv. Or name another Python: make PYTHON=..."
        )
    venv.create(folder, clear=True, with_pip=with_pip, system_site_packages=see_this_python)
    packages = next((folder / "lib").glob("python3.*/site-packages"))
    if (packages / "setuptools").exists():  # an old one that comes with pip and hides a newer one
        pip(folder, "uninstall", "--yes", "setuptools")
    lines = [str(ROOT)]
    if see_this_python and sys.prefix != sys.base_prefix:  # a venv of a venv sees the base only
        lines += [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "torch_tiled_checkout.pth").write_text("\n".join(lines) + "\n")


def pip(folder: Path, command: str, *arguments: str) -> bool:
    """Runs the environment's pip; whether all went well."""
    call = [folder / "bin" / "python", "-m", "pip", command, "--quiet", *arguments]
    patience = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1"}
    return subprocess.run(call, env={**os.environ, **patience}).returncode == 0


if __name__ == "__main__":
    main()
