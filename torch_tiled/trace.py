"""`python -m torch_tiled trace`: a small product, tile by tile, as the kernel `tiled` computes it.

The matrices are in global memory. A thread block computes a tile of C. In each phase it copies a
tile of A and a tile of B to shared memory, and adds their product to its accumulators. Each element
that it copies is used by a whole row or column of the tile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

__all__ = ["Phase", "Traced", "draw", "trace"]

_MOST_PHASES = 16  # drawn without --all, unless one block has more
MOST_STEPS = 2**14  # elements of C and phases, each a step of Python
_MOST_COPIED = 2**22  # elements of tiles, which a Traced keeps


class _GlobalMemory:
    """A matrix that counts reads of its elements."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix, self.reads = matrix, 0

    def read(self, rows: slice, cols: slice) -> torch.Tensor:
        part = self.matrix[rows, cols]
        self.reads += part.numel()
        return part


@dataclass(frozen=True)
class Phase:
    """One step along K of a block.

    Attributes:
        row: the first row of the block's tile of C.
        col: its first column.
        k: the first column of the tile of A, and row of the tile of B.
        a: (tile, tile), int64, the tile of A in shared memory, padded with zeros.
        b: (tile, tile), int64, the tile of B, padded as well.
        sums: (tile, tile), int64, the accumulators after this phase.

    Examples:
        >>> from torch_tiled.trace import trace
        >>> [(phase.row, phase.col, phase.k) for phase in trace(2, 2, 4, tile=2).phases]
        [(0, 0, 0), (0, 0, 2)]
    """

    row: int
    col: int
    k: int
    a: torch.Tensor
    b: torch.Tensor
    sums: torch.Tensor


@dataclass(frozen=True)
class Traced:
    """A product, computed by `naive` and by `tiled`.

    Attributes:
        a: (m, k), int64.
        b: (k, n), int64.
        tile: the rows and columns of a tile.
        phases: the phases of all blocks, one block after another.
        c: (m, n), int64, the product.
        naive_reads: how many elements of a and b `naive` reads from global memory.
        tiled_reads: how many `tiled` reads.

    Examples:
        >>> from torch_tiled.trace import trace
        >>> traced = trace(4, 4, 8, tile=2)
        >>> torch.equal(traced.c, traced.a @ traced.b)
        True
    """

    a: torch.Tensor
    b: torch.Tensor
    tile: int
    phases: list[Phase]
    c: torch.Tensor
    naive_reads: int
    tiled_reads: int


