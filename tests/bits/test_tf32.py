"""tf32, float32 products of scaled float16 factors on tensor cores: bits and accuracy.

The host's kernel models the tensor core and has the bits of a Hopper GPU.
"""

import pytest
import torch
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.operands import BATCHES, BOUNDED, LAYOUTS, OPERANDS, OVERFLOWING, in_layout
from helpers.reference import (
    ACTIVATIONS,
    activated_bound,
    assert_same,
    assert_within,
    bound,
    gemm_bound,
    linear_bound,
    product,
    relative_error,
    takes,
)
from helpers.scaled import TF32, TF32_KERNELS
from helpers.specification import chunked_product, fma, tf32_product, tf32_with_flags

import torch_tiled

multiply, compare = TF32.multiply, TF32.compare
WAYS = TF32.ways


def with_flagged_elements(m, k, n):
    """Normal numbers with small ones and an Inf beside them, which flag some elements."""
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[m // 2, ::2], b[1::2, n // 2 :] = 0, 0
    a[m // 2, 4] = 1e-12
    a[-1, -1] = torch.inf
    assert 0 < tf32_with_flags(a, b)[1].sum() < m * n
    return a, b


# --- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 65, 100, 1000])
@pytest.mark.parametrize("name", OVERFLOWING)
def test_bits_are_as_specified(device, name, k):
    a, b = OVERFLOWING[name](7, k, 6)
    assert_same(multiply(a, b, device), tf32_product(a, b))


@pytest.mark.parametrize("k", [8191, 8192, 8193, 16400])
def test_bits_of_chunks_are_as_specified(device, k):
    for name in ("normal", "uniform", "opposed by 2", "alternating", "overflow"):
        a, b = OVERFLOWING[name](3, k, 4)
        assert_same(multiply(a, b, device), tf32_product(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_at_the_edges_of_tiles_are_as_specified(device, layout):
    sizes = [1, 7, 64, 127, 128, 129, 130, 255, 256, 257]
    for i, m in enumerate(sizes):
        n, k = sizes[7 * i % 10], (64, 65, 67, 100)[i % 4]
        a, b = torch.randn(m, k), torch.randn(k, n)
        expected = tf32_product(a, b)
        assert_same(multiply(in_layout(a, layout[0]), in_layout(b, layout[1]), device), expected)


@pytest.mark.parametrize("k", [0, 1, 17, 63])
def test_short_sums_are_in_chunks(device, k):
    a, b = torch.randn(9, k), torch.randn(k, 11)
    result = multiply(a, b, device)
    assert_same(result, chunked_product(a, b) if k else torch.zeros(9, 11))
    a, b = a.to(device), b.to(device)
    assert_same(torch_tiled.matmul(a, b, algorithm="tiled", precision="ieee").cpu(), result)


def test_large_sums_are_not_flagged(device):
    """Scaled sums of 32 for each small number are not flagged, and rows of zeros never are."""
    less = 255 / 256
    a, b = torch.zeros(4, 64), torch.zeros(64, 1)
    a[:, 0] = torch.tensor([1.0, 0, 1, 1]) * 2.0**14
    a[:, 1] = torch.tensor([1.0, 0, 1, 0]) * 2.0**-20  # a small number in rows 0 and 2
    a[:, 2] = torch.tensor([1, 0, less, 2.0**-4]) * 2.0**-9
    b[2] = 2.0**14
    _, flagged = tf32_with_flags(a, b)
    assert flagged.flatten().tolist() == [False, False, True, False]
    assert multiply(a, b, device).flatten().tolist() == [32, 0, 32 * less, 2]
    b[3:6, 0] = 2.0**-20  # three more in the column
    a[:, 2] *= 4
    _, flagged = tf32_with_flags(a, b)
    assert flagged.flatten().tolist() == [False, False, True, True]
    facts = torch_tiled.explain(a.to(device), b.to(device), **WAYS)
    assert facts.recomputed == "2 of 4 elements"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [67, 1100])
def test_vectors_are_rows_and_columns(device, layout, k):
    a, b = in_layout(torch.randn(300, k), layout[0]), in_layout(torch.randn(k, 140), layout[1])
    a[17, 5] = 1e-12  # makes the row wide, so that elements may be flagged
    a, b = a.to(device), b.to(device)  # before they are sliced: a slice moves without its strides
    whole = multiply(a, b, device)
    assert_same(multiply(a[5], b, device), whole[5])
    assert_same(multiply(a, b[:, 9], device), whole[:, 9])


def test_views(device):
    a, b = with_flagged_elements(20, 150, 30)
    expected = tf32_product(a, b)
    a, b = a.to(device), b.to(device)
    memory = torch.full((41, 460), torch.nan, device=device)
    assert_same(multiply(memory[1::2, 3:453:3].copy_(a), b, device), expected)
    assert_same(multiply(memory[:20, 1:151].copy_(a), b, device), expected)
    assert_same(
        multiply(a, torch.empty(30, 151, device=device)[:, 1:].mT.copy_(b), device), expected
    )
    for view in (a[:1].expand(20, 150), a[:, :1].expand(20, 150)):
        assert_same(multiply(view, b, device), multiply(view.contiguous(), b, device))
    for out in (memory[:20, :60:2], memory[:30, 5:25].mT):
        out.fill_(torch.nan)
        torch_tiled.matmul(a, b, out=out, **WAYS)
        assert_same(out.cpu(), expected)


@pytest.mark.parametrize("name", BATCHES)
def test_batches(device, name):
    k, n = 100, 37
    b = BATCHES[name](k, n)
    a = torch.randn(*b.shape[:-2], 20, k)
    a[..., 3, 4] = torch.inf

    def expected(a):
        rows = zip(a.expand(*b.shape[:-2], 20, k).flatten(0, -3), b.flatten(0, -3), strict=True)
        return torch.stack([tf32_product(x, y) for x, y in rows]).view(*b.shape[:-2], 20, n)

    first = a[(0,) * (a.dim() - 2)]
    assert_same(multiply(a, b, device), expected(a))
    assert_same(multiply(first, b, device), expected(first))
    assert_same(multiply(b.mT, a.mT, device), expected(a).mT)


def test_precision_tf32_does_not_change_other_kernels(device):
    """Their accuracy exceeds what the precision requires."""
    a, b = with_flagged_elements(40, 1500, 50)
    a, b = a.to(device), b.to(device)
    for algorithm in torch_tiled.algorithms():
        if algorithm.startswith("tf32") or not takes(algorithm, a.dtype, device):
            continue
        result = torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32")
        assert_same(result, torch_tiled.matmul(a, b, algorithm=algorithm))


# --- epilogues and gradients ---------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", TF32_KERNELS)
@pytest.mark.parametrize("alpha, beta", [(1, 1), (0.7, 0), (3.7, -0.1), (0, 2)])
def test_gemm_finishes_the_same_sum(device, algorithm, alpha, beta):
    (a, b), c = with_flagged_elements(33, 200, 24), torch.randn(33, 24)
    expected = torch.tensor(alpha) * tf32_product(a, b)
    if beta:
        expected = fma(torch.tensor(beta), c, expected)
    if alpha == 0:
        expected = torch.tensor(beta) * c  # a and b are not read
    options = {"alpha": alpha, "beta": beta, "algorithm": algorithm, "precision": "tf32"}
    result = torch_tiled.gemm_(c.to(device, copy=True), a.to(device), b.to(device), **options)
    assert_same(result.cpu(), expected)
    finite = slice(None, -1)
    ways = {"algorithm": algorithm, "precision": "tf32"}
    exact = alpha * product(a[finite], b) + beta * c[finite].double()
    limit = gemm_bound(c[finite], a[finite], b, alpha, beta, **ways)
    assert_within(result.cpu()[finite], exact, limit)


@pytest.mark.parametrize("algorithm", TF32_KERNELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_finishes_the_same_sum(device, algorithm, activation):
    (x, weight), bias = with_flagged_elements(33, 200, 24), torch.randn(24)
    activate = ACTIVATIONS[activation]
    expected = activate(tf32_product(x, weight) + bias)
    ways = {"algorithm": algorithm, "precision": "tf32"}
    operands = (each.to(device) for each in (x, weight.mT, bias))
    y = torch_tiled.linear(*operands, activation=activation, **ways).cpu()
    if activation in ("none", "relu"):
        assert_same(y, expected)
    x, y = x[:-1], y[:-1]  # the finite rows
    exact = activate(product(x, weight) + bias.double())
    limit = linear_bound(x, weight.mT, bias, **ways)
    assert_within(y, exact, activated_bound(exact, limit, y.dtype))


@pytest.mark.parametrize("k", [100, 9000])
def test_gradients_are_products_in_the_same_precision(device, k):
    x, weight, bias = torch.randn(70, k), torch.randn(80, k), torch.randn(80)
    leaves = [each.to(device, copy=True).requires_grad_() for each in (x, weight, bias)]
    grad = torch.randn(70, 80)
    torch_tiled.linear(*leaves, **WAYS).backward(grad.to(device))
    of_x, of_weight, _ = (each.grad.cpu() for each in leaves)
    assert_same(of_x, multiply(grad, weight, device))
    assert_same(of_weight, multiply(grad.mT, x, device))
    assert_within(of_x, product(grad, weight), bound(grad, weight, **WAYS))
    assert_within(of_weight, product(grad.mT, x), bound(grad.mT, x, **WAYS))
    a, b = (each.to(device, copy=True).requires_grad_() for each in (x, weight.mT))
    torch_tiled.matmul(a, b, **WAYS).backward(grad.to(device))
    assert_same(a.grad.cpu(), of_x)
    assert_same(b.grad.cpu(), multiply(x.mT, grad, device))


def test_compiled(device):
    compiled = torch.compile(torch_tiled.linear, fullgraph=True, backend="aot_eager")
    x, weight = torch.randn(20, 100, device=device), torch.randn(30, 100, device=device)
    assert_same(compiled(x, weight, **WAYS), torch_tiled.linear(x, weight, **WAYS))


def test_prepared_operands_are_read_unsplit(device):
    a, b = (each.to(device) for each in with_flagged_elements(20, 100, 30))
    prepared = torch_tiled.prepare(b)
    for algorithm in (*TF32_KERNELS, "auto"):
        ways = {"algorithm": algorithm, "precision": "tf32"}
        expected = torch_tiled.matmul(a, b, **ways)
        assert_same(torch_tiled.matmul(a, prepared, **ways), expected)
        assert_same(torch_tiled.linear(a, prepared.mT, **ways), expected)


# --- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "k, order",
    [
        (63, "1 chunk of at most 1024 in K, each ascending"),
        (64, "1 chain of at most 8192 in K on tensor cores, of scaled float16"),
        (8193, "2 chains of at most 8192 in K on tensor cores, of scaled float16"),
    ],
)
def test_explain_says_the_order(device, k, order):
    a, b = torch.ones(3, k, device=device), torch.ones(k, 2, device=device)
    for name in ["tf32", "auto"] if device == "cuda" else ["tf32"]:
        facts = torch_tiled.explain(a, b, algorithm=name, precision="tf32")
        assert facts.order == f"{order}, added in order"
        if k >= 64:
            assert facts.algorithm.startswith("tf32")
            groups = k // 8192 + 1
            counts = f"{3 * groups} of a's rows and {2 * groups} of b's columns in a matrix"
            assert facts.scale_groups == f"{counts}, one a chunk"


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 65, 500, 1024, 8200])
@pytest.mark.parametrize("name", BOUNDED)
def test_elementwise_bound(device, name, k):
    a, b = OPERANDS[name](24, k, 20)
    assert_within(multiply(a, b, device), product(a, b), bound(a, b, **WAYS))


def test_rounding_may_take_nearly_all_of_the_bound(device):
    """1 + 2^-11 lies between two numbers of 11 bits, and is rounded to 1."""
    a, b = torch.full((1, 64), 1 + 2.0**-11), torch.full((64, 1), 1 + 2.0**-11)
    result = multiply(a, b, device)
    assert result.item() == 64
    assert product(a, b) - 64 > 0.8 * bound(a, b, **WAYS)


@pytest.mark.parametrize("k", [64, 8200])
def test_a_sum_of_nothing_is_positive_zero(device, k):
    result = multiply(torch.full((3, k), -0.0), torch.ones(k, 4), device)
    assert_same(result, torch.zeros(3, 4))


# --- the host against a GPU ----------------------------------------------------------------------


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [64, 65, 72, 79, 127, 128, 129, 200, 1000, 1111])
def test_host_and_gpu_agree(k, layout):
    sizes = [1, 2, 7, 8, 9, 16, 31, 64, 65, 127, 128, 129, 136, 255, 256, 257]
    for i, m in enumerate(sizes):
        n = sizes[(5 * i + k) % len(sizes)]
        compare(in_layout(torch.randn(m, k), layout[0]), in_layout(torch.randn(k, n), layout[1]))


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_and_gpu_agree_on_many_tiles(layout):
    a, b = torch.randn(300, 1111), torch.randn(1111, 700)
    a[7, 4], b[5, 33] = 1e-12, torch.nan
    compare(in_layout(a, layout[0]), in_layout(b, layout[1]))
    compare(torch.randn(5, 130, 200), in_layout(torch.randn(5, 200, 150), layout[1]))
    compare(in_layout(torch.randn(5, 130, 200), layout[0]), torch.randn(200, 150))
    compare(torch.randn(2, 3, 40, 2048), torch.randn(2, 1, 50, 2048).mT)


