"""Layers and converted models in what PyTorch does with modules.

The operators alone are in test_autocast.py, test_transforms.py, test_compile.py and test_cuda.py.
"""

import copy
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.needs import needs_cuda
from helpers.reference import assert_within, bound, halves_bound, linear_bound, product
from test_prepare import by_halves
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


class Rerouted(torch.nn.Sequential):
    """A plain model, whose products are rerouted."""

    def forward(self, input):
        with torch_tiled.override():
            return super().forward(input)


KINDS = ["layer", "converted", "rerouted", "frozen"]
TRAINED = KINDS[:-1]


def plain(*between, sizes=(70, 80, 65), device="cpu", dtype=torch.float32):
    options = {"device": device, "dtype": dtype}
    first, last = (
        torch.nn.Linear(*pair, **options) for pair in zip(sizes, sizes[1:], strict=False)
    )
    return torch.nn.Sequential(first, *between, last).to(device, dtype)


def made(kind, theirs, algorithm="auto"):
    """A copy of a plain model that computes by torch_tiled."""
    model = copy.deepcopy(theirs)
    if kind == "converted":
        torch_tiled.convert(model, strict=True)
        return model
    if kind == "rerouted":
        return Rerouted(*model)
    for i, layer in enumerate(model):
        if type(layer) is torch.nn.Linear:
            model[i] = torch_tiled.nn.Linear(
                layer.in_features, layer.out_features, layer.bias is not None, algorithm=algorithm
            )
            model[i].weight, model[i].bias = layer.weight, layer.bias
            if kind == "frozen":
                layer.weight.requires_grad_(False)
    return torch_tiled.freeze(model) if kind == "frozen" else model


def serving(kind, device):
    """A model of that kind, whose ReLU rounds nothing. A frozen one reads halves, on a CPU too."""
    algorithm = by_halves(device) if kind == "frozen" else "auto"
    return made(kind, plain(torch.nn.ReLU(), device=device), algorithm)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def results(model, x):
    """What it computes, and every gradient."""
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *trainable(model)])]


def pytorchs(record):
    """Those products that PyTorch computed."""
    return [x for x in record.names("aten") if x in ("aten::mm", "aten::addmm", "aten::bmm")]


def assert_same_bits(ours, others):
    for i, (mine, other) in enumerate(zip(ours, others, strict=True)):
        assert torch.equal(mine, other), f"number {i} differs by {(mine - other).abs().max()}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_of_these_is_torch_tiled_s(kind, device):
    model, x = serving(kind, device), torch.randn(9, 70, device=device)
    with Calls() as record:
        results(model, x)
    name = "tiled::linear.prepared" if kind == "frozen" else "tiled::linear"
    in_backward = 2 if kind == "frozen" else 4  # for inputs, and for weights
    assert sorted(record.names()) == [name] * 2 + ["tiled::matmul"] * in_backward
    assert not pytorchs(record)


# --- autocast ------------------------------------------------------------------------------------


