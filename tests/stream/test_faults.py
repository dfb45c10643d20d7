"""What goes wrong on the way: memory runs out, copies fail, Ctrl-C. And what progress is told."""

import copy
import gc
import itertools
import os
import signal
import threading
import weakref
from unittest import mock

import pytest
import torch
from helpers.copies import pickled
from helpers.packaging import python
from helpers.reference import assert_same
from helpers.streaming import both_sides, check, failing_steps, poison, run_module, stream

import torch_tiled
from torch_tiled.stream import Interrupted
from torch_tiled.stream.staging import Staging
from torch_tiled.stream.worker import Worker

NO_MEMORY = torch.OutOfMemoryError("no memory")
GRID = {"tile": (16, 24)}  # 4 x 3 tiles of a 60 x 70 result


@pytest.fixture(autouse=True)
def no_thread_is_left():
    torch.manual_seed(0)
    before = threading.active_count()
    yield
    assert threading.active_count() <= before, threading.enumerate()


def operands(k=100):
    return torch.randn(60, k), torch.randn(k, 70)


def run_into(out, a, b, *, workers=1, report=lambda progress: None, pinned=False, **options):
    """Runs a product in tiles of GRID into `out`, poisoned. Returns what it was interrupted by."""
    with pytest.raises(Interrupted) as raised:
        stream(a, b, out=out, workers=workers, report=report, pinned=pinned, **GRID, **options)
    return raised.value


def assert_done_tiles_alone_are_there(interrupted, out, expected, sides=None):
    """Checks that tiles of `done` are complete, where class Interrupted and docs/guide/stream.md
    say, and that all else is NaN, as it was. `sides` are m and n where vectors have no such."""
    is_done = torch.zeros(expected.shape, dtype=torch.bool)
    m, n = sides or expected.shape[-2:]
    for matrix, rows, cols in interrupted.done:
        one, batch = is_done.view(-1, n), is_done.view(-1, m, n)
        tile = one[rows, cols] if matrix is None else batch[matrix, rows, cols]
        assert not tile.any()
        tile.fill_(True)
    assert_same(out, torch.where(is_done, expected, torch.nan))
    return is_done


@pytest.mark.parametrize("step", [1, 2, 5, 12])
@pytest.mark.parametrize("workers", [1, 3])
@both_sides
def test_smaller_tiles_where_memory_runs_out(step, workers, pinned):
    a, b = operands()
    with failing_steps({step: NO_MEMORY}):
        first, *others = check(a, b, workers=workers, pinned=pinned, **GRID).plans
    assert others and all(plan.tile == (8, 12) for plan in others[1::2])
    assert len(others) <= 24  # a plan to see that there is one, and those of tiles that are left


def test_budgets_are_halved_until_memory_suffices():
    a, b = torch.randn(20, 40), torch.randn(40, 30)
    issue = Worker._issue

    def issue_or_fail(self, step):
        if self.plan.tile[0] > 5:
            raise torch.OutOfMemoryError("no memory")
        return issue(self, step)

    with mock.patch.object(Worker, "_issue", issue_or_fail):
        plans = check(a, b, **GRID).plans
    assert [plan.tile for plan in plans[:3]] == [(16, 24), (8, 12), (8, 12)]
    assert {plan.tile[0] for plan in plans[1:]} == {8, 4}


def test_a_sentence_of_the_library_is_memory_that_ran_out_too():
    a, b = operands()
    with failing_steps({2: RuntimeError("tiled::matmul: out of memory: 5 bytes were wanted")}):
        assert len(check(a, b, **GRID).plans) > 1


def test_budgets_of_make_plan_where_memory_runs_out():
    a, b = torch.randn(300, 200), torch.randn(200, 400)
    with failing_steps({1: NO_MEMORY}):
        first, *others = check(a, b, budget=8 << 20).plans
    assert others and all(plan.device_bytes <= 4 << 20 for plan in others)


def test_groups_of_matrices_where_memory_runs_out():
    a, b = torch.randn(40, 30, 20), torch.randn(40, 20, 50)
    with failing_steps({2: NO_MEMORY}):
        plans = check(a, b, matrices=8).plans
    assert {plan.matrices for plan in plans} == {8, 4}


