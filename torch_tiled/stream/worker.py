"""One GPU's part of a streamed product: it issues the steps of a schedule to three queues."""

import collections
import concurrent.futures
import contextlib
import threading

import torch

from .._op.namespace import operators
from .schedule import SLOTS, TileList, steps
from .staging import Operand, Staging, copy_direct, is_column_major, is_staged

__all__ = ["Worker", "flagged_tiles", "repair"]

_AHEAD = 4  # steps that claim their tiles and load their panels before they are issued
_UNFINISHED = 6  # steps that are issued and not finished, at most


def _done(event):
    """A future of the event of a copy that is in its queue already."""
    future = concurrent.futures.Future()
    future.set_result(event)
    return future


class Worker:
    """Streams tiles of one product through a GPU.

    Args:
        product: the PlannedProduct.
        queues: the GPU's.
        device: the GPU.
        machine: the Machine of the GPU.

    Attributes:
        finished: the (row, column) of tiles that are in `out`.
        flagged: (row, column, flags of rows, flags of columns) of tiles with flagged elements,
            which are NaN in `out`, if K was cut.
    """

    fills_chunks = True  # with zeros, if kernels sum a short chunk in another way

    def __init__(self, product, queues, device, machine):
        self.out, self.plan, self.order = product.c, product.plan, product.order
        self._epilogue = product.epilogue.to(device)
        plan, order = self.plan, self.order
        self._queues, self._device = queues, device
        self.finished, self.flagged = [], []
        rows, cols = plan.tile
        is_cut = plan.grid.slices > 1
        whole = order.chunk if is_cut and order.is_flagged and self.fills_chunks else 1
        self._a = Operand(product.a, rows, plan.depth, plan.matrices, whole, device)
        self._b = Operand(product.b.mT, cols, plan.depth, plan.matrices, whole, device)
        self._make_tiles(is_cut)
        self._nothing = (
            torch.empty(0, dtype=torch.uint8, device=device),
            torch.empty(0, dtype=torch.float32, device=device),
        )
        self._prepared = None, self._nothing  # a column, and what prepare() returned for it
        staged = {"in": self._a.is_staged or self._b.is_staged, "out": is_staged(self.out)}
        pins = device.type == "cuda"
        self._staging = {
            queue: Staging(machine, queues, queue, pins=pins) for queue in staged if staged[queue]
        }

    def _make_tiles(self, is_cut):
        """Allocates tiles of C, and the sums of one if K is cut."""
        plan, device = self.plan, self._device
        batch = [plan.matrices] if plan.matrices else []
        tile = (*batch, *plan.tile)
        # A copy needs the order of the result's elements.
        is_transposed = is_column_major(self.out)
        kind = {"dtype": self.out.dtype, "device": device}
        stored = (*batch, *(plan.tile[::-1] if is_transposed else plan.tile))
        tiles = [torch.empty(stored, **kind) for _ in range(SLOTS)]
        self._tiles = [x.mT for x in tiles] if is_transposed else tiles
        self._sums = None
        if is_cut:
            self._sums = torch.empty(tile, dtype=self.order.sum_dtype, device=device)

    def run(self, queue, stop, number=0):
        """Computes the tiles that worker `number` gets of a schedule.Queue.

        It ends when the queue is empty, or once `stop`, a threading.Event, is set.
        """
        source = steps(self.plan.grid, SLOTS, SLOTS, queue, number)
        planned, loads = collections.deque(), collections.deque()
        self._loaded = {}  # (operand, slot): futures of its parts, of the events of the copies
        self._read = {}  # (operand, slot): the event of the last product that reads it
        self._stored = collections.deque()  # (step, future) of tiles on their way to the host
        self._tile_count = 0
        unfinished = collections.deque()
        with contextlib.ExitStack() as stack:
            stack.callback(self._queues.synchronize)
            self._executors = {
                queue: stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
                for queue in self._staging
            }
            stack.callback(self._finish_stores)
            while not stop.is_set():
                while len(planned) < _AHEAD and (step := next(source, None)) is not None:
                    planned.append(step)
                    loads.extend(step.loads)
                if not planned:
                    break
                step = planned.popleft()
                while loads and loads[0].after < step.number:
                    self._load(loads.popleft())
                unfinished.append(self._issue(step))
                if len(unfinished) > _UNFINISHED:
                    unfinished.popleft().synchronize()

    def _submit(self, queue, function, *arguments):
        """Lets the thread of a direction's staging call a function: its future."""

        def call():
            with torch.inference_mode():  # modes are a thread's own
                return function(*arguments)

        return self._executors[queue].submit(call)

    def _load(self, load):
        operand = self._a if load.operand == "a" else self._b
        place = load.operand, load.slot
        arguments = operand, load, self._read.get(place)
        if operand.is_staged:
            future = self._submit("in", self._copy_in, *arguments)
        else:
            future = _done(self._copy_in(*arguments))
        earlier_parts = self._loaded[place] if load.part > 0 else []
        self._loaded[place] = [*earlier_parts, future]

    def _copy_in(self, operand, load, after):
        """Copies a panel to its slot, and returns the event of that copy.

        Args:
            after: the event of the last product that reads the slot, or None.
        """
        queues = self._queues
        if after is not None and operand.is_staged:
            # In the queue, pieces of all threads that copy would stand behind the product.
            after.synchronize()
        elif after is not None:
            queues.wait("in", after)
        if operand.is_copied:
            panel = operand.panel(load.index, load.slice)
            target, zeros = operand.target(load.slot, panel)
            panel, target = (_part_of(x, load, operand) for x in (panel, target))
            if zeros.numel():
                queues.run("in", zeros.zero_)
            if operand.is_staged:
                self._staging["in"].copy(target, panel)
            elif operand.is_on_host:
                queues.run("in", copy_direct, target, panel)
            else:
                queues.run("in", target.copy_, panel)
        return queues.record("in")

    def _issue(self, step):
        """Issues a step's product, and the copy of its tile if that is complete: an event."""
        queues = self._queues
        places = ("a", step.a_slot), ("b", step.b_slot)
        for place in places:
            events = [future.result() for future in self._loaded[place]]
            queues.wait("compute", events[-1])
        if step.is_first and len(self._stored) >= SLOTS:
            queues.wait("compute", self._stored[-SLOTS][1].result())
            while len(self._stored) > SLOTS:
                self._finish_store()
        a = self._a.operand(step.a_slot, step.row, step.slice)
        b = self._b.operand(step.b_slot, step.col, step.slice).mT
        if self.plan.matrices and a.dim() == b.dim() == 2:  # one product for all of the batch
            matrices = self.tile_of(self.out, step.row, step.col).shape[0]
            a = a.expand(matrices, *a.shape)
        tile = self._part(self._tiles[self._tile_count % SLOTS], a, b)
        queues.run("compute", self._multiply, step, a, b, tile)
        event = queues.record("compute")
        for place in places:
            self._read[place] = event
        if step.is_last:
            self._tile_count += 1
            self._store(step, tile, event)
        return event

    def _store(self, step, tile, event):
        if "out" in self._staging:
            future = self._submit("out", self._copy_out, step, tile, event)
        else:
            future = _done(self._copy_out(step, tile, event))
        self._stored.append((step, future))

    def _copy_out(self, step, tile, event):
        """Copies a tile to the result, and returns the event of that."""
        to = self.tile_of(self.out, step.row, step.col)
        if "out" in self._staging:
            event.synchronize()  # as for copies in
            self._staging["out"].copy(to, tile)
        else:
            self._queues.wait("out", event)
            self._queues.run("out", copy_direct, to, tile)
        return self._queues.record("out")

    def _finish_stores(self):
        while self._stored:
            self._finish_store()

    def _finish_store(self):
        """Waits for the oldest tile that is on its way to the host."""
        step, future = self._stored.popleft()
        future.result().synchronize()
        self.finished.append((step.row, step.col))

    @staticmethod
    def _part(tile, a, b):
        """The part of a tile that the last panels of a side have."""
        tile = tile[..., : a.shape[-2], : b.shape[-1]]
        return tile[: max(x.shape[0] for x in (a, b) if x.dim() == 3)] if tile.dim() == 3 else tile

    def tile_of(self, c, row, col):
        """A tile of the result."""
        return c[self.plan.slices(row, col)]

    def _multiply(self, step, a, b, tile):
        """A product of whole K, or the next chunks of one."""
        order = self.order
        epilogue = self._epilogue_of(step)
        options = {"algorithm": order.algorithm, "precision": order.precision}
        if self._sums is None:
            prepared = self._prepare(step.col, b) if self.plan.is_prepared else self._nothing
            options["activation"] = epilogue.activation
            operators._multiply_into_(tile, a, b, *prepared, epilogue.bias, **options)
            return
        sums = self._part(self._sums, a, b)
        if step.is_first:
            sums.fill_(order.first_sum)
        options["algorithm"] = order.chunk_algorithm
        add_chunks(sums, a, b, order.chunk, options)
        if step.is_last:
            if order.is_flagged:  # before a bias or an activation makes NaN of other sums
                flags = sums.isnan()
                self.flagged.append((step.row, step.col, flags.any(1), flags.any(0)))
            epilogue.apply_(sums)
            tile.copy_(sums)

    def _epilogue_of(self, step):
        """Returns the Epilogue of a tile's columns."""
        if self.plan.matrices:  # each has all columns
            return self._epilogue
        return self._epilogue.of(self.plan.slices(step.row, step.col)[1])

    def _prepare(self, col, b):
        """What prepare() returns for a panel of B, which is kept as long as the panel is."""
        if self._prepared[0] != col:
            self._prepared = None, self._nothing
            self._prepared = col, operators.prepare(b)
        return self._prepared[1]


