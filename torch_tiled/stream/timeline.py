"""When the copies and products of a plan begin and end, by its costs: three queues over time."""

import functools
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
