"""Products and layers larger than the GPU, on a GPU: bits as within it, memory, several GPUs.

Budgets are a few MiB, so that small products have many tiles.
"""

import gc

import pytest
import torch
from helpers.needs import needs_cuda, needs_hopper
from helpers.reference import ACTIVATIONS, DTYPES, assert_same
from helpers.streaming import poison
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled import stream
from torch_tiled.stream.parts import plan_product
from torch_tiled.stream.problem import make_linear_problem

pytestmark = needs_cuda

MIB = 1 << 20
pinned_or_not = pytest.mark.parametrize("is_pinned", [False, True])


def layer(m, n, k, dtype=torch.float32):
    """x, a weight and a bias, of such sizes that activations bend them."""
    x, weight, bias = (torch.randn(shape) for shape in ((m, k), (n, k), (n,)))
    return x.to(dtype), (weight / k**0.5).to(dtype), bias.to(dtype)


def pin_if(is_pinned, *tensors):
    return [x.pin_memory() if is_pinned else x for x in tensors]


def within_the_gpu(call, *tensors, **options):
    given = (None if x is None else x.cuda() for x in tensors)
    return call(*given, **options).cpu()


def check_call(call, expected, plan, budget):
    """The bits of a streamed result, and that it takes no more memory than its plan says.

    Args:
        call: a function of `out`.
        plan: the same, which returns its Plan.
    """
    out = poison(torch.empty_like(expected))
    planned = plan(out)
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(out)
    taken = torch.cuda.max_memory_allocated() - before
    assert torch.cuda.memory_allocated() == before
    assert taken <= planned.device_bytes <= budget
    assert_same(out, expected)
    return planned


def check(a, b, budget, **options):
    """check_call() of a product."""
    expected = within_the_gpu(torch_tiled.matmul, a, b, **options)
    options["max_device_bytes"] = budget
    return check_call(
        lambda out: stream.matmul(a, b, out=out, **options),
        expected,
        lambda out: stream.plan(a, b, out=out, **options),
        budget,
    )


def check_linear(x, weight, bias, budget, *, activation="none", precision="fp32"):
    """check_call() of a layer, by the plan that counts its bias."""
    options = {"activation": activation, "precision": precision}
    expected = within_the_gpu(torch_tiled.linear, x, weight, bias, **options)

    def plan(out):
        problem, _ = make_linear_problem(x, weight, bias, activation, out, precision, "auto")
        return plan_product(problem, stream._settings(problem, None, budget))

    def call(out):
        stream.linear(x, weight, bias, out=out, max_device_bytes=budget, **options)

    return check_call(call, expected, plan, budget)


FLOAT32 = [
    (3000, 2000, 2500),
    (1000, 700, 20000),
    (1031, 701, 9313),
    (1, 300, 5000),
    (300, 1, 5000),
    (5000, 7000, 1),
    (130, 4000, 127),
]


@pinned_or_not
@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("m, n, k", FLOAT32)
def test_float32(m, n, k, precision, is_pinned):
    a, b = pin_if(is_pinned, torch.randn(m, k), torch.randn(k, n))
    check(a, b, 96 * MIB if precision == "tf32" else 32 * MIB, precision=precision)


@pytest.mark.parametrize("k", [1000, 5001, 20001])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_dtypes(dtype, k):
    for is_pinned in (False, True):
        a, b = torch.randn(700, k, dtype=dtype), torch.randn(k, 301, dtype=dtype)
        check(*pin_if(is_pinned, a, b), 64 * MIB)


@pinned_or_not
def test_layouts(is_pinned):
    (store,) = pin_if(is_pinned, torch.randn(5003, 3001))
    a = store[:2000, 1:2001]  # misaligned
    for b in (store[:2000], store[:2000, ::2], store[::2][:2000], store[:, :2000].mT):
        check(a, b, 32 * MIB)
        check(b.mT, a.mT, 32 * MIB)


