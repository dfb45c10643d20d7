"""Streamed linear layers on a GPU: bits of torch_tiled.linear within it, memory, several GPUs."""

import gc

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.streaming import assert_same_bits, poison
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled import stream
from torch_tiled.stream.parts import plan_product
from torch_tiled.stream.problem import make_linear_problem

MIB = 1 << 20
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "tanh", "silu")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.complex64, torch.complex128),
)
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def operands(m, n, k, dtype=torch.float32):
    """x, a weight and a bias, of such sizes that activations bend them."""
    x, weight, bias = (torch.randn(shape) for shape in ((m, k), (n, k), (n,)))
    return x.to(dtype), (weight / k**0.5).to(dtype), bias.to(dtype)


def within_the_gpu(x, weight, bias, **options):
    bias = None if bias is None else bias.cuda()
    return torch_tiled.linear(x.cuda(), weight.cuda(), bias, **options).cpu()


def check(x, weight, bias, budget, *, activation="none", precision="fp32"):
    """The bits of a streamed layer, and that it takes no more memory than its plan says."""
    options = {"activation": activation, "precision": precision}
    expected = within_the_gpu(x, weight, bias, **options)
    out = poison(torch.empty_like(expected))
    problem, _ = make_linear_problem(x, weight, bias, activation, out, precision, "auto")
    plan = plan_product(problem, stream._settings(problem, None, budget))
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    stream.linear(x, weight, bias, out=out, max_device_bytes=budget, **options)
    taken = torch.cuda.max_memory_allocated() - before
    assert torch.cuda.memory_allocated() == before
    assert taken <= plan.device_bytes <= budget
    assert_same_bits(out, expected)
    return plan


def pinned(*tensors):
    return [x.pin_memory() for x in tensors]


@needs_cuda
@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("k", [100, 1000, 5001, 20001])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pairwise
def test_every_kind(dtype, activation, k, is_pinned):
    given = operands(700, 301, k, dtype)
    activation = "none" if dtype.is_complex else activation
    check(*(pinned(*given) if is_pinned else given), 64 * MIB, activation=activation)
    check(*given[:2], None, 64 * MIB, activation=activation)


@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("m, n, k", [(3000, 2000, 2500), (1031, 701, 9313), (130, 4000, 127)])
@pairwise
def test_float32(m, n, k, activation, precision):
    budget = (96 if precision == "tf32" else 32) * MIB
    check(*operands(m, n, k), budget, activation=activation, precision=precision)


@needs_cuda
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pairwise
def test_flagged_elements_of_cut_k(dtype, precision, activation):
    x, weight, bias = operands(1000, 700, 20000, dtype)
    x[100] *= torch.exp(torch.randn(20000) * 20)
    x[:, 3] *= 1e-30
    x[5, 11111], weight[5, 777] = torch.inf, torch.nan
    bias[3], bias[8], bias[9] = torch.inf, -torch.inf, torch.nan
    budget = (56 if precision == "tf32" else 24) * MIB * (1 + dtype.is_complex)
    options = {"activation": "none" if dtype.is_complex else activation, "precision": precision}
    plan = check(x, weight, bias, budget, **options)
    assert plan.grid.slices > 1


@needs_cuda
def test_shapes():
    """Vectors, batches that are no matrix, a K of 0, and products without a bias."""
    for x, n in (
        (torch.randn(800), 900),
        (torch.randn(7, 300, 800), 900),
        (torch.randn(300, 7, 800).movedim(1, 0), 900),
        (torch.randn(30, 100, 80).movedim(1, 0), 90),
        (torch.randn(300, 0), 70),
    ):
        check(x, torch.randn(n, x.shape[-1]), torch.randn(n), 16 * MIB, activation="gelu")
    x = torch.randn(300, 0)
    assert torch.equal(stream.matmul(x, x.mT), torch.zeros(300, 300))


@needs_cuda
@pytest.mark.parametrize("on_gpu", ["x", "weight", "bias"])
def test_an_operand_on_the_gpu(on_gpu):
    """Kernels of the caller's stream may still compute it."""
    for k in (2500, 20000):
        given = dict(zip(("x", "weight", "bias"), operands(1000, 2000, k), strict=True))
        expected = within_the_gpu(**given, activation="silu")
        moved = torch.zeros_like(given[on_gpu], device="cuda")
        torch.cuda._sleep(10**8)
        moved += given[on_gpu].cuda()
        given[on_gpu] = moved
        found = stream.linear(**given, activation="silu", max_device_bytes=256 * MIB)
        assert_same_bits(found, expected)


@needs_cuda
def test_both_operands_on_the_gpu():
    x, weight, bias = (t.cuda() for t in operands(30, 20, 40))
    with pytest.raises(RuntimeError, match=r"^torch_tiled.stream.linear: x is on cuda.* weight is"):
        stream.linear(x, weight, bias)


@needs_cuda
def test_a_bias_on_the_gpu_of_a_layer_on_the_cpu():
    x, weight, bias = operands(30, 20, 40)
    found = stream.linear(x, weight, bias.cuda(), devices="cpu")
    assert torch.equal(found, torch_tiled.linear(x, weight, bias))


@needs_cuda
def test_smaller_tiles_where_memory_runs_out():
    x, weight, bias = operands(3000, 2000, 2500)
    expected = within_the_gpu(x, weight, bias, activation="gelu")
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 40 * MIB
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        found = stream.linear(x, weight, bias, activation="gelu", max_device_bytes=200 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_same_bits(found, expected)


@needs_two_gpus
def test_two_gpus():
    for k in (2500, 20000):
        x, weight, bias = operands(1000, 2000, k)
        x[77, 5] = torch.inf
        expected = within_the_gpu(x, weight, bias, activation="tanh")
        for place in ("cpu", "cuda:0", "cuda:1"):
            found = stream.linear(
                *(x, weight, bias.to(place)),
                activation="tanh",
                devices=["cuda:0", "cuda:1"],
                max_device_bytes=24 * MIB,
            )
            assert_same_bits(found, expected)
