"""The roofs of an H200, and how the tiles of kernels on CUDA cores lie under them.

The figures of the GPU are from CUDA's programming guide. tests/benchmarks/test_ladder.py compares
the tiles with the sources.
"""

import math
from dataclasses import dataclass

from benchmarks.pages.course_kernels import rungs
from torch_tiled._op.registry import kernels

# An H200 (compute capability 9.0).
SMS = 132
LANES = 128  # float32 FMAs of an SM in a cycle
TENSOR_FMAS = 2048  # 16-bit FMAs of an SM's tensor cores in a cycle
CLOCK_MHZ = 1980
PEAK = 2 * SMS * LANES * CLOCK_MHZ / 1e6  # TFLOP/s
TENSOR_PEAK = 2 * SMS * TENSOR_FMAS * CLOCK_MHZ / 1e6  # TFLOP/s
LOADED = 32  # float32 that an SM's load units bring in a cycle, one from each bank
# One SM:
THREADS = 2048
PARTS = 4  # a part has registers of its own, and every fourth warp
REGISTERS = 65536
REGISTERS_AT_A_TIME = 256  # the granularity of a warp's registers
SHARED = 228 << 10  # bytes
SYSTEM_SHARED = 1 << 10  # bytes that the system takes for each block


def peak(kernel: str) -> float:
    """TFLOP/s of the units that a kernel computes on; fp16x3 does three products for one.

    Tensor cores multiply float64 as fast as CUDA cores multiply float32.
    """
    peaks = {"fp16x3": TENSOR_PEAK / 3, "mma": TENSOR_PEAK, "tf32": TENSOR_PEAK}
    return peaks.get(kernels()[kernel].order, PEAK)


@dataclass(frozen=True)
class Tile:
    """The tile of C of a block, and of a thread; the rest where the page has it."""

    m: int
    n: int
    thread_m: int = 1
    thread_n: int = 1
    registers: int = 0  # a thread's, for float32 on compute capability 9.0 (cuobjdump -res-usage)
    shared_bytes: int = 0

    @property
    def reads(self) -> float:
        """Elements of A and B that are read from global memory for each FMA."""
        return 1 / self.m + 1 / self.n

    @property
    def loads(self) -> float:
        """Elements that a thread loads for each FMA, from shared memory if it has any."""
        return 1 / self.thread_m + 1 / self.thread_n

    @property
    def fed(self) -> float:
        """FMAs that an SM's load units have numbers for in a cycle."""
        return LOADED / self.loads

    @property
    def threads(self) -> int:
        return self.m // self.thread_m * (self.n // self.thread_n)

    def limits(self) -> dict[str, int]:
        """How many blocks an SM has room for, by resource."""
        warp = math.ceil(self.registers * 32 / REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
        warps = PARTS * (REGISTERS // PARTS // warp)
        return {
            "registers": warps // (self.threads // 32),
            "threads": THREADS // self.threads,
            "shared memory": SHARED // (self.shared_bytes + SYSTEM_SHARED),
        }


def tile_of(kernel: str, registers: int) -> Tile:
    """The tile of a kernel of the course, as its source has it."""
    rung = rungs()[kernel]
    return Tile(rung.m, rung.n, rung.per, rung.per, registers, rung.shared_bytes)


# The tiles of the course with their registers.
_REGISTERS = {"tiled16": 39, "tiled32": 32, "padded32": 32, "tiled64": 80}
_REGISTERS |= dict.fromkeys(("register_tile", "vectorized", "double_buffered"), 128)
TILED = {kernel: tile_of(kernel, registers) for kernel, registers in _REGISTERS.items()}
# The tiles of the family tiled, which the pages compare.
TILED_SIZES = {kernel: TILED[kernel] for kernel in ("tiled16", "tiled32", "tiled64")}
# The kernels that the model of traffic is for. naive has no tile: each thread reads for itself.
TILES = {"naive": Tile(1, 1), **TILED_SIZES, "simt_tma": Tile(256, 128, 8, 16)}
