"""Flagged elements of a product whose K is cut: they are recomputed from all of K.

The elements that a kernel flags are NaN after all chunks (csrc/binding/stream.h), and stay NaN with
any bias and activation. Here the rows and the columns that have such elements are gathered from the
panels, and multiplied in the order in which kernels recompute flagged elements: that of precision
"ieee".
"""

import threading

import torch

from .schedule import TileList
from .sizes import SLOTS
from .worker import Worker, add_chunks

__all__ = ["flagged_tiles", "repair"]


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
    """`new` where `old` is NaN: of complex numbers, one part alone may be flagged.

    Sums that are not flagged may be NaN, too, by the epilogue: those of Inf, and any with a NaN in
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
