"""Tensor subclasses: PyTorch multiplies those with products of their own, and we its wrappers."""

import importlib
import operator
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.converting import as_converted
from helpers.overriding import Products
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils._pytree import tree_map_only

import torch_tiled
from torch_tiled._op import supported

PRODUCTS = (torch.matmul, torch.mm, torch.addmm, torch.Tensor.matmul, torch.Tensor.__matmul__)
PRODUCTS += (torch.Tensor.addmm_, F.linear, torch.einsum, torch.inner)


class Negating(torch.Tensor):
    """A tensor whose products are negated."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor).neg() if func in PRODUCTS else result


class Scaled(torch.Tensor):
    """int8 values times a scale. It knows PyTorch's operators alone, as weights of torchao do."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, scale):
        options = {"dtype": scale.dtype, "device": scale.device}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, **options)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, tensors, context, size, stride):
        return cls(tensors["values"], tensors["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].values, args[0].scale)
        if not func.name().startswith("aten::"):
            raise NotImplementedError(f"Scaled does not know {func.name()}")
        args = tree_map_only(cls, lambda x: x.values.to(x.scale.dtype) * x.scale, args)
        return func(*args, **(kwargs or {}))


def negating(*shape, device):
    return torch.randn(shape, device=device).as_subclass(Negating)


def scaled(*shape, device):
    values = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    return Scaled(values, torch.full((), 0.125, device=device))


MAKERS = {"__torch_function__": negating, "__torch_dispatch__": scaled}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


CALLS = {
    "matmul": (torch.matmul, (3, 4), (4, 4)),
    "@": (operator.matmul, (3, 4), (4, 4)),
    "mm": (torch.mm, (3, 4), (4, 4)),
    "addmm": (torch.addmm, (4,), (3, 4), (4, 4)),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b), (3, 4), (3, 4), (4, 4)),
    "linear": (F.linear, (2, 3, 4), (4, 4)),
    "linear with bias": (F.linear, (3, 4), (4, 4), (4,)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (3, 4), (4, 4)),
    "inner": (torch.inner, (3, 4), (4, 4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_override_leaves_them_to_pytorch(name, make, device):
    """Each operand in turn is of a subclass, except one that is written."""
    function, *shapes = CALLS[name]
    first = 1 if name == "addmm_" else 0
    for index in range(first, len(shapes)):
        tensors = [torch.randn(shape, device=device) for shape in shapes]
        tensors[index] = make(*shapes[index], device=device)
        expected = function(*tensors)
        with Products() as seen, torch_tiled.override():
            result = function(*tensors)
        assert seen.products()[1] == 0
        assert torch.equal(result, expected)
        with torch_tiled.override(strict=True), pytest.warns(UserWarning, match="PyTorch computes"):
            function(*tensors)


def test_override_does_not_write_to_them(make, device):
    a, b, out = (torch.randn(4, 4, device=device) for _ in range(3))
    out = Negating(out)
    with Products() as seen, torch_tiled.override():
        torch.mm(a, b, out=out)
        out.addmm_(a, b)
    assert seen.products()[1] == 0


@pytest.mark.parametrize("where", ["weight", "bias", "input"])
def test_a_converted_layer_leaves_them_to_pytorch(where, make, device):
    """A weight that is replaced after the conversion, as torchao's quantize_ does; or an input."""
    layer, x = torch.nn.Linear(4, 4, device=device), torch.randn(3, 4, device=device)
    strict = as_converted(torch.nn.Linear(4, 4, device=device), strict=True)
    torch_tiled.convert(layer)
    if where == "input":
        x = make(3, 4, device=device)
    else:
        shape = getattr(layer, where).shape
        parameter = torch.nn.Parameter(make(*shape, device=device), requires_grad=False)
        for each in (layer, strict):
            setattr(each, where, parameter)
    expected = F.linear(x, layer.weight, layer.bias)
    kind = type(x if where == "input" else getattr(layer, where)).__name__
    with pytest.warns(UserWarning, match=f"its {where} is a {kind}, which may multiply"):
        result = layer(x)
    assert torch.equal(result, expected)
    with pytest.raises(RuntimeError, match="which strict=True forbids"):
        strict(x)
    torch_tiled.revert(layer)
    assert torch.equal(layer(x), expected)


def compiled_targets(function, *args):
    """The operators of the graphs that Dynamo makes of a call."""
    targets = []

    def backend(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compile(function, backend=backend)(*args)
    return targets


def overridden(x, w):
    with torch_tiled.override():
        return F.linear(x, w)


@pytest.mark.filterwarnings("ignore:torch_tiled. the model")
def test_compiled_code_leaves_them_to_pytorch(make, device, fresh_compiler):
    """Only the graph is looked at: what a subclass does in one is between it and torch.compile."""
    layer = as_converted(torch.nn.Linear(4, 4, bias=False, device=device))
    x, w = torch.randn(3, 4, device=device), make(4, 4, device=device)
    plain = torch.randn(4, 4, device=device)

    def multiplied_by_us(function, *args):
        return any("tiled" in target for target in compiled_targets(function, *args))

    assert multiplied_by_us(overridden, x, plain) and not multiplied_by_us(overridden, x, w)
    assert multiplied_by_us(layer, x) and not multiplied_by_us(layer, make(3, 4, device=device))
    with torch_tiled.override():
        assert multiplied_by_us(lambda x, w: x @ w, x, plain)
        assert not multiplied_by_us(lambda x, w: x @ w, x, w)
    layer.weight = torch.nn.Parameter(w, requires_grad=False)
    assert not multiplied_by_us(layer, x)


def test_a_quantized_layer_is_left_alone(make, device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device=device))
    model[0].weight = torch.nn.Parameter(make(4, 4, device=device), requires_grad=False)
    report = torch_tiled.convert(model)
    assert report.changed == [] and "which may multiply in a way of its own" in report.left["0"]


@pytest.mark.filterwarnings("ignore")
def test_torchao(device):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    x = torch.randn(4, 64, device=device)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, device=device), torch.nn.ReLU()).eval()
    converted = torch.nn.Sequential(torch.nn.Linear(64, 64, device=device), torch.nn.ReLU()).eval()
    converted.load_state_dict(model.state_dict())
    torch_tiled.convert(converted)
    for each in (model, converted):
        quantization.quantize_(each, quantization.Int8WeightOnlyConfig())
    expected = model(x)
    assert torch.equal(converted(x), expected)
    with torch_tiled.override():
        assert torch.equal(model(x), expected)
    torch_tiled.revert(converted)
    assert torch.equal(converted(x), expected)


# --- PyTorch's own wrappers ----------------------------------------------------------------------


def test_pytorch_s_wrappers_have_these_names():
    pytest.importorskip("torch.distributed.tensor", reason="torch was built without distributed")
    for name in supported._WRAPPERS:
        module, _, kind = name.rpartition(".")
        wrapper = getattr(importlib.import_module(module), kind)
        assert issubclass(wrapper, torch.Tensor)
        assert f"{wrapper.__module__}.{wrapper.__qualname__}" == name


@pytest.mark.parametrize("around", [torch.nn.Parameter, torch.nn.Buffer, torch.Tensor.detach])
def test_parameters_and_buffers_are_ours(around, device):
    x, w = torch.randn(3, 4, device=device), around(torch.randn(4, 4, device=device))
    with torch.no_grad(), Products() as seen, torch_tiled.override(strict=True):
        F.linear(x, w)
    theirs, ours = seen.products()
    assert theirs == 0 and ours == 1


def test_fake_tensors_are_ours():
    """Tools that estimate memory or time run a model on FakeTensors."""
    torch_tiled.convert(torch.nn.Sequential(torch.nn.Linear(4, 4)), strict=True)
    with FakeTensorMode() as mode, warnings.catch_warnings():
        warnings.simplefilter("error")
        fake = mode.from_tensor(torch.randn(3, 4))
        with Products() as seen, torch_tiled.override(strict=True):
            assert (fake @ fake.mT).shape == (3, 3)
        built = torch.nn.Sequential(torch.nn.Linear(4, 4))
        assert torch_tiled.convert(built).changed == ["0"]
        assert built(fake).shape == (3, 4)
    assert seen.products() == (0, 1)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_is_ours(strict):
    """torch.export runs a model on FunctionalTensors unless it is strict."""
    model = as_converted(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval(), strict=True)
    program = torch.export.export(model, (torch.randn(3, 4),), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes]
    assert "tiled.linear.default" in targets


def test_the_result_of_a_collective_is_ours():
    """A RowwiseParallel layer returns an AsyncCollectiveTensor, which the next layer gets."""
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    layer = as_converted(torch.nn.Linear(4, 4), strict=True)
    x = torch.randn(3, 4)
    pending = collectives.AsyncCollectiveTensor(x)
    with torch.no_grad():
        assert torch.equal(layer(pending), layer(x))


def test_wrapped_tensors_of_transforms_are_ours(device):
    layer = as_converted(torch.nn.Linear(4, 4, device=device), strict=True)
    x = torch.randn(3, 4, device=device)
    assert_close(torch.vmap(layer)(x), layer(x))
    gradient = torch.func.grad(lambda x: layer(x).sum())(x)
    assert_close(gradient, layer.weight.sum(0).expand(3, 4))
