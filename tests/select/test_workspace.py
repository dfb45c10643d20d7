"""What a launch allocates: as much as its kernel's row of kernels.def says, and no more."""

import pytest
import torch
from helpers.needs import needs_hopper

import torch_tiled
from torch_tiled._op.namespace import operators
from torch_tiled._op.registry import kernels

BLOCK = 2 << 20  # that PyTorch's allocator may leave unused in a block
# Multiples of 16, so that no operand has to be copied to aligned rows.
SIZES = [
    (1, 4096, 4096),
    (16, 9008, 5008),
    (96, 3008, 2064),
    (64, 64, 65536),
    (304, 512, 20000),
    (1008, 1008, 1008),
    (4096, 2048, 3008),
]


def stored(rows, columns, dtype, row_major):
    if row_major:
        return torch.randn(rows, columns, device="cuda").to(dtype)
    return torch.randn(columns, rows, device="cuda").to(dtype).mT


@needs_hopper
@pytest.mark.parametrize("name", kernels())
def test_a_launch_allocates_what_its_row_says(name):
    kernel = kernels()[name]
    dtype = kernel.dtypes[0]
    options = {"algorithm": name, "precision": "tf32" if kernel.order == "tf32" else "fp32"}
    gpu = torch.cuda.get_device_properties("cuda")
    capability = gpu.major * 10 + gpu.minor
    for m, n, k in SIZES:
        ran, _, allocations = operators._cost_of_panels(
            dtype,
            *options.values(),
            (1, m, n, k),
            False,
            False,
            capability,
            gpu.multi_processor_count,
        )
        if ran != name:  # it does not take these sizes
            continue
        out = torch.empty(m, n, dtype=dtype, device="cuda")
        for layout in range(4):
            a, b = stored(m, k, dtype, layout & 1), stored(k, n, dtype, layout & 2)
            if torch_tiled.explain(a, b, **options).algorithm != name:
                continue
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            torch_tiled.matmul(a, b, out=out, **options)
            taken = torch.cuda.max_memory_allocated() - before
            assert taken <= sum(allocations) + BLOCK * len(allocations), (m, n, k, layout)
