"""gemm_: C <- alpha A B + beta C in place."""

import pytest
import torch
from helpers.reference import ALGORITHMS, DTYPES, assert_within, gemm_bound, product, wide
from helpers.thinning import pairwise

import torch_tiled

SHAPES = [  # c, a, b
    ((1, 1), (1, 1), (1, 1)),
    ((33, 65), (33, 70), (70, 65)),
    ((5, 7), (5, 0), (0, 7)),
    ((0, 7), (0, 3), (3, 7)),
    ((4, 20, 30), (4, 20, 40), (4, 40, 30)),
    ((4, 20, 30), (20, 40), (4, 40, 30)),
    ((4, 20, 30), (4, 20, 40), (40, 30)),
    ((2, 4, 20, 30), (20, 40), (40, 30)),
    ((2, 3, 8, 9), (2, 1, 8, 10), (3, 10, 9)),
]


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", SHAPES)
def test_values(device, poisoned, algorithm, dtype, shapes):
    c, a, b = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
    factors = [(1, 1), (1, 0), (0.5, -2), (3.7, 0.1), (0, 1.5)]
    if dtype.is_complex:
        factors += [(1j, 0), (0.3 - 2j, 1.1), (1, 0.7j), (-1.5 + 0.1j, 2 - 3j), (0, 1j)]
    for alpha, beta in factors:
        exact = alpha * product(a, b) + beta * wide(c)
        limit = gemm_bound(c, a, b, alpha, beta, algorithm=algorithm)
        result = c.clone()
        returned = torch_tiled.gemm_(result, a, b, alpha=alpha, beta=beta, algorithm=algorithm)
        assert returned is result
        assert_within(result, exact, limit)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alpha_zero_never_reads_a_and_b(device, algorithm):
    a = torch.full((20, 40), torch.nan, device=device)
    b = torch.full((40, 30), torch.inf, device=device)
    c = torch.randn(20, 30, device=device)
    expected = 2 * c
    torch_tiled.gemm_(c, a, b, alpha=0, beta=2, algorithm=algorithm)
    assert torch.equal(c, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sums_over_calls(device, algorithm):
    """A product accumulated over slices of K, as with BLAS; the first call overwrites c."""
    a = torch.randint(-9, 10, (30, 90), device=device).float()
    b = torch.randint(-9, 10, (90, 20), device=device).float()
    c = torch.empty(30, 20, device=device)
    for i in range(3):
        part = slice(30 * i, 30 * i + 30)
        torch_tiled.gemm_(c, a[:, part], b[part], beta=min(i, 1), algorithm=algorithm)
    assert torch.equal(c, a @ b)