@pinned_or_not
def test_conjugate_and_negative_views(is_pinned):
    kind = {"dtype": torch.complex64}
    a, b = pin_if(is_pinned, torch.randn(300, 2001, **kind), torch.randn(200, 2001, **kind))
    check(a, b.mH, 32 * MIB)
    check(a.conj(), b.mT, 32 * MIB)
    check(a.conj().imag, b.mT.real, 16 * MIB)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_flagged_elements_of_cut_k(precision):
    a, b = torch.randn(1000, 20000), torch.randn(20000, 700)
    a[100] *= torch.exp(torch.randn(20000) * 20)
    a[:, 3] *= 1e-30
    a[5, 11111], b[777, 5] = torch.inf, torch.nan
    plan = check(a, b, 56 * MIB if precision == "tf32" else 24 * MIB, precision=precision)
    assert plan.grid.slices > 1


def test_batches():
    check(torch.randn(100, 3, 200, 100), torch.randn(3, 100, 300), 32 * MIB)
    check(torch.randn(3, 900, 800), torch.randn(3, 800, 900), 16 * MIB)
    check(torch.randn(7, 900, 800), torch.randn(800, 900), 16 * MIB)
    check(torch.randn(800), torch.randn(5, 800, 900), 16 * MIB)
    check(torch.randn(5, 6).mT[:, None], torch.randn(6, 5, 4), 16 * MIB)


def test_an_operand_on_the_gpu():
    a, b = torch.randn(3000, 2500), torch.randn(2500, 2000)
    expected = torch_tiled.matmul(a.cuda(), b.cuda()).cpu()
    for options in ({"max_device_bytes": 32 * MIB}, {}):
        assert torch.equal(stream.matmul(a.cuda(), b, **options), expected)
        assert torch.equal(stream.matmul(a, b.cuda(), **options), expected)


def test_result_of_kernels_that_still_run():
    """An operand on the GPU may be the result of kernels in the caller's stream."""
    a = torch.randn(3000, 2500)
    b = torch.zeros(2500, 2000, device="cuda")
    torch.cuda._sleep(10**8)
    b += 1
    expected = torch_tiled.matmul(a.cuda(), torch.ones_like(b)).cpu()
    assert torch.equal(stream.matmul(a, b, max_device_bytes=32 * MIB), expected)


