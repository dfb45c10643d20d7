"""Products that stream through simulated GPUs, in tiles of any size, and what they should be."""

import contextlib
import dataclasses
import importlib
import itertools
from unittest import mock

import pytest
import torch
from helpers.reference import assert_same
from helpers.simulated_gpu import simulated

import torch_tiled
from torch_tiled.stream import staging
from torch_tiled.stream.parts import Layout, Sizes, Source
from torch_tiled.stream.problem import make_linear_problem, make_problem
from torch_tiled.stream.worker import Worker

# Functions of the package have the names of these modules.
parts_module = importlib.import_module("torch_tiled.stream.parts")
plan_module = importlib.import_module("torch_tiled.stream.planner")
run_module = importlib.import_module("torch_tiled.stream.run")

MUCH = 1 << 30

# (dtype, algorithm, precision, the chunk of K).
KINDS = [
    (torch.float32, "fp16x3", "fp32", 1024),
    (torch.float32, "tiled", "fp32", 1024),
    (torch.float32, "tiled", "ieee", 1024),
    (torch.float32, "naive", "fp32", None),
    (torch.float32, "tf32", "tf32", 8192),
    (torch.float64, "tiled", "fp32", 1024),
    (torch.bfloat16, "mma", "fp32", 8192),
    (torch.float16, "mma", "fp32", 8192),
    (torch.float16, "tiled", "fp32", 1024),
    (torch.complex64, "fp16x3", "fp32", 512),
    (torch.complex64, "tiled", "fp32", 512),
    (torch.complex128, "tiled", "fp32", 512),
]
CUT = [kind for kind in KINDS if kind[3]]
SIDES = {"staged": False, "direct": True}


def of_kinds(kinds):
    """Parametrizes a test by kinds."""
    return pytest.mark.parametrize("kind", kinds, ids=lambda x: f"{x[0]}-{x[1]}-{x[2]}"[6:])


every_kind, cut_kinds = of_kinds(KINDS), of_kinds(CUT)
both_sides = pytest.mark.parametrize("pinned", SIDES.values(), ids=SIDES)


@dataclasses.dataclass
class Streamed:
    """A result, the simulated queues that computed it, and the Plans."""

    result: torch.Tensor
    queues: list
    plans: list


