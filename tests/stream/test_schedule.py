"""The order of tiles and loads: each tile once, each panel from its slot, and few loads."""

import collections
import itertools
import random

import pytest
import torch
from helpers.streaming import plan_module, sizes_of

from torch_tiled.stream.machine import Machine
from torch_tiled.stream.order import Order
from torch_tiled.stream.schedule import SLOTS, Grid, Queue, TileList, steps


def random_grid(generator):
    rows, cols, slices = (generator.choice([1, 1, 2, 3, 4, 7]) for _ in range(3))
    if generator.random() < 0.2:
        return Grid(rows * cols, 1, is_paired=True)
    return Grid(rows, cols, slices, generator.random() < 0.5)


def tiles_of(grid):
    if grid.is_paired:
        return [(i, i) for i in range(grid.rows)]
    return [(row, col) for row in range(grid.rows) for col in range(grid.cols)]


def random_runs(workers, count=60):
    """Yields (a grid, the steps of each worker), where workers go on in random order."""
    for seed in range(count):
        generator = random.Random(seed)
        grid = random_grid(generator)
        queue = Queue(grid, workers)
        running = {i: steps(grid, SLOTS, SLOTS, queue, i) for i in range(workers)}
        found = [[] for _ in range(workers)]
        while running:
            worker = generator.choice(list(running))
            step = next(running[worker], None)
            if step is None:
                del running[worker]
            else:
                found[worker].append(step)
        yield grid, found


workers = pytest.mark.parametrize("workers", [1, 2, 3, 4])


@workers
def test_every_tile_once(workers):
    for grid, found in random_runs(workers):
        tiles = [(step.row, step.col) for each in found for step in each if step.is_last]
        assert sorted(tiles) == tiles_of(grid)


@workers
def test_slices_ascend(workers):
    """A worker has all slices of a tile, one after another."""
    for grid, found in random_runs(workers):
        for each in found:
            assert [step.number for step in each] == list(range(len(each)))
            for i, step in enumerate(each):
                assert step.slice == i % grid.slices
                assert step.is_first == (step.slice == 0)
                assert step.is_last == (step.slice == grid.slices - 1)
                first = each[i - step.slice]
                assert (step.row, step.col) == (first.row, first.col)


@workers
def test_slots_have_the_panels_that_steps_read(workers):
    """A load comes after the last step that reads its slot, and no step reads another panel."""
    for _, found in random_runs(workers):
        for each in found:
            panels, last_read = {}, collections.defaultdict(lambda: -1)
            for step in each:
                for load in step.loads:
                    place = load.operand, load.slot
                    assert load.after == last_read[place] < step.number
                    panels[place] = load.index, load.slice
                for operand, index, slot in (
                    ("a", step.row, step.a_slot),
                    ("b", step.col, step.b_slot),
                ):
                    assert 0 <= slot < SLOTS
                    assert panels[operand, slot] == (index, step.slice)
                    last_read[operand, slot] = step.number


