"""What the tests of torch.distributed share."""

import pytest
from helpers.distributed import failed_checks, too_few_gpus
from helpers.workers import once_per_run

GPUS = pytest.mark.skipif(too_few_gpus(), reason="fewer than two GPUs")


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=GPUS)])
def failures(request, tmp_path_factory):
    """The checks of the test's module that failed on a backend: (name, rank, traceback)."""
    name = f"{request.module.__name__.rpartition('.')[2]}-{request.param}"

    def run(folder):
        return failed_checks(request.module.__file__, request.param)

    return once_per_run(tmp_path_factory, name, run)
