"""The examples run, and both of their trainings learn the same."""

import math
import sys
from pathlib import Path

import demo
import larger_than_memory
import models
import pytest
import torch
from helpers.packaging import output_of, run
from helpers.small_models import TASKS, small
from torch.testing import assert_close

import torch_tiled

COMMAND = Path(models.__file__)


@pytest.mark.parametrize("name", TASKS)
def test_both_trainings_learn_the_same(name, device):
    task = small(name, device)
    done = models.compare(task, device, models.STEPS)
    assert done.layers > 0
    assert len(done.theirs.losses) == len(done.ours.losses) == models.STEPS
    assert all(map(math.isfinite, done.theirs.losses))
    assert_close(done.ours.losses, done.theirs.losses)
    assert_close(done.ours.weights(), done.theirs.weights())
    at_first, theirs, ours = done.scores
    assert_close(ours, theirs)
    assert theirs < at_first if task.accuracy is None else theirs > at_first


def test_one_command_prints_three_rows(device):
    options = ["--steps", "4", "--device", device, "--profile", "--flags"]
    text = output_of(sys.executable, COMMAND, "pinn", *options)
    compared, profiled, flags = [
        line.split() for line in text.splitlines() if line.startswith("pinn")
    ]
    assert compared.pop(9) == "loss" and len(compared) == 13
    assert all(math.isfinite(float(number)) for number in compared[1:])
    products, total, _, attention, at_most = [float(x.rstrip("%")) for x in profiled[1:]]
    assert attention == 0
    assert 0 < products < total and at_most > 1
    if flags[1] == "0":  # on the CPU, and before Hopper
        assert "no product has a guard" in text
        return
    products, with_flags, elements, flagged, share = map(float, flags[1:])
    assert 0 <= with_flags <= products and 0 <= flagged <= elements and 0 <= share <= 1


def test_flags_are_counted():
    a, b = torch.randn(20, 1500), torch.randn(1500, 30)
    a[3, 4] = torch.inf
    counted = models.CountFlags()
    for row in (a, a[4:]):
        counted.count(torch_tiled.explain(row, b, algorithm="fp16x3"))
    counted.count(torch_tiled.explain(a, b, algorithm="tiled"))  # has no guard
    assert (counted.products, counted.with_flags) == (2, 1)
    assert (counted.elements, counted.flagged) == (600 + 480, 30)


def test_an_unknown_model_is_refused_with_a_list_of_models():
    done = run(sys.executable, COMMAND, "gpt3")
    assert done.returncode == 2
    assert f"there is no model gpt3; choose of {', '.join(TASKS)}" in done.stdout


def test_the_demo_shows_the_same_rows_for_every_number_of_rows(monkeypatch, capsys, device):
    small = demo.PLANS["cpu"]
    plan = demo.Plan(demo.PLANS[device].algorithm, small.sizes, small.weight, small.counts)
    monkeypatch.setitem(demo.PLANS, device, plan)
    demo.main(["--device", device, "--seconds", "1e-3"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    tables = [list(map(float, line)) for line in lines if line and line[0].isdigit()]
    timed, rows = [x for x in tables if len(x) == 6], [x for x in tables if len(x) == 3]
    assert [row[0] for row in timed] == list(plan.sizes)
    for _, theirs_ms, ours_ms, _, *errors in timed:
        assert theirs_ms > 0 and ours_ms > 0
        assert all(0 < error < 1e-6 for error in errors)
    assert [row[0] for row in rows] == list(plan.counts)
    assert all(ours == count for count, _, ours in rows)


def test_the_demo_refuses_other_devices(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--device", "meta"])
    assert "it is meta; it must be cpu, cuda or cuda:<index>" in capsys.readouterr().err


def gram_of(capsys, *arguments):
    """Runs the example on 700 rows, and returns what it prints."""
    small = ["--rows", "700", "--columns", "2100", "--max-device-bytes", "5600000"]
    larger_than_memory.main([*small, *arguments])
    return capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ["auto", "tiled"])
def test_a_gram_matrix_of_a_file_passes_its_check(capsys, algorithm):
    text = gram_of(capsys, "--algorithm", algorithm)
    assert "m = 700, n = 700, k = 2100" in text and "predicted" in text
    assert "0 of 700 rows are beyond it" in text


def test_a_gram_matrix_of_the_user_s_file(tmp_path, capsys):
    path = tmp_path / "x"
    torch.randn(800, 2100).numpy().tofile(path)
    assert "X has 800 rows of 2100 float32" in gram_of(capsys, "--file", str(path))
    with pytest.raises(SystemExit):
        gram_of(capsys, "--file", str(path), "--columns", "1009")
    assert "it must be a file of rows of 1009 floats" in capsys.readouterr().err


def test_a_wrong_gram_matrix_ends_with_an_error(monkeypatch, capsys):
    def wrong(a, b, *, out, **options):
        out.copy_(a @ b)[:, 500:600] = 0  # a lost tile

    monkeypatch.setattr(torch_tiled.stream, "matmul", wrong)
    with pytest.raises(SystemExit, match="The result is wrong"):
        gram_of(capsys)


@pytest.mark.parametrize("value", [math.nan, 150.0])
def test_the_check_finds_a_wrong_element(value):
    x = torch.randn(700, 1100)
    gram = x @ x.mT
    assert larger_than_memory.check(gram, x, 20, chunked=False).worst < 0.1
    gram[3, 4] += value
    done = larger_than_memory.check(gram, x, 20, chunked=False)
    assert done.rows == 1 and not done.passes


NUMBERS = ("--rows", "--columns", "--max-device-bytes", "--projections")


@pytest.mark.parametrize(
    "options, sentence",
    [
        *[([name, "0"], f"argument {name}: '0' is no positive whole number") for name in NUMBERS],
        *[(["--rows", x], f"{x!r} is no positive") for x in ("-5", "1.5", "nan", "inf", "many")],
        (["--max-device-bytes", "1e9"], "--max-device-bytes is 1000000000, in which the file"),
        (["--rows", "1e30"], " bytes of files are made, and "),
        (["--columns", "1e15"], " bytes of files are made, and "),
        (["--folder", "/not/there"], "--folder is /not/there, which is no folder"),
        (["--seed", "many"], "argument --seed: invalid int value: 'many'"),
    ],
)
def test_options_of_the_gram_matrix_are_refused_in_a_sentence(capsys, options, sentence):
    with pytest.raises(SystemExit):
        gram_of(capsys, *options)
    assert sentence in capsys.readouterr().err


def test_a_budget_that_is_too_small_is_a_sentence(capsys):
    with pytest.raises(SystemExit, match="max_device_bytes is 1000 .*too small for any tile"):
        gram_of(capsys, "--max-device-bytes", "1000")


def test_the_digits_example_trains_both_networks(device):
    pytest.importorskip("sklearn", reason="no scikit-learn")
    script = COMMAND.with_name("digits.py")
    options = ["--epochs", "2", "--algorithm", "tiled", "--device", device]
    lines = output_of(sys.executable, "-W", "ignore", script, *options).splitlines()
    curves = [[float(number) for number in line.split()] for line in lines[2:4]]
    assert [curve[0] for curve in curves] == [1, 2]
    assert curves[1][1] < curves[0][1]
    assert "test accuracy: torch_tiled" in lines[4]
    assert float(lines[5].split()[3]) < 1e-3
