"""Streams, threads, captured graphs, huge sizes and memory of a GPU, for operators and models."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.modules import KINDS, assert_equal_tensors, in_threads, make, plain_model, results
from helpers.needs import needs_cuda, needs_hopper
from helpers.packaging import python
from helpers.reference import assert_within, bound, product, takes

import torch_tiled

pytestmark = needs_cuda

NAMED = [name for name in torch_tiled.algorithms() if takes(name, torch.float32, "cuda")]
ALGORITHMS = [*NAMED, "auto"]
WAYS = [
    *(pytest.param({"algorithm": name}, id=name) for name in ALGORITHMS),
    pytest.param({"precision": "tf32"}, id="tf32"),
]
FLOAT16_ALGORITHMS = [name for name in NAMED if takes(name, torch.float16, "cuda")]


@pytest.mark.parametrize("ways", WAYS)
def test_runs_on_the_current_stream(ways):
    """On a stream that sleeps first, the product waits for its inputs, and others do not wait."""
    a, b = torch.randn(100, 200, device="cuda"), torch.randn(200, 300, device="cuda")
    expected = torch_tiled.matmul(a, b, **ways)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros_like(a)
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        result = torch_tiled.matmul(late, b, **ways)
        pending = not side.query()
    assert pending
    side.synchronize()
    assert torch.equal(result, expected)


# Within a kernel these (m, n, k) differ in tiles, split-K, shared memory and workspace.
UNLIKE = (
    *((20, 900, 200), (600, 700, 1500), (12, 500, 5000)),
    *((1000, 1024, 72), (1000, 1024, 1500), (100, 200, 1000)),
)


@pytest.mark.parametrize("ways", WAYS)
def test_two_threads_on_two_streams(ways):
    """One thread goes through the problems, and the other through the same ones in reverse."""
    operands = [
        (torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda").mT)
        for m, n, k in UNLIKE
    ]
    expected = [torch_tiled.matmul(a, b, **ways) for a, b in operands]
    torch.cuda.synchronize()

    def work(order):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                results = [torch_tiled.matmul(*operands[i], **ways) for i in order]
                for i, result in zip(order, results, strict=True):
                    assert torch.equal(result, expected[i]), UNLIKE[i]

    order = range(len(UNLIKE))
    with ThreadPoolExecutor(2) as pool:
        for thread in [pool.submit(work, order), pool.submit(work, order[::-1])]:
            thread.result()


@pytest.mark.parametrize(
    ("dtype", "ways"),
    [
        *(pytest.param(torch.float32, *each.values, id=each.id) for each in WAYS),
        *(pytest.param(torch.float16, {"algorithm": name}, id=name) for name in FLOAT16_ALGORITHMS),
    ],
)
@pytest.mark.parametrize(("m", "n", "k"), [*UNLIKE, (600, 700, 3000), (1500, 1500, 1500)])
def test_beside_kernels_that_gather(dtype, ways, m, n, k):
    """Gathers saturate the load/store units of an SM, so that the loads from shared memory of other
    warps there come hundreds of cycles late."""
    a = torch.randn(m, k, dtype=dtype, device="cuda")
    b = torch.randn(n, k, dtype=dtype, device="cuda").mT
    expected = torch_tiled.matmul(a, b, **ways)
    everywhere = torch.randint(1 << 24, (1 << 22,), device="cuda")
    source, gathered = torch.randn(1 << 24, device="cuda"), torch.empty(1 << 22, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(200):
            torch.index_select(source, 0, everywhere, out=gathered)
    results = [torch_tiled.matmul(a, b, **ways) for _ in range(50)]
    assert not side.query(), "the gathers ended before the products were begun"
    side.synchronize()
    for result in results:
        assert torch.equal(result, expected)


@pytest.mark.parametrize("ways", WAYS)
def test_first_call_in_a_thread(ways):
    """A new thread has called no runtime function yet, so that it has no current context."""
    a, b = torch.randn(64, 16, device="cuda").mT, torch.randn(64, 512, device="cuda")
    out = torch.empty(16, 512, device="cuda")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch_tiled.matmul, a, b, out=out, **ways).result()
    assert torch.equal(out, torch_tiled.matmul(a, b, **ways))


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("ways", WAYS)
def test_capture_and_replay(ways):
    a, b = torch.randn(100, 200, device="cuda"), torch.randn(200, 300, device="cuda")
    c = torch.zeros(100, 300, device="cuda")
    weight, bias = torch.randn(50, 200, device="cuda"), torch.randn(50, device="cuda")
    torch_tiled.matmul(a, b, **ways)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch_tiled.matmul(a, b, **ways)
        torch_tiled.gemm_(c, a, b, beta=1, **ways)
        y = torch_tiled.linear(a, weight, bias, activation="relu", **ways)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        b.copy_(torch.randn_like(b))
        c.fill_(1)
        result.fill_(torch.nan)
        y.fill_(torch.nan)
        graph.replay()
        expected = torch_tiled.matmul(a, b, **ways)
        assert torch.equal(result, expected)
        assert torch.equal(c, expected + 1)
        assert torch.equal(y, torch_tiled.linear(a, weight, bias, activation="relu", **ways))


@pytest.mark.usefixtures("collected")
def test_captured_training_step():
    layer = torch_tiled.nn.Linear(64, 32, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(16, 64, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        layer(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    start = {name: value.clone() for name, value in layer.state_dict().items()}
    step()
    eager = layer.weight.detach().clone()
    layer.load_state_dict(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    layer.load_state_dict(start)
    graph.replay()
    assert torch.equal(layer.weight, eager)


def check_rows(a, b, result, rows, algorithm):
    """Holds some rows of a huge product to float64."""
    some = a[rows]
    assert_within(result[rows], product(some, b), bound(some, b, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", FLOAT16_ALGORITHMS)
def test_result_beyond_2_to_31_elements(algorithm, claim_memory):
    m, n, k = 46349, 46349, 3  # 2^31 + 746,153 elements
    claim_memory(10 * m * n)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16)
    out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
    torch_tiled.matmul(a, b, algorithm=algorithm, out=out)
    rows = torch.tensor([0, 1, m // 2, m - 2, m - 1], device="cuda")
    check_rows(a, b, out, rows, algorithm)
    assert not out.isnan().any()


@pytest.mark.parametrize("algorithm", FLOAT16_ALGORITHMS)
def test_operands_beyond_2_to_31_elements(algorithm, claim_memory):
    m, k = 3, 2**31 // 3 + 1000
    claim_memory(8 * m * k)
    store = torch.zeros(m, k, device="cuda", dtype=torch.float16)
    ones = torch.ones(k, 2, device="cuda", dtype=torch.float16)
    store[:, -5:] = 3  # at the far end, beyond 2^31 elements in the last row
    store[:, 0] = 1
    tail = slice(k - 2000, None)
    result = torch_tiled.matmul(store[:, tail], ones[tail], algorithm=algorithm)
    assert torch.equal(result, torch.full((3, 2), 15.0, device="cuda", dtype=torch.float16))
    if algorithm == "naive":  # a plain loop over all of K, in three threads, would be slow
        return
    columns = store.mT[tail]  # the same memory, read with the long stride first
    result = torch_tiled.matmul(ones[tail].mT, columns, algorithm=algorithm)
    assert torch.equal(result, torch.full((2, 3), 15.0, device="cuda", dtype=torch.float16))


@pytest.mark.parametrize("ways", WAYS)
def test_side_beyond_2_to_31(ways, claim_memory):
    """In float32, in which a tensor map reads the rows of B."""
    n = 2**31 + 128
    claim_memory(16 * n)
    b = torch.randn(1, n, device="cuda")
    out = torch.full((1, n), torch.nan, device="cuda")
    torch_tiled.matmul(torch.full((1, 1), 2.0, device="cuda"), b, out=out, **ways)
    assert torch.equal(out, b.mul_(2))


@needs_hopper
def test_k_major_rows_beyond_2_to_31(claim_memory):
    k = 2**31 + 1028
    claim_memory(16 * k)
    a, b = torch.ones(1, k, device="cuda"), torch.zeros(2, k, device="cuda")
    for column, value in ((0, 1.0), (1025, 2.0), (2**31 - 1, 4.0), (2**31, 8.0), (k - 1, 16.0)):
        b[:, column] = value
    result = torch_tiled.matmul(a, b.mT, algorithm="simt_skinny")
    assert torch.equal(result, torch.full((1, 2), 31.0, device="cuda"))


def test_batch_beyond_one_grid(claim_memory):
    """More matrices than 2^31 - 1 blocks, read through a stride of 0."""
    count = 2**30 + 2
    claim_memory(6 * count)
    a = torch.full((1, 1, 1, 1), 3.0, device="cuda", dtype=torch.float16).expand(count, 1, 1, 1)
    b = torch.full((2, 1, 1), 2.0, device="cuda", dtype=torch.float16)
    b[1] = 5
    pairs = torch_tiled.matmul(a, b, algorithm="tiled16")
    assert pairs.shape == (count, 2, 1, 1)
    assert (pairs[:, 0] == 6).all() and (pairs[:, 1] == 15).all()


def test_k_beyond_2_to_31():
    """The operands have strides of 0, and float64 counts that far exactly."""
    k = 2**31 + 9
    one = torch.ones(1, 1, device="cuda", dtype=torch.float64)
    result = torch_tiled.matmul(one.expand(1, k), one.expand(k, 1), algorithm="naive")
    assert result.item() == k


@needs_hopper
@pytest.mark.parametrize("k", [1000, 4096])
@pytest.mark.parametrize("room", [2 << 20, 8 << 20, 80 << 20, 160 << 20])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_sub_problems_fit_the_free_memory(precision, room, k):
    """The workspace would be 247 MB for fp32 where K is 4096, and 134 MB for tf32. fp32 has the
    same bits with 2 MB, by a kernel that needs little memory; tf32 with 80 MB, and with none where
    K is short. The product runs in a process of its own, where no other test has left room."""
    algorithm = {"fp32": "fp16x3_wgmma", "tf32": "tf32_tma"}[precision]
    enough = {"fp32": 2 << 20, "tf32": 80 << 20}[precision]
    program = f"""
