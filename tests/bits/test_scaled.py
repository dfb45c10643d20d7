"""The promises that fp16x3 and tf32 share: which elements are recomputed, and the range of scales.

test_tensor_cores.py has what mma promises, too.
"""

import pytest
import torch
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.operands import (
    BATCHES,
    FEW_BITS,
    LAYOUTS,
    in_layout,
    rows_of,
)
from helpers.reference import assert_same, assert_within, bound, magnitude, one_hot_bound, product
from helpers.specification import chunked_product
from helpers.tensor_cores import FP16X3, each_guarded_kind, for_kinds

import torch_tiled


@for_kinds("k", fp16x3=[64, 1500], tf32=[64, 1500, 9000])
def test_flagged_elements_are_recomputed_alone(device, kind, k):
    """A small number beside large ones makes a row wide, and elements that cancel are flagged."""
    a, b = torch.randn(40, k), torch.randn(k, 50)
    a[[7, 20], ::2] = 0
    b[1::2, 10:15] = 0
    before = kind.multiply(a, b, device)
    a[7, 4] = 1e-12
    a[20, k // 2 * 2 - 2] = -1e-12
    b[5, 33] = 1e-12
    _, flagged = kind.with_flags(a, b)
    assert flagged.sum() == 10 and flagged[[7, 20], 10:15].all()
    after = kind.multiply(a, b, device)
    assert_same(after[flagged], chunked_product(a, b)[flagged])
    moved = torch.zeros_like(flagged)
    moved[[7, 20]] = True
    moved[:, 33] = True
    assert_same(after[~moved], before[~moved])


def near_the_guard(rows, k):
    """Rows with any number of small numbers, and a moderate number at 2 that makes a sum about as
    large as they ask for. The largest number, at 0, meets a zero of the other operand: see
    `operands_near_the_guard`."""
    x = torch.zeros(rows, k)
    x[:, 0] = 2.0**14
    small = torch.rand(rows, k - 3) < torch.rand(rows, 1) * min(1, 60 / k)
    x[:, 3:] = torch.where(small, 2.0**-21 * torch.randn(rows, k - 3), 0)
    return x


def operands_near_the_guard(m, n, k, chunk):
    """In the last chunk, sums in scaled units are between 16 and 4096, and small numbers ask for 32
    each."""
    a, b = torch.randn(m, k), torch.randn(n, k)
    start = (k - 1) // chunk * chunk
    a[:, start:], b[:, start:] = near_the_guard(m, k - start), near_the_guard(n, k - start)
    b[:, start : start + 2] = b[:, start : start + 2].flip(1)  # the largest number, at 1
    a[:, start + 2] = 2.0**-6 * torch.exp2(4 * torch.rand(m))
    b[:, start + 2] = 2.0**10 * torch.exp2(4 * torch.rand(n))
    return a, b.mT


@for_kinds("k", fp16x3=[128, 333, 511, 700, 1024, 2500], tf32=[64, 700, 2500])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_numbers_are_counted_exactly(device, kind, k, layout):
    """One that is missed, or counted twice, would change which elements are flagged."""
    a, b = operands_near_the_guard(70, 45, k, 1024 if kind is FP16X3 else 8192)
    result, flagged = kind.with_flags(a, b)
    assert 0.1 < flagged.double().mean() < 0.97
    expected = torch.where(flagged, chunked_product(a, b), result)
    a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
    assert_same(kind.multiply(a, b, device), expected)


@each_guarded_kind
def test_explain_counts_recomputed_elements(device, kind):
    a, b = torch.randn(40, 1500), torch.randn(1500, 30)
    a[3, 4] = torch.inf
    b[1400, 7] = torch.nan
    facts = torch_tiled.explain(a.to(device), b.to(device), **kind.ways)
    assert facts.recomputed == f"{30 + 40 - 1} of {40 * 30} elements"
    facts = torch_tiled.explain(a[4:].to(device), b[:, 8:].to(device), **kind.ways)
    assert facts.recomputed == f"0 of {36 * 22} elements"


@each_guarded_kind
@pytest.mark.parametrize("name", BATCHES)
def test_batches(device, kind, name):
    k, n = 130, 37
    b = BATCHES[name](k, n)
    a = torch.randn(*b.shape[:-2], 20, k)
    a[..., 3, 4] = torch.inf

    def one_by_one(a, b, batch):
        pairs = zip(*(x.expand(*batch, *x.shape[-2:]).flatten(0, -3) for x in (a, b)), strict=True)
        each = torch.stack([kind.multiply(x, y, device) for x, y in pairs])
        return each.view(*batch, *each.shape[-2:])

    first, batch = a[(0,) * (a.dim() - 2)], b.shape[:-2]
    for x, y in ((a, b), (first, b), (b.mT, a.mT)):
        assert_same(kind.multiply(x, y, device), one_by_one(x, y, batch))


@pytest.mark.parametrize("kind", ["mask", "one-hot", "signs", "int8"])
@pytest.mark.parametrize("k", [128, 600, 1500])
def test_coarse_groups_times_integers_to_2_to_23_are_exact(device, kind, k):
    """In fp16x3, while |A||B| stays within 2^23. Such integers have lo parts."""
    a = rows_of({kind: FEW_BITS[kind]}, 30, k)
    size = int(a.abs().sum(1).max())
    b = torch.randint(-(2**23) // size, 2**23 // size + 1, (k, 40)).float()
    b[k // 2] = 2**23 // size
    assert torch.equal(FP16X3.multiply(a, b, device).double(), product(a, b))
    assert torch.equal(FP16X3.multiply(b.mT, a.mT, device).double(), product(a, b).mT)


@each_guarded_kind
@pytest.mark.parametrize("k", [64, 1500])
def test_one_hot_rows_pick_elements(device, kind, k):
    """A picked element loses what its hi/lo split loses, whatever is beside it."""
    x = torch.randn(k, 50)
    picked = torch.randint(k, (60,))
    one_hot = torch.nn.functional.one_hot(picked, k).float()
    for scale in (1, 1e-30, 1e30):
        rows, result = (scale * x)[picked], kind.multiply(one_hot, scale * x, device)
        assert_within(result, rows.double(), one_hot_bound(rows, kind.order))


@each_guarded_kind
def test_signs_that_cancel_leave_zero(device, kind):
    k = 1100
    signs = 1.0 - 2.0 * (torch.arange(k) % 2)
    a = torch.randn(20, 1).expand(20, k)
    b = signs[:, None] * torch.randn(1, 30)
    assert not kind.multiply(a, b, device).any()


# tf32 rounds factors up to 11 bits, so that its sums may be larger.
@for_kinds("k, largest", fp16x3=[(64, 127), (1025, 127)], tf32=[(64, 126), (8200, 126)])
def test_finite_where_magnitudes_stay_below_2_to_127(device, kind, k, largest):
    for left, right in ((126, 0), (63, 63), (-20, 126), (-126, 127), (120, -149)):
        a = (2 * torch.rand(20, k) - 1) * 2.0**left
        b = (2 * torch.rand(k, 30) - 1) * 2.0 ** min(right, 127)
        a, b = a.float(), b.float()
        size = magnitude(a, b).max()
        if size >= 2.0**largest:
            a = a * float(2.0 ** (largest - 1) / size)
        result = kind.multiply(a, b, device)
        assert result.isfinite().all()
        assert_within(result, product(a, b), bound(a, b, **kind.ways))


@for_kinds("k", fp16x3=[64, 1025], tf32=[64, 8200])
def test_overflow_gives_inf(device, kind, k):
    a, b = torch.full((3, k), 2e19), torch.full((k, 4), 2e19)
    a[1] = -a[1]
    result = kind.multiply(a, b, device)
    assert (result[[0, 2]] == torch.inf).all() and (result[1] == -torch.inf).all()


@needs_hopper
@for_kinds("m", fp16x3=[40, 100], tf32=[40, 140])
@pytest.mark.parametrize("name", BATCHES)
def test_host_and_gpu_agree_on_batches(name, kind, m):
    k, n = 1044, 132
    b = BATCHES[name](k, n)
    kind.compare(torch.randn(*b.shape[:-2], m, k), b)
    kind.compare(torch.randn(m, k), BATCHES[name](n, k).mT)
