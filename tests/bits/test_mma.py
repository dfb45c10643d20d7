"""mma, products of float16 and bfloat16 on tensor cores: bits and accuracy.

The host's kernel models the tensor core and has the bits of a Hopper GPU.
"""

import pytest
import torch
from helpers.mma import (
    FINITE,
    MMA_ALGORITHMS,
    OPERANDS,
    check,
    each_16bit_dtype,
    multiply,
    not_finite,
)
from helpers.needs import cpu_and_hopper  # noqa: F401
from helpers.operands import LAYOUTS, in_layout
from helpers.reference import ACTIVATIONS, assert_same, assert_within, bound, product
from helpers.specification import chunked_product, fma, mma_product
from helpers.thinning import pairwise

import torch_tiled

# --- bits ----------------------------------------------------------------------------------------


@pairwise
@each_16bit_dtype
@pytest.mark.parametrize("k", [1, 7, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("name", OPERANDS)
def test_bits_are_as_specified(device, name, k, dtype):
    check(*OPERANDS[name](7, k, 6, dtype), device)


@each_16bit_dtype
@pytest.mark.parametrize("k", [8191, 8192, 8193, 16400])
def test_bits_of_chunks_are_as_specified(device, k, dtype):
    for name in ("normal", "uniform", "wide"):
        check(*OPERANDS[name](3, k, 4, dtype), device)


@each_16bit_dtype
@pytest.mark.parametrize("k", [0, 1, 17, 8193])
def test_a_sum_of_nothing_is_positive_zero(device, k, dtype):
    a, b = torch.full((3, k), -0.0, dtype=dtype), torch.ones(k, 4, dtype=dtype)
    check(a, b, device)
    assert not multiply(a, b, device).signbit().any()


@each_16bit_dtype
def test_inf_and_nan_are_as_in_ieee(device, dtype):
    """Elements with a factor Inf or NaN are as in IEEE 754, and no others change."""
    for k in (3, 40, 8200):
        a, b = not_finite(20, k, 30, dtype)
        rows, cols = a.isfinite().all(1), b.isfinite().all(0)
        finite = rows[:, None] & cols
        c = multiply(a, b, device)
        assert_same(c[finite], multiply(a[rows], b[:, cols], device).flatten())
        assert_same(c[~finite], chunked_product(a.float(), b.float()).to(dtype)[~finite])
        assert not c[~finite].isfinite().any()


@each_16bit_dtype
def test_signs_of_inf_and_what_meets_it(device, dtype):
    inf, nan = torch.inf, torch.nan
    a = torch.tensor([[inf, 1, 1], [-inf, 1, 1], [inf, -inf, 1], [inf, nan, 0]], dtype=dtype)
    b = torch.tensor([[1, -1, 0, inf], [1, 1, 1, 1], [1, 1, 1, -inf]], dtype=dtype)
    expected = torch.tensor(
        [[inf, -inf, nan, nan], [-inf, inf, nan, -inf], [nan, -inf, nan, nan], [nan] * 4]
    )
    assert_same(multiply(a, b, device), expected.to(dtype))
    late = torch.nn.functional.pad(a, (8200, 0)), torch.nn.functional.pad(b, (0, 0, 8200, 0))
    assert_same(multiply(*late, device), expected.to(dtype))


def test_sums_leave_the_range_of_float32(device):
    """Sums beyond the largest number are Inf, and those below the smallest normal one truncated."""
    a = torch.tensor([[2.0**64, 2.0**64], [2.0**64, -(2.0**64)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**63, 2.0**64], [2.0**63, 2.0**64]], dtype=torch.bfloat16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert c.tolist() == [[torch.inf, torch.inf], [0, 0]]
    a = torch.tensor([[2.0**-75], [-(2.0**-75)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**-75, 2.0**-74, 1.5 * 2.0**-74, 1.75 * 2.0**-73]], dtype=torch.bfloat16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert_same(c, 2.0**-149 * torch.tensor([[0.0, 1, 1, 3], [0.0, -1, -1, -3]]))


@pairwise
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [64, 67, 203])
def test_slices_of_a_product_are_products_of_slices(device, layout, k, dtype):
    a, b = torch.randn(300, k).to(dtype), torch.randn(k, 140).to(dtype)
    a[200, 3] = torch.inf
    expected = mma_product(a, b)
    a, b = in_layout(a, layout[0]).to(device), in_layout(b, layout[1]).to(device)
    wide = {"out_dtype": torch.float32}
    assert_same(multiply(a, b, device, **wide), expected)
    for m in (1, 2, 7, 16, 33, 64, 65, 128, 200):
        rows = slice(m // 2, m // 2 + m)
        assert_same(multiply(a[rows], b, device, **wide), expected[rows])
    for n in (1, 8, 15, 64, 129):
        assert_same(multiply(a[10:20], b[:, :n], device, **wide), expected[10:20, :n])
    assert_same(multiply(a[::7], b[:, 1::3], device, **wide), expected[::7, 1::3])


@each_16bit_dtype
def test_views_and_batches(device, dtype):
    a, b = torch.randn(3, 20, 152).to(dtype), torch.randn(3, 152, 30).to(dtype)
    each = torch.stack([torch.stack([mma_product(x, y) for y in b]) for x in a]).to(dtype)
    a, b = a.to(device), b.to(device)
    i = torch.arange(3)
    assert_same(multiply(a, b, device), each[i, i])
    assert_same(multiply(a, b[1], device), each[:, 1])
    assert_same(multiply(a[2], b, device), each[2])
    assert_same(multiply(a[:, None], b, device), each)
    assert_same(multiply(a[0, 4], b[1, :, 5], device), each[0, 1, 4, 5])
    for view in (a[0, :1].expand(20, 152), a[0, :, :1].expand(20, 152)):
        assert_same(multiply(view, b[1], device), multiply(view.contiguous(), b[1], device))
    memory = torch.full((41, 460), torch.nan, dtype=dtype, device=device)
    assert_same(multiply(memory[1::2, 3:459:3].copy_(a[0]), b[0], device), each[0, 0])


@pairwise
@each_16bit_dtype
@pytest.mark.parametrize("algorithm", MMA_ALGORITHMS)
@pytest.mark.parametrize("alpha, beta", [(1, 1), (0.7, 0), (3.7, -0.1), (0, 2)])
def test_gemm_finishes_the_same_sum(device, dtype, algorithm, alpha, beta):
    a, b, c = (torch.randn(*shape).to(dtype) for shape in ((33, 200), (200, 24), (33, 24)))
    expected = torch.tensor(alpha) * mma_product(a, b)
    if beta:
        expected = fma(torch.tensor(beta), c.float(), expected)
    options = {"alpha": alpha, "beta": beta, "algorithm": algorithm}
    torch_tiled.gemm_(c := c.to(device), a.to(device), b.to(device), **options)
    assert_same(c.cpu(), expected.to(dtype))


@pairwise
@each_16bit_dtype
@pytest.mark.parametrize("algorithm", MMA_ALGORITHMS)
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_linear_finishes_the_same_sum(device, dtype, algorithm, activation):
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((33, 200), (24, 200), (24,)))
    expected = ACTIVATIONS[activation](mma_product(x, weight.mT) + bias.float())
    operands = (each.to(device) for each in (x, weight, bias))
    y = torch_tiled.linear(*operands, activation=activation, algorithm=algorithm)
    assert_same(y.cpu(), expected.to(dtype))


@each_16bit_dtype
def test_precision_is_ignored_for_16bit_floats(device, dtype):
    a, b = torch.randn(20, 100).to(dtype), torch.randn(100, 30).to(dtype)
    assert_same(multiply(a, b, device, precision="ieee"), multiply(a, b, device))


# --- explain -------------------------------------------------------------------------------------


@each_16bit_dtype
@pytest.mark.parametrize("k, chains", [(0, "1 chain"), (8192, "1 chain"), (8193, "2 chains")])
def test_explain_says_the_order(device, k, chains, dtype):
    a = torch.ones(3, k, dtype=dtype, device=device)
    for name in ["mma", "auto"] if device == "cuda" else ["mma"]:
        order = torch_tiled.explain(a, a.mT, algorithm=name).order
        assert order == f"{chains} of at most 8192 in K on tensor cores, added in order"


@pytest.mark.parametrize(
    "view",
    [
        lambda new, k, n: new(k, n),
        lambda new, k, n: new(n, k).mT,
        lambda new, k, n: new(k, n + 8)[:, 8:],
        lambda new, k, n: new(k, n + 4)[:, 4:],
        lambda new, k, n: new(n + 3, k + 3).mT[3:, 3:],
        lambda new, k, n: new(2 * k, 2 * n)[::2, ::2],
        lambda new, k, n: new(1, n).expand(k, n),
        lambda new, k, n: new(k, 1).expand(k, n),
    ],
)
@each_16bit_dtype
def test_any_view_is_taken(device, view, dtype):
    """Views that no tensor map can read are among them: unaligned rows and strided elements."""
    a = torch.randn(40, 603, dtype=dtype, device=device)
    b = view(lambda *shape: torch.randn(shape, dtype=dtype, device=device), 603, 201)
    for x, y in ((a, b), (b.mT, a.mT), (a.expand(2, 40, 603), b)):
        assert torch_tiled.explain(x, y, algorithm="mma_tma").algorithm == "mma_tma"
        out = torch.full((*x.shape[:-1], y.shape[-1]), torch.nan, dtype=dtype, device=device)
        torch_tiled.matmul(x, y, algorithm="mma_tma", out=out)
        assert torch.equal(out, torch_tiled.matmul(x, y, algorithm="mma_sync"))


# --- accuracy ------------------------------------------------------------------------------------


@pairwise
@each_16bit_dtype
@pytest.mark.parametrize("k", [1, 16, 17, 100, 1024, 8200])
@pytest.mark.parametrize("name", FINITE)
def test_elementwise_bound(device, name, k, dtype):
    a, b = FINITE[name](12, k, 10, dtype)
    result = multiply(a, b, device, out_dtype=torch.float32)
    assert_within(result, product(a, b), bound(a, b, algorithm="mma", out_dtype=torch.float32))


@each_16bit_dtype
def test_bound_is_below_that_of_a_plain_sum(dtype):
    for k in (16, 64, 1024, 8192, 8193, 100_000):
        a, b = torch.ones(1, k, dtype=dtype), torch.ones(k, 1, dtype=dtype)
        wide = {"out_dtype": torch.float32}
        assert bound(a, b, algorithm="mma", **wide) < bound(a, b, algorithm="naive", **wide)


def test_subnormal_factors_count_as_the_smallest_normal_number(device):
    """The tensor core truncates beside them: 2^-25 is less than 2^-25 of 2^-14 2^15."""
    a = torch.tensor([[2.0**-24, 2.0**-14]], dtype=torch.float16)
    b = torch.tensor([[2.0**15], [2.0**-11]], dtype=torch.float16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert c.item() == 2.0**-9
    assert_within(c, product(a, b), bound(a, b, algorithm="mma", out_dtype=torch.float32))


@each_16bit_dtype
@pytest.mark.parametrize("k", [64, 100, 1024, 8200])
def test_integers_are_exact(device, k, dtype):
    """Nothing is truncated while |A||B| stays within 2^24."""
    largest = min(2**8, int((2**24 // k) ** 0.5))
    a, b = (torch.randint(-largest, largest + 1, shape).to(dtype) for shape in ((30, k), (k, 40)))
    a[0], a[1], b[:, 0] = largest, -largest, largest
    wide = multiply(a, b, device, out_dtype=torch.float32)
    assert torch.equal(wide.double(), product(a, b))
