"""What all orders on tensor cores promise: the bits of the specification, and the proven bounds.

The host's kernels model the tensor core and have the bits of a Hopper GPU. test_scaled.py has what
fp16x3 and tf32 promise besides, and test_fp16x3.py, test_tf32.py and test_mma.py have the rest.
"""

from itertools import product as pairs

import pytest
import torch
from helpers.mma import FINITE
from helpers.mma import OPERANDS as OPERANDS_16BIT
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.operands import BOUNDED, LAYOUTS, OVERFLOWING, in_layout
from helpers.reference import (
    ACTIVATIONS,
    activated_bound,
    assert_same,
    assert_within,
    bound,
    gemm_bound,
    linear_bound,
    product,
)
from helpers.specification import chunked_product, fma
from helpers.tensor_cores import FP16X3, MMA, TF32, each_kind, for_kinds

import torch_tiled

# --- bits ----------------------------------------------------------------------------------------


@for_kinds(
    "name, k",
    pairwise=True,
    fp16x3=pairs(OVERFLOWING, [128, 164, 511, 1040]),
    tf32=pairs(OVERFLOWING, [64, 65, 100, 1000]),
    mma=pairs(OPERANDS_16BIT, [1, 7, 15, 16, 17, 64, 100]),
)
def test_bits_are_as_specified(device, kind, name, k):
    kind.check(*kind.operands[name](7, k, 6), device)


@for_kinds(
    "k, names",
    fp16x3=[(k, ("normal", "uniform", "opposed by 5")) for k in (512, 1023, 1024, 2049)],
    tf32=[
        (k, ("normal", "uniform", "opposed by 2", "alternating", "overflow"))
        for k in (8191, 8192, 8193, 16400)
    ],
    mma=[(k, ("normal", "uniform", "wide")) for k in (8191, 8192, 8193, 16400)],
)
def test_bits_of_chunks_are_as_specified(device, kind, k, names):
    for name in names:
        kind.check(*kind.operands[name](3, k, 4), device)


@for_kinds("layout", tf32=LAYOUTS, mma=["NT", "TN"])
def test_bits_at_the_edges_of_tiles_are_as_specified(device, kind, layout):
    sizes = [1, 7, 64, 127, 128, 129, 130, 255, 256, 257]
    for i, m in enumerate(sizes):
        n, k = sizes[7 * i % 10], (64, 65, 67, 100)[i % 4]
        a, b = kind.randn(m, k), kind.randn(k, n)
        expected = kind.specified(a, b)
        a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
        assert_same(kind.multiply(a, b, device), expected)


@for_kinds("k", fp16x3=[0, 1, 17, 63], tf32=[0, 1, 17, 63])
def test_short_sums_are_in_chunks(device, kind, k):
    a, b = torch.randn(9, k), torch.randn(k, 11)
    result = kind.multiply(a, b, device)
    assert_same(result, chunked_product(a, b) if k else torch.zeros(9, 11))
    a, b = a.to(device), b.to(device)
    assert_same(torch_tiled.matmul(a, b, algorithm="tiled", precision="ieee").cpu(), result)


@for_kinds("k", fp16x3=[128, 1025], tf32=[64, 8200], mma=[0, 1, 17, 8193])
def test_a_sum_of_nothing_is_positive_zero(device, kind, k):
    a, b = torch.full((3, k), -0.0, dtype=kind.dtype), torch.ones(k, 4, dtype=kind.dtype)
    kind.check(a, b, device)
    assert_same(kind.multiply(a, b, device), torch.zeros(3, 4))


@for_kinds("k", fp16x3=[64, 200, 1500], tf32=[64, 200, 8200], mma=[3, 40, 8200])
def test_inf_and_nan_are_as_in_ieee(device, kind, k):
    """Elements with a factor Inf or NaN are as in IEEE 754, and no others change."""
    a, b = kind.operands["not finite"](70, k, 45)
    rows, cols = a.isfinite().all(1), b.isfinite().all(0)
    finite = rows[:, None] & cols
    c = kind.multiply(a, b, device)
    assert_same(c[finite], kind.multiply(a[rows], b[:, cols], device).flatten())
    ieee = torch_tiled.matmul(a.float(), b.float(), algorithm="tiled", precision="ieee")
    assert_same(c[~finite], ieee[~finite])
    assert not c[~finite].isfinite().any()


