"""`python -m torch_tiled trace`: what it counts, what it draws, and how it ends."""

import io
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from torch_tiled import __main__
from torch_tiled.trace import draw, trace

size = st.integers(1, 9)


def drawn(*sizes, width=100, **options) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    draw(trace(*sizes), console, **options)
    return console.file.getvalue()


def run(monkeypatch, *arguments) -> int:
    """Runs `python -m torch_tiled trace` in this process."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["torch_tiled", "trace", *arguments])
    return __main__.main()


@settings(deadline=None)
@given(m=size, n=size, k=size, tile=size)
def test_reads_and_products(m, n, k, tile):
    traced = trace(m, n, k, tile)
    assert traced.naive_reads == 2 * m * n * k
    down, across = math.ceil(m / tile), math.ceil(n / tile)
    assert traced.tiled_reads == m * k * across + k * n * down
    assert torch.equal(traced.c, traced.a @ traced.b)
    c = torch.full((down * tile, across * tile), -1)
    for phase in traced.phases:  # the last of a block remains
        c[phase.row : phase.row + tile, phase.col : phase.col + tile] = phase.sums
    assert torch.equal(c[:m, :n], traced.c)
    assert not c[m:].any() and not c[:, n:].any()


@settings(deadline=None)
@given(m=size, n=size, k=size, tile=size)
def test_phases_are_tiles_padded_with_zeros(m, n, k, tile):
    traced = trace(m, n, k, tile)
    a = torch.nn.functional.pad(traced.a, (0, tile, 0, tile))
    b = torch.nn.functional.pad(traced.b, (0, tile, 0, tile))
    sums = torch.zeros(tile, tile, dtype=a.dtype)
    for phase in traced.phases:
        rows, cols, along = (slice(at, at + tile) for at in (phase.row, phase.col, phase.k))
        assert torch.equal(phase.a, a[rows, along]) and torch.equal(phase.b, b[along, cols])
        sums = (0 if phase.k == 0 else sums) + phase.a @ phase.b
        assert torch.equal(phase.sums, sums)


@pytest.mark.parametrize("name, value", [("m", 0), ("n", -1), ("k", 0), ("tile", 0)])
def test_sizes_are_positive(name, value):
    sizes = {"m": 2, "n": 2, "k": 2, "tile": 2, name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}; .* of at least 1"):
        trace(**sizes)


def test_draws_tiles_and_reads():
    text = drawn(4, 4, 4, 2)
    assert text.count("the block of C[") == 4
    assert text.count("phase 1 of 2") == text.count("phase 2 of 2") == 4
    for title in ("A[0:2, 0:2]", "B[2:4, 0:2]", "C[2:4, 2:4]"):
        assert title in text
    lines = [line.split() for line in text.splitlines()]
    assert ["naive", "8", "128", "0.5"] in lines
    assert ["tiled,", "2", "4", "64", "1"] in lines
    assert "(0)" not in text


def test_draws_the_zeros_that_pad_ragged_edges():
    text = drawn(1, 1, 3, 2)
    assert "C[0:1, 0:1]" in text and "A[0:1, 2:3]" in text
    # Two tiles of A are padded with 2 and 3 zeros, so are those of B, and both of sums with 3.
    assert text.count("(0)") == 2 + 3 + 2 + 3 + 3 + 3


def test_draws_some_blocks_of_many_or_all():
    some = drawn(10, 10, 4, 2)
    assert some.count("the block of C[") == 8
    assert "and 34 phases more, which --all draws" in some
    every = drawn(10, 10, 4, 2, every=True)
    assert every.count("the block of C[") == 25 and "--all" not in every
    assert drawn(2, 4, 100, 2).count("phase ") == 50  # one block at least, whole


@pytest.mark.parametrize("width", [20, 40, 80])
def test_fits_the_terminal(width):
    assert max(map(len, drawn(5, 40, 7, 3, width=width).splitlines())) <= width


def test_command(monkeypatch, capsys):
    command = [sys.executable, "-m", "torch_tiled", "trace", "4", "4", "4", "--tile", "2"]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == drawn(4, 4, 4, 2, width=80)
    assert run(monkeypatch, "10", "10", "4", "--all") == 0
    assert capsys.readouterr().out.count("the block of C[") == 25


@pytest.mark.parametrize("bad", ["0", "-1", "2.5", "x"])
def test_command_refuses_what_is_no_size(monkeypatch, capsys, bad):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "4", "4", "4", f"--tile={bad}")
    assert stop.value.code == 2
    assert f"{bad} is not a size; give a whole number from 1" in capsys.readouterr().err


def test_command_says_what_is_missing(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert run(monkeypatch, "2", "2", "2") == 1
    captured = capsys.readouterr()
    assert "draws with rich, which is not installed: pip install rich" in captured.err
    assert not captured.out
