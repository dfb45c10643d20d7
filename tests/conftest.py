"""What all tests share: the devices, and the memory that nothing may read unwritten."""

import collections
import gc
import os

# Lets PyTorch's own CUDA products run in deterministic mode, which poisons fresh memory.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.reference import takes

DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """Forgets compiled code: PyTorch compiles a function eight times, other tests included."""
    torch.compiler.reset()


@pytest.fixture
def poisoned():
    """Fresh floating-point memory holds NaN, so that a product that reads or leaves any shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def collected():
    """No CUDA graph is in garbage: one that Python collects during a capture ends the capture."""
    gc.collect()


def pytest_collection_modifyitems(config, items):
    """Leaves out products that a rung refuses for their dtype or device (see test_errors.py)."""

    def refused(item):
        params = getattr(item, "callspec", None) and item.callspec.params or {}
        dtype, device = params.get("dtype", torch.float32), params.get("device", "cpu")
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
        return not takes(params.get("algorithm"), dtype, device)

    left_out = [item for item in items if refused(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not refused(item)]


def pytest_terminal_summary(terminalreporter):
    """One line a reason, with its count, of what was skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in collections.Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
