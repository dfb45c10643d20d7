"""One sum, one order: an element's bits depend on its row, its column and K alone.

Kernels of one order have the same bits on every device, so what `auto` picks on CUDA changes none.
The orders are chunked, fp16x3, mma and tf32 (csrc/core/order_*.h); naive is the plain sum.
"""

from itertools import product

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.reference import NAMED, REAL, order, takes
from helpers.specification import chunked_product, fp16x3_product
from helpers.thinning import fewer

import torch_tiled

SIZES = [(1, 1, 7), (33, 65, 1000), (64, 130, 1024), (70, 17, 1025), (129, 63, 4099)]

# The sizes of test_ieee_at_every_size.
ROWS = (1, 2, 3, 8, 16, 17, 31, 32, 33, 64, 127, 128, 129, 257, 1024)
FEW_ROWS, SLOW = (1, 17, 33, 129), ("tiled16", "tiled32")
SIDES = (1, 7, 64, 129, 1000, 4096, 11008)  # columns and K


def names(device, dtype=torch.float32, precision="fp32"):
    """The algorithms that take such operands. On the CPU `auto` is torch.matmul and left out."""
    taken = [name for name in NAMED if takes(name, dtype, device, precision)]
    return [*taken, "auto"] if device == "cuda" else taken


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_rows_and_columns_stand_alone(device, dtype, m, n, k):
    """Another tile, split-K or path for vectors must not change the order of a sum."""
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(k, n, device=device).to(dtype)
    for algorithm in names(device, dtype):
        whole = torch_tiled.matmul(a, b, algorithm=algorithm)
        for rows in (slice(0, 1), slice(m // 3, None), slice(None, None, 7)):
            part = torch_tiled.matmul(a[rows], b, algorithm=algorithm)
            assert torch.equal(part, whole[rows]), (algorithm, rows)
        for cols in (slice(0, 1), slice(n // 3, None), slice(None, None, 7)):
            part = torch_tiled.matmul(a, b[:, cols], algorithm=algorithm)
            assert torch.equal(part, whole[:, cols]), (algorithm, cols)
        mixed = torch.randperm(m, device=device)
        assert torch.equal(torch_tiled.matmul(a[mixed], b, algorithm=algorithm), whole[mixed])
        vector = torch_tiled.matmul(a[0], b, algorithm=algorithm)
        assert torch.equal(vector, whole[0]), algorithm
        vector = torch_tiled.matmul(a, b[:, 0], algorithm=algorithm)
        assert torch.equal(vector, whole[:, 0]), algorithm


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_batches_stand_alone(device, dtype):
    a = torch.randn(5, 37, 1100, device=device).to(dtype)
    b = torch.randn(5, 1100, 29, device=device).to(dtype)
    for algorithm in names(device, dtype):
        batch = torch_tiled.matmul(a, b, algorithm=algorithm)
        shared = torch_tiled.matmul(a, b[0], algorithm=algorithm)
        for i in range(5):
            assert torch.equal(batch[i], torch_tiled.matmul(a[i], b[i], algorithm=algorithm))
            assert torch.equal(shared[i], torch_tiled.matmul(a[i], b[0], algorithm=algorithm))


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_layouts_do_not_matter(device, dtype):
    """Operands are K-major, MN-major, strided or misaligned, which other loads and copies serve."""
    a = torch.randn(45, 1100, device=device).to(dtype)
    b = torch.randn(1100, 67, device=device).to(dtype)
    store = torch.empty(91, 3301, dtype=dtype, device=device)
    strided = store[1::2, 1::3].copy_(a)
    misaligned = torch.empty(45, 1101, dtype=dtype, device=device)[:, 1:].copy_(a)
    for algorithm in names(device, dtype):
        plain = torch_tiled.matmul(a, b, algorithm=algorithm)
        for view in (a.mT.contiguous().mT, strided, misaligned):
            assert torch.equal(torch_tiled.matmul(view, b, algorithm=algorithm), plain)
        for view in (b.mT.contiguous().mT, b.expand(2, -1, -1)[1]):
            assert torch.equal(torch_tiled.matmul(a, view, algorithm=algorithm), plain)


@pytest.mark.parametrize("m, n, k", SIZES)
def test_chunked_kernels_agree(device, m, n, k):
    for dtype in REAL:
        a = torch.randn(m, k, device=device).to(dtype)
        b = torch.randn(k, n, device=device).to(dtype)
        first, *others = [x for x in names(device, dtype) if order(x, a) == "chunked"]
        expected = torch_tiled.matmul(a, b, algorithm=first)
        for algorithm in others:
            assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm), expected), algorithm


@pytest.mark.parametrize("algorithm", NAMED)
def test_repeats_have_the_same_bits(device, algorithm):
    """A race or an atomic sum would show as bits that change from call to call."""
    a, b = torch.randn(50, 1500, device=device), torch.randn(1500, 70, device=device)
    first = torch_tiled.matmul(a, b, algorithm=algorithm)
    for _ in range(100 if device == "cuda" else fewer(100, 10)):
        assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm), first)


