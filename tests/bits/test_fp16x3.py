"""fp16x3, float32 products on tensor cores: accuracy, and elements that are recomputed.

The host's kernel runs here as well. It models the tensor core and has the bits of a Hopper GPU.
"""

import pytest
import torch
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.operands import (
    BATCHES,
    FEW_BITS,
    LAYOUTS,
    OPERANDS,
    in_layout,
    in_layouts,
    rows_of,
)
from helpers.reference import (
    BIAS,
    SEEDS,
    assert_same,
    assert_within,
    bound,
    product,
    relative_error,
)
from helpers.specification import fp16x3_with_flags
from helpers.tensor_cores import FP16X3, FP16X3_KERNELS

import torch_tiled

multiply, compare = FP16X3.multiply, FP16X3.compare


# --- accuracy ------------------------------------------------------------------------------------


def test_flagged_elements_have_the_bound_of_the_chunked_order(device):
    """They have no tighter bound, since every addition rounds the same way here. Large numbers that
    meet zeros make the row and the column wide and the sum small beside them."""
    k = 1024
    a, b = torch.full((1, k), 0.99 * 2.0**-24), torch.ones(k, 1)
    a[0, :3] = torch.tensor([2.0**20, 0, 1])
    b[:2, 0] = torch.tensor([0, 2.0**20])
    _, flagged = fp16x3_with_flags(a, b)
    assert flagged.all()
    result, exact = multiply(a, b, device), product(a, b)
    assert_within(result, exact, bound(a, b, algorithm="tiled"))
    assert (result - exact).abs() > bound(a, b, algorithm="fp16x3")


def errors(name, k, device, multiply=multiply):
    """Means over seeds: the relative Frobenius errors of a product and of `naive`, and the signed
    relative error of the product's elements."""
    ours = plain = bias = 0.0
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        a, b = OPERANDS[name](40, k, 40)
        exact, result = product(a, b), multiply(a, b, device)
        naive = torch_tiled.matmul(a, b, algorithm="naive")
        ours += relative_error(result, exact) / SEEDS
        plain += relative_error(naive, exact) / SEEDS
        bias += ((result.double() - exact) / exact).mean().item() / SEEDS
    return ours, plain, bias


@pytest.mark.parametrize("k", [128, 192, 256, 511, 512, 1024, 4096])
@pytest.mark.parametrize("name", ["normal", "uniform", "columns scaled", "lognormal"])
def test_error_is_at_most_that_of_a_plain_sum(device, name, k):
    if name == "lognormal" and k < 256:
        pytest.skip("shorter lognormal sums are not promised")
    ours, plain, bias = errors(name, k, device)
    assert ours <= plain
    if name == "uniform":
        assert abs(bias) < BIAS


@pytest.mark.parametrize("k", [512, 1024])
def test_a_lost_promotion_would_show(k):
    """A whole chunk summed in the tensor core would exceed both measures above."""

    def never_promoted(a, b, _):
        return fp16x3_with_flags(a, b, promotion=k)[0]

    ours, plain, bias = errors("uniform", k, "cpu", never_promoted)
    assert ours > plain
    assert abs(bias) > BIAS


# --- the host against a GPU ----------------------------------------------------------------------


