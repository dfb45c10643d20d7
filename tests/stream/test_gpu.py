"""Products larger than the GPU, on a GPU: bits of the product within it, memory, several GPUs.

Budgets are a few MiB, so that small products have many tiles.
"""

import gc

import pytest
import torch
from helpers.needs import needs_cuda, needs_hopper

import torch_tiled
from torch_tiled import stream

MIB = 1 << 20
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def components(x):
    return torch.view_as_real(x) if x.is_complex() else x


def check(a, b, budget, **options):
    """The bits of a streamed product, and that it takes no more memory than its plan says."""
    expected = torch_tiled.matmul(a.cuda(), b.cuda(), **options).cpu()
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = torch.full_like(expected, torch.nan)
    plan = stream.plan(a, b, out=out, max_device_bytes=budget, **options)
    stream.matmul(a, b, out=out, max_device_bytes=budget, **options)
    taken = torch.cuda.max_memory_allocated() - before
    assert torch.cuda.memory_allocated() == before
    assert taken <= plan.device_bytes <= budget
    torch.testing.assert_close(
        components(out), components(expected), rtol=0, atol=0, equal_nan=True
    )
    return plan


FLOAT32 = [
    (3000, 2000, 2500),
    (1000, 700, 20000),
    (1031, 701, 9313),
    (1, 300, 5000),
    (300, 1, 5000),
    (5000, 7000, 1),
    (130, 4000, 127),
]


@needs_cuda
@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("m, n, k", FLOAT32)
def test_float32(m, n, k, precision, is_pinned):
    a, b = randn(m, k), randn(k, n)
    if is_pinned:
        a, b = a.pin_memory(), b.pin_memory()
    check(a, b, 96 * MIB if precision == "tf32" else 32 * MIB, precision=precision)


@needs_cuda
@pytest.mark.parametrize("k", [1000, 5001, 20001])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128],
)
def test_dtypes(dtype, k):
    for is_pinned in (False, True):
        a, b = randn(700, k, dtype=dtype), randn(k, 301, dtype=dtype)
        if is_pinned:
            a, b = a.pin_memory(), b.pin_memory()
        check(a, b, 64 * MIB)


@needs_cuda
@pytest.mark.parametrize("is_pinned", [False, True])
def test_layouts(is_pinned):
    store = randn(5003, 3001)
    if is_pinned:
        store = store.pin_memory()
    a = store[:2000, 1:2001]  # misaligned
    for b in (store[:2000], store[:2000, ::2], store[::2][:2000], store[:, :2000].mT):
        check(a, b, 32 * MIB)
        check(b.mT, a.mT, 32 * MIB)


@needs_cuda
@pytest.mark.parametrize("is_pinned", [False, True])
def test_conjugate_and_negative_views(is_pinned):
    a, b = randn(300, 2001, dtype=torch.complex64), randn(200, 2001, dtype=torch.complex64)
    if is_pinned:
        a, b = a.pin_memory(), b.pin_memory()
    check(a, b.mH, 32 * MIB)
    check(a.conj(), b.mT, 32 * MIB)
    check(a.conj().imag, b.mT.real, 16 * MIB)


@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_flagged_elements_of_cut_k(precision):
    a, b = randn(1000, 20000), randn(20000, 700)
    a[100] *= torch.exp(randn(20000) * 20)
    a[:, 3] *= 1e-30
    a[5, 11111], b[777, 5] = torch.inf, torch.nan
    plan = check(a, b, 56 * MIB if precision == "tf32" else 24 * MIB, precision=precision)
    assert plan.grid.slices > 1


@needs_cuda
def test_batches():
    check(randn(100, 3, 200, 100), randn(3, 100, 300), 32 * MIB)
    check(randn(3, 900, 800), randn(3, 800, 900), 16 * MIB)
    check(randn(7, 900, 800), randn(800, 900), 16 * MIB)
    check(randn(800), randn(5, 800, 900), 16 * MIB)
    check(randn(5, 6).mT[:, None], randn(6, 5, 4), 16 * MIB)


@needs_cuda
def test_an_operand_on_the_gpu():
    a, b = randn(3000, 2500), randn(2500, 2000)
    expected = torch_tiled.matmul(a.cuda(), b.cuda()).cpu()
    for options in ({"max_device_bytes": 32 * MIB}, {}):
        assert torch.equal(stream.matmul(a.cuda(), b, **options), expected)
        assert torch.equal(stream.matmul(a, b.cuda(), **options), expected)


@needs_cuda
def test_result_of_kernels_that_still_run():
    """An operand on the GPU may be the result of kernels in the caller's stream."""
    a = randn(3000, 2500)
    b = torch.zeros(2500, 2000, device="cuda")
    torch.cuda._sleep(10**8)
    b += 1
    expected = torch_tiled.matmul(a.cuda(), torch.ones_like(b)).cpu()
    assert torch.equal(stream.matmul(a, b, max_device_bytes=32 * MIB), expected)


@needs_hopper
def test_callers_state():
    a, b = randn(600, 500), randn(500, 400)
    side = torch.cuda.Stream()
    state = torch.cuda.get_rng_state()
    with torch.cuda.stream(side):
        stream.matmul(a, b, max_device_bytes=8 * MIB)
        assert torch.cuda.current_stream() == side
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.current_device() == 0


@needs_cuda
def test_smaller_tiles_where_memory_runs_out():
    """Another process may take the memory on which the plan counted."""
    a, b = randn(3000, 2500), randn(2500, 2000)
    expected = torch_tiled.matmul(a.cuda(), b.cuda()).cpu()
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 40 * MIB
    torch.cuda.set_per_process_memory_fraction(
        allowed / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        result = stream.matmul(a, b, max_device_bytes=200 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(result, expected)


@needs_two_gpus
@pytest.mark.parametrize("is_pinned", [False, True])
def test_two_gpus(is_pinned):
    a, b = randn(3000, 2500), randn(2500, 2000)
    c, d = randn(1000, 20000), randn(20000, 700)
    d[777, 5] = torch.inf
    for x, y in ((a, b), (c, d)):
        if is_pinned:
            x, y = x.pin_memory(), y.pin_memory()
        expected = torch_tiled.matmul(x.cuda(), y.cuda()).cpu()
        for devices in (["cuda:0", "cuda:1"], [1], ["cuda:1", "cuda:0"]):
            result = stream.matmul(x, y, devices=devices, max_device_bytes=24 * MIB)
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.cuda.current_device() == 0
