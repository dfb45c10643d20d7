"""Calls of torch_tiled.invariance: models and inputs, what it leaves as it was, and errors."""

import pytest
import torch
from helpers.invariance import Call, Centred, Noisy, linear, named, results
from torch import nn

import torch_tiled
from torch_tiled import invariance
from torch_tiled._watch import digest, rows


def test_functions_and_methods():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Centred()

        def predict(self, x):
            return self.part(x)

    assert named(invariance(Model().predict, torch.randn(3, 4))) == ("part", "aten.mean")
    report = invariance(lambda x: x - x.mean(0), torch.randn(3, 4))
    assert named(report) == ("", "aten.mean") and report.first.kind == "<lambda>"
    assert results(report) == {"": "differs"}


def test_a_module_that_is_called_twice():
    shared = linear()
    model = nn.Sequential(shared, nn.ReLU(), shared, Noisy(), shared)
    report = invariance(model, torch.randn(3, 16))
    assert results(report)["0"] == "differs" and named(report)[0] == "3"


def test_an_encoder_keeps_its_fast_path():
    """Hooks of its modules would end it."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    report = invariance(model, torch.randn(3, 4, 16))
    assert "layers.0.linear1" not in results(report) and "layers.0" in results(report)


def test_nothing_is_changed(device):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("last", torch.zeros(1))
            self.register_buffer("none", None)

        def forward(self, x):
            assert not torch.is_grad_enabled()
            self.count += 1
            self.last = x[0]
            x.mul_(torch.rand(()).item() + 1)
            return x * self.count

    model = nn.Sequential(Counting(), nn.Dropout()).to(device)
    model[1].eval()
    last, count = model[0].last, model[0].count
    x = torch.randn(3, 4, device=device, requires_grad=True)
    before, version = x.detach().clone(), x._version
    random_numbers = torch.get_rng_state()
    report = invariance(model, x)
    assert report.equal  # every run began with the same count and random numbers
    assert torch.equal(torch.get_rng_state(), random_numbers)
    assert torch.equal(x, before) and x._version == version and x.requires_grad and x.grad is None
    assert model[0].last is last and model[0].count is count and count == 0
    assert model.training and model[0].training and not model[1].training
    assert torch.is_grad_enabled()
    assert not nn.modules.module._has_any_global_hook()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_an_exception_leaves_nothing_behind():
    def forward(x):
        if len(x) == 3:
            raise ZeroDivisionError
        return x * torch.rand(1)

    model, x = nn.Sequential(Call(forward)), torch.randn(4, 2)
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError) as caught:
        invariance(model, x)
    assert "with a batch of 3" in caught.value.__notes__[0]
    assert not nn.modules.module._has_any_global_hook()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch.equal(torch.get_rng_state(), state)


def test_an_exception_that_the_model_catches():
    def fails(x):
        raise ZeroDivisionError

    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails, self.after = Call(fails), Noisy()

        def forward(self, x):
            try:
                return self.fails(x)
            except ZeroDivisionError:
                return self.after(x)

    report = invariance(Catching(), torch.randn(3, 4))
    assert named(report) == ("after", "aten.mul")
    assert results(report) == {"": "differs", "after": "differs"}


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda x: invariance(3, x), "model is of type int; pass a module or a function"),
        (lambda x: invariance(nn.ReLU(), 3), "inputs, of type int, has no tensor"),
        (lambda x: invariance(nn.ReLU(), torch.tensor(3.0)), "no tensor with a dimension 0"),
        (lambda x: invariance(nn.ReLU(), x, dim=2), "no tensor with a dimension 2"),
        (lambda x: invariance(nn.ReLU(), x[:1]), "first tensor of inputs is 1; pass a batch of 2"),
        (lambda x: invariance(nn.ReLU(), x, sizes=[2, 5]), "sizes has 5; pass sizes from 2 to 4"),
        (lambda x: invariance(nn.ReLU(), x, sizes=[1]), "sizes has 1; pass sizes from 2 to 4"),
        (
            lambda x: invariance(nn.ReLU(), x, sizes=3),
            "sizes is 3; pass a list of sizes, such as [3]",
        ),
        (lambda x: invariance(nn.ReLU(), x, shared=x), "shared is of type Tensor; pass a mapping"),
        (
            lambda x: invariance(nn.ReLU(), {"input": x}, shared={"input": x}),
            "inputs and shared both have input; leave it out of one",
        ),
        (lambda x: invariance(nn.LazyLinear(2), x), "parameters without data; run it once first"),
        (lambda x: invariance(lambda x: 3, x), "returned a int without tensors"),
        (
            lambda x: invariance(lambda x: {"ab"[len(x) > 1]: x}, x),
            "the output ['a'] is one of a sample alone or of a batch of 2, and not of both",
        ),
        (
            lambda x: invariance(lambda x: torch.nested.nested_tensor(list(x)), x),
            "output 0 is nested for sample 0 alone, again and nested for a sample alone",
        ),
        (lambda x: invariance(nn.ReLU(), x.to("meta")), "of torch.float32, without plain numbers"),
        (lambda x: invariance(lambda x: x @ x.mT, x), "output 0 is (2, 2) of torch.float32"),
        (lambda x: invariance(lambda x: x.to_sparse(), x), "rows are not found"),
        (lambda x: invariance(lambda x: (x,) * len(x), x), "returned 1 tensors for a sample alone"),
    ],
)
def test_errors(call, sentence):
    with pytest.raises(RuntimeError) as caught:
        call(torch.randn(4, 3))
    assert str(caught.value).startswith("torch_tiled.invariance: ") and sentence in str(
        caught.value
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool])
def test_digests_tell_tensors_apart(dtype, device):
    """Each bit counts, wherever it is."""
    x = torch.zeros(3 << 19, device=device).to(dtype)  # more than one block of words
    wanted = digest(x)
    assert wanted == digest(x.clone()) and wanted == digest(x.view(3, -1).mT.contiguous().mT)
    for place in (0, 1, len(x) // 2, len(x) - 1):
        y = x.clone()
        y[place] = 1 if dtype == torch.bool else -0.0
        assert digest(y) != wanted
    x[0], y = 1, x.clone()
    x[1], y[0], y[1] = 0, 0, 1
    assert digest(x) != digest(y)


def test_rows_of_a_sample():
    x = torch.arange(24).view(6, 4)
    assert [each.tolist() for each in rows(x, torch.Size([2, 4]), 1, 3)] == [
        x[2:4].tolist(),
        x[1::3].tolist(),
    ]
    assert rows(x, x.shape, 1, 3)[0] is x
    assert rows(x, torch.Size([2, 2]), 1, 3) == rows(x, torch.Size([2]), 1, 3) == []
    assert rows(x, torch.Size([3, 4]), 1, 3) == []


def test_a_llama_of_transformers(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=50,
    )
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    model.model.layers[1].mlp.act_fn = Noisy()
    ids = torch.randint(50, (3, 5), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    torch_tiled.convert(model)
    if device == "cpu":
        for layer in model.modules():
            if isinstance(layer, torch_tiled.nn.Linear):
                layer.algorithm = "tiled"
    with torch_tiled.override():
        report = invariance(model, inputs, shared={"use_cache": False}, sizes=[2])
    assert results(report)["model.layers.0"] == "equal"
    assert named(report) == ("model.layers.1.mlp.act_fn", "aten.mul")
