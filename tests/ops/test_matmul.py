"""Products of every algorithm: shapes, layouts and dtypes against float64, in poisoned memory."""

import pytest
import torch
from helpers.reference import (
    ALGORITHMS,
    DTYPES,
    NAMED,
    assert_within,
    bound,
    lengths,
    order,
    product,
    relative_error,
)
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled._op import registry

# m, n, k: empty, single, primes, one off a tile, skinny, one off a chunk of the sum.
SIZES = [
    (0, 5, 3),
    (5, 0, 3),
    (5, 3, 0),
    (0, 0, 130),
    (1, 1, 1),
    (2, 3, 1),
    (7, 11, 13),
    (15, 17, 16),
    (16, 16, 16),
    (31, 33, 32),
    (63, 65, 64),
    (64, 64, 65),
    (129, 127, 33),
    (1, 257, 100),
    (257, 1, 100),
    (3, 5, 1023),
    (5, 3, 1024),
    (4, 4, 1025),
    (33, 17, 2500),
]

# torch.matmul's ranks, broadcast and empty batches, and more dimensions than a kernel unravels.
BATCHES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((6, 4, 5), (5, 3)),
    ((4, 5), (6, 5, 3)),
    ((6, 4, 5), (6, 5, 3)),
    ((6, 1, 5), (6, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 3)),
    ((2, 3, 1, 5), (1, 3, 5, 1)),
    ((0, 4, 5), (5, 3)),
    ((2, 0, 4, 5), (1, 5, 3)),
    ((2, 3, 4, 0), (0, 3)),
    ((2, 1, 2, 1, 2, 1, 2, 1, 2, 3), (1, 2, 1, 2, 1, 2, 1, 2, 3, 2)),
]


def transposed(x):
    return x.mT.contiguous().mT


def strided(x):
    """Every third element of every second row, misaligned by one element."""
    *batch, rows, cols = x.shape
    store = torch.full((*batch, 2 * rows + 1, 3 * cols + 1), torch.nan, dtype=x.dtype)
    view = store.to(x.device)[..., 1::2, 1::3]
    return view.copy_(x)


def sliced(x):
    """A block in the middle of a larger matrix."""
    *batch, rows, cols = x.shape
    store = torch.full((*batch, rows + 2, cols + 5), torch.nan, dtype=x.dtype, device=x.device)
    return store[..., 1:-1, 3:-2].copy_(x)


LAYOUTS = {"N": lambda x: x, "T": transposed, "strided": strided, "sliced": sliced}


