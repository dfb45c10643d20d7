"""Mixtures of experts of transformers by torch_tiled.grouped_mm."""

import contextlib
import inspect
import types

import pytest
import torch
from helpers.calls import Calls
from helpers.needs import needs_cuda
from torch.testing import assert_close

import torch_tiled

moe = pytest.importorskip("transformers.integrations.moe", reason="transformers 5 is not installed")

KINDS = {
    "gated": {},
    "one projection": {"has_gate": False},
    "transposed, with biases": {"is_transposed": True, "has_bias": True},
    "normed": {"has_post_expert_norm": True},
}
EXPERTS, HIDDEN, WIDE = 6, 16, 24


@pytest.fixture
def registered():
    before = dict(moe.ALL_EXPERTS_FUNCTIONS._global_mapping)
    torch_tiled.experts.register()
    yield "torch_tiled"
    moe.ALL_EXPERTS_FUNCTIONS._global_mapping.clear()
    moe.ALL_EXPERTS_FUNCTIONS._global_mapping.update(before)


def make(kind, implementation, device, dtype=torch.float32):
    """A module of experts as transformers makes them, with random weights."""
    options = KINDS[kind]
    if not options.keys() <= inspect.signature(moe.use_experts_implementation).parameters.keys():
        pytest.skip(f"this transformers has no experts with {', '.join(options)}")

    class Experts(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts, self.act_fn = EXPERTS, torch.nn.SiLU()
            self.post_expert_norm = torch.nn.RMSNorm(HIDDEN, eps=1e-6)
            is_gated = options.get("has_gate", True)
            first, wide = ("gate_up_proj", 2 * WIDE) if is_gated else ("up_proj", WIDE)
            for name, out, into in ((first, wide, HIDDEN), ("down_proj", HIDDEN, WIDE)):
                shape = (into, out) if options.get("is_transposed") else (out, into)
                setattr(self, name, torch.nn.Parameter(torch.randn(EXPERTS, *shape) / 4))
                setattr(self, f"{name}_bias", torch.nn.Parameter(torch.randn(EXPERTS, out)))

    config = types.SimpleNamespace(_experts_implementation=implementation)
    made = moe.use_experts_implementation(**options)(Experts)(config)
    return made.to(device, dtype)


def routed(tokens, top_k, device, dtype=torch.float32):
    hidden = torch.randn(tokens, HIDDEN, device=device, dtype=dtype, requires_grad=True)
    index = torch.stack([torch.randperm(EXPERTS - 1)[:top_k] for _ in range(tokens)]).to(device)
    weights = torch.rand(tokens, top_k, device=device, dtype=dtype, requires_grad=True)
    return hidden, index, weights


def results(experts, implementation, hidden, index, weights):
    """The output, and all gradients."""
    experts.config._experts_implementation = implementation
    y = experts(hidden, index, weights)
    tensors = [hidden, weights, *experts.parameters()]
    return y, *torch.autograd.grad(y.sin().sum(), tensors, allow_unused=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens, top_k", [(10, 2), (1, 3), (40, 1)])
def test_like_transformers(kind, tokens, top_k, device, registered):
    experts = make(kind, registered, device, torch.float64)
    arguments = routed(tokens, top_k, device, torch.float64)
    with Calls() as seen:
        found = results(experts, registered, *arguments)
    gradients = 3 if experts.has_bias else 2
    assert seen.names().count("tiled::grouped_mm") == 2 * (1 + gradients)
    expected = results(experts, "batched_mm", *arguments)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


def test_experts_elsewhere(device, registered):
    """With expert parallelism, ids from num_experts on are another process's."""
    experts = make("transposed, with biases", registered, device, torch.float64)
    experts._is_expert_parallel = True
    hidden, index, weights = routed(12, 2, device, torch.float64)
    index[::3, 1] = EXPERTS
    weights = weights.detach().masked_fill(index == EXPERTS, 0).requires_grad_()
    found = results(experts, registered, hidden, index, weights)
    here = index.clamp(max=EXPERTS - 1)  # by another expert, and weights of 0
    expected = list(results(experts, "batched_mm", hidden, here, weights))
    expected[2] = expected[2].masked_fill(index == EXPERTS, 0)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_layer_norm_in_float32_before_16_bit_weights(dtype, device, registered):
    experts = make("gated", registered, device, dtype)
    hidden, index, weights = routed(10, 2, device)
    y = experts(hidden, index, weights)
    assert y.dtype == torch.float32
    expected = experts.float()(hidden, index, weights)
    assert_close(y, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model(compiled, device, registered, fresh_compiler):
    """A random Mixtral: the same tokens' logits alone have the same bits as in a batch."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        max_position_embeddings=32,
    )
    model = transformers.MixtralForCausalLM(config).to(device).eval()
    ids = torch.randint(50, (3, 9), device=device)
    with torch.no_grad():
        model.set_experts_implementation("eager")
        expected = model(ids).logits
        model.set_experts_implementation(registered)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        context = contextlib.nullcontext() if compiled else Calls()
        with context as seen:
            found = run(ids).logits
        assert_close(found, expected)
        if not compiled:
            assert seen.names() == ["tiled::grouped_mm"] * 2 * 2


@needs_cuda
def test_captured(registered):
    """Other routes in the replay of a CUDA graph."""
    experts = make("gated", registered, "cuda")
    hidden, index, weights = (x.detach() for x in routed(20, 2, "cuda"))
    with torch.no_grad():
        experts(hidden, index, weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = experts(hidden, index, weights)
        for _ in range(3):
            index.copy_(routed(20, 2, "cuda")[1])
            graph.replay()
            assert torch.equal(y, experts(hidden, index, weights))


def test_bad_precision():
    with pytest.raises(RuntimeError, match="torch_tiled.experts.register: there is no precision"):
        torch_tiled.experts.register(precision="fp8")
