"""Attention of packed sequences."""

import functools
import itertools

import pytest
import torch
from helpers.attention import ours
from helpers.calls import Calls
from helpers.compiling import BACKENDS
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from torch.testing import assert_close

import torch_tiled

varlen = torch_tiled.nn.functional.scaled_dot_product_attention_varlen
ours_varlen = functools.partial(varlen, algorithm="fp16x3")
NAME = "torch_tiled.nn.functional.scaled_dot_product_attention_varlen"

# Offsets of queries and of keys.
LENGTHS = {
    "one": ([0, 7], [0, 7]),
    "equal": ([0, 4, 4, 9, 80], [0, 4, 4, 9, 80]),
    "other keys": ([0, 3, 9, 10], [0, 70, 74, 80]),
    "no keys": ([0, 3, 9], [0, 0, 5]),
    "gaps": ([2, 5, 9], [1, 4, 6]),
    "none": ([0], [0]),
}


def offsets(name, device, dtype=torch.int32):
    q, k = (torch.tensor(ends, device=device, dtype=dtype) for ends in LENGTHS[name])
    return (q, q) if name == "equal" else (q, k)


def longest(ends):
    return max((j - i for i, j in itertools.pairwise(ends)), default=0)


def draw(name, device, heads=4, kv_heads=2, more=0, **options):
    """q, k and v, with tokens of no sequence at the end, and the offsets and lengths."""
    q_ends, k_ends = LENGTHS[name]
    q = torch.randn(q_ends[-1] + more, heads, 16, device=device, **options)
    k = torch.randn(k_ends[-1] + more, kv_heads, 16, device=device, **options)
    v = torch.randn(k_ends[-1] + more, kv_heads, 24, device=device, **options)
    return (q, k, v), (*offsets(name, device), longest(q_ends), longest(k_ends))


def one_by_one(name, q, k, v, **options):
    """Each sequence alone, and zeros for tokens of none."""
    out = q.new_zeros(*q.shape[:2], v.shape[2])
    pairs = (itertools.pairwise(ends) for ends in LENGTHS[name])
    for (q0, q1), (k0, k1) in zip(*pairs, strict=True):
        one = (x.transpose(0, 1) for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        out[q0:q1] = ours(*one, enable_gqa=True, **options).transpose(0, 1)
    return out


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_bits_of_a_sequence_alone(name, is_causal, more, device):
    tensors, ends = draw(name, device, more=more)
    options = {"is_causal": is_causal, "scale": 0.3}
    expected = one_by_one(name, *tensors, **options)
    found = ours_varlen(*tensors, *ends, enable_gqa=True, **options)
    assert found.is_contiguous() and torch.equal(found, expected)
    q_ends, k_ends, *most = ends
    longer = q_ends.long(), k_ends.clone().long(), *(x + 5 for x in most)
    assert torch.equal(ours_varlen(*tensors, *longer, enable_gqa=True, **options), expected)
    if name not in ("none", "no keys"):
        assert_close(varlen(*tensors, *ends, enable_gqa=True, **options), expected)


def test_what_other_sequences_hold(device):
    """NaN and infinity stay in their sequence, and their gradients, too."""
    (q, k, v), ends = draw("equal", device)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected = ours_varlen(*leaves, *ends, enable_gqa=True)
    gradients = torch.autograd.grad(expected[4:9].sum(), leaves)
    for bad in (torch.nan, torch.inf):
        with_bad = [x.detach().clone() for x in leaves]
        for x in with_bad:
            x[:4] = x[9:] = bad
            x.requires_grad_()
        found = ours_varlen(*with_bad, *ends, enable_gqa=True)
        assert torch.equal(found[4:9], expected[4:9])
        for x, y in zip(torch.autograd.grad(found[4:9].sum(), with_bad), gradients, strict=True):
            assert torch.equal(x[4:9], y[4:9])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["equal", "other keys", "no keys", "gaps"])
