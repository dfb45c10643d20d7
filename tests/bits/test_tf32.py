"""tf32, float32 products of scaled float16 factors on tensor cores.

The host's kernel models the tensor core and has the bits of a Hopper GPU.
"""

import pytest
import torch
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.operands import LAYOUTS, OPERANDS, in_layout, in_layouts
from helpers.reference import (
    assert_same,
    assert_within,
    bound,
    product,
    relative_error,
    takes,
)
from helpers.specification import tf32_with_flags
from helpers.tensor_cores import TF32

import torch_tiled

multiply, compare = TF32.multiply, TF32.compare
WAYS = TF32.ways


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


def test_precision_tf32_does_not_change_other_kernels(device):
    """Their accuracy exceeds what the precision requires."""
    a, b = TF32.with_last_row_infinite(40, 1500, 50)
    a, b = a.to(device), b.to(device)
    for algorithm in torch_tiled.algorithms():
        if algorithm in TF32.algorithms or not takes(algorithm, a.dtype, device):
            continue
        result = torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32")
        assert_same(result, torch_tiled.matmul(a, b, algorithm=algorithm))


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
    a, b = (each.to(device) for each in TF32.with_last_row_infinite(20, 100, 30))
    prepared = torch_tiled.prepare(b)
    for algorithm in (*TF32.algorithms, "auto"):
        ways = {"algorithm": algorithm, "precision": "tf32"}
        expected = torch_tiled.matmul(a, b, **ways)
        assert_same(torch_tiled.matmul(a, prepared, **ways), expected)
        assert_same(torch_tiled.linear(a, prepared.mT, **ways), expected)


def test_rounding_may_take_nearly_all_of_the_bound(device):
    """1 + 2^-11 lies between two numbers of 11 bits, and is rounded to 1."""
    a, b = torch.full((1, 64), 1 + 2.0**-11), torch.full((64, 1), 1 + 2.0**-11)
    result = multiply(a, b, device)
    assert result.item() == 64
    assert product(a, b) - 64 > 0.8 * bound(a, b, **WAYS)


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
    a, b = TF32.with_last_row_infinite(m, k, n)
    compare(a, b)
    compare(torch.stack([a, a.flip(1)]), b)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m, k, n", [(2048, 2048, 2048), (4095, 4093, 4097), (1, 20000, 3000)])
def test_large_products(m, k, n, layout):
    a, b = in_layouts(layout, (m, k), (k, n))
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


@pytest.mark.parametrize("k", [64, 8193])
def test_explain_counts_the_groups_of_scales(device, k):
    a, b = torch.ones(3, k, device=device), torch.ones(k, 2, device=device)
    for name in ["tf32", "auto"] if device == "cuda" else ["tf32"]:
        facts = torch_tiled.explain(a, b, algorithm=name, precision="tf32")
        assert facts.algorithm in TF32.algorithms
        groups = k // 8192 + 1
        counts = f"{3 * groups} of a's rows and {2 * groups} of b's columns in a matrix"
        assert facts.scale_groups == f"{counts}, one a chunk"
