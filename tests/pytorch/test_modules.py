"""Layers and converted models in what PyTorch does with modules: autocast, torch.func, forward AD,
threads, processes, copies and torch.compile.

The operators alone are in test_autocast.py, test_transforms.py, test_compile.py and test_cuda.py.
"""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.copies import COPIES
from helpers.modules import (
    KINDS,
    TRAINED,
    Overridden,
    add_one,
    assert_equal_tensors,
    compute,
    compute_in_process,
    double,
    in_threads,
    make,
    plain_model,
    products_by_pytorch,
    results,
    serving_model,
    trainable,
)
from helpers.needs import needs_cuda
from helpers.presplit import presplit_algorithm
from helpers.reference import assert_within, bound, linear_bound, product, rounded_bound
from helpers.thinning import each_value
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.testing import assert_close
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

import torch_tiled

pytestmark = pytest.mark.usefixtures("splits_on_cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_of_these_is_torch_tiled_s(kind, device):
    model, x = serving_model(kind, device), torch.randn(9, 140, device=device)
    with Calls() as record:
        results(model, x)
    name = "tiled::linear.prepared" if kind == "frozen" else "tiled::linear"
    in_backward = 2 if kind == "frozen" else 4  # for inputs, and for weights
    assert sorted(record.names()) == [name] * 2 + ["tiled::matmul"] * in_backward
    assert not products_by_pytorch(record)


def watched(model):
    """Two lists that calls fill: the dtypes of modules, and inputs and outputs of products."""
    flow, products = [], []

    def note(module, inputs, output):
        flow.append((inputs[0].dtype, output.dtype))
        if isinstance(module, torch.nn.Linear):
            output.retain_grad()
            products.append((module, inputs[0], output))

    for module in model.modules():
        module.register_forward_hook(note)
    return flow, products


@pytest.mark.parametrize("region", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, region, device):
    theirs = plain_model(torch.nn.GELU(), torch.nn.LayerNorm(150), device=device)
    ours = make(kind, theirs)
    for p, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        p.requires_grad_(other.requires_grad)
    x = torch.randn(9, 140, device=device, requires_grad=True)
    flows = []
    for model in (theirs, ours):
        flow, products = watched(model)
        with torch.autocast(device, region):
            y = model(x)
        x.grad = None
        y.float().square().sum().backward()
        flows.append([*flow, x.grad.dtype, *(p.grad.dtype for p in trainable(model))])
    assert flows[0] == flows[1]
    assert y.dtype == region and flows[1][-1] == torch.float32
    for layer, x_in, y in products:
        weight, bias, of_y = layer.weight.detach().to(region), layer.bias.to(region), y.grad
        x_in = x_in.detach().to(region)
        exact = F.linear(x_in.double(), weight.double(), bias.double())
        assert_within(y, exact, linear_bound(x_in, weight, bias))
        assert of_y.dtype == region
        if layer.weight.requires_grad:
            assert_within(layer.weight.grad, product(of_y.mT, x_in), bound(of_y.mT, x_in))
        exact, size = of_y.double().sum(0), of_y.double().abs().sum(0)
        assert_within(layer.bias.grad, exact, rounded_bound(exact, size, 9, 1, region))
        if layer is ours[0]:
            assert_within(x.grad, product(of_y, weight), bound(of_y, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_nested_regions(kind, device):
    model, x = make(kind, plain_model(device=device)), torch.randn(9, 140, device=device)
    outside = model(x)
    with torch.autocast(device, torch.bfloat16):
        first = model(x)
        with torch.autocast(device, enabled=False):
            assert torch.equal(model(x), outside)
        with torch.autocast(device, torch.float16):
            assert model(x).dtype == torch.float16
        assert torch.equal(model(x), first)
    assert (outside.dtype, first.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(model(x), outside)


def scalar(f):
    return lambda *args: f(*args).sin().sum()


def other(tree):
    return tree_map(torch.cos, tree)


def pair(tree):
    return tree_map(lambda leaf: torch.stack([leaf, leaf.sin()]), tree)


# Each transforms f(parameters, x).
TRANSFORMS = {
    "functional_call": lambda f: lambda p, x: f(other(p), x),
    "grad": lambda f: grad(scalar(f), argnums=(0, 1)),
    "vjp": lambda f: lambda p, x: vjp(f, p, x)[1](f(p, x).cos()),
    "jvp": lambda f: lambda p, x: jvp(f, (p, x), (other(p), other(x))),
    "linearize": lambda f: lambda p, x: linearize(f, p, x)[1](other(p), other(x)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(scalar(f), argnums=(0, 1)),
    "vmap over inputs": lambda f: vmap(f, (None, 0)),
    "vmap over parameters": lambda f: lambda p, x: vmap(f, (0, None))(pair(p), x),
    "vmap over both": lambda f: lambda p, x: vmap(f)(pair(p), pair(x)),
    "per-sample gradients": lambda f: vmap(grad(scalar(f)), (None, 0)),
}


def for_derivatives(kind, device):
    theirs = plain_model(torch.nn.Tanh(), sizes=(4, 5, 3), device=device, dtype=torch.float64)
    return make(kind, theirs), theirs, torch.randn(2, 4, device=device, dtype=torch.float64)


def by_parameters(model):
    return lambda parameters, x: functional_call(model, parameters, (x,))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", TRAINED)
def test_transforms(kind, name, device):
    ours, theirs, x = for_derivatives(kind, device)
    parameters = {name: p.detach() for name, p in theirs.named_parameters()}
    expected = TRANSFORMS[name](by_parameters(theirs))(parameters, x)
    transformed = TRANSFORMS[name](by_parameters(ours))
    assert_close(transformed(parameters, x), expected)
    with Calls() as record:
        transformed(parameters, x)
    assert record.names() and not products_by_pytorch(record)


@pytest.mark.parametrize("kind", TRAINED)
def test_ensemble(kind, device):
    """The ensemble of PyTorch's tutorial: stacked parameters, and a model on the meta device."""
    models = [for_derivatives(kind, device)[0] for _ in range(3)]
    _, _, x = for_derivatives(kind, device)
    state = stack_module_state(models)
    empty = copy.deepcopy(models[0]).to("meta")

    def run(parameters, buffers, x):
        return functional_call(empty, (parameters, buffers), (x,))

    y = vmap(run, (0, 0, None))(*state, x)
    assert_close(y, torch.stack([model(x) for model in models]))
    gradients = vmap(grad(scalar(run)), (0, 0, None))(*state, x)
    for i, model in enumerate(models):
        expected = torch.autograd.grad(model(x).sin().sum(), trainable(model))
        assert_close([gradient[i] for gradient in gradients.values()], list(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_ad(kind, device):
    """Input and parameters have tangents, and so have the output and the gradients."""
    ours, theirs, x = for_derivatives(kind, device)
    x.requires_grad_()
    tangents = []
    for model in (ours, theirs):
        own = dict(ours.named_parameters())  # a frozen layer takes no tangent to its weight
        live = {name: p for name, p in model.named_parameters() if own[name].requires_grad}
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(p, p.cos()) for name, p in live.items()}
            dual = forward_ad.make_dual(x, x.cos())
            y = functional_call(model, duals, (dual,))
            gradients = torch.autograd.grad(y.sin().sum(), [x, *live.values()], create_graph=True)
            tangents.append([forward_ad.unpack_dual(z).tangent for z in (y, *gradients)])
    assert_close(*tangents)


# --- threads, processes and copies ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_model(kind, device):
    model = serving_model(kind, device)
    inputs = torch.randn(8, 9, 140, device=device)
    expected = [results(model, x) for x in inputs]

    def work(i):
        for _ in range(10):
            assert_equal_tensors(results(model, inputs[i]), expected[i])

    in_threads(work, len(inputs))


def test_threads_call_a_copy_of_a_frozen_model_first(device):
    """Each thread finds that the weight is not split yet, and splits it."""
    sizes = (500, 400, 129)
    theirs = plain_model(torch.nn.ReLU(), sizes=sizes, device=device)
    model, x = (
        make("frozen", theirs, presplit_algorithm(device)),
        torch.randn(9, 500, device=device),
    )
    with torch.no_grad():
        expected = model(x)
        for _ in range(5):
            twin = copy.deepcopy(model)
            for buffer in twin.buffers():
                buffer.fill_(1)
            in_threads(lambda _, twin=twin: assert_equal_tensors([twin(x)], [expected]), 8)


def test_override_holds_for_its_own_thread_alone(device):
    """Every other thread runs a model under override, whose backward is torch_tiled's, too."""
    model, x = plain_model(torch.nn.ReLU(), device=device), torch.randn(9, 140, device=device)
    ours = Overridden(*model)

    def work(i):
        for _ in range(5):
            with Calls() as record:
                results(model if i % 2 else ours, x)
            counts = len(products_by_pytorch(record)), len(record.names())
            assert counts == ((6, 0) if i % 2 else (0, 6))

    in_threads(work, 8)


@pytest.mark.parametrize("kind", TRAINED)
def test_another_thread_runs_backward(kind, device):
    model, x = serving_model(kind, device), torch.randn(8, 9, 140, device=device)
    expected = [results(model, each)[2:] for each in x]
    losses = [model(each).square().sum() for each in x]

    def work(i):
        with Calls() as record:
            gradients = torch.autograd.grad(losses[i], trainable(model))
        assert record.names() == ["tiled::matmul"] * 3
        assert_equal_tensors(gradients, expected[i])

    in_threads(work, len(x))


@pytest.fixture
def one_thread():
    """A forked process has one thread, since OpenMP's threads are not forked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "method, device",
    [("fork", "cpu"), ("spawn", "cpu"), pytest.param("spawn", "cuda", marks=needs_cuda)],
)
def test_another_process_has_a_shared_model(method, device, one_thread):
    """The other process computes the same and trains the model. A forked one does not train, since
    autograd's threads are not forked."""
    trains = method != "fork"
    models = {kind: serving_model(kind, device) for kind in KINDS}
    x = torch.randn(9, 140, device=device)
    twins, untrained = copy.deepcopy(models), copy.deepcopy(models)
    for model in models.values():
        model.share_memory()
    expected = compute(twins, x, trains)
    context = torch.multiprocessing.get_context(method)
    connection, theirs = context.Pipe()
    child = context.Process(target=compute_in_process, args=(theirs, models, x, trains))
    child.start()
    assert connection.poll(120), "the other process says nothing"
    assert_equal_tensors(pickle.loads(connection.recv_bytes()), expected)
    child.join()
    assert child.exitcode == 0
    for kind, twin in twins.items():  # its steps are seen here
        assert_equal_tensors(models[kind].parameters(), twin.parameters())
        stays = torch.equal(models[kind][0].weight, untrained[kind][0].weight)
        assert stays == (not trains or kind == "frozen")


class Computed(Dataset):
    def __init__(self, models, inputs):
        self.models = models
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        with torch.no_grad():
            return [model(self.inputs[i]) for model in self.models]


def test_data_loader(one_thread):
    dataset = Computed([serving_model(kind, "cpu") for kind in KINDS], torch.randn(12, 140))
    loader = DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context="fork")
    expected = [torch.stack(columns) for columns in zip(*dataset, strict=True)]
    batches = [torch.cat(columns) for columns in zip(*loader, strict=True)]
    assert_equal_tensors(batches, expected)


def triple(module, of_inputs, of_outputs):
    return (of_inputs[0] * 3,)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_have_the_hooks(kind, copied, device):
    model, x = serving_model(kind, device), torch.randn(9, 140, device=device)
    unhooked = results(model, x)
    layer = model[0]
    hooks = [layer.register_forward_pre_hook(add_one), layer.register_forward_hook(double)]
    hooks.append(layer.register_full_backward_hook(triple))
    expected = results(model, x)
    twin = copied(model)
    assert_equal_tensors(results(twin, x), expected)
    for hook in hooks:
        hook.remove()
    assert_equal_tensors(results(model, x), unhooked)
    assert_equal_tensors(results(twin, x), expected)
    assert not any(torch.equal(y, z) for y, z in zip(expected[:2], unhooked[:2], strict=True))
    assert all(p is not q for p, q in zip(twin.parameters(), model.parameters(), strict=True))
    torch_tiled.revert(twin)
    assert len(twin[0]._forward_hooks) == len(twin[0]._backward_hooks) == 1


# --- torch.compile -------------------------------------------------------------------------------


def assert_alike(ours, others):
    """Equal bits, except for gradients of a bias, which Inductor sums in its own order."""
    for mine, other in zip(ours, others, strict=True):
        if mine.dim() == 1:
            assert_close(mine, other)
        else:
            assert_equal_tensors([mine], [other])


@pytest.fixture
def counted():
    torch.compiler.reset()
    counters.clear()


@each_value
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_for_speed(kind, mode, device, counted):
    """One graph, without a break; on CUDA it is captured, and replayed with other inputs."""
    model = serving_model(kind, device)
    compiled = torch.compile(model, mode=mode, fullgraph=True)

    def run(x):
        torch.compiler.cudagraph_mark_step_begin()
        return results(compiled, x)

    x = torch.randn(33, 140, device=device)
    actual, codes = run_and_get_code(run, x)
    calls = "".join(codes)
    assert calls.count("= torch.ops.tiled.linear.") == 2
    assert calls.count("= torch.ops.tiled.matmul.") == (2 if kind == "frozen" else 4)
    assert "extern_kernels." not in calls
    assert_alike(actual, results(model, x))
    for _ in range(4):
        x = torch.randn(33, 140, device=device)
        assert_alike(run(x), results(model, x))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    if device == "cuda":
        assert counters["inductor"]["cudagraph_skips"] == 0


VIEWS = {
    "transposed": lambda x: x[:140, :9].mT,
    "every other": lambda x: x[:9, 1:281:2],
    "expanded": lambda x: x[0, :140].expand(9, 140),
    "of a batch": lambda x: x[:90, :140].reshape(10, 9, 140).transpose(0, 1)[:, 3],
}


@pytest.mark.parametrize(
    "kind, view",
    [("layer", "transposed"), ("overridden", "transposed"), ("frozen", "transposed")]
    + [("converted", view) for view in VIEWS],
)
def test_views_are_not_copied_when_compiled(kind, view, device, counted):
    """The caller passes a view, or the graph makes one; forward and backward."""
    layer = torch.nn.Linear(140, 150, bias=False, device=device)
    model = make(kind, torch.nn.Sequential(layer))
    store, seed = torch.randn(200, 300, device=device), torch.randn(9, 150, device=device)
    view_of = VIEWS[view]

    def run(f, x):
        y = f(x)
        return [y, *torch.autograd.grad(y, trainable(model), seed)] if y.requires_grad else [y]

    for f, x in ((model, view_of(store)), (lambda x: model(view_of(x)), store)):
        actual, codes = run_and_get_code(run, torch.compile(f, fullgraph=True), x)
        assert_equal_tensors(actual, run(f, x))
        assert len(codes) == (1 if kind == "frozen" else 2)
        for code in codes:
            body = code.partition("def call(")[2]
            assert "= torch.ops.tiled." in body and "empty_strided" not in body


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_in_autocast(kind, device, counted):
    model, x = (
        make(kind, plain_model(torch.nn.ReLU(), device=device)),
        torch.randn(9, 140, device=device),
    )
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        (y, *gradients), (other, *others) = (
            (y, *torch.autograd.grad(y.float().square().sum(), trainable(model)))
            for y in (compiled(x), model(x))
        )
    assert y.dtype == torch.bfloat16
    assert_equal_tensors([y, *gradients], [other, *others])


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_with_hooks(kind, device, counted):
    model, x = serving_model(kind, device), torch.randn(9, 140, device=device)
    unhooked = model(x)
    model[0].register_forward_pre_hook(add_one)
    model[0].register_forward_hook(double)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_equal_tensors([compiled(x)], [model(x)])
    assert not torch.equal(model(x), unhooked)
