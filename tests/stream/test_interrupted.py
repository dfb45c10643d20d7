"""The exception of an interrupted product: its tiles, its text, and its copies."""

import copy
import itertools
import pickle
from unittest import mock

import pytest
import torch
from helpers.streaming import assert_same_bits, poison, run_cpu_module, stream

import torch_tiled
from torch_tiled.stream import Interrupted
from torch_tiled.stream.worker import Worker

SHAPES = [
    *[((60, 40), (40, 70)), ((90,), (90, 140)), ((140, 90), (90,))],
    *[((3, 30, 40), (3, 40, 20)), ((2, 3, 30, 40), (2, 1, 40, 20)), ((2, 3, 30, 40), (40, 20))],
    *[((3, 1, 30, 40), (2, 40, 20)), ((2, 40, 50), (50,)), ((50,), (2, 50, 40))],
]


def fails_at(owner, name, step):
    """A context in which the n-th call of a function is interrupted."""
    count, function = itertools.count(1), getattr(owner, name)

    def call(*arguments, **options):
        if next(count) == step:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return mock.patch.object(owner, name, call)


def on_cpu(a, b, out, step):
    with (
        fails_at(run_cpu_module, "matmul", step),
        mock.patch.object(run_cpu_module, "_TILE", 7),
        pytest.raises(Interrupted) as raised,
    ):
        torch_tiled.stream.matmul(a, b, out=out, devices="cpu", algorithm="tiled")
    return raised.value


def simulated(a, b, out, step):
    with fails_at(Worker, "_issue", step), pytest.raises(Interrupted) as raised:
        stream(a, b, out=out, tile=(7, 7))
    return raised.value


WAYS = {
    "cpu": lambda *arguments: on_cpu(*arguments, step=4),
    "simulated": lambda *arguments: simulated(*arguments, step=12),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_tiles_are_where_the_docs_say(a, b, way):
    """Class Interrupted, and docs/guide/stream.md."""
    a, b = torch.randn(a), torch.randn(b)
    m, n = a.shape[-2] if a.dim() > 1 else 1, b.shape[-1] if b.dim() > 1 else 1
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = poison(torch.empty_like(expected))
    interrupted = way(a, b, out)
    assert interrupted.done
    is_done = torch.zeros(out.shape, dtype=torch.bool)
    for matrix, rows, columns in interrupted.done:
        if matrix is None:
            is_done.view(-1, n)[rows, columns] = True
        else:
            is_done.view(-1, m, n)[matrix, rows, columns] = True
    assert not is_done.all()
    assert_same_bits(out, torch.where(is_done, expected, torch.nan))


CASES = {
    "out": ((7, 0, True), "7 tiles are in out, and the others are as they were; "),
    "flagged": ((7, 2, True), "7 tiles are in out, 2 have NaN where elements were not recomputed"),
    "no out": ((7, 2, False), "7 tiles are complete, and lost; a call with out= keeps them"),
}


@pytest.mark.parametrize("arguments, text", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies(again, arguments, text):
    done = [(None, slice(0, 7), slice(7, 14)), (3, slice(0, 7), slice(None))]
    interrupted = Interrupted(done, *arguments)
    assert f"2 of {text}" in str(interrupted)
    copied = again(interrupted)
    assert type(copied) is Interrupted and str(copied) == str(interrupted)
    assert (copied.done, copied.tiles) == (done, 7)


@pytest.mark.parametrize("way", [on_cpu, simulated])
@pytest.mark.parametrize("has_out", [False, True])
def test_the_text_says_whether_tiles_are_kept(way, has_out):
    out = torch.empty(30, 40) if has_out else None
    interrupted = way(torch.randn(30, 20), torch.randn(20, 40), out, 12)
    text = "are in out, and the others are" if has_out else "are complete, and lost; "
    assert text in str(interrupted) and f"of {interrupted.tiles} tiles" in str(interrupted)
