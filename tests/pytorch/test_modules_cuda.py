"""Models on streams of their own, in threads with streams, and in captured graphs."""

import copy

import pytest
import torch
from helpers.modules import KINDS, assert_equal_tensors, in_threads, make, plain_model, results
from helpers.needs import needs_cuda

import torch_tiled

# Products of 300 x 1030 x 1030 and more need a workspace on a Hopper GPU.
LARGE = (1030, 1100, 1050)


def large(kind):
    model = make(kind, plain_model(torch.nn.ReLU(), sizes=LARGE, device="cuda"))
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
        assert_equal_tensors(ours, others)


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
        assert_equal_tensors(ours, expected[i])


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
        assert_equal_tensors(ours, others)


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
                    assert_equal_tensors(results(model, inputs[i]), expected[kind][i])

    in_threads(work, len(inputs))


@pytest.fixture(params=[(140, 150, 129), LARGE], ids=["small", "large"])
def sizes(request):
    return request.param


def scaled(model, kind):
    """Writes to the parameters, as an optimizer does. A captured graph cannot notice that a frozen
    weight changed."""
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
    model = make(kind, plain_model(torch.nn.ReLU(), sizes=sizes, device="cuda"))
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
        assert_equal_tensors([served, *trained], [expected[0], *expected])


@needs_cuda
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("kind", KINDS)
def test_graphed_callables(kind, sizes):
    model = make(kind, plain_model(torch.nn.ReLU(), sizes=sizes, device="cuda"))
    twin = copy.deepcopy(model)
    sample = torch.randn(33, sizes[0], device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(3):
        x = torch.randn(33, sizes[0], device="cuda")
        assert_equal_tensors(results(graphed, x), results(twin, x))
        for each in (model, twin):
            scaled(each, kind)