def test_a_batch_that_no_longer_fits_in_groups():
    """Half of the memory is too little for a group of one matrix: they go one by one, in tiles."""
    a, b = torch.randn(3, 300, 500), torch.randn(3, 500, 300)
    with failing_steps({2: NO_MEMORY}):
        plans = check(a, b, budget=8 << 20).plans
    assert plans[0].matrices and not plans[-1].matrices


@pytest.mark.parametrize("dims", [(0, 1), (1, 0)])
def test_ctrl_c_in_a_batch_after_memory_ran_out(dims):
    a, b = torch.randn(2, 10, 30, 20), torch.randn(2, 10, 20, 50)
    a, b = a.permute(*dims, 2, 3), b.permute(*dims, 2, 3)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = torch.empty_like(expected)
    with failing_steps({2: NO_MEMORY, 6: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b, matrices=4)
    is_done = assert_done_tiles_alone_are_there(interrupted, out, expected)
    assert is_done.any() and len(interrupted.done) < interrupted.tiles


def test_no_memory_even_for_small_tiles():
    a, b = operands()
    with mock.patch.object(Worker, "_issue", side_effect=NO_MEMORY):
        with pytest.raises(torch.OutOfMemoryError, match="no memory"):
            stream(a, b, budget=8 << 20)


def test_memory_of_a_failed_attempt_is_free_for_the_next():
    """An exception's traceback would keep the buffers of its worker."""
    a, b = operands()
    made, alive = [], []
    init = Worker.__init__

    def watched(self, *arguments):
        alive.append([each() is not None for each in made])
        init(self, *arguments)
        made.append(weakref.ref(self))

    gc.disable()
    try:
        with mock.patch.object(Worker, "__init__", watched):
            with failing_steps({3: NO_MEMORY}):
                check(a, b, **GRID)
    finally:
        gc.enable()
    assert len(alive) > 1 and not alive[1][0]


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("call", [1, 3, 7])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_copy_that_fails(direction, call, workers):
    a, b = operands()
    original, count = Staging.copy, [0]

    def fails(self, *arguments):
        if self._queue == direction:
            count[0] += 1
            if count[0] == call:
                raise OSError("the disk is gone")
        original(self, *arguments)

    with mock.patch.object(Staging, "copy", fails), pytest.raises(OSError, match="disk is gone"):
        stream(a, b, workers=workers, **GRID)
    check(a, b, **GRID)


@pytest.mark.parametrize("step", [1, 6])
@pytest.mark.parametrize("workers", [1, 3])
@both_sides
def test_a_product_that_fails(step, workers, pinned):
    a, b = operands()
    with failing_steps({step: ValueError("bad luck")}), pytest.raises(ValueError, match="bad luck"):
        stream(a, b, workers=workers, pinned=pinned, **GRID)


@both_sides
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 4, 9])
def test_ctrl_c_in_a_worker(step, workers, pinned):
    a, b = operands()
    out, expected = torch.empty(60, 70), torch_tiled.matmul(a, b, algorithm="tiled")
    with failing_steps({step: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b, workers=workers, pinned=pinned)
    is_done = assert_done_tiles_alone_are_there(interrupted, out, expected)
    assert not is_done.all()
    assert interrupted.tiles == 12 and len(interrupted.done) < 12
    assert f"{len(interrupted.done)} of 12 tiles" in str(interrupted)
    assert isinstance(interrupted, KeyboardInterrupt)


def test_ctrl_c_before_flagged_tiles_are_repaired():
    """Elements that are NaN until the end are repaired then, so that tiles are whole."""
    a, b = operands(2100)
    a[20, 5] = torch.inf
    out, expected = torch.empty(60, 70), torch_tiled.matmul(a, b, algorithm="fp16x3")
    with failing_steps({30: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b, depth=1024, algorithm="fp16x3")
    assert 16 in {rows.start for _, rows, _ in interrupted.done}
    for _, rows, cols in interrupted.done:
        assert_same(out[rows, cols], expected[rows, cols])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NO_MEMORY])
