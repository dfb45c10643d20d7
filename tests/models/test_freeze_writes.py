"""Every way to write to a frozen layer's weight: noticed, or on the list of what refreeze() is for.

The collectives of torch.distributed are in tests/pytorch/test_distributed_models.py.
"""

import copy
import gc
import sys
import weakref
from collections import OrderedDict

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.presplit import assert_like_unfrozen, make_model, presplit_algorithm, same_bits
from torch.optim.swa_utils import AveragedModel
from torch.testing._internal.two_tensor import TwoTensor

import torch_tiled
from torch_tiled import frozen

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def optimizer_of(parameter, name, **options):
    parameter.grad = torch.ones_like(parameter)
    return getattr(torch.optim, name)([parameter], lr=0.1, **options)


def step(name, compiled=False, **options):
    """A way to write: one step of an optimizer of torch.optim."""

    def write(layer):
        optimizer = optimizer_of(layer.weight, name, **options)
        function = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        function(lambda: 0.0) if name == "LBFGS" else function()

    return write


def step_of_an_alias(layer):
    optimizer_of(layer.weight.detach(), "AdamW", fused=True).step()


class Unversioned(torch.optim.Optimizer):
    """An optimizer that writes by a kernel of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(1)
                parameter.grad = None


def step_of_another_library(layer):
    layer.weight.requires_grad_().grad = torch.ones_like(layer.weight)
    Unversioned([layer.weight]).step()


def step_with_a_scaler(layer):
    device = layer.weight.device.type
    layer.weight.requires_grad_()
    optimizer = torch.optim.SGD([layer.weight], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(device)
    with torch.enable_grad():
        scaler.scale(layer.weight.sum()).backward()
    scaler.step(optimizer)


def average(layer):
    averaged = AveragedModel(layer)
    averaged.module = layer
    averaged.n_averaged += 1
    other = copy.deepcopy(layer)
    other.weight.mul_(2)
    averaged.update_parameters(other)


def swap(layer):
    torch.utils.swap_tensors(layer.weight, torch.nn.Parameter(layer.weight * 2))


def compiled_writer(layer):
    torch.compile(lambda weight: weight.mul_(2), backend="aot_eager")(layer.weight)


@torch.library.custom_op("torch_tiled_tests::double", mutates_args={"weight"})
def double(weight: torch.Tensor) -> None:
    weight.mul_(2)


# --- the ways ------------------------------------------------------------------------------------

FUSED = ["Adam", "AdamW", "SGD", "Adagrad"]
OTHERS = ["Adadelta", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor"]
NOTICED = {
    **{f"{name} fused": step(name, fused=True) for name in FUSED},
    **{f"{name} foreach": step(name, foreach=True) for name in FUSED},
    **{f"{name} compiled": step(name, True, foreach=False) for name in FUSED[:2]},
    **{f"{name} fused, compiled": step(name, True, fused=True) for name in FUSED[:2]},
    **{name: step(name) for name in OTHERS + ["Muon"] * hasattr(torch.optim, "Muon")},
    "an optimizer of an alias": step_of_an_alias,
    "an optimizer of another library": step_of_another_library,
    "GradScaler": step_with_a_scaler,
    "copy_": lambda layer: layer.weight.copy_(layer.weight * 2),
    "a slice": lambda layer: layer.weight[3:5].mul_(2),
    "as_strided": lambda layer: layer.weight.as_strided((3,), (1,)).add_(1),
    "out=": lambda layer: torch.mul(layer.weight, 2, out=layer.weight),
    "_foreach_mul_": lambda layer: torch._foreach_mul_([layer.weight], 2),
    "index_put_": lambda layer: layer.weight.__setitem__(
        torch.tensor([1, 2]), torch.rand(()).item()
    ),
    "torch.nn.init": lambda layer: torch.nn.init.normal_(layer.weight),
    "a custom operator": lambda layer: double(layer.weight),
    "a compiled writer": compiled_writer,
    "under inference_mode": torch.inference_mode()(lambda layer: layer.weight.mul_(2)),
    ".data =": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "set_": lambda layer: layer.weight.set_(layer.weight * 2),
    "swap_tensors": swap,
    "vector_to_parameters": lambda layer: torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(layer.parameters()) * 2, layer.parameters()
    ),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
    "AveragedModel": average,
    "share_memory_": lambda layer: layer.share_memory().weight.mul_(2),
}
# docs/guide/models.md and freeze() say that refreeze() is for these.
UNNOTICED = {
    ".data": lambda layer: layer.weight.data.mul_(2),
    "untyped_storage": lambda layer: layer.weight.untyped_storage().copy_(
        (layer.weight * 2).untyped_storage()
    ),
    "DLPack": lambda layer: torch.from_dlpack(layer.weight.detach()).mul_(2),
    "an alias of .data": lambda layer: step("SGD", foreach=True)(
        torch.nn.ParameterDict({"weight": layer.weight.data})
    ),
}


def served(device, model=None):
    """A layer that is frozen and was called, and its input."""
    layer, x = (
        torch_tiled.freeze(model or make_model(device)[0]),
        torch.randn(9, 140, device=device),
    )
    with torch.no_grad():
        return layer, x, layer(x)


def written(layer, write, x, before):
    """Writes, and checks that the write changes what the layer has to return."""
    with torch.no_grad():
        write(layer)
    layer.requires_grad_(False)
    assert not same_bits(torch_tiled.unfreeze(copy.deepcopy(layer))(x), before)


@pytest.mark.parametrize("way", NOTICED)
@pytest.mark.usefixtures("splits_on_cpu")
def test_ways_to_write_that_are_noticed(device, way):
    """Fused optimizers leave no version, and a frozen layer served the old weight."""
    if (device, way) == ("cuda", "Adagrad fused"):
        pytest.skip("Adagrad is not fused on CUDA")
    layer, x, before = served(device)
    assert torch_tiled.frozen_bytes(layer) > 0 or presplit_algorithm(device) == "auto"
    for _ in range(2):
        written(layer, NOTICED[way], x, before)
        assert_like_unfrozen(layer, x)
        before = layer(x)


@pytest.mark.parametrize("way", UNNOTICED)
@pytest.mark.usefixtures("splits_on_cpu")
def test_ways_to_write_that_refreeze_is_for(device, way):
    """Aliases with a version of their own are documented, and refreeze() is the remedy."""
    layer, x, before = served(device)
    memory = [buffer.data_ptr() for buffer in layer.buffers()]
    written(layer, UNNOTICED[way], x, before)
    assert torch_tiled.refreeze(layer) is layer
    assert_like_unfrozen(layer, x)
    assert [buffer.data_ptr() for buffer in layer.buffers()] == memory


CPU_ONLY = {"NumPy": lambda layer: layer.weight.detach().numpy().__imul__(2)}


@pytest.mark.parametrize("way", NOTICED | UNNOTICED | CPU_ONLY)
def test_every_way_to_write_is_noticed_on_the_cpu(way):
    """A frozen layer on a CPU splits nothing, and each call and compiled graph reads the weight."""
    layer, x, before = served("cpu")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(x)
    assert torch_tiled.frozen_bytes(layer) == 0
    written(layer, (NOTICED | UNNOTICED | CPU_ONLY)[way], x, before)
    expected = torch_tiled.unfreeze(copy.deepcopy(layer))(x)
    assert same_bits(layer(x), expected)
    assert same_bits(compiled(x), expected)


@needs_cuda
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("capturable", [False, True])
def test_a_replayed_graph_that_writes(capturable):
    """A replay runs no Python, so it is on the list of what refreeze() is for."""
    layer, x, before = served("cuda")
    optimizer = optimizer_of(layer.weight, "AdamW", capturable=True)

    def write():
        with torch.no_grad():
            optimizer.step() if capturable else layer.weight.mul_(2)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        write()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write()
    assert_like_unfrozen(layer.requires_grad_(False), x)
    written(layer, lambda layer: graph.replay(), x, before)
    assert_like_unfrozen(torch_tiled.refreeze(layer), x)


# --- what noticing must not do -------------------------------------------------------------------


def test_refreeze_leaves_layers_that_are_not_frozen():
    model = make_model("cpu")
    torch_tiled.freeze(model[0])
    assert torch_tiled.refreeze(model) is model
    assert "frozen" in repr(model[0]) and "frozen" not in repr(model[2])


@pytest.mark.usefixtures("splits_on_cpu")
def test_steps_of_other_parameters_split_nothing(device, monkeypatch):
    """A frozen teacher beside a student in training is split once, though one optimizer has both,
    and though the student's step is compiled."""
    layer, x, _ = served(device)
    monkeypatch.setattr(layer, "_split", lambda: pytest.fail("is split again"))
    student = torch.nn.Linear(3, 3, device=device)
    for kind in ("alone", "with the teacher", "compiled"):
        parameters = [*student.parameters()]
        optimizer = torch.optim.AdamW(
            parameters if kind == "alone" else [*parameters, *layer.parameters()], foreach=False
        )
        student(torch.ones(2, 3, device=device)).sum().backward()
        if kind == "compiled":
            torch.compile(optimizer.step, backend="eager")()
        else:
            optimizer.step()
        layer(x)


