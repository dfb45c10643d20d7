"""The ways to multiply matrices of the host that are timed, and how their results are judged."""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch

import torch_tiled
from torch_tiled import stream

Call = Callable[[], object]

FILL_ROWS = COMPARED_ROWS = 4096  # at a time
SAMPLE = 64  # rows, and columns, whose elements of C are compared with float64
LONG_SECONDS = 5.0  # a call that takes longer is not repeated
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # that show bits, by bytes
SHORT_SECONDS, MORE = 0.2, 3
XT_BLOCKS = (4096, 8192)
LINK_BYTES = 1 << 32  # that a measurement of the link moves, at most


@dataclass
class Problem:
    """C = A @ B on the host, for a GPU.

    Attributes:
        a, b, c: square matrices on the host.
        device: the GPU, or the CPU in its place.
        budget: the bytes of the GPU that a product may take.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    device: torch.device
    budget: int

    def fill(self) -> None:
        """Random normal operands, always the same ones, that the GPU draws."""
        for seed, x in enumerate((self.a, self.b)):
            generator = torch.Generator(self.device).manual_seed(seed)
            for first in range(0, len(x), FILL_ROWS):
                rows = x[first:][:FILL_ROWS]
                kind = {"dtype": x.dtype, "device": self.device}
                rows.copy_(torch.randn(rows.shape, generator=generator, **kind))

    def forget(self) -> None:
        """Makes C NaN, so that no way is judged by what another one wrote."""
        self.c.fill_(float("nan"))


@dataclass
class Times:
    """The seconds of calls, the most memory that one took of the GPU, and what ended them."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    failure: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def release(device: torch.device) -> None:
    """Gives the memory that PyTorch's allocator holds and does not use back to the GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def once(call: Call, device: torch.device, room: int) -> tuple[float, int | None]:
    """The seconds of one call, and the memory of the GPU that it took beside what was there."""
    synchronize(device)
    is_cuda = device.type == "cuda"
    if is_cuda:
        # A streamed product has streams of its own, for which PyTorch's allocator keeps memory.
        if torch.cuda.mem_get_info()[0] < room:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if is_cuda else 0
    start = time.perf_counter()
    call()
    synchronize(device)
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() - before if is_cuda else None


def alternate(
    calls: dict[str, Call], repeats: int, device: torch.device, room: int = 0
) -> dict[str, Times]:
    """Times calls one after the other, `repeats` times after a first call of each.

    The first call does not count, except where it takes LONG_SECONDS: that one is not repeated.
    Where all calls together take less than SHORT_SECONDS, they are repeated MORE times as often. A
    call that raises is left out from then on, and its Times say why.

    Args:
        calls: by their names.
        repeats: how often each is timed.
        device: the GPU, or the CPU in its place.
        room: the bytes of the GPU that are made free before a call, if unused ones are kept.
    """
    times = {name: Times() for name in calls}
    number, rounds = 0, repeats + 1
    while number < rounds:
        for name, call in calls.items():
            found = times[name]
            is_long = number > 0 and found.seconds and found.seconds[0] > LONG_SECONDS
            if found.failure or is_long:
                continue
            try:
                seconds, peak = once(call, device, room)
            except Exception as error:  # a row says what it was, and the run goes on
                found.failure = text_of(error)
                continue
            if number == 1:
                found.seconds.clear()
            found.seconds.append(seconds)
            if peak is not None:
                found.peak_bytes = max(peak, found.peak_bytes or 0)
        if number == 0 and sum(sum(x.seconds) for x in times.values()) < SHORT_SECONDS:
            rounds = MORE * repeats + 1
        number += 1
    return times


def error_of(problem: Problem) -> float:
    """The relative Frobenius error of C on sampled rows and columns, against float64."""
    generator = torch.Generator().manual_seed(2)
    m, n = problem.c.shape
    rows = torch.randperm(m, generator=generator)[:SAMPLE]
    cols = torch.randperm(n, generator=generator)[:SAMPLE]
    exact = problem.a[rows].double() @ problem.b[:, cols].double()
    found = problem.c[rows[:, None], cols].double()
    return float((found - exact).norm() / exact.norm())


def is_equal(c: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether all bits of C are those of the reference, where that one is."""
    kind = INTEGERS[c.dtype.itemsize]
    for first in range(0, len(c), COMPARED_ROWS):
        rows, others = (x[first:][:COMPARED_ROWS] for x in (c, reference))
        if not torch.equal(rows.to(reference.device).view(kind), others.view(kind)):
            return False
    return True


