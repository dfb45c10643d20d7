"""The fixture that runs checks of torch.distributed."""

from pathlib import Path

import pytest
from helpers.distributed import failed_checks
from helpers.workers import once_per_run

FILES = sorted(Path(__file__).parent.glob("test_distributed*.py"))


@pytest.fixture(
    scope="session", params=["gloo", pytest.param("nccl", marks=pytest.mark.several_gpus)]
)
def failures(request, tmp_path_factory):
    """The checks that failed on a backend: (name, rank, traceback). They all run in one set of
    processes, since to start those takes longer than most checks."""

    def run(folder):
        return failed_checks(FILES, request.param)

    return once_per_run(tmp_path_factory, f"distributed-{request.param}", run)
