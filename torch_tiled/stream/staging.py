"""Copies between a panel on the GPU and memory of the host, pinned or not.

A GPU reads pinned memory by itself, at the full rate of the link. Panels of other memory
(pageable, or a mapped file), and panels without adjacent elements, pass through pinned buffers: a
thread of the host fills one while the GPU reads another.
"""

import torch

from .._op.namespace import operators

__all__ = ["Staging", "copy_direct", "is_column_major", "is_direct"]

_BUFFERS = 4


def is_pinned(x):
    """Returns whether a tensor of the host lies in pinned memory."""
    return x.is_pinned()


def is_direct(x):
    """Returns whether a GPU can read or write the host's tensor by itself."""
    rows = x.mT if is_column_major(x) else x
    is_apart = rows.shape[-2] == 1 or rows.stride(-2) >= rows.shape[-1]  # rows do not overlap
    return is_pinned(x) and rows.stride(-1) == 1 and is_apart


def is_column_major(x):
    """Returns whether the elements of a matrix's columns are adjacent, rather than of its rows."""
    return x.stride(-2) == 1 and (x.stride(-1) != 1 or x.shape[-1] == 1)


def _matrices(to, source):
    """Pairs of matrices to copy: one, where the lines of a batch have one distance in each."""
    if to.dim() == 2:
        return [(to, source)]
    if is_column_major(to) and is_column_major(source):
        to, source = to.mT, source.mT
    try:
        return [tuple(x.view(-1, x.shape[-1]) for x in (to, source))]
    except RuntimeError:  # the strides of one are those of no matrix
        return zip(to, source, strict=True)


def copy_direct(to, source):
    """Copies matrices between a GPU and pinned memory, in the order of the current stream."""
    for to_matrix, from_matrix in _matrices(to, source):
        operators._copy_rows_(to_matrix, from_matrix)


class Staging:
    """Pinned buffers of one direction, used one after another.

    Args:
        nbytes: of all buffers together.
        queues: the GPU's queues.
        queue: "in" or "out".
        pins: whether the memory is pinned; a simulated device needs none.
    """

    def __init__(self, nbytes, queues, queue, *, pins=True):
        self._queues, self._queue = queues, queue
        size = nbytes // _BUFFERS // 512 * 512
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pins)
            for _ in range(_BUFFERS)
        ]
        self._events = [None] * _BUFFERS
        self._next = 0

    def copy_in(self, to, source):
        """Copies the host's matrices to the GPU. Returns once all of them have been read."""
        for to_piece, from_piece in self._pieces(to, source):
            index, buffer = self._take(to_piece)
            buffer.copy_(from_piece)
            self._queues.run(self._queue, operators._copy_rows_, to_piece, buffer)
            self._events[index] = self._queues.record(self._queue)

    def copy_out(self, to, source):
        """Copies matrices of the GPU to the host. Returns once all of them are there."""
        under_way = []
        for to_piece, from_piece in self._pieces(to, source):
            if len(under_way) == _BUFFERS:
                self._finish(*under_way.pop(0))
            index, buffer = self._take(from_piece)
            self._queues.run(self._queue, operators._copy_rows_, buffer, from_piece)
            event = self._queues.record(self._queue)
            under_way.append((to_piece, buffer, event))
            self._events[index] = event
        for each in under_way:
            self._finish(*each)

    @staticmethod
    def _finish(to, buffer, event):
        event.synchronize()
        to.copy_(buffer)

    def _take(self, like):
        """The next buffer, when its last copy is done, as a matrix of the same shape and order."""
        index, self._next = self._next, (self._next + 1) % _BUFFERS
        if self._events[index] is not None:
            self._events[index].synchronize()
        elements = self._buffers[index].view(like.dtype)[: like.numel()]
        rows, cols = like.shape
        if is_column_major(like):
            return index, elements.view(cols, rows).mT
        return index, elements.view(rows, cols)

    def _pieces(self, to, source):
        """Pairs of parts that fit in a buffer, of adjacent rows or columns."""
        most = self._buffers[0].numel() // source.element_size()
        for to_matrix, from_matrix in _matrices(to, source):
            yield from _cut(to_matrix, from_matrix, most)


def _cut(to, source, most):
    if source.numel() == 0:
        return
    if source.numel() <= most:
        yield to, source
        return
    # Along the side whose elements are far apart, as long as one row fits.
    dim = 1 if is_column_major(source) else 0
    if source.shape[1 - dim] > most:
        dim = 1 - dim
    step = max(most // source.shape[1 - dim], 1)
    for first in range(0, source.shape[dim], step):
        length = min(step, source.shape[dim] - first)
        parts = to.narrow(dim, first, length), source.narrow(dim, first, length)
        yield from _cut(*parts, most)
