"""Another torch: an environment of its own, on the library that .venv builds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def commands(*arguments):
    """What make would run, in a checkout without environments."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    command = ["make", "--dry-run", "--always-make", *arguments]
    own = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", ["test", "bench"])
def test_a_named_torch_has_an_environment_and_shares_the_library(target):
    """`pip install torch` brings a newer torch than .venv has, and tests were tied to .venv."""
    ran = commands(target, "TORCH=2.14.1")
    assert [line for line in ran if line.endswith("tools/make_venv.py .venv-2.14.1 2.14.1")]
    assert ran[-1].startswith(".venv-2.14.1/bin/python ")
    builds = [line for line in ran if "build_ext" in line]
    assert [line.split()[0] for line in builds] == [".venv/bin/python"]


@pytest.mark.parametrize("target", ["test", "bench"])
def test_without_a_name_there_is_one_environment(target):
    assert not [line for line in commands(target) if ".venv-" in line]