@pytest.mark.parametrize("keeps_b", [False, True])
def test_the_panels_at_a_turn_are_not_loaded_again(keeps_b):
    """Nor does the first load after a turn wait for the step before it."""
    grid = Grid(5, 4, 1, keeps_b) if keeps_b else Grid(4, 5, 1, keeps_b)
    kept, streamed = ("b", "a") if keeps_b else ("a", "b")
    loads = [load for step in steps(grid, SLOTS, SLOTS) for load in step.loads if load.part == 0]
    assert [x.index for x in loads if x.operand == kept] == [0, 1, 2, 3]
    streamed_loads = [x for x in loads if x.operand == streamed]
    assert [x.index for x in streamed_loads] == [0, 1, 2, 3, 4, 2, 1, 0, 2, 3, 4, 2, 1, 0]
    assert [x.after for x in streamed_loads][:8] == [-1, -1, 0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize("kept", ["a", "b"])
def test_the_number_of_loads_is_the_plan_s(kept):
    """`passes` counts how often panels are read, which bytes and seconds are predicted by."""
    side, chunk = 8, 16
    order = Order(torch.float32, "fp32", "tiled", "tiled", "chunked", (90, 132))
    for rows in range(1, 5):
        for cols in range(1, 5):
            for slices in range(1, 5):
                sizes = sizes_of(order, rows * side, cols * side, slices * chunk)
                candidate = plan_module.Candidate(sizes, Machine(), (side, side), chunk, kept)
                grid = Grid(rows, cols, slices, kept == "b")
                loads = collections.Counter()
                for step in steps(grid, SLOTS, SLOTS):
                    for load in step.loads:
                        loads[load.operand] += 1 / load.parts
                *_, passes = candidate.moved
                assert loads["a"] == pytest.approx(passes[0] * rows * slices), grid
                assert loads["b"] == pytest.approx(passes[1] * cols * slices), grid


@pytest.mark.parametrize("kept", ["a", "b"])
def test_the_bytes_of_ragged_panels_are_the_plan_s(kept):
    """The last panels of a side, and the last slice of K, are smaller."""
    side, chunk = 8, 16
    order = Order(torch.float32, "fp32", "tiled", "tiled", "chunked", (90, 132))
    for m, n, k in itertools.product((5, 13, 17, 24, 30), (8, 11, 16, 27), (16, 20, 40, 70)):
        candidate = plan_module.Candidate(
            sizes_of(order, m, n, k), Machine(), (side, side), chunk, kept
        )
        loaded = dict.fromkeys("ab", 0)
        for step in steps(candidate.grid, SLOTS, SLOTS):
            for load in step.loads:
                total = m if load.operand == "a" else n
                rows = min(side, total - load.index * side)
                loaded[load.operand] += 4 * rows * min(chunk, k - load.slice * chunk) / load.parts
        assert [*loaded.values()] == pytest.approx(candidate.moved[:2]), (m, n, k)


def test_a_worker_without_a_panel_takes_over_half_of_another_s():
    queue = Queue(Grid(8, 1), 2)
    job = queue.claim(0)
    assert job.take() == 0
    assert queue.claim(1) is None
    taken = queue.take_over()  # of the 7 that were left, the last 3
    assert taken.kept == job.kept
    assert [taken.take() for _ in range(4)] == [7, 6, 5, None]
    again = queue.take_over()  # half of what is left: 1 to 4
    assert [again.take() for _ in range(3)] == [4, 3, None]
    assert [job.take() for _ in range(3)] == [1, 2, None]
    assert queue.take_over() is None


def test_each_worker_gets_a_kept_panel_before_another_gets_two():
    queue = Queue(Grid(5, 3), 2)
    first, following = queue.claim(0), queue.claim(0)
    assert (first.kept, following.kept) == (0, 1)
    assert queue.claim(0) is None  # the last one is for the other worker
    assert queue.claim(1).kept == 2
    assert queue.claim(0) is None and queue.claim(1) is None


def test_the_next_kept_panel_comes_in_parts():
    """One with each step, and the rest of them where the steps come to an end."""
    for rows in (1, 3, 20):
        found = list(steps(Grid(rows, 3), SLOTS, SLOTS))
        for index in (1, 2):
            loads = [
                (step.number, load)
                for step in found
                for load in step.loads
                if load.operand == "b" and load.index == index
            ]
            parts = min(max(rows - 1, 1), 8)
            assert [load.part for _, load in loads] == list(range(parts))
            assert {load.parts for _, load in loads} == {parts}
            assert all(number <= index * rows for number, _ in loads)


def test_a_list_of_tiles():
    for keeps_b in (False, True):
        grid = Grid(3, 4, 2, keeps_b)
        tiles = [(2, 1), (0, 3), (0, 0)]
        found = list(steps(grid, SLOTS, SLOTS, TileList(grid, tiles)))
        assert [(x.row, x.col) for x in found if x.is_last] == tiles
        assert [x.slice for x in found] == [0, 1] * 3


@pytest.mark.parametrize("grid", [Grid(0, 3), Grid(3, 0), Grid(0, 1, is_paired=True)], ids=str)
def test_nothing_to_do(grid):
    assert list(steps(grid, SLOTS, SLOTS)) == []
