"""The error study, and the example that trains on digits."""

import json
import subprocess
import sys

import error_study
import machine
import pytest
from helpers.specification import fp16x3_with_flags


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
    assert "uniform(0, 1)" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert error_study.main(["--redraw", str(path), "--plot", str(plot)]) == 0
    assert "</svg>" in plot.read_text()


def test_the_error_study_redraws_a_file_that_is_there(tmp_path, capsys):
    redraw = ["--redraw", str(tmp_path / "no.json"), "--plot", str(tmp_path / "no.svg")]
    assert error_study.main(redraw) == 1
    assert "no.json cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("operands", ["normal", "scales opposed by exp(2 N)"])
def test_the_error_study_counts_what_the_guard_flags(operands):
    a, b = error_study.OPERANDS[operands](20, 1100, 20)
    _, flagged = fp16x3_with_flags(a, b)
    assert error_study.guarded(a, b) == flagged.double().mean().item()
