"""A GPU without free memory."""

from contextlib import contextmanager

import pytest
import torch


@contextmanager
def no_more_memory():
    """No allocation succeeds in this context, which expects that at least one is refused."""
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() / torch.cuda.get_device_properties("cuda").total_memory
    torch.cuda.set_per_process_memory_fraction(allowed)
    try:
        held = []
        for size in (2**26, 2**23, 2**21, 2**20, 2**9):  # the allocator has a pool for each
            with pytest.raises(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        refused = torch.cuda.memory_stats()["num_ooms"]
        yield
        assert torch.cuda.memory_stats()["num_ooms"] > refused
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
