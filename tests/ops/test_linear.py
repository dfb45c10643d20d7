"""linear: x weight^T + bias, then an activation, in one launch."""

import math

import pytest
import torch
from helpers.reference import (
    ACTIVATIONS,
    ALGORITHMS,
    DTYPES,
    NAMED,
    REAL,
    U,
    activated_bound,
    assert_within,
    linear_bound,
    product,
    wide,
)
from helpers.thinning import pairwise

import torch_tiled


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("batch", [(), (1,), (70,), (0,), (3, 5), (2, 1, 7)])
def test_values(device, poisoned, algorithm, dtype, with_bias, batch):
    for n, k in ((33, 65), (1, 1), (16, 0)):
        x = torch.randn(*batch, k, device=device, dtype=dtype)
        weight = torch.randn(n, k, device=device, dtype=dtype)
        bias = torch.randn(n, device=device, dtype=dtype) if with_bias else None
        exact = product(x, weight.mT) + (wide(bias) if with_bias else 0)
        result = torch_tiled.linear(x, weight, bias, algorithm=algorithm)
        assert result.dtype == dtype and result.is_contiguous()
        assert_within(result, exact, linear_bound(x, weight, bias, algorithm=algorithm))


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(device, algorithm, dtype, activation):
    x = 3 * torch.randn(40, 30, device=device)
    x, weight = x.to(dtype), torch.randn(50, 30, device=device).to(dtype)
    bias = torch.randn(50, device=device).to(dtype)
    result = torch_tiled.linear(x, weight, bias, activation=activation, algorithm=algorithm)
    exact = ACTIVATIONS[activation](product(x, weight.mT) + bias.double())
    limit = linear_bound(x, weight, bias, algorithm=algorithm)
    assert_within(result, exact, activated_bound(exact, limit, dtype))


@pytest.mark.parametrize("algorithm", NAMED)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_at_the_edges(device, algorithm, activation):
    x = torch.tensor([[torch.nan], [torch.inf], [-torch.inf], [0.0], [1e30], [-1e30]])
    x, weight = x.to(device), torch.ones(1, 1, device=device)
    result = torch_tiled.linear(x, weight, activation=activation, algorithm=algorithm)
    expected = ACTIVATIONS[activation](x.double()).float()  # PyTorch's float32 gelu(inf) is NaN
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_gelu_keeps_what_1_plus_erf_cancels(device):
    """The tail of the normal distribution is 2 to a power p. Up to |x| = 5, csrc/core/epilogue.h
    computes p within 2 roundings of p, and a fit within one of max(1, p / 2); exp2 errs by 2 in the
    last place. Two more roundings are those of 1 - tail and of the product by x."""
    x = torch.linspace(-12, 12, 240_001)[:, None]
    one = torch.ones(1, 1, device=device)
    result = torch_tiled.linear(x.to(device), one, activation="gelu", algorithm="naive").cpu()
    exact = x.double() * torch.erfc(-x.double() / math.sqrt(2)) / 2
    near = x.abs() <= 5
    tail = torch.erfc(x.double().abs() / math.sqrt(2)) / 2
    power = -tail.log2()
    u = U[torch.float32]
    limit = u * (2 * exact.abs() + x.abs() * tail * (2 * power + power.clamp(min=2) / 2 + 4))
    assert_within(result[near], exact[near], limit[near])
    assert_within(result[~near], exact[~near], 2 * u * exact[~near].abs() + 5 * tail[near].min())


@pytest.mark.parametrize("algorithm", NAMED)
def test_bias_is_one_more_rounding(device, algorithm):
    x, weight = torch.randn(9, 2000, device=device), torch.randn(11, 2000, device=device)
    bias = torch.randn(11, device=device)
    alone = torch_tiled.linear(x, weight, algorithm=algorithm)
    assert torch.equal(alone, torch_tiled.matmul(x, weight.mT, algorithm=algorithm))
    assert torch.equal(torch_tiled.linear(x, weight, bias, algorithm=algorithm), alone + bias)


def test_epilogue_needs_no_launch(device):
    if device != "cuda":
        pytest.skip("launches are counted on CUDA")
    x, weight = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    bias = torch.randn(64, device=device)

    def kernels(*operands, **options):
        torch_tiled.linear(*operands, **options)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            torch_tiled.linear(*operands, **options)
            torch.cuda.synchronize()
        return [e.name for e in profile.events() if e.device_type.name == "CUDA"]

    alone = kernels(x, weight)
    assert alone and all("tiled" in name for name in alone)
    assert kernels(x, weight, bias, activation="gelu") == alone