def test_what_ends_a_repair(error):
    """Ctrl-C leaves flagged tiles out of `done`; without memory, they are computed again."""
    a, b = operands(2100)
    a[20, 5] = torch.inf
    out, expected = torch.empty(60, 70), torch_tiled.matmul(a, b, algorithm="fp16x3")
    options = {"depth": 1024, "algorithm": "fp16x3"}
    with failing_steps({37: error}):  # after 12 tiles of 3 slices
        if isinstance(error, torch.OutOfMemoryError):
            assert_same(stream(a, b, **options, **GRID).result, expected)
            return
        interrupted = run_into(out, a, b, **options)
    assert len(interrupted.done) == 9 and interrupted.tiles == 12
    for _, rows, cols in interrupted.done:
        assert_same(out[rows, cols], expected[rows, cols])


def test_ctrl_c_while_workers_begin():
    """A worker that is made after Ctrl-C does not begin."""
    a, b = operands()
    reported, init = threading.Event(), Worker.__init__

    def late(self, *arguments):
        assert reported.wait(10)
        init(self, *arguments)

    def interrupt(progress):
        raise KeyboardInterrupt

    out, timer = torch.empty(60, 70), threading.Timer(0.3, reported.set)
    timer.start()
    with mock.patch.object(Worker, "__init__", late):
        interrupted = run_into(out, a, b, report=interrupt)
    timer.join()
    assert interrupted.done == [] and out.isnan().all()


