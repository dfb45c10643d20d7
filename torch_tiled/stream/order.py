"""The order in which a GPU sums a product, by which K can be cut without another bit."""

import dataclasses
import functools

import torch

from .._op.supported import COMPLEX, SIXTEEN_BIT
from ..ops import explain

# For each family of kernels, the chunk of K of its order, in real numbers (csrc/core/order_*.h),
# and the algorithm that can add a chunk to sums (csrc/binding/stream.h).
_FAMILIES = {
    "fp16x3": (1024, "fp16x3_wgmma"),
    "tf32": (8192, "tf32_tma"),
    "mma": (8192, "mma"),
    "f64": (1024, "f64"),
    "simt": (1024, "simt"),
    "tiled": (1024, "tiled"),
    "naive": (None, "naive"),
}
# Totals between chunks, 128 x 256 float32 for each SM (csrc/kernels/mma/chunk_totals.cuh).
_RUNNING_TOTALS = 160 * 128 * 256 * 4
_SPLIT_K_TILE = 160 * 128 * 128  # elements of C from which on kernels have a tile for each SM


@dataclasses.dataclass(frozen=True)
class Order:
    """How sums of a product are made.

    Attributes:
        dtype: the operands'.
        precision: as for torch_tiled.matmul.
        algorithm: the one that multiplies whole panels.
        family: of the kernels that compute the whole product.
        chunk: of K, in elements; None if K cannot be cut.
        chunk_algorithm: the one that adds a chunk to sums.
        repair_algorithm: the same for elements that were flagged, in precision "ieee".
    """

    dtype: torch.dtype
    precision: str
    algorithm: str
    family: str
    chunk: int | None
    chunk_algorithm: str
    repair_algorithm: str

    @property
    def is_split(self):
        """Whether operands are split into hi and lo parts, which prepare() does beforehand."""
        return self.family == "fp16x3"

    @property
    def is_flagged(self):
        """Whether elements may be flagged, and are recomputed in another order."""
        return self.family in ("fp16x3", "tf32")

    @property
    def chunk_of_repair(self):
        """The chunk of the order in which flagged elements are recomputed."""
        return 512 if self.dtype in COMPLEX else 1024

    @property
    def sum_dtype(self):
        return torch.float32 if self.dtype in SIXTEEN_BIT else self.dtype

    @property
    def sum_bytes(self):
        return self.sum_dtype.itemsize

    @property
    def first_sum(self):
        """What sums begin with: -0 leaves the first chunk as it is, +0 makes a -0 of it +0."""
        zero = 0.0 if self.family in ("tf32", "mma") else -0.0
        return complex(zero, zero) if self.dtype in COMPLEX else zero

    def workspace(self, rows, depth, tile, matrices=1):
        """The bytes that kernels take, at most, to multiply operands of `rows` rows together.

        Args:
            rows: the rows of A and the columns of B that are not prepared.
            depth: of K.
            tile: the elements of C.
            matrices: of a batch.
        """
        parts = 2 if self.dtype in COMPLEX else 1
        numbers = parts * parts * (rows + 32) * (depth + 32) * matrices
        total = tile // 2  # lists of flagged elements, and what is allocated in whole lines
        if self.family == "fp16x3":
            total += int(4.08 * numbers)
        elif self.family == "tf32":
            total += int(2.04 * numbers)
        if parts == 2:  # the real matrix of B, and complex sums, in allocations of their own
            total += numbers * self.dtype.itemsize // 2 + tile * self.sum_bytes + (2 << 20)
        if self.family == "simt":  # transposed operands
            total += 4 * numbers
        if self.family in ("tf32", "mma") and depth > self.chunk:
            total += _RUNNING_TOTALS
        if tile < _SPLIT_K_TILE and self.chunk:
            total += -(-depth // self.chunk) * tile * self.sum_bytes
        return total

    def repair_workspace(self, rows, tile):
        """The same for a chunk of flagged elements."""
        simt = dataclasses.replace(self, family="simt", chunk=self.chunk_of_repair)
        return simt.workspace(rows, self.chunk_of_repair, tile)


@functools.lru_cache(256)
def order_of(dtype, sizes, precision, algorithm, device):
    """Returns the Order in which a GPU sums a product of (m, n, k).

    Args:
        device: the (compute capability, SMs) of the GPU, or None for the CPU, whose algorithm must
            be named then.
    """
    m, n, k = sizes
    if device is None:
        name = algorithm
    else:
        # The family depends on K, and not on sizes or strides. These tensors take no memory.
        a = torch.empty((1, 1), dtype=dtype, device="meta").expand(m, k)
        b = torch.empty((1, 1), dtype=dtype, device="meta").expand(k, n)
        capability, sms = device
        options = {"compute_capability": capability, "sms": sms}
        name = explain(a, b, algorithm=algorithm, precision=precision, **options).algorithm
    family = next(x for x in _FAMILIES if name.startswith(x))
    chunk, chunk_algorithm = _FAMILIES[family]
    if device is None:  # the CPU has one kernel for each order
        chunk_algorithm = "tiled" if family in ("simt", "f64") else family
    if chunk is not None and dtype in COMPLEX:
        chunk //= 2
    repair_algorithm = "tiled" if device is None else "simt"
    return Order(dtype, precision, algorithm, family, chunk, chunk_algorithm, repair_algorithm)
