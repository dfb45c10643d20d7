"""What a call takes on its way: kernels in Python, dispatches, versions, kept plans."""

import copy
import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from helpers.needs import needs_cuda
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiled

ops = torch.ops.tiled


def _operands(device="cpu", dtype=torch.float32):
    make = {"device": device, "dtype": dtype}
    a, b = torch.randn(4, 8, **make), torch.randn(8, 6, **make)
    return a, b, torch.randn(6, 8, **make), torch.randn(6, **make), torch.randn(4, 6, **make)


CALLS = {  # of operands a, b, weight, bias and c
    "op": lambda a, b, w, bias, c: ops.matmul(a, b),
    "op_named": lambda a, b, w, bias, c: ops.matmul(a=a, b=b),
    "op_with_option": lambda a, b, w, bias, c: ops.matmul(a, b, algorithm="naive"),
    "op_linear": lambda a, b, w, bias, c: ops.linear(a, w),
    "op_linear_bias": lambda a, b, w, bias, c: ops.linear(a, w, bias),
    "op_linear_named": lambda a, b, w, bias, c: ops.linear(a, w, bias=bias),
    "op_activation": lambda a, b, w, bias, c: ops.linear(a, w, bias, activation="relu"),
    "op_out": lambda a, b, w, bias, c: ops.matmul(a, b, out=c),
    "op_gemm": lambda a, b, w, bias, c: ops.gemm_(c, a, b),
    "op_gemm_factors": lambda a, b, w, bias, c: ops.gemm_(c, a, b, alpha=2, beta=0.5),
    "matmul": lambda a, b, w, bias, c: torch_tiled.matmul(a, b),
    "linear": lambda a, b, w, bias, c: torch_tiled.linear(a, w, bias),
    "out": lambda a, b, w, bias, c: torch_tiled.matmul(a, b, out=c),
    "gemm": lambda a, b, w, bias, c: torch_tiled.gemm_(c, a, b, alpha=0.5, beta=0),
}
WRITING = {"op_out", "op_gemm", "op_gemm_factors", "out", "gemm"}


