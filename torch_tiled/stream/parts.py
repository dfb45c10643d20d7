"""From a problem to the products that are streamed one after another, and their plans."""

import dataclasses
import itertools
import math

import torch

from .errors import fail
from .machine import MIB, bytes_text
from .order import Order, order_of
from .planner import Plan, emptied, least_budget, make_plan, repeated
from .problem import Epilogue
from .staging import is_column_major, is_staged, pitch

__all__ = [
    "Layout",
    "Part",
    "PlannedProduct",
    "Settings",
    "Sizes",
    "Source",
    "find_plan",
    "parts_of",
    "plan_of",
    "plan_product",
    "sizes_of",
]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a matrix is stored: in lines of adjacent elements, its rows or its columns.

    Attributes:
        is_row_major: whether rows are the lines.
        is_dense: whether each line begins at the end of the one before, on both sides of a copy.
    """

    is_row_major: bool = True
    is_dense: bool = True

    def lines(self, part, whole):
        """How many lines are copied one by one for a part of a matrix: 0 if it is one range.

        Args:
            part, whole: the (rows, columns) of the part and of the matrix.
        """
        along = 1 if self.is_row_major else 0
        is_range = self.is_dense and part[along] >= whole[along]
        return 0 if is_range else part[1 - along]


@dataclasses.dataclass(frozen=True)
class Source:
    """An operand as it is stored: A, or B transposed.

    Attributes:
        rows: m, or n.
        is_shared: whether it is one matrix for all of a batch.
        is_on_gpu: whether it is on the GPU that multiplies it.
        is_staged: whether it passes through pinned staging memory.
        layout: of a matrix.
    """

    rows: int
    is_shared: bool = False
    is_on_gpu: bool = False
    is_staged: bool = False
    layout: Layout = Layout()


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The facts from which a plan is made.

    Attributes:
        batch: how many matrices there are.
        a, b: the Source of each operand.
        k: their columns.
        element_bytes, out_bytes: of the operands' dtype and the result's.
        out_is_staged, out_layout: as for a Source, of the result.
        order: the Order of the sums.
        bias_bytes: of a bias, which is on each GPU.
        repeats: how many such products follow one another, divided by the number of GPUs.
    """

    batch: int
    a: Source
    b: Source
    k: int
    element_bytes: int
    out_bytes: int
    out_is_staged: bool
    out_layout: Layout
    order: Order
    bias_bytes: int = 0
    repeats: float = 1.0

    @property
    def m(self):
        return self.a.rows

    @property
    def n(self):
        return self.b.rows


@dataclasses.dataclass(frozen=True)
class Settings:
    """The devices of a product, and what it may take of them.

    Attributes:
        devices: the GPUs; empty for the CPU.
        budget: bytes of each GPU.
        machine: the Machine of each.
        make_queues: a function of a device.
        compute: the (compute capability, SMs), or None for a simulated device.
    """

    devices: tuple
    budget: int
    machine: object
    make_queues: object
    compute: tuple | None


@dataclasses.dataclass
class Part:
    """A product of matrices, or of a batch that goes in groups, within the whole."""

    matrix: int | None  # the index of the first one in the flattened batch; None without a batch
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