def test_gradients(name, is_causal, device):
    tensors, ends = draw(name, device, requires_grad=True)
    options = {"is_causal": is_causal}
    found = ours_varlen(*tensors, *ends, enable_gqa=True, **options)
    expected = one_by_one(name, *tensors, **options)
    weights = torch.randn_like(found)
    gradients = (torch.autograd.grad((x * weights).sum(), tensors) for x in (found, expected))
    for x, y in zip(*gradients, strict=True):
        assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_pytorch_s(dtype, device):
    tensors, ends = draw("other keys", device, dtype=dtype)
    found = varlen(*tensors, *ends, enable_gqa=True)
    assert found.dtype == dtype
    expected = one_by_one("other keys", *(x.float() for x in tensors))
    assert_close(found.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend, device, fresh_compiler):
    tensors, ends = draw("equal", device)

    for function in (varlen, ours_varlen):

        def run(q, k, v, ends, function=function):
            return function(q, k, v, ends, ends, 71, 71, is_causal=True, enable_gqa=True)

        compiled = torch.compile(run, backend=backend, fullgraph=True, dynamic=True)
        assert_close(compiled(*tensors, ends[0]), run(*tensors, ends[0]))


# Offsets that are wrong for 9 queries.
WRONG = {
    "descending": [0, 7, 4, 9],
    "past the end": [0, 4, 9, 12],
    "far past": [0, 4, 2**31 - 1, 2**31 - 1],
    "negative": [-5, 4, 6, 9],
    "all": [9, -(2**31), 2**31 - 1, 0],
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_offsets_that_are_not_read(name, is_causal, device):
    """They stay inside of the tensors: each token's result is finite or a sum of its tokens."""
    q, k, v = torch.randn(3, 9, 2, 16, device=device)
    ends = torch.tensor(WRONG[name], device=device, dtype=torch.int32)
    for q_ends, k_ends in ((ends, ends), (ends, ends.clone())):
        with Calls() if device == "cpu" else torch.no_grad():  # values are not read in a mode
            found = ours_varlen(q, k, v, q_ends, k_ends, 5, 5, is_causal=is_causal)
        assert found.shape == q.shape and found.isfinite().all()


@needs_hopper
def test_a_cuda_graph_takes_other_sequences():
    (q, k, v), (ends, _, most, _) = draw("equal", "cuda")
    run = functools.partial(ours_varlen, is_causal=True, enable_gqa=True)
    run(q, k, v, ends, ends, most, most)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(q, k, v, ends, ends, most, most)
    ends.copy_(torch.tensor([0, 30, 31, 60, 80]))
    graph.replay()
    assert torch.equal(found, run(q, k, v, ends, ends, most, most))


def call(q=(9, 2, 16), k=(9, 2, 16), v=(9, 2, 16), ends=None, k_ends=None, max_q=5, max_k=5):
    q, k, v = (x if x is None else torch.randn(x) for x in (q, k, v))
    ends = torch.tensor([0, 4, 9]) if ends is None else ends
    return varlen(q, k, v, ends, ends if k_ends is None else k_ends, max_q, max_k)


ERRORS = {
    "query is of type NoneType; pass a tensor": {"q": None},
    "cu_seqlens_q is of type list; pass a tensor": {"ends": [0, 4]},
    "query is (9, 16); it must be (tokens, heads, columns)": {"q": (9, 16)},
    "key is (9, 2, 16) and value is (8, 2, 16); they must have the same": {"v": (8, 2, 16)},
    "cu_seqlens_q is (3,) and cu_seqlens_k is (2,); both must be (sequences + 1,)": {
        "k_ends": torch.tensor([0, 9])
    },
    "cu_seqlens_q is torch.float32; pass torch.int32 or torch.int64": {"ends": torch.ones(3)},
    "cu_seqlens_q is (0,); it must be (sequences + 1,)": {"ends": torch.ones(0).long()},
    "cu_seqlens_q is on meta, and its tokens are on cpu": {
        "ends": torch.ones(3, dtype=torch.int32, device="meta")
    },
    "max_q is 2.5; pass an integer of 0 or more": {"max_q": 2.5},
    "max_k is -1; pass an integer of 0 or more": {"max_k": -1},
    "cu_seqlens_q[0] is -1; it must be 0 or more": {"ends": torch.tensor([-1, 4, 9])},
    "cu_seqlens_q[2] is 3, after 4; it must not descend": {"ends": torch.tensor([0, 4, 3])},
    "cu_seqlens_q[-1] is 10, and there are 9 tokens": {
        "ends": torch.tensor([0, 5, 10]),
    },
    "cu_seqlens_k: sequence 1 has 5 tokens, and max_k is 4; pass": {"max_k": 4},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(RuntimeError) as caught:
        call(**ERRORS[message])
    assert str(caught.value).startswith(f"{NAME}: {message}")