def watched(model):
    """Fills a list with each module's dtypes, and another with what its products took and gave."""
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
    theirs = plain(torch.nn.GELU(), torch.nn.LayerNorm(80), device=device)
    ours = made(kind, theirs)
    for p, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        p.requires_grad_(other.requires_grad)
    x = torch.randn(9, 70, device=device, requires_grad=True)
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
        assert_within(layer.bias.grad, exact, halves_bound(exact, size, 9, 1, region))
        if layer is ours[0]:
            assert_within(x.grad, product(of_y, weight), bound(of_y, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_nested_regions(kind, device):
    model, x = made(kind, plain(device=device)), torch.randn(9, 70, device=device)
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


# --- torch.func and forward AD -------------------------------------------------------------------


def scalar(f):
    return lambda *args: f(*args).sin().sum()


def other(tree):
    return tree_map(torch.cos, tree)


def pair(tree):
    return tree_map(lambda leaf: torch.stack([leaf, leaf.sin()]), tree)


# Of f(parameters, x).
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
    theirs = plain(torch.nn.Tanh(), sizes=(4, 5, 3), device=device, dtype=torch.float64)
    return made(kind, theirs), theirs, torch.randn(2, 4, device=device, dtype=torch.float64)


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
    assert record.names() and not pytorchs(record)


@pytest.mark.parametrize("kind", TRAINED)
def test_ensemble(kind, device):
    """As PyTorch's tutorial has it: stacked parameters, and a model without numbers."""
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
    """Tangents of a model's input and parameters, and of its gradients."""
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


# --- threads -------------------------------------------------------------------------------------


def in_threads(work, count):
    """work(i) in as many threads, which begin together; raises what one of them raised."""
    ready, failures = threading.Barrier(count), []

    def run(i):
        try:
            ready.wait()
            work(i)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_model(kind, device):
    model = serving(kind, device)
    inputs = torch.randn(8, 9, 70, device=device)
    expected = [results(model, x) for x in inputs]

    def work(i):
        for _ in range(10):
            assert_same_bits(results(model, inputs[i]), expected[i])

    in_threads(work, len(inputs))


def test_threads_call_a_copy_of_a_frozen_model_first(device):
    """Each finds that it is not split yet, and does it."""
    sizes = (500, 400, 65)
    theirs = plain(torch.nn.ReLU(), sizes=sizes, device=device)
    model, x = made("frozen", theirs, by_halves(device)), torch.randn(9, 500, device=device)
    with torch.no_grad():
        expected = model(x)
        for _ in range(5):
            twin = copy.deepcopy(model)
            for buffer in twin.buffers():
                buffer.fill_(1)
            in_threads(lambda _, twin=twin: assert_same_bits([twin(x)], [expected]), 8)


def test_override_holds_for_its_own_thread_alone(device):
    """One model in many threads: in every other one its products are rerouted, backward too."""
    model, x = plain(torch.nn.ReLU(), device=device), torch.randn(9, 70, device=device)
    ours = Rerouted(*model)

    def work(i):
        for _ in range(5):
            with Calls() as record:
                results(model if i % 2 else ours, x)
            counts = len(pytorchs(record)), len(record.names())
            assert counts == ((6, 0) if i % 2 else (0, 6))

    in_threads(work, 8)


@pytest.mark.parametrize("kind", TRAINED)
def test_another_thread_runs_backward(kind, device):
    model, x = serving(kind, device), torch.randn(8, 9, 70, device=device)
    expected = [results(model, each)[2:] for each in x]
    losses = [model(each).square().sum() for each in x]

    def work(i):
        with Calls() as record:
            gradients = torch.autograd.grad(losses[i], trainable(model))
        assert record.names() == ["tiled::matmul"] * 3
        assert_same_bits(gradients, expected[i])

    in_threads(work, len(x))


# --- processes -----------------------------------------------------------------------------------


def compute(models, x, trains):
    """What models compute, before and after a step of those that are trained."""
    torch.set_num_threads(1)
    computed = []
    for kind, model in models.items():
        y = model(x)
        computed.append(y.detach().cpu())
        if trains and kind in TRAINED:
            y.square().mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            computed.append(model(x).detach().cpu())
    return computed


def process(connection, *args):
    connection.send_bytes(pickle.dumps(compute(*args)))


@pytest.fixture
def one_thread():
    """As forked processes have it, since OpenMP's threads are not forked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "method, device",
    [("fork", "cpu"), ("spawn", "cpu"), pytest.param("spawn", "cuda", marks=needs_cuda)],
)
def test_another_process_has_a_shared_model(method, device, one_thread):
    """It computes the same, and trains it; but autograd's threads are not forked."""
    trains = method != "fork"
    models = {kind: serving(kind, device) for kind in KINDS}
    x = torch.randn(9, 70, device=device)
    twins, untrained = copy.deepcopy(models), copy.deepcopy(models)
    for model in models.values():
        model.share_memory()
    expected = compute(twins, x, trains)
    context = torch.multiprocessing.get_context(method)
    connection, theirs = context.Pipe()
    child = context.Process(target=process, args=(theirs, models, x, trains))
    child.start()
    assert connection.poll(120), "the other process says nothing"
    assert_same_bits(pickle.loads(connection.recv_bytes()), expected)
    child.join()
    assert child.exitcode == 0
    for kind, twin in twins.items():  # its steps are seen here
        assert_same_bits(models[kind].parameters(), twin.parameters())
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
    """Its workers are forked, and call the models."""
    dataset = Computed([serving(kind, "cpu") for kind in KINDS], torch.randn(12, 70))
    loader = DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context="fork")
    expected = [torch.stack(columns) for columns in zip(*dataset, strict=True)]
    batches = [torch.cat(columns) for columns in zip(*loader, strict=True)]
    assert_same_bits(batches, expected)


# --- copies --------------------------------------------------------------------------------------


def add_one(module, inputs):
    return (inputs[0] + 1,)


def double(module, inputs, output):
    return output * 2


def triple(module, of_inputs, of_outputs):
    return (of_inputs[0] * 3,)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved],
    ids=["deepcopy", "pickle", "torch.save"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_have_the_hooks(kind, copied, device):
    model, x = serving(kind, device), torch.randn(9, 70, device=device)
    unhooked = results(model, x)
    layer = model[0]
    hooks = [layer.register_forward_pre_hook(add_one), layer.register_forward_hook(double)]
    hooks.append(layer.register_full_backward_hook(triple))
    expected = results(model, x)
    twin = copied(model)
    assert_same_bits(results(twin, x), expected)
    for hook in hooks:
        hook.remove()
    assert_same_bits(results(model, x), unhooked)
    assert_same_bits(results(twin, x), expected)
    assert not any(torch.equal(y, z) for y, z in zip(expected[:2], unhooked[:2], strict=True))
    assert all(p is not q for p, q in zip(twin.parameters(), model.parameters(), strict=True))
    torch_tiled.revert(twin)
    assert len(twin[0]._forward_hooks) == len(twin[0]._backward_hooks) == 1


# --- compiled ------------------------------------------------------------------------------------


def assert_alike(ours, others):
    """In bits, but for gradients of a bias, which Inductor sums in an order of its own."""
    for mine, other in zip(ours, others, strict=True):
        if mine.dim() == 1:
            assert_close(mine, other)
        else:
            assert_same_bits([mine], [other])


@pytest.fixture
def counted():
    torch.compiler.reset()
    counters.clear()


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_for_speed(kind, mode, device, counted):
    """One graph, without a break; on CUDA it is captured, and replayed with other inputs."""
    model = serving(kind, device)
    compiled = torch.compile(model, mode=mode, fullgraph=True)

    def run(x):
        torch.compiler.cudagraph_mark_step_begin()
        return results(compiled, x)

    x = torch.randn(33, 70, device=device)
    actual, codes = run_and_get_code(run, x)
    calls = "".join(codes)
    assert calls.count("= torch.ops.tiled.linear.") == 2
    assert calls.count("= torch.ops.tiled.matmul.") == (2 if kind == "frozen" else 4)
    assert "extern_kernels." not in calls
    assert_alike(actual, results(model, x))
    for _ in range(4):
        x = torch.randn(33, 70, device=device)
        assert_alike(run(x), results(model, x))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    if device == "cuda":
        assert counters["inductor"]["cudagraph_skips"] == 0


VIEWS = {
    "transposed": lambda x: x[:70, :9].mT,
    "every other": lambda x: x[:9, 1:141:2],
    "expanded": lambda x: x[0, :70].expand(9, 70),
    "of a batch": lambda x: x[:90, :70].reshape(10, 9, 70).transpose(0, 1)[:, 3],
}


@pytest.mark.parametrize(
    "kind, view",
    [("layer", "transposed"), ("rerouted", "transposed"), ("frozen", "transposed")]
    + [("converted", view) for view in VIEWS],
)
def test_views_are_not_copied_when_compiled(kind, view, device, counted):
    """Whether the caller hands over a view or a graph makes one, forward and backward."""
    layer = torch.nn.Linear(70, 80, bias=False, device=device)
    model = made(kind, torch.nn.Sequential(layer))
    store, seed = torch.randn(100, 150, device=device), torch.randn(9, 80, device=device)
    make = VIEWS[view]

    def run(f, x):
        y = f(x)
        return [y, *torch.autograd.grad(y, trainable(model), seed)] if y.requires_grad else [y]

    for f, x in ((model, make(store)), (lambda x: model(make(x)), store)):
        actual, codes = run_and_get_code(run, torch.compile(f, fullgraph=True), x)
        assert_same_bits(actual, run(f, x))
        assert len(codes) == (1 if kind == "frozen" else 2)
        for code in codes:
            body = code.partition("def call(")[2]
            assert "= torch.ops.tiled." in body and "empty_strided" not in body


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_in_autocast(kind, device, counted):
    model, x = made(kind, plain(torch.nn.ReLU(), device=device)), torch.randn(9, 70, device=device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        (y, *gradients), (other, *others) = (
            (y, *torch.autograd.grad(y.float().square().sum(), trainable(model)))
            for y in (compiled(x), model(x))
        )
    assert y.dtype == torch.bfloat16
    assert_same_bits([y, *gradients], [other, *others])


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_with_hooks(kind, device, counted):
    model, x = serving(kind, device), torch.randn(9, 70, device=device)
    unhooked = model(x)
    model[0].register_forward_pre_hook(add_one)
    model[0].register_forward_hook(double)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same_bits([compiled(x)], [model(x)])
    assert not torch.equal(model(x), unhooked)


# --- streams and captured graphs -----------------------------------------------------------------

# 300 x 1030 x 1030 and more: products that take a workspace where there is Hopper's tensor core.
LARGE = (1030, 1100, 1050)


def large(kind):
    model = made(kind, plain(torch.nn.ReLU(), sizes=LARGE, device="cuda"))
    return model, torch.randn(4, 300, LARGE[0], device="cuda")


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_its_own(kind):
    """A model waits for its input and its gradients for each other; other streams wait for none."""
    model, inputs = large(kind)
    expected = [results(model, x) for x in inputs]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros_like(inputs)
        torch.cuda._sleep(100_000_000)
        late.copy_(inputs)
        actual = [results(model, x) for x in late]
        done = side.record_event()
    assert not done.query()
    torch.cuda.current_stream().wait_event(done)
    for ours, others in zip(actual, expected, strict=True):
        assert_same_bits(ours, others)


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_two_streams_at_once(kind):
    model, inputs = large(kind)
    expected = [results(model, x) for x in inputs]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    actual = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(5):
        for i, x in enumerate(inputs):
            with torch.cuda.stream(streams[i % 2]):
                actual.append((i, results(model, x)))
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    for i, ours in actual:
        assert_same_bits(ours, expected[i])


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_not_used_again_too_early(kind):
    """While one stream sleeps before its products, another writes NaN wherever memory is free."""
    model, inputs = large(kind)
    expected = [results(model, x) for x in inputs]
    side, lent = torch.cuda.Stream(), inputs.clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # so that it has memory, and need not ask for more
        [results(model, x) for x in lent]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        actual = [results(model, x) for x in lent]
        done = side.record_event()
    lent.record_stream(side)
    size = lent.numel()
    del lent
    for parts in (1, 4, 16, 64):
        [torch.full((size // parts,), torch.nan, device="cuda") for _ in range(8 * parts)]
    assert not done.query()
    torch.cuda.current_stream().wait_event(done)
    for ours, others in zip(actual, expected, strict=True):
        assert_same_bits(ours, others)


@needs_cuda
def test_threads_with_streams_of_their_own():
    models = {kind: large(kind)[0] for kind in KINDS}
    _, inputs = large("layer")
    expected = {kind: [results(model, x) for x in inputs] for kind, model in models.items()}
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                for kind, model in models.items():
                    assert_same_bits(results(model, inputs[i]), expected[kind][i])

    in_threads(work, len(inputs))


@pytest.fixture(params=[(70, 80, 65), LARGE], ids=["small", "large"])
def sizes(request):
    return request.param


def scaled(model, kind):
    """Writes to its parameters, as an optimizer does. Graphs do not see what a frozen one sees."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    if kind == "frozen":
        torch_tiled.freeze(model)


@needs_cuda
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("kind", KINDS)
def test_capture_and_replay(kind, sizes):
    """A forward pass, and with it a backward one: replayed with other inputs and parameters."""
    model = made(kind, plain(torch.nn.ReLU(), sizes=sizes, device="cuda"))
    x = torch.randn(33, sizes[0], device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        results(model, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with torch.no_grad():
            served = model(x)
        trained = results(model, x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        scaled(model, kind)
        for result in (served, *trained):
            result.fill_(torch.nan)
        graph.replay()
        expected = results(model, x)
        assert_same_bits([served, *trained], [expected[0], *expected])


@needs_cuda
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("kind", KINDS)
def test_graphed_callables(kind, sizes):
    model = made(kind, plain(torch.nn.ReLU(), sizes=sizes, device="cuda"))
    twin = copy.deepcopy(model)
    sample = torch.randn(33, sizes[0], device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(3):
        x = torch.randn(33, sizes[0], device="cuda")
        assert_same_bits(results(graphed, x), results(twin, x))
        for each in (model, twin):
            scaled(each, kind)
