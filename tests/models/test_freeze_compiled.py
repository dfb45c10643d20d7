"""Frozen layers under torch.compile, torch.export and transforms."""

import copy

import pytest
import torch
from helpers.compiling import count_compilations
from helpers.presplit import assert_same_bits, make_model, recorder
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap
from torch.testing import assert_close

import torch_tiled

ops = torch.ops.tiled

pytestmark = pytest.mark.usefixtures("fresh_compiler", "splits_on_cpu")


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
