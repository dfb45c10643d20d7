"""Random streamed products of any shapes, strides, tiles and budgets, by hypothesis."""

import math
import os

import pytest
import torch
from helpers.streaming import check, plan_module
from helpers.thinning import fewer

hypothesis = pytest.importorskip("hypothesis", reason="random problems need hypothesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZES = st.sampled_from([0, 1, 2, 3, 16, 17, 33, 65])
# (dtype, algorithm, the chunk of K).
KINDS = [
    (torch.float32, "tiled", 1024),
    (torch.float32, "fp16x3", 1024),
    (torch.float64, "tiled", 1024),
    (torch.complex64, "tiled", 512),
    (torch.bfloat16, "tiled", 1024),
]


def random_problems(max_examples):
    return settings(
        max_examples=fewer(10 * max_examples, max_examples),
        deadline=None,
        database=None,
        derandomize="CI" in os.environ,
        suppress_health_check=[HealthCheck.too_slow],
    )


def draw_layout(data, values):
    """The values in dimensions of any order, strided and misaligned, with NaN between them."""
    rank = values.dim()
    order = data.draw(st.permutations(range(rank)), label="order of dimensions")
    steps = data.draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, 3])] * rank), label="steps")
    offset = data.draw(st.sampled_from([0, 0, 1, 3]), label="offset")
    sizes = [size * step for size, step in zip(values.shape, steps, strict=True)]
    memory = values.new_full((offset + math.prod(sizes),), torch.nan)
    whole = memory[offset:].view([sizes[d] for d in order])
    whole = whole.permute([order.index(d) for d in range(rank)])
    view = whole[tuple(slice(None, None, step) for step in steps)]
    return view.copy_(values)


def draw_shapes(data, k):
    m, n = data.draw(SIZES, label="m"), data.draw(SIZES, label="n")
    batch = data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=2), label="batch")
    shapes = []
    for matrix in ((m, k), (k, n)):
        own = batch[data.draw(st.integers(0, len(batch))) :]
        own = [1 if data.draw(st.integers(0, 3)) == 0 else size for size in own]
        is_vector = not own and data.draw(st.integers(0, 4)) == 0
        shapes.append((k,) if is_vector else (*own, *matrix))
    return shapes


def draw_operands(data, dtype, shapes):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), label="values"))
    spread = data.draw(st.sampled_from([0, 0, 0, 20]), label="spread")
    found = []
    for shape in shapes:
        values = torch.randn(shape, dtype=torch.float64, generator=generator)
        values *= torch.exp(spread * torch.randn(shape[-1:], generator=generator))
        values = draw_layout(data, values.to(dtype))
        shares = values.dim() > 2 and data.draw(st.integers(0, 4), label="shared") == 0
        found.append(values[:1].expand_as(values) if shares else values)
    return found


@random_problems(120)
@given(data=st.data())
def test_random_tiles(data):
    dtype, algorithm, chunk = data.draw(st.sampled_from(KINDS), label="kind")
    is_cut = data.draw(st.integers(0, 3), label="cut") == 0
    k = data.draw(
        st.sampled_from([1025, 1600, 2048, 2100] if is_cut else [0, 1, 17, 130]), label="k"
    )
    a, b = draw_operands(data, dtype, draw_shapes(data, k))
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


@random_problems(20)
@given(data=st.data())
def test_random_budgets(data):
    """Within a budget of a plan's own choice, or a sentence that names a larger one."""
    dtype, algorithm, _ = data.draw(st.sampled_from(KINDS), label="kind")
    k = data.draw(st.sampled_from([130, 1500]), label="k")
    a, b = draw_operands(data, dtype, draw_shapes(data, k))
    budget = data.draw(st.integers(2**20, 2**23), label="budget")
    try:
        streamed = check(a, b, algorithm=algorithm, budget=budget)
    except RuntimeError as error:
        least = float(str(error).split("at least ")[1].split()[0]) * plan_module.MIB
        assert least > 0.99 * budget
        streamed = check(a, b, algorithm=algorithm, budget=int(1.01 * least))
        budget = 1.01 * least
    assert all(plan is None or plan.device_bytes <= budget for plan in streamed.plans)