@contextlib.contextmanager
def planned(tile=None, depth=None, kept="b", matrices=0):
    """Puts tiles of this size in the place of those that make_plan would choose. Yields the plans.

    They are smaller where the budget is less than MUCH. Where no tile is given, the plans are those
    of make_plan.
    """
    plans = []
    original = parts_module.make_plan

    def make_plan(sizes, machine, budget, workers=1):
        if tile is None and not matrices:
            plan = original(sizes, machine, budget, workers)
        elif sizes.batch == 1 or matrices:
            plan = plan_module._plan_of(candidate(sizes, machine, budget), workers)
        else:
            one = candidate(plan_module._batch_of_one(sizes), machine, budget)
            plan = plan_module._one_by_one(plan_module._plan_of(one, workers), sizes)
        plans.append(plan)
        return plan

    def candidate(sizes, machine, budget):
        if sizes.batch > 1 and matrices:
            whole = (sizes.m, sizes.n), sizes.k
            count = max(min(matrices, sizes.batch) * budget // MUCH, 1)
            return plan_module.Candidate(sizes, machine, *whole, "b", count)
        rows, cols = (max(x * budget // MUCH, 1) for x in tile or (sizes.m, sizes.n))
        part = (min(rows, sizes.m), min(cols, sizes.n)), min(depth or sizes.k, sizes.k)
        return plan_module.Candidate(sizes, machine, *part, kept)

    with mock.patch.object(parts_module, "make_plan", make_plan):
        yield plans


def failing_steps(errors):
    """A context in which the n-th step that any worker issues raises errors[n]."""
    issue, count = Worker._issue, itertools.count(1)

    def issue_or_fail(self, step):
        error = errors.get(next(count))
        if error is not None:
            raise type(error)(*error.args)
        return issue(self, step)

    return mock.patch.object(Worker, "_issue", issue_or_fail)


def poison(x):
    """Fills a tensor with NaN, both parts of complex ones."""
    return x.fill_(complex(torch.nan, torch.nan) if x.is_complex() else torch.nan)


def stream(a, b, *, out=None, algorithm="tiled", precision="fp32", **options):
    """Returns the Streamed of a product on simulated GPUs. The options are those of _run."""
    return _run(*make_problem(a, b, out, precision, algorithm), **options)


def stream_linear(
    *operands, activation="none", out=None, algorithm="tiled", precision="fp32", **options
):
    """The same of linear, whose operands are x, weight and a bias, or None."""
    problem = make_linear_problem(*operands, activation, out, precision, algorithm)
    return _run(*problem, **options)


def _run(
    problem,
    result,
    *,
    budget=MUCH,
    workers=1,
    seed=0,
    pinned=False,
    report=lambda progress: None,
    **tiles,
):
    """Returns the Streamed of a problem.

    Args:
        pinned: whether tensors of the host lie in pinned memory, or a function of a tensor.
        tiles: as for planned().
    """
    poison(result)
    settings, queues = simulated(budget, workers, seed=seed)
    with pins(pinned), planned(**tiles) as plans:
        run_module.run(problem, settings, report)
    return Streamed(result, queues, plans)


def pins(pinned):
    """Lets tensors count as pinned: all, none, or those of which a function says so."""
    is_pinned = pinned if callable(pinned) else lambda x: pinned
    return mock.patch.object(staging, "is_pinned", is_pinned)


def plan_of(a, b, *, budget=MUCH, pinned=False, algorithm="tiled", **tiles):
    """Returns the Plan of what stream() does with these arguments."""
    problem, _ = make_problem(a, b, None, "fp32", algorithm)
    settings, _ = simulated(budget)
    with pins(pinned), planned(**tiles):
        return parts_module.plan_product(problem, settings)


def sizes_of(order, m, n, k):
    """The Sizes of float32 matrices in pinned memory, row by row."""
    b = Source(n, layout=Layout(is_row_major=False))
    return Sizes(1, Source(m), b, k, 4, 4, False, Layout(), order)


def cases(table):
    """The parameters of a test: each row of a table without its first element, the test's name."""
    return [pytest.param(*rest, id=name) for name, *rest in table]


def sentence_of(call, *args, **options):
    """The text of the RuntimeError that a function of stream raises, after the function's name."""
    with pytest.raises(RuntimeError) as raised:
        call(*args, **options)
    assert type(raised.value) is RuntimeError
    text, name = str(raised.value), f"torch_tiled.stream.{call.__name__}: "
    assert text.startswith(name) and "\n" not in text
    return text.removeprefix(name)


def check(a, b, *, algorithm="tiled", precision="fp32", **options):
    """Checks that a streamed product has the bits of torch_tiled.matmul, and returns it."""
    streamed = stream(a, b, algorithm=algorithm, precision=precision, **options)
    out = options.get("out")
    if streamed.result.numel() == 0:
        assert streamed.result.shape == torch.matmul(a, b).shape
        return streamed
    # The reference has the dtype of `out`, and memory of its own.
    expected = None if out is None else torch.empty(out.shape, dtype=out.dtype)
    expected = torch_tiled.matmul(a, b, out=expected, algorithm=algorithm, precision=precision)
    assert_same(streamed.result, expected)
    return streamed


def check_linear(*operands, activation="none", algorithm="tiled", precision="fp32", **options):
    """Checks that a streamed linear has the bits of torch_tiled.linear, and returns it."""
    kind = {"activation": activation, "algorithm": algorithm, "precision": precision}
    streamed = stream_linear(*operands, **kind, **options)
    assert_same(streamed.result, torch_tiled.linear(*operands, **kind))
    return streamed


# A matrix, or a batch of them, in memory of other strides and alignments, with NaN between.
def _strided(x):
    *batch, rows, cols = x.shape
    memory = poison(x.new_empty((*batch, 2 * rows, 3 * cols)))
    return memory[..., ::2, ::3].copy_(x)


def _misaligned(x):
    *batch, rows, cols = x.shape
    memory = poison(x.new_empty((*batch, rows, cols + 3)))
    return memory[..., 1 : cols + 1].copy_(x)


LAYOUTS = {
    "row-major": lambda x: x,
    "column-major": lambda x: x.mT.contiguous().mT,
    "strided": _strided,
    "misaligned": _misaligned,
    "misaligned columns": lambda x: _misaligned(x.mT).mT,
    "overlapping rows": lambda x: torch.cat([x[0], x[:, -1]]).unfold(0, x.shape[1], 1)[: len(x)],
    "one row for all": lambda x: x[:1].expand_as(x),
    "one column for all": lambda x: x[:, :1].expand_as(x),
}

# Lazy bits and parts of complex numbers.
VIEWS = {
    "negative": lambda x: torch._neg_view(x),
    "real part": lambda x: torch.complex(x, x + 1).real,
    "imaginary part": lambda x: torch.complex(x + 1, x).imag,
    "negative imaginary part": lambda x: torch.complex(x + 1, x).conj().imag,
}
COMPLEX_VIEWS = {
    "conjugate": lambda x: x.conj(),
    "adjoint": lambda x: x.mT.contiguous().mH,
    "negative": lambda x: torch._neg_view(x),
    "negative conjugate": lambda x: torch._neg_view(x).conj(),
}
