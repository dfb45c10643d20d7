"""The generated parts of docs/course: tables and the staircase.

They show course.json of benchmarks.studies.course and the sources of the kernels. A figure that the
results lack is "-".
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages import plots
from benchmarks.pages.course_kernels import LAYOUTS, SECTOR, SIZE, Rung, rungs
from benchmarks.pages.markdown import figure, measured_on, table
from benchmarks.pages.roofline import SMS, TILED_SIZES
from benchmarks.pages.rows import peer_tflops, select

FOLDER = ROOT / "docs" / "course"
INDEX = FOLDER / "index.md"
STAIRCASE = FOLDER / "staircase.svg"
MEMORIES = ("l2", "dram")


def pages() -> dict[int, Path]:
    """The page of each step; a page has the number of its file, and the file's name or a part."""
    found = {rung.step for rung in rungs().values()}
    return {step: next(FOLDER.glob(f"{step:02}_*.md")) for step in sorted(found)}


def _row(measured: dict, kernel: str, layout: str, key: str = "rows") -> dict | None:
    size = {"m": SIZE} if key == "rows" else {}
    return next(iter(select(measured[key], kernel=kernel, layout=layout, **size)), None)


def _both(measured: dict, cell: Callable[[str], float | None], form: str) -> str:
    """A cell with a figure for each layout."""
    return ", ".join(figure(cell(layout), form) for layout in LAYOUTS)


def _tflops(measured: dict, kernel: str, layout: str) -> float | None:
    row = _row(measured, kernel, layout)
    return row and row["tflops"]


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _profile(measured: dict, kernel: str, layout: str, name: str) -> float | None:
    row = _row(measured, kernel, layout, "profiles")
    return row and row[name]


def _over_ideal(measured: dict, kernel: str, layout: str, kind: str) -> float | None:
    """The wavefronts of loads or stores, relative to those without a conflict."""
    every = _profile(measured, kernel, layout, f"{kind}_wavefronts")
    lost = _profile(measured, kernel, layout, f"{kind}_conflicts")
    return None if every is None or lost is None else _ratio(every, every - lost)


def _gigabytes(measured: dict, kernel: str, layout: str, memory: str) -> float | None:
    """What a product of the profiled size reads of L2 or DRAM."""
    row = _row(measured, kernel, layout, "profiles")
    counted = row and row[f"{memory}_read_sectors"]
    return counted and counted * SECTOR / 1e9


def model_gigabytes(rung: Rung, size: int) -> float:
    """What the blocks of a kernel read by the model, 2MNK / T elements."""
    return rung.itemsize * rung.reads * size**3 / 1e9


def _blocks(measured: dict, kernel: str) -> int | None:
    """The blocks that an SM has room for."""
    limits = ("registers", "shared_memory", "threads")
    found = [_profile(measured, kernel, "NN", f"blocks_by_{limit}") for limit in limits]
    return None if None in found else int(min(found))


def _stalls(measured: dict, kernel: str) -> str:
    row = _row(measured, kernel, "NN", "profiles")
    told = row and [f"{name.replace('_', ' ')} {n:.2g}" for name, n in row["stalls"].items()]
    return ", ".join(told) if told else "-"


def _step(measured: dict, kernel: str, before: str | None, layout: str) -> float | None:
    """The rate of a kernel over that of the one before, if both multiply one dtype."""
    if before is None or rungs()[before].itemsize != rungs()[kernel].itemsize:
        return None
    return _ratio(_tflops(measured, kernel, layout), _tflops(measured, before, layout))


def _column(measured: dict, rung: Rung, before: str | None) -> dict[str, str]:
    """What was measured of a kernel, by the name of a line."""
    name = rung.name
    pipe = "tensor" if rung.itemsize == 2 else "fma"

    def both(form: str, function: Callable[..., float | None], *arguments: str) -> str:
        return _both(measured, lambda layout: function(measured, name, layout, *arguments), form)

    def of_peer(layout: str) -> float | None:
        row = _row(measured, name, layout)
        return row and row["ratio"]

    def step(layout: str) -> float | None:
        return _step(measured, name, before, layout)

    def pair(form: str, *values: float | None) -> str:
        return ", ".join(figure(value, form) for value in values)

    def counted(field: str) -> float | None:
        return _profile(measured, name, "NN", field)

    occupancy = counted("occupancy_percent"), counted("achieved_occupancy_percent")
    return {
        "TFLOP/s: NN, NT": both(".3g", _tflops),
        "of cuBLAS": _both(measured, of_peer, ".2f"),
        "over the kernel before": _both(measured, step, ".2f"),
        "shared loads, stores over ideal": pair(
            ".2f", *(_over_ideal(measured, name, "NN", kind) for kind in ("load", "store"))
        ),
        "registers, blocks an SM": pair(".0f", counted("registers"), _blocks(measured, name)),
        "occupancy, reached, %": pair(".0f", *occupancy),
        "GB from L2, DRAM": pair(".3g", *(_gigabytes(measured, name, "NN", x) for x in MEMORIES)),
        f"{pipe} pipe, issue busy, %": pair(
            ".0f", counted(f"{pipe}_percent"), counted("issue_percent")
        ),
        "stalls": _stalls(measured, name),
    }


def _transposed(columns: dict[str, dict[str, str]]) -> str:
    """A table with a column for each key."""
    lines = dict.fromkeys(line for column in columns.values() for line in column)
    rows = [
        {"kernel": line, **{name: column.get(line, "") for name, column in columns.items()}}
        for line in lines
    ]
    return table(1, rows)


