"""Models under torch.compile: one graph without a break or a copy."""

import pytest
import torch
from helpers.modules import (
    KINDS,
    add_one,
    assert_equal_tensors,
    double,
    make,
    plain_model,
    results,
    serving_model,
    trainable,
)
from helpers.thinning import each_value
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("splits_on_cpu")


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
