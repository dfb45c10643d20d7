"""The mma kernels of the host against those of a GPU, and what they do where memory is short."""

import pytest
import torch
from helpers.mma import OPERANDS, compare, each_16bit_dtype
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, in_layout
from helpers.tiled64 import check_without_memory

import torch_tiled


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 8, 15, 16, 31, 32, 33, 63, 64, 65, 72, 127, 128, 200, 1000])
def test_host_and_gpu_agree(k, layout, dtype):
    sizes = [1, 2, 7, 8, 9, 16, 31, 64, 65, 127, 128, 129, 136, 255, 256, 257]
    for i, m in enumerate(sizes):
        n = sizes[(5 * i + k) % len(sizes)]
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        compare(in_layout(a, layout[0]), in_layout(b, layout[1]), out_dtype=torch.float32)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERANDS)
def test_host_and_gpu_agree_on_hard_input(name, layout, dtype):
    for m, k, n in ((150, 1096, 136), (3, 300, 140), (140, 64, 5), (130, 8208, 8)):
        a, b = OPERANDS[name](m, k, n, dtype)
        compare(in_layout(a, layout[0]), in_layout(b, layout[1]), out_dtype=torch.float32)


@needs_hopper
@each_16bit_dtype
def test_host_and_gpu_agree_on_many_tiles(dtype):
    def randn(*shape):
        return torch.randn(shape).to(dtype)

    compare(randn(1000, 1096), randn(1096, 1032))
    compare(randn(5, 130, 200), randn(5, 200, 152))
    compare(randn(5, 130, 200), randn(200, 152))
    compare(randn(5, 130, 200), randn(5, 152, 200).mT)
    compare(randn(2, 3, 40, 2048), randn(2, 1, 48, 2048).mT)


@needs_hopper
@pytest.mark.parametrize(
    ("algorithm", "m", "n", "k", "step"),
    [
        ("mma_tma", 4000, 4096, 8200, 1),
        ("mma_tma", 300, 4096, 100, 2),
        ("mma_tma", 30, 40, 40000, 1),
        ("mma_unaligned", 300, 4099, 101, 2),
        ("mma_unaligned", 30, 41, 40001, 1),
    ],
)
def test_another_kernel_computes_if_memory_is_short(algorithm, m, n, k, step):
    """The memory is for the sums of the first chunk, for copies of operands that no tensor map can
    read, or for the sums of all chunks, which one block then computes alone."""
    a = torch.randn(m, k * step, dtype=torch.float16, device="cuda")[:, ::step]
    b = torch.randn(k, n, dtype=torch.float16, device="cuda")
    assert torch_tiled.explain(a, b, algorithm=algorithm).algorithm == algorithm
    check_without_memory(algorithm, a, b, reference="mma_sync")