@needs_hopper
def test_callers_state():
    a, b = torch.randn(600, 500), torch.randn(500, 400)
    side = torch.cuda.Stream()
    state = torch.cuda.get_rng_state()
    with torch.cuda.stream(side):
        stream.matmul(a, b, max_device_bytes=8 * MIB)
        assert torch.cuda.current_stream() == side
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("call", ["matmul", "linear"])
def test_smaller_tiles_where_memory_runs_out(call):
    """Another process may take the memory on which the plan counted."""
    x, weight, bias = layer(3000, 2000, 2500)
    given, options = (x, weight.mT), {}
    if call == "linear":
        given, options = (x, weight, bias), {"activation": "gelu"}
    expected = within_the_gpu(getattr(torch_tiled, call), *given, **options)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 40 * MIB
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        result = getattr(stream, call)(*given, max_device_bytes=200 * MIB, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_same(result, expected)


@pytest.mark.several_gpus
@pinned_or_not
def test_two_gpus(is_pinned):
    a, b = torch.randn(3000, 2500), torch.randn(2500, 2000)
    c, d = torch.randn(1000, 20000), torch.randn(20000, 700)
    d[777, 5] = torch.inf
    for x, y in ((a, b), (c, d)):
        x, y = pin_if(is_pinned, x, y)
        expected = within_the_gpu(torch_tiled.matmul, x, y)
        for devices in (["cuda:0", "cuda:1"], [1], ["cuda:1", "cuda:0"]):
            result = stream.matmul(x, y, devices=devices, max_device_bytes=24 * MIB)
            assert_same(result, expected)
    assert torch.cuda.current_device() == 0


@pinned_or_not
@pytest.mark.parametrize("k", [100, 1000, 5001, 20001])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pairwise
def test_layers_of_every_kind(dtype, activation, k, is_pinned):
    given = layer(700, 301, k, dtype)
    activation = "none" if dtype.is_complex else activation
    check_linear(*pin_if(is_pinned, *given), 64 * MIB, activation=activation)
    check_linear(*given[:2], None, 64 * MIB, activation=activation)


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("m, n, k", [(3000, 2000, 2500), (1031, 701, 9313), (130, 4000, 127)])
@pairwise
def test_layers_of_float32(m, n, k, activation, precision):
    budget = (96 if precision == "tf32" else 32) * MIB
    check_linear(*layer(m, n, k), budget, activation=activation, precision=precision)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pairwise
def test_layers_with_flagged_elements_of_cut_k(dtype, precision, activation):
    x, weight, bias = layer(1000, 700, 20000, dtype)
    x[100] *= torch.exp(torch.randn(20000) * 20)
    x[:, 3] *= 1e-30
    x[5, 11111], weight[5, 777] = torch.inf, torch.nan
    bias[3], bias[8], bias[9] = torch.inf, -torch.inf, torch.nan
    budget = (56 if precision == "tf32" else 24) * MIB * (1 + dtype.is_complex)
    options = {"activation": "none" if dtype.is_complex else activation, "precision": precision}
    plan = check_linear(x, weight, bias, budget, **options)
    assert plan.grid.slices > 1


def test_layers_of_shapes():
    """Vectors, batches that are no matrix, a K of 0, and products without a bias."""
    for x, n in (
        (torch.randn(800), 900),
        (torch.randn(7, 300, 800), 900),
        (torch.randn(300, 7, 800).movedim(1, 0), 900),
        (torch.randn(30, 100, 80).movedim(1, 0), 90),
        (torch.randn(300, 0), 70),
    ):
        check_linear(x, torch.randn(n, x.shape[-1]), torch.randn(n), 16 * MIB, activation="gelu")
    x = torch.randn(300, 0)
    assert torch.equal(stream.matmul(x, x.mT), torch.zeros(300, 300))


@pytest.mark.parametrize("on_gpu", ["x", "weight", "bias"])
def test_an_operand_of_a_layer_on_the_gpu(on_gpu):
    """Kernels of the caller's stream may still compute it."""
    for k in (2500, 20000):
        given = dict(zip(("x", "weight", "bias"), layer(1000, 2000, k), strict=True))
        expected = within_the_gpu(torch_tiled.linear, *given.values(), activation="silu")
        moved = torch.zeros_like(given[on_gpu], device="cuda")
        torch.cuda._sleep(10**8)
        moved += given[on_gpu].cuda()
        given[on_gpu] = moved
        found = stream.linear(**given, activation="silu", max_device_bytes=256 * MIB)
        assert_same(found, expected)


def test_a_layer_with_both_operands_on_the_gpu():
    x, weight, bias = (t.cuda() for t in layer(30, 20, 40))
    with pytest.raises(RuntimeError, match=r"^torch_tiled.stream.linear: x is on cuda.* weight is"):
        stream.linear(x, weight, bias)


def test_a_bias_on_the_gpu_of_a_layer_on_the_cpu():
    x, weight, bias = layer(30, 20, 40)
    found = stream.linear(x, weight, bias.cuda(), devices="cpu")
    assert torch.equal(found, torch_tiled.linear(x, weight, bias))


@pytest.mark.several_gpus
def test_a_layer_on_two_gpus():
    for k in (2500, 20000):
        x, weight, bias = layer(1000, 2000, k)
        x[77, 5] = torch.inf
        expected = within_the_gpu(torch_tiled.linear, x, weight, bias, activation="tanh")
        for place in ("cpu", "cuda:0", "cuda:1"):
            found = stream.linear(
                *(x, weight, bias.to(place)),
                activation="tanh",
                devices=["cuda:0", "cuda:1"],
                max_device_bytes=24 * MIB,
            )
            assert_same(found, expected)
