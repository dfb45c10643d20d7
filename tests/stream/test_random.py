"""Random streamed products of any shapes, strides, tiles and budgets, by hypothesis."""

import itertools
import math

import pytest
import torch
from helpers.streaming import check, plan_of

import torch_tiled
from torch_tiled.stream.machine import MIB

hypothesis = pytest.importorskip("hypothesis", reason="random problems need hypothesis")

from helpers.strategies import layouts, random_problems, shapes  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

# (dtype, algorithm, the chunk of K).
KINDS = [
    (torch.float32, "tiled", 1024),
    (torch.float32, "fp16x3", 1024),
    (torch.float64, "tiled", 1024),
    (torch.complex64, "tiled", 512),
    (torch.bfloat16, "tiled", 1024),
]


def draw_operands(data, dtype, shapes):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), label="values"))
    spread = data.draw(st.sampled_from([0, 0, 0, 20]), label="spread")
    found = []
    for shape in shapes:
        values = torch.randn(shape, dtype=torch.float64, generator=generator)
        values *= torch.exp(spread * torch.randn(shape[-1:], generator=generator))
        values = data.draw(layouts(shape, may_share=False))(values.to(dtype))
        shares = values.dim() > 2 and data.draw(st.integers(0, 4), label="shared") == 0
        found.append(values[:1].expand_as(values) if shares else values)
    return found


@random_problems(1200, 120)
@given(data=st.data())
def test_random_tiles(data):
    dtype, algorithm, chunk = data.draw(st.sampled_from(KINDS), label="kind")
    is_cut = data.draw(st.integers(0, 3), label="cut") == 0
    k = data.draw(
        st.sampled_from([1025, 1600, 2048, 2100] if is_cut else [0, 1, 17, 130]), label="k"
    )
    a, b = draw_operands(data, dtype, data.draw(shapes(k, most_batches=2), label="shapes"))
    check(
        a,
        b,
        algorithm=algorithm if k >= 128 else "tiled",
        tile=data.draw(st.tuples(*[st.sampled_from([8, 13, 32])] * 2), label="tile"),
        depth=chunk * data.draw(st.integers(1, 2), label="chunks") if is_cut else None,
        kept=data.draw(st.sampled_from("ab"), label="kept"),
        matrices=data.draw(st.integers(0, 3), label="matrices"),
        workers=data.draw(st.integers(1, 3), label="workers"),
        seed=data.draw(st.integers(0, 99), label="seed"),
        pinned=data.draw(st.booleans(), label="pinned"),
    )


@random_problems(200, 20)
@given(data=st.data())
def test_random_budgets(data):
    """Within a budget of a plan's own choice, or a sentence that names a larger one."""
    dtype, algorithm, _ = data.draw(st.sampled_from(KINDS), label="kind")
    k = data.draw(st.sampled_from([130, 1500]), label="k")
    a, b = draw_operands(data, dtype, data.draw(shapes(k, most_batches=2), label="shapes"))
    budget = data.draw(st.integers(2**20, 2**23), label="budget")
    try:
        streamed = check(a, b, algorithm=algorithm, budget=budget)
    except RuntimeError as error:
        least = float(str(error).split("at least ")[1].split()[0]) * MIB
        assert least > 0.99 * budget
        streamed = check(a, b, algorithm=algorithm, budget=int(1.01 * least))
        budget = 1.01 * least
    assert all(plan is None or plan.device_bytes <= budget for plan in streamed.plans)


@random_problems(600, 60)
@given(data=st.data())
def test_plans_count_the_bytes_that_products_copy(data):
    """Of batches of all kinds, in groups or not, by plans of any sizes and of make_plan."""
    is_cut = data.draw(st.integers(0, 3), label="cut") == 0
    k = data.draw(st.sampled_from([1025, 2100, 3000] if is_cut else [1, 17, 130]), label="k")
    a, b = draw_operands(data, torch.float32, data.draw(shapes(k, most_batches=2), label="shapes"))
    options = {"pinned": data.draw(st.booleans(), label="pinned")}
    if data.draw(st.booleans(), label="make_plan"):
        options["budget"] = data.draw(st.integers(4, 8), label="budget") * MIB
    else:
        options |= {
            "tile": data.draw(st.tuples(*[st.sampled_from([8, 13, 32])] * 2), label="tile"),
            "depth": 1024 if is_cut else None,
            "kept": data.draw(st.sampled_from("ab"), label="kept"),
            "matrices": data.draw(st.integers(0, 3), label="matrices"),
        }
    streamed = check(a, b, **options)
    if streamed.result.numel() == 0:
        return
    plan = plan_of(a, b, **options)
    assert sum(x.copied["in"] for x in streamed.queues) == plan.bytes_in
    assert sum(x.copied["out"] for x in streamed.queues) == plan.bytes_out
    count = elements_in_memory if plan.shape[0] > 1 else torch.numel  # or a batch is rows of A
    of_a, of_b = map(count, (a, b))
    assert 4 * (plan.passes_a * of_a + plan.passes_b * of_b) == pytest.approx(plan.bytes_in)


def elements_in_memory(x):
    """The elements of a batch of matrices, where those of a batch dimension may be one."""
    if x.dim() < 3:
        return x.numel()
    sizes = zip(x.shape[:-2], x.stride(), strict=False)
    return math.prod(size for size, step in sizes if step) * x.shape[-2:].numel()


@random_problems(300, 30)
@given(data=st.data())
def test_a_larger_budget_makes_no_plan_slower(data):
    def size(label, most):
        return int(2 ** data.draw(st.floats(0, most), label=label))

    m, n, k = (size(x, 17) for x in "mnk")
    batch = [size("batch", 12)] if data.draw(st.booleans(), label="is batch") else []
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    a, b = (torch.empty(*batch, *x, device="meta", dtype=dtype) for x in ((m, k), (k, n)))
    budgets = sorted(size("budget", 16) * MIB for _ in range(4))
    found = [plan_or_none(a, b, budget) for budget in budgets]
    for less, more in itertools.pairwise(found):
        if less is not None:
            assert more.seconds <= less.seconds * (1 + 1e-12)
    for plan, budget in zip(found, budgets, strict=True):
        assert plan is None or plan.device_bytes <= budget


def plan_or_none(a, b, budget):
    try:
        return torch_tiled.stream.plan(a, b, max_device_bytes=budget, devices="cpu")
    except RuntimeError as error:
        assert "at least" in str(error)
        return None