import torch, torch_tiled
a, b = torch.randn(3, 4000, {k}, device="cuda"), torch.randn({k}, 3000, device="cuda")
bias = torch.randn(3000, device="cuda")

def multiply():
    return torch_tiled.linear(a, b.mT, bias, algorithm="{algorithm}", precision="{precision}")

expected = multiply()
torch.cuda.empty_cache()
limit = torch.cuda.memory_reserved() + expected.nbytes + {room}
total = torch.cuda.get_device_properties("cuda").total_memory
torch.cuda.set_per_process_memory_fraction(limit / total)
try:
    result = multiply()
except torch.OutOfMemoryError as error:
    print("workspace" in str(error) and "not enough")
else:
    torch.cuda.set_per_process_memory_fraction(1.0)
    print(torch.equal(result, expected))
"""
    *_, found = python(program).splitlines()  # PyTorch may have logged failed allocations
    assert found == ("True" if room >= enough or k <= 1024 else "not enough")


def test_out_of_memory_leaves_all_as_it_was():
    a = torch.randn(1, 1, device="cuda").expand(1 << 20, 1)
    b = torch.randn(1, 1, device="cuda").expand(1, 1 << 20)
    before = a[0, 0].item()
    for call in (torch_tiled.matmul, torch.ops.tiled.matmul):
        with pytest.raises(torch.OutOfMemoryError, match=str(4 << 40)):
            call(a, b)
    assert a[0, 0].item() == before
    torch.cuda.synchronize()
    small = torch.randn(5, 5, device="cuda")
    assert_within(torch_tiled.matmul(small, small), product(small, small), bound(small, small))


@pytest.mark.several_gpus
def test_other_device_stays_current():
    current = torch.cuda.current_device()
    last = torch.cuda.device_count() - 1
    a = torch.randn(30, 30, device=f"cuda:{last}")
    result = torch_tiled.matmul(a, a)
    assert result.device == a.device
    assert torch.cuda.current_device() == current
    assert_within(result, product(a, a), bound(a, a))


def test_first_call_in_a_fresh_process_may_be_captured():
    program = """
import torch, torch_tiled
a = torch.randn(70, 70, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = torch_tiled.matmul(a, a)
graph.replay()
torch.cuda.synchronize()
assert torch.equal(result, torch_tiled.matmul(a, a))
"""
    python(program)


# --- models --------------------------------------------------------------------------------------


# Products of 300 x 1030 x 1030 and more need a workspace on a Hopper GPU.
LARGE = (1030, 1100, 1050)


def large(kind):
    model = make(kind, plain_model(torch.nn.ReLU(), sizes=LARGE, device="cuda"))
    return model, torch.randn(4, 300, LARGE[0], device="cuda")


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


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("kind", KINDS)
def test_capture_and_replay_of_models(kind, sizes):
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