def streamed(problem: Problem, devices) -> Call:
    """torch_tiled.stream.matmul within the budget."""
    options = {"devices": devices, "max_device_bytes": problem.budget}
    return partial(stream.matmul, problem.a, problem.b, out=problem.c, **options)


class InCore:
    """torch_tiled.matmul of operands on the GPU.

    Attributes:
        result: what a call writes.

    Raises:
        torch.OutOfMemoryError: they do not fit.
    """

    def __init__(self, problem: Problem):
        self._a, self._b = problem.a.to(problem.device), problem.b.to(problem.device)
        self.result = torch.empty(problem.c.shape, dtype=problem.c.dtype, device=problem.device)

    def __call__(self):
        return torch_tiled.matmul(self._a, self._b, out=self.result)


def in_core_result(problem: Problem) -> torch.Tensor | None:
    """The result of InCore, or None where it does not fit."""
    try:
        product = InCore(problem)
        return product()
    except torch.OutOfMemoryError:
        return None


def loop_block(problem: Problem) -> int:
    """The largest power of 2 by which blocks of A, of B and of C are within the budget."""
    k, itemsize = problem.a.shape[1], problem.a.dtype.itemsize
    block = 1
    while block < len(problem.a) and itemsize * 4 * block * (k + block) <= problem.budget:
        block *= 2
    return block


def loop(problem: Problem, block: int) -> None:
    """What a user writes: blocks of rows of A, and of columns of B, by .to() and .cpu()."""
    a, b, out = problem.a, problem.b, problem.c
    for row in range(0, a.shape[0], block):
        a_block = a[row : row + block].to(problem.device)
        for col in range(0, b.shape[1], block):
            b_block = b[:, col : col + block].to(problem.device)
            out[row : row + block, col : col + block] = (a_block @ b_block).cpu()


def link_calls(host_a, host_c, device) -> dict[str, tuple[Call, int]]:
    """Copies between the host's memory and the GPU, by direction: a call, and the bytes it moves.

    Args:
        host_a, host_c: bytes of the host, of which LINK_BYTES are copied at most.
        device: the GPU.
    """
    host_a, host_c = host_a.flatten()[:LINK_BYTES], host_c.flatten()[:LINK_BYTES]
    there_a, there_c = (torch.empty_like(x, device=device) for x in (host_a, host_c))
    is_cuda = device.type == "cuda"
    queues = [torch.cuda.Stream(device) for _ in range(2)] if is_cuda else []
    contexts = [torch.cuda.stream(x) for x in queues] or [nullcontext()] * 2

    def copy_in():
        with contexts[0]:
            there_a.copy_(host_a, non_blocking=True)

    def copy_out():
        with contexts[1]:
            host_c.copy_(there_c, non_blocking=True)

    def both():
        copy_in()
        copy_out()

    moved = host_a.numel(), host_c.numel()
    return {"in": (copy_in, moved[0]), "out": (copy_out, moved[1]), "both": (both, sum(moved))}


def staged_calls(host_a, host_c, device) -> dict[str, tuple[Call, int]]:
    """The same through the pinned buffers of torch_tiled.stream, and a plain copy beside."""
    from torch_tiled.stream.machine import Machine
    from torch_tiled.stream.staging import CudaQueues, Staging, threads_of

    queues = CudaQueues(device)
    # float32, in rows of 16 KiB.
    count = min(host_a.numel(), LINK_BYTES) // 2**14 * 2**14
    a, c = (x.flatten()[:count].view(torch.float32).view(-1, 4096) for x in (host_a, host_c))
    there = torch.empty_like(a, device=device)
    machine = Machine(staging_threads=threads_of(1))
    staging = {x: Staging(machine, queues, x) for x in ("in", "out")}
    return {
        "staged in": (lambda: staging["in"].copy(there, a), count),
        "staged out": (lambda: staging["out"].copy(c, there), count),
        "pageable in, by copy_": (lambda: there.copy_(a), count),
        "pageable out, by copy_": (lambda: c.copy_(there), count),
    }
