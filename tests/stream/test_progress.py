"""What a caller is given: progress, the exception of an interrupt, and the memory of workers."""

import dataclasses
import sys
from unittest import mock

import pytest
import torch
from helpers.simulated_gpu import simulated
from helpers.streaming import (
    MUCH,
    check,
    failing_steps,
    parts_module,
    planned,
    run_module,
    stream,
)

import torch_tiled
from torch_tiled.stream.problem import Epilogue, make_problem
from torch_tiled.stream.progress import Progress, make_report
from torch_tiled.stream.staging import pitch
from torch_tiled.stream.worker import Worker

SHAPES = [((60, 100), (100, 70)), ((3, 60, 20), (3, 20, 70)), ((2, 3, 60, 20), (2, 1, 20, 70))]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("matrices", [0, 2])
@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_tiles_increase_to_all(a, b, workers, matrices):
    found = []
    a, b = torch.randn(a), torch.randn(b)
    check(a, b, tile=(16, 24), matrices=matrices, workers=workers, report=found.append)
    counts = [x.tiles_done for x in found]
    assert counts == sorted(counts)
    assert len({x.tiles for x in found}) == 1
    last = found[-1]
    assert last.share == 1 and last.tiles_done == last.tiles and last.seconds_left == 0
    assert last.flops_done == last.flops == 2 * a.numel() * 70
    assert last.bytes_done == last.bytes > 0
    assert last.seconds > 0 and last.tflops > 0


def test_tiles_increase_after_memory_ran_out():
    found = []
    with failing_steps(dict.fromkeys((4, 9), torch.OutOfMemoryError("no memory"))):
        check(*(torch.randn(x) for x in SHAPES[1]), tile=(16, 24), report=found.append)
    counts = [x.tiles_done for x in found]
    assert counts == sorted(counts)
    assert found[-1].tiles_done == found[-1].tiles
    assert all(x.tiles_done < x.tiles for x in found[:3])


def test_the_cpu_reports():
    found = []
    a, b = torch.randn(40, 30), torch.randn(30, 50)
    with mock.patch.object(run_module, "_CPU_TILE", 16):
        torch_tiled.stream.matmul(a, b, devices="cpu", progress=found.append)
    counts = [x.tiles_done for x in found]
    assert counts == sorted(set(counts))
    assert found[-1].tiles == counts[-1] == 3 * 4


def test_a_progress_before_the_first_tile():
    progress = Progress(tiles=10, tiles_done=0, bytes=100, flops=1e12, seconds=0.0)
    assert progress.share == progress.bytes_done == progress.tflops == 0
    assert progress.seconds_left is None
    half = Progress(tiles=10, tiles_done=5, bytes=100, flops=4e12, seconds=2.0)
    assert (half.share, half.bytes_done, half.tflops, half.seconds_left) == (0.5, 50, 1.0, 2.0)


def test_a_function_is_called_once_for_each_number_of_tiles():
    found = []
    report = make_report(lambda progress: found.append(progress.tiles_done))
    for done in (0, 0, 1, 1, 3):
        report(Progress(tiles=3, tiles_done=done, bytes=1, flops=1.0, seconds=1.0))
    assert found == [0, 1, 3]


EMPTY = [((0, 5), (5, 7)), ((5, 0), (0, 7)), ((5, 7), (7, 0)), ((0, 4, 5), (5, 7)), ((0,), (0,))]


@pytest.mark.parametrize("shapes", EMPTY, ids=str)
@pytest.mark.parametrize("on_cpu", [False, True])
def test_an_empty_product_is_told_once(shapes, on_cpu):
    found = []
    a, b = (torch.randn(shape) for shape in shapes)
    if on_cpu:
        torch_tiled.stream.matmul(a, b, devices="cpu", progress=found.append)
    else:
        assert not stream(a, b, report=found.append).result.any()
    (progress,) = found
    assert progress.share == 1 and progress.bytes == progress.flops == 0


