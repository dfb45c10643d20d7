"""freeze() and its layers: writes, copies, devices, gradients, captured and compiled graphs."""

import copy

import pytest
import torch
from helpers.compiling import count_compilations
from helpers.copies import pickled
from helpers.needs import needs_cuda
from helpers.presplit import (
    assert_like_unfrozen,
    assert_same_bits,
    launched,
    make_model,
    recorder,
    same_bits,
    takes_presplit,
)
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap
from torch.testing import assert_close

import torch_tiled

ops = torch.ops.tiled

pytestmark = pytest.mark.usefixtures("fresh_compiler", "splits_on_cpu")


def test_freeze_and_unfreeze(device):
    model, x = make_model(device), torch.randn(9, 140, device=device)
    expected = model(x)
    state = model.state_dict()
    assert torch_tiled.frozen_bytes(model) == 0
    assert torch_tiled.freeze(model) is model
    assert launched(model, x) == ["tiled::linear.prepared"] * 2
    assert_same_bits(model(x), expected)
    sizes = [ops.prepare(layer.weight.mT) for layer in model[::2]]
    assert torch_tiled.frozen_bytes(model) == sum(t.nbytes for pair in sizes for t in pair)
    assert list(model.state_dict()) == list(state)
    assert "frozen" in repr(model[0]) and "frozen" not in repr(model[1])
    assert torch_tiled.freeze(model) is model
    assert_same_bits(model(x), expected)
    for _ in range(2):
        assert torch_tiled.unfreeze(model) is model
        assert launched(model, x) == ["tiled::linear"] * 2
        assert torch_tiled.frozen_bytes(model) == 0
        assert not list(model.buffers()) and "frozen" not in repr(model)
        assert_same_bits(model(x), expected)


def test_an_unchanged_weight_is_split_once(device):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert launched(model, x) == ["tiled::linear.prepared"] * 2


