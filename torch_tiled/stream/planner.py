"""The plan of a streamed product: the sizes of its tiles, what moves, and how long it takes.

A tile of C is the product of a panel of A, whole rows, and a panel of B, whole columns. One of the
two operands is kept, a panel at a time, and the other one streams past each of its panels. So the
kept operand is read once, and the streamed one once for each kept panel: kept panels are wide, and
streamed ones only as high as the GPU needs to be busy. Where a panel of all of K does not fit, K is
cut in slices at the boundaries of the order's chunks.
"""

import dataclasses
import functools
import math

from .._op.checks import prepared_sizes
from .machine import MIB, bytes_text
from .schedule import Grid
from .sizes import SLOTS, Sizes, pitch
from .timeline import timeline

__all__ = ["Candidate", "Plan", "Sizes", "least_budget", "make_plan"]

_STREAMED = (1024, 2048, 4096, 8192, 16384), (64, 128, 256, 512)  # the latter if need be
_SIMULATED = 8  # candidates, if they have at most so many steps:
_MOST_STEPS = 1024
_ALIGNMENT = 128  # of a tile's sides, in elements: whole tiles of kernels


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a product is streamed. Printing it shows all of this.

    Attributes:
        shape: (batch, m, n, k) of the product, with the matrices of the batch counted.
        tile: (rows, columns) of a tile of C, the last ones excepted.
        depth: how much of K a panel has: all of it, or a slice.
        matrices: how many matrices of a batch a step multiplies.
        kept: "a" or "b", the operand that is read once.
        is_prepared: whether panels of B are split beforehand (torch_tiled.prepare).
        bytes_in, bytes_out: what moves from the host, and to it, for all GPUs together.
        device_bytes: the memory that the product takes on each GPU, at most.
        pinned_bytes: the pinned memory that it takes for each GPU, at most.
        passes_a, passes_b: how often each operand is read from the host.
        seconds: what the product takes, predicted.
        product_seconds, in_seconds, out_seconds: what its products take alone, and its transfers.
        workers, algorithm: the number of GPUs, and the argument of matmul.

    Examples:
        >>> a = torch.empty(8192, 8192, device="meta")
        >>> torch_tiled.stream.plan(a, a, max_device_bytes=2 * 2**30).passes_b
        1
    """

    shape: tuple
    tile: tuple
    depth: int
    matrices: int
    kept: str
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
    workers: int
    algorithm: str

    @property
    def bound(self):
        """What the product waits for most: "products", "transfers in" or "transfers out"."""
        parts = {
            "products": self.product_seconds,
            "transfers in": self.in_seconds,
            "transfers out": self.out_seconds,
        }
        return max(parts, key=parts.get)

    @property
    def grid(self):
        """The tiles, for torch_tiled.stream.schedule."""
        return _grid(self.shape, self.tile, self.depth, self.kept, self.matrices)

    def slices(self, row, col):
        """A tile's part of C, or of a group of matrices: slices by which C is indexed."""
        batch, m, n, _ = self.shape
        if self.matrices:
            return (_slice(row, self.matrices, batch),)
        return _slice(row, self.tile[0], m), _slice(col, self.tile[1], n)

    def __str__(self):
        batch, m, n, k = self.shape
        grid = self.grid
        repeats = f"{batch} x " if batch != 1 else ""
        slices = f", K in {grid.slices} slices of {self.depth}" if grid.slices > 1 else ""
        if self.matrices:
            tiles = f"{grid.rows} groups of {self.matrices} matrices"
        else:
            tiles = f"{grid.rows} x {grid.cols} of {self.tile[0]} x {self.tile[1]}{slices}"
        prepared = ", split beforehand" if self.is_prepared else ""
        panels = f"those of {self.kept} are kept{prepared}, the others stream past them"
        if grid.slices > 1 or grid.is_paired:
            panels = "those of both operands stream"
        lines = {
            "problem": f"{repeats}m = {m}, n = {n}, k = {k}",
            "algorithm": self.algorithm,
            "tiles": tiles,
            "panels": panels,
            "passes": f"{self.passes_a:.3g} over a, {self.passes_b:.3g} over b",
            "bytes": f"{bytes_text(self.bytes_in)} in, {bytes_text(self.bytes_out)} out",
            "memory": (
                f"{bytes_text(self.device_bytes)} of each GPU, "
                f"{bytes_text(self.pinned_bytes)} pinned"
            ),
            "alone": (
                f"products {self.product_seconds:.3g} s, transfers in {self.in_seconds:.3g} s, "
                f"out {self.out_seconds:.3g} s"
            ),
            "predicted": f"{self.seconds:.3g} s on {self.workers} GPU(s), bound by {self.bound}",
        }
        return "\n".join(f"{name:<10} {value}" for name, value in lines.items())


def _slice(index, size, total):
    return slice(index * size, min((index + 1) * size, total))


def _grid(shape, tile, depth, kept, matrices):
    batch, m, n, k = shape
    if matrices:
        return Grid(math.ceil(batch / matrices), 1, is_paired=True)
    rows, cols = math.ceil(m / tile[0]), math.ceil(n / tile[1])
    return Grid(rows, cols, max(math.ceil(k / depth), 1), kept == "b")