@pytest.fixture
def without_hook(monkeypatch):
    """No layer was frozen yet in this process, so that optimizers have no hook."""
    optimizers = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", OrderedDict())
    frozen._register_hook.cache_clear()
    yield
    frozen._register_hook.cache_clear()


@pytest.mark.usefixtures("splits_on_cpu", "without_hook")
def test_a_step_that_was_compiled_before_the_first_layer_was_frozen(device):
    """The compiled step calls the hook that was registered since."""
    layer = make_model(device)[0]
    optimizer = optimizer_of(layer.weight, "SGD", fused=True)
    compiled = torch.compile(optimizer.step, backend="eager")
    compiled()
    layer, x, before = served(device, layer)
    written(layer, lambda layer: compiled(), x, before)
    assert_like_unfrozen(layer, x)


@pytest.mark.usefixtures("splits_on_cpu")
def test_compiled_graphs_notice_a_step(device):
    """A compiled graph reads the weight after a step outside of it, and the split again later."""
    layer, x, before = served(device)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(x)
    written(layer, step("AdamW", fused=True), x, before)
    expected = torch_tiled.unfreeze(copy.deepcopy(layer))(x)
    assert same_bits(compiled(x), expected)
    assert same_bits(layer(x), expected)
    assert same_bits(compiled(x), expected)


@pytest.mark.usefixtures("splits_on_cpu")
def test_noticing_keeps_no_layer_alive(device):
    """The hook that every optimizer calls refers to frozen layers weakly."""
    layer, x, _ = served(device)
    dead = weakref.ref(layer)
    step("SGD", fused=True)(layer)
    del layer
    gc.collect()
    assert dead() is None
    step("SGD", fused=True)(torch.nn.Linear(2, 2))


@pytest.mark.usefixtures("splits_on_cpu")
def test_steps_of_any_parameters_pass_the_hook(device):
    """Optimizers of sparse, meta and complex parameters, and of subclasses, work as before."""
    served(device)
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    torch.optim.SparseAdam(sparse.parameters()).step()
    for parameter in (
        torch.nn.Parameter(torch.ones(3, 3, device="meta")),
        torch.nn.Parameter(torch.ones(3, 3, dtype=torch.complex64)),
        torch.nn.Parameter(TwoTensor(torch.ones(3, 3), torch.ones(3, 3))),
        torch.nn.Buffer(torch.ones(3)),
    ):
        parameter.grad = torch.zeros_like(parameter)
        torch.optim.SGD([parameter]).step()
