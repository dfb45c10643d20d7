"""Every class that a model shows can be constructed, subclassed, copied and pickled."""

import copy
import inspect
import pickle

import pytest
import torch

import torch_tiled
from torch_tiled.converted import Converted


def converted(layer):
    torch_tiled.convert(layer)
    return layer


def conv1d(rows, cols):
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(cols, rows)


def conv2d(rows, cols):
    return torch.nn.Conv2d(rows, cols, 1)


CLASSES = {
    "Linear": lambda: type(converted(torch.nn.Linear(4, 3))),
    "NonDynamicallyQuantizableLinear": lambda: type(
        converted(torch.nn.modules.linear.NonDynamicallyQuantizableLinear(4, 3))
    ),
    "Conv1D": lambda: type(converted(conv1d(4, 3))),
    "Conv2d": lambda: type(converted(conv2d(4, 3))),
    "torch_tiled.nn.Linear": lambda: torch_tiled.nn.Linear,
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.fixture(params=CLASSES)
def kind(request):
    return CLASSES[request.param]()


def sizes(kind):
    others = {"Conv1D": (3, 4), "Conv2d": (4, 3, 1)}  # Conv1D takes outputs first
    return others.get(kind.__name__, (4, 3))


def example(kind):
    return torch.randn(2, 4, 1, 1) if kind.__name__ == "Conv2d" else torch.randn(2, 4)


def assert_works(layer, kind):
    x = example(kind)
    weight = layer.weight if kind.__name__ == "Conv1D" else layer.weight.flatten(1).mT
    assert type(layer) is kind
    torch.testing.assert_close(layer(x).flatten(1), x.flatten(1) @ weight + layer.bias)


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_rebuilt(kind, way):
    layer = kind(*sizes(kind), precision="ieee")
    assert_works(layer, kind)
    other = way(layer)
    assert_works(other, kind)
    assert other.precision == "ieee" and repr(other) == repr(layer)
    other.load_state_dict(layer.state_dict())


def test_reverted_and_converted_again(kind):
    layer = kind(*sizes(kind))
    if not isinstance(layer, Converted):
        return
    assert torch_tiled.revert(layer).changed == [""]
    plain = type(layer)
    assert not isinstance(layer, Converted) and plain.__module__.split(".")[0] != "torch_tiled"
    assert torch_tiled.convert(layer, precision="tf32").changed == [""]
    assert type(layer) is kind and layer.precision == "tf32"


def test_subclassed(kind):
    class Doubled(kind):
        def __init__(self, *args):
            super().__init__(*args)
            self.factor = 2

        def forward(self, input):
            return self.factor * super().forward(input)

    layer = Doubled(*sizes(kind))
    x = example(kind)
    assert torch.equal(layer(x), 2 * kind.forward(layer, x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_arguments_are_those_of_the_class_before(kind):
    with pytest.raises(RuntimeError, match="there is no precision"):
        kind(*sizes(kind), precision="fp8")
    if kind.__name__ == "Conv1D":
        return
    before = torch.nn.Conv2d if kind.__name__ == "Conv2d" else torch.nn.Linear
    names = list(inspect.signature(before).parameters)
    assert list(inspect.signature(kind).parameters)[: len(names)] == names
    arguments = sizes(kind)
    assert kind(*arguments, bias=False, dtype=torch.float64).weight.dtype == torch.float64
    between = (1, 0, 1, 1) if before is torch.nn.Conv2d else ()  # from stride to groups
    assert kind(*arguments, *between, False).bias is None
    assert torch.nn.utils.skip_init(kind, *arguments)(example(kind)).shape[:2] == (2, 3)


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize(
    "kind, arguments, inputs",
    [
        (torch_tiled.converted.MultiheadAttention, (8, 2), 3),
        (torch_tiled.converted.TransformerEncoderLayer, (8, 2, 16), 1),
        (
            torch_tiled.converted.TransformerEncoder,
            (torch.nn.TransformerEncoderLayer(8, 2, 4), 2),
            1,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_attention_rebuilt(kind, arguments, inputs, way):
    layer = way(kind(*arguments, precision="ieee").eval())
    x = [torch.randn(5, 3, 8)] * inputs
    expected = type(layer).__mro__[2].forward(layer, *x)
    assert layer.precision == "ieee" and type(layer) is kind
    torch.testing.assert_close(layer(*x), expected)
    torch_tiled.revert(layer)
    assert type(layer) is kind.__mro__[2]
    torch.testing.assert_close(layer(*x), expected)


def public_values():
    """An object of each class that torch_tiled's functions return or take."""
    a, b = torch.randn(4, 130), torch.randn(130, 5)
    shown = []
    torch_tiled.stream.matmul(a, b, devices="cpu", progress=shown.append)
    return {
        "Prepared": torch_tiled.prepare(b),
        "Prepared, transposed": torch_tiled.prepare(b).mT,
        "Explanation": torch_tiled.explain(a, b),
        "Report": torch_tiled.convert(torch.nn.Linear(3, 4)),
        "Plan": torch_tiled.stream.plan(a, b, max_device_bytes=2**24),
        "Progress": shown[-1],
        "Interrupted": torch_tiled.stream.Interrupted([(None, slice(2), slice(3))], 3),
        "override": torch_tiled.override("ieee", strict=True),
        "a forward for kernelize": torch_tiled.layers.LinearTF32(),
        "a frozen layer": torch_tiled.freeze(torch_tiled.nn.Linear(4, 3)),
    }


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_public_values(way):
    for name, value in public_values().items():
        other = way(value)
        assert type(other) is type(value), name
        if name == "override":
            assert (other.precision, other.strict) == ("ieee", True)
        else:
            assert repr(other) == repr(value), name


def test_public_names():
    for module in (torch_tiled, torch_tiled.nn, torch_tiled.layers, torch_tiled.stream):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert pickle.loads(pickle.dumps(value)) is value
