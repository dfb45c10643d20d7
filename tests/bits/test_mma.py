"""mma, products of float16 and bfloat16 on tensor cores.

The host's kernel models the tensor core and has the bits of a Hopper GPU.
"""

import pytest
import torch
from helpers.mma import each_16bit_dtype
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import assert_same, assert_within, bound, product
from helpers.tensor_cores import MMA
from helpers.tiled64 import check_without_memory

import torch_tiled

OF_FLOAT16, OF_BFLOAT16 = MMA
each_kind = pytest.mark.parametrize("kind", MMA, ids=lambda kind: kind.name)


@each_kind
def test_signs_of_inf_and_what_meets_it(device, kind):
    inf, nan = torch.inf, torch.nan
    a = torch.tensor([[inf, 1, 1], [-inf, 1, 1], [inf, -inf, 1], [inf, nan, 0]]).to(kind.dtype)
    b = torch.tensor([[1, -1, 0, inf], [1, 1, 1, 1], [1, 1, 1, -inf]]).to(kind.dtype)
    expected = torch.tensor(
        [[inf, -inf, nan, nan], [-inf, inf, nan, -inf], [nan, -inf, nan, nan], [nan] * 4]
    )
    assert_same(kind.multiply(a, b, device), expected)
    late = torch.nn.functional.pad(a, (8200, 0)), torch.nn.functional.pad(b, (0, 0, 8200, 0))
    assert_same(kind.multiply(*late, device), expected)


def test_sums_leave_the_range_of_float32(device):
    """Sums beyond the largest number are Inf, and those below the smallest normal one truncated."""
    a = torch.tensor([[2.0**64, 2.0**64], [2.0**64, -(2.0**64)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**63, 2.0**64], [2.0**63, 2.0**64]], dtype=torch.bfloat16)
    c = OF_BFLOAT16.multiply(a, b, device)
    assert c.tolist() == [[torch.inf, torch.inf], [0, 0]]
    a = torch.tensor([[2.0**-75], [-(2.0**-75)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**-75, 2.0**-74, 1.5 * 2.0**-74, 1.75 * 2.0**-73]], dtype=torch.bfloat16)
    c = OF_BFLOAT16.multiply(a, b, device)
    assert_same(c, 2.0**-149 * torch.tensor([[0.0, 1, 1, 3], [0.0, -1, -1, -3]]))


@each_kind
def test_precision_is_ignored_for_16bit_floats(device, kind):
    a, b = kind.randn(20, 100), kind.randn(100, 30)
    assert_same(kind.multiply(a, b, device, precision="ieee"), kind.multiply(a, b, device))


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


def test_subnormal_factors_count_as_the_smallest_normal_number(device):
    """The tensor core truncates beside them: 2^-25 is less than 2^-25 of 2^-14 2^15."""
    a = torch.tensor([[2.0**-24, 2.0**-14]], dtype=torch.float16)
    b = torch.tensor([[2.0**15], [2.0**-11]], dtype=torch.float16)
    c = OF_FLOAT16.multiply(a, b, device)
    assert c.item() == 2.0**-9
    assert_within(c, product(a, b), bound(a, b, algorithm="mma", out_dtype=torch.float32))


@needs_hopper
@pytest.mark.parametrize(
    ("algorithm", "m", "n", "k", "step"),
    [
        ("mma_tma", 4000, 4096, 8200, 1),
        ("mma_tma", 300, 4096, 100, 2),
        ("mma_tma", 30, 40, 40000, 1),
        ("mma_unaligned", 300, 4099, 101, 2),
        ("mma_unaligned", 30, 41, 40001, 1),
    ],
)
def test_another_kernel_computes_if_memory_is_short(algorithm, m, n, k, step):
    """The memory is for the sums of the first chunk, for copies of operands that no tensor map can
    read, or for the sums of all chunks, which one block then computes alone."""
    a = torch.randn(m, k * step, dtype=torch.float16, device="cuda")[:, ::step]
    b = torch.randn(k, n, dtype=torch.float16, device="cuda")
    assert torch_tiled.explain(a, b, algorithm=algorithm).algorithm == algorithm
    check_without_memory(algorithm, a, b, reference="mma_sync")
