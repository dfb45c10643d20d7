"""Whole models converted and reverted, and then copied, saved, moved and compiled."""

import re

import pytest
import torch
import torch.nn.utils.prune
from helpers.converting import NAMES, as_converted, classes, small_model
from helpers.copies import COPIES, pickled
from helpers.reference import assert_within, bound, linear_bound, product, rounded_bound
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import torch_tiled
from torch_tiled import converted
from torch_tiled.convert import Row


def test_results_are_those_of_linear(device):
    model = small_model(device)
    x = torch.randn(5, 6, device=device)
    expected = model(x)
    torch_tiled.convert(model)
    assert_close(model(x), expected)
    layer = model[0]
    assert torch.equal(layer(x), torch_tiled.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_layer_of_16bit_floats(dtype, device):
    layer = as_converted(torch.nn.Linear(6, 8, device=device, dtype=dtype))
    x = torch.randn(5, 6, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(5, 8, device=device, dtype=dtype)
    y = layer(x)
    of_x, of_weight, of_bias = torch.autograd.grad(y, [x, layer.weight, layer.bias], grad)
    x, weight, bias = (each.detach() for each in (x, layer.weight, layer.bias))
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert_within(y, exact, linear_bound(x, weight, bias))
    assert_within(of_x, product(grad, weight), bound(grad, weight))
    assert_within(of_weight, product(grad.mT, x), bound(grad.mT, x))
    exact, size = grad.double().sum(0), grad.double().abs().sum(0)
    assert_within(of_bias, exact, rounded_bound(exact, size, 5, 1, dtype))


def test_nothing_else_changes():
    model = small_model().eval()
    called = []
    model[0].register_forward_hook(lambda *_: called.append("hook"))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    parameters = list(model.named_parameters())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for change in (torch_tiled.convert, torch_tiled.revert):
        change(model)
        assert [(n, id(p)) for n, p in model.named_parameters()] == [
            (n, id(p)) for n, p in parameters
        ]
        assert model[1][0].weight is model[1][2][1].weight
        assert not model[0].training
        assert model.state_dict().keys() == state.keys()
        called.clear()
        model(torch.randn(2, 6)).sum().backward()
        assert called == ["hook"]
        assert all(optimizer.state[parameter] for _, parameter in parameters)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_classes_are_exchanged_and_restored():
    model = small_model()
    before = classes(model)
    report = torch_tiled.convert(model)
    assert report.changed == NAMES
    assert all(classes(model)[name] is converted.Linear for name in NAMES)
    assert all(isinstance(model.get_submodule(name), torch.nn.Linear) for name in NAMES)
    assert torch_tiled.revert(model).changed == NAMES
    assert classes(model) == before
    assert torch_tiled.revert(model).rows == ()


def test_the_model_itself():
    layer = torch.nn.Linear(4, 2)
    report = torch_tiled.convert(layer)
    assert report.changed == [""]
    assert type(layer) is converted.Linear
    assert "(the model)" in str(report)
    torch_tiled.revert(layer)
    assert type(layer) is torch.nn.Linear


def test_converting_again_changes_the_precision_alone():
    model = as_converted(small_model())
    assert model[0].precision == "fp32"
    assert torch_tiled.convert(model, include="0", precision="ieee").changed == ["0"]
    assert (model[0].precision, model[2].precision) == ("ieee", "fp32")
    torch_tiled.revert(model)
    assert type(model[0]) is torch.nn.Linear
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        torch_tiled.convert(model, precision="exact")
    assert type(model[0]) is torch.nn.Linear


@pytest.mark.parametrize(
    "options, names",
    [
        ({"filter_fn": lambda module, name: module.out_features == 8}, ["0", "1.0", "1.2.1"]),
        ({"include": "1.*"}, ["1.0", "1.2.1"]),
        ({"include": ["0", "2"], "exclude": "2"}, ["0"]),
        ({"exclude": ["1.*", "0"]}, ["2"]),
        ({"include": "nothing"}, []),
        ({"include": []}, []),
    ],
)
def test_filters(options, names):
    model = small_model()
    dry = torch_tiled.convert(model, **options, dry_run=True)
    assert classes(model) == classes(small_model())
    assert {row.action for row in dry.rows} <= {"to be converted", "left"}
    report = torch_tiled.convert(model, **options)
    assert report.changed == dry.changed == names
    assert report.left == {name: "filtered out" for name in NAMES if name not in names}


def test_a_pattern_in_the_place_of_the_function():
    sentence = (
        "torch_tiled.convert: filter_fn is of type str; pass a function, or patterns for names as "
        "include or exclude"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(sentence)}$"):
        torch_tiled.convert(small_model(), "1.*")


@pytest.mark.parametrize(
    "options, changed",
    [
        ({"include": "dec"}, ["enc"]),
        ({"include": "enc"}, ["enc"]),
        ({"exclude": "dec"}, ["other"]),
        ({"exclude": "enc"}, ["other"]),
    ],
)
def test_a_layer_matches_by_any_of_its_names(options, changed):
    layer = torch.nn.Linear(4, 4)
    model = torch.nn.ModuleDict({"enc": layer, "dec": layer, "other": torch.nn.Linear(4, 4)})
    assert torch_tiled.convert(model, **options).changed == changed


def test_report():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LSTM(8, 4))
    report = torch_tiled.convert(model)
    first, second = report.rows
    assert first == Row("0", "Linear", (6, 8), "converted")
    assert (second.name, second.kind, second.action) == ("1", "LSTM", "left")
    lines = str(report).splitlines()
    assert lines[0] == "0  Linear  6x8  converted"
    assert lines[1] == "1  LSTM         left: its products are in one operator"
    assert lines[2:] == list(report.notes)
    assert str(torch_tiled.convert(torch.nn.ReLU())) == report.notes[0]


# --- what is left alone --------------------------------------------------------------------------


class Doubled(torch.nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class Tagged(torch.Tensor):
    pass


def with_weight(make):
    layer = torch.nn.Linear(4, 4)
    layer.weight = torch.nn.Parameter(make(layer.weight.detach()), requires_grad=False)
    return layer


def with_forward():
    layer = torch.nn.Linear(4, 4)
    layer.forward = lambda input: input
    return layer


LEFT = {
    "subclass": (lambda: Doubled(4, 4), r"it is a tests\.models\.test_convert\.Doubled"),
    "parametrized": (
        lambda: parametrizations.weight_norm(torch.nn.Linear(4, 4)),
        "it is parametrized",
    ),
    "lazy": (lambda: torch.nn.LazyLinear(4), "it is lazy"),
    "meta": (lambda: torch.nn.Linear(4, 4, device="meta"), "on the meta device"),
    "forward": (with_forward, "a forward of its own"),
    "complex": (lambda: torch.nn.Linear(4, 4, dtype=torch.complex32), r"is torch\.complex32"),
    "sparse": (lambda: with_weight(torch.Tensor.to_sparse), r"is torch\.sparse_coo"),
    "tensor subclass": (lambda: with_weight(lambda x: x.as_subclass(Tagged)), "is a Tagged"),
    "quantized": (lambda: torch.ao.nn.quantized.dynamic.Linear(4, 4), "it is quantized"),
    "ours": (lambda: torch_tiled.nn.Linear(4, 4), "it is torch_tiled's already"),
    "scripted": (lambda: torch.jit.script(torch.nn.Linear(4, 4)), "compiled by torch.jit"),
}


@pytest.mark.filterwarnings("ignore:.*(is|are) deprecated")
@pytest.mark.parametrize("name", LEFT)
def test_left_alone_with_the_reason(name):
    make, reason = LEFT[name]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), make())
    kind = type(model[1])
    with pytest.raises(RuntimeError, match=f"nothing was converted.*1: .*{reason}"):
        torch_tiled.convert(model, strict=True)
    assert type(model[0]) is torch.nn.Linear
    report = torch_tiled.convert(model)
    assert report.changed == ["0"]
    assert list(report.left) == ["1"]
    assert re.search(reason, report.left["1"])
    assert type(model[1]) is kind
    assert torch_tiled.convert(model, exclude="1", strict=True).changed == ["0"]


