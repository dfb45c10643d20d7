"""The generated blocks of docs/kernels/ladder.md. A figure that the results lack is "-"."""

import math
import re
from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages.markdown import PageError, figure, measured_on, table
from benchmarks.pages.roofline import (
    CLOCK_MHZ,
    LANES,
    PEAK,
    SMS,
    TENSOR_FMAS,
    TENSOR_PEAK,
    THREAD_TILES,
    TILED,
    TILES,
    Tile,
    peak,
)
from benchmarks.pages.rows import (
    ResultsError,
    kernel_squares,
    kernels,
    mean,
    of_kernel,
    peer_tflops,
    select,
    squares,
)
from benchmarks.suites.suites import LADDER_SIZES

PAGE = ROOT / "docs" / "kernels" / "ladder.md"
SIZE = LADDER_SIZES[-1]  # m = n = k, where kernels are compared

# The columns of the table by size: a name, the dtype and the precision.
WAYS = {
    '`"fp32"`': ("float32", "fp32"),
    '`"ieee"`': ("float32", "ieee"),
    '`"tf32"`': ("float32", "tf32"),
    "bfloat16": ("bfloat16", "fp32"),
}


def source_of(kernel: str) -> tuple[Path, str]:
    """The file of a kernel, and its idea: the title in the file's first line."""
    titles = {}
    for path in sorted((ROOT / "csrc/kernels").glob("*/*.cu")):
        title = re.match(r"// (?:\d\d )?(\w+): (.*)\.\n", path.read_text())
        if title:
            titles[title[1]] = path, title[2]
    named = [name for name in titles if kernel.startswith(name)]
    if not named:
        raise PageError(f"No file of csrc/kernels has a title that begins with {kernel}.")
    return titles[max(named, key=len)]


def copy_rate(measured: dict) -> tuple[float, float]:
    """The bytes of the copy that moved most, and its bytes a second."""
    copies = []
    for row in measured["rows"]:
        if row["copy_us"]:
            itemsize = row["operand_bytes"] // (row["batch"] * (row["m"] + row["n"]) * row["k"])
            moved = row["operand_bytes"] + row["batch"] * row["m"] * row["n"] * itemsize
            copies.append((moved, moved / row["copy_us"] * 1e6))
    if not copies:
        raise ResultsError("The results have no copy: the suites skinny and batched time some.")
    return max(copies)


def write_source(measured: dict) -> str:
    return f"{measured_on(measured['header'])}; a '-' is what was not measured."


def write_rungs(measured: dict) -> str:
    """Every kernel: its squares, and how often `auto` picked it."""
    rows = []
    for kernel in kernels():
        path, idea = source_of(kernel)
        by_size = kernel_squares(measured["rows"], kernel)
        at = by_size.get(SIZE)
        picked = select(of_kernel(measured["rows"], kernel), algorithm="auto", variant="plain")
        rows.append(
            [
                f"`{kernel}`",
                f"[{idea}](../../{path.relative_to(ROOT)})",
                *(figure(by_size[n]["tflops"] if n in by_size else None) for n in LADDER_SIZES),
                figure(at["tflops"] / peak(kernel) if at else None, ".2f"),
                figure(at["ratio"] if at else None, ".2f"),
                str(len(picked)),
                figure(mean(row["ratio"] for row in picked) if picked else None, ".2f"),
            ]
        )
    headings = ["kernel", "idea", *map(str, LADDER_SIZES), "of the peak", "of cuBLAS"]
    return table([*headings, "picked by `auto`", "then of cuBLAS"], 2, rows)


def write_roofline(measured: dict) -> str:
    moved, rate = copy_rate(measured)
    return (
        f"- CUDA cores: {SMS} SMs x {LANES} lanes x 2 FLOP x {CLOCK_MHZ} MHz = "
        f"{PEAK:.1f} TFLOP/s;\n"
        f"- tensor cores: {SMS} SMs x {TENSOR_FMAS} FMAs x 2 FLOP x {CLOCK_MHZ} MHz = "
        f"{TENSOR_PEAK:.0f} TFLOP/s of 16-bit floats, a third of that by fp16x3;\n"
        f"- memory: the largest copy in the results moves {moved / 1e6:.0f} MB at "
        f"{rate / 1e12:.2f} TB/s;\n"
        f"- CUDA cores and memory meet at {PEAK:.1f} / {rate / 1e12:.2f} = "
        f"{PEAK * 1e12 / rate:.1f} FLOP a byte."
    )


