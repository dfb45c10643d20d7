"""Attention of bfloat16 and float16: its bits, rows, errors, calls and gradients."""

import functools

import pytest
import torch
import torch.nn.functional as F
from helpers import attention_mma_specification as specification
from helpers.attention import (
    INF,
    MASKS,
    NAN,
    assert_bits,
    draw,
    exact,
    mask_of_many_values,
    operator,
    replace_elements,
    to,
)
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import assert_same
from helpers.thinning import pairwise
from torch.nn.attention.bias import causal_lower_right

import torch_tiled

auto = torch_tiled.nn.functional.scaled_dot_product_attention
ours = functools.partial(auto, algorithm="mma", enable_gqa=True)
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


check = functools.partial(assert_bits, specification)


@pairwise
@dtypes
@pytest.mark.parametrize("columns", [1, 16, 17, 64, 80, 128, 129, 256])
@pytest.mark.parametrize("value_columns", [1, 64, 72, 128, 200])
@pytest.mark.parametrize("keys", [1, 63, 65, 256, 300])
@pytest.mark.parametrize("queries", [1, 5, 40])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_sizes(device, poisoned, dtype, columns, value_columns, keys, queries, mask, kv_heads):
    tensors = draw(2, 2, kv_heads, queries, keys, columns, value_columns, dtype=dtype)
    check(device, *tensors, *MASKS[mask](queries, keys))


def scaled(q=1.0, k=1.0, v=1.0):
    """Normal operands times these numbers."""
    return lambda dtype: [
        (x * by).to(dtype) for x, by in zip(draw(1, 1, 1, 9, 300, 16), (q, k, v), strict=True)
    ]


def with_elements(**elements):
    """Normal operands with some elements replaced: q={(row, column): value}."""

    def make(dtype):
        return replace_elements(draw(1, 1, 1, 9, 300, 16, dtype=dtype), "qkv", elements)

    return make


VALUES = {
    "large logits": scaled(q=100, k=100),
    "logits beyond the limit": scaled(q=1e4, k=1e4),
    "large values": scaled(v=1e4),
    "small values": scaled(v=1e-6),
    "small queries": scaled(q=1e-7),
    "queries of zeros": scaled(q=0),
    "values of zeros": scaled(v=0),
    "NaN and Inf": with_elements(q={(2, 3): NAN, (3, 4): INF}, v={(70, 3): NAN, (1, 5): -INF}),
    "a key of Inf": with_elements(k={(80, 0): INF}),
}
VALUES_OF_BFLOAT16 = {
    "logits that overflow": scaled(q=1e20, k=1e20),
    "the largest values": scaled(v=1e34),
    "subnormal": scaled(q=1e-40, k=1e38, v=1e-39),
}


@dtypes
@pytest.mark.parametrize("values", VALUES | VALUES_OF_BFLOAT16)
@pytest.mark.parametrize("scale", [None, 1.0, -0.3, 0.0, 1e-20, 1e20])
def test_values(device, dtype, values, scale):
    if values in VALUES_OF_BFLOAT16 and dtype == torch.float16:
        values = "large logits"
    check(device, *(VALUES | VALUES_OF_BFLOAT16)[values](dtype), scale=scale)


@dtypes
def test_values_of_masks(device, dtype):
    mask = mask_of_many_values(300)
    check(device, *draw(1, 1, 1, 9, 300, 16, dtype=dtype), mask)


@dtypes
@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 1, 0, 2), (1, 0, 3, 2)])
@pytest.mark.parametrize("columns", [8, 12, 64])
def test_strides(device, dtype, order, columns):
    """Any strides have the bits of contiguous tensors, and the result has q's order."""
    tensors = draw(2, 4, 2, 70, 130, columns, dtype=dtype)
    back = [order.index(d) for d in range(4)]
    strided = [x.permute(order).contiguous().permute(back) for x in tensors]
    offset = [torch.cat([x, x], -1)[..., 1 : columns + 1] for x in tensors]
    for given in (strided, offset):
        contiguous = [x.contiguous() for x in given]
        expected = operator(*to(device, *contiguous), None, 0, 0.3)
        given = [x.to(device) for x in given]
        for found, wanted in zip(operator(*given, None, 0, 0.3), expected, strict=True):
            assert_same(found, wanted)


# --- rows ----------------------------------------------------------------------------------------

SHAPES = pytest.mark.parametrize("keys, columns", [(5, 8), (150, 64), (520, 128), (300, 200)])