def write_step(step: int, measured: dict) -> str:
    """What was measured of the kernels of a step."""
    columns, before = {}, None
    for name, rung in rungs().items():
        if rung.step == step:
            columns[f"`{name}`"] = _column(measured, rung, before)
        before = name
    return _transposed(columns)


def write_reads(measured: dict) -> str:
    """The tiles that roofline.py compares: what limits them, and reads, as modelled and counted."""
    rows = []
    for name, tile in TILED_SIZES.items():
        limits = tile.limits()
        blocks = min(limits.values())
        size = measured["header"]["profile_size"]
        rows.append(
            {
                "kernel": f"`{name}`",
                "blocks an SM": blocks,
                "limited by": ", ".join(x for x, limit in limits.items() if limit == blocks),
                "registers a thread": tile.registers,
                "bytes of shared memory": tile.shared_bytes,
                "M = N that fills the GPU": f"{tile.m * math.sqrt(blocks * SMS):.0f}",
                "TFLOP/s": _tflops(measured, name, "NN"),
                "GB, 2MNK / T": model_gigabytes(rungs()[name], size),
                "GB from L2": _gigabytes(measured, name, "NN", "l2"),
                "GB from DRAM": _gigabytes(measured, name, "NN", "dram"),
            }
        )
    return table(1, rows)


def stores(rung: Rung, size: int) -> dict[str, int]:
    """The wavefronts of stores to shared memory in a product, by layout, as the banks have it."""
    blocks = (size // rung.m) * (size // rung.n) * (size // rung.k)
    each = {"a": rung.m * rung.k // 32, "b": rung.n * rung.k // 32}  # stores of a warp in a step
    return {
        layout: blocks
        * (
            each["a"] * rung.wavefronts("a", True)
            + each["b"] * rung.wavefronts("b", layout == "NT")
        )
        for layout in LAYOUTS
    }


def write_banks(measured: dict) -> str:
    """The wavefronts of stores to shared memory, counted from pitches and by Nsight Compute."""
    rows = []
    for name in ("tiled32", "padded32"):
        rung = rungs()[name]
        by_pitch = stores(rung, measured["header"]["profile_size"])
        for layout in LAYOUTS:
            counted = _profile(measured, name, layout, "store_wavefronts")
            rows.append(
                {
                    "kernel": f"`{name}`, {layout}",
                    "pitch of B": rung.dimensions("b")[-1],
                    "a store of B": rung.wavefronts("b", layout == "NT"),
                    "all stores, by pitch": f"{by_pitch[layout] / 1e6:.0f} M",
                    "counted": "-" if counted is None else f"{counted / 1e6:.0f} M",
                }
            )
    return table(1, rows)


def write_staircase(measured: dict) -> str:
    """A row for each kernel, with a link to its page."""
    rows, paths, before = [], pages(), None
    for name, rung in rungs().items():
        row = _row(measured, name, "NN")
        tflops = row and row["tflops"]
        step = _step(measured, name, before, "NN")
        rows.append(
            {
                "kernel": f"{rung.step}. [`{name}`]({paths[rung.step].name})",
                "TFLOP/s": tflops,
                "of cuBLAS": figure(row and row["ratio"], ".2f"),
                "over the kernel before": figure(step, ".2f"),
            }
        )
        before = name
    return table(1, rows)


def write_source(measured: dict) -> str:
    header = measured["header"]
    size = header["profile_size"]
    return f"{measured_on(header)}; Nsight Compute counted products of {size} cubed."


def draw_staircase(measured: dict, path: Path) -> None:
    """A bar for each kernel, and cuBLAS's speed on the same operands."""
    every = rungs()
    groups = [[x for x in every.values() if x.itemsize == size] for size in (4, 2)]
    shape = {"gridspec_kw": {"width_ratios": [len(group) for group in groups]}}
    figure_, panels = plots.subplots(1, 2, size=(9, 4), **shape)
    for axes, group, dtype in zip(panels, groups, ("float32", "bfloat16"), strict=True):
        found = [_row(measured, rung.name, "NN") for rung in group]
        rates = [row["tflops"] if row else 0 for row in found]
        places = range(len(group))
        axes.bar(places, rates, color=plots.BLUE if dtype == "float32" else plots.VERMILION)
        peers = [peer_tflops(row) for row in found if row]
        for place, rate in zip(places, rates, strict=True):
            if rate:
                axes.annotate(f"{rate:.3g}", (place, rate), ha="center", va="bottom")
        if peers:
            axes.axhline(sum(peers) / len(peers), color=plots.BLACK, label="cuBLAS", **plots.DASHED)
        labels = [f"{rung.step:02} {rung.name}" for rung in group]
        axes.set_xticks(places, labels=labels, rotation=35, ha="right")
        axes.set_xlim(-0.6, len(group) - 0.4)
        axes.set(title=dtype, ylabel="TFLOP/s")
        axes.set_ylim(bottom=0)
        axes.grid(False, axis="x")
    if peers:
        panels[0].legend(loc="center left")
    figure_.suptitle(f"{SIZE} x {SIZE} x {SIZE}, {measured['header']['device']}")
    plots.save(figure_, path)


def blocks() -> dict[Path, dict[str, Callable[[dict], str]]]:
    """The writers of each page's blocks."""
    every = {
        page: {"measured": functools.partial(write_step, step)} for step, page in pages().items()
    }
    every[pages()[2]]["reads"] = write_reads
    every[pages()[3]]["banks"] = write_banks
    return every | {INDEX: {"staircase": write_staircase, "source": write_source}}
