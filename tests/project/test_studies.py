"""The error study, and the example that trains on digits."""

import json
import subprocess
import sys

import error_plots
import error_study
import machine
import pytest
import rows
import torch
from check import reference
from helpers.specification import fp16x3_with_flags

RESULTS = machine.ROOT / "benchmarks" / "results"


def test_the_digits_example_trains_both_networks(device):
    pytest.importorskip("sklearn", reason="no scikit-learn")
    command = f"examples/digits.py --epochs 2 --algorithm tiled --device {device}".split()
    done = subprocess.run(
        [sys.executable, *command], cwd=machine.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    curves = [[float(number) for number in line.split()] for line in lines[2:4]]
    assert [curve[0] for curve in curves] == [1, 2]
    assert curves[1][1] < curves[0][1]
    assert "test accuracy: torch_tiled" in lines[4]
    assert float(lines[5].split()[3]) < 1e-3


def test_the_error_study_writes_and_draws_its_results(tmp_path, capsys):
    path, plot = tmp_path / "errors.json", tmp_path / "errors.svg"
    options = "--device cpu --k-max 128 --size 4 --seeds 2 --json".split()
    assert error_study.main([*options, str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["header"]["seeds"] == 2
    command_line = results["header"]["command_line"]
    assert (
        command_line.startswith("benchmarks/error_study.py ") and str(tmp_path) not in command_line
    )
    ways = ["torch.matmul", *error_study.ALGORITHMS]
    expected = [(x, k, way) for x in error_study.OPERANDS for k in (64, 128) for way in ways]
    assert [(r["operands"], r["k"], r["product"]) for r in results["rows"]] == expected
    assert all(0 < row["error"] < 1e-5 for row in results["rows"])
    assert all(abs(row["shrinkage_u"]) < 10 for row in results["rows"])
    assert all(("guarded" in row) == (row["product"] == "fp16x3") for row in results["rows"])
    expected = [(128, way, length) for way in ways for length in error_study.LENGTHS]
    keys = ("k", "product", "multiplications")
    assert [tuple(row[key] for key in keys) for row in results["iteration"]] == expected
    assert all(0 < row["error"] < 1e-4 for row in results["iteration"])
    assert "uniform(0, 1)" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert error_study.main(["--redraw", str(path), "--plot", str(plot)]) == 0
    drawn = plot.read_text()
    assert "</svg>" in drawn and "shrinkage on normal" in drawn and "by an orthogonal" in drawn


@pytest.mark.parametrize("name", ["errors_cpu", "errors_h200"])
def test_results_of_any_version_of_the_error_study_are_drawn(tmp_path, name):
    """Those of an older one have no shrinkage and no products by an orthogonal matrix."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    results = rows.read(RESULTS / f"{name}.json")
    results.pop("iteration", None)
    for row in results["rows"]:
        row.pop("shrinkage_u", None)
    error_plots.draw(results, tmp_path / "errors.svg")
    drawn = (tmp_path / "errors.svg").read_text()
    assert "recomputed by fp16x3" in drawn
    assert "shrinkage on normal" not in drawn and "by an orthogonal" not in drawn


def test_results_that_are_too_small_have_a_negative_shrinkage():
    exact = torch.randn(30, 40, dtype=torch.float64)
    found = error_study.figures(exact * (1 - 3 * error_study.U), exact)
    assert found["shrinkage_u"] == pytest.approx(-3, abs=1e-3)
    assert found["error"] == pytest.approx(3 * error_study.U, rel=1e-3)


def test_errors_add_up_where_products_are_repeated():
    def shrunk(a, b):
        return (reference.product(a, b) * (1 - 2.0**-15)).float()

    args = error_study.parse("--device cpu --size 4 --seeds 2".split())
    found = error_study.iterate({"shrunk": shrunk}, args)
    assert [row["multiplications"] for row in found] == list(error_study.LENGTHS)
    for row in found:
        lost = 1 - (1 - 2.0**-15) ** row["multiplications"]
        assert row["error"] == pytest.approx(lost, rel=1e-2)
        assert row["shrinkage_u"] == pytest.approx(-lost / error_study.U, rel=1e-2)


def test_the_error_study_redraws_a_file_that_is_there(tmp_path, capsys):
    redraw = ["--redraw", str(tmp_path / "no.json"), "--plot", str(tmp_path / "no.svg")]
    assert error_study.main(redraw) == 1
    assert "no.json cannot be read" in capsys.readouterr().out


def padded(m, k, n):
    """Half of a's rows are zero, and b has small numbers."""
    a, b = error_study.normal(m, k, n)
    a[m // 2 :] = 0
    return a, torch.where(torch.rand(k, n) < 0.01, b * 1e-8, b)


@pytest.mark.parametrize(
    "operands, k, flags",
    [
        (error_study.normal, 1100, 0),
        (padded, 1100, 0),
        (error_study.opposed(2.5), 1100, None),  # some elements
        (error_study.opposed(5), 128, 1),
        (error_study.opposed(5), 127, 0),  # the chunked order
    ],
)
def test_the_error_study_counts_what_the_guard_flags(operands, k, flags):
    torch.manual_seed(0)
    a, b = operands(20, k, 20)
    share = error_study.guarded(a, b)
    assert share == flags if flags is not None else 0.01 < share < 0.99
    if k >= reference.MIN_K["fp16x3"]:
        _, flagged = fp16x3_with_flags(a, b)
        assert share == flagged.double().mean().item()