FLAGGED = {
    "one": ([37], [101]),
    "32 of a tile": (range(16, 20), range(8)),
    "96 of a tile": (range(16, 28), range(8)),
    "99 of a tile": (range(16, 27), range(9)),
    "spread": (range(0, 70, 9), range(0, 150, 13)),
    "a row": ([3], range(150)),
    "a column": (range(70), [149]),
    "all": (range(70), range(150)),
}


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FLAGGED)
def test_host_and_gpu_agree_however_many_are_flagged(name, layout):
    rows, cols = (list(each) for each in FLAGGED[name])
    for k in (128, 193, 700, 1024, 3000, 9001):
        a, b = torch.randn(70, k), torch.randn(k, 150)
        at = k - 3  # so large a number there that all others of the row are lost beside it
        a[rows, at] = 1e15
        b[at] = 1
        b[at, cols] = 0
        a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
        host = torch_tiled.matmul(a, b, algorithm="fp16x3")
        a, b = a.cuda(), b.cuda()
        for algorithm in FP16X3_KERNELS:
            facts = torch_tiled.explain(a, b, algorithm=algorithm)
            assert facts.recomputed == f"{len(rows) * len(cols)} of {70 * 150} elements"
            for _ in range(3):  # a race may show in one call only
                assert_same(torch_tiled.matmul(a, b, algorithm=algorithm).cpu(), host)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "sizes",
    [(3, 512, 290_000), (64, 3000, 6000), (6000, 3001, 40), (17, 9000, 2050), (150, 2100, 3000)],
)
def test_gpu_kernels_agree_where_a_block_has_several_tiles(sizes, layout):
    m, k, n = sizes
    a, b = in_layouts(layout, (m, k), (k, n))
    expected = torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma")
    for algorithm in ("fp16x3_cluster", "fp16x3_thin", "fp16x3_skinny", "fp16x3_fused"):
        for _ in range(3):  # a race may show in one call only
            assert_same(torch_tiled.matmul(a, b, algorithm=algorithm), expected)


@needs_hopper
def test_fp16x3_wgmma_splits_k_where_tiles_are_few():
    def blocks(*sizes, k):
        a = torch.empty(*sizes, k, device="cuda")
        return int(torch_tiled.explain(a, a.mT, algorithm="fp16x3_wgmma").blocks)

    assert blocks(128, k=16384) == 16
    assert blocks(2, 256, k=16384) == 8 * 16
    assert blocks(1024, k=1024) == 64
    assert blocks(4096, k=16384) == 1024


def misaligned(k, n):
    """A matrix that begins 4 bytes after a multiple of 16."""
    return torch.randn(k * n + 1)[1:].view(k, n)


@pytest.mark.parametrize(
    "b, taken",
    [
        (lambda k, n: torch.randn(k, n), True),
        (lambda k, n: torch.randn(n, k).mT, True),
        (lambda k, n: torch.randn(n, k + 4).mT[:k], True),
        (lambda k, n: torch.randn(n, k + 1).mT[:k], False),
        (lambda k, n: torch.randn(k, 2 * n)[:, ::2], False),
        (lambda k, n: torch.randn(1, n).expand(k, n), False),
        (misaligned, False),
        *((make, name != "four") for name, make in BATCHES.items()),
    ],
)
def test_fp16x3_fused_takes_what_a_tensor_map_can_read(b, taken):
    b = b(600, 200)
    a = torch.randn(*b.shape[:-2], 40, 600)
    explained = torch_tiled.explain(a, b, algorithm="fp16x3_fused")
    assert (explained.algorithm == "fp16x3_fused") == taken


def scaled_by_k(profile):
    """Rows of a and columns of b that are normal times profile(k) for k = 0, 1, ... K - 1."""

    def operands(m, k, n):
        scale = profile(torch.arange(k, dtype=torch.float64)).float()
        return torch.randn(m, k) * scale, torch.randn(k, n) * scale[:, None]

    return operands


def float16_but_one(exponent):
    """Float16 numbers except for a few, and one large number in a late stage of a chunk."""

    def operands(m, k, n):
        a, b = torch.randn(m, k).half().float(), torch.randn(k, n).half().float()
        a[::2, 5] += 2.0**-21
        b[5, ::3] += 2.0**-21
        a[:, k - 3], b[k - 70, :] = 2.0**exponent, -(2.0**exponent)
        return a, b

    return operands


def of_eight_bits(profile):
    """Numbers of up to eight bits, times profile(k): coarse if it is a power of two within eight
    binades in each chunk of K."""

    def operands(m, k, n):
        scale = profile(torch.arange(k, dtype=torch.float64)).float()
        return rows_of(FEW_BITS, m, k) * scale, rows_of(FEW_BITS, n, k).mT * scale[:, None]

    return operands


