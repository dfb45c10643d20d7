"""Gradients of packed attention by the kernels of a Hopper GPU."""

import functools
import itertools

import pytest
import torch
from helpers.attention import ours
from helpers.calls import Calls
from helpers.needs import needs_hopper
from helpers.reference import relative_error

import torch_tiled
from torch_tiled._op.namespace import operators

varlen = functools.partial(
    torch_tiled.nn.functional.scaled_dot_product_attention_varlen, algorithm="fp16x3"
)
packed = operators.attention_packed.default
backward = operators._attention_packed_backward.default
LENGTHS = {  # of queries and of keys
    "one": ([300], [300]),
    "short": ([5, 64, 1, 33], [7, 64, 90, 1]),
    "empty": ([130, 0, 40, 7], [200, 20, 0, 129]),
    "many": ([17 * i % 150 for i in range(70)], [29 * i % 170 for i in range(70)]),
}


def offsets(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], device="cuda", dtype=torch.int32)


def draw(name, columns, of_v, more=0, heads=4, kv_heads=2):
    """A gradient, q, k and v, with NaN in rows of no sequence, and the offsets."""
    ends, key_ends = map(offsets, LENGTHS[name])
    queries, keys = int(ends[-1]), int(key_ends[-1])
    q = torch.randn(queries + more, heads, columns, device="cuda")
    grad = torch.randn(queries + more, heads, of_v, device="cuda")
    k = torch.randn(keys + more, kv_heads, columns, device="cuda")
    v = torch.randn(keys + more, kv_heads, of_v, device="cuda")
    for x, end in ((q, queries), (grad, queries), (k, keys), (v, keys)):
        x[end:] = torch.nan
    return (grad, q, k, v), (ends, key_ends, *map(max, LENGTHS[name]))


def gradients(grad, q, k, v, *ends, **options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with Calls() as seen:
        out = varlen(*leaves, *ends, enable_gqa=True, **options)
        found = torch.autograd.grad(out, leaves, grad)
    assert "tiled::_attention_packed_backward" in seen.names()
    return found


def one_by_one(grad, q, k, v, ends, key_ends, *_, **options):
    """The gradients of each sequence alone, and zeros for rows of none."""
    found = [torch.zeros_like(x) for x in (q, k, v)]
    pairs = (itertools.pairwise(x.tolist()) for x in (ends, key_ends))
    for (q0, q1), (k0, k1) in zip(*pairs, strict=True):
        rows = slice(q0, q1), slice(k0, k1), slice(k0, k1)
        leaves = [
            x[at].detach().transpose(0, 1).requires_grad_()
            for x, at in zip((q, k, v), rows, strict=True)
        ]
        if q0 == q1 or k0 == k1:
            continue
        out = ours(*leaves, enable_gqa=True, **options)
        alone = torch.autograd.grad(out, leaves, grad[q0:q1].transpose(0, 1))
        for to, at, x in zip(found, rows, alone, strict=True):
            to[at] = x.transpose(0, 1)
    return found


@needs_hopper
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("columns", [(64, 64), (17, 40), (128, 128), (80, 100)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_bits_of_a_sequence_alone(name, columns, is_causal):
    tensors, ends = draw(name, *columns, more=3)
    expected = one_by_one(*tensors, *ends, is_causal=is_causal)
    for found in (
        gradients(*tensors, *ends, is_causal=is_causal),
        gradients(*tensors, *ends[:2], ends[2] + 500, ends[3] + 500, is_causal=is_causal),
    ):
        for x, y in zip(found, expected, strict=True):
            assert torch.equal(x, y)


@needs_hopper
def test_a_gradient_alone():
    (grad, *tensors), ends = draw("many", 64, 48)
    states = packed(*tensors, *ends, True, 0.2)
    arguments = grad, *tensors, *ends[:2], *states, *ends[2:], True, 0.2
    expected = backward(*arguments, True, True, True)
    for i, y in enumerate(expected):
        wanted = [i == j for j in range(3)]
        alone = backward(*arguments, *wanted)
        assert [x.numel() > 0 for x in alone] == wanted
        assert torch.equal(alone[i], y)


@needs_hopper
@pytest.mark.parametrize("is_causal", [False, True])
def test_errors(is_causal):
    tensors, ends = draw("many", 64, 64)
    found = gradients(*tensors, *ends, is_causal=is_causal)
    exact = one_by_one_exact(*tensors, *ends[:2], is_causal)
    for x, y in zip(found, exact, strict=True):
        assert relative_error(x, y) < 2e-6


def one_by_one_exact(grad, q, k, v, ends, key_ends, is_causal):
    """In float64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    total = 0
    pairs = (itertools.pairwise(x.tolist()) for x in (ends, key_ends))
    for (q0, q1), (k0, k1) in zip(*pairs, strict=True):
        if q0 == q1 or k0 == k1:
            continue
        x, y, z = (
            t[at].transpose(0, 1)
            for t, at in zip(leaves, (slice(q0, q1), *[slice(k0, k1)] * 2), strict=True)
        )
        y, z = (t.repeat_interleave(x.shape[0] // t.shape[0], 0) for t in (y, z))
        out = torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=is_causal)
        total = total + (out * grad[q0:q1].transpose(0, 1).double()).sum()
    return torch.autograd.grad(total, leaves)


@needs_hopper
@pytest.mark.parametrize(
    "ends", [[0, 700, 400, 900], [900, -(2**31), 2**31 - 1, 0], [0, 5, 2000, 3000]]
)
def test_wrong_offsets_write_nothing_outside(ends):
    ends = torch.tensor(ends, device="cuda", dtype=torch.int32)
    tensors = torch.randn(4, 900, 2, 64, device="cuda").unbind()
    before = [x.clone() for x in tensors]
    around = [torch.full((900, 2, 64), 7.0, device="cuda") for _ in range(9)]
    del around[1::2]  # memory for the results
    for most in (5, 900):
        gradients(*tensors, ends, ends, most, most, is_causal=True)
        torch.cuda.synchronize()
    assert all(map(torch.equal, tensors, before))
    assert all((x == 7).all() for x in around)


@needs_hopper
def test_a_cuda_graph_takes_other_sequences():
    (grad, q, k, v), (ends, *_) = draw("many", 64, 64)
    rows, count = q.shape[0], len(ends)
    k, v = torch.randn(2, rows, 2, 64, device="cuda")

    def run():
        return gradients(grad, q, k, v, ends, ends, rows, rows, is_causal=True)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    ends.copy_(torch.linspace(0, rows, count))
    graph.replay()
    for x, y in zip(found, run(), strict=True):
        assert torch.equal(x, y)


def test_without_data_and_on_the_cpu():
    q, k, v = torch.randn(9, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 6)
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    states = packed(q, k, v, ends, ends, 5, 5, True, 1.0)
    tensors, options = (states[0], q, k, v, ends, ends, *states), (5, 5, True, 1.0)
    with pytest.raises(RuntimeError, match=r"query is on cpu; .* on a Hopper GPU alone"):
        backward(*tensors, *options, True, True, True)
    on_meta = [x.to("meta") for x in tensors]
    dq, dk, dv = backward(*on_meta, *options, True, False, True)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, (0,), v.shape)
    short = *tensors[:7], states[1][:, 1:], states[2]
    with pytest.raises(RuntimeError, match=r"sum is \(4, 8\) of torch.float32; it must be"):
        backward(*short, *options, True, True, True)
