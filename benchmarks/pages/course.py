"""The generated parts of docs/course: tables and the staircase.

They show course.json of benchmarks.studies.course and the sources of the kernels. A figure that the
results lack is "-".
"""

import functools
import math
from collections.abc import Callable, Iterable
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


def pages() -> dict[int, Path]:
    """The page of each step; a page has the number of its file, and the file's name or a part."""
    found = {rung.step for rung in rungs().values()}
    return {step: next(FOLDER.glob(f"{step:02}_*.md")) for step in sorted(found)}


def _of(measured: dict, kernel: str, layout: str = "NN", key: str = "rows") -> dict:
    """The row of a kernel, or its profile; empty if it was not measured."""
    size = {"m": SIZE} if key == "rows" else {}
    return next(iter(select(measured[key], kernel=kernel, layout=layout, **size)), {})


def _over(x: float | None, y: float | None) -> float | None:
    return x / y if x is not None and y else None


def _gigabytes(profile: dict, memory: str) -> float | None:
    """What a product of the profiled size reads of L2 or DRAM."""
    counted = profile.get(f"{memory}_read_sectors")
    return counted and counted * SECTOR / 1e9


def model_gigabytes(rung: Rung, size: int) -> float:
    """What the blocks of a kernel read by the model, 2MNK / T elements."""
    return rung.itemsize * rung.reads * size**3 / 1e9


def _step(measured: dict, kernel: str, before: str | None, layout: str) -> float | None:
    """The rate of a kernel over that of the one before, if both multiply one dtype."""
    if before is None or rungs()[before].itemsize != rungs()[kernel].itemsize:
        return None
    return _over(*(_of(measured, name, layout).get("tflops") for name in (kernel, before)))


def _column(measured: dict, rung: Rung, before: str | None) -> dict[str, str]:
    """What was measured of a kernel, by the name of a line."""
    rows = [_of(measured, rung.name, layout) for layout in LAYOUTS]
    profile = _of(measured, rung.name, key="profiles")
    pipe = "tensor" if rung.itemsize == 2 else "fma"

    def several(form: str, values: Iterable[float | None]) -> str:
        return ", ".join(figure(value, form) for value in values)

    def counted(form: str, *fields: str) -> str:
        return several(form, map(profile.get, fields))

    def over_ideal(kind: str) -> float | None:
        """The wavefronts of loads or stores, relative to those without a conflict."""
        every, lost = (profile.get(f"{kind}_{x}") for x in ("wavefronts", "conflicts"))
        return None if every is None or lost is None else _over(every, every - lost)

    blocks = [profile.get(f"blocks_by_{x}") for x in ("registers", "shared_memory", "threads")]
    stalls = profile.get("stalls", {}).items()
    return {
        "TFLOP/s: NN, NT": several(".3g", (row.get("tflops") for row in rows)),
        "of cuBLAS": several(".2f", (row.get("ratio") for row in rows)),
        "over the kernel before": several(
            ".2f", (_step(measured, rung.name, before, layout) for layout in LAYOUTS)
        ),
        "shared loads, stores over ideal": several(".2f", map(over_ideal, ("load", "store"))),
        "registers, blocks an SM": several(
            ".0f", (profile.get("registers"), None if None in blocks else min(blocks))
        ),
        "occupancy, reached, %": counted(".0f", "occupancy_percent", "achieved_occupancy_percent"),
        "GB from L2, DRAM": several(".3g", (_gigabytes(profile, x) for x in ("l2", "dram"))),
        f"{pipe} pipe, issue busy, %": counted(".0f", f"{pipe}_percent", "issue_percent"),
        "stalls": ", ".join(f"{x.replace('_', ' ')} {n:.2g}" for x, n in stalls) or "-",
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
                "TFLOP/s": _of(measured, name).get("tflops"),
                "GB, 2MNK / T": model_gigabytes(rungs()[name], size),
                "GB from L2": _gigabytes(_of(measured, name, key="profiles"), "l2"),
                "GB from DRAM": _gigabytes(_of(measured, name, key="profiles"), "dram"),
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
            counted = _of(measured, name, layout, "profiles").get("store_wavefronts")
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
        row = _of(measured, name)
        step = _step(measured, name, before, "NN")
        rows.append(
            {
                "kernel": f"{rung.step}. [`{name}`]({paths[rung.step].name})",
                "TFLOP/s": row.get("tflops"),
                "of cuBLAS": figure(row.get("ratio"), ".2f"),
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
        found = [_of(measured, rung.name) for rung in group]
        rates = [row.get("tflops", 0) for row in found]
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
