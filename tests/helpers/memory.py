"""A GPU with much or without free memory, and the memory that steps keep."""

import fcntl
import gc
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

# Memory that tests in other processes may need while one test has much of it.
OF_OTHERS = 16 << 30


@contextmanager
def lock_much_memory():
    """Yields a function that a test calls with the bytes it allocates on the GPU.

    The function waits until no test of another process has much memory, and skips the test if less
    is free than it and the other processes need.
    """
    with open(Path(tempfile.gettempdir()) / "torch_tiled_much_memory", "w") as lock:

        def claim(needed):
            fcntl.flock(lock, fcntl.LOCK_EX)
            torch.cuda.empty_cache()
            if torch.cuda.mem_get_info()[0] < needed + OF_OTHERS:
                pytest.skip("not enough GPU memory")

        yield claim
        torch.cuda.empty_cache()


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


def bytes_kept(step, device, steps=4, warmup=2):
    """The bytes by which the memory of tensors grows in `steps` steps without garbage collection.

    On the CPU the profiler sums what is allocated and freed, since PyTorch keeps no count there.
    """
    for _ in range(warmup):
        step()
    gc.collect()
    gc.disable()
    try:
        if device == "cuda":
            before = torch.cuda.memory_allocated()
            for _ in range(steps):
                step()
            return torch.cuda.memory_allocated() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            for _ in range(steps):
                step()
        return sum(event.self_cpu_memory_usage for event in profiled.events())
    finally:
        gc.enable()
        gc.collect()
