"""A row of attention has the same bits whatever is computed beside it."""

import pytest
import torch
from helpers.attention import draw, ours, to
from helpers.memory import no_more_memory
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from torch.nn.attention.bias import causal_lower_right

SHAPES = pytest.mark.parametrize(
    "keys, columns", [(5, 8), (64, 64), (150, 64), (200, 128), (140, 200)]
)
CAUSAL = pytest.mark.parametrize("is_causal", [False, True])


@SHAPES
@CAUSAL
def test_batch_and_heads(device, keys, columns, is_causal):
    q, k, v = to(device, *draw(3, 4, 2, keys, keys, columns))
    together = ours(q, k, v, is_causal=is_causal, enable_gqa=True)
    for b in range(3):
        for h in range(4):
            one = [x[b : b + 1, i : i + 1] for x, i in ((q, h), (k, h // 2), (v, h // 2))]
            assert torch.equal(ours(*one, is_causal=is_causal)[0, 0], together[b, h])


@SHAPES
def test_other_queries(device, keys, columns):
    q, k, v = to(device, *draw(1, 2, 2, 70, keys, columns))
    mask = torch.rand(70, keys, device=device) > 0.2
    together = ours(q, k, v, mask)
    order = torch.randperm(70, device=device)
    assert torch.equal(ours(q[:, :, order], k, v, mask[order]), together[:, :, order])
    for i in (0, 33, 69):
        assert torch.equal(ours(q[:, :, [i]], k, v, mask[[i]]), together[:, :, [i]])


@SHAPES
@pytest.mark.parametrize("padding", [1, 63, 64, 130])
def test_padding_on_the_right(device, keys, columns, padding):
    q, k, v = to(device, *draw(1, 2, 2, 9, keys, columns))
    expected = ours(q, k, v)
    k, v = (
        torch.cat([x, torch.randn_like(x[:, :, :1]).expand(1, 2, padding, -1)], 2) for x in (k, v)
    )
    seen = torch.arange(keys + padding, device=device) < keys
    assert torch.equal(ours(q, k, v, seen), expected)
    bias = torch.zeros(seen.shape, device=device).masked_fill(~seen, -torch.inf)
    assert torch.equal(ours(q, k, v, bias), expected)


@SHAPES
def test_prefill_and_decode(device, keys, columns):
    """One query at a time, with the keys so far, has the bits of all of them at once."""
    q, k, v = to(device, *draw(2, 4, 2, keys, keys, columns))
    together = ours(q, k, v, is_causal=True, enable_gqa=True)
    for i in {0, 1, 3, keys // 2, keys - 2, keys - 1}:
        seen = slice(0, i + 1)
        one = ours(q[:, :, [i]], k[:, :, seen], v[:, :, seen], enable_gqa=True)
        assert torch.equal(one, together[:, :, [i]])


@SHAPES
def test_the_end_of_a_prompt(device, keys, columns):
    """The last queries alone, by the lower right causal mask."""
    q, k, v = to(device, *draw(1, 2, 2, keys, keys, columns))
    together = ours(q, k, v, is_causal=True)
    last = min(keys, 40)
    bias = causal_lower_right(last, keys)
    assert torch.equal(ours(q[:, :, -last:], k, v, bias), together[:, :, -last:])


@pytest.mark.parametrize("columns", [24, 64, 128, 192])
@pytest.mark.parametrize("mask", [None, "keys", "heads", "NaN"])
def test_few_queries_of_many_keys(device, columns, mask):
    """On a GPU blocks share the keys of up to 64 queries."""
    q, k, v = to(device, *draw(1, 6, 2, 70, 1500, columns))
    if mask == "NaN":
        v[:, :, 700, 3] = torch.nan
    rows = {None: None, "NaN": None, "keys": (1500,), "heads": (6, 1, 1500)}[mask]
    mask = None if rows is None else torch.rand(rows, device=device) > 0.2
    together = ours(q, k, v, mask, enable_gqa=True)
    for few in (1, 9, 64):
        found = ours(q[:, :, :few], k, v, mask, enable_gqa=True)
        assert torch.equal(found.view(torch.int32), together[:, :, :few].view(torch.int32))
    lower_right = causal_lower_right(64, 1500)
    expected = ours(q[:, :, [-1]], k[:, :, :1450], v[:, :, :1450], enable_gqa=True)
    q[:, :, 13] = q[:, :, -1]
    found = ours(q[:, :, :64], k, v, lower_right, enable_gqa=True)[:, :, [13]]
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@needs_hopper
def test_few_queries_without_memory_for_the_sums_of_tiles():
    q, k, v = to("cuda", *draw(1, 6, 2, 1, 1500, 64))
    expected = ours(q, k, v, enable_gqa=True)
    room = torch.empty(8192, dtype=torch.uint8, device="cuda")  # for the result
    with no_more_memory():
        del room
        found = ours(q, k, v, enable_gqa=True)
    assert torch.equal(found, expected)


@CAUSAL
def test_threads(is_causal):
    q, k, v = draw(2, 3, 3, 130, 130, 64)
    expected = ours(q, k, v, is_causal=is_causal)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(ours(q, k, v, is_causal=is_causal), expected)
    finally:
        torch.set_num_threads(before)
