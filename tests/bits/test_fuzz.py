"""Random products on a GPU, of random sizes, strides, batches, dtypes and kernels.

There are two thousand of all sides, and two thousand with a short side, a short K or a batch.
test_properties.py draws small problems from hypothesis, which shrinks failures. These problems are
larger, need several tiles and chunks, and are the same each time: a failure names its seed and
case. In the last test operands and results end where their memory does; `make memcheck` runs it.
"""

import math
import random

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.reference import ALGORITHMS, NAMED, assert_within, bound, order, product, takes

import torch_tiled

SEEDS, CASES, EXACT_CASES = 20, 100, 10
MOST_ELEMENTS = 10**7  # of a thin or batched product


def size(rng, most):
    """A size of which every order of magnitude is equally likely."""
    return round(math.exp(rng.uniform(0, math.log(most))))


def view(rng, shape, dtype):
    """A tensor of that shape in a larger one of NaN: transposed, padded, misaligned or strided."""
    *batch, rows, columns = shape
    transposed = rng.random() < 0.5
    inner = [columns, rows] if transposed else [rows, columns]
    step = [rng.choice([1, 1, 1, 1, 2]) for _ in inner]
    pad = [rng.choice([0, 0, 1, 8]) for _ in inner]
    stored = [count * by + more for count, by, more in zip(inner, step, pad, strict=True)]
    storage = torch.full((*batch, *stored), torch.nan, dtype=dtype, device="cuda")
    first = [rng.randint(0, more) for more in pad]
    cut = [slice(at, at + count * by, by) for at, count, by in zip(first, inner, step, strict=True)]
    tensor = storage[(..., *cut)]
    return tensor.mT if transposed else tensor


def operand(rng, shape, dtype):
    tensor = view(rng, shape, dtype)
    tensor.copy_(torch.randn(shape, device="cuda"))
    # Sometimes a dimension has stride 0.
    for dim in range(tensor.dim()):
        if rng.random() < 0.04:
            tensor = tensor.narrow(dim, 0, 1).expand(shape)
    return tensor


def any_sizes(rng):
    """(batch, m, n, k), of which all sides may be long."""
    m, n, k = size(rng, 700), size(rng, 700), size(rng, 3000)
    if rng.random() < 0.1:
        m, k = size(rng, 40), 7000 + size(rng, 12000)
    return rng.choice([[], [], [], [3], [2, 2]]), m, n, k


def thin_or_batched_sizes(rng):
    """(batch, m, n, k), with a short side, a short K, or many matrices."""
    while True:
        m, n = rng.choice([1, size(rng, 8), size(rng, 64), size(rng, 300)]), size(rng, 6000)
        if rng.random() < 0.5:
            m, n = n, m
        k = size(rng, rng.choice([63, 1100, 20000]))
        batch = rng.choice([[], [size(rng, 9)], [size(rng, 400)], [2, 1, size(rng, 40)]])
        if math.prod(batch) * (m * k + k * n + m * n) < MOST_ELEMENTS:
            return batch, m, n, k


@needs_hopper
@pytest.mark.parametrize("sizes", [any_sizes, thin_or_batched_sizes])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_products(sizes, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for case in range(CASES):
        dtype = rng.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
        precision = rng.choice(["fp32", "ieee", "tf32"])
        batch, m, n, k = sizes(rng)
        a = operand(rng, (*batch, m, k), dtype)
        b = operand(rng, (*rng.choice([batch, batch[1:], []]), k, n), dtype)
        algorithm = rng.choice([x for x in ALGORITHMS if takes(x, dtype, "cuda", precision)])
        out_dtype = rng.choice([dtype, torch.float32])
        out = view(rng, (*batch, m, n), out_dtype)
        how = {"algorithm": algorithm, "precision": precision, "out_dtype": out_dtype}
        problem = f"case {case}: {(*batch, m, k)} @ {tuple(b.shape)} {dtype}, {how}"
        try:
            torch_tiled.matmul(a, b, out=out, **how)
            assert_within(out, product(a, b), bound(a, b, **how))
        except Exception as error:
            raise AssertionError(f"{problem}: {error}") from error


def exact(rng, shape, dtype, device):
    """A tensor of that shape whose memory ends with it. Some have strided elements, and some have
    rows aligned to 16 bytes with NaN between them."""
    *batch, rows, columns = shape
    transposed = rng.random() < 0.5
    stored = (*batch, columns, rows) if transposed else shape
    way = rng.random()
    if way < 0.2:
        rows, length = stored[-2:]
        pitch = (length + 7) // 8 * 8
        strides = (*(rows * pitch for _ in batch), pitch, 1)
        last = sum((count - 1) * stride for count, stride in zip(stored, strides, strict=True))
        memory = torch.full((last + 1,), torch.nan, dtype=dtype, device=device)
        tensor = memory.as_strided(stored, strides).normal_()
    else:
        tensor = torch.randn(*stored, 2 if way < 0.3 else 1, device=device).to(dtype)[..., 0]
    return tensor.mT if transposed else tensor


def compare_kernels(rng, device):
    """Compares the bits of all kernels of one order. The rows of most problems are unaligned."""
    dtype = rng.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
    precision = rng.choice(["fp32", "ieee", "tf32"])
    m, n, k = (size(rng, most) for most in rng.choice([(700, 2500, 1500), (2500, 700, 1500)]))
    batch = rng.choice([[], [], [], [3]])
    if rng.random() < 0.1:
        m, k = size(rng, 40), 8192 + size(rng, 2000)
    if rng.random() < 0.3:
        batch, m, n, k = thin_or_batched_sizes(rng)
    if rng.random() < 0.8:
        m, n, k = m | 1, n | 1, k | 1
    if rng.random() < 0.1:  # rows shorter than a copy, and K one more than a multiple of a stage
        m, n, k = size(rng, 8), size(rng, 8), 64 * rng.randint(1, 20) + 1
    a = exact(rng, (*batch, m, k), dtype, device)
    b = exact(rng, (*rng.choice([batch, []]), k, n), dtype, device)
    first = {}
    for algorithm in NAMED:
        if not takes(algorithm, dtype, device, precision):
            continue
        out = torch.full((*batch, m, n), torch.nan, dtype=dtype, device=device)
        torch_tiled.matmul(a, b, algorithm=algorithm, precision=precision, out=out)
        expected = first.setdefault(order(algorithm, a, precision), out)
        assert torch.equal(out, expected), (
            f"{algorithm}: {tuple(a.shape)}, strides {a.stride()} @ {tuple(b.shape)}, strides "
            f"{b.stride()}, {dtype}, {precision}"
        )


@needs_hopper
@pytest.mark.parametrize("seed", range(SEEDS))
def test_operands_that_end_with_their_memory(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(EXACT_CASES):
        compare_kernels(rng, "cuda")