def write_loads(measured: dict) -> str:
    rows = []
    for m, n in THREAD_TILES:
        fed = Tile(m, n, m, n).fed
        part = f"{min(1, fed / LANES):.2f}"
        rows.append([f"{m} x {n}", str(m + n), str(m * n), f"{fed:.0f}", part])
    headings = ["elements of C a thread", "numbers loaded", "FMAs", "FMAs fed in a cycle"]
    return table([*headings, f"of {LANES}"], 1, rows)


def write_traffic(measured: dict) -> str:
    _, rate = copy_rate(measured)
    rows = []
    for kernel, tile in TILES.items():
        read_bytes = 4 * tile.reads * SIZE**3
        intensity = 2 / (4 * tile.reads)
        by_loads = PEAK * min(1, tile.fed / LANES)
        rows.append(
            [
                f"`{kernel}`",
                f"{read_bytes / 1e9:.3g}",
                f"{intensity:.3g}",
                f"{min(PEAK, intensity * rate / 1e12):.3g}",
                f"{tile.loads:.3g}",
                f"{by_loads:.3g}",
                _tflops(measured, kernel),
            ]
        )
    headings = ["kernel", "GB read", "FLOP a byte", "roof by memory", "loads", "roof by loads"]
    return table([*headings, "TFLOP/s"], 1, rows)


def _tflops(measured: dict, kernel: str) -> str:
    row = kernel_squares(measured["rows"], kernel).get(SIZE)
    return figure(row["tflops"] if row else None)


def write_tiles(measured: dict) -> str:
    rows = []
    for kernel, tile in TILED.items():
        limits = tile.limits()
        blocks = min(limits.values())
        rows.append(
            [
                f"`{kernel}`",
                ", ".join(name for name, limit in limits.items() if limit == blocks),
                str(tile.threads),
                str(tile.registers),
                str(tile.shared_bytes),
                str(blocks),
                f"{tile.m * math.sqrt(blocks * SMS):.0f}",
                _tflops(measured, kernel),
            ]
        )
    headings = ["kernel", "limited by", "threads", "registers a thread"]
    headings += ["bytes of shared memory", "blocks an SM", "M = N that fills the GPU"]
    return "\n\n".join(
        [table([*headings, f"TFLOP/s at {SIZE}"], 2, rows), _fastest_tiles(measured)]
    )


def _fastest_tiles(measured: dict) -> str:
    """The fastest tile at each size that all were measured at."""
    rates = {kernel: kernel_squares(measured["rows"], kernel) for kernel in TILED}
    sizes = sorted(set.intersection(*(set(each) for each in rates.values())))
    if not sizes:
        return "The tiles were not compared."
    told = []
    for size in sizes:
        best = max(TILED, key=lambda kernel: rates[kernel][size]["tflops"])
        told.append(f"`{best}` at {size}")
    return f"Fastest, as measured: {', '.join(told)}."


def write_sizes(measured: dict) -> str:
    """`auto` by size, each time with the peer that was measured beside it."""
    ways = {name: squares(measured["rows"], "auto", *way) for name, way in WAYS.items()}
    rows = []
    for size in sorted({size for found in ways.values() for size in found}):
        cells = [str(size)]
        for found in ways.values():
            row = found.get(size)
            cells += [
                figure(row["tflops"] if row else None),
                figure(peer_tflops(row) if row else None),
                figure(row["ratio"] if row else None, ".2f"),
            ]
        rows.append(cells)
    headings = [heading for name in ways for heading in (name, "cuBLAS", "ratio")]
    return table(["m = n = k", *headings], 0, rows)


def write_fp16_peer(measured: dict) -> str:
    """The peer's rate of float16 products, of which fp16x3 needs three."""
    found = select(measured["rows"], variant="fp16 peer")
    if not found:
        return "cuBLAS's rate of float16 products was not measured."
    told = [
        f"{peer_tflops(row) / 3:.3g} TFLOP/s at {row['m']}, where fp16x3 has {row['tflops']:.3g}"
        for row in found
    ]
    return f"A third of cuBLAS's rate of float16 products: {'; '.join(told)}."


BLOCKS = {
    "source": write_source,
    "rungs": write_rungs,
    "roofline": write_roofline,
    "loads": write_loads,
    "traffic": write_traffic,
    "tiles": write_tiles,
    "fp16_peer": write_fp16_peer,
    "sizes": write_sizes,
}
