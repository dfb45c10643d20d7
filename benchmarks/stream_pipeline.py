"""The drawing of docs/guide/stream.md: the three queues of a GPU over time, as a plan has them."""

from pathlib import Path
from typing import NamedTuple

import plots
import torch

import torch_tiled
from torch_tiled.stream.machine import Machine
from torch_tiled.stream.order import order_of
from torch_tiled.stream.planner import SLOTS
from torch_tiled.stream.queues import QUEUES
from torch_tiled.stream.schedule import steps

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guide" / "stream.md"
PLOT = PAGE.with_name("stream_pipeline.svg")

SIZE = 32768  # of the square float32 product that is drawn
BUDGET = 6 * 2**30
STEPS = 13  # that are drawn
COLOURS = {"A": plots.BLUE, "B": plots.ORANGE, "C": plots.GREEN}
NAMES = {"in": "copies in", "compute": "products", "out": "copies out"}


class Span(NamedTuple):
    """Work of a queue, from one time to another, in seconds."""

    queue: str
    what: str  # "A", "B" or "C"
    index: tuple[int, ...]  # of the panel, or the row and the column of the tile
    start: float
    end: float


def planned(size: int, budget: int):
    """The plan of a square product on the machine that plans without a GPU are made for."""
    x = torch.empty(size, size, device="meta")
    return torch_tiled.stream.plan(x, x, devices="cpu", max_device_bytes=budget)


def timeline(plan, count: int | None = None) -> list[Span]:
    """When the copies and products of the first steps of a plan begin and end.

    Operands are float32 in pinned memory, and K is not cut.
    """
    machine, (_, m, n, k) = Machine(), plan.shape
    order = order_of(torch.float32, (m, n, k), "fp32", plan.algorithm, machine.device)
    sides = {"a": (m, plan.tile[0]), "b": (n, plan.tile[1])}
    free = dict.fromkeys(QUEUES, 0.0)  # from when on a queue has nothing to do
    loaded, computed, stored, spans = {}, {-1: 0.0}, [], []

    def add(queue, what, index, ready, seconds):
        start = max(free[queue], ready)
        free[queue] = start + seconds
        spans.append(Span(queue, what, index, start, free[queue]))
        return free[queue]

    def length(operand, index):
        total, size = sides[operand]
        return min(size, total - index * size)

    for step in steps(plan.grid, SLOTS, SLOTS):
        if step.number == count:
            break
        for load in step.loads:
            nbytes = 4 * length(load.operand, load.index) * k / load.parts
            seconds = machine.seconds_in(nbytes, False)
            what = load.operand.upper()
            end = add("in", what, (load.index,), computed[load.after], seconds)
            loaded[load.operand, load.slot] = end
        rows, cols = length("a", step.row), length("b", step.col)
        ready = max(loaded["a", step.a_slot], loaded["b", step.b_slot])
        if len(stored) >= SLOTS:
            ready = max(ready, stored[-SLOTS])
        seconds = machine.product_seconds(order, rows, cols, k, 1, prepared=plan.is_prepared)
        tile = step.row, step.col
        computed[step.number] = add("compute", "C", tile, ready, seconds)
        seconds = machine.seconds_out(4 * rows * cols, False)
        stored.append(add("out", "C", tile, computed[step.number], seconds))
    return spans


def draw(path: Path) -> None:
    """A row for each queue, and a bar for each copy and product of the first steps."""
    plan = planned(SIZE, BUDGET)
    spans = timeline(plan, STEPS)
    figure, axes = plots.pyplot().subplots(figsize=(9, 2.9), layout="constrained")
    for span in spans:
        place, width = QUEUES.index(span.queue), 1e3 * (span.end - span.start)
        axes.barh(
            *(place, width),
            left=1e3 * span.start,
            height=0.7,
            color=COLOURS[span.what],
            edgecolor="white",
        )
        if span.queue != "out" and width > 7:
            label = ",".join(map(str, span.index))
            label = label if span.queue == "compute" else span.what + label
            middle = 500 * (span.start + span.end)
            axes.text(middle, place, label, ha="center", va="center", fontsize=7, color="white")
    rows, cols = plan.tile
    labels = {
        "A": f"panel of A, {rows} rows: streams",
        "B": f"panel of B, {cols} columns: kept",
        "C": "tile of C: row, column",
    }
    for what, label in labels.items():
        axes.barh(0, 0, color=COLOURS[what], label=label)
    axes.set_yticks(range(len(QUEUES)), labels=[NAMES[queue] for queue in QUEUES])
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * spans[-1].end)
    axes.set_xlabel("ms, by the plan's model of an H200")
    figure.legend(fontsize="small", loc="outside lower center", ncols=3)
    title = f"float32, {SIZE} x {SIZE} x {SIZE} in {BUDGET >> 30} GiB: the first {STEPS} steps"
    plots.finish(figure, axes, title, path)
