"""What all tests share: the devices, the memory that nothing may read unwritten, the options."""

import collections
import gc
import os

# Lets PyTorch's own CUDA products run in deterministic mode, which poisons fresh memory.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# The tests are many and small, and as many processes run them as there are cores:
# test_threads.py asks for threads. Several threads a process would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.reference import takes
from helpers.thinning import thin_out, use_whole_products

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


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the whole products of parameters")


def pytest_configure(config):
    config.addinivalue_line("markers", "thinned(strength): see tests/helpers/thinning.py")
    names_a_case = any("[" in argument for argument in config.args)
    use_whole_products(config.getoption("--all") or names_a_case)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many as there are cores; none where a file, a test or a word selects few tests, which
    then run in this process, without a wait for workers."""
    files = any("::" in argument or argument.endswith(".py") for argument in config.args)
    few = files or config.option.keyword or config.option.markexpr
    return 0 if few else len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config, items):
    """Leaves out products that a kernel refuses for their dtype or device (see test_errors.py),
    and what thinning.py finds superfluous."""

    def refused(item):
        params = getattr(item, "callspec", None) and item.callspec.params or {}
        dtype, device = params.get("dtype", torch.float32), params.get("device", "cpu")
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
        return not takes(params.get("algorithm"), dtype, device)

    kept = thin_out([item for item in items if not refused(item)])
    stays = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in stays])
    items[:] = kept


def pytest_terminal_summary(terminalreporter):
    """One line a reason, with its count, of what was skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in collections.Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
