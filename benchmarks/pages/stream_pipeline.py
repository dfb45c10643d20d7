"""The drawing of docs/guide/stream.md: the three queues of a GPU over time, as a plan has them."""

from collections.abc import Iterator
from pathlib import Path

import torch

import torch_tiled
from benchmarks import ROOT
from benchmarks.pages import plots
from torch_tiled.stream.candidate import Candidate, Span, timeline
from torch_tiled.stream.machine import Machine
from torch_tiled.stream.parts import Settings, sizes_of
from torch_tiled.stream.problem import make_problem
from torch_tiled.stream.staging import QUEUES

PAGE = ROOT / "docs" / "guide" / "stream.md"
PLOT = PAGE.with_name("stream_pipeline.svg")

SIZE = 32768  # of the square float32 product that is drawn
BUDGET = 6 * 2**30
STEPS = 13  # that are drawn
COLOURS = {"A": plots.BLUE, "B": plots.ORANGE, "C": plots.GREEN}
NAMES = {"in": "copies in", "compute": "products", "out": "copies out"}


def planned(size: int, budget: int):
    """The plan of a square product on the machine that plans without a GPU are made for."""
    x = torch.empty(size, size, device="meta")
    return torch_tiled.stream.plan(x, x, devices="cpu", max_device_bytes=budget)


def spans_of(plan) -> Iterator[Span]:
    """When the copies and products of a plan begin and end, after the checks of the call.

    Operands are float32 in pinned memory.
    """
    _, m, n, k = plan.shape
    a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
    problem, c = make_problem(a, b, None, "fp32", plan.algorithm, is_plan=True)
    machine = Machine()
    sizes = sizes_of(a, b, c, problem, Settings((), BUDGET, machine, None, machine.device))
    return timeline(Candidate(sizes, machine, plan.tile, plan.depth, plan.kept))


def draw(path: Path) -> None:
    """A row for each queue, and a bar for each copy and product of the first steps."""
    plan = planned(SIZE, BUDGET)
    spans = []
    for span in spans_of(plan):
        if sum(each.queue == "compute" for each in spans) == STEPS and span.queue != "out":
            break
        spans.append(span)
    figure, axes = plots.subplots(size=(9, 2.9))
    for span in spans:
        place, width = QUEUES.index(span.queue), 1e3 * (span.end - span.start)
        style = {"left": 1e3 * span.start, "color": COLOURS[span.what], "edgecolor": "white"}
        axes.barh(place, width, height=0.7, **style)
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
    figure.legend(loc="outside lower center", ncols=3)
    size = f"{SIZE} x {SIZE} x {SIZE} in {BUDGET >> 30} GiB"
    axes.set_title(f"float32, {size}: the first {STEPS} steps")
    plots.save(figure, path)