def test_a_bar_needs_rich(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "rich", None)
    a = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=r"^torch_tiled.stream.matmul: progress=True .* rich"):
        torch_tiled.stream.matmul(a, a, devices="cpu", progress=True)


def test_a_bar(monkeypatch):
    pytest.importorskip("rich", reason="the bar is rich's")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    a = torch.ones(20, 20)
    found = torch_tiled.stream.matmul(a, a, devices="cpu", progress=True)
    assert torch.equal(found, torch.full((20, 20), 20.0))


MIB = 1 << 20


def allocated(nbytes):
    """What the allocator counts, at most: a block is cut if more than 1 MiB would be left."""
    return nbytes + MIB if nbytes > MIB else -(-nbytes // 512) * 512


def bytes_of(x, count=int):
    """Of all tensors that an object and its parts hold, each memory once, by a function of each."""
    found, seen = {}, set()

    def visit(x):
        if id(x) in seen:
            return
        seen.add(id(x))
        if isinstance(x, torch.Tensor):
            found[x.untyped_storage().data_ptr()] = count(x.untyped_storage().nbytes())
        elif isinstance(x, (list, tuple)):
            [visit(each) for each in x]

    for owner in (x, x._a, x._b, x._epilogue):
        for name, value in vars(owner).items():
            if name not in ("out", "x"):  # of the host
                visit(value)
    return sum(found.values())


@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
@pytest.mark.parametrize("budget", [5 * MIB, 6 * MIB, 20 * MIB, MUCH])
def test_buffers_are_within_the_plan(algorithm, budget):
    """The rest of device_bytes is for the workspaces of kernels, and 1 MiB."""
    made, run = [], Worker.run

    def watched(self, *arguments):
        run(self, *arguments)
        made.append((bytes_of(self, allocated), self.plan.device_bytes))

    a, b = torch.randn(70, 3000), torch.randn(3000, 300)
    with mock.patch.object(Worker, "run", watched):
        stream(a, b, budget=budget, algorithm=algorithm)
    assert made
    for taken, planned_bytes in made:
        assert 0 < taken <= planned_bytes <= budget


@pytest.mark.parametrize("depth", [None, 1024])
@pytest.mark.parametrize("matrices", [0, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_buffers_are_what_a_plan_counts(depth, matrices, has_bias):
    """They have the sizes that slots and tiles should have, and the plan has room for them."""
    shapes = ((7, 40, 30), (7, 30, 50)) if matrices else ((64, 2048), (2048, 96))
    a, b = map(torch.randn, shapes)
    problem, _ = make_problem(a, b, None, "fp32", "tiled")
    bias = torch.randn(b.shape[-1]) if has_bias else None
    problem = dataclasses.replace(problem, epilogue=Epilogue(bias))
    settings, _ = simulated(MUCH)
    with planned(tile=(16, 32), depth=depth, matrices=matrices):
        _, flat = parts_module._outer(problem)
        sizes = parts_module.sizes_of(*flat, problem, settings)
        plan = parts_module.plan_of(sizes, settings, MUCH)
    queues = settings.make_queues(settings.devices[0])
    product = parts_module.PlannedProduct(*flat, plan, sizes.order, problem.epilogue)
    machine = dataclasses.replace(settings.machine, staging_bytes=0)
    worker = Worker(product, queues, settings.devices[0], machine)
    rows, cols = plan.tile
    count = max(plan.matrices, 1)
    # Both are row-major, so that the rows of B's slots are as wide as a tile.
    of_a, of_b = rows * pitch(plan.depth, 4), plan.depth * pitch(cols, 4)
    panels = 2 * count * (of_a + of_b) * 4
    tiles = (2 + (plan.grid.slices > 1)) * count * rows * cols * 4
    of_bias = 4 * b.shape[-1] * has_bias
    assert bytes_of(worker) == panels + tiles + of_bias <= plan.device_bytes