@dtypes
@SHAPES
def test_batch_and_heads(device, dtype, keys, columns):
    q, k, v = to(device, *draw(3, 4, 2, keys, keys, columns, dtype=dtype))
    together = ours(q, k, v, is_causal=True)
    for b in range(3):
        for h in range(4):
            one = [x[b : b + 1, i : i + 1] for x, i in ((q, h), (k, h // 2), (v, h // 2))]
            assert torch.equal(ours(*one, is_causal=True)[0, 0], together[b, h])


@dtypes
@SHAPES
@pytest.mark.parametrize("padding", [1, 64, 300])
def test_padding_on_the_right(device, dtype, keys, columns, padding):
    q, k, v = to(device, *draw(1, 2, 2, 9, keys, columns, dtype=dtype))
    expected = ours(q, k, v)
    k, v = (F.pad(x, (0, 0, 0, padding), value=3.0) for x in (k, v))
    seen = torch.arange(keys + padding, device=device) < keys
    assert torch.equal(ours(q, k, v, seen), expected)
    bias = torch.zeros(seen.shape, device=device, dtype=dtype).masked_fill(~seen, -INF)
    assert torch.equal(ours(q, k, v, bias), expected)


@dtypes
@SHAPES
def test_prefill_and_decode(device, dtype, keys, columns):
    """One query at a time, with the keys so far, has the bits of all of them at once."""
    q, k, v = to(device, *draw(2, 4, 2, keys, keys, columns, dtype=dtype))
    together = ours(q, k, v, is_causal=True)
    for i in {0, 1, keys // 2, keys - 1}:
        seen = slice(0, i + 1)
        one = ours(q[:, :, [i]], k[:, :, seen], v[:, :, seen])
        assert torch.equal(one, together[:, :, [i]])
    last = min(keys, 40)
    found = ours(q[:, :, -last:], k, v, causal_lower_right(last, keys))
    assert torch.equal(found, together[:, :, -last:])


# --- errors, calls and gradients -----------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("keys", [1, 64, 1000])
def test_errors(device, dtype, mask, keys):
    """Weights are rounded once, and so is the result."""
    q, k, v = draw(2, 2, 1, 12, keys, 64, dtype=dtype)
    mask, offset = MASKS[mask](12, keys)
    expected, weights = exact(q, k, v, mask, offset)
    found = operator(*to(device, q, k, v, mask), offset, 0.125)[0].cpu()
    unit = torch.finfo(dtype).eps / 2
    sizes = weights @ v.double().abs().repeat_interleave(2, 1)
    assert ((found - expected).abs() <= unit * expected.abs() + 2.5 * unit * sizes).all()


@dtypes
def test_equal_values_are_kept(device, dtype):
    """Weights add up to 1: what is rounded is summed."""
    q, k, _ = to(device, *draw(1, 2, 2, 70, 200, 64, dtype=dtype))
    v = torch.randn(1, 2, 1, 64, device=device).to(dtype).expand(1, 2, 200, 64)
    assert torch.equal(ours(q, k, v, is_causal=True), v[:, :, :1].expand(1, 2, 70, 64))


def test_algorithms(device):
    q, k, v = to(device, *draw(1, 2, 2, 9, 11, 8))
    with pytest.raises(RuntimeError, match="query is torch.float32, and algorithm mma takes torch"):
        ours(q, k, v)
    half = [x.half() for x in (q, k, v)]
    with pytest.raises(RuntimeError, match="query is torch.float16, and algorithm fp16x3 takes"):
        auto(*half, algorithm="fp16x3")
    theirs = F.scaled_dot_product_attention(*half)
    assert torch.equal(auto(*half), theirs if device == "cpu" else ours(*half))
    with torch_tiled.override():  # PyTorch's flash attention stays
        assert torch.equal(F.scaled_dot_product_attention(*half), theirs)


@dtypes
@pytest.mark.parametrize("columns", [64, 160])
def test_gradients(device, dtype, columns):
    """Those of float32, rounded."""
    tensors = to(device, *draw(2, 4, 2, 70, 90, columns, dtype=dtype))
    leaves = [x.requires_grad_() for x in tensors]
    bias = torch.randn(70, 90, device=device).to(dtype).requires_grad_()
    for inputs in (leaves, [*leaves, bias]):
        out = ours(*inputs)
        grad = torch.randn(out.shape, device=device).to(dtype)
        found = torch.autograd.grad(out, inputs, grad)
        wide = [x.detach().double().requires_grad_() for x in inputs]
        expected = torch.autograd.grad(exact(*wide)[0], wide, grad.double())
        for x, y, given in zip(found, expected, inputs, strict=True):
            assert x.dtype == given.dtype
            assert (x - y).norm() < 4 * torch.finfo(dtype).eps * y.norm()


@needs_hopper
@dtypes
@pytest.mark.parametrize("queries, keys", [(1, 5000), (40, 3000), (300, 300), (1000, 1000)])
@pytest.mark.parametrize("causal_offset", [None, 0, 40])
@pytest.mark.parametrize("columns", [64, 128, 160, 256])
def test_large_on_a_gpu(dtype, queries, keys, causal_offset, columns):
    tensors = draw(1, 4, 2, queries, keys, columns, dtype=dtype)
    check("cuda", *tensors, None, causal_offset)
    if queries > 1:  # a tile that hides, and many heads: the kernel of many queries
        tensors = draw(6, 8, 2, queries, 300, columns, dtype=dtype)
        check("cuda", *tensors, torch.rand(queries, 300) > 0.4, causal_offset)