def _frames_of(call, *operands):
    """The Python functions that a call runs, as (file, name)."""
    seen = []

    def note(frame, event, _):
        if event == "call":
            code = frame.f_code
            seen.append((os.path.basename(code.co_filename), code.co_name))

    sys.setprofile(note)
    try:
        call(*operands)
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("name", CALLS)
def test_the_dispatcher_enters_no_python(name, device):
    frames = _frames_of(CALLS[name], *_operands(device))
    kernels = [
        (file, function)
        for file, function in frames
        if file in ("autograd.py", "lazy.py", "autocast.py", "vmap.py")
        or function.startswith(("_autograd_", "_record_"))
    ]
    assert kernels == []


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_is_one_operator(name, device):
    operands = _operands(device)
    CALLS[name](*operands)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        CALLS[name](*operands)
    ours = [x.name for x in profiled.events() if x.name.startswith("tiled::")]
    assert len(ours) == 1, ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_equals_the_call_below_modes(name, dtype, device):
    """Under a mode, which is told of the public operator, a call has the same bits."""
    if dtype.is_complex and name == "op_activation":
        pytest.skip("complex numbers have no activation")
    a, b, w, bias, c = _operands(device, dtype)
    told = []

    class Tell(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "tiled":
                told.append(op.name())
            return op(*args, **(kwargs or {}))

    c_plain, c_told = c.clone(), c.clone()
    plain = CALLS[name](a, b, w, bias, c_plain)
    with Tell():
        under_mode = CALLS[name](a, b, w, bias, c_told)
    public = ("tiled::matmul", "tiled::matmul.out", "tiled::linear", "tiled::gemm_")
    assert len(told) == 1
    assert told[0] in public
    assert torch.equal(c_plain, c_told)
    if name not in WRITING:
        assert torch.equal(plain, under_mode)


@pytest.mark.parametrize("name", sorted(WRITING))
def test_a_write_counts(name, device):
    """On a CPU PyTorch's own product counts, too."""
    *operands, c = _operands(device)
    before = c._version
    CALLS[name](*operands, c)
    assert before < c._version <= before + (2 if device == "cpu" else 1)


@pytest.mark.parametrize("name", sorted(WRITING))
def test_a_write_to_an_inference_tensor_is_refused(name, device):
    *operands, c = _operands(device)
    with torch.inference_mode():
        inference = c.clone()
    with pytest.raises(RuntimeError, match=r"under torch.inference_mode\(\)"):
        CALLS[name](*operands, inference)
    with torch.inference_mode():
        CALLS[name](*operands, inference)
        CALLS[name](*operands, c)
    assert torch.equal(c, inference)


@pytest.mark.parametrize("name", ["op", "op_named", "op_linear_named", "op_activation"])
def test_a_gradient_flows(name):
    operands = [x.requires_grad_() for x in _operands()]
    CALLS[name](*operands).sum().backward()
    assert operands[0].grad is not None


class _Wrapped:
    """No tensor, but what stands for one: calls get the tensor, and double it first."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def unwrap(x):
            return x.tensor * 2 if isinstance(x, cls) else x

        options = {name: unwrap(x) for name, x in (kwargs or {}).items()}
        return func(*map(unwrap, args), **options)


@pytest.mark.parametrize("name", ["op", "op_named", "op_with_option", "op_linear_named", "matmul"])
def test_a_gradient_flows_through_what_stands_for_a_tensor(name):
    a, *others = _operands()
    expected, actual = a.clone().requires_grad_(), a.clone().requires_grad_()
    CALLS[name](2 * expected, *others).sum().backward()
    CALLS[name](_Wrapped(actual), *others).sum().backward()
    assert torch.equal(actual.grad, expected.grad)


@pytest.mark.parametrize("name", sorted(WRITING))
def test_a_write_refuses_a_gradient(name):
    a, *others = _operands()
    with pytest.raises(RuntimeError, match="has no derivative"):
        CALLS[name](a.requires_grad_(), *others)


def test_an_operator_stays_what_pytorch_knows():
    assert isinstance(ops.matmul, torch._ops.OpOverloadPacket)
    assert set(ops.matmul.overloads()) == {"default", "out", "prepared"}
    assert copy.deepcopy(ops.linear) is not None
    assert {ops.matmul: 1}[torch.ops.tiled.matmul] == 1

    @torch.jit.script
    def scripted(a, b):
        return torch.ops.tiled.matmul(a, b)

    a, b, *_ = _operands()
    assert torch.equal(scripted(a, b), ops.matmul(a, b))


class _Answers(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return "an answer"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_answer_of_a_mode_is_returned(name):
    operands = _operands()
    with _Answers():
        assert CALLS[name](*operands) == "an answer"


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_factors_that_are_tensors(name):
    a, b, _, _, c = _operands()
    expected = torch_tiled.gemm_(c.clone(), a, b, **{name: 2.0})

    def call(factor):
        return torch_tiled.gemm_(c.clone(), a, b, **{name: factor})

    assert torch.equal(call(torch.tensor(2.0)), expected)
    assert torch.equal(torch.compile(call, backend="aot_eager")(torch.tensor(2.0)), expected)
    with pytest.raises(RuntimeError, match=f"but {name} of shape .* requires grad"):
        call(torch.tensor(2.0, requires_grad=True))
    for transform, factor in ((torch.func.vmap, torch.ones(3)), (torch.func.grad, torch.ones(()))):
        with pytest.raises(RuntimeError, match=f"tiled::gemm_: .*{name}"):
            transform(lambda x: call(x).sum())(factor)


def test_too_many_arguments():
    a, _, w, bias, _ = _operands()
    for bias_given in (bias, None):
        with pytest.raises(RuntimeError, match="takes 3 positional arguments, and 4 were given"):
            ops.linear(a, w, bias_given, 3)
    with pytest.raises(RuntimeError, match="activation is of type int; pass a string"):
        ops.linear(a, w, None, activation=3)


def test_running_out_of_memory_has_its_type():
    a, b = torch.ones(1, 1).expand(1 << 30, 1), torch.ones(1, 1).expand(1, 1 << 30)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode(), pytest.raises(torch.OutOfMemoryError):
            ops.matmul(a, b)


# --- kept plans ----------------------------------------------------------------------------------

_SHAPES = [(8, 8, 8), (1, 4096, 512), (128, 64, 1024), (130, 70, 1030), (4096, 4096, 4096)]


def _plans():
    """What Hopper would run, by shape, dtype and alignment."""
    found = []
    for m, n, k in _SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
            for offset in (0, 1):
                a = torch.empty(m * k + offset, dtype=dtype)[offset:].view(m, k)
                b = torch.empty(k, n, dtype=dtype)
                plan = torch_tiled.explain(a, b, compute_capability=90, sms=132)
                found.append([plan.algorithm, str(plan.values)])
    return found


def test_kept_plans_are_those_of_new_ones():
    code = "import json, test_calls; print(json.dumps(test_calls._plans()))"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = os.environ | {"TORCH_TILED_KEEP_PLANS": "0", "PYTHONPATH": path}
    new = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    first = _plans()
    assert first == _plans() == json.loads(new.stdout)


def test_kept_plans_are_of_their_thread():
    expected = _plans()
    found = []
    threads = [threading.Thread(target=lambda: found.append(_plans())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


@needs_cuda
def test_kept_plans_with_many_shapes_at_once():
    """More shapes than are kept, by threads that take turns, have the bits of calls one by one."""
    shapes = [(m, n, k) for m in (1, 7, 64, 200) for n in (3, 128, 256) for k in (5, 64, 300, 1100)]
    operands = [
        (torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")) for m, n, k in shapes
    ]
    expected = [torch_tiled.matmul(a, b, algorithm="auto") for a, b in operands]
    torch.cuda.synchronize()
    wrong = []

    def multiply(seed):
        order = torch.randperm(len(shapes), generator=torch.Generator().manual_seed(seed)).tolist()
        for i in order * 3:
            if not torch.equal(torch_tiled.matmul(*operands[i]), expected[i]):
                wrong.append(shapes[i])

    threads = [threading.Thread(target=multiply, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.several_gpus
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_kept_plans_by_device(dtype):
    """Calls of equal shapes that alternate between GPUs have equal bits, and stay on theirs."""
    for m, n, k in [(8, 8, 8), (200, 256, 1100), (1030, 1100, 2050)]:
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        operands = [(a.to(f"cuda:{i}"), b.to(f"cuda:{i}")) for i in range(2)]
        outs = [x.new_full((m, n), torch.nan) for x, _ in operands]
        for _ in range(20):
            results = [torch_tiled.matmul(*pair) for pair in operands]
            for (x, y), out in zip(operands, outs, strict=True):
                torch_tiled.matmul(x, y, out=out)
            assert [x.device.index for x in results] == [0, 1]
            for result in results[1:] + outs:
                assert torch.equal(result.cpu(), results[0].cpu())
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_plans_as_well():
    expected = _plans()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, b"1" if _plans() == expected else b"0")
        os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.waitpid(child, 0)