WRITES = {
    "copy_": lambda layer: layer.weight.copy_(layer.weight * 2),
    "slice": lambda layer: layer.weight[3:5].zero_(),
    "detached": lambda layer: layer.weight.detach().mul_(3),
    "under inference_mode": torch.inference_mode()(lambda layer: layer.weight.mul_(2)),
    "data": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "another": lambda layer: setattr(
        layer, "weight", torch.nn.Parameter(layer.weight * 2, requires_grad=False)
    ),
    "strides": lambda layer: setattr(
        layer.weight, "data", (layer.weight.data * 2).mT.contiguous().mT
    ),
    "gemm_": lambda layer: torch_tiled.gemm_(
        layer.weight, torch.ones_like(layer.weight[:, :5]), torch.ones_like(layer.weight[:5])
    ),
    "reset_parameters": lambda layer: layer.reset_parameters(),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
    "load_state_dict assigned": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_noticed(device, write, inference):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    with torch.inference_mode(inference):
        before = model(x)
        with torch.no_grad():
            WRITES[write](model[0])
        model.requires_grad_(False)
        assert not same_bits(model(x), before)
        assert_like_unfrozen(model, x)
        assert launched(model, x) == ["tiled::linear.prepared"] * 2


def test_a_storage_that_follows_another_at_its_address_is_noticed(device):
    """Its address and version are the same as before, and tell nothing."""
    layer = torch_tiled.freeze(make_model(device)[0])
    x = torch.randn(9, 140, device=device)
    for i in range(10):
        layer.weight.data = torch.full((130, 140), float(i), device=device)
        assert_like_unfrozen(layer, x)
        layer.weight.data = torch.full((130, 140), -1.0, device=device)


def test_freezing_again_overwrites_the_split(device):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    memory = [buffer.data_ptr() for buffer in model.buffers()]
    model[0].weight.data.mul_(2)  # is not counted as a write
    torch_tiled.freeze(model)
    assert_like_unfrozen(model, x)
    assert [buffer.data_ptr() for buffer in model.buffers()] == memory


@pytest.mark.usefixtures("collected")
@needs_cuda
def test_captured_graphs_read_the_new_split():
    model, x = torch_tiled.freeze(make_model("cuda")), torch.randn(9, 140, device="cuda")
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(2):
        graph.replay()
        assert_same_bits(y, torch_tiled.unfreeze(copy.deepcopy(model))(x))
        model[0].weight.mul_(2)
        torch_tiled.freeze(model)


@pytest.mark.usefixtures("collected")
@needs_cuda
def test_capturing_after_a_write():
    """The graph reads the weight: a split would be captured and not run, so none is made."""
    model, x = torch_tiled.freeze(make_model("cuda")), torch.randn(9, 140, device="cuda")
    model(x)
    model[0].weight.mul_(2)
    torch_tiled.unfreeze(copy.deepcopy(model))(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(2):
        expected = torch_tiled.unfreeze(copy.deepcopy(model))(x)
        assert_same_bits(model(x), expected)
        graph.replay()
        assert_same_bits(y, expected)
        model[0].weight.mul_(2)


@pytest.mark.parametrize("split_again", [torch_tiled.freeze, torch_tiled.refreeze])
def test_inference_tensors(device, split_again):
    """Writes to a model made under inference_mode are not counted; freezing splits it anew."""
    with torch.inference_mode():
        model, x = make_model(device), torch.randn(9, 140, device=device)
        expected = model(x)
        torch_tiled.freeze(model)
        assert_same_bits(model(x), expected)
        model[0].weight.mul_(2)
        assert not same_bits(torch_tiled.unfreeze(copy.deepcopy(model))(x), expected)
        split_again(model)
        assert_like_unfrozen(model, x)
        expected = model(x)
    with torch.no_grad():
        assert_same_bits(model(x), expected)
        assert_same_bits(torch_tiled.freeze(model)(x), expected)


@pytest.mark.parametrize("training", [False, True])
def test_a_frozen_weight_has_no_gradient(device, training):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    model.requires_grad_().train(training)
    for compiled in (model, torch.compile(model, backend="eager")):
        for autocast in (False, True):
            with (
                torch.autocast(device, enabled=autocast),
                pytest.raises(RuntimeError, match="torch_tiled.unfreeze.model. to train"),
            ):
                compiled(x)
    with torch.no_grad():
        model(x)
    torch_tiled.unfreeze(model)(x).sum().backward()
    assert model[0].weight.grad is not None


def test_other_gradients_flow(device):
    model = make_model(device)
    model[0].bias.requires_grad_()
    model[1].requires_grad_()
    x = torch.randn(9, 140, device=device, requires_grad=True)
    inputs = (x, model[0].bias, *model[1].parameters())
    grads = []
    for change in (torch_tiled.freeze, torch_tiled.unfreeze):
        loss = change(model)(x).sin().sum()
        grads.append(torch.autograd.grad(loss, inputs))
    for ours, theirs in zip(*grads, strict=True):
        assert_same_bits(ours, theirs)


def test_autocast_of_frozen_layers(device):
    model, x = make_model(device, algorithm="auto"), torch.randn(9, 140, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = model(x)
        assert_same_bits(torch_tiled.freeze(model)(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(device, dtype):
    model = torch_tiled.freeze(make_model(device, algorithm="auto"))
    x = torch.randn(9, 140, device=device)
    model.to(dtype)
    assert torch_tiled.frozen_bytes(model) == 0
    assert_like_unfrozen(model, x.to(dtype))
    model.float()
    assert (torch_tiled.frozen_bytes(model) > 0) == takes_presplit(device)
    assert_like_unfrozen(model, x)


def test_moving(device):
    model = torch_tiled.freeze(make_model("cpu", algorithm="auto")).to(device)
    assert {buffer.device.type for buffer in model.buffers()} == {device}
    assert_like_unfrozen(model, torch.randn(9, 140, device=device))
    meta = torch_tiled.freeze(make_model("meta", algorithm="auto"))
    assert meta(torch.empty(9, 140, device="meta")).shape == (9, 30)
    meta.to_empty(device=device)
    for layer, other in zip(meta, model, strict=True):  # load_state_dict would tell the layer
        for parameter, value in zip(layer.parameters(), other.parameters(), strict=True):
            parameter.copy_(value)
    x = torch.randn(9, 140, device=device)
    assert_same_bits(meta(x), model(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickled])
def test_copies(device, duplicate):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    expected = model(x)
    model[0].weight.data.mul_(2)  # a copy cannot know of which weight the split was
    twin = duplicate(model)
    if duplicate is not copy.copy:
        assert_like_unfrozen(twin, x)
        assert not same_bits(twin(x), expected)
        assert twin[0].weight is not model[0].weight
        assert launched(twin, x) == ["tiled::linear.prepared"] * 2
    torch_tiled.freeze(model)
    assert_like_unfrozen(model, x)


def clones(layer):
    """A layer's copies that have its buffers at first, with parameters of their own."""
    cloned = layer.__new__(type(layer))  # as learn2learn's clone_module
    cloned.__dict__ = layer.__dict__.copy()
    cloned._buffers = layer._buffers.copy()
    for clone in (layer._replicate_for_data_parallel(), cloned, copy.copy(layer)):
        clone._parameters = dict(layer._parameters)
        yield clone


@torch.no_grad()
def test_clones_split_into_memory_of_their_own(device):
    layer = torch_tiled.freeze(make_model(device))[0]
    x = torch.randn(9, 140, device=device)

    def check(frozen):
        assert_same_bits(frozen(x), torch_tiled.unfreeze(copy.deepcopy(frozen))(x))

    for clone in clones(layer):
        layer(x)
        clone.weight = torch.nn.Parameter(torch.randn_like(layer.weight), requires_grad=False)
        check(clone)
        check(layer)
        layer.weight.mul_(2)
        check(layer)
        check(clone)


def test_a_copy_is_frozen_by_itself(device):
    layer, x = torch_tiled.freeze(make_model(device))[0], torch.randn(9, 140, device=device)
    expected = layer(x)
    torch_tiled.unfreeze(copy.copy(layer))
    assert_same_bits(layer(x), expected)
    duplicate = copy.copy(layer)
    assert torch_tiled.frozen_bytes(layer) > 0
    torch_tiled.unfreeze(layer)
    assert_same_bits(duplicate(x), expected)


def test_freezing_is_all_or_nothing(device):
    model = make_model(device)
    torch_tiled.freeze(model[2])
    bad = torch_tiled.nn.Linear(4, 4, device=device)
    ones = torch.ones(4, 4, dtype=torch.int32, device=device)
    bad.weight = torch.nn.Parameter(ones, requires_grad=False)
    with pytest.raises(RuntimeError, match="torch.int32"):
        torch_tiled.freeze(torch.nn.Sequential(*model, bad))
    assert [each._frozen for each in (model[0], model[2], bad)] == [False, True, False]


@torch.no_grad()
def test_reverted_layers_keep_no_trace(device):
    model = torch.nn.Sequential(torch.nn.Linear(140, 8, device=device))
    before = set(vars(model[0]))
    torch_tiled.convert(model)
    torch_tiled.freeze(model)(torch.randn(9, 140, device=device))
    torch_tiled.revert(model)
    assert set(vars(model[0])) == before


def test_state_dicts_go_both_ways(device):
    frozen, plain = torch_tiled.freeze(make_model(device)), make_model(device)
    x = torch.randn(9, 140, device=device)
    plain.load_state_dict(frozen.state_dict())
    assert_same_bits(plain(x), frozen(x))
    plain[0].weight.mul_(2)
    frozen.load_state_dict(plain.state_dict())
    assert_same_bits(frozen(x), plain(x))


# --- torch.compile, torch.export and transforms --------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_frozen_layers_when_compiled(device, backend):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    graphs, record = recorder(backend)
    compiled = torch.compile(model, fullgraph=True, backend=record)
    assert_close(compiled(x), model(x))
    assert graphs[0].count(ops.linear.prepared) == 2
    # Compiled graphs notice new weights without a call outside of them.
    compiled.load_state_dict({name: value + 1 for name, value in compiled.state_dict().items()})
    assert_close(compiled(x), torch_tiled.unfreeze(copy.deepcopy(model))(x))
    model[0].weight.mul_(2)
    torch_tiled.freeze(model)
    assert_close(compiled(x), torch_tiled.unfreeze(copy.deepcopy(model))(x))
    assert len(graphs) == 1
    torch_tiled.unfreeze(model)
    assert_close(compiled(x), model(x))
    assert graphs[-1].count(ops.linear.default) == 2


def test_a_copy_that_was_never_called_reads_its_weight_when_compiled(device):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    model[0].weight.data.mul_(2)
    twin = copy.deepcopy(model)
    expected = torch_tiled.unfreeze(copy.deepcopy(model))(x)
    graphs, record = recorder("eager")
    compiled = torch.compile(twin, fullgraph=True, backend=record)
    assert_same_bits(compiled(x), expected)
    assert graphs[-1].count(ops.linear.default) == 2
    twin(x)
    assert_same_bits(compiled(x), expected)
    assert graphs[-1].count(ops.linear.prepared) == 2


def test_dynamic_shapes_of_frozen_layers(device):
    model = torch_tiled.freeze(make_model(device))
    inputs = [(torch.randn(rows, 140, device=device),) for rows in (4, 7, 10)]
    assert count_compilations(model, inputs) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_frozen_layers_are_exported(device, strict, tmp_path):
    model, x = torch_tiled.freeze(make_model(device)), torch.randn(9, 140, device=device)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(ops.linear.prepared) == 2
    assert list(program.state_dict) == list(model.state_dict())
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for rows in (2, 9):
        for p in (program, loaded, program.run_decompositions()):
            assert_close(p.module()(x[:rows]), model(x[:rows]))


@pytest.mark.parametrize("compile", [False, True])
def test_other_weights_by_functional_call(device, compile):
    layer = torch_tiled.freeze(make_model(device)[0])
    x, other = torch.randn(9, 140, device=device), make_model(device)[0]
    weights = dict(other.named_parameters())

    def call(weights, x):
        return functional_call(layer, weights, (x,))

    f = torch.compile(call, fullgraph=True, backend="eager") if compile else call
    for _ in range(2):
        assert_same_bits(f(weights, x), other(x))
        assert_same_bits(layer(x), torch_tiled.unfreeze(copy.deepcopy(layer))(x))


def test_compiled_graphs_notice_whose_weight_was_split(device):
    layer, other = torch_tiled.freeze(make_model(device)[0]), make_model(device)[0]
    x = torch.randn(9, 140, device=device)
    expected = torch_tiled.unfreeze(copy.deepcopy(layer))(x)
    graphs, record = recorder("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=record)
    assert_same_bits(compiled(x), expected)
    assert_same_bits(functional_call(layer, dict(other.named_parameters()), (x,)), other(x))
    assert_same_bits(compiled(x), expected)  # reads the weight, since the split is of another
    assert graphs == [[ops.linear.prepared], [ops.linear.default]]
    layer.weight = other.weight
    assert_same_bits(compiled(x), torch_tiled.unfreeze(copy.deepcopy(layer))(x))


def test_transforms_of_frozen_layers(device):
    layers = [torch_tiled.nn.Linear(140, 7, device=device) for _ in range(3)]
    x = torch.randn(5, 140, device=device)
    expected = torch.stack([layer(x) for layer in layers]).detach()
    for layer in layers:
        torch_tiled.freeze(layer.requires_grad_(False))
    parameters, buffers = stack_module_state(layers)
    ensemble = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))
    assert_close(ensemble(parameters, buffers).detach(), expected)
    assert_close(vmap(layers[0])(x), expected[0])
    jacobian = vmap(jacrev(layers[0]))(x)
    assert_close(jacobian, layers[0].weight.expand(5, 7, 140))

    def loss(parameters, sample):
        return functional_call(layers[0], parameters, (sample,)).square().sum()

    own = dict(layers[0].named_parameters())
    ours = vmap(grad(loss), (None, 0))(own, x)
    torch_tiled.unfreeze(layers[0])
    assert_close(ours, vmap(grad(loss), (None, 0))(own, x))
