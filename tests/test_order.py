"""One sum, one order: an element's bits depend on its row, its column and K alone.

Held by every rung of its own accord; across rungs, devices and whatever `auto` picks on CUDA by
those that keep the chunked order of csrc/sum.h: all but naive, which is the plain sum.
"""

import pytest
import torch

import torch_tiled

RUNGS = torch_tiled.algorithms()
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 7), (33, 65, 1000), (64, 130, 1024), (70, 17, 1025), (129, 63, 4099)]


def names(device):
    """The rungs, and `auto` where it is ours: on the CPU it is torch.matmul."""
    return [*RUNGS, "auto"] if device == "cuda" else RUNGS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_rows_and_columns_stand_alone(device, dtype, m, n, k):
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(k, n, device=device).to(dtype)
    for algorithm in names(device):
        whole = torch_tiled.matmul(a, b, algorithm=algorithm)
        for rows in (slice(0, 1), slice(m // 3, None), slice(None, None, 7)):
            part = torch_tiled.matmul(a[rows], b, algorithm=algorithm)
            assert torch.equal(part, whole[rows]), (algorithm, rows)
        for cols in (slice(0, 1), slice(n // 3, None), slice(None, None, 7)):
            part = torch_tiled.matmul(a, b[:, cols], algorithm=algorithm)
            assert torch.equal(part, whole[:, cols]), (algorithm, cols)
        order = torch.randperm(m, device=device)
        assert torch.equal(torch_tiled.matmul(a[order], b, algorithm=algorithm), whole[order])
        vector = torch_tiled.matmul(a[0], b, algorithm=algorithm)
        assert torch.equal(vector, whole[0]), algorithm
        vector = torch_tiled.matmul(a, b[:, 0], algorithm=algorithm)
        assert torch.equal(vector, whole[:, 0]), algorithm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_stand_alone(device, dtype):
    a = torch.randn(5, 37, 1100, device=device).to(dtype)
    b = torch.randn(5, 1100, 29, device=device).to(dtype)
    for algorithm in names(device):
        batch = torch_tiled.matmul(a, b, algorithm=algorithm)
        shared = torch_tiled.matmul(a, b[0], algorithm=algorithm)
        for i in range(5):
            assert torch.equal(batch[i], torch_tiled.matmul(a[i], b[i], algorithm=algorithm))
            assert torch.equal(shared[i], torch_tiled.matmul(a[i], b[0], algorithm=algorithm))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_do_not_matter(device, dtype):
    a = torch.randn(45, 1100, device=device).to(dtype)
    b = torch.randn(1100, 67, device=device).to(dtype)
    store = torch.empty(91, 3301, dtype=dtype, device=device)
    strided = store[1::2, 1::3].copy_(a)
    misaligned = torch.empty(45, 1101, dtype=dtype, device=device)[:, 1:].copy_(a)
    for algorithm in names(device):
        plain = torch_tiled.matmul(a, b, algorithm=algorithm)
        for view in (a.mT.contiguous().mT, strided, misaligned):
            assert torch.equal(torch_tiled.matmul(view, b, algorithm=algorithm), plain)
        for view in (b.mT.contiguous().mT, b.expand(2, -1, -1)[1]):
            assert torch.equal(torch_tiled.matmul(a, view, algorithm=algorithm), plain)


@pytest.mark.parametrize("m, n, k", SIZES)
def test_chunked_rungs_agree(device, m, n, k):
    for dtype in DTYPES:
        a = torch.randn(m, k, device=device).to(dtype)
        b = torch.randn(k, n, device=device).to(dtype)
        first, *others = [name for name in names(device) if name != "naive"]
        expected = torch_tiled.matmul(a, b, algorithm=first)
        for algorithm in others:
            assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm), expected), algorithm


@pytest.mark.parametrize("algorithm", RUNGS)
def test_hundred_repeats(device, algorithm):
    a, b = torch.randn(50, 1500, device=device), torch.randn(1500, 70, device=device)
    first = torch_tiled.matmul(a, b, algorithm=algorithm)
    for _ in range(100):
        assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm), first)


def test_precisions_agree_while_both_are_ieee(device):
    a, b = torch.randn(50, 1500, device=device), torch.randn(1500, 70, device=device)
    for algorithm in names(device):
        fp32 = torch_tiled.matmul(a, b, algorithm=algorithm, precision="fp32")
        ieee = torch_tiled.matmul(a, b, algorithm=algorithm, precision="ieee")
        assert torch.equal(fp32, ieee)


def fused_multiply_add(x, y, z):
    """round(x y + z) of float32 tensors, by float64 rounded to odd, which rounds safely again
    (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008)."""
    product, z = x.double() * y.double(), z.double()  # the product is exact
    total = product + z
    shift = total - product
    lost = (product - (total - shift)) + (z - shift)
    toward = torch.where(lost > 0, torch.inf, -torch.inf).double()
    even = total.view(torch.int64) % 2 == 0
    return torch.where((lost != 0) & even, torch.nextafter(total, toward), total).float()


@pytest.mark.parametrize("algorithm", RUNGS)
def test_order_is_as_specified(device, algorithm):
    """csrc/sum.h to the bit: FMAs ascending in k from +0, sums of 1024 added in order."""
    k = 2100
    a, b = torch.randn(3, k), torch.randn(k, 4)
    chunk = k if algorithm == "naive" else 1024
    total = torch.full((3, 4), -0.0)
    for start in range(0, k, chunk):
        part = torch.zeros(3, 4)
        for i in range(start, min(start + chunk, k)):
            part = fused_multiply_add(a[:, i : i + 1], b[i], part)
        total = total + part
    result = torch_tiled.matmul(a.to(device), b.to(device), algorithm=algorithm)
    assert torch.equal(result.cpu(), total)


@pytest.mark.parametrize("algorithm", RUNGS)
@pytest.mark.parametrize("k", [1, 2, 16, 33, 64, 100])
def test_sign_of_an_underflowed_zero(device, algorithm, k):
    """What pads a tile adds nothing, not even to -0: it has the sign of what underflowed last."""
    tiny = torch.full((5, k), 1e-30, device=device)
    b = torch.full((k, 3), -1e-30, device=device)
    result = torch_tiled.matmul(tiny, b, algorithm=algorithm)
    assert (result == 0).all() and result.signbit().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("algorithm", RUNGS)
def test_cpu_and_cuda_agree(algorithm, m, n, k):
    """The host's rung of a name is its executable specification: the same bits."""
    for dtype in DTYPES:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        host = torch_tiled.matmul(a, b, algorithm=algorithm)
        cuda = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm=algorithm)
        assert torch.equal(cuda.cpu(), host), dtype