def test_a_lazy_layer_is_converted_when_it_has_a_weight():
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    model(torch.randn(2, 3))
    assert torch_tiled.convert(model).changed == ["0"]


def test_old_style_pruning_goes_on():
    layer = torch.nn.Linear(4, 4)
    torch.nn.utils.prune.random_unstructured(layer, "weight", amount=0.5)
    x = torch.randn(2, 4)
    expected = layer(x)
    assert torch_tiled.convert(layer).changed == [""]
    assert_close(layer(x), expected)


def test_wrapped_by_fully_shard():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        wrapped = torch.nn.Linear(4, 4)
        fsdp.fully_shard(wrapped, mesh=mesh)
        assert "fully_shard" in torch_tiled.convert(wrapped).left[""]

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        x = torch.randn(2, 4)
        expected = model(x)
        torch_tiled.convert(model)
        fsdp.fully_shard(model[0], mesh=mesh)
        with pytest.raises(RuntimeError, match="nothing was reverted.*0: .*fully_shard"):
            torch_tiled.revert(model)
        assert type(model[1]) is converted.Linear
        assert_close(model(x), expected)
    finally:
        torch.distributed.destroy_process_group()


# --- afterwards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_converted(copied):
    model = as_converted(
        torch.nn.Sequential(small_model(), torch.nn.MultiheadAttention(8, 2)), precision="ieee"
    )
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
    model = as_converted(small_model())
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
    model = as_converted(small_model())
    torch_tiled.freeze(model)
    x = torch.randn(2, 6)
    with torch.no_grad():
        expected = model(x)
        torch_tiled.revert(model)
        assert_close(model(x), expected)
    assert not list(model.named_buffers())


def test_enabled():
    model = as_converted(small_model(), include="2")
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
    model = as_converted(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), include="1"
    )
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
    model = as_converted(small_model())
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
