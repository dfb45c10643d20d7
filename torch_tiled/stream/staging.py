"""The queues of a GPU, and copies between a panel there and memory of the host, pinned or not.

A GPU reads pinned memory by itself, at the full rate of the link. Panels of other memory
(pageable, or a mapped file), and panels without adjacent elements, pass through pinned buffers,
which threads of the host fill and empty (csrc/staging/staged_copy.h).
"""

import contextlib
import functools
import math

import torch

from .._internals import negative_view
from .._op.namespace import operators
from .schedule import SLOTS

__all__ = [
    "MOST_THREADS",
    "QUEUES",
    "CudaQueues",
    "Operand",
    "Staging",
    "copy_direct",
    "is_column_major",
    "is_staged",
    "pitch",
    "threads_of",
]

QUEUES = ("in", "compute", "out")
MOST_THREADS = 8  # of one direction: they keep the link busy


def is_pinned(x):
    """Returns whether a tensor of the host is in pinned memory."""
    return x.is_pinned()


def is_staged(x):
    """Returns whether a tensor passes through staging memory: a GPU does not read or write it.

    A meta tensor counts as pinned. One without strides, as the result of a plan, has any layout.
    """
    if x.device.type == "meta":
        return any(x.stride()) and not _has_lines(x)
    return x.device.type == "cpu" and not (is_pinned(x) and _has_lines(x))


def _has_lines(x):
    """Returns whether a tensor has rows, or columns, of adjacent elements that do not overlap."""
    rows = x.mT if is_column_major(x) else x
    is_apart = rows.shape[-2] == 1 or rows.stride(-2) >= rows.shape[-1]
    return rows.stride(-1) == 1 and is_apart


def is_column_major(x):
    """Returns whether the elements of a matrix's columns are adjacent, rather than of its rows."""
    return x.stride(-2) == 1 and (x.stride(-1) != 1 or x.shape[-1] == 1)


def _matrices(to, source):
    """Pairs of matrices to copy: one, if the lines of a batch have one distance in each."""
    if to.dim() == 2:
        return [(to, source)]
    if is_column_major(to) and is_column_major(source):
        to, source = to.mT, source.mT
    try:
        return [tuple(x.view(-1, x.shape[-1]) for x in (to, source))]
    except RuntimeError:  # the strides of one are not a matrix's
        return zip(to, source, strict=True)


def copy_direct(to, source):
    """Copies matrices between a GPU and pinned memory, in the order of the current stream."""
    for to_matrix, from_matrix in _matrices(to, source):
        operators._copy_rows_(to_matrix, from_matrix)


def pitch(count, element_bytes):
    """The elements from one row of a slot to the next: rows begin at multiples of 128 bytes."""
    line = 128 // element_bytes
    return math.ceil(count / line) * line


