"""The error study, the survey, and the example that trains on digits."""

import json
import subprocess
import sys

import error_study
import machine
import pytest
import shapes
import survey
import torch
from check import Verdict
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


@pytest.mark.parametrize("sides", survey.SIDES)
def test_the_survey_has_the_same_problems_each_time(sides):
    problems = survey.problems(50, sides, seed=3, most=1e8)
    assert problems == survey.problems(50, sides, seed=3, most=1e8)
    assert problems != survey.problems(50, sides, seed=4, most=1e8)
    for shape in problems:
        sizes = (shape.m, shape.n, shape.k)
        assert shape.flops < 2e8
        assert sides != "odd" or all(size % 2 == 1 for size in sizes)
        assert sides != "eights" or all(size % 8 == 0 for size in sizes)
        near = survey.aligned(shape)
        for size, up in zip(sizes, (near.m, near.n, near.k), strict=True):
            assert up % 64 == 0 and 0 <= up - size < 64


def test_the_survey_has_sets_of_operands_that_share_nothing():
    pool = torch.arange(10_000.0)
    shape = shapes.Shape(3, 11, 17, layout="NT")
    sets = survey.views(pool, shape)
    assert len(sets) == survey.MOST_SETS
    assert {(tuple(a.shape), tuple(b.shape)) for a, b in sets} == {((3, 17), (17, 11))}
    assert all(a.is_contiguous() and b.mT.is_contiguous() for a, b in sets)
    assert all(x.storage_offset() % 128 == 0 for pair in sets for x in pair)
    numbers = torch.cat([x.flatten() for pair in sets for x in pair])
    assert len(numbers.unique()) == len(numbers)


def test_the_survey_writes_its_results(tmp_path, capsys):
    path = tmp_path / "survey.json"
    options = "--device cpu --dtype float32 --count 4 --most 4e5 --repeats 1 --json".split()
    assert survey.main([*options, str(path)]) == 0
    results = json.loads(path.read_text())
    header, rows = results["header"], results["rows"]
    assert header["summary"]["products"] == len(rows) == 4 and header["refused"] == []
    assert header["command_line"].startswith("benchmarks/survey.py ")
    assert str(tmp_path) not in header["command_line"]
    assert all(row["us"] > 0 and row["aligned_us"] > 0 and row["peer_us"] > 0 for row in rows)
    assert all(row["over_aligned"] == row["us"] / row["aligned_us"] for row in rows)
    assert "Of 4 products" in capsys.readouterr().out.replace("\n", " ")


def test_the_survey_times_kernels_beside_each_other(tmp_path, capsys):
    path = tmp_path / "survey.json"
    options = "--device cpu --dtype float32 --count 3 --most 4e5 --repeats 1".split()
    assert survey.main([*options, "--beside", "tiled16", "simt_tma", "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["header"]["beside"] == ["tiled16", "simt_tma"]
    for row in results["rows"]:  # simt_tma takes K from 64 on
        assert set(row["beside_us"]) == {"tiled16"} | ({"simt_tma"} if row["k"] >= 64 else set())
        assert row["best_us"] == min(row["us"], *row["beside_us"].values())
    summary = results["header"]["summary"]
    assert summary["over_best"] >= 1 and summary["over_twice_at_best"] <= summary["over_twice"]
    assert "By the fastest of auto's kernel and tiled16, simt_tma" in capsys.readouterr().out


def test_the_survey_reports_no_time_of_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr("check.check", lambda *_: Verdict(1.0, 0.0, "element (0, 0) is 1"))
    options = "--device cpu --dtype float32 --count 2 --most 4e5 --repeats 1".split()
    assert survey.main(options) == 1
    printed = capsys.readouterr().out
    assert "its time is not reported" in printed and "the aligned one's time" not in printed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--count 0", "--count is 0"),
        ("--most 100", "--most is 100"),
        ("--dtype float32 --beside mma_sync", 'algorithm "mma_sync" takes float16 and bfloat16'),
    ],
)
def test_the_survey_says_what_it_cannot_do(options, sentence, capsys):
    with pytest.raises(SystemExit):
        survey.parse(options.split())
    assert sentence in capsys.readouterr().err