def non_finite_at(column):
    def operands(m, k, n):
        a, b = torch.randn(m, k), torch.randn(k, n)
        a[m // 2, column], b[column, n // 2] = torch.inf, torch.nan
        return a, b

    return operands


# Scales of rows and columns that change from stage to stage of a chunk in fp16x3_skinny and
# fp16x3_fused: until they see the largest magnitude of a chunk, they go by the largest so far.
GROWING = {
    "doubles each 64": scaled_by_k(lambda k: 2.0 ** (k // 64)),
    "doubles each 20": scaled_by_k(lambda k: 2.0 ** (k / 20)),
    "is halved each 20": scaled_by_k(lambda k: 2.0 ** (-k / 20)),
    "zeros first": scaled_by_k(lambda k: 1.0 * (k % 1024 >= 200)),
    "subnormal first": scaled_by_k(lambda k: torch.where(k % 1024 < 100, 2.0**-130, 2.0**-100)),
    "tiny first": scaled_by_k(lambda k: torch.where(k % 1024 < 100, 2.0**-40, 1.0)),
    "nothing but subnormal": scaled_by_k(lambda k: torch.full_like(k, 2.0**-140)),
    "huge last": scaled_by_k(lambda k: torch.where(k % 1024 > 1000, 2.0**60, 1.0)),
    **{f"float16, then 2^{e}": float16_but_one(e) for e in (2, 5, 9, 14, 20, 30)},
    "eight bits": of_eight_bits(torch.ones_like),
    "eight bits, doubles each 300": of_eight_bits(lambda k: 2.0 ** (k // 300)),
    "eight bits, doubles each 100": of_eight_bits(lambda k: 2.0 ** (k // 100)),
    "eight bits, zeros first": of_eight_bits(lambda k: 1.0 * (k % 1024 >= 200)),
    "eight bits, 2^5 last": of_eight_bits(lambda k: torch.where(k % 1024 > 600, 2.0**5, 1.0)),
    "eight bits, tiny": of_eight_bits(lambda k: torch.full_like(k, 2.0**-119)),
    "24 bits last": of_eight_bits(lambda k: torch.where(k % 1024 > 690, 1 + 2.0**-20, 1.0)),
    "not finite, first": non_finite_at(0),
    "not finite, last": non_finite_at(-1),
    "not finite, between": non_finite_at(500),
}


@needs_hopper
@pytest.mark.parametrize("name", GROWING)
def test_host_and_gpu_agree_on_scales_that_change(name):
    for m, k, n in ((3, 1600, 100), (40, 1025, 70), (70, 1044, 100), (130, 700, 33)):
        a, b = GROWING[name](m, k, n)
        compare(a, b)
        compare(b.mT.contiguous(), a.mT)


@needs_hopper
@pytest.mark.parametrize("algorithm", FP16X3_KERNELS)
@pytest.mark.parametrize("m", [1, 33, 130])
@pytest.mark.parametrize("k", [700, 2100])
def test_host_and_gpu_agree_on_epilogues(k, m, algorithm):
    a, weight, bias = torch.randn(m, k), torch.randn(90, k), torch.randn(90)
    c = torch.randn(m, 90)
    ways = {"algorithm": algorithm}
    for alpha, beta in ((1, 1), (0.7, 0), (3.7, -0.1), (0, 2)):
        host = torch_tiled.gemm_(c.clone(), a, weight.mT, alpha=alpha, beta=beta, **ways)
        cuda = torch_tiled.gemm_(
            c.cuda(), a.cuda(), weight.mT.cuda(), alpha=alpha, beta=beta, **ways
        )
        assert_same(cuda.cpu(), host)
    for activation in ("none", "relu"):
        host = torch_tiled.linear(a, weight, bias, activation=activation, **ways)
        cuda = torch_tiled.linear(
            a.cuda(), weight.cuda(), bias.cuda(), activation=activation, **ways
        )
        assert_same(cuda.cpu(), host)
