"""torch_tiled's products as choices of Inductor's autotuning."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from unittest import mock

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.packaging import python
from torch._inductor import config, select_algorithm
from torch._inductor.utils import run_and_get_code
from torch.testing import assert_close

import torch_tiled

AUTOTUNE = "max-autotune-no-cudagraphs"


@pytest.fixture(autouse=True)
def enabled():
    torch.compiler.reset()
    # Kernels that are generated take their time to be compiled.
    with config.patch(force_disable_caches=True, max_autotune_gemm_backends="ATEN"):
        torch_tiled.inductor.enable()
        yield
        torch_tiled.inductor.disable()


@pytest.fixture
def offered():
    """The choices that were timed for each product that is compiled."""
    lists = []

    def save(timings, name, *_):
        lists.append((name, {choice.name for choice in timings}))

    select_algorithm.add_feedback_saver(save)
    yield lists
    select_algorithm.clear_feedback_savers()


def ours(offered):
    """For each product that was timed its name, and whether torch_tiled's was among the choices."""
    return sorted((name, f"tiled_{name}" in choices) for name, choices in offered)


def ours_alone():
    """Leaves no other choice."""
    return config.patch({"test_configs.autotune_choice_name_regex": "^tiled_"})


def products(x, w, bias):
    return x @ w, torch.bmm(x.view(2, -1, 96), w.expand(2, 96, 80)), torch.addmm(bias, x, w)


def operands(device):
    return (
        torch.randn(64, 96, device=device),
        torch.randn(96, 80, device=device),
        torch.randn(80, device=device),
    )


def test_offered(offered, device):
    torch.compile(products, mode=AUTOTUNE, fullgraph=True)(*operands(device))
    assert ours(offered) == [("addmm", True), ("bmm", True), ("mm", True)]


def test_offered_in_backward(offered, device):
    layer = torch.nn.Linear(96, 80, device=device)
    x = torch.randn(64, 96, device=device).requires_grad_()
    torch.compile(layer, mode=AUTOTUNE, fullgraph=True)(x).sum().backward()
    assert all(is_ours for _, is_ours in ours(offered))
    assert len(offered) >= 2


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_chosen(dynamic, device):
    """The chosen kernel gets the operands without copies, and has torch_tiled's bits."""
    x, w, bias = operands(device)
    compiled = torch.compile(products, mode=AUTOTUNE, fullgraph=True, dynamic=dynamic)
    with ours_alone():
        found, (code, *_) = run_and_get_code(compiled, x, w, bias)
    for name in ("tiled_mm", "tiled_bmm", "tiled_addmm"):
        assert code.count(f"extern_kernels.{name}(") == 1
    batch = torch_tiled.matmul(x.view(2, -1, 96), w)
    expected = torch_tiled.matmul(x, w), batch, torch_tiled.linear(x, w.mT, bias)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    x, w, bias = operands(device)
    x = x[:-2]
    with ours_alone():  # which are compiled once more where shapes are static
        found = compiled(x, w, bias)
    assert torch.equal(found[0], torch_tiled.matmul(x, w))


def test_gradients(device):
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 80), torch.nn.ReLU(), torch.nn.Linear(80, 64, bias=False)
    ).to(device)
    x = torch.randn(64, 96, device=device)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with ours_alone():
        compiled = torch.compile(model, mode=AUTOTUNE, fullgraph=True)
        found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes_are_not_offered(dtype, offered, device):
    a, b = (
        torch.randn(64, 96, device=device, dtype=dtype),
        torch.randn(96, 80, device=device, dtype=dtype),
    )
    torch.compile(torch.mm, mode=AUTOTUNE)(a, b)
    assert not any(is_ours for _, is_ours in ours(offered))


def test_sums_that_linear_does_not_compute_are_not_offered(offered, device):
    x, w, bias = operands(device)

    def sums(x, w, bias):
        full = x @ w
        return torch.addmm(bias, x, w, alpha=2), torch.addmm(full, x, w), bias

    torch.compile(sums, mode=AUTOTUNE)(x, w, bias)
    assert ("addmm", True) not in ours(offered) and ("mm", True) in ours(offered)


def test_without_autotuning_nothing_changes(offered, device):
    x, w, bias = operands(device)
    _, (code, *_) = run_and_get_code(torch.compile(products), x, w, bias)
    assert not offered and "tiled" not in code


def test_disable(offered, device):
    torch_tiled.inductor.disable()
    torch_tiled.inductor.disable()
    torch.compile(products, mode=AUTOTUNE)(*operands(device))
    assert not any(is_ours for _, is_ours in ours(offered))
    assert config.inductor_choices_class is None


def test_enabling_again(offered, device):
    torch_tiled.inductor.enable()
    torch.compile(torch.mm, mode=AUTOTUNE)(*operands(device)[:2])
    assert ours(offered) == [("mm", True)]


def test_threads_that_compiled_before(offered, device):
    """A thread keeps its InductorChoices; one of autograd's compiles backward passes on a GPU."""

    def compile_mm():
        torch.compiler.reset()
        torch.compile(torch.mm, mode=AUTOTUNE)(*operands(device)[:2])

    with ThreadPoolExecutor(1) as thread:
        for switch in (torch_tiled.inductor.disable, torch_tiled.inductor.enable):
            switch()
            thread.submit(copy_context().run, compile_mm).result()
    assert ours(offered) == [("mm", True)]  # a single choice, as before enable(), is not timed


def test_a_factory_of_others_is_refused():
    torch_tiled.inductor.disable()
    with mock.patch.object(config, "inductor_choices_class", object):
        with pytest.raises(RuntimeError, match="inductor_choices_class is <class 'object'>"):
            torch_tiled.inductor.enable()
        torch_tiled.inductor.disable()
        assert config.inductor_choices_class is object


def test_cpp_wrappers_are_not_offered_it(offered, device):
    with config.patch(cpp_wrapper=True):
        torch.compile(torch.mm, mode=AUTOTUNE)(*operands(device)[:2])
    assert not any(is_ours for _, is_ours in ours(offered))


PROGRAM = """
import torch, torch_tiled
from torch._dynamo.utils import counters
from torch._inductor import config

torch_tiled.inductor.enable()
config.test_configs.autotune_choice_name_regex = "^tiled_"
config.max_autotune_gemm_backends = "ATEN"
a, b = torch.randn(64, 96), torch.randn(96, 80)
compiled = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")
assert torch.equal(compiled(a, b), torch_tiled.matmul(a, b))
print(counters["inductor"]["fxgraph_cache_hit"])
"""


def test_code_from_the_cache_runs_in_a_process_of_its_own(tmp_path):
    hits = [python(PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [hit.split()[-1] for hit in hits] == ["0", "1"]


@needs_hopper
def test_wins_where_the_benchmark_says_so(offered):
    """A product of 2048 cubed, on which cuBLAS and Triton are slower by far."""
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    compiled = torch.compile(torch.mm, mode=AUTOTUNE)
    with config.patch(max_autotune_gemm_backends="ATEN,TRITON"):
        _, (code, *_) = run_and_get_code(compiled, a, b)
    assert "extern_kernels.tiled_mm(" in code
