"""Attention of transformers' models by torch_tiled.attention.register."""

import functools
import sys

import pytest
import torch
from helpers.calls import Calls
from helpers.needs import cpu_and_hopper  # noqa: F401
from torch.testing import assert_close

import torch_tiled
from torch_tiled import attention

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
modeling = pytest.importorskip("transformers.modeling_utils")
masking = pytest.importorskip("transformers.masking_utils")

close = functools.partial(assert_close, rtol=1e-4, atol=1e-4)
SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
MODELS = {
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 1, "sliding_window": 4},
    "Bert": {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
}
HEADS = {"Llama": "LlamaForCausalLM", "Mistral": "MistralForCausalLM", "Bert": "BertForMaskedLM"}


@pytest.fixture
def registered():
    tables = modeling.ALL_ATTENTION_FUNCTIONS, masking.ALL_MASK_ATTENTION_FUNCTIONS
    before = [dict(table._global_mapping) for table in tables]
    torch_tiled.attention.register()
    yield "torch_tiled"
    for table, mapping in zip(tables, before, strict=True):
        table._global_mapping.clear()
        table._global_mapping.update(mapping)


@pytest.fixture
def takes(device, monkeypatch):
    """A CPU has the kernel's attention, as a GPU has."""
    if device == "cpu":
        monkeypatch.setattr(attention, "runs_on_gpu", lambda *tensors: True)


def make(name, device):
    config = getattr(transformers, f"{name}Config")(**SMALL, **MODELS[name])
    return getattr(transformers, HEADS[name])(config).to(device).eval()


def draw(padding, device):
    """The ids and the mask of tokens of a batch of two."""
    ids, mask = torch.randint(1, 50, (2, 9), device=device), torch.ones(2, 9, device=device)
    if padding:
        mask[1, slice(0, 4) if padding == "left" else slice(5, 9)] = 0
    return {"input_ids": ids, "attention_mask": mask.long()}


def results(model, given):
    """The logits of tokens, and all gradients."""
    logits = model(**given).logits[given["attention_mask"].bool()]
    return logits, *torch.autograd.grad(
        logits.sin().sum(), list(model.parameters()), allow_unused=True
    )


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, padding, device, registered, takes):
    model, given = make(name, device), draw(padding, device)
    model.set_attn_implementation("eager")
    expected = results(model, given)
    model.set_attn_implementation(registered)
    with Calls() as seen:
        found = results(model, given)
    assert seen.names().count("tiled::attention") == 2
    close(found, expected)


def test_no_heads_are_copied(device, registered, takes):
    model, given = make("Llama", device), draw("left", device)
    model.set_attn_implementation(registered)
    with Calls() as seen, torch.no_grad():
        model(**given)
    heads = [args[1].shape[1] for name, args, _ in seen.calls if name == "tiled::attention"]
    assert heads == [2, 2]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_generation(name, cache, device, registered, takes):
    model, given = make(name, device), draw("left", device)
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    options |= {"pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    model.set_attn_implementation("eager")
    expected = model.generate(**given, **options)
    model.set_attn_implementation(registered)
    with Calls() as seen:
        found = model.generate(**given, **options)
    assert seen.names().count("tiled::attention") == 2 * 6
    assert torch.equal(found, expected)


@pytest.fixture
def experts():
    """The name of torch_tiled's experts while it is registered."""
    table = pytest.importorskip("transformers.integrations.moe").ALL_EXPERTS_FUNCTIONS
    before = dict(table._global_mapping)
    torch_tiled.experts.register()
    yield "torch_tiled"
    table._global_mapping.clear()
    table._global_mapping.update(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prompt_is_the_same_alone_and_in_a_batch(dtype, device, registered, experts):
    config = transformers.Qwen3MoeConfig(
        **SMALL | {"hidden_size": 64, "max_position_embeddings": 128},
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    )
    model = transformers.Qwen3MoeForCausalLM(config).to(device, dtype).eval()
    model.set_attn_implementation(registered)
    model.set_experts_implementation(experts)
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    ids, mask = torch.randint(1, 50, (2, 70), device=device), torch.ones(2, 70, device=device)
    mask[1, :9] = 0
    with torch_tiled.invariant():
        static = {"cache_implementation": "static", "disable_compile": True}
        together = model.generate(ids, attention_mask=mask.long(), **options, **static).logits
        for i, first in enumerate((0, 9)):
            prompt = ids[i : i + 1, first:]
            alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options).logits
            assert torch.equal(torch.cat(alone), torch.stack(together)[:, i])


def test_compiled(device, registered, takes, fresh_compiler):
    model, given = make("Llama", device), draw("right", device)
    model.set_attn_implementation(registered)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    close(results(compiled, given), results(model, given))


class Layer(torch.nn.Module):
    num_key_value_groups, is_causal = 2, True


def operands(device, queries=5, keys=5):
    q = torch.randn(2, 4, queries, 8, device=device)
    return q, *torch.randn(2, 2, 2, keys, 8, device=device)


@pytest.mark.parametrize("queries, keys", [(5, 5), (1, 5), (3, 5)])
@pytest.mark.parametrize("options", [{}, {"scaling": 0.3}, {"is_causal": False}], ids=str)
def test_calls_as_of_sdpa(queries, keys, options, device, registered, takes):
    given = *operands(device, queries, keys), None
    functions = modeling.ALL_ATTENTION_FUNCTIONS
    found, weights = functions[registered](Layer(), *given, **options)
    expected, _ = functions["sdpa"](Layer(), *given, **options)
    assert weights is None and found.is_contiguous()
    close(found, expected)


@pytest.mark.parametrize(
    "what", ["dropout", "position_bias", "output_attentions", "float64", "cpu"]
)
def test_calls_that_are_sdpa(what, device, registered):
    given = operands(device)
    options = {
        "dropout": {"dropout": 0.5},
        "position_bias": {"position_bias": torch.randn(1, 4, 5, 5, device=device)},
        "output_attentions": {"output_attentions": True},
    }.get(what, {})
    if what == "float64":
        given = [x.double() for x in given]
    elif what == "cpu":
        given = [x.cpu() for x in given]
    results = []
    for name in (registered, "sdpa"):
        torch.manual_seed(0)
        with Calls() as seen:
            results.append(
                modeling.ALL_ATTENTION_FUNCTIONS[name](Layer(), *given, None, **options)[0]
            )
        assert not seen.names()
    assert torch.equal(*results)


@pytest.mark.parametrize("option", ["softcap", "s_aux"])
def test_what_is_refused(option, registered):
    function = modeling.ALL_ATTENTION_FUNCTIONS[registered]
    with pytest.raises(RuntimeError, match=f"Layer passes {option}, which only eager attention"):
        function(Layer(), *operands("cpu"), None, **{option: 30.0})


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(ImportError, match="attention.register: .*; install transformers"):
        torch_tiled.attention.register()
