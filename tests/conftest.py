"""Fixtures and options of all tests."""

import collections
import gc
import os

# Lets PyTorch's own CUDA products run in deterministic mode, which poisons fresh memory.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# The tests are many and small and run in as many processes as there are cores, where more threads
# would only wait for each other. test_threads.py sets a number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from helpers.memory import lock_much_memory
from helpers.needs import needs_cuda
from helpers.presplit import splits_on_cpu
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


@pytest.fixture(name="splits_on_cpu")
def splitting_on_cpu():
    with splits_on_cpu():
        yield


@pytest.fixture
def claim_memory():
    with lock_much_memory() as claim:
        yield claim


@pytest.fixture
def poisoned():
    """Fills fresh floating-point memory with NaN, so that reading or leaving any of it shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def collected():
    """Collects garbage first: to free a CUDA graph during a capture would end the capture."""
    gc.collect()


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the whole products of parameters")


def pytest_configure(config):
    config.addinivalue_line("markers", "thinned(strength): see tests/helpers/thinning.py")
    config.addinivalue_line("markers", "several_gpus: needs two GPUs; make test_gpus runs these")
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
    """Leaves out products in precision fp32 that an algorithm refuses for their dtype or device
    (test_errors.py has those), and the cases that thinning.py finds superfluous. A parameter of
    another name than `algorithm`, such as `kernel`, leaves out nothing."""

    def refused(item):
        params = getattr(item, "callspec", None) and item.callspec.params or {}
        dtype, device = params.get("dtype", torch.float32), params.get("device", "cpu")
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
        return not takes(params.get("algorithm"), dtype, device)

    kept = thin_out([item for item in items if not refused(item)])
    stays = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in stays])
    items[:] = kept


def pytest_runtest_setup(item):
    gpus = torch.cuda.device_count()
    if item.get_closest_marker("several_gpus") and gpus < 2:
        pytest.skip(f"needs two GPUs, and this machine has {gpus or 'none'}")


def pytest_terminal_summary(terminalreporter):
    """Prints how many tests each reason skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in collections.Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
