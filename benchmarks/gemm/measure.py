"""Times functions side by side on operands that are not in the cache.

Successive calls have different sets of operands. A pass is a few calls; passes of our call, of the
peer's and of a copy alternate, so that a clock that drifts drifts for all. The time of a call is
the time of its pass divided by the calls in it; median, p10 and p90 are over passes.

On CUDA a pass is one replay of a captured graph, which calls once on each set, between two events:
the host's time is not in it. The L2 cache is swept before each pass: read, or where `dirty` says so
overwritten. On a CPU a pass is as many calls as the host's clock needs, and only the number of sets
keeps the operands cold.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.suites.shapes import Shape

Operands = tuple[torch.Tensor, ...]
Product = Callable[..., torch.Tensor]  # of operands
Call = tuple[Product, list[Operands]]  # a function, and the operands that it is called on in turn

# The sets of operands are this multiple of the cache: all of them are read from memory, the dirty
# lines that a pass leaves are few beside what it moves, and its graph's start is short beside it.
CACHES = 16
MOST_SETS = 64
MOST_PASSES = 200
HOST_PASS_US = 1000  # long beside the clock's own cost
POWER_SECONDS = 0.5  # until a GPU's power has settled
ENERGY_SECONDS = 2.0  # long beside the tenth of a second after which NVML counts anew


@dataclass(frozen=True)
class Spread:
    """Microseconds of one call."""

    median: float
    p10: float
    p90: float


def clock_name(device: torch.device) -> str:
    return "graph" if device.type == "cuda" else "perf_counter"


def cache_bytes(device: torch.device) -> int:
    """The last cache before memory: L2 of a GPU, L3 of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # "32768K"
    return int(size.read_text().strip().removesuffix("K")) * 1024 if size.exists() else 2**25


def operand_sets(
    shape: Shape, dtype: torch.dtype, device: torch.device, most: int = MOST_SETS
) -> list[Operands]:
    """Random normal operands: as many sets as fill the cache CACHES times, or `most`."""
    count = min(most, count_sets(shape.operands * dtype.itemsize, device))
    options = {"dtype": dtype, "device": device}
    make = partial(torch.randn, **options, generator=torch.Generator(device).manual_seed(0))
    return [shape.stored(make) for _ in range(count)]


def count_sets(bytes_each: int, device: torch.device) -> int:
    """How many sets of operands fill the cache CACHES times, within limits."""
    return min(MOST_SETS, max(2, -(-CACHES * cache_bytes(device) // bytes_each)))


def copy(moved: int, device: torch.device) -> Call:
    """A copy that moves that many bytes, half of them read and half of them written.

    It negates, since the driver may run a captured copy_ on a copy engine.
    """
    size = max(1, moved // 8)  # a float32 is read and written
    pairs = [
        (torch.randn(size, device=device), torch.empty(size, device=device))
        for _ in range(count_sets(moved, device))
    ]
    return lambda source, out: torch.neg(source, out=out), pairs


class _HostPasses:
    def __init__(self, function: Product, sets: list[Operands]):
        self._function = function
        self._sets = itertools.cycle(sets)
        self._us: list[float] = []
        self._calls = 1
        self.run()
        self._calls = min(len(sets), max(1, int(HOST_PASS_US / self.take()[0])))

    def run(self) -> None:
        start = time.perf_counter()
        for operands in itertools.islice(self._sets, self._calls):
            self._function(*operands)
        self._us.append((time.perf_counter() - start) * 1e6 / self._calls)

    def take(self) -> list[float]:
        """Microseconds a call of every pass since the last take."""
        us, self._us = self._us, []
        return us


class _GraphPasses:
    def __init__(self, function: Product, sets: list[Operands], dirty: bool = False):
        self._dirty = dirty
        function(*sets[0])  # a first call may load code, which a capture cannot hold
        self._calls = len(sets)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for operands in sets:
                function(*operands)
        self._sweep = torch.ones(2 * cache_bytes(sets[0][0].device) // 4, device="cuda")
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def run(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self._dirty:
            self._sweep.zero_()
        else:
            self._sweep.sum()  # dirty lines would still have to be written back
        start.record()
        self._graph.replay()
        end.record()
        self._events.append((start, end))

    def take(self) -> list[float]:
        """Microseconds a call of every pass since the last take."""
        torch.cuda.synchronize()
        events, self._events = self._events, []
        return [start.elapsed_time(end) * 1e3 / self._calls for start, end in events]

    def repeat(self, seconds: float) -> int:
        """Replays back to back without a sweep, and returns how many calls that were."""
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self._graph.replay()
            torch.cuda.synchronize()
            calls += self._calls
        return calls


def side_by_side(
    calls: list[Call], *, seconds: float, repeats: int, dirty: bool = False
) -> list[Spread]:
    """Times them for about `seconds` together, in at least `repeats` passes of each.

    With `dirty`, L2 is full of lines before each pass that were written and are not in memory yet,
    as after a kernel that wrote a large result.
    """
    every = [
        _GraphPasses(function, sets, dirty) if sets[0][0].is_cuda else _HostPasses(function, sets)
        for function, sets in calls
    ]
    start = time.perf_counter()
    for each in every:
        each.run()
        each.take()
    one_round = time.perf_counter() - start
    for _ in range(min(MOST_PASSES, max(repeats, int(seconds / one_round)))):
        for each in every:
            each.run()
    return [_spread(each.take()) for each in every]


def _spread(us: list[float]) -> Spread:
    points = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    return Spread(*torch.tensor(us, dtype=torch.float64).quantile(points).tolist())


def joules(call: Call, energy: Callable[[], float]) -> float:
    """The energy of one call on a GPU, by a counter of all that the GPU has used."""
    passes = _GraphPasses(*call)
    passes.repeat(POWER_SECONDS)
    before = energy()
    calls = passes.repeat(ENERGY_SECONDS)
    return (energy() - before) / calls


def extra_bytes(call: Call) -> int | None:
    """The peak of memory that a call takes beside operands and result; None on a CPU."""
    function, sets = call
    if not sets[0][0].is_cuda:
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function(*sets[0])
    return torch.cuda.max_memory_allocated() - before - result.nbytes


def raise_clocks(device: torch.device, seconds: float = 0.5) -> None:
    """Keeps a GPU busy until it has left its idle clocks."""
    if device.type != "cuda":
        return
    a = torch.randn(4096, 4096, device=device)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        a @ a
        torch.cuda.synchronize()
