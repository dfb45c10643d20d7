"""Whole models converted and reverted: torch_tiled.convert, revert and enabled."""

import re

import pytest
import torch
import torch.nn.utils.prune
from helpers.converting import NAMES, classes, small_model
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
    layer = torch.nn.Linear(6, 8, device=device, dtype=dtype)
    torch_tiled.convert(layer)
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
    model = small_model()
    torch_tiled.convert(model)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_modules_that_bypass_their_layers_are_named(dtype):
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dtype=dtype).eval()
    x = torch.randn(2, 5, 16, dtype=dtype)
    expected = model(x)
    report = torch_tiled.convert(model)
    assert report.changed == ["self_attn.out_proj", "linear1", "linear2"]
    assert "one operator" in report.left[""]
    assert "multi_head_attention_forward" in report.left["self_attn"]
    assert_close(model(x), expected)
    with torch.no_grad():
        assert_close(model(x), expected)


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
