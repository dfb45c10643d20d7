"""A tuned Triton product of float32 matrices, its tl.dot in a chosen input_precision.

Triton splits the operands of such a tl.dot into parts ("bf16x3", "bf16x6", "tf32x3") and multiplies
those on tensor cores. Each precision has the fastest of TILES for the shape at hand: loads are
pipelined, and groups of blocks that run together share rows and columns in L2.
"""

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.gemm.measure import Operands, side_by_side

PRECISIONS = ("bf16x3", "tf32x3", "bf16x6")
GROUP_ROWS = 8  # of tiles, whose blocks run together


@triton.jit
def product_kernel(
    a, b, c, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, BY_TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of c = a b, which divides the sizes; with BY_TMA a and b are tensor descriptors."""
    tile = tl.program_id(0)
    across = n // BLOCK_N
    group = tile // (GROUP * across)
    rows = min(m // BLOCK_M - group * GROUP, GROUP)
    row = (group * GROUP + tile % (GROUP * across) % rows) * BLOCK_M
    column = tile % (GROUP * across) // rows * BLOCK_N
    rows_of_c, columns_of_c = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if BY_TMA:
        for first in range(0, k, BLOCK_K):
            left, right = a.load([row, first]), b.load([first, column])
            total = tl.dot(left, right, total, input_precision=PRECISION)
    else:
        along = tl.arange(0, BLOCK_K)
        left_at = a + rows_of_c[:, None] * k + along[None, :]
        right_at = b + along[:, None] * n + columns_of_c[None, :]
        for _ in range(0, k, BLOCK_K):
            total = tl.dot(tl.load(left_at), tl.load(right_at), total, input_precision=PRECISION)
            left_at += BLOCK_K
            right_at += BLOCK_K * n
    tl.store(c + rows_of_c[:, None] * n + columns_of_c[None, :], total)


@dataclass(frozen=True)
class Tile:
    m: int
    n: int
    k: int
    warps: int
    stages: int
    by_tma: bool = False

    def __str__(self) -> str:
        loads = "TMA" if self.by_tma else "pointers"
        return f"{self.m}x{self.n}x{self.k}, {self.warps} warps, {self.stages} stages, {loads}"


TILES = tuple(
    Tile(*sizes, by_tma)
    for sizes, by_tma in itertools.product(
        (
            (64, 64, 32, 4, 4),
            (64, 128, 32, 4, 4),
            (128, 64, 32, 4, 4),
            (128, 64, 64, 4, 3),
            (128, 128, 32, 4, 3),
            (128, 128, 32, 8, 3),
            (128, 128, 32, 8, 4),
            (128, 128, 32, 8, 5),
            (128, 128, 64, 8, 3),
            (128, 256, 32, 8, 3),
            (128, 256, 32, 8, 4),
            (256, 128, 32, 8, 3),
            (256, 128, 32, 8, 4),
        ),
        (False, True),
    )
)


def _launch(run, precision: str, tile: Tile, a, b, c) -> None:
    """Passes the kernel and its arguments to `run`."""
    (m, k), n = a.shape, b.shape[1]
    if tile.by_tma:
        a = TensorDescriptor.from_tensor(a, [tile.m, tile.k])
        b = TensorDescriptor.from_tensor(b, [tile.k, tile.n])
    run(
        a, b, c, m, n, k, tile.m, tile.n, tile.k, GROUP_ROWS, tile.by_tma, precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def multiply(precision: str, tile: Tile, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of row-major float32 matrices; the tile divides their sizes."""
    for size, part in ((a.shape[0], tile.m), (a.shape[1], tile.k), (b.shape[1], tile.n)):
        if size % part:
            raise ValueError(f"{size} is not a multiple of {part}, the tile's side: {tile}")
    c = a.new_empty(a.shape[0], b.shape[1])
    blocks = (a.shape[0] // tile.m) * (b.shape[1] // tile.n)
    _launch(product_kernel[(blocks,)], precision, tile, a, b, c)
    return c


def compile_all(precisions: Iterable[str], tiles: Iterable[Tile], threads: int) -> None:
    """Compiles the kernel of every precision and tile at once; one that fails is left to tune()."""
    a = torch.empty(1024, 1024, device="cuda")
    with (
        ThreadPoolExecutor(threads) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        for precision, tile in itertools.product(precisions, tiles):

            def warm_up(*args, **options):
                product_kernel.warmup(*args, grid=(1,), **options)

            _launch(warm_up, precision, tile, a, a, a)


def tune(precision: str, sets: list[Operands], tiles: Iterable[Tile]) -> dict[Tile, float]:
    """Microseconds of each tile that fits the GPU, the fastest first."""
    found = {}
    for tile in tiles:
        try:
            call = partial(multiply, precision, tile), sets
            (spread,) = side_by_side([call], seconds=0, repeats=3)
            found[tile] = spread.median
        except triton.runtime.errors.OutOfResources:
            continue  # more shared memory or registers than an SM has
    if not found:
        raise RuntimeError(f"no tile of Triton's {precision} fits this GPU")
    return dict(sorted(found.items(), key=lambda each: each[1]))
