"""What a machine can do, in the terms of a plan."""

import dataclasses

from .._op.registry import kernels
from .staging import MOST_THREADS

_CLOCK = 1.4e9  # by which the cycles of the cost model are seconds, under the GPU's power limit
_SPLIT_FLOPS = 1.55e12  # of an SM, for products of operands that are split
MIB = 1 << 20


def bytes_text(count):
    """A number of bytes to read, such as 62.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 999.5:  # three digits
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates of a host and a GPU.

    Attributes:
        device: (compute capability, SMs) of the GPU.
        in_rate, out_rate: bytes a second between pinned memory and the GPU.
        staging_in_rate, staging_out_rate: the same for pageable memory, through pinned memory, by
            MOST_THREADS threads of the host in each direction; by fewer, in proportion.
        staging_threads: how many there are, for each GPU.
        staging_rate: bytes a second that the host copies for both directions of all GPUs together.
        staged_copy_seconds: what a panel or a tile takes beside that, by staging.
        staging_bytes: the pinned memory for that, of each direction of a GPU.
        memory_rate: bytes a second of the GPU's memory.
        boost: how many times as fast products are at first, before the GPU's power limit lowers its
            clock.
        boost_seconds: for how long, in seconds that these products take at the lower clock.
        line_seconds: what a row, or a column, adds to a copy of rows or columns with gaps between.
        step_seconds: the time of the host for a step.
        start_seconds: the same before the first copy of a product.
        call_seconds: the same before the first product of a call, for its checks.
    """

    device: tuple = (90, 132)
    in_rate: float = 53e9
    out_rate: float = 50e9
    staging_in_rate: float = 45e9
    staging_out_rate: float = 42e9
    staging_rate: float = 72e9
    staged_copy_seconds: float = 1e-3
    staging_threads: int = MOST_THREADS
    staging_bytes: int = 32 * MIB
    memory_rate: float = 3.5e12
    line_seconds: float = 25e-9
    boost: float = 1.25
    boost_seconds: float = 0.1
    step_seconds: float = 400e-6
    start_seconds: float = 1.5e-3
    call_seconds: float = 1.5e-3

    def seconds_in(self, nbytes, lines, panels, is_staged):
        """The seconds in which panels reach the GPU.

        Args:
            nbytes: of all of them.
            lines: with gaps between, of all of them.
            panels: how many there are.
            is_staged: whether they pass through pinned memory.
        """
        rate = self.staging_in_rate if is_staged else self.in_rate
        return self._seconds(rate, nbytes, lines, panels, is_staged)

    def seconds_out(self, nbytes, lines, tiles, is_staged):
        """The same of tiles, to the host."""
        rate = self.staging_out_rate if is_staged else self.out_rate
        return self._seconds(rate, nbytes, lines, tiles, is_staged)

    def _seconds(self, rate, nbytes, lines, count, is_staged):
        seconds = lines * self.line_seconds
        if is_staged:
            rate *= self.staging_threads / MOST_THREADS
            seconds += count * self.staged_copy_seconds
        return seconds + nbytes / rate

    def boost_of(self, seconds):
        """By what products are faster that take so many seconds at the lower clock."""
        share = min(self.boost_seconds / seconds, 1) if seconds else 1
        return 1 / (1 - share * (1 - 1 / self.boost))

    def product_seconds(self, order, m, n, k, matrices, *, prepared):
        """The seconds of one product at the lower clock, by the cost model of the kernels."""
        if not (m and n and k):
            return 0.0
        kernel, cycles = order.cost(m, n, k, matrices, device=self.device)
        seconds = cycles / _CLOCK
        # The split of B, which reads and writes four bytes an element, is left out.
        if prepared and kernels()[kernel].reads_presplit_b:
            least = 2 * m * n * k / _SPLIT_FLOPS / self.device[1]
            seconds = max(seconds - 8 * k * n / self.memory_rate, least)
        return seconds

    def chunk_seconds(self, order, m, n):
        """The seconds in which a chunk is added to sums, which are read and written."""
        _, cycles = order.cost(m, n, order.chunk, adds_chunk=True, device=self.device)
        return cycles / _CLOCK + m * n * order.sum_bytes / self.memory_rate
