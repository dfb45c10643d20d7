"""Models that threads and processes share, and copies of them."""

import copy
import pickle

import pytest
import torch
from helpers.calls import Calls
from helpers.copies import pickled, saved
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
from torch.utils.data import DataLoader, Dataset

import torch_tiled

pytestmark = pytest.mark.usefixtures("splits_on_cpu")


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


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, pickled, saved], ids=["deepcopy", "pickle", "torch.save"]
)
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
