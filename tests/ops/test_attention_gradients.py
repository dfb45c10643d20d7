"""Gradients of attention by their kernels: errors, rows alone, memory. Their bits are elsewhere."""

import pytest
import torch
from helpers.attention import draw, exact, operator, ours, to
from helpers.attention_bounds import gradient_bounds
from helpers.calls import Calls
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import relative_error

from torch_tiled._op.namespace import operators

SIZES = [  # batch, heads, heads of k and v, queries, keys, columns, columns of v
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 128, 128, 64, 64),
    (140, 1, 1, 64, 64, 64, 64),
    (2, 6, 2, 65, 127, 17, 64),
    (2, 4, 1, 50, 64, 128, 80),
    (1, 2, 1, 200, 333, 64, 64),
    (1, 4, 2, 257, 300, 128, 128),
    (1, 2, 2, 130, 65, 80, 48),
    (3, 2, 1, 129, 129, 33, 100),
]
MASKS = {
    "none": lambda s, t: {},
    "causal": lambda s, t: {"is_causal": True},
    "bool": lambda s, t: {"attn_mask": torch.rand(s, t) > 0.4},
    "float": lambda s, t: {"attn_mask": torch.randn(1, 1, s, t)},
    "bias of keys": lambda s, t: {"attn_mask": torch.randn(t)},
    "keys": lambda s, t: {"attn_mask": torch.arange(t).lt(t // 2 + 1)[None]},
}


def inputs_of(q, k, v, mask):
    """q, k, v and, if it has a gradient, the mask, which require gradients."""
    has_gradient = mask is not None and mask.dtype.is_floating_point
    return [x.detach().requires_grad_() for x in (q, k, v, *([mask] if has_gradient else []))]


def gradients(grad, q, k, v, attn_mask=None, **options):
    inputs = inputs_of(q, k, v, attn_mask)
    given = inputs if len(inputs) == 4 else (*inputs, attn_mask)
    with Calls() as seen:
        found = torch.autograd.grad(ours(*given, enable_gqa=True, **options), inputs, grad)
    assert "tiled::_attention_backward" in seen.names()
    return found


def exact_gradients(grad, q, k, v, attn_mask=None, is_causal=False):
    """In float64, and the bounds of the library's."""
    inputs = [x.double() for x in inputs_of(q, k, v, attn_mask)]
    given = inputs if len(inputs) == 4 else (*inputs, attn_mask)
    offset = 0 if is_causal else None
    out, weights = exact(*given, offset)
    bounds = gradient_bounds(grad, q, k, v, attn_mask, offset, weights=weights.detach())
    return torch.autograd.grad(out, inputs, grad.double()), bounds


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_errors(device, sizes, mask):
    q, k, v = to(device, *draw(*sizes))
    options = MASKS[mask](q.shape[2], k.shape[2])
    options = {name: x.to(device) if torch.is_tensor(x) else x for name, x in options.items()}
    grad = torch.randn(*q.shape[:3], v.shape[3], device=device)
    found = gradients(grad, q, k, v, **options)
    again = gradients(grad, q, k, v, **options)
    expected, bounds = exact_gradients(grad, q, k, v, **options)
    for x, same, y, bound in zip(found, again, expected, bounds, strict=True):
        assert torch.equal(x, same)
        assert ((x - y).abs() <= bound).all()


@needs_hopper
def test_many_columns_have_a_composite_on_a_gpu():
    q, k, v = draw(1, 4, 2, 70, 150, 136, 200, device="cuda")
    grad = torch.randn(1, 4, 70, 200, device="cuda")
    inputs = inputs_of(q, k, v, None)
    with Calls() as seen:
        found = torch.autograd.grad(ours(*inputs, enable_gqa=True), inputs, grad)
    assert "tiled::_attention_backward" not in seen.names()
    for x, y in zip(found, exact_gradients(grad, q, k, v)[0], strict=True):
        assert relative_error(x, y) < 2e-6


def test_rows_alone(device):
    q, k, v = to(device, *draw(2, 2, 2, 300, 500, 64))
    grad = torch.randn_like(q)
    dq, dk, dv = gradients(grad, q, k, v)
    for i in (0, 5, 63, 64, 299):
        row = slice(i, i + 1)
        assert torch.equal(gradients(grad[:, :, row], q[:, :, row], k, v)[0], dq[:, :, row])
    alone = gradients(grad[1:], q[1:], k[1:], v[1:])
    for x, y in zip((dq, dk, dv), alone, strict=True):
        assert torch.equal(x[1:], y)


def test_padding_on_the_right(device):
    q, k, v = to(device, *draw(2, 2, 2, 300, 500, 64))
    grad = torch.randn_like(q)
    wide_k, wide_v = (torch.cat([x, 1e3 * torch.randn_like(x[:, :, :77])], 2) for x in (k, v))
    mask = torch.arange(577, device=device)[None] < 500
    padded = gradients(grad, q, wide_k, wide_v, attn_mask=mask)
    for x, y in zip(padded, gradients(grad, q, k, v), strict=True):
        assert torch.equal(x[:, :, : y.shape[2]], y)
        assert not x[:, :, y.shape[2] :].any()


@needs_hopper
@pytest.mark.parametrize("sizes", [(64, 64, 64), (100, 128, 48), (60, 33, 128)], ids=str)
@pytest.mark.parametrize("batch, heads", [(2, 1), (140, 1), (2, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_short_sequences_have_the_bits_of_long_ones(sizes, batch, heads, causal):
    queries, keys, columns = sizes
    q, k, v = draw(batch, heads, 1, queries, keys, columns, device="cuda")
    grad = torch.randn_like(q)
    options = {"is_causal": True} if causal else {}
    found = gradients(grad, q, k, v, **options)
    long_q, long_grad = (torch.nn.functional.pad(x, (0, 0, 0, 150)) for x in (q, grad))
    long = gradients(long_grad, long_q, k, v, **options)
    for x, y in zip(found, (long[0][:, :, :queries], *long[1:]), strict=True):
        assert torch.equal(x, y)
    one = operators._attention_backward.default  # a gradient alone
    causal_offset = 0 if causal else None
    out = operator(q, k, v, None, causal_offset, columns**-0.5)
    for i, y in enumerate(found):
        wanted = [i == j for j in range(4)]
        alone = one(grad, q, k, v, None, *out, causal_offset, columns**-0.5, *wanted)
        assert [x.numel() > 0 for x in alone] == wanted
        assert torch.equal(alone[i], y)


def test_strides_and_queries_that_see_nothing(device):
    q, k, v = to(device, *draw(2, 4, 2, 70, 90, 48))
    mask = torch.rand(2, 4, 70, 1, device=device) > 0.3
    grad = torch.randn(1, 1, 1, 48, device=device).expand(2, 4, 70, 48)
    expected = gradients(grad.contiguous(), q, k, v, attn_mask=mask)
    strided = q.mT.contiguous().mT, k.transpose(1, 2).contiguous().transpose(1, 2), v
    for x, y in zip(gradients(grad, *strided, attn_mask=mask), expected, strict=True):
        assert torch.equal(x, y)
    assert not expected[0].masked_fill(mask, 0).any()


@needs_hopper
def test_memory_is_linear_in_the_keys():
    q, k, v = (x.requires_grad_() for x in draw(1, 8, 8, 4096, 4096, 64, device="cuda"))
    y = ours(q, k, v)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y.backward(torch.ones_like(y))
    assert torch.cuda.max_memory_allocated() - before < 16 * q.nbytes  # weights are 64 times q


def test_gradients_that_are_differentiated_are_a_composite(device):
    q, k, v = (x.requires_grad_() for x in to(device, *draw(1, 2, 2, 9, 11, 8)))
    with Calls() as seen:
        torch.autograd.grad(ours(q, k, v).sin().sum(), q, create_graph=True)
    assert "tiled::_attention_backward" not in seen.names()


def test_without_data_and_bad_calls():
    q, k, v = draw(2, 4, 2, 5, 7, 8, 6)
    out, total, exponent = operator(q, k, v, None, None, 1.0)
    arguments = q, k, v, None, out, total, exponent, None, 1.0
    on_meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in (out, *arguments)]
    found = operators._attention_backward.default(*on_meta, True, False, True, True)
    assert [x.shape for x in found] == [q.shape, (0,), v.shape, (2, 4, 5, 7)]
    short = *arguments[:5], total[:, :, 1:], exponent
    with pytest.raises(RuntimeError, match=r"sum is \(2, 4, 4\) of torch.float32; it must be"):
        operators._attention_backward.default(out, *short, None, 1.0, True, True, True, False)
    with pytest.raises(RuntimeError, match="needs_scores is True; pass False unless attn_mask is"):
        operators._attention_backward.default(out, *arguments, True, True, True, True)
