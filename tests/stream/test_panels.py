"""GPUs that copy panels from each other rather than from the host."""

import random
import threading
from unittest import mock

import pytest
import torch
from helpers.simulated_gpu import SimulatedQueues
from helpers.streaming import LAYOUTS, assert_same_bits, both_sides, check, stream

import torch_tiled
from torch_tiled.stream import Interrupted
from torch_tiled.stream.panels import Panels
from torch_tiled.stream.schedule import Grid, Queue
from torch_tiled.stream.worker import Worker


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def copied(streamed, kind):
    return sum(queues.copied[kind] for queues in streamed.queues)


def in_lockstep(workers):
    """A context in which no worker issues a step before all have issued the one before it."""
    barrier, issue, run = threading.Barrier(workers), Worker._issue, Worker.run

    def issue_together(self, step):
        try:
            barrier.wait(60)
        except threading.BrokenBarrierError:
            pass  # others have ended
        return issue(self, step)

    def run_and_leave(self, *arguments):
        run(self, *arguments)
        barrier.abort()

    return mock.patch.multiple(Worker, _issue=issue_together, run=run_and_leave)


@both_sides
@pytest.mark.parametrize("kept", ["a", "b"])
def test_a_panel_that_two_gpus_need_is_read_from_the_host_once(kept, pinned):
    a, b = torch.randn(7 * 16, 130), torch.randn(130, 2 * 24)
    a, b = (a, b) if kept == "b" else (b.mT, a.mT)
    tile = (16, 24) if kept == "b" else (24, 16)
    with in_lockstep(2):
        found = check(a, b, workers=2, are_peers=True, pinned=pinned, tile=tile, kept=kept)
    streamed = 7 * 16 * 130 * 4
    assert copied(found, "in") == a.nbytes + b.nbytes
    assert copied(found, "peer") == streamed


@both_sides
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_bits_and_bytes_of_any_order(workers, pinned):
    """Whatever is copied from other GPUs is not copied from the host."""
    a, b = torch.randn(200, 130), torch.randn(130, 150)
    shared = 0
    for seed in range(10):
        options = {"tile": (16, 24), "seed": seed, "pinned": pinned}
        alone = check(a, b, **options)
        found = check(a, b, workers=workers, are_peers=True, **options)
        assert copied(found, "out") == copied(alone, "out")
        assert a.nbytes + b.nbytes <= copied(found, "in")
        shared += copied(found, "peer")
    assert shared > 0


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_strides(a_layout, b_layout):
    a, b = LAYOUTS[a_layout](torch.randn(70, 90)), LAYOUTS[b_layout](torch.randn(90, 80))
    check(a, b, workers=3, are_peers=True, tile=(16, 24))


@both_sides
@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
def test_cut_k_and_flagged_elements(algorithm, pinned):
    a, b = torch.randn(60, 2100), torch.randn(2100, 70)
    a[20, 5], b[7, 50] = torch.inf, torch.nan
    options = {"tile": (16, 24), "depth": 1024, "pinned": pinned, "algorithm": algorithm}
    for seed in range(5):
        check(a, b, workers=3, are_peers=True, seed=seed, **options)


def test_complex_numbers_and_lazy_bits():
    a, b = (torch.randn(s, dtype=torch.complex64) for s in ((70, 60), (50, 60)))
    check(a.conj(), b.mH, workers=2, are_peers=True, tile=(16, 24))


@both_sides
@pytest.mark.parametrize("kind", [KeyboardInterrupt, torch.OutOfMemoryError, LookupError])
def test_faults(kind, pinned):
    """An error of one GPU ends the others, which may wait for its panels."""
    a, b = torch.randn(200, 130), torch.randn(130, 150)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    copy, peer = SimulatedQueues.run, SimulatedQueues.copy_from_peer
    random_ = random.Random(0)

    def failing(function):
        def call(self, *arguments):
            steps[0] -= 1
            if steps[0] == 0:
                raise kind("a fault")
            function(self, *arguments)

        return call

    for seed in range(10):
        steps = [random_.randrange(1, 60)]
        patches = {"run": failing(copy), "copy_from_peer": failing(peer)}
        out = torch.full((200, 150), torch.nan)
        options = {"workers": 3, "are_peers": True, "seed": seed, "pinned": pinned}
        with mock.patch.multiple(SimulatedQueues, **patches):
            if kind is torch.OutOfMemoryError:
                stream(a, b, out=out, tile=(16, 24), **options)
                assert_same_bits(out, expected)
                continue
            with pytest.raises(Interrupted if kind is KeyboardInterrupt else kind) as raised:
                stream(a, b, out=out, tile=(16, 24), **options)
        if kind is KeyboardInterrupt:
            for _, rows, cols in raised.value.done:
                assert_same_bits(out[rows, cols], expected[rows, cols])


def test_groups_of_matrices_share_nothing():
    a, b = torch.randn(9, 20, 30), torch.randn(9, 30, 25)
    found = check(a, b, workers=2, are_peers=True, matrices=2)
    assert copied(found, "peer") == 0


def test_the_newest_copy_is_found():
    panels, key = Panels(), ("a", 3, 0)
    assert panels.find(key) is None
    first, second = panels.add(key, "memory", "event"), panels.add(key, "memory", "event")
    assert panels.find(key) is second and panels.find(("b", 3, 0)) is None
    panels.remove(key, second)
    assert panels.find(key) is first
    panels.remove(key, first)
    assert panels.find(key) is None


def test_each_worker_gets_a_kept_panel_before_another_gets_two():
    queue = Queue(Grid(5, 3), 2)
    first, following = queue.claim(0), queue.claim(0)
    assert (first.kept, following.kept) == (0, 1)
    assert queue.claim(0) is None  # the last one is for the other worker
    assert queue.claim(1).kept == 2
    assert queue.claim(0) is None and queue.claim(1) is None
