"""Converted models copied, saved, reverted, moved, compiled and exported."""

import pytest
import torch
import torch.nn.utils.prune
from helpers.converting import NAMES, classes, small_model
from helpers.copies import COPIES, pickled
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import torch_tiled
from torch_tiled import converted


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_converted(copied):
    model = torch.nn.Sequential(small_model(), torch.nn.MultiheadAttention(8, 2))
    torch_tiled.convert(model, precision="ieee")
    other = copied(model)
    assert classes(other) == classes(model)
    x = torch.randn(2, 6)
    assert torch.equal(other[0](x), model[0](x))
    assert other[0][0].precision == "ieee"
    torch_tiled.revert(other)
    assert type(other[0][0]) is torch.nn.Linear
    assert type(model[0][0]) is converted.Linear


@pytest.mark.parametrize("parametrize", [parametrizations.orthogonal, parametrizations.weight_norm])
def test_a_layer_parametrized_since_is_not_reverted(parametrize):
    model = small_model()
    torch_tiled.convert(model)
    parametrize(model[0])
    expected = model[0].weight.clone()
    with pytest.raises(RuntimeError, match="nothing was reverted.*0: it was parametrized") as error:
        torch_tiled.revert(model)
    assert 'remove_parametrizations(layer, "weight")' in str(error.value)
    assert type(model[2]) is converted.Linear
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert torch_tiled.revert(model).changed == NAMES
    assert type(model[0]) is torch.nn.Linear and torch.equal(model[0].weight, expected)


def test_a_frozen_layer_is_reverted_unfrozen():
    model = small_model()
    torch_tiled.convert(model)
    torch_tiled.freeze(model)
    x = torch.randn(2, 6)
    with torch.no_grad():
        expected = model(x)
        torch_tiled.revert(model)
        assert_close(model(x), expected)
    assert not list(model.named_buffers())


def test_enabled():
    model = small_model()
    torch_tiled.convert(model, include="2")
    with torch_tiled.enabled(model, precision="ieee") as report:
        assert report.changed == NAMES
        assert {model.get_submodule(name).precision for name in NAMES} == {"ieee"}
    assert torch_tiled.convert(model, dry_run=True).changed == NAMES
    assert (type(model[0]), type(model[2])) == (torch.nn.Linear, converted.Linear)
    assert model[2].precision == "fp32"
    with pytest.raises(ZeroDivisionError), torch_tiled.enabled(model):
        raise ZeroDivisionError
    assert (type(model[0]), type(model[2])) == (torch.nn.Linear, converted.Linear)


def model_of_two():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    torch_tiled.convert(model, include="1")
    return model


def test_a_model_reverted_within_enabled():
    model = model_of_two()
    with torch_tiled.enabled(model, precision="ieee"):
        torch_tiled.revert(model)
    for layer in model:
        assert type(layer) is torch.nn.Linear and "_origin" not in vars(layer)


def test_a_layer_parametrized_within_enabled():
    model = model_of_two()
    sentence = "stay converted. 0: it was parametrized since"
    with pytest.raises(RuntimeError, match=sentence), torch_tiled.enabled(model):
        parametrizations.weight_norm(model[0])


def test_an_exception_within_enabled_is_seen():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with pytest.raises(ZeroDivisionError), torch_tiled.enabled(model):
        parametrizations.weight_norm(model[0])
        raise ZeroDivisionError
    assert isinstance(model[0], converted.Converted) and type(model[1]) is torch.nn.Linear


def test_moved_and_cast_models_go_on(device):
    model = small_model()
    torch_tiled.convert(model)
    model.to(device).to(torch.bfloat16).double()
    x = torch.randn(2, 6, device=device, dtype=torch.float64)
    y = model(x)
    torch_tiled.revert(model)
    assert_close(y, model(x))


def test_compiled(device):
    torch.compiler.reset()
    model = small_model(device)
    x = torch.randn(4, 6, device=device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = compiled(x)
    torch_tiled.convert(model)
    assert torch.equal(compiled(x), model(x))
    assert_close(compiled(x), expected)
    graphs = torch._dynamo.explain(model)(x).graphs
    assert "tiled" in str(graphs[0].code)
    torch_tiled.revert(model)
    assert torch.equal(compiled(x), expected)


def test_compiled_by_inductor(device):
    torch.compiler.reset()
    model = small_model(device)
    x = torch.randn(4, 6, device=device, requires_grad=True)
    expected = model(x)
    gradients = torch.autograd.grad(expected.square().sum(), [x, *model.parameters()])
    torch_tiled.convert(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    result = compiled(x)
    assert_close(result, expected)
    actual = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
    assert_close(actual, gradients)
    with torch.no_grad():
        x = torch.randn(7, 6, device=device)
        assert_close(compiled(x), model(x))


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def test_gpt2(device):
    model = gpt2().to(device, torch.float64)
    tokens = torch.randint(50, (2, 10), device=device)

    def run():
        model.zero_grad()
        output = model(input_ids=tokens, labels=tokens)
        output.loss.backward()
        return output.logits, output.loss, [p.grad.clone() for p in model.parameters()]

    expected = run()
    report = torch_tiled.convert(model, strict=True)
    assert [row.kind for row in report.rows] == ["Conv1D"] * 8 + ["Linear"]
    assert report.rows[0].shape == (32, 96)
    assert type(model.transformer.h[0].mlp.c_fc) is converted.Conv1D
    assert model.lm_head.weight is model.transformer.wte.weight
    assert_close(run(), expected)
    copied = pickled(model)
    assert_close(copied(input_ids=tokens).logits, expected[0])
    torch_tiled.revert(model)
    assert_close(run(), expected)
