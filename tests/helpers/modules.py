"""Small models of four kinds whose products are torch_tiled's, and what is done with them."""

import copy
import pickle
import threading

import torch
from helpers.presplit import presplit_algorithm

import torch_tiled


class Overridden(torch.nn.Sequential):
    """A plain model that runs under torch_tiled.override."""

    def forward(self, input):
        with torch_tiled.override():
            return super().forward(input)


KINDS = ["layer", "converted", "overridden", "frozen"]
TRAINED = KINDS[:-1]


def plain_model(*between, sizes=(140, 150, 129), device="cpu", dtype=torch.float32):
    options = {"device": device, "dtype": dtype}
    first, last = (
        torch.nn.Linear(*pair, **options) for pair in zip(sizes, sizes[1:], strict=False)
    )
    return torch.nn.Sequential(first, *between, last).to(device, dtype)


def make(kind, theirs, algorithm="auto"):
    """A copy of a plain model whose products are torch_tiled's."""
    model = copy.deepcopy(theirs)
    if kind == "converted":
        torch_tiled.convert(model, strict=True)
        return model
    if kind == "overridden":
        return Overridden(*model)
    for i, layer in enumerate(model):
        if type(layer) is torch.nn.Linear:
            model[i] = torch_tiled.nn.Linear(
                layer.in_features, layer.out_features, layer.bias is not None, algorithm=algorithm
            )
            model[i].weight, model[i].bias = layer.weight, layer.bias
            if kind == "frozen":
                layer.weight.requires_grad_(False)
    return torch_tiled.freeze(model) if kind == "frozen" else model


def serving_model(kind, device):
    """A model of that kind, whose ReLU rounds nothing.

    A frozen one reads presplit weights on the CPU as well, in tests with the fixture splits_on_cpu.
    """
    algorithm = presplit_algorithm(device) if kind == "frozen" else "auto"
    return make(kind, plain_model(torch.nn.ReLU(), device=device), algorithm)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def results(model, x):
    """The output of a model and every gradient."""
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *trainable(model)])]


def products_by_pytorch(record):
    """The products of a record that PyTorch computed."""
    return [x for x in record.names("aten") if x in ("aten::mm", "aten::addmm", "aten::bmm")]


def assert_equal_tensors(ours, others):
    for i, (mine, other) in enumerate(zip(ours, others, strict=True)):
        assert torch.equal(mine, other), f"number {i} differs by {(mine - other).abs().max()}"


def in_threads(work, count):
    """Calls work(i) in `count` threads that begin together, and raises what one of them raised."""
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


def compute(models, x, trains):
    """The outputs of models. With `trains` the trained kinds make a step, and compute again."""
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


def compute_in_process(connection, *args):
    """The body of another process, which sends what it computed."""
    connection.send_bytes(pickle.dumps(compute(*args)))


def add_one(module, inputs):
    """A forward pre-hook."""
    return (inputs[0] + 1,)


def double(module, inputs, output):
    """A forward hook."""
    return output * 2
