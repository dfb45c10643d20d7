"""The plan of a streamed product: the sizes of its tiles, what moves, and how long it takes.

A tile of C is the product of a panel of A, whole rows, and a panel of B, whole columns. One of the
two operands is kept, a panel at a time, and the other one streams past each of its panels. So the
kept operand is read once, and the streamed one once for each kept panel: kept panels are wide, and
streamed ones only as high as the GPU needs to be busy. K is cut in slices, at the boundaries of the
order's chunks, if panels of all of K would be too narrow.
"""

import dataclasses
import functools
import math

from .candidate import Candidate, grid_of
from .machine import bytes_text
from .schedule import SLOTS

__all__ = ["Candidate", "Plan", "emptied", "least_budget", "make_plan", "repeated"]

_STREAMED = 1024, 2048, 4096, 8192, 16384  # rows of streamed panels, which keep every SM busy
_LOW = 64, 128, 256, 512  # the same if memory is too little for those
_ALIGNMENT = 128  # of a tile's sides, in elements: whole tiles of kernels
# The fields of a plan that count what moves, and what takes time.
_MOVED = (
    *("bytes_in", "bytes_out", "seconds"),
    *("product_seconds", "in_seconds", "out_seconds", "launch_seconds", "staging_seconds"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a product is streamed. Printing it shows all of this.

    Attributes:
        shape: (batch, m, n, k) of the product, with the matrices of the batch counted.
        tile: (rows, columns) of a tile of C, the last ones excepted.
        depth: how much of K a panel has: all of it, or a slice.
        matrices: the size of a group, the matrices of a batch that one step multiplies; 0 if a
            step multiplies two panels.
        repeats: how many products with these tiles or groups follow one another. A batch without
            groups has one for each matrix. A batch with strides that allow groups only within its
            last dimensions has one for each index of the others. Anything else is one product.
        kept: "a" or "b", the operand that loads each of its panels once. None if both operands
            stream, as groups do, and as panels do if K has more than two slices.
        shares: two flags, for A and for B: whether all matrices of a group share one operand, which
            is loaded once.
        is_prepared: whether panels of B are split beforehand (torch_tiled.prepare).
        bytes_in, bytes_out: the bytes that move from the host, and to it, for all GPUs together.
        device_bytes: the most memory that the product takes on each GPU.
        pinned_bytes: the most pinned memory that it takes for each GPU.
        passes_a, passes_b: how often each operand is read from the host. Matrices that share their
            memory count as one.
        seconds: the predicted time of the product.
        product_seconds, in_seconds, out_seconds: the predicted time of its products alone, and of
            its copies in each direction.
        launch_seconds, staging_seconds: the time in which the host launches the steps, and copies
            what passes through pinned memory.
        workers, algorithm: the number of GPUs, and the argument of matmul.

    Examples:
        >>> a = torch.empty(8192, 8192, device="meta")
        >>> torch_tiled.stream.plan(a, a, max_device_bytes=2 * 2**30).passes_b
        1.0
    """

    shape: tuple
    tile: tuple
    depth: int
    matrices: int
    repeats: int
    kept: str | None
    shares: tuple
    is_prepared: bool
    bytes_in: int
    bytes_out: int
    device_bytes: int
    pinned_bytes: int
    passes_a: float
    passes_b: float
    seconds: float
    product_seconds: float
    in_seconds: float
    out_seconds: float
    launch_seconds: float
    staging_seconds: float
    workers: int
    algorithm: str

    @property
    def bound(self):
        """The longest of "products", "transfers in" or "out", "launches" and "staging"."""
        parts = {
            "products": self.product_seconds,
            "transfers in": self.in_seconds,
            "transfers out": self.out_seconds,
            "launches": self.launch_seconds,
            "staging": self.staging_seconds,
        }
        return max(parts, key=parts.get)

    @property
    def grid(self):
        """The tiles that are repeated, for torch_tiled.stream.schedule."""
        batch, *sides = self.shape
        shape = batch // max(self.repeats, 1), *sides
        return grid_of(shape, self.tile, self.depth, self.kept, self.matrices, self.shares)

    @property
    def steps(self):
        """The number of products that are launched, slices of K counted."""
        return self.repeats * self.grid.tile_count * self.grid.slices

    def slices(self, row, col):
        """A tile's part of C, or of a group of matrices: slices by which C is indexed."""
        batch, m, n, _ = self.shape
        if self.matrices:
            return (_slice(row, self.matrices, batch),)
        return _slice(row, self.tile[0], m), _slice(col, self.tile[1], n)

    def __str__(self):
        batch, m, n, k = self.shape
        grid = self.grid
        matrices = f"{batch} x " if batch != 1 else ""
        repeats = f"{self.repeats} times " if self.repeats > 1 else ""
        slices = f", K in {grid.slices} slices of {self.depth}" if grid.slices > 1 else ""
        if self.matrices:
            tiles = f"{grid.rows} groups of {self.matrices} matrices"
        else:
            tiles = f"{grid.rows} x {grid.cols} of {self.tile[0]} x {self.tile[1]}{slices}"
        prepared = ", split beforehand" if self.is_prepared else ""
        panels = f"those of {self.kept} are kept{prepared}, the others stream past them"
        if self.kept is None:
            panels = "those of both operands stream"
        staging = f", staging {self.staging_seconds:.3g} s" if self.staging_seconds else ""
        lines = {
            "problem": f"{matrices}m = {m}, n = {n}, k = {k}",
            "algorithm": self.algorithm,
            "tiles": repeats + tiles,
            "steps": self.steps,
            "panels": panels,
            "passes": f"{self.passes_a:.3g} over a, {self.passes_b:.3g} over b",
            "bytes": f"{bytes_text(self.bytes_in)} in, {bytes_text(self.bytes_out)} out",
            "memory": (
                f"{bytes_text(self.device_bytes)} of each GPU, "
                f"{bytes_text(self.pinned_bytes)} pinned"
            ),
            "alone": (
                f"products {self.product_seconds:.3g} s, transfers in {self.in_seconds:.3g} s, "
                f"out {self.out_seconds:.3g} s, launches {self.launch_seconds:.3g} s{staging}"
            ),
            "predicted": f"{self.seconds:.3g} s on {self.workers} GPU(s), bound by {self.bound}",
        }
        return "\n".join(f"{name:<10} {value}" for name, value in lines.items())


def emptied(plan, times):
    """Returns the Plan of as many such products that multiply nothing."""
    batch, *sides = plan.shape
    memory = "device_bytes", "pinned_bytes", "passes_a", "passes_b"
    empty = dict.fromkeys((*_MOVED, *memory), 0)
    return dataclasses.replace(plan, shape=(times * batch, *sides), repeats=0, **empty)


def repeated(plan, times, times_a, times_b):
    """Returns the Plan of such products one after another.

    Args:
        plan: of one.
        times: how many.
        times_a, times_b: how many of them have one A, and one B, which each of them reads.
    """
    batch, *sides = plan.shape
    return dataclasses.replace(
        plan,
        shape=(times * batch, *sides),
        repeats=times * plan.repeats,
        passes_a=times_a * plan.passes_a,
        passes_b=times_b * plan.passes_b,
        **{name: times * getattr(plan, name) for name in _MOVED},
    )


def _slice(index, size, total):
    return slice(index * size, min((index + 1) * size, total))


@functools.lru_cache(256)
def make_plan(sizes, machine, budget, workers=1):
    """Returns the Plan that takes the fewest seconds within `budget` bytes of each GPU, or None.

    A larger budget allows every candidate of a smaller one, so it never makes a plan slower.

    Args:
        sizes: the Sizes of the product.
        machine: the Machine that it runs on.
        budget: bytes.
        workers: GPUs.
    """
    if sizes.batch == 1:
        return _fastest(_tiles(sizes, machine, budget), workers)
    groups = _fastest([_groups(sizes, machine, budget)], workers) if sizes.batch else None
    one = make_plan(_batch_of_one(sizes), machine, budget, workers)
    each = None if one is None else _one_by_one(one, sizes)
    return min((x for x in (groups, each) if x), key=lambda x: x.seconds, default=None)


def _fastest(chains, workers):
    """The Plan of the fastest candidate, or None.

    Args:
        chains: iterators of Candidates; copies take no less time from one to the next in each.
        workers: GPUs.
    """
    fastest, seconds = None, math.inf
    for chain in chains:
        for candidate in chain:
            if candidate.queue_seconds(workers) >= seconds:
                break  # and so do all that follow
            if candidate.least_seconds(workers) < seconds:
                found = candidate.seconds(workers)
                if found < seconds:
                    fastest, seconds = candidate, found
    return None if fastest is None else _plan_of(fastest, workers)


def _groups(sizes, machine, budget):
    """Groups of the matrices of a batch, the larger ones first."""
    for matrices in sorted({*_equal_parts(sizes.batch, 1), 1}, reverse=True):
        candidate = Candidate(sizes, machine, (sizes.m, sizes.n), sizes.k, "b", matrices)
        if candidate.device_bytes <= budget:
            yield candidate


def _tiles(sizes, machine, budget):
    """For each kept operand, depth and height of streamed panels, tiles of narrower kept panels."""
    # It does not depend on the budget, so that a larger one allows all that a smaller one does.
    too_little = min(budget, _least_bytes(sizes, machine, _STREAMED[0]) - 1)
    for kept in "ba":
        streamed, other = (sizes.m, sizes.n) if kept == "b" else (sizes.n, sizes.m)
        widths = _equal_parts(other, _ALIGNMENT)
        for depth in _depths(sizes):
            for heights, most in (_STREAMED, budget), (_LOW, too_little):
                for height in sorted({min(x, streamed) for x in heights}):
                    tiles = [(height, x) if kept == "b" else (x, height) for x in widths]
                    yield _within(most, sizes, machine, tiles, depth, kept)


def _within(budget, sizes, machine, tiles, depth, kept):
    """The candidates of these tiles that are within the budget."""
    for tile in tiles:
        if SLOTS * tile[0] * tile[1] * sizes.out_bytes > budget:
            continue  # what follows takes longer to see
        candidate = Candidate(sizes, machine, tile, depth, kept)
        if candidate.device_bytes <= budget:
            yield candidate


def _equal_parts(total, alignment):
    """Sizes of the parts of a side that is cut in 1, 2, ... equal parts, by whole alignments."""
    sizes, parts = [], 1
    while not sizes or sizes[-1] > alignment:
        size = min(math.ceil(total / parts / alignment) * alignment, total)
        if not sizes or size < sizes[-1]:
            sizes.append(size)
        parts += max(1, parts // 6)
        if parts > total:
            break
    return sizes


def _depths(sizes):
    """All of K, and slices of it by whole chunks."""
    yield sizes.k
    chunk = sizes.order.chunk
    if chunk is None:
        return
    depth = chunk
    while depth < sizes.k:
        yield depth
        depth *= 4


def _plan_of(candidate, workers):
    """Returns the Plan of a Candidate."""
    s, machine = candidate.sizes, candidate.machine
    a_bytes, b_bytes, out_bytes, passes = candidate.moved
    transfers_in, out_seconds = candidate.transfer_seconds
    directions = (s.a.is_staged or s.b.is_staged) + s.out_is_staged  # that are staged
    return Plan(
        shape=(s.batch, s.m, s.n, s.k),
        tile=candidate.tile,
        depth=candidate.depth,
        matrices=candidate.matrices,
        repeats=1,
        kept=candidate.kept,
        shares=(s.a.is_shared, s.b.is_shared),
        is_prepared=candidate.is_prepared,
        bytes_in=a_bytes * (not s.a.is_on_gpu) + b_bytes * (not s.b.is_on_gpu),
        bytes_out=out_bytes,
        device_bytes=candidate.device_bytes,
        pinned_bytes=machine.staging_bytes * directions,
        passes_a=passes[0] * (not s.a.is_on_gpu),
        passes_b=passes[1] * (not s.b.is_on_gpu),
        seconds=candidate.seconds(workers),
        product_seconds=candidate.product_seconds / workers,
        in_seconds=transfers_in / workers,
        out_seconds=out_seconds / workers,
        launch_seconds=candidate.launch_seconds / workers,
        staging_seconds=candidate.staging_seconds,
        workers=workers,
        algorithm=s.order.algorithm,
    )


def least_budget(sizes, machine):
    """The fewest bytes of a GPU by which the product can be streamed."""
    least = _least_bytes(_batch_of_one(sizes), machine, _LOW[0])
    if sizes.batch > 1:
        group = Candidate(sizes, machine, (sizes.m, sizes.n), sizes.k, "b", 1)
        least = min(least, group.device_bytes)
    return least


def _least_bytes(sizes, machine, height):
    """The fewest bytes of tiles by streamed panels of so many rows."""
    sides = (sizes.m, sizes.n), (sizes.n, sizes.m)
    return min(
        Candidate(sizes, machine, tile if kept == "b" else tile[::-1], depth, kept).device_bytes
        for depth in _depths(sizes)
        for kept, (streamed, other) in zip("ba", sides, strict=True)
        for tile in [(min(height, streamed), min(_ALIGNMENT, other))]
    )


def _one_by_one(plan, sizes):
    """The Plan of a batch from that of each of its matrices."""
    of_one = (sizes.batch if x.is_shared else 1 for x in (sizes.a, sizes.b))
    return repeated(plan, sizes.batch, *of_one)


def _batch_of_one(sizes):
    a, b = (dataclasses.replace(x, is_shared=False) for x in (sizes.a, sizes.b))
    return dataclasses.replace(sizes, batch=1, a=a, b=b, repeats=sizes.repeats * sizes.batch)