@for_kinds(
    "layout, k",
    pairwise=True,
    fp16x3=pairs(LAYOUTS, [67, 1100]),
    tf32=pairs(LAYOUTS, [67, 1100]),
    mma=pairs(LAYOUTS, [64, 67, 203]),
)
def test_slices_of_a_product_are_products_of_slices(device, kind, layout, k):
    a, b = in_layout(kind.randn(300, k), layout[0]), in_layout(kind.randn(k, 140), layout[1])
    a[17, 5] = 1e-12  # makes the row wide, so that elements may be flagged
    a[200, 3] = torch.inf
    a, b = a.to(device), b.to(device)  # before they are sliced: a slice moves without its strides
    whole = kind.multiply(a, b, device)
    assert_same(kind.multiply(a.contiguous(), b.contiguous(), device), whole)
    for m in (1, 2, 7, 16, 33, 64, 65, 128, 200):
        rows = slice(m // 2, m // 2 + m)
        assert_same(kind.multiply(a[rows], b, device), whole[rows])
    for n in (1, 8, 15, 64, 129):
        assert_same(kind.multiply(a[10:20], b[:, :n], device), whole[10:20, :n])
    assert_same(kind.multiply(a[::7], b[:, 1::3], device), whole[::7, 1::3])
    assert_same(kind.multiply(a[5], b, device), whole[5])
    assert_same(kind.multiply(a, b[:, 9], device), whole[:, 9])


@each_kind
def test_views_and_batches(device, kind):
    a, b = kind.randn(3, 20, 152).to(device), kind.randn(3, 152, 30).to(device)
    b[1, 5, 5] = 1e-12
    each = torch.stack([torch.stack([kind.multiply(x, y, device) for y in b]) for x in a])
    i = torch.arange(3)
    assert_same(kind.multiply(a, b, device), each[i, i])
    assert_same(kind.multiply(a, b[1], device), each[:, 1])
    assert_same(kind.multiply(a[2], b, device), each[2])
    assert_same(kind.multiply(a[:, None], b, device), each)
    assert_same(kind.multiply(a[0, 4], b[1, :, 5], device), each[0, 1, 4, 5])
    for view in (a[0, :1].expand(20, 152), a[0, :, :1].expand(20, 152)):
        whole = kind.multiply(view.contiguous(), b[1], device)
        assert_same(kind.multiply(view, b[1], device), whole)
    memory = torch.full((41, 460), torch.nan, dtype=kind.dtype, device=device)
    for view in (memory[1::2, 3:459:3], memory[:20, 1:153]):
        assert_same(kind.multiply(view.copy_(a[0]), b[0], device), each[0, 0])
    misaligned = torch.empty(30, 153, dtype=kind.dtype, device=device)[:, 1:].mT.copy_(b[0])
    assert_same(kind.multiply(a[0], misaligned, device), each[0, 0])
    for out in (memory[:20, :60:2], memory[:30, 5:25].mT):
        out.fill_(torch.nan)
        torch_tiled.matmul(a[0], b[0], out=out, **kind.ways)
        assert_same(out.cpu(), each[0, 0].to(kind.dtype))


def by_kernel(names, values):
    """Each kernel of each kind with each of these values."""

    cases = {kind.order: pairs(kind.algorithms, values) for kind in (FP16X3, TF32, MMA[0])}
    return for_kinds(f"kernel, {names}", pairwise=True, **cases)


@by_kernel("scales", [(1, 1), (0.7, 0), (3.7, -0.1), (0, 2)])
def test_gemm_finishes_the_same_sum(device, kind, kernel, scales):
    (a, b), c = kind.with_last_row_infinite(33, 200, 24), kind.randn(33, 24)
    alpha, beta = scales
    expected = torch.tensor(alpha) * kind.specified(a, b)
    if beta:
        expected = fma(torch.tensor(beta), c.float(), expected)
    if alpha == 0:
        expected = torch.tensor(beta) * c.float()  # a and b are not read
    ways = kind.ways | {"algorithm": kernel}
    result = c.to(device, copy=True)
    torch_tiled.gemm_(result, a.to(device), b.to(device), alpha=alpha, beta=beta, **ways)
    assert_same(result.cpu(), expected.to(kind.dtype))
    a, c, result = a[:-1], c[:-1], result.cpu()[:-1]  # the finite rows
    exact = alpha * product(a, b) + beta * c.double()
    assert_within(result, exact, gemm_bound(c, a, b, alpha, beta, **ways))


@by_kernel("activation", ACTIVATIONS)
def test_linear_finishes_the_same_sum(device, kind, kernel, activation):
    (x, weight), bias = kind.with_last_row_infinite(33, 200, 24), kind.randn(24)
    activate, ways = ACTIVATIONS[activation], kind.ways | {"algorithm": kernel}
    operands = (each.to(device) for each in (x, weight.mT, bias))
    y = torch_tiled.linear(*operands, activation=activation, **ways).cpu()
    if activation in ("none", "relu"):
        assert_same(y, activate(kind.specified(x, weight) + bias.float()).to(kind.dtype))
    x, y = x[:-1], y[:-1]  # the finite rows
    exact = activate(product(x, weight) + bias.double())
    limit = linear_bound(x, weight.mT, bias, **ways)
    assert_within(y, exact, activated_bound(exact, limit, y.dtype))


@for_kinds(
    "k, order",
    fp16x3=[
        (127, "1 chunk of at most 1024 in K, each ascending"),
        (128, "1 chunk of at most 1024 in K, each three float16 products promoted every 16"),
        (512, "1 chunk of at most 1024 in K, each three float16 products promoted every 32"),
        (1025, "2 chunks of at most 1024 in K, each three float16 products promoted every 32"),
    ],
    tf32=[
        (63, "1 chunk of at most 1024 in K, each ascending"),
        (64, "1 chain of at most 8192 in K on tensor cores, of scaled float16"),
        (8193, "2 chains of at most 8192 in K on tensor cores, of scaled float16"),
    ],
    mma=[
        (0, "1 chain of at most 8192 in K on tensor cores"),
        (8192, "1 chain of at most 8192 in K on tensor cores"),
        (8193, "2 chains of at most 8192 in K on tensor cores"),
    ],
)
def test_explain_says_the_order(device, kind, k, order):
    a = torch.ones(3, k, dtype=kind.dtype, device=device)
    for name in [kind.order, "auto"] if device == "cuda" else [kind.order]:
        facts = torch_tiled.explain(a, a.mT, **kind.ways | {"algorithm": name})
        assert facts.order == f"{order}, added in order"


# --- accuracy ------------------------------------------------------------------------------------


@for_kinds(
    "name, k",
    pairwise=True,
    fp16x3=pairs(BOUNDED, [128, 129, 500, 512, 1024, 1500, 4100]),
    tf32=pairs(BOUNDED, [64, 65, 500, 1024, 8200]),
    mma=pairs(FINITE, [1, 16, 17, 100, 1024, 8200]),
)
def test_elementwise_bound(device, kind, name, k):
    a, b = kind.operands[name](24, k, 20)
    limit = bound(a, b, **kind.ways, out_dtype=torch.float32)
    assert_within(kind.multiply(a, b, device), product(a, b), limit)


@for_kinds(
    "k",
    fp16x3=[128, 192, 511, 512, 1024, 1025, 100_000],
    mma=[16, 64, 1024, 8192, 8193, 100_000],
)
def test_bound_is_below_that_of_a_plain_sum(kind, k):
    a, b = torch.ones(1, k, dtype=kind.dtype), torch.ones(k, 1, dtype=kind.dtype)
    ours, plain = (bound(a, b, algorithm=x, out_dtype=torch.float32) for x in (kind.order, "naive"))
    assert ours < plain


@for_kinds("k", fp16x3=[64, 100, 1024, 2049], tf32=[64, 100, 1024, 8200], mma=[64, 100, 1024, 8200])
def test_integers_are_exact(device, kind, k):
    """Nothing is truncated while |A||B| stays within 2^24. Factors have 11 bits, bfloat16's 8."""
    most = 2**11 if kind.dtype == torch.float32 else 2**8
    for largest in (most, most // 4, most // 16):
        other = min(2**24 // (k * largest), most)
        a = torch.randint(-largest, largest + 1, (30, k)).to(kind.dtype)
        b = torch.randint(-other, other + 1, (k, 40)).to(kind.dtype)
        a[0], b[:, 0] = largest, other
        a[1] = -largest
        assert torch.equal(kind.multiply(a, b, device).double(), product(a, b))
        assert torch.equal(kind.multiply(b.mT, a.mT, device).double(), product(a, b).mT)


# --- the host against a GPU ----------------------------------------------------------------------


@needs_hopper
@for_kinds(
    "k, layouts",
    fp16x3=[
        (k, LAYOUTS)
        for k in (128, 129, 143, 191, 192, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049)
    ],
    tf32=pairs([64, 65, 72, 79, 127, 128, 129, 200, 1000, 1111], [(x,) for x in LAYOUTS]),
    mma=pairs(
        [1, 8, 15, 16, 31, 32, 33, 63, 64, 65, 72, 127, 128, 200, 1000], [(x,) for x in LAYOUTS]
    ),
)
def test_host_and_gpu_agree(kind, k, layouts):
    """The layouts alternate where there are several."""
    sizes = [1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 131, 136, 255, 256, 257]
    for i, m in enumerate(sizes):
        n = sizes[(7 * i + k) % len(sizes)]
        layout = layouts[(i + k) % len(layouts)]
        kind.compare(in_layout(kind.randn(m, k), layout[0]), in_layout(kind.randn(k, n), layout[1]))


@needs_hopper
@for_kinds("k, n", fp16x3=[(1100, 1030)], mma=[(1096, 1032)])
def test_host_and_gpu_agree_on_many_tiles(kind, k, n):
    kind.compare(kind.randn(1000, k), kind.randn(k, n))
    kind.compare(kind.randn(5, 130, 200), kind.randn(5, 200, 152))
    kind.compare(kind.randn(5, 130, 200), kind.randn(200, 150))
    kind.compare(kind.randn(5, 130, 200), kind.randn(5, 150, 200).mT)
    kind.compare(kind.randn(2, 3, 40, 2048), kind.randn(2, 1, 50, 2048).mT)


@needs_hopper
@for_kinds(
    "name, long",
    fp16x3=pairs([*OVERFLOWING, "not finite"], [(60, 500, 70)]),
    tf32=pairs([*OVERFLOWING, "not finite"], [(130, 8208, 8)]),
    mma=pairs(OPERANDS_16BIT, [(130, 8208, 8)]),
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_and_gpu_agree_on_bad_input(kind, name, long, layout):
    for m, k, n in ((150, 1096, 136), (150, 1100, 137), (3, 300, 140), (140, 64, 5), long):
        a, b = kind.operands[name](m, k, n)
        kind.compare(in_layout(a, layout[0]), in_layout(b, layout[1]))
