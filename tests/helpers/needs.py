"""Marks and devices of tests that are skipped on machines without some GPU."""

import pytest
import torch
from helpers.reference import takes

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
needs_hopper = pytest.mark.skipif(
    not takes("fp16x3", torch.float32, "cuda"), reason="no Hopper GPU"
)

# Devices whose tensor-core kernels have the specified bits: the host models those of Hopper.
CPU_AND_HOPPER = ["cpu", pytest.param("cuda", marks=needs_hopper)]


@pytest.fixture(name="device", params=CPU_AND_HOPPER)
def cpu_and_hopper(request):
    """In place of the fixture of conftest.py, in a file that imports this one."""
    return request.param


def has_132_sms():
    """Whether the GPU is one that tests of plans name tiles for: an H100 SXM or an H200."""
    return torch.cuda.get_device_properties().multi_processor_count == 132