def test_ieee_is_the_chunked_order(device):
    a, b = torch.randn(50, 1500, device=device), torch.randn(1500, 70, device=device)
    for algorithm in names(device, precision="ieee"):
        ieee = torch_tiled.matmul(a, b, algorithm=algorithm, precision="ieee")
        named = "tiled" if algorithm == "auto" else algorithm
        assert torch.equal(ieee, torch_tiled.matmul(a, b, algorithm=named))


@pytest.mark.parametrize("algorithm", NAMED)
def test_order_is_as_specified(device, algorithm):
    k = 2100
    a, b = torch.randn(3, k), torch.randn(k, 4)
    if order(algorithm, a) == "fp16x3":
        expected = fp16x3_product(a, b)
    else:
        expected = chunked_product(a, b, chunk=k if algorithm == "naive" else 1024)
    result = torch_tiled.matmul(a.to(device), b.to(device), algorithm=algorithm)
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("algorithm", NAMED)
@pytest.mark.parametrize("k", [1, 2, 16, 33, 64, 100])
def test_sign_of_an_underflowed_zero(device, algorithm, k):
    """The last addend gives the sign. If zeros that pad a tile were added, -0 would become +0."""
    tiny = torch.full((5, k), 1e-30, device=device)
    b = torch.full((k, 3), -1e-30, device=device)
    result = torch_tiled.matmul(tiny, b, algorithm=algorithm)
    assert (result == 0).all() and result.signbit().all()


@needs_cuda
@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("algorithm", NAMED)
def test_cpu_and_cuda_agree(algorithm, m, n, k):
    """The host's kernel of a name is its executable specification, and has the same bits."""
    for dtype in REAL:
        if not takes(algorithm, dtype, "cuda"):
            continue
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        host = torch_tiled.matmul(a, b, algorithm=algorithm)
        cuda = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm=algorithm)
        assert torch.equal(cuda.cpu(), host), dtype


def layouts(matrix):
    """The matrix row-major, column-major, and misaligned by one element."""
    store = matrix.new_empty(*matrix.shape[:-1], matrix.shape[-1] + 1)
    misaligned = store[..., 1:].copy_(matrix)
    return {"N": matrix, "T": matrix.mT.contiguous().mT, "misaligned": misaligned}


def check_ieee(algorithms, a_layouts, b_layouts, expected):
    """Holds each algorithm to these bits in every layout of both operands, over memory of NaN."""
    pairs = list(product(a_layouts, b_layouts))
    for algorithm in algorithms:
        outs = expected.new_full((len(pairs), *expected.shape), torch.nan)
        for out, (x, y) in zip(outs, pairs, strict=True):
            a, b = a_layouts[x], b_layouts[y]
            torch_tiled.matmul(a, b, algorithm=algorithm, precision="ieee", out=out)
        if not torch.equal(outs, expected.expand_as(outs)):
            right = [torch.equal(out, expected) for out in outs]
            wrong = [pair for pair, same in zip(pairs, right, strict=True) if not same]
            pytest.fail(f"{algorithm} of shape {tuple(expected.shape)} in layouts {wrong}")


def chunked(a):
    """The algorithms in the chunked order, which alone `auto` can pick for precision ieee."""
    taken = names(a.device.type, precision="ieee")
    return [name for name in taken if order(name, a, "ieee") == "chunked"]


@needs_cuda
@pytest.mark.parametrize("n, k", [*product(SIDES, SIDES), (1, 131072), (7, 131072), (64, 131072)])
def test_ieee_at_every_size(n, k):
    """Results are the first rows of one product by tiled64, which other tests hold to float64."""
    a, b = torch.randn(max(ROWS), k, device="cuda"), torch.randn(k, n, device="cuda")
    whole = torch_tiled.matmul(a, b, algorithm="tiled64")
    b_layouts = layouts(b)
    for m in ROWS:
        algorithms = [name for name in chunked(a) if m in FEW_ROWS or name not in SLOW]
        check_ieee(algorithms, layouts(a[:m]), b_layouts, whole[:m])


@needs_cuda
@pytest.mark.parametrize(
    "m, n, k", [(1, 4096, 4096), (17, 129, 1000), (64, 7, 11008), (257, 1000, 64)]
)
def test_ieee_in_a_batch(m, n, k):
    a = torch.randn(3, m, k, device="cuda")
    for b in (torch.randn(3, k, n, device="cuda"), torch.randn(k, n, device="cuda")):
        each = zip(a, b.expand(3, k, n), strict=True)
        expected = torch.stack([torch_tiled.matmul(x, y, algorithm="tiled64") for x, y in each])
        check_ieee(chunked(a), layouts(a), layouts(b), expected)
