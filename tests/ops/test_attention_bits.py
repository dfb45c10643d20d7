"""The bits of attention: those of the specification on a CPU, and of the CPU on a GPU."""

import functools

import pytest
import torch
from helpers import attention_specification as specification
from helpers.attention import (
    INF,
    MASKS,
    NAN,
    assert_bits,
    draw,
    mask_of_many_values,
    operator,
    ours,
    replace_elements,
    to,
)
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.thinning import pairwise

MOST_COLUMNS = 128  # on a GPU


check = functools.partial(assert_bits, specification)


@pairwise
@pytest.mark.parametrize("columns", [1, 16, 17, 64, 80, 128, 129, 256])
@pytest.mark.parametrize("value_columns", [1, 64, 72, 128, 200])
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("queries", [1, 5, 40])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_sizes(device, poisoned, columns, value_columns, keys, queries, mask, kv_heads):
    q, k, v = draw(2, 2, kv_heads, queries, keys, columns, value_columns)
    check(device, q, k, v, *MASKS[mask](queries, keys))


@pytest.mark.parametrize("columns, value_columns", [(300, 3), (33, 257)])
def test_many_columns_on_the_cpu(columns, value_columns):
    check("cpu", *draw(1, 2, 1, 3, 70, columns, value_columns))


def scaled(q=1.0, k=1.0, v=1.0):
    """Normal operands times these numbers."""
    return lambda: [x * by for x, by in zip(draw(1, 1, 1, 9, 100, 16), (q, k, v), strict=True)]


def with_elements(**elements):
    """Normal operands with some elements replaced: q={(row, column): value}."""

    def make():
        return replace_elements(draw(1, 1, 1, 9, 100, 16), "qkv", elements)

    return make


def with_rows(by):
    """Value rows of very different sizes."""

    def make():
        q, k, v = draw(1, 1, 1, 9, 100, 16)
        for row, factor in by.items():
            v[0, 0, row] *= factor
        return q * 30, k, v

    return make


VALUES = {
    "large logits": scaled(q=1e4, k=1e4),
    "logits without a fraction": scaled(q=1e15, k=1e15),
    "logits that overflow": scaled(q=1e25, k=1e25),
    "large values": scaled(v=1e30),
    "the largest values": scaled(v=6e37),
    "small values": scaled(v=1e-30),
    "large keys": scaled(k=1e30),
    "small queries": scaled(q=1e-30, v=1e30),
    "subnormal": scaled(q=1e-40, k=1e-40, v=1e-42),
    "queries of zeros": scaled(q=0),
    "values of zeros": scaled(v=0),
    "a tile of large values": with_rows({64: 6e37, 65: 1e20, 66: 0}),
    "values of many sizes": with_rows({5: 0, 7: 1e30, 9: 1e-35, 70: 1e-20}),
    "NaN and Inf": with_elements(q={(2, 3): NAN, (3, 4): INF}, v={(70, 3): NAN, (1, 5): -INF}),
    "a key of Inf": with_elements(k={(80, 0): INF}),
    "a large element": with_elements(q={(0, 0): 3e38}, k={(0, 1): 3e38}, v={(0, 2): -3e38}),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("scale", [None, 1.0, -0.3, 0.0, 1e-20, 1e20])
def test_values(device, values, scale):
    check(device, *VALUES[values](), scale=scale)


def test_values_of_masks(device):
    mask = mask_of_many_values(100)
    check(device, *draw(1, 1, 1, 9, 100, 16), mask)
    check(device, *scaled(q=1e6)(), mask)


def test_a_mask_of_zeros_changes_no_bit(device):
    tensors = to(device, *draw(1, 2, 1, 9, 100, 16), torch.zeros(9, 100))
    assert torch.equal(ours(*tensors, enable_gqa=True), ours(*tensors[:3], enable_gqa=True))


def test_keys_that_are_not_seen_may_be_anything(device):
    q, k, v = to(device, *draw(1, 1, 1, 9, 100, 16))
    mask = torch.rand(9, 100, device=device) > 0.5
    mask[:, [3, 80]] = False
    expected = ours(q, k, v, mask)
    k[:, :, 3], k[:, :, 80] = NAN, INF
    v[:, :, 3] = 1e30
    assert torch.equal(ours(q, k, v, mask), expected)
    bias = torch.zeros(9, 100, device=device).masked_fill(~mask, -INF)
    assert torch.equal(ours(q, k, v, bias), expected)


def in_order(order, *shape):
    """A tensor with these dimensions in memory, from the outermost on."""
    sizes = [shape[d] for d in order]
    return torch.randn(sizes).permute([order.index(d) for d in range(4)])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 1, 0, 2)])
def test_the_result_has_the_order_of_dimensions_of_q(device, order):
    q = in_order(order, 2, 3, 5, 8).to(device)
    _, k, v = to(device, *draw(2, 3, 3, 5, 7, 8, 6))
    out = operator(q, k, v, None, None, 1.0)[0]
    wanted = [d for d in order if d != 3] + [3]
    assert out.permute(wanted).is_contiguous()
    assert torch.equal(out, operator(q.contiguous(), k, v, None, None, 1.0)[0])
    fake = operator(*(x.to("meta") for x in (q, k, v)), None, None, 1.0)[0]
    assert fake.stride() == out.stride()


def test_the_result_of_an_expanded_query_is_contiguous(device):
    q = torch.randn(1, 3, 5, 8, device=device).expand(2, 3, 5, 8)
    _, k, v = to(device, *draw(2, 3, 3, 5, 7, 8, 6))
    assert operator(q, k, v, None, None, 1.0)[0].is_contiguous()


@needs_hopper
@pytest.mark.parametrize("queries, keys", [(1, 5000), (300, 300), (1000, 1000), (129, 4097)])
@pytest.mark.parametrize("causal_offset", [None, 0])
@pytest.mark.parametrize("columns", [64, 128, 160])
def test_large_on_a_gpu(queries, keys, causal_offset, columns):
    q, k, v = draw(1, 4, 2, queries, keys, columns)
    check("cuda", q, k, v, None, causal_offset)
