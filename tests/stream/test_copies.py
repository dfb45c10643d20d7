"""What one copy between the host and a GPU takes with it: few copies, of long lines."""

from unittest import mock

import pytest
import torch
from helpers.simulated_gpu import SimulatedQueues
from helpers.streaming import check

from torch_tiled._op.namespace import operators
from torch_tiled.stream import staging


def copies(name, call):
    """The (to, source) that a call of a function copies to simulated GPUs, or from them."""
    found = []
    original = SimulatedQueues.run

    def run(self, queue, function, *arguments):
        if queue == name and function in (staging.copy_direct, operators._copy_staged_):
            found.append(arguments[:2])
        return original(self, queue, function, *arguments)

    with mock.patch.object(SimulatedQueues, "run", run):
        call()
    return found


@pytest.mark.parametrize("are_columns", [False, True])
@pytest.mark.parametrize("kept", ["a", "b"])
def test_parts_of_a_panel_have_whole_lines(kept, are_columns):
    """A GPU reads long rows and columns of the host's memory faster than short ones."""
    kind = {"a": (160, 300), "b": (300, 160)}[kept]
    x, other = torch.randn(kind), torch.randn(300, 300)
    x = x.mT.contiguous().mT if are_columns else x
    a, b = (x, other) if kept == "a" else (other, x)
    tile = (80, 20) if kept == "a" else (20, 80)
    options = {"tile": tile, "kept": kept, "pinned": True}
    found = copies("in", lambda: check(a, b, **options))
    sizes = {tuple(sorted(source.shape)) for _, source in found if 20 not in source.shape}
    rows_are_lines = (kept == "a") != are_columns
    parts = {(10, 300)} if rows_are_lines else {(37, 80), (38, 80)}
    assert sizes == {(80, 300)} | parts


def batch(order, matrices, rows, cols, gap=0):
    """Matrices that lie by rows or by columns, with gaps after each of them."""
    if order == "columns":
        return batch("rows", matrices, cols, rows, gap).mT
    return torch.randn(matrices, rows * cols + gap)[:, : rows * cols].view(matrices, rows, cols)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("order_a", ["rows", "columns"])
@pytest.mark.parametrize("order_b", ["rows", "columns"])
def test_a_group_is_one_copy(order_a, order_b, pinned):
    a, b = batch(order_a, 12, 5, 7), batch(order_b, 12, 7, 3)
    for name, count in (("in", 2 * 3), ("out", 3)):
        with mock.patch.object(operators, "_copy_rows_", wraps=operators._copy_rows_) as copy:
            found = copies(name, lambda: check(a, b, matrices=4, pinned=pinned))
        assert len(found) == count
        if pinned:
            assert copy.call_count == 3 * 3


@pytest.mark.parametrize("pinned", [False, True])
def test_single_rows_and_columns_of_any_strides(pinned):
    """The matrices of a group may be one matrix in another order than their slots."""
    x, y = torch.randn(5, 6).mT[:, None], torch.randn(6, 5, 4)  # (6, 1, 5) by (1, *, 6)
    for a, b in ((x, y), (y.mT, x.mT)):
        for matrices in (0, 1, 4, 6):
            check(a, b, matrices=matrices, pinned=pinned)


def test_a_group_whose_matrices_lie_apart_is_copied_one_by_one():
    a, b = batch("rows", 12, 5, 7, gap=3), batch("rows", 12, 7, 3)
    with mock.patch.object(operators, "_copy_rows_", wraps=operators._copy_rows_) as copy:
        check(a, b, matrices=4, pinned=True)
    assert copy.call_count == 12 + 3 + 3
