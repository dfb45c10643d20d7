"""Kernels that read a complex B as it lies have the bits of kernels to which a pass writes B'.

A problem is (batch, m, n, k), for which the plan for 132 SMs (H100, H200) picks the tile.
"""

import pytest
import torch
from helpers.complex_operands import STORED
from helpers.needs import has_132_sms, needs_hopper
from helpers.reference import assert_same

import torch_tiled
from torch_tiled._op.registry import kernels

LAYOUTS = [*STORED, "shifted adjoint"]


def operands(batch, m, n, k, dtype=torch.complex64):
    shapes = (batch, m, k), (batch, k, n)
    return (torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes)


def stored(x, layout):
    return STORED["shifted"](x.mT).mH if layout == "shifted adjoint" else STORED[layout](x)


def make_coarse(*views):
    """Replaces the parts of complex numbers by their signs."""
    for x in views:
        torch.view_as_real(x).sign_()


def make_wide(b):
    """Makes columns wide: small numbers are counted, and few elements are flagged."""
    parts = torch.view_as_real(b)
    parts[:, ::7] *= 2.0**-25
    parts[..., b.shape[-2] // 3, :, 0] = 0


def assert_reads_b_as_it_lies(kernel, packed, a, b):
    """The kernel has the bits of one that reads B', and as many flagged elements."""
    named = [kernel, packed]
    plan, other = (torch_tiled.explain(a, b, algorithm=name) for name in named)
    assert (plan.algorithm, plan.b_is_read) == (kernel, "as it lies")
    assert "bytes" in other.b_is_read
    assert getattr(plan, "recomputed", None) == getattr(other, "recomputed", None)
    result, expected = (torch_tiled.matmul(a, b, algorithm=name) for name in named)
    assert_same(result, expected)
    return plan, expected


@needs_hopper
@pytest.mark.parametrize("of_b", [*LAYOUTS, "flagged", "few bits", "batched", "one for all"])
@pytest.mark.parametrize("kernel", ["fp16x3_skinny", "fp16x3_wgmma"])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32, 40, 300])
def test_fp16x3_reads_b_as_it_lies(poisoned, rows, kernel, of_b):
    if kernel == "fp16x3_skinny" and rows == 300:
        pytest.skip("a is the longer operand, whose batch becomes rows")
    a, b = operands(3, rows, 331, 1100)
    if of_b == "batched":
        b = b.mT.contiguous().mT
    else:
        b = b[0]
    if of_b == "flagged":
        a[1, :, 700] *= 2.0**40
        b[700, ::3] = 0
        b[5, 7] = torch.nan
    elif of_b == "few bits":
        make_coarse(a[..., ::2, :], b[..., ::3])
    elif of_b == "one for all":
        a = a[:1].expand(3, rows, 1100)
    elif of_b in LAYOUTS:
        b = stored(b, of_b)
    for x in (a, a.conj()):
        assert_reads_b_as_it_lies(kernel, "fp16x3_fused", x, b)


SMALL_TILES = [
    ("fp16x3_direct", "64x64", (130, 64, 70, 100)),
    ("fp16x3_direct", "64x64", (300, 64, 64, 64)),
    ("fp16x3_direct", "64x64", (130, 64, 70, 120)),
    ("fp16x3_direct", "32x32", (64, 64, 64, 64)),
    ("fp16x3_direct", "32x32", (9, 15, 17, 250)),
    ("fp16x3_direct", "32x32", (100, 40, 41, 255)),
    ("fp16x3_direct", "64x64", (50, 33, 17, 130)),
    ("fp16x3_direct", "16x16", (200, 10, 8, 255)),
    ("fp16x3_small", "64x64", (40, 150, 100, 70)),
    ("fp16x3_small", "64x32", (3, 128, 200, 90)),
    ("fp16x3_small", "32x32", (7, 60, 130, 300)),
    ("fp16x3_small", "32x16", (2, 33, 70, 511)),
]