@dataclasses.dataclass(frozen=True)
class PlannedProduct:
    """A product of matrices, or of a batch of them, and how it is computed.

    Attributes:
        a: (m, k), or (matrices, m, k).
        b: (k, n), or (matrices, k, n).
        c: (m, n), or (matrices, m, n), on the host, which is written to.
        plan: the Plan.
        order: the Order of the sums.
        epilogue: the Epilogue of all columns of C.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    plan: Plan
    order: Order
    epilogue: Epilogue


def sizes_of(a, b, c, problem, settings):
    """The Sizes of a product of matrices, or of a flat batch of them."""
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    options = problem.precision, problem.algorithm, settings.compute
    return Sizes(
        batch=batch,
        a=_source(a, settings.devices),
        b=_source(b.mT, settings.devices),
        k=k,
        element_bytes=a.dtype.itemsize,
        out_bytes=c.dtype.itemsize,
        out_is_staged=is_staged(c),
        out_layout=_layout(c),
        order=order_of(a.dtype, (m, n, k), *options),
        bias_bytes=0 if problem.epilogue.bias is None else n * a.dtype.itemsize,
        repeats=math.prod(problem.batch) / max(batch, 1) / max(len(settings.devices), 1),
    )


def _source(x, devices):
    return Source(
        rows=x.shape[-2],
        is_shared=x.dim() == 3 and x.stride(0) == 0,
        # If there are several GPUs, others copy it from the one that has it.
        is_on_gpu=x.device.type == "cuda" and all(x.device == device for device in devices),
        is_staged=is_staged(x),
        layout=_layout(x, has_slots=True),
    )


def _layout(x, *, has_slots=False):
    """The Layout of a tensor that is copied to slots, or from tiles."""
    is_row_major = not is_column_major(x)
    lines = x if is_row_major else x.mT
    has_no_gaps = lines.shape[-2] == 1 or lines.stride(-2) == lines.shape[-1]
    has_no_memory = not any(x.stride())  # as the result of a plan
    is_dense = has_no_memory or (lines.stride(-1) == 1 and has_no_gaps)
    if has_slots:
        is_dense = is_dense and pitch(lines.shape[-1], x.element_size()) == lines.shape[-1]
    return Layout(is_row_major, is_dense)


def plan_product(problem, settings):
    """Returns the Plan of a problem, which is that of its first part, repeated."""
    outer, operands = _outer(problem)
    sizes, outer_batch = sizes_of(*operands, problem, settings), problem.batch[:outer]
    times = math.prod(outer_batch)
    if problem.is_empty:  # nothing moves, whatever the budget
        return emptied(find_plan(sizes, settings, 1 << 128), times)
    of_one = (times // _distinct(x, outer_batch) for x in (problem.a, problem.b))
    plan = repeated(plan_of(sizes, settings, settings.budget), times, *of_one)
    return dataclasses.replace(plan, seconds=plan.seconds + settings.machine.call_seconds)


def _distinct(x, batch):
    """How many operands are in memory for the first dimensions of a batch, which are given."""
    return math.prod(n for n, stride in zip(batch, x.stride(), strict=False) if stride)


def find_plan(sizes, settings, budget):
    """Returns the Plan, or None if the budget is too small."""
    return make_plan(sizes, settings.machine, budget, max(len(settings.devices), 1))


def plan_of(sizes, settings, budget):
    """Returns the Plan, or raises the sentence that says which budget is needed."""
    plan = find_plan(sizes, settings, budget)
    if plan is None:
        least = math.ceil(100 * least_budget(sizes, settings.machine) / MIB) / 100
        s = sizes
        whole = "" if s.order.chunk else f" (algorithm {s.order.algorithm} does not cut K)"
        fail(
            f"max_device_bytes is {budget} ({bytes_text(budget)}), too small for any tile of "
            f"m = {s.m}, n = {s.n}, k = {s.k}{whole}; at least {least:.2f} MiB are needed"
        )
    return plan


def _outer(problem):
    """The dimensions of the batch that no stride spans with those that follow: the fewest.

    Returns:
        (How many, A, B and C at the first index of these, with at most one batch dimension).
    """
    operands = problem.a, problem.b, problem.out
    dims = len(problem.batch)
    for outer in range(dims):
        found = [_flatten(x[(0,) * outer], dims - outer) for x in operands]
        if all(x is not None for x in found):
            return outer, found
    return dims, [x[(0,) * dims] for x in operands]


def _flatten(x, dims):
    """x with one batch dimension, or None."""
    count = x.shape[:dims].numel()
    if count and all(x.stride(d) == 0 or x.shape[d] == 1 for d in range(dims)):
        return x[(0,) * dims].expand(count, -1, -1)
    try:
        return x.view(count, *x.shape[-2:])
    except RuntimeError:
        return None


def parts_of(problem, settings):
    """The products that are streamed one after another."""
    dims = len(problem.batch)
    outer, operands = _outer(problem)
    if outer < dims:
        plan = find_plan(sizes_of(*operands, problem, settings), settings, settings.budget)
        if plan is None or not plan.matrices:
            outer = dims
    parts = []
    each = math.prod(problem.batch[outer:])
    for number, index in enumerate(itertools.product(*map(range, problem.batch[:outer]))):
        operands = [x[index] for x in (problem.a, problem.b, problem.out)]
        if outer < dims:
            operands = [_flatten(x, dims - outer) for x in operands]
        parts.append(Part(number * each if dims else None, *operands))
    return parts
