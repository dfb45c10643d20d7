"""Writes the figures of docs/ladder.md, and draws its plots, from a results file.

    python benchmarks/ladder.py benchmarks/results/h200.json

What a figure is reckoned from stands here: of the GPU, from CUDA's programming guide, and of the
rungs' tiles, from csrc/kernels. tests/test_ladder.py compares the tiles with the sources. A figure
that the results lack is "-". The plots need matplotlib.
"""

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import plots
from readme import ReadmeError, measured_on, table, write_blocks

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ladder.md"
SIZE = 4096  # m = n = k, where rungs are compared

# Of an H200 (compute capability 9.0).
PROCESSORS = 132
LANES = 128  # float32 multiply-adds of a multiprocessor a clock
CLOCK_MHZ = 1980
PEAK = 2 * PROCESSORS * LANES * CLOCK_MHZ / 1e6  # TFLOP/s
LOADED = 32  # float32 that a multiprocessor's load units bring a clock, one a bank
# Of one multiprocessor:
THREADS = 2048
PARTS = 4  # each with registers of its own, and every fourth warp
REGISTERS = 65536
REGISTERS_AT_A_TIME = 256  # that a warp is given
SHARED = 228 << 10  # bytes
SHARED_OF_ITS_OWN = 1 << 10  # that the system takes of it for each block


