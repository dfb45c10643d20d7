"""`python -m torch_tiled`: absurd sizes, a terminal of ASCII, and a pipe that closes."""

import os
import subprocess
import sys

import pytest

from torch_tiled.trace import trace

COMMAND = sys.executable, "-m", "torch_tiled"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments, **variables):
    environment = os.environ | {"COLUMNS": "80"} | variables
    command = [*COMMAND, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    "sizes, counted",
    [
        ((9999, 9999, 9999, 2), "99980001 elements and 125000000000 phases"),
        ((1, 1, 16384, 1), "1 elements and 16384 phases"),
        ((1, 1, 1, 4096), "1 elements and 1 phases"),
        ((10**30, 1, 1, 2), f"{10**30} elements and {10**30 // 2} phases"),
    ],
)
def test_too_large_to_trace(sizes, counted):
    with pytest.raises(ValueError, match=f"has {counted}; at most 16384 of both together"):
        trace(*sizes)


def test_command_refuses_what_is_too_large():
    done = run("trace", "9999", "9999", "9999")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(b"a product (9999, 9999) (9999, 9999) in tiles of 2 x 2 has")
    done = run("trace", "9" * 5000, "1", "1")
    assert done.returncode == 2
    assert b"is not a size; give a whole number from 1 to 16384" in done.stderr


@pytest.mark.parametrize("columns", ["20", "80"])
def test_ascii(columns):
    for arguments in (("trace", "3", "40", "3", "--all"), ("info",)):
        done = run(*arguments, COLUMNS=columns, **ASCII)
        assert done.returncode == 0 and not done.stderr
        assert done.stdout.isascii()


@pytest.mark.parametrize("arguments", ["trace 8 8 8 --all", "info", "info --json"])
def test_a_pipe_that_closes(arguments):
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, *arguments.split()]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=120)
    os.close(write)
    assert done.returncode == 1 and not done.stderr