@needs_hopper
@pytest.mark.parametrize("m, k, n", [(20, 24600, 30), (150, 16400, 70)])
def test_host_and_gpu_agree_where_several_blocks_sum(m, k, n):
    a, b = with_flagged_elements(m, k, n)
    compare(a, b)
    compare(torch.stack([a, a.flip(1)]), b)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m, k, n", [(2048, 2048, 2048), (4095, 4093, 4097), (1, 20000, 3000)])
def test_large_products(m, k, n, layout):
    a = in_layout(torch.randn(m, k, device="cuda"), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda"), layout[1])
    result = torch_tiled.matmul(a, b, precision="tf32")
    for _ in range(3):  # a race may show in one call only
        assert torch.equal(torch_tiled.matmul(a, b, precision="tf32"), result)
    assert_within(result, product(a, b), bound(a, b, precision="tf32"))
    rows = slice(m // 3, None, 500)
    assert_same(result[rows].cpu(), multiply(a[rows], b, "cuda"))


@needs_hopper
@pytest.mark.parametrize("k", [64, 512, 4096, 20000])
def test_error_is_that_of_the_vendors_tf32(monkeypatch, k):
    """The precision is named after the vendor's products. On normal numbers the roundings of the
    operands dominate, and means over this many samples vary by 1 %."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    a, b = (each.cuda() for each in OPERANDS["normal"](512, k, 512))
    exact = product(a, b)
    vendor = relative_error(torch.matmul(a, b), exact)
    assert vendor > 1e-5  # it is TF32
    assert relative_error(torch_tiled.matmul(a, b, precision="tf32"), exact) <= 1.01 * vendor
