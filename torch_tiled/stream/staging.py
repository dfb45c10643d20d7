"""Copies between a panel on the GPU and memory of the host, pinned or not.

A GPU reads pinned memory by itself, at the full rate of the link. Panels of other memory
(pageable, or a mapped file), and panels without adjacent elements, pass through pinned buffers,
which threads of the host fill and empty (csrc/staging/staged_copy.h).
"""

import torch

from .._op.namespace import operators

__all__ = [
    "MOST_THREADS",
    "Staging",
    "copy_direct",
    "is_column_major",
    "is_staged",
    "threads_of",
]

MOST_THREADS = 8  # of one direction: they keep the link busy


def is_pinned(x):
    """Returns whether a tensor of the host lies in pinned memory."""
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


def threads_of(gpus):
    """The threads that copy in one direction, of so many GPUs."""
    return max(1, min(torch.get_num_threads() // (2 * gpus), MOST_THREADS))


class Staging:
    """Pinned memory of one direction, and the threads that copy through it.

    It is used by one thread (csrc/binding/copies.h says why).

    Args:
        machine: the Machine, whose `staging_bytes` and `staging_threads` it has.
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

        Returns once those of the host have been read or written.
        """
        options = self._memory, self._threads, self._queue == "in"
        for matrices in _matrices(to, source):
            self._queues.run(self._queue, operators._copy_staged_, *matrices, *options)
