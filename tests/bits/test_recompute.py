"""The recompute kernel of fp16x3_wgmma, fp16x3_fused and tf32_tma, by its paths through a region.

A row of `a` that holds 2^40 is wide. Its products with the columns in which that meets a zero are
flagged, and no others.
"""

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, in_layout
from helpers.reference import assert_same

import torch_tiled

pytestmark = needs_hopper

M, N = 300, 420  # five regions by four, those of the last row and column cut off
FP16X3, TF32 = {"algorithm": "fp16x3_wgmma"}, {"algorithm": "tf32_tma", "precision": "tf32"}

# Rows and columns with flagged elements; the paths of the kernel that they take.
PATTERNS = {
    "an element": ([70], [200]),  # by warps
    "a row": ([70], range(N)),  # by warps where a region is cut off, or else a thread a column
    "a column": (range(M), [200]),  # by warps
    "eight rows": ([64, 65, 79, 80, 100, 113, 126, 127], range(N)),
    "nine rows": ([64, 65, 79, 80, 100, 113, 120, 126, 127], range(N)),  # as a region
    "half of the columns": (range(M), range(0, N, 2)),
    "all": (range(M), range(N)),
    "rows here and there": (range(0, M, 37), range(3, N)),
}


def flagged_operands(pattern, k, batch=()):
    """Operands, and a mask of the flagged elements."""
    rows, cols = (torch.tensor(list(indices)) for indices in PATTERNS[pattern])
    a, b = torch.randn(*batch, M, k), torch.randn(*batch, k, N)
    last = (k - 1) // 1024 * 1024  # the first of the last chunk
    a[..., rows, last] = 2.0**40
    b[..., last, :] = 1
    b[..., last, cols] = 0
    flagged = torch.zeros(M, N, dtype=torch.bool)
    flagged[rows[:, None], cols] = True
    return a, b, flagged.expand(*batch, M, N)


def check(pattern, k, layout="NN", ways=FP16X3, batch=()):
    a, b, flagged = flagged_operands(pattern, k, batch)
    a, b = in_layout(a, layout[0]).cuda(), in_layout(b, layout[1]).cuda()
    result = torch_tiled.matmul(a, b, **ways)
    expected = torch_tiled.matmul(a, b, algorithm="tiled64", precision="ieee")
    assert_same(result.cpu()[flagged], expected.cpu()[flagged])
    recomputed = f"{flagged.sum()} of {flagged.numel()} elements"
    assert torch_tiled.explain(a, b, **ways).recomputed == recomputed
    if ways is FP16X3:  # which recomputes within its kernel
        assert_same(result, torch_tiled.matmul(a, b, algorithm="fp16x3_fused"))
    return a, b


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [128, 333, 1024, 1100, 2500, 4096])
def test_patterns_of_fp16x3(poisoned, pattern, layout, k):
    check(pattern, k, layout)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [64, 333, 2500])
def test_patterns_of_tf32(poisoned, pattern, layout, k):
    check(pattern, k, layout, TF32)


@pytest.mark.parametrize("pattern", ["an element", "a row", "nine rows", "all"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m, n", [(127, 4200), (4200, 127), (60, 8900)])
def test_large_products_of_fp16x3_fused(poisoned, pattern, layout, m, n):
    """From 2^31 products on its flagged elements are listed, smaller ones within the kernel."""
    k = 4096
    rows, cols = torch.arange(m), torch.arange(n)
    if pattern != "all":
        rows, cols = (torch.tensor(list(each)) for each in PATTERNS[pattern])
        rows, cols = (rows % m).unique(), (cols % n).unique()
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[rows, -1] = 2.0**40
    b[-1], b[-1, cols] = 1, 0
    a, b = in_layout(a, layout[0]).cuda(), in_layout(b, layout[1]).cuda()
    result = torch_tiled.matmul(a, b, algorithm="fp16x3_fused")
    expected = torch_tiled.matmul(a, b, algorithm="tiled64", precision="ieee")
    flagged = rows.cuda()[:, None], cols.cuda()
    assert_same(result[flagged], expected[flagged])
    assert_same(result, torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma"))
    recomputed = torch_tiled.explain(a, b, algorithm="fp16x3_fused").recomputed
    assert recomputed == f"{len(rows) * len(cols)} of {m * n} elements"


@pytest.mark.parametrize("ways", [FP16X3, TF32], ids=["fp16x3", "tf32"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_batches(poisoned, pattern, ways):
    check(pattern, 700, ways=ways, batch=(2, 3))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize("beta", [0, -0.5])
def test_epilogues(pattern, columns_first, beta):
    """`gemm_` on rows and on columns, and a bias with a GELU."""
    a, b = check(pattern, 1300)
    c = torch.randn(N, M, device="cuda").mT if columns_first else torch.randn(M, N, device="cuda")
    bias = torch.randn(N, device="cuda")
    results, layers = [], []
    for algorithm in ("fp16x3_wgmma", "fp16x3_fused"):
        results.append(c.clone(memory_format=torch.preserve_format))
        torch_tiled.gemm_(results[-1], a, b, alpha=2, beta=beta, algorithm=algorithm)
        layers.append(torch_tiled.linear(a, b.mT, bias, activation="gelu", algorithm=algorithm))
    assert_same(*results)
    assert_same(*layers)


def test_many_regions():
    a, b = torch.randn(2500, 300, device="cuda"), torch.randn(300, 3000, device="cuda")
    a[:700, 0], a[700::50, 0] = 2.0**40, 2.0**40
    b[0, :2000] = 0
    result = torch_tiled.matmul(a, b, **FP16X3)
    assert_same(result, torch_tiled.matmul(a, b, algorithm="fp16x3_fused"))
    flagged = (a[:, 0] == 2.0**40)[:, None] & (b[0] == 0)
    expected = torch_tiled.matmul(a, b, algorithm="tiled64", precision="ieee")
    assert_same(result[flagged], expected[flagged])