def check(a, b, algorithm, out_dtype=None):
    """Compares a product with float64, freshly allocated and into a NaN-filled `out`."""
    exact = product(a, b)
    limit = bound(a, b, algorithm=algorithm, out_dtype=out_dtype)
    result = torch_tiled.matmul(a, b, algorithm=algorithm, out_dtype=out_dtype)
    assert result.dtype == (out_dtype or a.dtype)
    assert result.is_contiguous()
    assert_within(result, exact, limit)
    out = torch.full_like(result, torch.nan)
    assert torch_tiled.matmul(a, b, algorithm=algorithm, out=out) is out
    assert torch.equal(out, result)


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_sizes(device, poisoned, algorithm, dtype, m, n, k):
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(k, n, device=device, dtype=dtype)
    check(a, b, algorithm)


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(device, poisoned, algorithm, dtype, layout_a, layout_b):
    a = LAYOUTS[layout_a](torch.randn(67, 45, device=device, dtype=dtype))
    b = LAYOUTS[layout_b](torch.randn(45, 83, device=device, dtype=dtype))
    if layout_a == "sliced" and (device, algorithm, dtype) == ("cpu", "auto", torch.bfloat16):
        a._base.nan_to_num_()  # torch.matmul reads the gaps between rows if a CPU has AMX
    check(a, b, algorithm)


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape_a, shape_b", BATCHES)
def test_batches(device, poisoned, algorithm, dtype, shape_a, shape_b):
    a, b = (torch.randn(shape, device=device, dtype=dtype) for shape in (shape_a, shape_b))
    check(a, b, algorithm)
    if a.dim() > 1 and b.dim() > 1:
        check(transposed(a), strided(b), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_outer_batch_may_be_misaligned(device, poisoned, algorithm, dtype):
    """Eight batch dimensions, two more than kernels unravel. Matrices of the batch's second half
    begin one element after those of the first, where TMA cannot load them."""
    m, n, k = 20, 2, 512
    store = torch.randn(8 * m * k + 1, device=device).to(dtype)
    strides = (1, 0, 4 * m * k, 0, 2 * m * k, 0, m * k, 0)
    a = store.as_strided((2, 1, 2, 1, 2, 1, 2, 1, m, k), (*strides, k, 1))
    b = torch.randn(2, 2, 1, 2, 1, 2, 1, 2, k, n, device=device).to(dtype)
    check(a, b, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16bit_floats_to_float32(device, poisoned, algorithm, dtype):
    a = torch.randn(3, 50, 70, device=device).to(dtype)
    b = torch.randn(70, 30, device=device).to(dtype)
    check(a, b, algorithm, out_dtype=torch.float32)
    check(a, b, algorithm, out_dtype=dtype)


@pytest.mark.parametrize("algorithm", NAMED)
def test_no_drift(device, algorithm):
    """Elementwise bounds would not notice a sum that always rounds down: the mean error does."""
    k = 4096
    a, b = torch.rand(64, k, device=device), torch.rand(k, 64, device=device)
    exact = product(a, b)
    result = torch_tiled.matmul(a, b, algorithm=algorithm)
    mean = ((result.double() - exact) / exact).mean().item()
    # Roundings to nearest have no preferred sign: k of them, each at most u of the sum, wander
    # like sqrt(k) u in one element, and 4096 elements average that down by 64; 6 deviations.
    u = 2.0**-24
    assert abs(mean) < 6 * k**0.5 * u / 64
    assert relative_error(result, exact) < k**0.5 * u


@pytest.mark.parametrize("algorithm", NAMED)
def test_chunks_lower_the_error(device, algorithm):
    if algorithm == "naive":
        pytest.skip("naive is the plain sum")
    a, b = torch.rand(32, 60000, device=device), torch.rand(60000, 32, device=device)
    exact = product(a, b)
    plain = torch_tiled.matmul(a, b, algorithm="naive")
    chunked = torch_tiled.matmul(a, b, algorithm=algorithm)
    assert relative_error(chunked, exact) < relative_error(plain, exact)


def test_auto_on_cpu_is_torch():
    for shape_a, shape_b in BATCHES:
        a, b = torch.randn(shape_a), torch.randn(shape_b)
        assert torch.equal(torch_tiled.matmul(a, b), torch.matmul(a, b))


def test_views_are_not_copied(device):
    """No input is copied: a product of views allocates its result and nothing else."""
    if device != "cuda":
        pytest.skip("the CPU allocator keeps no statistics")
    store = torch.randn(2000, 3000, device=device)
    for a in (store[1::2, ::3], store.mT[:1000, :1000], store[:1, :1].expand(1000, 1000)):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = torch_tiled.matmul(a, a, algorithm="tiled")
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert peak == result.numel() * result.element_size()
        del result


def test_algorithms_are_named_in_the_order_of_the_ladder():
    assert NAMED == [
        *("naive", "tiled16", "tiled32", "tiled64", "tiled"),
        *("padded32", "register_tile", "vectorized", "double_buffered", "course", "tensor_core"),
        *("simt_small", "simt_cp_async", "simt_tma"),
        *("simt_skinny", "simt_gemv", "simt_cluster"),
        *("simt", "f64_direct", "f64_gemv", "f64_mma", "f64_tma", "f64"),
        *("fp16x3_cluster", "fp16x3_small", "fp16x3_direct", "fp16x3_rows"),
        *("fp16x3_thin", "fp16x3_skinny", "fp16x3_fused"),
        *("fp16x3_wgmma", "fp16x3", "mma_sync", "mma_direct", "mma_unaligned", "mma_tma", "mma"),
        *("tf32_tma", "tf32"),
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explain(device, algorithm):
    k = min(600, lengths(algorithm)[1])
    a, b = torch.randn(100, k, device=device), torch.randn(300, k, device=device).mT
    text = str(torch_tiled.explain(a, b, algorithm=algorithm))
    assert f"m = 100, n = 300, k = {k}" in text
    assert "a N, b T" in text
    if device == "cpu" and algorithm == "auto":
        assert "torch.matmul" in text
    else:
        picked = "fp16x3" if order(algorithm, a) == "fp16x3" else "tiled"
        names = [picked] if algorithm == "auto" else [x.name for x in registry.family(algorithm)]
        assert any(name in text for name in names)
        assert "waves" in text
