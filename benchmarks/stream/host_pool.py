"""Memory of the host for the operands and the results of large products, pinned for a while.

Pinned memory is slow to allocate, so a run pins once: A, B and C of every product are views of the
same three parts of a pool.
"""

import math

import torch

ALIGNMENT = 1 << 21  # bytes of whose multiples parts are
NAMES = ("a", "b", "c")


class HostPool:
    """Three parts of memory, which is touched and not pinned at first.

    Args:
        nbytes: of each part, at least.

    Raises:
        RuntimeError: there is no memory.
    """

    def __init__(self, nbytes: int):
        self.part_bytes = math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
        # A first write makes the system find the pages. fill_ has many threads for that. Each part
        # has a storage of its own, of which Tensor.is_pinned() looks at the first byte.
        self._parts = {
            name: torch.empty(self.part_bytes, dtype=torch.uint8).fill_(0) for name in NAMES
        }
        self._pinned: list[int] = []  # addresses

    def part(self, name: str) -> torch.Tensor:
        """All bytes of a part."""
        return self._parts[name]

    def matrix(self, name: str, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
        """A row-major matrix at the beginning of a part."""
        part = self._parts[name][: rows * cols * dtype.itemsize]
        return part.view(dtype).view(rows, cols)

    def pin(self) -> None:
        """Pins the parts. Raises RuntimeError where the driver does not."""
        for name, part in self._parts.items():
            address = part.data_ptr()
            status = torch.cuda.cudart().cudaHostRegister(address, self.part_bytes, 0)
            if int(status) != 0:
                raise RuntimeError(f"cudaHostRegister of part {name} returned {int(status)}")
            self._pinned.append(address)

    def unpin(self) -> None:
        """Makes the parts pageable memory again; what is in them stays."""
        while self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop())
