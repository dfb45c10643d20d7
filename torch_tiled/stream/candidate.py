"""The costs of one choice of tiles: memory, bytes that move, and seconds."""

import functools
import math
from typing import NamedTuple

from .._op.checks import prepared_sizes
from .machine import MIB
from .schedule import SLOTS, Grid, steps
from .staging import pitch

__all__ = ["Candidate", "Span", "grid_of", "timeline"]

_MOST_STEPS = 256  # of a schedule that is simulated


def grid_of(shape, tile, depth, kept, matrices, shares):
    """The Grid of a plan; the arguments are its attributes."""
    batch, m, n, k = shape
    if matrices:
        return Grid(math.ceil(batch / matrices), 1, 1, True, True, *shares)
    rows, cols = math.ceil(m / tile[0]), math.ceil(n / tile[1])
    return Grid(rows, cols, max(math.ceil(k / depth), 1), kept != "a")


class Candidate:
    """One choice of tile, depth and kept operand, or of the size of groups, and what it costs."""

    def __init__(self, sizes, machine, tile, depth, kept, matrices=0):
        self.sizes, self.machine = sizes, machine
        self.tile, self.depth = tuple(max(x, 1) for x in tile), max(depth, 1)
        self.matrices, self.slices = matrices, max(math.ceil(sizes.k / self.depth), 1)
        # With more slices than slots, no panel outlasts a tile.
        self.kept = None if matrices or self.slices > SLOTS else kept
        shape = sizes.batch, sizes.m, sizes.n, sizes.k
        shares = sizes.a.is_shared, sizes.b.is_shared
        self.grid = grid_of(shape, self.tile, self.depth, self.kept, matrices, shares)
        order = sizes.order
        self.is_prepared = self.kept == "b" and self.slices == 1 and order.is_split
        self.device_bytes = self._device_bytes()

    def _slot_bytes(self, source, rows):
        """The bytes of an operand's slots, for panels of so many rows."""
        if source.is_on_gpu:
            return 0
        # Either side may be the contiguous one, so both are padded.
        s = self.sizes
        padded = pitch(rows, s.element_bytes) * pitch(self.depth, s.element_bytes)
        if self.matrices and source.is_shared:
            return _allocated(padded * s.element_bytes)
        return SLOTS * _allocated(max(self.matrices, 1) * padded * s.element_bytes)

    def _device_bytes(self):
        s, (rows, cols) = self.sizes, self.tile
        order, depth = s.order, self.depth
        total = self._slot_bytes(s.a, rows) + self._slot_bytes(s.b, cols)
        tile = rows * cols * max(self.matrices, 1)
        total += SLOTS * _allocated(tile * s.out_bytes) + _allocated(s.bias_bytes)
        if self.slices > 1:
            total += _allocated(tile * order.sum_bytes)
            total += _allocated(tile) if order.is_flagged else 0
        if self.is_prepared:
            hi_lo_bytes, scales = prepared_sizes(order.dtype, depth, cols, is_split=True)
            total += _allocated(hi_lo_bytes) + _allocated(4 * scales)
        is_cut = self.slices > 1
        at_once = min(depth, order.chunk) if is_cut else depth
        sizes = rows, cols, at_once, max(self.matrices, 1)
        workspace = order.workspace(*sizes, prepared=self.is_prepared, adds_chunk=is_cut)
        if self.slices > 1 and order.is_flagged:  # a repair gathers panels, and has their sums
            gathered = (rows + cols) * depth * s.element_bytes + s.bias_bytes
            repair = gathered + order.repair_workspace(rows, cols) + 4 * tile
            workspace = max(workspace, repair)
        return total + _allocated(workspace) + MIB

    @functools.cached_property
    def _read(self):
        """For A and for B: the rows of all panels that are read together, and how many panels."""
        s, grid = self.sizes, self.grid
        if self.matrices:
            counts = (1 if x.is_shared else s.batch for x in (s.a, s.b))
            return [(x.rows * count, count) for x, count in zip((s.a, s.b), counts, strict=True)]
        if grid.keeps_b:
            again = grid.rows if self.slices > SLOTS else 1
            streamed = self._streamed(s.m, self.tile[0], grid.rows, grid.cols)
            return [streamed, (s.n * again, grid.cols * again)]
        return [(s.m, grid.rows), self._streamed(s.n, self.tile[1], grid.cols, grid.rows)]

    def _streamed(self, side, size, panels, times):
        """The rows of a side's panels together, and their number, as they stream `times` times."""
        reused = min(SLOTS // self.slices, panels)  # at a turn: the last panels, or the first ones
        last, first = max(side - (panels - reused) * size, 0), min(reused * size, side)
        turns = max(times - 1, 0)
        rows = times * side - (turns - turns // 2) * last - turns // 2 * first
        return rows, times * panels - turns * reused

    @property
    def moved(self):
        """(bytes of A, of B and of C that move, passes over A and over B)."""
        s, ((a, _), (b, _)) = self.sizes, self._read
        passes = (1, 1) if self.matrices else (a / max(s.m, 1), b / max(s.n, 1))
        out_bytes = s.out_bytes * s.batch * s.m * s.n
        return s.element_bytes * s.k * a, s.element_bytes * s.k * b, out_bytes, passes

    @functools.cached_property
    def _sustained_seconds(self):
        """The seconds of all products at the clock that the GPU keeps."""
        s, (rows, cols) = self.sizes, self.tile
        if self.matrices:
            sizes = ((x, s.m, s.n, count) for x, count in _parts(s.batch, self.matrices))
        else:
            sizes = (
                (1, height, width, rows_of * cols_of)
                for height, rows_of in _parts(s.m, rows)
                for width, cols_of in _parts(s.n, cols)
            )
        return sum(count * self._tile_seconds(*tile) for *tile, count in sizes)

    @functools.cached_property
    def _boost(self):
        return self.machine.boost_of(self.sizes.repeats * self._sustained_seconds)

    @property
    def product_seconds(self):
        """The seconds of all products."""
        return self._sustained_seconds / self._boost

    @property
    def steps(self):
        return self.grid.tile_count * self.slices

    def _source(self, operand):
        """(the Source of "a" or "b", the rows of its panels)."""
        return (self.sizes.a, self.tile[0]) if operand == "a" else (self.sizes.b, self.tile[1])

    def panel(self, operand, index):
        """(matrices, rows) of a panel of "a" or "b"."""
        source, size = self._source(operand)
        if self.matrices:
            return (1 if source.is_shared else self._group(index)), source.rows
        return 1, min(size, source.rows - index * size)

    def tile_sizes(self, row, col):
        """(matrices, rows, columns) of a tile."""
        matrices = self._group(row) if self.matrices else 1
        return matrices, self.panel("a", row)[1], self.panel("b", col)[1]

    def _group(self, index):
        return min(self.matrices, self.sizes.batch - index * self.matrices)

    def tile_seconds(self, matrices, rows, cols):
        """The seconds of the products of a tile."""
        return self._tile_seconds(matrices, rows, cols) / self._boost

    def _tile_seconds(self, matrices, rows, cols):
        """The same at the clock that the GPU keeps."""
        s = self.sizes
        if self.slices == 1:
            return self.machine.product_seconds(
                s.order, rows, cols, s.k, matrices, prepared=self.is_prepared
            )
        chunks = math.ceil(s.k / s.order.chunk)
        return chunks * self.machine.chunk_seconds(s.order, rows, cols)

    def panel_seconds(self, operand, matrices, rows, depth):
        """The seconds in which a panel reaches the GPU."""
        source, _ = self._source(operand)
        lines = source.layout.lines((rows, depth), (source.rows, self.sizes.k))
        return self._in_seconds(source, matrices * rows * depth, matrices * lines, 1)

    def _in_seconds(self, source, elements, lines, panels):
        if source.is_on_gpu:
            return 0.0
        nbytes = elements * self.sizes.element_bytes
        return self.machine.seconds_in(nbytes, lines, panels, source.is_staged)

    def store_seconds(self, matrices, rows, cols):
        """The seconds in which a tile reaches the host."""
        lines = self.sizes.out_layout.lines((rows, cols), (self.sizes.m, self.sizes.n))
        return self._out_seconds(matrices * rows * cols, matrices * lines, 1)

    def _out_seconds(self, elements, lines, tiles):
        s = self.sizes
        nbytes = elements * s.out_bytes
        return self.machine.seconds_out(nbytes, lines, tiles, s.out_is_staged)

    @functools.cached_property
    def transfer_seconds(self):
        """The seconds of all copies in, and of all copies out."""
        s, (rows, cols) = self.sizes, self.tile
        transfers_in = 0.0
        for operand, (total, panels) in zip("ab", self._read, strict=True):
            source, size = self._source(operand)
            part = (total, self.depth) if source.layout.is_row_major else (size, s.k)
            lines = source.layout.lines(part, (source.rows, s.k))
            lines *= self.slices if source.layout.is_row_major else panels
            if self.matrices:
                count = 1 if source.is_shared else self.grid.tile_count
            else:
                count = panels * self.slices
            transfers_in += self._in_seconds(source, total * s.k, lines, count)
        lines = 0
        if s.out_layout.lines(self.tile, (s.m, s.n)):
            tiles = math.ceil(s.m / rows), math.ceil(s.n / cols)
            lines = s.m * tiles[1] if s.out_layout.is_row_major else s.n * tiles[0]
        out = self._out_seconds(s.batch * s.m * s.n, s.batch * lines, self.grid.tile_count)
        return transfers_in, out

    @property
    def staging_seconds(self):
        """The seconds in which the host copies what passes through staging memory."""
        s, (a_bytes, b_bytes, out_bytes, _) = self.sizes, self.moved
        staged = (a_bytes, s.a.is_staged), (b_bytes, s.b.is_staged), (out_bytes, s.out_is_staged)
        return sum(count for count, is_staged in staged if is_staged) / self.machine.staging_rate

    @property
    def launch_seconds(self):
        return self.steps * self.machine.step_seconds

    def is_simulated(self, workers):
        """Whether `seconds` come from a simulated schedule, rather than an estimate."""
        return workers == 1 and self.steps <= _MOST_STEPS

    def queue_seconds(self, workers):
        """The seconds that copies and the host take at least. The cost of products is not asked."""
        busiest = max(*self.transfer_seconds, self.launch_seconds)
        return max(busiest / workers, self.staging_seconds)

    def least_seconds(self, workers):
        """The seconds that the longest queue and what precedes and follows it take at least."""
        if not self.steps or not self.is_simulated(workers):
            return self.seconds(workers)
        begin, first, last, end = self._ends()
        transfers_in, out = self.transfer_seconds
        return self.machine.start_seconds + max(
            begin + self.product_seconds + end,
            max(transfers_in, self.launch_seconds) + last / self.slices + end,
            begin + first + out,
            self.staging_seconds,
        )

    def seconds(self, workers):
        """The seconds that a product takes: of its schedule, or an estimate if that is long."""
        if not self.steps:
            return 0.0
        if self.is_simulated(workers):
            *_, span = timeline(self)
            return max(span.end, self.machine.start_seconds + self.staging_seconds)
        begin, _, _, end = self._ends()
        busiest = max(self.product_seconds, *self.transfer_seconds, self.launch_seconds)
        of_gpu = begin + busiest / workers + end
        return self.machine.start_seconds + max(of_gpu, self.staging_seconds)

    def _ends(self):
        """The seconds of the first panels, the first tile, the last tile and its copy."""
        depth = min(self.depth, self.sizes.k)
        begin = sum(self.panel_seconds(x, *self.panel(x, 0), depth) for x in "ab")
        grid = self.grid
        if grid.is_paired:
            tile = grid.rows - 1, 0
        elif grid.keeps_b:
            tile = grid.rows - 1 if grid.cols % 2 else 0, grid.cols - 1
        else:
            tile = grid.rows - 1, grid.cols - 1 if grid.rows % 2 else 0
        first, last = self.tile_sizes(0, 0), self.tile_sizes(*tile)
        return begin, self.tile_seconds(*first), self.tile_seconds(*last), self.store_seconds(*last)


class Span(NamedTuple):
    """Work of a queue, from one time to another, in seconds."""

    queue: str  # "in", "compute" or "out"
    what: str  # "A", "B" or "C"
    index: tuple[int, ...]  # of the panel, or the row and the column of the tile
    start: float
    end: float


def timeline(candidate):
    """Yields the Spans of a product by one GPU, in the order in which a Worker issues the work.

    Args:
        candidate: the tiles, and what each copy and product costs.
    """
    sizes, launch = candidate.sizes, candidate.machine.step_seconds
    begin = candidate.machine.start_seconds
    free = dict.fromkeys(("in", "compute", "out"), begin)  # from when on a queue has nothing to do
    loaded, computed, stored = {}, {-1: 0.0}, []
    launched = begin  # when the host has issued all steps so far
    # Most tiles have the same sizes.
    tile_seconds, store_seconds = map(
        functools.cache, (candidate.tile_seconds, candidate.store_seconds)
    )

    @functools.cache
    def panel_seconds(operand, index, depth):
        return candidate.panel_seconds(operand, *candidate.panel(operand, index), depth)

    def span(queue, what, index, ready, seconds):
        start = max(free[queue], ready)
        free[queue] = start + seconds
        return Span(queue, what, index, start, free[queue])

    for step in steps(candidate.grid, SLOTS, SLOTS):
        depth = min(candidate.depth, sizes.k - step.slice * candidate.depth)
        for load in step.loads:
            seconds = panel_seconds(load.operand, load.index, depth) / load.parts
            what, index = load.operand.upper(), (load.index,)
            copy = span("in", what, index, computed[load.after], seconds)
            loaded[load.operand, load.slot] = copy.end
            yield copy
        if step.is_first and len(stored) > SLOTS:  # the host waits for an earlier tile
            launched = max(launched, stored[-SLOTS - 1])
        launched += launch
        ready = max(loaded["a", step.a_slot], loaded["b", step.b_slot], launched)
        if step.is_first and len(stored) >= SLOTS:
            ready = max(ready, stored[-SLOTS])
        tile = candidate.tile_sizes(step.row, step.col)
        seconds = tile_seconds(*tile) / candidate.slices
        product = span("compute", "C", (step.row, step.col), ready, seconds)
        computed[step.number] = product.end
        yield product
        if step.is_last:
            seconds = store_seconds(*tile)
            copy = span("out", "C", (step.row, step.col), product.end, seconds)
            stored.append(copy.end)
            yield copy


def _allocated(nbytes):
    """The bytes that PyTorch's allocator counts for a tensor, at most.

    It rounds them to 512 bytes, and cuts blocks for more than 1 MiB only if more than that is
    left over (c10/cuda/CUDACachingAllocator.cpp, should_split).
    """
    return nbytes + 512 + (MIB if nbytes > MIB else 0)


def _parts(total, size):
    """The sizes of the parts of a side, and how many have each."""
    whole, rest = divmod(total, size)
    return [x for x in ((size, whole), (rest, 1)) if x[0] and x[1]]