def threads_of(gpus):
    """The threads that copy in one direction, of so many GPUs."""
    return max(1, min(torch.get_num_threads() // (2 * gpus), MOST_THREADS))


class Staging:
    """Pinned memory of one direction, and the threads that copy through it.

    It is used by one thread (csrc/binding/copies.h says why).

    Args:
        machine: the Machine, which says how much memory and how many threads.
        queues: the GPU's queues.
        queue: "in" or "out".
        pins: whether the memory is pinned; a simulated device needs none.
    """

    def __init__(self, machine, queues, queue, *, pins=True):
        self._queues, self._queue, self._threads = queues, queue, machine.staging_threads
        kind = {"dtype": torch.uint8, "device": "cpu", "pin_memory": pins}
        self._memory = torch.empty(machine.staging_bytes, **kind)

    def copy(self, to, source):
        """Copies matrices of the host to the GPU, or back.

        Returns once the host's matrices have been read or written.
        """
        options = self._memory, self._threads, self._queue == "in"
        for matrices in _matrices(to, source):
            self._queues.run(self._queue, operators._copy_staged_, *matrices, *options)


class Operand:
    """The panels of A or of B: on the host, and in slots on the GPU.

    Args:
        x: (rows, k), or (matrices, rows, k): B is transposed.
        rows: of a panel, or 0 for a group of matrices.
        depth: of K, in a panel.
        matrices: of a group.
        whole: the multiple to which a panel's depth is filled with zeros; 1 for none.
        device: of the slots.
    """

    def __init__(self, x, rows, depth, matrices, whole, device):
        self.is_conjugate = x.is_conj()
        x = x.conj() if self.is_conjugate else x
        self.is_negative = x.is_neg()
        self.x = negative_view(x) if self.is_negative else x
        self.rows, self.depth, self.matrices, self.whole = rows, depth, matrices, whole
        self.is_shared = x.dim() == 3 and x.stride(0) == 0  # one matrix for all of the batch
        self.is_on_host = self.x.device.type == "cpu"
        self.is_staged = is_staged(self.x)
        self.is_column_major = is_column_major(self.x)
        self.is_copied = self.is_on_host or self.x.device != device
        if self.is_copied:
            sides = rows or x.shape[-2], self._whole_depth(depth)
            count = 1 if self.is_shared else SLOTS
            self._slots = [self._make_slot(*sides, device) for _ in range(count)]

    def _make_slot(self, rows, depth, device):
        batch = (self.matrices,) if self.matrices and not self.is_shared else ()
        kind = {"dtype": self.x.dtype, "device": device}
        if self.is_column_major:
            slot = torch.empty((*batch, depth, pitch(rows, self.x.element_size())), **kind)
            return slot[..., :rows].mT
        slot = torch.empty((*batch, rows, pitch(depth, self.x.element_size())), **kind)
        return slot[..., :depth]

    def panel(self, index, slice_):
        """The panel in the operand's own memory, without its lazy bits."""
        x = self.x
        if self.matrices:
            return x[0] if self.is_shared else x[index * self.matrices :][: self.matrices]
        first_row, first = index * self.rows, slice_ * self.depth
        rows = x.narrow(0, first_row, min(self.rows, x.shape[0] - first_row))
        return rows.narrow(1, first, min(self.depth, x.shape[1] - first))

    def target(self, slot, panel):
        """The part of a slot to which a panel is copied, and the zeros that follow it along K."""
        part = self._slots[slot][: panel.shape[0]] if panel.dim() == 3 else self._slots[slot]
        part = part.narrow(-2, 0, panel.shape[-2])
        depth = panel.shape[-1]
        return part[..., :depth], part[..., depth : self._whole_depth(depth)]

    def operand(self, slot, index, slice_):
        """A panel as an operand of a product, on the GPU."""
        panel = self.panel(index, slice_)
        if self.is_copied:
            target, _ = self.target(slot, panel)
            depth = self._whole_depth(panel.shape[-1])
            panel = target.as_strided((*target.shape[:-1], depth), target.stride())
        panel = negative_view(panel) if self.is_negative else panel
        return panel.conj() if self.is_conjugate else panel

    def _whole_depth(self, depth):
        return math.ceil(depth / self.whole) * self.whole


@functools.cache
def _streams_of_copies(device):
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class CudaQueues:
    """A CUDA stream for each queue. Work in different queues is ordered by events alone.

    Products run in the stream that is current when this is made, so that PyTorch's allocator has
    their memory for the caller, too. Tests put the queues of a simulated device in its place, with
    the same methods.
    """

    def __init__(self, device):
        self.device = device
        current = torch.cuda.current_stream(device)
        copies_in, copies_out = _streams_of_copies(device)
        copies_in.wait_stream(current)  # operands on the GPU may still be computed
        self._streams = {"in": copies_in, "compute": current, "out": copies_out}

    def run(self, queue, function, *arguments):
        """Calls a function that puts kernels and copies in the queue."""
        with torch.cuda.stream(self._streams[queue]):
            function(*arguments)

    def record(self, queue):
        """Returns an event: all that the queue has so far."""
        return self._streams[queue].record_event()

    def wait(self, queue, event):
        """Lets what follows in the queue wait for the event."""
        self._streams[queue].wait_event(event)

    def synchronize(self):
        """Waits for all that is in the queues."""
        for stream in self._streams.values():
            stream.synchronize()

    def context(self):
        """The context in which a thread uses the queues, and allocates memory for products."""
        stack = contextlib.ExitStack()
        stack.enter_context(torch.cuda.device(self.device))
        stack.enter_context(torch.cuda.stream(self._streams["compute"]))
        return stack
