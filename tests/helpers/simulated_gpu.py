"""A GPU with three queues that the CPU plays, for products larger than the GPU.

Work is put off until something waits for it, and queues take turns at random, so that a missing
event shows as a wrong result. A clock counts what each queue would take.
"""

import contextlib
import random
import threading

import torch

from torch_tiled._op.namespace import operators
from torch_tiled.stream.machine import Machine
from torch_tiled.stream.parts import Settings
from torch_tiled.stream.staging import QUEUES, copy_direct


class Event:
    def __init__(self, queues):
        self.queues = queues
        self.is_done, self.seconds = False, 0.0

    def synchronize(self):
        self.queues.run_until(self)


class SimulatedQueues:
    """See torch_tiled.stream.staging.CudaQueues, whose methods these are."""

    def __init__(self, device, machine=None, seed=0):
        self.device = device
        self._machine = machine or Machine()
        self._random = random.Random(seed)
        self._work = {name: [] for name in QUEUES}
        self._clocks = dict.fromkeys(QUEUES, 0.0)
        self._lock = threading.RLock()
        self.copied = {"in": 0, "out": 0}

    def context(self):
        return contextlib.nullcontext()

    def run(self, queue, function, *arguments):
        with self._lock:
            self._work[queue].append(("run", function, arguments))
            if function is operators._copy_staged_:  # the host copies before it goes on
                self.run_until(self.record(queue))

    def record(self, queue):
        event = Event(self)
        with self._lock:
            self._work[queue].append(("record", event))
        return event

    def wait(self, queue, event):
        with self._lock:
            self._work[queue].append(("wait", event))

    def synchronize(self):
        with self._lock:
            while any(self._work.values()):
                self._step()

    def run_until(self, event):
        with self._lock:
            while not event.is_done:
                self._step()

    @property
    def seconds(self):
        return max(self._clocks.values())

    def _step(self):
        """Runs the first work of one queue that need not wait."""
        firsts = {name: work[0] for name, work in self._work.items() if work}
        ready = [name for name, first in firsts.items() if self._is_ready(first)]
        assert ready, "the queues wait for each other"
        queue = self._random.choice(ready)
        kind, first, *arguments = self._work[queue].pop(0)
        if kind == "wait":
            self._clocks[queue] = max(self._clocks[queue], first.seconds)
        elif kind == "record":
            first.is_done, first.seconds = True, self._clocks[queue]
        else:
            _check_copy(first, arguments[0])
            first(*arguments[0])
            self._clocks[queue] += self._cost(queue, first, arguments[0])

    @staticmethod
    def _is_ready(work):
        return work[0] != "wait" or work[1].is_done

    def _cost(self, queue, function, arguments):
        if queue == "compute":
            worker, (_, a, b, _) = function.__self__, arguments
            order = worker.order
            if worker._sums is not None:
                chunks = -(-a.shape[-1] // order.chunk)
                return chunks * self._machine.chunk_seconds(order, a.shape[-2], b.shape[-1])
            sizes = a.shape[-2], b.shape[-1], a.shape[-1]
            matrices = max(x.shape[0] if x.dim() == 3 else 1 for x in (a, b))
            prepared = worker.plan.is_prepared
            return self._machine.product_seconds(order, *sizes, matrices, prepared=prepared)
        if function is torch.Tensor.zero_ or not arguments:
            return 0.0
        nbytes = arguments[1].nbytes
        self.copied[queue] += nbytes
        seconds = {"in": self._machine.seconds_in, "out": self._machine.seconds_out}[queue]
        return seconds(nbytes, _lines(*arguments[:2]), 1, False)


def _lines(*tensors):
    """The rows, or columns, of adjacent elements in memory; 0 if they are one range in each."""
    if not all(x.stride(-1) == 1 for x in tensors):
        tensors = [x.mT for x in tensors]
    return 0 if all(x.is_contiguous() for x in tensors) else tensors[0].shape[:-1].numel()


def _check_copy(function, arguments):
    """Checks what a copy between the host and a GPU asks of strides (csrc/binding/copies.cpp)."""
    if function not in (copy_direct, operators._copy_staged_):
        return
    to, source = (x if x.dim() == 3 else x[None] for x in arguments[:2])
    if function is operators._copy_staged_:  # the GPU's side alone
        to = source = to if arguments[-1] else source
    by_rows = all(_has_adjacent_rows(x) for x in (to, source))
    by_columns = all(_has_adjacent_rows(x.mT) for x in (to, source))
    assert by_rows or by_columns, f"a copy cannot be {source.stride()} to {to.stride()}"


def _has_adjacent_rows(x):
    rows, cols = x.shape[-2:]
    return 0 in x.shape or (
        (x.stride(-1) == 1 or cols == 1) and (x.stride(-2) >= cols or rows == 1)
    )


def simulated(budget, workers=1, *, seed=0, staging_bytes=1 << 15):
    """Returns (Settings of simulated GPUs, the list of their queues)."""
    # The host takes no time, and the GPU keeps its lower clock.
    no_time = {"step_seconds": 0, "start_seconds": 0, "call_seconds": 0}
    machine = Machine(staging_bytes=staging_bytes, staging_threads=3, boost=1, **no_time)
    made = []

    def make_queues(device):
        made.append(SimulatedQueues(device, machine, seed + len(made)))
        return made[-1]

    devices = (torch.device("cpu"),) * workers
    return Settings(devices, budget, machine, make_queues, None), made


__all__ = ["SimulatedQueues", "operators", "simulated"]