class Candidate:
    """One choice of tile, depth and kept operand, and what it costs."""

    def __init__(self, sizes, machine, tile, depth, kept, matrices=0):
        self.sizes, self.machine = sizes, machine
        self.tile, self.depth = tuple(max(x, 1) for x in tile), max(depth, 1)
        self.kept, self.matrices = kept, matrices
        shape = sizes.batch, sizes.m, sizes.n, sizes.k
        self.grid = _grid(shape, self.tile, self.depth, kept, matrices)
        self.slices = self.grid.slices
        order = sizes.order
        self.is_prepared = kept == "b" and self.slices == 1 and not matrices and order.is_split
        self.device_bytes = self._device_bytes()

    def panel_bytes(self, rows):
        # Either side may be the contiguous one, so both are padded.
        s = self.sizes
        padded = pitch(rows, s.element_bytes) * pitch(self.depth, s.element_bytes)
        return padded * s.element_bytes * max(self.matrices, 1)

    def _device_bytes(self):
        s, (rows, cols) = self.sizes, self.tile
        order, depth = s.order, self.depth
        total = 0
        if not s.on_gpu_a:
            total += SLOTS * self.panel_bytes(rows)
        if not s.on_gpu_b:
            total += SLOTS * self.panel_bytes(cols)
        tile = rows * cols * max(self.matrices, 1)
        total += SLOTS * tile * s.out_bytes + s.bias_bytes
        if self.slices > 1:
            total += tile * (order.sum_bytes + (1 if order.is_flagged else 0))
        if self.is_prepared:
            hi_lo_bytes, scales = prepared_sizes(order.dtype, depth, cols, is_split=True)
            total += hi_lo_bytes + 4 * scales
        split = rows + (0 if self.is_prepared else cols)
        at_once = min(depth, order.chunk) if self.slices > 1 else depth
        workspace = order.workspace(split, at_once, tile, max(self.matrices, 1))
        if self.slices > 1 and order.is_flagged:  # a repair gathers panels, and has their sums
            gathered = (rows + cols) * depth * s.element_bytes + s.bias_bytes
            repair = gathered + order.repair_workspace(rows + cols, tile) + 4 * tile
            workspace = max(workspace, repair)
        return total + workspace + MIB

    def work(self):
        """(bytes of A, of B and of C that move, seconds of products, passes over A and B)."""
        s, (rows, cols) = self.sizes, self.tile
        if self.matrices:
            a = s.m * s.k * (1 if s.shares_a else s.batch)
            b = s.k * s.n * (1 if s.shares_b else s.batch)
            seconds = self.grid.rows * self.machine.product_seconds(
                s.order, s.m, s.n, s.k, self.matrices, prepared=False
            )
            passes = (1, 1)
        else:
            tiles_m, tiles_n = self.grid.rows, self.grid.cols
            strips, height = (tiles_n, tiles_m) if self.kept == "b" else (tiles_m, tiles_n)
            again = strips - (strips - 1) * min(SLOTS // self.slices, height) / max(height, 1)
            kept_again = 1 if self.slices <= SLOTS else height
            passes = (again, kept_again) if self.kept == "b" else (kept_again, again)
            a, b = s.m * s.k * passes[0] * s.batch, s.k * s.n * passes[1] * s.batch
            seconds = s.batch * sum(
                rows_of * cols_of * self.slices_seconds(height, width)
                for height, rows_of in _parts(s.m, rows)
                for width, cols_of in _parts(s.n, cols)
            )
        moved = [int(s.element_bytes * x) for x in (a, b)]
        return *moved, s.out_bytes * s.batch * s.m * s.n, seconds, passes

    def steps(self):
        steps = self.grid.tile_count * self.slices
        return steps if self.matrices else self.sizes.batch * steps

    def slices_seconds(self, rows, cols):
        """The seconds of a tile's products."""
        s = self.sizes
        if self.slices == 1:
            return self.machine.product_seconds(
                s.order, rows, cols, s.k, 1, prepared=self.is_prepared
            )
        chunks = math.ceil(s.k / s.order.chunk)
        return chunks * self.machine.chunk_seconds(s.order, rows, cols)

    def in_seconds(self, a_bytes, b_bytes):
        """The seconds in which bytes of A and of B reach the GPU."""
        s = self.sizes
        return self.machine.seconds_in(a_bytes * (not s.on_gpu_a), s.stages_a) + (
            self.machine.seconds_in(b_bytes * (not s.on_gpu_b), s.stages_b)
        )

    def out_seconds(self, nbytes):
        return self.machine.seconds_out(nbytes, self.sizes.stages_out)

    def estimate(self, workers):
        """The seconds without a simulation: the longest of three queues, and how they begin."""
        a_bytes, b_bytes, out_bytes, seconds, _ = self.work()
        rows, cols = self.tile
        begin = self.in_seconds(self.panel_bytes(rows), self.panel_bytes(cols))
        end = self.out_seconds(rows * cols * max(self.matrices, 1) * self.sizes.out_bytes)
        issue = self.steps() * self.machine.step_seconds
        transfers = self.in_seconds(a_bytes, b_bytes)
        busiest = max(seconds, transfers, self.out_seconds(out_bytes), issue)
        return begin + busiest / workers + end


def _parts(total, size):
    """The sizes of the parts of a side, and how many have each."""
    whole, rest = divmod(total, size)
    return [x for x in ((size, whole), (rest, 1)) if x[0] and x[1]]


def _kept_sizes(total):
    """The widths that kept panels may have: the side in equal parts, by whole kernel tiles."""
    widths, parts = [], 1
    while not widths or widths[-1] > _ALIGNMENT:
        width = min(math.ceil(total / parts / _ALIGNMENT) * _ALIGNMENT, total)
        if not widths or width < widths[-1]:
            widths.append(width)
        parts += max(1, parts // 6)
        if parts > total:
            break
    return widths


def _candidates(sizes, machine, budget):
    """Those within the budget: for each height of streamed panels, the wider kept ones."""
    if sizes.batch > 1:
        one = Candidate(sizes, machine, (sizes.m, sizes.n), sizes.k, "b", 1)
        if 6 * one.device_bytes <= budget:
            each = max(one.device_bytes - MIB, 1)
            most = min(sizes.batch, max(int(budget // 3 // each), 1))
            yield Candidate(sizes, machine, (sizes.m, sizes.n), sizes.k, "b", most)
            return
    for heights in _STREAMED:
        found = list(_tiles(sizes, machine, budget, heights))
        yield from found
        if found:
            return


def _tiles(sizes, machine, budget, heights):
    for kept in ("b", "a"):
        streamed_side, kept_side = (sizes.m, sizes.n) if kept == "b" else (sizes.n, sizes.m)
        widths = _kept_sizes(kept_side)
        for height in sorted({min(x, streamed_side) for x in heights}):
            for depth in _depths(sizes):
                widest = None
                for width in widths:
                    tile = (height, width) if kept == "b" else (width, height)
                    each = Candidate(sizes, machine, tile, depth, kept)
                    if each.device_bytes > budget:
                        continue
                    widest = widest or width
                    if width < widest / 4:
                        break
                    yield each


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


@functools.lru_cache(256)
def make_plan(sizes, machine, budget, workers=1):
    """Returns the Plan that takes the fewest seconds within `budget` bytes of each GPU, or None.

    Args:
        sizes: the Sizes of the product.
        machine: the Machine that it runs on.
        budget: bytes.
        workers: GPUs.
    """
    found = sorted(_candidates(sizes, machine, budget), key=lambda x: x.estimate(workers))
    plans = [_plan_of(x, workers) for x in found[:_SIMULATED]]
    return min(plans, key=lambda x: x.seconds, default=None)


def _plan_of(candidate, workers):
    s, machine = candidate.sizes, candidate.machine
    a_bytes, b_bytes, out_bytes, product_seconds, passes = candidate.work()
    is_staged = s.stages_a or s.stages_b or s.stages_out
    plan = Plan(
        shape=(s.batch, s.m, s.n, s.k),
        tile=candidate.tile,
        depth=candidate.depth,
        matrices=candidate.matrices,
        kept=candidate.kept,
        is_prepared=candidate.is_prepared,
        bytes_in=a_bytes * (not s.on_gpu_a) + b_bytes * (not s.on_gpu_b),
        bytes_out=out_bytes,
        device_bytes=candidate.device_bytes,
        pinned_bytes=machine.staging_bytes if is_staged else 0,
        passes_a=passes[0],
        passes_b=passes[1],
        seconds=0,
        product_seconds=product_seconds / workers,
        in_seconds=candidate.in_seconds(a_bytes, b_bytes) / workers,
        out_seconds=candidate.out_seconds(out_bytes) / workers,
        workers=workers,
        algorithm=s.order.algorithm,
    )
    return dataclasses.replace(plan, seconds=_simulated_seconds(candidate, workers))


def least_budget(sizes, machine):
    """The fewest bytes of a GPU by which the product can be streamed."""
    sides = (sizes.m, sizes.n), (sizes.n, sizes.m)
    return min(
        Candidate(sizes, machine, tile if kept == "b" else tile[::-1], depth, kept).device_bytes
        for depth in _depths(sizes)
        for kept, (streamed, other) in zip(("b", "a"), sides, strict=True)
        for tile in [(min(_STREAMED[-1][0], streamed), min(_ALIGNMENT, other))]
    )


def _simulated_seconds(candidate, workers):
    """The time of the last event of a worker's schedule; the longest schedules are extrapolated."""
    grid = candidate.grid
    steps = grid.tile_count * grid.slices
    if steps == 0:
        return 0.0
    if workers > 1 or steps > _MOST_STEPS or candidate.matrices:
        return candidate.estimate(workers)
    *_, last = timeline(candidate)
    return last.end * candidate.sizes.batch
