"""The sizes of a streamed product, from which it is planned."""

import dataclasses
import math

from .order import Order

__all__ = ["SLOTS", "Layout", "Sizes", "Source", "pitch"]

SLOTS = 2  # of each panel and tile: one is computed with while the other one is copied


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a matrix lies in memory: in lines of adjacent elements, its rows or its columns.

    Attributes:
        is_row_major: whether rows are the lines.
        is_dense: whether a line begins where the one before ends, where copies read and write it.
    """

    is_row_major: bool = True
    is_dense: bool = True

    def lines(self, part, whole):
        """How many lines are copied one by one for a part of a matrix: 0 if it is one range.

        Args:
            part, whole: the (rows, columns) of the part and of the matrix.
        """
        along = 1 if self.is_row_major else 0
        is_range = self.is_dense and part[along] >= whole[along]
        return 0 if is_range else part[1 - along]


@dataclasses.dataclass(frozen=True)
class Source:
    """An operand where it lies: A, or B transposed.

    Attributes:
        rows: m, or n.
        is_shared: whether it is one matrix for all of a batch.
        is_on_gpu: whether it is on the GPU that multiplies it.
        is_staged: whether it passes through pinned staging memory.
        layout: of a matrix.
    """

    rows: int
    is_shared: bool = False
    is_on_gpu: bool = False
    is_staged: bool = False
    layout: Layout = Layout()


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a plan is made from.

    Attributes:
        batch: how many matrices there are.
        a, b: the Source of each operand.
        k: their columns.
        element_bytes, out_bytes: of the operands' dtype and the result's.
        out_is_staged, out_layout: as for a Source, of the result.
        order: the Order of the sums.
        bias_bytes: of a bias, which is on each GPU.
        repeats: how many such products follow one another, divided by the number of GPUs.
    """

    batch: int
    a: Source
    b: Source
    k: int
    element_bytes: int
    out_bytes: int
    out_is_staged: bool
    out_layout: Layout
    order: Order
    bias_bytes: int = 0
    repeats: float = 1.0

    @property
    def m(self):
        return self.a.rows

    @property
    def n(self):
        return self.b.rows


def pitch(count, element_bytes):
    """The elements from one row of a slot to the next: whole lines of 128 bytes."""
    line = 128 // element_bytes
    return math.ceil(count / line) * line
