"""The error of attention against float64: a bound by its roundings, and PyTorch's beside it."""

import pytest
import torch
import torch.nn.functional as F
from helpers.attention import draw, exact, operator, to
from helpers.attention_bounds import attention_bound
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import assert_within
from helpers.thinning import pairwise

from benchmarks.studies.attention_errors import OPERANDS, operands

MASKS = {
    "none": lambda s, t: (None, None),
    "causal": lambda s, t: (None, t - s),
    "padding": lambda s, t: (torch.arange(t) < max(1, 3 * t // 4), None),
    "bias": lambda s, t: (5 * torch.randn(s, t), None),
}


@pairwise
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [3, 64, 300, 1000])
@pytest.mark.parametrize("columns", [8, 64, 128])
def test_bound(device, name, mask, keys, columns):
    q, k, v = operands(name, 12, keys, columns)
    mask, offset = MASKS[mask](12, keys)
    expected, weights = exact(q, k, v, mask, offset)
    limit = attention_bound(q, k, v, mask, offset, weights=weights)
    out = operator(*to(device, q, k, v, mask), offset, columns**-0.5)[0].cpu()
    assert_within(out, expected, limit)


@pytest.mark.parametrize("sizes", [(1.0, 6e37), (1e30, 1e-15), (1e-30, 1.0), (1e15, 1e15)])
def test_bound_of_large_and_small_numbers(device, sizes):
    """Sizes of keys and of values; the queries make up for the keys'."""
    of_keys, of_values = sizes
    q, k, v = draw(1, 1, 1, 20, 100, 32)
    q, k, v = q / of_keys, k * of_keys, v * of_values
    expected, weights = exact(q, k, v)
    limit = attention_bound(q, k, v, weights=weights)
    assert_within(operator(*to(device, q, k, v), None, None, 32**-0.5)[0].cpu(), expected, limit)


@pytest.mark.parametrize("size", [1e10, 1e20, 1e38])
@pytest.mark.parametrize("of_others", [0, 1e-20, 1.0])
def test_a_large_value_in_another_tile(device, size, of_others):
    """Keys have equal weights, whatever the sizes of their values."""
    q, k, v = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 200, 8), torch.full((1, 1, 200, 4), size)
    v[:, :, 1:] = of_others
    expected = v.double().mean(2)
    for values in (v, v.flip(2)):
        found = operator(*to(device, q, k, values), None, None, 1.0)[0]
        assert_within(found[:, :, 0].cpu(), expected, 1e-6 * expected.abs())


@needs_hopper
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("keys, columns", [(256, 64), (1024, 128)])
def test_at_most_twice_pytorch_s_error(name, keys, columns):
    """In the norm of all elements. benchmarks.studies.attention_errors prints both.

    On a CPU torch_tiled has the same bits, and PyTorch's error depends on the CPU.
    """
    device = "cuda"
    q, k, v = operands(name, 32, keys, columns)
    expected, _ = exact(q, k, v)
    ours = operator(*to(device, q, k, v), None, None, columns**-0.5)[0].cpu()
    theirs = F.scaled_dot_product_attention(*to(device, q, k, v)).cpu()
    errors = [(x - expected).norm() for x in (ours, theirs)]
    assert errors[0] <= 2 * errors[1] + 1e-7 * expected.norm()


@pytest.mark.parametrize("mask", MASKS)
def test_the_denominator_is_the_softmax_s(device, mask):
    q, k, v = operands("normal", 12, 200, 64)
    mask, offset = MASKS[mask](12, 200)
    _, total, exponent = operator(*to(device, q, k, v, mask), offset, 0.125)
    found = total.double().cpu().log() + exponent.cpu() * torch.tensor(2.0).double().log()
    scores = q.double() @ k.double().mT / 8
    if offset is not None:
        scores = scores.masked_fill(torch.ones(12, 200).triu(offset + 1) > 0, -torch.inf)
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask
    torch.testing.assert_close(found, scores.logsumexp(-1), rtol=0, atol=1e-5)