@pytest.mark.parametrize("shapes", [((3, 60, 40), (3, 40, 70)), ((2, 2, 60, 40), (2, 40, 70))])
@pytest.mark.parametrize("step", [7, 30])
def test_ctrl_c_in_a_batch(shapes, step):
    a, b = map(torch.randn, shapes)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = torch.empty_like(expected)
    with failing_steps({step: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b)
    assert_done_tiles_alone_are_there(interrupted, out, expected)
    assert interrupted.tiles == 12 * expected.shape[:-2].numel()
    assert step - 9 <= len(interrupted.done) < step


def test_ctrl_c_in_groups_of_matrices():
    a, b = torch.randn(20, 30, 40), torch.randn(20, 40, 50)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = torch.empty_like(expected)
    with failing_steps({5: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b, matrices=3)
    assert_done_tiles_alone_are_there(interrupted, out, expected)
    assert interrupted.tiles == 7


def test_ctrl_c_after_memory_ran_out():
    a, b = operands()
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = torch.empty(60, 70)
    with failing_steps({3: NO_MEMORY, 9: KeyboardInterrupt()}):
        interrupted = run_into(out, a, b)
    is_done = assert_done_tiles_alone_are_there(interrupted, out, expected)
    # Two tiles of the first grid, whole ones of a second grid of 4 tiles each, and 9 tiles to come.
    assert interrupted.tiles == 2 + 4 + 4 + 8
    assert is_done.any() and len(interrupted.done) < interrupted.tiles


@pytest.mark.parametrize("of", ["cpu", "simulated"])
def test_a_signal(of):
    """SIGINT reaches the main thread, whatever it waits for."""
    n = 200
    a, b = torch.randn(n, 100), torch.randn(100, n)
    out, expected = torch.empty(n, n), torch_tiled.matmul(a, b, algorithm="tiled")
    reached = threading.Event()
    issue, matmul, count = Worker._issue, run_module.matmul, [0]

    def slowly(function):
        def call(*arguments, **options):
            count[0] += 1
            if count[0] == 4:
                reached.set()
                threading.Event().wait(0.5)
            return function(*arguments, **options)

        return call

    def send():
        reached.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with mock.patch.object(Worker, "_issue", slowly(issue)), pytest.raises(Interrupted) as raised:
        if of == "simulated":
            stream(a, b, out=out, tile=(32, 32))
        else:
            poison(out)
            with (
                mock.patch.object(run_module, "matmul", slowly(matmul)),
                mock.patch.object(run_module, "_CPU_TILE", 32),
            ):
                torch_tiled.stream.matmul(a, b, out=out, devices="cpu", algorithm="tiled")
    sender.join()
    is_done = assert_done_tiles_alone_are_there(raised.value, out, expected)
    assert is_done.any() and not is_done.all()
    assert raised.value.tiles == 49


@pytest.mark.parametrize("of", ["cpu", "simulated"])
def test_an_error_of_the_progress_function(of):
    a, b = operands()

    def report(progress):
        raise LookupError("no such bar")

    with pytest.raises(LookupError, match="no such bar"):
        if of == "cpu":
            torch_tiled.stream.matmul(a, b, devices="cpu", progress=report)
        else:
            stream(a, b, report=report, **GRID)


AGAIN = """
import os, signal, sys, threading, time
import torch
import torch_tiled

run = sys.modules["torch_tiled.stream.run"]  # the package has the function of that name

def slow_matmul(*arguments, **options):
    if not sender.is_alive():
        sender.start()
    time.sleep(2)
    matmul(*arguments, **options)

def send():
    for _ in range(3):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

sender, matmul = threading.Thread(target=send), run.matmul
run.matmul, run._CPU_TILE = slow_matmul, 32
a, b, out = torch.randn(64, 50), torch.randn(50, 64), torch.full((64, 64), torch.nan)
try:
    torch_tiled.stream.matmul(a, b, out=out, devices="cpu")
except torch_tiled.stream.Interrupted as interrupted:
    print(len(interrupted.done), out.isfinite().sum().item(), threading.active_count())
"""


def test_ctrl_c_again_while_a_block_on_the_cpu_ends():
    """The block is then whole, and nothing is written once the call has raised."""
    assert python(AGAIN).split() == ["1", str(32 * 32), "1"]


INTERRUPTED = [
    *[((60, 40), (40, 70)), ((90,), (90, 140)), ((140, 90), (90,))],
    *[((3, 30, 40), (3, 40, 20)), ((2, 3, 30, 40), (2, 1, 40, 20)), ((2, 3, 30, 40), (40, 20))],
    *[((3, 1, 30, 40), (2, 40, 20)), ((2, 40, 50), (50,)), ((50,), (2, 50, 40))],
]


def on_cpu(a, b, out, step):
    matmul, count = run_module.matmul, itertools.count(1)

    def multiply(*arguments, **options):
        if next(count) == step:
            raise KeyboardInterrupt
        return matmul(*arguments, **options)

    patches = {"matmul": multiply, "_CPU_TILE": 7}
    with mock.patch.multiple(run_module, **patches), pytest.raises(Interrupted) as raised:
        torch_tiled.stream.matmul(a, b, out=out, devices="cpu", algorithm="tiled")
    return raised.value


def on_gpu(a, b, out, step):
    with failing_steps({step: KeyboardInterrupt()}), pytest.raises(Interrupted) as raised:
        stream(a, b, out=out, tile=(7, 7))
    return raised.value


WAYS = {
    "cpu": lambda *arguments: on_cpu(*arguments, step=4),
    "simulated": lambda *arguments: on_gpu(*arguments, step=12),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("a, b", INTERRUPTED, ids=str)
def test_tiles_are_where_the_docs_say(a, b, way):
    a, b = torch.randn(a), torch.randn(b)
    sides = a.shape[-2] if a.dim() > 1 else 1, b.shape[-1] if b.dim() > 1 else 1
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    out = poison(torch.empty_like(expected))
    interrupted = way(a, b, out)
    is_done = assert_done_tiles_alone_are_there(interrupted, out, expected, sides)
    assert is_done.any() and not is_done.all()


CASES = {
    "out": ((7, 0, True), "7 tiles are in out, and the others are as they were; "),
    "flagged": ((7, 2, True), "7 tiles are in out, 2 have NaN where elements were not recomputed"),
    "no out": ((7, 2, False), "7 tiles are complete, and lost; a call with out= keeps them"),
}


@pytest.mark.parametrize("arguments, text", CASES.values(), ids=CASES)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_copies(again, arguments, text):
    done = [(None, slice(0, 7), slice(7, 14)), (3, slice(0, 7), slice(None))]
    interrupted = Interrupted(done, *arguments)
    assert f"2 of {text}" in str(interrupted)
    copied = again(interrupted)
    assert type(copied) is Interrupted and str(copied) == str(interrupted)
    assert (copied.done, copied.tiles) == (done, 7)


@pytest.mark.parametrize("way", [on_cpu, on_gpu])
@pytest.mark.parametrize("has_out", [False, True])
def test_the_text_says_whether_tiles_are_kept(way, has_out):
    out = torch.empty(30, 40) if has_out else None
    interrupted = way(torch.randn(30, 20), torch.randn(20, 40), out, 12)
    text = "are in out, and the others are" if has_out else "are complete, and lost; "
    assert text in str(interrupted) and f"of {interrupted.tiles} tiles" in str(interrupted)
