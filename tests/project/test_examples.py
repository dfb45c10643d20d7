"""The examples run, and both of their trainings learn the same."""

import math
import subprocess
import sys
from pathlib import Path

import models
import pytest
import torch
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
    command = [sys.executable, COMMAND, "pinn", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compared, profiled, flags = [
        line.split() for line in done.stdout.splitlines() if line.startswith("pinn")
    ]
    assert compared.pop(7) == "loss" and len(compared) == 11
    assert all(math.isfinite(float(number)) for number in compared[1:])
    products, total, _, at_most = [float(number.rstrip("%")) for number in profiled[1:]]
    assert 0 < products < total and at_most > 1
    if flags[1] == "0":  # on the CPU, and before Hopper
        assert "no product has a guard" in done.stdout
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
    done = subprocess.run([sys.executable, COMMAND, "gpt3"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"there is no model gpt3; choose of {', '.join(TASKS)}" in done.stderr
