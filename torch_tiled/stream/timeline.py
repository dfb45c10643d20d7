"""When the copies and products of a plan begin and end, by its costs: three queues over time."""

from typing import NamedTuple

from .schedule import steps
from .sizes import SLOTS

__all__ = ["Span", "timeline"]


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
    sizes, (rows, cols) = candidate.sizes, candidate.tile
    sides = {"a": (sizes.m, rows), "b": (sizes.n, cols)}
    free = dict.fromkeys(("in", "compute", "out"), 0.0)  # from when on a queue has nothing to do
    loaded, computed, stored = {}, {-1: 0.0}, []

    def span(queue, what, index, ready, seconds):
        start = max(free[queue], ready)
        free[queue] = start + seconds
        return Span(queue, what, index, start, free[queue])

    def length(operand, index):
        total, size = sides[operand]
        return min(size, total - index * size)

    for step in steps(candidate.grid, SLOTS, SLOTS):
        depth = min(candidate.depth, sizes.k - step.slice * candidate.depth)
        for load in step.loads:
            count = length(load.operand, load.index) * depth * sizes.element_bytes / load.parts
            seconds = candidate.in_seconds(*((count, 0) if load.operand == "a" else (0, count)))
            what, index = load.operand.upper(), (load.index,)
            copy = span("in", what, index, computed[load.after], seconds)
            loaded[load.operand, load.slot] = copy.end
            yield copy
        height, width = length("a", step.row), length("b", step.col)
        ready = max(loaded["a", step.a_slot], loaded["b", step.b_slot])
        if step.is_first and len(stored) >= SLOTS:
            ready = max(ready, stored[-SLOTS])
        tile = step.row, step.col
        seconds = candidate.slices_seconds(height, width) / candidate.slices
        product = span("compute", "C", tile, ready, seconds)
        computed[step.number] = product.end
        yield product
        if step.is_last:
            seconds = candidate.out_seconds(height * width * sizes.out_bytes)
            copy = span("out", "C", tile, product.end, seconds)
            stored.append(copy.end)
            yield copy