@needs_hopper
@pytest.mark.parametrize("of_b", [*LAYOUTS, "flagged", "few bits", "wide", "one for all"])
@pytest.mark.parametrize("kernel, tile, problem", SMALL_TILES)
def test_small_kernels_read_b_as_it_lies(poisoned, kernel, tile, problem, of_b):
    a, b = operands(*problem)
    k = problem[-1]
    if of_b == "flagged":
        a[0, :, k // 2] *= 2.0**40
        b[0, k // 2, ::3] = 0
        b[-1, 5, 7] = torch.nan
        b[-1, 3, 1] = torch.inf
    elif of_b == "few bits":
        make_coarse(a[..., ::2, :], b[..., ::3])
    elif of_b == "wide":
        make_wide(b)
    else:
        b = b[:1].expand_as(b) if of_b == "one for all" else stored(b, of_b)
    for x in (a, a.conj(), STORED["shifted"](a)):
        plan, expected = assert_reads_b_as_it_lies(kernel, "fp16x3_cluster", x, b)
        assert_same(torch_tiled.matmul(x, b), expected)
        assert plan.tile == tile or of_b != "as it is" or not has_132_sms()
        assert (of_b == "flagged") <= (plan.recomputed[0] != "0")
        on_cpu = torch_tiled.matmul(x[-1].cpu(), b[-1].cpu(), algorithm="fp16x3")
        assert_same(expected[-1].cpu(), on_cpu)


@needs_hopper
@pytest.mark.parametrize("of_b", ["as it is", "adjoint", "strided"])
@pytest.mark.parametrize("kernel", ["fp16x3_direct", "fp16x3_small"])
def test_small_kernels_read_b_of_any_k(poisoned, kernel, of_b):
    """Both sides of each number of steps along K, and of multiples of 8 complex numbers."""
    for i, k in enumerate([64, 65, 71, 72, 89, 95, 96, 126, 127, 128, 160, 191, 192, 225, 255]):
        m, n = [1, 2, 15, 16, 17, 33, 64, 65][i % 8], [129, 1, 33, 7, 8, 65, 16][i % 7]
        a, b = operands(5, m, n, k)
        b[i % 5, i:, n // 2] *= 2.0**-20
        b[i % 5, k - 1, n - 1] = [0, torch.nan, torch.inf, 1e30, 1e-42][i % 5]
        b = stored(b, of_b)
        _, expected = assert_reads_b_as_it_lies(kernel, "fp16x3_cluster", a, b)
        assert_same(torch_tiled.matmul(a, b), expected)


# Each side long, one and several tiles and chunks, and each number of warps that load.
THIN = [
    (3, 1, 331, 1100),
    (3, 331, 1, 1100),
    (3, 3, 70, 64),
    (3, 65, 2, 128),
    (5, 1, 1, 2100),
    (2, 4, 33, 250),
    (2, 17, 5, 513),
    (2, 13, 12, 200),
    (1003, 1, 1, 600),  # several products in a tile
    (2001, 1, 1, 1100),
]


@needs_hopper
@pytest.mark.parametrize("of_b", [*LAYOUTS, "flagged", "few bits", "wide", "one for all"])
@pytest.mark.parametrize("problem", THIN)
def test_fp16x3_thin_reads_both_as_they_lie(poisoned, problem, of_b):
    a, b = operands(*problem)
    k = problem[-1]
    of_a = LAYOUTS
    if of_b == "flagged":
        a[0, :, k // 2] *= 2.0**40
        b[0, k // 2] = 0
        b[-1, 5, 0] = torch.nan
    elif of_b == "few bits":
        make_coarse(a[..., ::2, :], b[..., ::2])
    elif of_b == "wide":
        make_wide(b)
    elif of_b == "one for all":
        a, b, of_a = a[:1].expand_as(a), b[:1].expand_as(b), ["as it is"]
    else:
        b = stored(b, of_b)
    for layout in of_a:
        x = a if of_b == "one for all" else stored(a, layout)
        plan, expected = assert_reads_b_as_it_lies("fp16x3_thin", "fp16x3_cluster", x, b)
        assert plan.a_is_read == "as it lies"
        assert (of_b == "flagged") <= (plan.recomputed[0] != "0")
    on_cpu = torch_tiled.matmul(x[-1].cpu(), b[-1].cpu(), algorithm="fp16x3")
    assert_same(expected[-1].cpu(), on_cpu)


@needs_hopper
@pytest.mark.parametrize("of_out", ["as it is", "conjugate", "transpose"])
@pytest.mark.parametrize("problem", THIN)
def test_epilogue_of_fp16x3_thin(poisoned, problem, of_out):
    batch, m, n, _ = problem
    a, b = operands(*problem)
    a[0, :, 3] *= 2.0**40  # flagged elements have the epilogue, too
    c = stored(torch.randn(batch, m, n, dtype=a.dtype, device="cuda"), of_out)
    for alpha, beta in ((2, 0), (1, -0.5), (0.5 + 2j, 3j)):
        result, expected = c.clone(), c.clone()
        for name, out in (("fp16x3_thin", result), ("fp16x3_cluster", expected)):
            torch_tiled.gemm_(out, a, b, alpha=alpha, beta=beta, algorithm=name)
        assert_same(result, expected)


TILES = [
    ("simt_skinny", "2x128", (2, 1, 330, 1100)),
    ("simt_skinny", "4x128", (2, 3, 330, 1100)),
    ("simt_skinny", "8x128", (2, 7, 330, 1100)),
    ("simt_skinny", "16x128", (2, 16, 330, 1100)),
    ("simt_skinny", "16x128", (2, 75, 330, 1100)),
    ("simt_skinny", "16x128", (3, 30, 130, 26)),
    ("simt_small", "16x16", (1003, 15, 7, 50)),
    ("simt_small", "32x32", (1003, 30, 16, 20)),
    ("simt_small", "64x64", (1003, 62, 32, 20)),
    ("simt_small", "32x32", (300, 62, 32, 511)),
    ("simt_small", "64x64", (7, 700, 350, 20)),
    ("simt_gemv", "1x128", (3, 1, 701, 60)),
    ("simt_gemv", "2x128", (3, 2, 701, 61)),
    ("simt_gemv", "4x128", (2, 7, 300, 64)),
    ("simt_gemv", "128x1", (3, 701, 1, 60)),
    ("simt_gemv", "128x2", (3, 701, 2, 61)),
    ("simt_gemv", "128x4", (2, 300, 7, 64)),
    ("simt_cp_async", "128x64", (1, 1401, 702, 20)),
    ("simt_cp_async", "64x64", (1, 1024, 512, 36)),
    ("simt_cp_async", "64x32", (1, 512, 256, 66)),
    ("simt_cp_async", "32x32", (1, 130, 60, 50)),
    ("simt_cp_async", "32x32", (2, 50, 52, 600)),
    ("simt_cp_async", "16x128", (1, 12, 4500, 50)),
    ("simt_cp_async", "32x128", (1, 20, 8500, 50)),
    ("f64_mma", "64x64", (1, 700, 350, 351)),
    ("f64_mma", "32x32", (1, 500, 250, 250)),
    ("f64_mma", "16x64", (1, 5, 4500, 50)),
    ("f64_mma", "64x16", (1, 9001, 3, 1050)),
    ("f64_tma", "128x128", (1, 2048, 1024, 515)),
    ("f64_tma", "128x64", (1, 1024, 512, 512)),
    ("f64_tma", "64x64", (1, 900, 450, 250)),
    ("f64_tma", "64x32", (1, 700, 350, 351)),
    ("f64_tma", "32x32", (1, 500, 250, 250)),
    ("f64_direct", "8x8", (1, 100, 35, 750)),
    ("f64_direct", "8x8", (1, 3, 10, 1450)),
    ("f64_direct", "16x8", (1, 294, 248, 63)),
    ("f64_direct", "16x16", (1, 1000, 150, 11)),
    ("f64_direct", "16x32", (1, 2, 45001, 3)),
    ("f64_gemv", "1x32", (3, 1, 701, 1100)),
    ("f64_gemv", "32x1", (3, 701, 1, 1100)),
]
# Views of an aligned b that every one of these kernels reads as it lies.
ALIGNED_VIEWS = ["as it is", "conjugate", "negative", "both", "adjoint", "transpose"]
# Kernels that read any b as it lies.
ANY_VIEW = ("simt_small", "simt_gemv", "f64_mma", "f64_direct", "f64_gemv")


@needs_hopper
@pytest.mark.parametrize("of_b", [*LAYOUTS, "batched", "one for all"])
@pytest.mark.parametrize("size", ["normal", "tiny"])
@pytest.mark.parametrize("kernel, tile, problem", TILES)
def test_kernels_of_the_chunked_order_read_b_as_it_lies(
    poisoned, kernel, tile, problem, size, of_b
):
    """Products of tiny operands are less than the smallest number: sums are zeros with a sign."""
    dtype = next(x for x in kernels()[kernel].dtypes if x.is_complex)
    a, b = operands(*problem, dtype=dtype)
    if size == "tiny":
        scale = {torch.complex64: 1e-30, torch.complex128: 1e-200}[dtype]
        a, b = scale * a, scale * b
    if of_b == "batched":
        a, b = torch.cat([a, a]), torch.cat([b, b.flip(1)]).mT.contiguous().mT
    else:
        b = b[..., :1].expand_as(b) if of_b == "one for all" else stored(b, of_b)
    for x in (a, a.conj(), torch._neg_view(a)):
        plan = torch_tiled.explain(x, b, algorithm=kernel)
        if kernel in ANY_VIEW or of_b in ALIGNED_VIEWS:
            assert plan.b_is_read == "as it lies"
            assert plan.tile == tile or of_b == "batched"
        result = torch_tiled.matmul(x, b, algorithm=kernel)
        assert_same(result, torch_tiled.matmul(x, b, algorithm="tiled64"))


F64_TILES = [row for row in TILES if row[0] in ("f64_tma", "f64_direct")]


@needs_hopper
@pytest.mark.parametrize("of_a", [*LAYOUTS, "batched", "one for all"])
@pytest.mark.parametrize("of_b", ["as it is", "adjoint"])
@pytest.mark.parametrize("k", [None, 1, 2, 7, 8, 9, 50, 513])
@pytest.mark.parametrize("kernel, tile, problem", F64_TILES)
def test_f64_kernels_read_a_as_it_lies(poisoned, kernel, tile, problem, k, of_b, of_a):
    """f64_tma reads an MN-major `a` if a tensor map describes it, and f64_direct any."""
    a, b = operands(*problem[:3], k or problem[3], dtype=torch.complex128)
    if of_a == "batched":
        a, b = torch.cat([a, a.flip(1)]).mT.contiguous().mT, torch.cat([b, b])
    elif of_a == "one for all":
        a, b = stored(a, "transpose").expand(3, -1, -1), torch.cat([b, b, b.conj()])
    else:
        a = stored(a, of_a)
    b = stored(b, of_b)
    for x in (a, a.conj()):
        plan = torch_tiled.explain(x, b, algorithm=kernel)
        if kernel == "f64_direct" or of_a in (*ALIGNED_VIEWS, "batched", "one for all"):
            assert plan.a_is_read == plan.b_is_read == "as it lies"
        assert plan.tile == tile or k is not None or a.shape[0] > 1
        result = torch_tiled.matmul(x, b, algorithm=kernel)
        assert_same(result, torch_tiled.matmul(x, b, algorithm="tiled64"))


GEMV = [
    *(("f64_gemv", (3, 701, 1, k)) for k in (1, 7, 8, 9, 511, 512, 513, 1100)),
    *(("simt_gemv", (3, 301, 1, k)) for k in range(1, 65)),
    *(("simt_gemv", (3, 1, 301, k)) for k in (1, 2, 7, 33, 64)),
    *(("simt_gemv", (3, *sides, 20)) for sides in ((129, 2), (3, 128), (257, 7), (4, 5), (1, 1))),
    ("simt_gemv", (2000, 130, 1, 9)),
]


@needs_hopper
@pytest.mark.parametrize("of_a", [*LAYOUTS, "one for all", "zero strides", "not finite"])
@pytest.mark.parametrize("kernel, problem", GEMV)
def test_gemv_reads_a_as_it_lies(poisoned, kernel, problem, of_a):
    """`a` is read at any strides, since a pass over it would cost three times the product."""
    a, b = operands(*problem, dtype=next(x for x in kernels()[kernel].dtypes if x.is_complex))
    if of_a == "one for all":
        a = a[:1].expand_as(a)
    elif of_a == "zero strides":
        a, b = a[:, :1].expand_as(a), b[..., :1, :].expand_as(b)
    elif of_a == "not finite":
        a[0, 0, 0], a[1, -1, -1], b[2, -1, 0] = torch.nan, torch.inf, complex(0, -torch.inf)
        a = stored(a, "transpose")
    else:
        a = stored(a, of_a)
    for x, y in ((a, b), (a.conj(), stored(b, "adjoint")), (torch._neg_view(a), b.conj())):
        plan = torch_tiled.explain(x, y, algorithm=kernel)
        assert plan.algorithm == kernel
        assert (plan.a_is_read, plan.b_is_read) == ("as it lies", "as it lies")
        result = torch_tiled.matmul(x, y, algorithm=kernel)
        assert_same(result, torch_tiled.matmul(x, y, algorithm="tiled64"))


@needs_hopper
@pytest.mark.parametrize("of_out", ["as it is", "conjugate", "transpose"])
@pytest.mark.parametrize("sides", [(1, 301), (301, 1), (5, 130), (130, 3)])
def test_epilogue_of_simt_gemv(poisoned, sides, of_out):
    a, b = operands(3, *sides, 30)
    a = stored(a, "transpose")
    c = stored(torch.randn(3, *sides, dtype=a.dtype, device="cuda"), of_out)
    for alpha, beta in ((2, 0), (1, -0.5), (0.5 + 2j, 3j)):
        result, expected = c.clone(), c.clone()
        for name, out in (("simt_gemv", result), ("tiled64", expected)):
            torch_tiled.gemm_(out, a, b, alpha=alpha, beta=beta, algorithm=name)
        assert_same(result, expected)


@needs_hopper
@pytest.mark.parametrize(
    "kernel, sizes",
    [
        ("simt_skinny", (1, 5, 140)),
        ("simt_small", (1003, 9, 11)),
        ("simt_gemv", (3, 2, 140)),
        ("simt_cp_async", (1, 70, 45)),
    ],
)
@pytest.mark.parametrize("of_b", ["as it is", "adjoint"])
def test_every_k_of_simt_by_b_as_it_lies(kernel, sizes, of_b):
    for k in (*range(1, 40), 511, 512, 513, 514, 515, 1024, 1500):
        a, b = operands(*sizes, k)
        b = stored(b, of_b)
        result = torch_tiled.matmul(a, b, algorithm=kernel)
        assert_same(result, torch_tiled.matmul(a, b, algorithm="tiled64"))


# Products for which a pass over B would take long.
PICKED = [
    ("fp32", "fp16x3_direct", (4096, 64, 64, 64)),
    ("fp32", "fp16x3_direct", (64, 64, 64, 64)),
    ("fp32", "fp16x3_small", (1, 64, 64, 64)),
    ("fp32", "fp16x3_small", (1, 256, 256, 256)),
    ("fp32", "fp16x3_thin", (1, 1, 4096, 4096)),
    ("fp32", "fp16x3_thin", (96, 2, 512, 512)),
    ("ieee", None, (1, 1, 4096, 4096)),
    ("ieee", None, (1, 16, 4096, 4096)),
    ("ieee", None, (1, 64, 4096, 4096)),
    ("ieee", None, (1, 256, 256, 256)),
    ("ieee", None, (1, 512, 512, 512)),
    ("ieee", None, (4096, 16, 16, 16)),
    ("ieee", None, (4096, 32, 32, 32)),
    ("fp32", None, (4096, 32, 32, 32)),
]


@pytest.mark.parametrize("precision, kernel, problem", PICKED)
def test_auto_reads_b_as_it_lies(precision, kernel, problem):
    batch, m, n, k = problem
    a, b = (torch.empty(batch, *x, dtype=torch.complex64, device="meta") for x in ((m, k), (k, n)))
    plan = torch_tiled.explain(a, b, precision=precision, compute_capability=90, sms=132)
    assert plan.b_is_read == "as it lies" and kernel in (None, plan.algorithm)


@needs_hopper
@pytest.mark.parametrize("precision, kernel, problem", PICKED)
def test_bits_of_auto_by_b_as_it_lies(precision, kernel, problem):
    """The chunked order has the bits of tiled64, and fp16x3 those of a kernel that reads B'."""
    a, b = operands(*problem)
    for y in (b, b.mT, b.mH) if kernel is None else (b,):
        result = torch_tiled.matmul(a, y, precision=precision)
        reference = "tiled64" if kernel is None else "fp16x3_cluster"
        assert_same(result, torch_tiled.matmul(a, y, algorithm=reference))
