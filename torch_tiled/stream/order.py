"""The order in which a GPU sums a product, by which K can be cut without another bit."""

import dataclasses
import functools

import torch

from .._op.namespace import operators
from .._op.registry import family, kernels, orders
from .._op.supported import COMPLEX, SIXTEEN_BIT

_H200 = (90, 132)  # for which products on the CPU are planned
_BLOCK = 2 << 20  # what an allocation of PyTorch's takes more than it was asked for, at most


@dataclasses.dataclass(frozen=True)
class Order:
    """How sums of a product are made.

    Attributes:
        dtype: the operands'.
        precision: as for torch_tiled.matmul.
        algorithm: the one that multiplies whole panels.
        family: of the kernels that compute the whole product. It adds a chunk to sums, too.
        name: the order's (torch_tiled/_op/registry.py).
        device: the (compute capability, SMs) of the GPU.
    """

    dtype: torch.dtype
    precision: str
    algorithm: str
    family: str
    name: str
    device: tuple[int, int]

    @property
    def chunk(self):
        """The chunk of K, in elements; None if K cannot be cut."""
        return self._chunk_of(self.name)

    def _chunk_of(self, name):
        chunk = orders()[name].chunk
        return chunk // 2 if chunk and self.dtype in COMPLEX else chunk

    @property
    def chunk_algorithm(self):
        """The algorithm that adds a chunk to sums."""
        return self.family

    @property
    def repair_algorithm(self):
        """The same for elements that were flagged, in precision "ieee"."""
        return "auto"

    @property
    def is_split(self):
        """Whether operands are split into hi and lo parts, which prepare() does beforehand."""
        return self.name == "fp16x3"

    @property
    def is_flagged(self):
        """Whether elements may be flagged, and are recomputed in another order."""
        return orders()[self.name].is_guarded

    @property
    def chunk_of_repair(self):
        """The chunk of the order in which flagged elements are recomputed."""
        return self._chunk_of("chunked")

    @property
    def sum_dtype(self):
        return torch.float32 if self.dtype in SIXTEEN_BIT else self.dtype

    @property
    def sum_bytes(self):
        return self.sum_dtype.itemsize

    @property
    def first_sum(self):
        """What sums begin with: -0 leaves the first chunk as it is, +0 makes a -0 of it +0."""
        zero = orders()[self.name].first_total
        return complex(zero, zero) if self.dtype in COMPLEX else zero

    def cost(self, m, n, k, matrices=1, *, prepared=False, adds_chunk=False, device=None):
        """Returns the kernel that multiplies panels, and its cycles by the cost model.

        Args:
            m, n, k, matrices: the sizes.
            prepared: whether B is split already.
            adds_chunk: whether the product is a chunk of K that is added to sums.
            device: as above, of another GPU.
        """
        kind = self.dtype, self.family if adds_chunk else self.algorithm, self.precision
        flags = prepared, adds_chunk
        return _cost(*kind, (matrices, m, n, k), *flags, *(device or self.device))[:2]

    def workspace(self, m, n, k, matrices=1, *, prepared=False, adds_chunk=False):
        """The bytes that the kernels of cost() take, at most."""
        kind = self.dtype, self.family if adds_chunk else self.algorithm, self.precision
        return _workspace(*kind, (matrices, m, n, k), prepared, adds_chunk, *self.device)

    def repair_workspace(self, m, n):
        """The same for a chunk of flagged elements."""
        sizes = 1, m, n, self.chunk_of_repair
        kind = self.dtype, self.repair_algorithm, "ieee"
        return _workspace(*kind, sizes, False, False, *self.device)


@functools.lru_cache(4096)
def _cost(*arguments):
    return operators._cost_of_panels(*arguments)


def _workspace(*arguments):
    *_, allocations = _cost(*arguments)
    return sum(allocations) + _BLOCK * max(len(allocations) - 1, 0)


@functools.lru_cache(256)
def order_of(dtype, sizes, precision, algorithm, device):
    """Returns the Order in which a GPU sums a product of (m, n, k).

    Args:
        device: the (compute capability, SMs) of the GPU, or None for the CPU, and then the
            algorithm must be named.
    """
    if device is None:
        kernel = family(algorithm)[0]
    else:
        # The family depends on K, and not on sizes or strides.
        kernel = kernels()[
            _cost(dtype, algorithm, precision, (1, *sizes), False, False, *device)[0]
        ]
    return Order(dtype, precision, algorithm, kernel.family, kernel.order, device or _H200)
