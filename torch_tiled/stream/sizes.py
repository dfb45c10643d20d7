"""The sizes of a streamed product, from which it is planned."""

import dataclasses
import math

from .order import Order

__all__ = ["SLOTS", "Sizes", "pitch"]

SLOTS = 2  # of each panel and tile: one is computed with while the other one is copied


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a plan is made from.

    Attributes:
        batch, m, n, k: the matrices of the batch, and their sizes.
        shares_a, shares_b: whether all matrices of the batch have one A, or one B.
        on_gpu_a, on_gpu_b: whether an operand is on a GPU already.
        element_bytes, out_bytes: of the operands' dtype and the result's.
        stages_a, stages_b, stages_out: whether they pass through pinned staging memory.
        order: the Order of the sums.
        bias_bytes: of a bias, which is on each GPU.
    """

    batch: int
    m: int
    n: int
    k: int
    shares_a: bool
    shares_b: bool
    on_gpu_a: bool
    on_gpu_b: bool
    element_bytes: int
    out_bytes: int
    stages_a: bool
    stages_b: bool
    stages_out: bool
    order: Order
    bias_bytes: int = 0


def pitch(count, element_bytes):
    """The elements from one row of a slot to the next: whole lines of 128 bytes."""
    line = 128 // element_bytes
    return math.ceil(count / line) * line
