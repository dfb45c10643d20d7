"""The caller's settings, generators, devices, streams and CUDA contexts stay as they are."""

import contextlib

import pytest
import torch
from helpers.caller_state import caller_state, current_context
from helpers.needs import needs_cuda
from helpers.reference import takes

import torch_tiled
from torch_tiled.info import info

# A product of each kernel and precision that CUDA has; sizes at which it is taken.
WAYS = [
    *(
        pytest.param(dtype, {"algorithm": name}, id=f"{name}-{str(dtype)[6:]}")
        for dtype in (torch.float32, torch.bfloat16)
        for name in torch_tiled.algorithms()
        if takes(name, dtype, "cuda")
    ),
    *(
        pytest.param(torch.float32, {"precision": precision}, id=precision)
        for precision in ("fp32", "tf32", "ieee")
    ),
]


def every_function(device):
    """Calls of all public functions that compute."""
    x = torch.randn(20, 96, device=device, requires_grad=True)
    w, bias = torch.randn(64, 96, device=device), torch.randn(64, device=device)
    layer = torch_tiled.nn.Linear(96, 64, activation="gelu", device=device)
    model = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.ReLU()).to(device)
    torch_tiled.matmul(x, w.mT).sum().backward()
    for activation in ("none", "relu", "gelu"):
        torch_tiled.linear(x, w, bias, activation=activation).sum().backward()
    torch_tiled.matmul(x, w.mT, precision="ieee")
    torch_tiled.gemm_(torch.zeros(20, 64, device=device), x.detach(), w.mT)
    torch_tiled.matmul(x.detach(), torch_tiled.prepare(w.mT))
    torch_tiled.explain(x, w.mT)
    layer(x).sum().backward()
    with torch.no_grad():
        torch_tiled.freeze(layer)(x)
    torch_tiled.unfreeze(layer)
    torch_tiled.convert(model)
    model(x).sum().backward()
    torch_tiled.revert(model)
    with torch_tiled.override():
        torch.matmul(x, w.mT)
        torch.nn.functional.linear(x, w, bias)
    with torch.autocast(device, torch.bfloat16):
        torch_tiled.matmul(x, w.mT)
    torch.vmap(torch_tiled.matmul)(x[None].detach(), w.mT[None])
    with contextlib.suppress(RuntimeError):
        torch_tiled.matmul(x, w)  # shapes that do not match


@pytest.mark.parametrize("set_first", [False, True], ids=["as it was", "all set"])
def test_nothing_changes(device, set_first):
    """Settings that a library changes for its own products stay changed for all that follow."""
    with contextlib.ExitStack() as undo:
        if set_first:
            undo.callback(torch.use_deterministic_algorithms, False)
            undo.callback(torch.set_float32_matmul_precision, "highest")
            undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.set_float32_matmul_precision("high")
            torch.set_num_threads(2)
            if device == "cuda":
                undo.enter_context(torch.cuda.stream(torch.cuda.Stream()))
        torch.randn(8, device=device).sum()  # a thread's first call makes its CUDA context
        seeds = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
        before = caller_state()
        every_function(device)
        torch.set_rng_state(seeds[0])  # operands and layers are random, products are not
        if device == "cuda":
            torch.cuda.set_rng_state(seeds[1])
        assert caller_state() == before


def test_products_leave_generators_alone(device):
    a, b = torch.randn(33, 700, device=device), torch.randn(700, 65, device=device)
    before = caller_state()
    for precision in ("fp32", "tf32", "ieee"):
        torch_tiled.matmul(a, b, precision=precision)
    assert caller_state() == before


@pytest.fixture
def green_context():
    """A CUDA context with a part of the SMs, which is not current."""
    contexts = pytest.importorskip("torch.cuda.green_contexts")
    torch.zeros(1, device="cuda")
    try:
        return contexts.GreenContext.create(num_sms=16, device_id=torch.cuda.current_device())
    except RuntimeError as error:
        pytest.skip(f"no green contexts: {error}")


@needs_cuda
@pytest.mark.parametrize("m, n, k", [(200, 520, 256), (20, 1024, 2000), (4096, 512, 512)])
@pytest.mark.parametrize(("dtype", "ways"), WAYS)
def test_green_context_stays_current(green_context, dtype, ways, m, n, k):
    """A server gives each of its models a green context, and pops it after a step."""
    a = torch.randn(m, k, device="cuda").to(dtype)
    b = torch.randn(n, k, device="cuda").to(dtype).mT
    if ways.get("algorithm", "auto") != "auto" and not can_compute(a, b, ways):
        pytest.skip("the kernel does not take this shape")
    expected = torch_tiled.matmul(a, b, **ways)
    torch.cuda.synchronize()
    green_context.set_context()
    try:
        context = current_context()
        result = torch_tiled.matmul(a, b, **ways)
        after = current_context()
        plan = str(torch_tiled.explain(a, b, **ways))
    finally:
        torch.cuda.synchronize()
        green_context.pop_context()
    assert after == context
    assert "of 16 SMs" in plan
    assert torch.equal(result, expected)


def can_compute(a, b, ways):
    try:
        return torch_tiled.explain(a, b, **ways).algorithm == ways["algorithm"]
    except RuntimeError:
        return False


@pytest.fixture(params=["meta", pytest.param("cuda", marks=needs_cuda)])
def default(request):
    """A default device and dtype, which tensors of the library's own must not have."""
    torch.set_default_device(request.param)
    torch.set_default_dtype(torch.float64)
    yield request.param
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def test_self_test_under_a_default_device(default):
    assert info()["ok"]


def test_plan_of_meta_tensors_under_a_default_device(default):
    a = torch.empty(512, 512, device="meta", dtype=torch.float32)
    gpu = {"compute_capability": 90, "sms": 132}
    plan = torch_tiled.explain(a, a, **gpu)
    cpu = torch.zeros(512, 512, device="cpu", dtype=torch.float32)
    assert plan == torch_tiled.explain(cpu, cpu, **gpu)


def test_frozen_layers_under_a_default_device(default):
    layer = torch_tiled.nn.Linear(64, 64, device="cpu", dtype=torch.float32)
    torch_tiled.freeze(layer)
    other = torch_tiled.nn.Linear(64, 64, device="cpu", dtype=torch.float32)
    other.weight = torch.nn.Parameter(torch.zeros(64, device="cpu", dtype=torch.float32))
    torch_tiled.freeze(other)  # FSDP's shards, which may be vectors, are not split
    for each in (layer, other):
        found = {name: (x.dtype, x.device.type) for name, x in each.named_buffers()}
        assert found == {"_hi_lo": (torch.uint8, "cpu"), "_inverse_scales": (torch.float32, "cpu")}
    x = torch.ones(2, 64, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(layer(x), torch_tiled.unfreeze(layer)(x))
