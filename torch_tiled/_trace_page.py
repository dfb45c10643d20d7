"""`python -m torch_tiled trace --html`: a product as a page that plays its phases.

Two warps compute the upper and the lower half of a tile, and one of them is slow. The page shows
what they compute with each of the kernel's two barriers, and without it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from .trace import Phase, Traced

MOST_CELLS = 1024  # of A, B and C
MOST_PHASES = 128
BARRIERS = 1, 2  # before a phase is multiplied, and before the next one is loaded
_TICKS = 1, 4  # which a step of each warp takes


def page(traced: Traced) -> str:
    """A page that needs no other file.

    Raises:
        ValueError: the product is too large to be drawn.
    """
    (m, k), n, tile = traced.a.shape, traced.b.shape[1], traced.tile
    cells = m * k + k * n + m * n
    if cells > MOST_CELLS or tile**2 > MOST_CELLS or len(traced.phases) > MOST_PHASES:
        raise ValueError(
            f"a product ({m}, {k}) ({k}, {n}) in tiles of {tile} x {tile} has {cells} cells in A, "
            f"B and C, {tile**2} in a tile, and {len(traced.phases)} phases; a page has at most "
            f"{MOST_CELLS} cells, as many in a tile, and {MOST_PHASES} phases: choose smaller sizes"
        )
    runs = {"12": (1, 2), "1": (1,), "2": (2,), "": ()}
    data = {name: _plain(value) for name, value in vars(traced).items()}
    data["runs"] = {name: simulate(traced, barriers) for name, barriers in runs.items()}
    template = Path(__file__).with_name("trace.html").read_text(encoding="utf-8")
    return template.replace("{{trace}}", json.dumps(data, separators=(",", ":")))


def simulate(traced: Traced, barriers: tuple[int, ...] = BARRIERS) -> list[dict]:
    """The steps of two warps that synchronize at these barriers alone.

    A step has its name, its warp (None if both pass a barrier), its phase as an index of
    traced.phases, and what it does: `load` the rows that it writes to the shared tiles and its
    reads of global memory, `compute` the rows of its sums and its FMAs, `store` its rows of C,
    `wait` and `sync` the barrier. The blocks run one after another and share the memory of their
    tiles, which is zero at first.
    """
    (m, k), n, tile = traced.a.shape, traced.b.shape[1], traced.tile
    half = -(-tile // 2)
    rows_of = (slice(0, half), slice(half, tile))[:tile]  # a tile of 1 x 1 has one warp
    per_block = -(-k // tile)
    a_tile, b_tile, sums = (torch.zeros(tile, tile, dtype=torch.int64) for _ in range(3))
    steps = []
    for first in range(0, len(traced.phases), per_block):
        sums.zero_()
        for name, warp, index, barrier in _order(per_block, len(rows_of), barriers):
            phase = traced.phases[first + index]
            step = {"name": name, "warp": warp, "phase": first + index}
            if barrier:
                step["barrier"] = barrier
            elif name != "slide":
                step |= _do(name, phase, rows_of[warp], (m, n, k), (a_tile, b_tile, sums))
            steps.append(step)
    return steps


def _do(name: str, phase: Phase, rows: slice, sizes: tuple, memory: tuple) -> dict:
    """What a step of a warp with these rows of a tile writes and counts."""
    (m, n, k), (a_tile, b_tile, sums) = sizes, memory
    tile = sums.shape[0]
    width, depth = min(tile, n - phase.col), min(tile, k - phase.k)

    def inside(begin: int, end: int) -> int:
        return max(min(begin + rows.stop, end) - begin - rows.start, 0)

    height = inside(phase.row, m)
    if name == "load":
        a_tile[rows], b_tile[rows] = phase.a[rows], phase.b[rows]
        reads = height * depth + inside(phase.k, k) * width
        return {"a": _plain(phase.a[rows]), "b": _plain(phase.b[rows]), "reads": reads}
    if name == "compute":
        sums[rows] += a_tile[rows] @ b_tile
        return {"sums": _plain(sums[rows]), "fmas": height * width * depth}
    return {"c": _plain(sums[rows][:height, :width])}


def _order(
    phases: int, warps: int, barriers: tuple[int, ...]
) -> Iterator[tuple[str, int | None, int, int | None]]:
    """A block's steps in the order in which they end: name, warp, phase and barrier."""
    names = ("load", 1, "compute", 2, "slide")
    program = [(name, phase) for phase in range(phases) for name in names]
    program[-1] = ("store", phases - 1)
    program = [each for each in program if each[0] not in BARRIERS or each[0] in barriers]
    clocks, places, waiting = [0] * warps, [0] * warps, set()

    def end(warp: int) -> int:
        is_barrier = program[places[warp]][0] in BARRIERS
        return clocks[warp] + (0 if is_barrier else _TICKS[warp])

    while ready := [x for x in range(warps) if x not in waiting and places[x] < len(program)]:
        warp = min(ready, key=end)
        name, phase = program[places[warp]]
        clocks[warp] = end(warp)
        places[warp] += 1
        if name not in BARRIERS:
            yield name, warp, phase, None
        elif len(waiting) < warps - 1:
            waiting.add(warp)
            yield "wait", warp, phase, name
        else:
            waiting.clear()
            clocks = [max(clocks)] * warps
            yield "sync", None, phase, name


def _plain(value):
    """Tensors and phases as JSON has them."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Phase):
        return {name: _plain(part) for name, part in vars(value).items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
