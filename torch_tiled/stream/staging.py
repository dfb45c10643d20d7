"""Copies between a panel on the GPU and memory of the host, pinned or not.

A GPU reads pinned memory by itself, at the full rate of the link. Panels of other memory
(pageable, or a mapped file), and panels without adjacent elements, pass through pinned buffers,
which threads of the host fill and empty (csrc/staging/staged_copy.h).
"""

import dataclasses

import torch

from .._op.namespace import operators

__all__ = [
    "MOST_THREADS",
    "Staging",
    "StagingSizes",
    "copy_direct",
    "has_lines",
    "is_column_major",
    "is_direct",
    "threads_of",
]

MOST_THREADS = 8  # of one direction: they keep the link busy


def is_pinned(x):
    """Returns whether a tensor of the host lies in pinned memory."""
    return x.is_pinned()


def is_direct(x):
    """Returns whether a GPU can read or write the host's tensor by itself."""
    return is_pinned(x) and has_lines(x)


def has_lines(x):
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


@dataclasses.dataclass(frozen=True)
class StagingSizes:
    """What one direction of a GPU has.

    Attributes:
        nbytes: of pinned memory.
        threads: of the host, that copy.
    """

    nbytes: int
    threads: int


class Staging:
    """Pinned memory of one direction, and the threads that copy through it.

    It is used by one thread (csrc/binding/copies.h says why).

    Args:
        sizes: the StagingSizes.
        queues: the GPU's queues.
        queue: "in" or "out".
        pins: whether the memory is pinned; a simulated device needs none.
    """

    def __init__(self, sizes, queues, queue, *, pins=True):
        self._queues, self._queue, self._threads = queues, queue, sizes.threads
        kind = {"dtype": torch.uint8, "device": "cpu", "pin_memory": pins}
        self._memory = torch.empty(sizes.nbytes, **kind)

    def copy(self, to, source):
        """Copies matrices of the host to the GPU, or back.

        Returns once those of the host have been read or written.
        """
        options = self._memory, self._threads, self._queue == "in"
        for matrices in _matrices(to, source):
            self._queues.run(self._queue, operators._copy_staged_, *matrices, *options)