def trace(m: int, n: int, k: int, tile: int) -> Traced:
    """Multiplies two matrices of whole numbers, (m, k) and (k, n), and counts the reads.

    Args:
        m: the rows of the product.
        n: its columns.
        k: the length of its sums.
        tile: the rows and columns of a tile.

    Returns:
        A Traced.

    Raises:
        ValueError: a size is not positive, or the product is too large to trace.

    Examples:
        >>> from torch_tiled.trace import trace
        >>> traced = trace(4, 4, 4, tile=2)
        >>> traced.naive_reads, traced.tiled_reads
        (128, 64)
    """
    for name, size in (("m", m), ("n", n), ("k", k), ("tile", tile)):
        if size < 1:
            raise ValueError(f"{name} is {size}; a product to trace has sizes of at least 1")
    phases = math.prod(-(-size // tile) for size in (m, n, k))
    if m * n + phases > MOST_STEPS or phases * tile**2 > _MOST_COPIED:
        raise ValueError(
            f"a product ({m}, {k}) ({k}, {n}) in tiles of {tile} x {tile} has {m * n} elements and "
            f"{phases} phases; at most {MOST_STEPS} of both together, and {_MOST_COPIED} elements "
            f"in the tiles of A, are traced: choose smaller sizes"
        )
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(1, 10, (m, k), generator=generator)
    b = torch.randint(1, 10, (k, n), generator=generator)

    by_naive = _GlobalMemory(a), _GlobalMemory(b)
    c = _naive(*by_naive)
    by_tiled = _GlobalMemory(a), _GlobalMemory(b)
    phases = list(_tiled(*by_tiled, tile))
    naive_reads, tiled_reads = (sum(x.reads for x in each) for each in (by_naive, by_tiled))
    return Traced(a, b, tile, phases, c, naive_reads, tiled_reads)


def _naive(a: _GlobalMemory, b: _GlobalMemory) -> torch.Tensor:
    """The product. Each element reads a row of a and a column of b."""
    c = a.matrix.new_empty(a.matrix.shape[0], b.matrix.shape[1])
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            row, col = a.read(slice(i, i + 1), slice(None)), b.read(slice(None), slice(j, j + 1))
            c[i, j] = (row @ col).item()
    return c


def _tiled(a: _GlobalMemory, b: _GlobalMemory, tile: int) -> Iterator[Phase]:
    (m, k), n = a.matrix.shape, b.matrix.shape[1]

    def copied(memory: _GlobalMemory, row: int, col: int) -> torch.Tensor:
        part = memory.read(slice(row, row + tile), slice(col, col + tile))
        shared = part.new_zeros(tile, tile)
        shared[: part.shape[0], : part.shape[1]] = part
        return shared

    for row in range(0, m, tile):
        for col in range(0, n, tile):
            sums = a.matrix.new_zeros(tile, tile)
            for at in range(0, k, tile):
                a_tile, b_tile = copied(a, row, at), copied(b, at, col)
                sums = sums + a_tile @ b_tile
                yield Phase(row, col, at, a_tile, b_tile, sums)


def draw(traced: Traced, console=None, every: bool = False) -> None:
    """Draws a product's phases and a table of its reads.

    Args:
        traced: the result of trace().
        console: a rich.console.Console, or None for standard output.
        every: whether to draw all phases of all blocks, however many.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError as error:
        text = "torch_tiled trace draws with rich, which is not installed: pip install rich"
        raise ModuleNotFoundError(text, name=error.name) from None
    console = console or Console(highlight=False)
    (m, k), n, tile = traced.a.shape, traced.b.shape[1], traced.tile
    console.print(f"C = A B, ({m}, {n}) = ({m}, {k}) ({k}, {n}), in tiles of {tile} x {tile}\n")
    _draw_matrices(console, ("A", traced.a), ("B", traced.b), ("C", traced.c))
    per_block = -(-k // tile)
    drawn = len(traced.phases) if every else _whole_blocks(len(traced.phases), per_block)
    for index, phase in enumerate(traced.phases[:drawn]):
        _draw_phase(console, traced, phase, index % per_block, per_block)
    if drawn < len(traced.phases):
        console.print(f"and {len(traced.phases) - drawn} phases more, which --all draws\n")
    console.print(_reads(traced))


def _whole_blocks(phases: int, per_block: int) -> int:
    """The number of phases to draw: of whole blocks, at most _MOST_PHASES or one block."""
    return min(phases, max(_MOST_PHASES // per_block, 1) * per_block)


def _draw_phase(console, traced: Traced, phase: Phase, index: int, count: int) -> None:
    (m, k), n, tile = traced.a.shape, traced.b.shape[1], traced.tile
    rows, cols, along = (
        slice(at, min(at + tile, size))
        for at, size in ((phase.row, m), (phase.col, n), (phase.k, k))
    )
    height, width, depth = (each.stop - each.start for each in (rows, cols, along))
    block = f"C[{_text(rows)}, {_text(cols)}]"
    if index == 0:
        console.rule(f"the block of {block}", align="left")
    console.print(f"phase {index + 1} of {count}: two tiles are copied, then multiplied")
    _draw_matrices(
        console,
        (f"A[{_text(rows)}, {_text(along)}]", phase.a, (height, depth)),
        (f"B[{_text(along)}, {_text(cols)}]", phase.b, (depth, width)),
        (block if index == count - 1 else "sums", phase.sums, (height, width)),
    )


def _text(part: slice) -> str:
    return f"{part.start}:{part.stop}"


def _draw_matrices(console, *matrices) -> None:
    """Draws matrices side by side if they fit the console's width, else one below another."""
    from rich.columns import Columns
    from rich.measure import Measurement

    drawings = [_matrix(*each) for each in matrices]
    widths = [Measurement.get(console, console.options, each).maximum for each in drawings]
    gap = 3
    if sum(widths) + gap * (len(widths) - 1) <= console.width:
        console.print(Columns(drawings, padding=(0, gap)))
    else:
        for each in drawings:
            console.print(each, overflow="crop" if console.options.ascii_only else "ellipsis")
    console.print()


def _matrix(title: str, matrix: torch.Tensor, inside: tuple[int, int] | None = None):
    """A drawing of a matrix below its title, with brackets around elements outside of `inside`."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    height, width = inside or matrix.shape
    cells = [
        [f" {x} " if i < height and j < width else f"({x})" for j, x in enumerate(row)]
        for i, row in enumerate(matrix.tolist())
    ]
    longest = max(len(cell) for row in cells for cell in row)
    table = Table(box=box.SQUARE, show_header=False, padding=0)
    table.add_column(no_wrap=True)
    for row in cells:
        table.add_row("".join(cell.rjust(longest) for cell in row))
    return Group(title, table)


def _reads(traced: Traced):
    from rich import box
    from rich.table import Table

    (m, k), n, tile = traced.a.shape, traced.b.shape[1], traced.tile
    table = Table(title="reads of global memory", box=box.SIMPLE, title_justify="left")
    for heading in ("kernel", "per element of C", "total", "FMAs per read"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for name, reads in (("naive", traced.naive_reads), (f"tiled, {tile}", traced.tiled_reads)):
        table.add_row(name, f"{reads / (m * n):g}", f"{reads}", f"{m * n * k / reads:g}")
    return table
