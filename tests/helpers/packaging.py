"""Commands in processes of their own, for tests of the build and of what it builds."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command, cwd=ROOT, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(*command, **options) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_cuda(folder: Path) -> dict[str, str]:
    """The environment of a build without CUDA and without optimization, which takes seconds."""
    return {"CUDA_HOME": str(folder), "TORCH_TILED_CUDA": "auto", "DEBUG": "1"}
