"""The generated blocks of docs/kernels/ladder.md. A figure that the results lack is "-"."""

import re
from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages.course_kernels import rungs
from benchmarks.pages.files import ResultsError
from benchmarks.pages.markdown import PageError, figure, measured_on, table
from benchmarks.pages.roofline import (
    CLOCK_MHZ,
    LANES,
    PEAK,
    SMS,
    TENSOR_FMAS,
    TENSOR_PEAK,
    TILED_SIZES,
    TILES,
    peak,
)
from benchmarks.pages.rows import (
    kernel_squares,
    kernels,
    peer_tflops,
    select,
    squares,
)
from benchmarks.suites.suites import LADDER_SIZES

PAGE = ROOT / "docs" / "kernels" / "ladder.md"
SIZE = LADDER_SIZES[-1]  # m = n = k, where kernels are compared
SHOWN = 512, SIZE  # of the table of kernels
MISSING = dict.fromkeys(("tflops", "ratio"))  # a row that was not measured

# The columns of the table by size: a name, the dtype and the precision.
WAYS = {
    '`"fp32"`': ("float32", "fp32"),
    '`"ieee"`': ("float32", "ieee"),
    '`"tf32"`': ("float32", "tf32"),
    "bfloat16": ("bfloat16", "fp32"),
}


def source_of(kernel: str) -> tuple[Path, str]:
    """The file that launches a kernel, and its idea: the title in the file's first line."""
    for path in sorted((ROOT / "csrc/kernels").glob("*/*.cu")):
        text = path.read_text()
        title = re.match(r"// (?:\d\d )?[\w, ]+: (.*)\.\n", text)
        if title and f"bool launch_{kernel}(" in text:
            return path, title[1]
    raise PageError(f"No file of csrc/kernels with a title launches {kernel}.")


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
    """Every kernel that the course does not have and that multiplies squares."""
    rows = []
    for kernel in kernels():
        by_size = kernel_squares(measured["rows"], kernel)
        if kernel in rungs() or not by_size:
            continue
        path, idea = source_of(kernel)
        at = by_size.get(SIZE, MISSING)
        rows.append(
            {
                "kernel": f"`{kernel}`",
                "idea": f"[{idea}](../../{path.relative_to(ROOT)})",
                **{str(n): by_size.get(n, MISSING)["tflops"] for n in SHOWN},
                "of the peak": figure(at["tflops"] and at["tflops"] / peak(kernel), ".2f"),
                "of cuBLAS": figure(at["ratio"], ".2f"),
            }
        )
    return table(2, rows)


def write_roofline(measured: dict) -> str:
    moved, rate = copy_rate(measured)
    return (
        f"- CUDA cores: {SMS} SMs x {LANES} lanes x 2 FLOP x {CLOCK_MHZ} MHz = "
        f"{PEAK:.1f} TFLOP/s;\n"
        f"- tensor cores: {SMS} SMs x {TENSOR_FMAS} FMAs x 2 FLOP x {CLOCK_MHZ} MHz = "
        f"{TENSOR_PEAK:.0f} TFLOP/s of 16-bit floats, a third of that by fp16x3;\n"
        f"- memory: a copy of {moved / 1e6:.0f} MB at {rate / 1e12:.2f} TB/s;\n"
        f"- both meet at {PEAK:.1f} / {rate / 1e12:.2f} = {PEAK * 1e12 / rate:.1f} FLOP a byte."
    )


def write_traffic(measured: dict) -> str:
    _, rate = copy_rate(measured)
    rows = []
    for kernel, tile in TILES.items():
        intensity = 2 / (4 * tile.reads)
        rows.append(
            {
                "kernel": f"`{kernel}`",
                "GB read": 4 * tile.reads * SIZE**3 / 1e9,
                "FLOP a byte": intensity,
                "roof by memory": min(PEAK, intensity * rate / 1e12),
                "loads": float(tile.loads),
                "roof by loads": PEAK * min(1, tile.fed / LANES),
                "TFLOP/s": _tflops(measured, kernel),
            }
        )
    return table(1, rows)


def _tflops(measured: dict, kernel: str) -> float | None:
    return kernel_squares(measured["rows"], kernel).get(SIZE, MISSING)["tflops"]


def write_tiles(measured: dict) -> str:
    """The fastest tile at each size that all were measured at."""
    rates = {kernel: kernel_squares(measured["rows"], kernel) for kernel in TILED_SIZES}
    fastest: dict[str, list[str]] = {}
    for size in sorted(set.intersection(*(set(each) for each in rates.values()))):
        best = max(rates, key=lambda kernel: rates[kernel][size]["tflops"])
        fastest.setdefault(best, []).append(str(size))
    if not fastest:
        return "The tiles were not compared."
    told = (f"`{kernel}` at {', '.join(sizes)}" for kernel, sizes in fastest.items())
    return f"Fastest: {'; '.join(told)}."


def write_sizes(measured: dict) -> str:
    """`auto` by size, with the ratio to the peer that was measured beside it."""
    ways = {name: squares(measured["rows"], "auto", *way) for name, way in WAYS.items()}
    rows = []
    for size in sorted({size for found in ways.values() for size in found}):
        line: dict = {"m = n = k": size}
        for name, found in ways.items():
            row = found.get(size, MISSING)
            line |= {name: row["tflops"], (name, "ratio"): figure(row["ratio"], ".2f")}
        rows.append(line)
    return table(0, rows)


def write_fp16_peer(measured: dict) -> str:
    """The peer's rate of float16 products, of which fp16x3 needs three."""
    found = select(measured["rows"], variant="fp16 peer")
    if not found:
        return "cuBLAS's rate of float16 products was not measured."
    told = [
        f"{peer_tflops(row) / 3:.3g} TFLOP/s at {row['m']} (fp16x3: {row['tflops']:.3g})"
        for row in found
    ]
    return f"A third of cuBLAS's float16 rate: {', '.join(told)}."


BLOCKS = {
    "source": write_source,
    "rungs": write_rungs,
    "roofline": write_roofline,
    "traffic": write_traffic,
    "tiles": write_tiles,
    "fp16_peer": write_fp16_peer,
    "sizes": write_sizes,
}