def _part_of(panel, load, operand):
    """The lines of a panel, rows or columns, that a load brings."""
    if load.parts == 1:
        return panel
    across = -1 if operand.is_column_major else -2
    lines = panel.shape[across]
    first, end = (lines * part // load.parts for part in (load.part, load.part + 1))
    return panel.narrow(across, first, end - first)


def add_chunks(sums, a, b, chunk, options):
    """Adds the product of two panels, which begin at a chunk of K, to sums, chunk by chunk."""
    for first in range(0, a.shape[-1], chunk):
        part = slice(first, first + chunk)
        operators._add_chunk_(sums, a[:, part], b[part], **options)


def flagged_tiles(worker):
    """Returns {(row, column): (rows, columns)} of the flagged elements of tiles.

    Rows and columns are indices, on the GPU.
    """
    found = {}
    for row, col, rows, cols in worker.flagged:
        if rows.any():
            found[row, col] = rows.nonzero()[:, 0], cols.nonzero()[:, 0]
    return found


class _Repair(Worker):
    fills_chunks = False

    def __init__(self, product, flagged, *arguments):
        super().__init__(product, *arguments)
        self._flagged = flagged
        self._repaired = None

    def _make_tiles(self, is_cut):
        # The sums of flagged elements take their place.
        self._tiles, self._sums = [torch.empty(0, 0)] * SLOTS, None

    def _multiply(self, step, a, b, tile):
        rows, cols = self._flagged[step.row, step.col]
        a, b = a.index_select(0, rows), b.index_select(1, cols)
        if step.is_first:
            kind = {"dtype": self.order.sum_dtype, "device": a.device}
            self._repaired = torch.empty((len(rows), len(cols)), **kind)
            self._repaired.fill_(complex(-0.0, -0.0) if self._repaired.is_complex() else -0.0)
        options = {"algorithm": self.order.repair_algorithm, "precision": "ieee"}
        add_chunks(self._repaired, a, b, self.order.chunk_of_repair, options)
        if step.is_last:
            self._epilogue_of(step).of(cols).apply_(self._repaired)

    def _store(self, step, tile, event):
        # Flagged tiles are few, so this waits for each.
        rows, cols = (x.cpu() for x in self._flagged[step.row, step.col])
        event.synchronize()
        c = self.tile_of(self.out, step.row, step.col)
        place = rows[:, None], cols
        old = c[place]
        c[place] = _replace_nan(old, self._repaired.cpu().to(c.dtype))
        self.finished.append((step.row, step.col))


def _replace_nan(old, new):
    """`new` in place of `old` if that is NaN: of complex numbers, one part alone may be flagged.

    Sums that are not flagged may be NaN, too, by the epilogue: sums of Inf, and any with a NaN in
    the bias. `new` is then NaN as well, unless a sum overflows in one order and not in the other.
    """
    if not old.is_complex():
        return torch.where(old.isnan(), new, old)
    old, new = torch.view_as_real(old), torch.view_as_real(new)
    return torch.view_as_complex(torch.where(old.isnan(), new, old))


def repair(product, flagged, queues, device, machine):
    """Recomputes the flagged elements of tiles, {(row, column): (rows, columns)}, on a GPU."""
    worker = _Repair(product, flagged, queues, device, machine)
    never = threading.Event()  # Ctrl-C raises its exception here, in the caller's thread
    worker.run(TileList(product.plan.grid, flagged), never)
