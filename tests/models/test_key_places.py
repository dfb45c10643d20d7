"""Attention of batches that are padded on the left or packed: the keys' places are a sample's."""

import pytest
import torch
from helpers.needs import cpu_and_hopper, needs_cuda  # noqa: F401

from torch_tiled._key_places import from_first_key, in_sequences
from torch_tiled.nn.functional import scaled_dot_product_attention

PADDED = 9


def operands(dtype, device, keys=70):
    """q, k and v of a sample, with two heads of k and v for four of q."""
    q = torch.randn(1, 4, keys, 8, dtype=dtype, device=device)
    return q, *torch.randn(2, 1, 2, keys, 8, dtype=dtype, device=device)


def attention(q, k, v, mask=None, is_causal=False):
    algorithm = "fp16x3" if q.dtype == torch.float32 else "mma"
    options = {"enable_gqa": True, "algorithm": algorithm}
    return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, **options)


def pad_left(x, count, fill=2.0):
    return torch.cat((x.new_full((1, x.shape[1], count, x.shape[3]), fill), x), dim=2)


def causal(first, keys, device):
    """The mask of a sample with its first key at this place, (1, 1, keys, keys)."""
    mask = torch.ones(keys, keys, dtype=torch.bool, device=device).tril()
    mask[:, :first] = False
    return mask[None, None]


@pytest.mark.parametrize("form", [torch.bool, "least", "-inf"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sample_that_is_padded_on_the_left_has_its_bits(dtype, form, device):
    samples = operands(dtype, device), operands(dtype, device, 70 - PADDED)
    q, k, v = (torch.cat((x, pad_left(y, PADDED))) for x, y in zip(*samples, strict=True))
    mask = torch.cat((causal(0, 70, device), causal(PADDED, 70, device)))
    if form != torch.bool:
        least = -torch.inf if form == "-inf" else torch.finfo(dtype).min
        mask = q.new_zeros(mask.shape).masked_fill(~mask, least)
    together = attention(q, *from_first_key(k, v, mask))
    for i, (sample, first) in enumerate(zip(samples, (0, PADDED), strict=True)):
        assert torch.equal(together[i : i + 1, :, first:], attention(*sample, is_causal=True))
    last = attention(q[:, :, -1:], *from_first_key(k, v, mask[:, :, -1:]))
    assert torch.equal(last, together[:, :, -1:])


def test_tensors_are_returned_themselves_if_no_key_moves(device):
    _, k, v = operands(torch.float32, device)
    whole = torch.ones(1, 1, 5, 70, dtype=torch.bool, device=device)
    left = whole.clone()
    left[..., :2] = False
    right = whole.clone()
    right[..., 60:] = False
    for mask in (None, whole, right, left[0, 0], left[..., :1], whole & False):
        assert all(x is y for x, y in zip(from_first_key(k, v, mask), (k, v, mask), strict=True))


def test_a_mask_that_is_written_to_is_read_again(device):
    _, k, v = operands(torch.float32, device)
    mask = torch.ones(1, 1, 5, 70, dtype=torch.bool, device=device)
    assert from_first_key(k, v, mask)[0] is k
    mask[..., :3] = False
    for _ in range(2):
        assert torch.equal(from_first_key(k, v, mask)[0], k.roll(-3, dims=2))
    with torch.inference_mode():
        uncounted = mask.clone()
        for first in (5, 7):
            uncounted[..., :first] = False
            assert torch.equal(from_first_key(k, v, uncounted)[1], v.roll(-first, dims=2))


def test_a_traced_mask_is_not_read(device):
    _, k, v = operands(torch.float32, device)
    masks = torch.ones(3, 1, 1, 5, 70, dtype=torch.bool, device=device)
    masks[1, ..., :3] = False
    expected = torch.stack([from_first_key(k, v, mask)[0] for mask in masks])
    compiled = torch.compile(from_first_key, backend="eager", fullgraph=True)
    assert torch.equal(compiled(k, v, masks[1])[0], expected[1])
    mapped = torch.vmap(from_first_key, in_dims=(None, None, 0))(k, v, masks)
    assert torch.equal(mapped[0], expected)
    on_meta = from_first_key(*(x.to("meta") for x in (k, v, masks[1])))
    assert on_meta[0].is_meta and on_meta[0].shape == k.shape


def test_gradients_return_to_their_keys(device):
    k = torch.randn(1, 1, 6, 2, dtype=torch.float64, device=device, requires_grad=True)
    mask = torch.tensor([False, False, True, True, True, True], device=device).expand(1, 1, 1, 6)
    rotated, _, seen = from_first_key(k, k, mask)
    assert seen.flatten().tolist() == [True] * 4 + [False] * 2
    (rotated * torch.arange(6, device=device)[:, None]).sum().backward()
    assert k.grad[0, 0, :, 0].tolist() == [4, 5, 0, 1, 2, 3]


@needs_cuda
def test_a_graph_takes_another_mask():
    device = "cuda"
    _, k, v = operands(torch.float32, device)
    mask = torch.ones(1, 1, 5, 70, dtype=torch.bool, device=device)
    from_first_key(k, v, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rotated, _, _ = from_first_key(k, v, mask)
    mask[..., :3] = False
    graph.replay()
    assert torch.equal(rotated, k.roll(-3, dims=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_sequences_have_the_bits_of_each(dtype, device):
    lengths, queries = (70, 5, 33), (70, 1, 4)  # a prompt, a token, and a part of a prompt
    samples = [operands(dtype, device, keys) for keys in lengths]
    q = torch.cat([x[:, :, -n:] for (x, _, _), n in zip(samples, queries, strict=True)], dim=2)
    k, v = (torch.cat([sample[i] for sample in samples], dim=2) for i in (1, 2))
    blocks = [causal(0, keys, device)[0, 0, -n:] for keys, n in zip(lengths, queries, strict=True)]
    mask = torch.block_diag(*(block.float() for block in blocks)).bool()[None, None]
    ends = [torch.tensor([0, *x], device=device).cumsum(0).int() for x in (queries, lengths)]

    def attend(*given):
        return attention(*given).transpose(1, 2)

    packed = in_sequences(attend, q, k, v, mask, *ends, max(queries), max(lengths))
    parts = packed.transpose(1, 2).split(queries, dim=2)
    for part, sample in zip(parts, samples, strict=True):
        alone = attention(*sample, is_causal=True)
        assert torch.equal(part, alone[:, :, -part.shape[2] :])
