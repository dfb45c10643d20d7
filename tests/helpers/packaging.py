"""Commands in processes of their own, for tests of the build and of what it builds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command, cwd=ROOT, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )


def output_of(*command, **options) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_cuda(folder: Path) -> dict[str, str]:
    """The environment of a build without CUDA and without optimization, which takes seconds."""
    return {"CUDA_HOME": str(folder), "TORCH_TILED_CUDA": "auto", "DEBUG": "1"}


def binutils(*command) -> str:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} (binutils)")
    return output_of(*command)


def undefined_symbols(library: Path) -> list[str]:
    """The symbols that a library imports: name, or name@VERSION if theirs has versions."""
    lines = binutils("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", library)
    return [line.split()[-1] for line in lines.splitlines()]


def needed_libraries(library: Path) -> set[str]:
    """The libraries that a library loads, without the versions in their names."""
    dynamic = binutils("readelf", "--dynamic", "--wide", library)
    return {name.split(".so")[0] for name in re.findall(r"NEEDED.*\[(.+)\]", dynamic)}


def python(code: str, *arguments, **options) -> str:
    """What a Python process prints for the code, which sees this checkout and its tests."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
    options = {"PYTHONPATH": path} | options
    return output_of(sys.executable, "-W", "ignore", "-c", code, *arguments, **options)