@dataclass(frozen=True)
class Tile:
    """Of C a block, and a thread of it. `k` and `registers` where the page tells of them."""

    m: int
    n: int
    thread_m: int = 1
    thread_n: int = 1
    k: int = 0
    registers: int = 0  # a thread, for float32 on compute capability 9.0, by cuobjdump -res-usage

    @property
    def reads(self) -> float:
        """Elements of A and B from global memory, for each multiply-add."""
        return 1 / self.m + 1 / self.n

    @property
    def loads(self) -> float:
        """Elements that a thread loads, from shared memory if it has any, for each multiply-add."""
        return 1 / self.thread_m + 1 / self.thread_n

    @property
    def fed(self) -> float:
        """Multiply-adds that a multiprocessor's load units have numbers for, a clock."""
        return LOADED / self.loads

    @property
    def threads(self) -> int:
        return self.m // self.thread_m * (self.n // self.thread_n)

    @property
    def shared_bytes(self) -> int:
        """Of 02_tiled.cu's a_smem[kM][kK + 4] and b_smem[kK][kN + kPerThread], of float32."""
        return 4 * (self.m * (self.k + 4) + self.k * (self.n + self.thread_n))

    def limits(self) -> dict[str, int]:
        """How many blocks a multiprocessor has room for, by what it has room of."""
        warp = math.ceil(self.registers * 32 / REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
        warps = PARTS * (REGISTERS // PARTS // warp)
        return {
            "registers": warps // (self.threads // 32),
            "threads": THREADS // self.threads,
            "shared memory": SHARED // (self.shared_bytes + SHARED_OF_ITS_OWN),
        }


# Those of 02_tiled.cu, whose sizes the page compares.
TILED = {
    "tiled16": Tile(16, 16, k=16, registers=38),
    "tiled32": Tile(32, 32, k=32, registers=32),
    "tiled64": Tile(64, 64, 4, 4, k=16, registers=80),
}
# Elements of C a thread, by which the page reckons what the load units feed.
THREAD_TILES = ((1, 1), (4, 4), (8, 4), (8, 8), (8, 16))
# Of the rungs on CUDA cores that the model of traffic is for. naive has no tile: each thread reads
# for itself.
TILES = {"naive": Tile(1, 1), **TILED, "simt_tma": Tile(256, 128, 8, 16)}


def square(measured: dict, size: int, algorithm: str, precision: str = "fp32") -> dict | None:
    """The row of a square product of matrices that lie row by row."""
    wanted = {"m": size, "n": size, "k": size, "batch": 1, "layout": "NN", "variant": "plain"}
    wanted |= {"dtype": "float32", "precision": precision, "algorithm": algorithm}
    return next((row for row in measured["rows"] if wanted.items() <= row.items()), None)


def squares(measured: dict, algorithm: str, precision: str = "fp32") -> dict[int, dict]:
    """Those whose size is a power of 2, by size."""
    sizes = sorted({row["m"] for row in measured["rows"] if row["m"] & (row["m"] - 1) == 0})
    found = {size: square(measured, size, algorithm, precision) for size in sizes}
    return {size: row for size, row in found.items() if row}


def rungs(measured: dict) -> list[str]:
    """Those that squares were measured of, in the order of their files, IEEE's first."""
    names = dict.fromkeys(row["algorithm"] for row in measured["rows"])
    families = {name for name in names if any(x != name and x.startswith(name) for x in names)}
    found = [x for x in names if x not in families | {"auto"} and squares(measured, x)]
    return sorted(found, key=lambda rung: (on_tensor_cores(rung), _file(rung)[0].name))


def on_tensor_cores(rung: str) -> bool:
    return rung.startswith("fp16x3")


def _file(rung: str) -> tuple[Path, str]:
    """A rung's file, and its idea in a line: the file's title."""
    for path in sorted((ROOT / "csrc/kernels").glob("[0-9][0-9]_*.cu")):
        title = re.match(r"// \d\d (\w+): (.*)\.\n", path.read_text())
        if title and rung.startswith(title[1]):
            return path, title[2]
    raise ReadmeError(f"No file of csrc/kernels has a title that begins with {rung}.")


def _figure(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else f"{value:{form}}"


def _tflops(row: dict | None) -> float | None:
    return row["tflops"] if row else None


def _peer_tflops(row: dict | None) -> float | None:
    return row["tflops"] / row["ratio"] if row else None


def copy_rate(measured: dict) -> tuple[float, float]:
    """Of the copy that moved most: how many bytes, and bytes a second."""
    copies = []
    for row in measured["rows"]:
        if row["copy_us"]:
            itemsize = row["operand_bytes"] // (row["batch"] * (row["m"] + row["n"]) * row["k"])
            moved = row["operand_bytes"] + row["batch"] * row["m"] * row["n"] * itemsize
            copies.append((moved, moved / row["copy_us"] * 1e6))
    if not copies:
        raise ReadmeError("The results have no copy: the suites skinny and batched time some.")
    return max(copies)


def write_source(measured: dict) -> str:
    return f"{measured_on(measured['header'])}; a '-' is what was not measured."


def write_rungs(measured: dict) -> str:
    names = rungs(measured)
    sizes = sorted({size for rung in names for size in squares(measured, rung)})
    rows = []
    for rung in names:
        path, idea = _file(rung)
        at = square(measured, SIZE, rung)
        rows.append(
            [
                f"`{rung}`",
                f"[{idea}](../{path.relative_to(ROOT)})",
                *(_figure(_tflops(square(measured, size, rung))) for size in sizes),
                _figure(at["tflops"] / PEAK if at else None, ".2f"),
                _figure(at["ratio"] if at else None, ".2f"),
            ]
        )
    headings = ["rung", "idea", *map(str, sizes), "of the peak", "of cuBLAS"]
    return table(headings, 2, rows)


def write_roofline(measured: dict) -> str:
    moved, rate = copy_rate(measured)
    return (
        f"- arithmetic: {PROCESSORS} multiprocessors x {LANES} lanes x 2 FLOP x {CLOCK_MHZ} MHz = "
        f"{PEAK:.1f} TFLOP/s;\n"
        f"- memory: the largest copy in the results moves {moved / 1e6:.0f} MB at "
        f"{rate / 1e12:.2f} TB/s;\n"
        f"- they meet at {PEAK:.1f} / {rate / 1e12:.2f} = {PEAK * 1e12 / rate:.1f} FLOP a byte."
    )


def write_loads(measured: dict) -> str:
    rows = []
    for m, n in THREAD_TILES:
        fed = Tile(m, n, m, n).fed
        part = f"{min(1, fed / LANES):.2f}"
        rows.append([f"{m} x {n}", str(m + n), str(m * n), f"{fed:.0f}", part])
    headings = ["elements of C a thread", "numbers loaded", "multiply-adds"]
    return table([*headings, "multiply-adds fed a clock", f"of {LANES}"], 1, rows)


def write_traffic(measured: dict) -> str:
    _, rate = copy_rate(measured)
    rows = []
    for rung, tile in TILES.items():
        read_bytes = 4 * tile.reads * SIZE**3
        intensity = 2 / (4 * tile.reads)
        by_loads = PEAK * min(1, tile.fed / LANES)
        rows.append(
            [
                f"`{rung}`",
                f"{read_bytes / 1e9:.3g}",
                f"{intensity:.3g}",
                f"{min(PEAK, intensity * rate / 1e12):.3g}",
                f"{tile.loads:.3g}",
                f"{by_loads:.3g}",
                _figure(_tflops(square(measured, SIZE, rung))),
            ]
        )
    headings = ["rung", "GB read", "FLOP a byte", "roof by memory", "loads", "roof by loads"]
    return table([*headings, "TFLOP/s"], 1, rows)


def write_tiles(measured: dict) -> str:
    rows = []
    for rung, tile in TILED.items():
        limits = tile.limits()
        blocks = min(limits.values())
        full = tile.m * math.sqrt(blocks * PROCESSORS)
        rows.append(
            [
                f"`{rung}`",
                ", ".join(name for name, limit in limits.items() if limit == blocks),
                str(tile.threads),
                str(tile.registers),
                str(tile.shared_bytes),
                str(blocks),
                f"{full:.0f}",
                _figure(_tflops(square(measured, SIZE, rung))),
            ]
        )
    headings = ["rung", "what bounds the blocks", "threads", "registers a thread"]
    headings += ["bytes of shared memory", "blocks a multiprocessor", "M = N that fills the GPU"]
    return "\n\n".join(
        [table([*headings, f"TFLOP/s at {SIZE}"], 2, rows), _fastest_tiles(measured)]
    )


def _fastest_tiles(measured: dict) -> str:
    """Of the sizes at which all were measured."""
    rates = {rung: squares(measured, rung) for rung in TILED}
    sizes = sorted(set.intersection(*(set(each) for each in rates.values())))
    if not sizes:
        return "Which is fastest was not measured."
    told = []
    for size in sizes:
        best = max(TILED, key=lambda rung: rates[rung][size]["tflops"])
        told.append(f"`{best}` at {size}")
    return f"Fastest, as measured: {', '.join(told)}."


def write_sizes(measured: dict) -> str:
    """`auto`, in both precisions, each against the peer that was measured beside it."""
    of = {precision: squares(measured, "auto", precision) for precision in ("fp32", "ieee")}
    rows = []
    for size in sorted({size for rows in of.values() for size in rows}):
        cells = [str(size)]
        for found in of.values():
            row = found.get(size)
            cells += [_figure(_tflops(row)), _figure(_peer_tflops(row))]
            cells.append(_figure(row["ratio"] if row else None, ".2f"))
        rows.append(cells)
    headings = [x for precision in of for x in (f'`"{precision}"`', "cuBLAS", "ratio")]
    return table(["m = n = k", *headings], 0, rows)


def write_halves(measured: dict) -> str:
    """The peer's rate of float16 products, of which fp16x3 needs three."""
    found = [row for row in measured["rows"] if row["variant"] == "fp16 peer"]
    if not found:
        return "cuBLAS's rate of float16 products was not measured."
    told = [
        f"{row['tflops'] / row['ratio'] / 3:.3g} TFLOP/s at {row['m']}, where fp16x3 has "
        f"{row['tflops']:.3g}"
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
    "halves": write_halves,
    "sizes": write_sizes,
}


def draw_rungs(measured: dict, path: Path) -> None:
    """A bar for each rung at SIZE."""
    found = {rung: row for rung in rungs(measured) if (row := square(measured, SIZE, rung))}
    figure, axes = plots.pyplot().subplots(
        figsize=(8, 1.6 + 0.36 * len(found)), layout="constrained"
    )
    for kind, color in ((False, plots.ORANGE), (True, plots.BLUE)):
        bars = {x: row["tflops"] for x, row in found.items() if on_tensor_cores(x) is kind}
        label = "tensor cores, fp16x3" if kind else "CUDA cores, IEEE multiply-adds"
        drawn = axes.barh(list(bars), list(bars.values()), color=color, label=label)
        axes.bar_label(drawn, fmt="%.3g", padding=3)
    peer = [_peer_tflops(row) for row in found.values()]
    if peer:
        axes.axvline(sorted(peer)[len(peer) // 2], color=plots.BLACK, label="cuBLAS, float32")
    axes.axvline(PEAK, color=plots.BLACK, linestyle=":", label="peak of CUDA cores")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("TFLOP/s")
    axes.legend(fontsize="small", loc="upper right")
    plots.add_grid(axes)
    device = measured["header"]["device"]
    axes.set_title(f"float32, {SIZE} x {SIZE} x {SIZE}, {device}", fontsize="medium")
    plots.save(figure, path)


def draw_sizes(measured: dict, path: Path) -> None:
    """`auto` by size in both precisions, and the peer."""
    figure, axes = plots.pyplot().subplots(figsize=(8, 4.4), layout="constrained")
    fp32 = squares(measured, "auto")
    lines = [
        ('"fp32"', fp32, _tflops, {"color": plots.BLUE, "marker": "o", "linewidth": 2}),
        ('"ieee"', squares(measured, "auto", "ieee"), _tflops, {"color": plots.ORANGE}),
        ("cuBLAS", fp32, _peer_tflops, {"color": plots.BLACK, "marker": "s"}),
    ]
    for label, found, rate, style in lines:
        style = {"marker": "^", "markersize": 5} | style
        axes.plot(list(found), [rate(row) for row in found.values()], label=label, **style)
    axes.axhline(PEAK, color=plots.BLACK, linestyle=":", label="peak of CUDA cores")
    axes.set_xscale("log", base=2)
    sizes = sorted({size for _, found, *_ in lines for size in found})
    axes.set_xticks(sizes, labels=map(str, sizes))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("M = N = K")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize="small")
    plots.add_grid(axes)
    axes.set_title(f"float32 by auto, {measured['header']['device']}", fontsize="medium")
    plots.save(figure, path)


PLOTS = {"ladder_rungs.svg": draw_rungs, "ladder_sizes.svg": draw_sizes}


def write(results: Path, page: Path) -> None:
    """Writes the page's blocks, and its plots beside it."""
    measured = write_blocks(results, page, BLOCKS)
    for name, draw in PLOTS.items():
        draw(measured, page.parent / name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="as bench_matmul.py wrote it on a GPU")
    args = parser.parse_args(argv)
    try:
        write(args.results, PAGE)
    except ReadmeError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
