"""`python -m torch_tiled trace --html`: the page, its warps, and files that cannot be written."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tiled import __main__
from torch_tiled._trace_page import page, simulate
from torch_tiled.trace import trace

size = st.integers(1, 7)


def run(monkeypatch, *arguments) -> int:
    """Runs `python -m torch_tiled trace` in this process."""
    monkeypatch.setattr(sys, "argv", ["torch_tiled", "trace", *map(str, arguments)])
    return __main__.main()


def stored(traced, steps) -> torch.Tensor:
    """C as the steps store it."""
    c, half = torch.full_like(traced.c, -1), -(-traced.tile // 2)
    for step in steps:
        if step["name"] == "store":
            phase, rows = traced.phases[step["phase"]], step["c"]
            for row, values in enumerate(rows, start=phase.row + step["warp"] * half):
                c[row, phase.col : phase.col + len(values)] = torch.tensor(values)
    return c


def wrong_rows(traced, barriers) -> set[int]:
    """The rows of a tile whose elements of C are wrong without some barriers."""
    wrong = (stored(traced, simulate(traced, barriers)) != traced.c).any(dim=1)
    return {row % traced.tile for row in wrong.nonzero().flatten().tolist()}


def test_page_has_the_numbers_of_the_trace():
    traced = trace(5, 3, 7, tile=2)
    text = page(traced)
    data = json.loads(re.search(r'<script type="application/json".*?>(.*?)</script>', text)[1])
    for name in ("a", "b", "c"):
        assert torch.equal(torch.tensor(data[name]), getattr(traced, name))
    for name in ("tile", "naive_reads", "tiled_reads"):
        assert data[name] == getattr(traced, name)
    assert len(data["phases"]) == len(traced.phases)
    for had, phase in zip(data["phases"], traced.phases, strict=True):
        assert (had["row"], had["col"], had["k"]) == (phase.row, phase.col, phase.k)
        for name in ("a", "b", "sums"):
            assert torch.equal(torch.tensor(had[name]), getattr(phase, name))
    assert set(data["runs"]) == {"12", "1", "2", ""}
    assert data["runs"]["2"] == simulate(traced, (2,))


def test_page_needs_no_other_file_and_no_network():
    text = page(trace(2, 2, 2, tile=2))
    assert not re.search(r"https?:|//\w|\bsrc=|\bhref=|@import|url\(|\bimport\b|fetch\(", text)
    assert "default-src 'none'" in text and "{{" not in text


@settings(deadline=None)
@given(m=size, n=size, k=size, tile=size)
def test_both_barriers_give_the_product(m, n, k, tile):
    traced = trace(m, n, k, tile)
    steps = simulate(traced)
    assert torch.equal(stored(traced, steps), traced.c)
    half = -(-tile // 2)
    for step in steps:
        phase, first = traced.phases[step["phase"]], (step["warp"] or 0) * half
        for name in {"load": ("a", "b"), "compute": ("sums",)}.get(step["name"], ()):
            rows = getattr(phase, name)[first:][: len(step[name])]
            assert torch.equal(torch.tensor(step[name]), rows)


@settings(deadline=None)
@given(m=size, n=size, k=size, tile=size, barriers=st.sampled_from([(1, 2), (1,), (2,), ()]))
def test_counts_need_no_barrier(m, n, k, tile, barriers):
    traced = trace(m, n, k, tile)
    steps = simulate(traced, barriers)
    assert sum(step.get("reads", 0) for step in steps) == traced.tiled_reads
    assert sum(step.get("fmas", 0) for step in steps) == m * n * k
    assert {step["barrier"] for step in steps if "barrier" in step} == set(barriers)


@pytest.mark.parametrize("tile", [2, 3, 4, 8])
def test_a_missing_barrier_breaks_the_rows_of_a_warp(tile):
    """Warp 0 multiplies what is not loaded yet, and overwrites what warp 1 has yet to read."""
    traced = trace(2 * tile, 2 * tile, 2 * tile, tile)
    first_half = set(range(-(-tile // 2)))
    assert wrong_rows(traced, (1, 2)) == set()
    assert wrong_rows(traced, (2,)) == first_half
    assert wrong_rows(traced, (1,)) == set(range(tile)) - first_half
    assert wrong_rows(traced, ()) == set(range(tile))


def test_what_cannot_go_wrong():
    one_thread = trace(3, 3, 3, tile=1)
    for barriers in ((1,), (2,), ()):
        assert wrong_rows(one_thread, barriers) == set()
    one_phase = trace(4, 4, 4, tile=4)
    assert wrong_rows(one_phase, (1,)) == set() != wrong_rows(one_phase, (2,))


@pytest.mark.parametrize(
    "sizes, says",
    [
        ((32, 32, 32, 8), "has 3072 cells in A, B and C, 64 in a tile, and 64 phases"),
        ((1, 1, 1, 33), "has 3 cells in A, B and C, 1089 in a tile, and 1 phases"),
        ((6, 6, 6, 1), "has 108 cells in A, B and C, 1 in a tile, and 216 phases"),
    ],
)
def test_too_large_for_a_page(monkeypatch, capsys, tmp_path, sizes, says):
    *shape, tile = sizes
    assert run(monkeypatch, *shape, "--tile", tile, "--html", tmp_path / "page.html") == 1
    refused = capsys.readouterr().err
    assert says in refused and "at most 1024 cells, as many in a tile, and 128 phases" in refused
    assert not list(tmp_path.iterdir())


def test_command(tmp_path):
    command = [sys.executable, "-m", "torch_tiled", "trace", "4", "4", "4"]
    path = tmp_path / "a page.html"
    done = subprocess.run([*command, "--html", path], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == f"wrote {path}, a page for any browser\n"
    assert path.read_text(encoding="utf-8") == page(trace(4, 4, 4, tile=2))


@pytest.mark.parametrize(
    "name, why",
    [
        ("missing/page.html", "No such file or directory"),
        ("", "Is a directory"),
        ("file/page.html", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_files_that_cannot_be_written(monkeypatch, capsys, tmp_path, name, why):
    (tmp_path / "file").write_text("")
    path = os.path.join(tmp_path, name)
    assert run(monkeypatch, 2, 2, 2, "--html", path) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{path!r} cannot be written ({why}); name a file, in a folder")
    assert captured.err.count("\n") == 1 and not captured.out


def test_no_permission(monkeypatch, capsys):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(__main__, "open", refuse, raising=False)
    assert run(monkeypatch, 2, 2, 2, "--html", "/root/page.html") == 1
    says = "'/root/page.html' cannot be written (Permission denied); name a file"
    assert capsys.readouterr().err.startswith(says)


def test_a_full_disk_and_an_option_of_the_terminal(monkeypatch, capsys):
    assert run(monkeypatch, 2, 2, 2, "--html", "/dev/full") == 1
    assert "(No space left on device)" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, 2, 2, 2, "--all", "--html", "page.html")
    assert stop.value.code == 2
    assert "not allowed with argument --all" in capsys.readouterr().err
