"""Installs a wheel into an environment with nothing but torch, and tries all that is public there.

    python tools/check_wheel.py dist/torch_tiled-*.whl
    python tools/check_wheel.py dist/torch_tiled-*.whl --python .venv/bin/python

By default the environment is a new one, into which torch is installed. With --python it has the
torch of that Python. The wheel goes into a folder of its own, so that no installed torch_tiled is
in its way.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
MOST_SECONDS = 20  # to install the wheel, where torch is there already

IMPORTS = """
import time
start = time.perf_counter()
import torch
torch_s = time.perf_counter() - start
import torch_tiled
print(f"import torch {torch_s:.2f} s, torch_tiled {time.perf_counter() - start - torch_s:.2f} s")
print(torch_tiled.__file__)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", type=Path, help="its torch, instead of a new environment's")
    args = parser.parse_args()
    wheel = args.wheel.resolve()
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = Path(folder)
        python = args.python.absolute() if args.python else bare_python(elsewhere / "venv")
        installed = elsewhere / "installed"
        start = time.perf_counter()
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed]
        run([*pip, wheel], elsewhere, {})
        seconds = time.perf_counter() - start
        print(f"installed {wheel.name} in {seconds:.1f} s")
        if seconds > MOST_SECONDS:
            sys.exit(f"the installation took more than {MOST_SECONDS} s")
        # -P: the folder of a script is not searched, so that nothing comes from the checkout.
        environment = {"PYTHONPATH": str(installed)}
        for command in (
            ["-c", IMPORTS],
            ["-m", "torch_tiled", "info"],
            ["-m", "torch_tiled", "trace", "4", "4", "4", "--html", "trace.html"],
            ["-P", TOOLS / "smoke.py", installed],
        ):
            run([python, *command], elsewhere, environment)


def bare_python(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", TORCH], folder, {})
    return python


def run(command: list, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
