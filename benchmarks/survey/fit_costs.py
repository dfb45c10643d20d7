"""Says how the cost model's constants should change, by measured rows.

    python -m benchmarks.survey.fit_costs benchmarks/results/hopper.json
    python -m benchmarks.survey.fit_costs benchmarks/results/*.json --kernel mma_tma mma_unaligned

A row has the time of a kernel, with the tile that it ran, on a shape, and explain() has the model's
cycles for both. The cycles have two parts: the overhead, which does not depend on K, and what grows
with K, whose constants are rates. For each tile a factor of either part is fitted, by least squares
on the logarithm of measured over model time. The table says what to multiply the tile's constants
by, and the model's error before and after, as a factor from 1 on. A row is left out if its plan has
another tile now; it counts for the error alone if its plan changes with K. Where rows do not tell
the parts apart, the factors stay near 1. Memory bounds are in both parts, so rows that a memory
bound decides say little about a rate. A survey's row counts for every kernel that was timed beside
the one that ran (survey.py --beside all). For such rows the last line says how far the kernel that
`auto` picks by today's costs is from the fastest one, so that costs can be tried without a GPU.
"""

import argparse
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import torch_tiled
from benchmarks.command import Parser, at_least, exit_with, positive
from benchmarks.gemm.report import aligned, product
from benchmarks.pages.files import ResultsError, read
from benchmarks.pages.markdown import figure, table
from benchmarks.survey.regimes import timed
from torch_tiled.ops import Explanation

K_STEP = 64  # K changes by multiples of this, which keeps the alignment of rows
PULL = 1e-3  # weight of the squared logarithm of a factor: it decides where rows do not
STEPS = 50


@dataclass(frozen=True)
class Gpu:
    """The GPU that rows were measured on; it need not be there."""

    compute_capability: int
    sms: int


@dataclass(frozen=True)
class Sample:
    """One row, in cycles. The model's parts are None where K cannot change alone."""

    kernel: str
    tile: str
    measured: float
    model: float
    parts: tuple[float, float] | None  # the overhead, and what grows with K


@dataclass(frozen=True)
class Fit:
    """The factors of a tile's two parts; errors are geometric, as factors from 1 on."""

    rows: int
    ratio: float  # measured over model, the geometric mean
    error: float
    overhead: float | None = None
    rate: float | None = None
    error_after: float | None = None


def plan(algorithm: str, row: dict, gpu: Gpu) -> Explanation:
    """The plan of explain() for a row's shape on a GPU that need not be there."""
    # Nothing touches this memory, so that it is never there.
    a, b = product(row).stored(partial(torch.empty, dtype=getattr(torch, row["dtype"])))
    ways = {"algorithm": algorithm, "precision": row["precision"]}
    return torch_tiled.explain(a, b, **ways, compute_capability=gpu.compute_capability, sms=gpu.sms)


def cycles(explanation: Explanation) -> float:
    return explanation.values["cycles"]


def parts(kernel: str, shape: dict, gpu: Gpu) -> tuple[float, float] | None:
    """The model's cycles that do not depend on K, and those that do.

    They follow from a second K at which the plan is the same but for its cycles.
    """
    here, k = plan(kernel, shape, gpu), shape["k"]
    for divisor in (2, 4, 8):
        other = k - k // divisor // K_STEP * K_STEP
        if other == k:
            return None
        there = plan(kernel, shape | {"k": other}, gpu)
        same = (there.algorithm, there.tile, there.blocks) == (kernel, here.tile, here.blocks)
        if same:
            grows = max(0.0, (cycles(here) - cycles(there)) * k / (k - other))
            return max(0.0, cycles(here) - grows), min(grows, cycles(here))
    return None


def shapes_of(path: Path, results: dict) -> list[dict]:
    """The plain rows of a results file, with all fields of a shape. Raises ResultsError."""
    header, found = results["header"], []
    common = {"dtype": header.get("dtype"), "precision": header.get("precision", "fp32")}
    common |= {"batch": 1, "variant": "plain"}
    for number, row in enumerate(results["rows"]):
        if not row.get("kernel") or not row.get("tile"):
            raise ResultsError(
                f"Row {number} of {path} does not say which kernel ran, and with which tile; "
                "measure on a GPU with this version of the benchmark."
            )
        row = common | row
        if row["variant"] == "plain":
            found.append(row)
    return found


def kernels_of(row: dict, empty_us: dict | None) -> list[dict]:
    """The row, and one for each kernel that a survey timed beside it.

    A survey replays graphs of one call. Their start is taken off, since the model is of a call
    among others.
    """
    if not empty_us:
        return [row]
    every = [(row["kernel"], row["tile"], row["us"]), *row.get("beside", [])]
    alone, among = empty_us["alone"], empty_us["among_many"]
    return [
        row | {"kernel": kernel, "tile": tile, "us": max(among, us - alone + among)}
        for kernel, tile, us in every
    ]


def over_best(row: dict, gpu: Gpu) -> float | None:
    """The time of the kernel that auto picks now, over that of the fastest one timed in a survey.

    None where fewer than two kernels were timed, or the pick was not.
    """
    times = timed(row)
    if len(times) < 2:
        return None
    picked = plan("auto", row, gpu).algorithm
    return times[picked] / min(times.values()) if picked in times else None


def print_picks(rows: list[dict], gpu: Gpu) -> None:
    """Says how far auto is from the fastest kernels; nothing where no kernels were timed beside."""
    found = [ratio for row in rows if (ratio := over_best(row, gpu)) is not None]
    if found:
        mean = statistics.geometric_mean(found)
        print(
            f"By these costs auto takes {mean:.3f} times the time of the fastest kernel, in the "
            f"mean of {len(found)} products, and at worst {max(found):.2f}."
        )


def clock_mhz(path: Path, results: dict) -> float:
    """The clock of the SMs that the header tells. Raises ResultsError."""
    clocks = results["header"].get("clocks_before")
    if not clocks or not clocks["sm_mhz"]:
        raise ResultsError(f"The header of {path} has no clock of the SMs; name it with --mhz.")
    return clocks["sm_mhz"]


def samples(rows: list[dict], mhz: float, gpu: Gpu) -> list[Sample]:
    """The rows whose plan has the tile that ran."""
    found, known = [], torch_tiled.algorithms()
    for row in rows:
        kernel, tile = row["kernel"], row["tile"]
        if kernel not in known:  # it was deleted after it was measured
            continue
        told = plan(kernel, row, gpu)
        if (told.algorithm, told.tile) == (kernel, tile):
            split = parts(kernel, row, gpu)
            found.append(Sample(kernel, tile, row["us"] * mhz, cycles(told), split))
    return found


def geometric_error(logs: np.ndarray) -> float:
    """The root mean square of logarithms, as a factor."""
    return float(np.exp(np.sqrt(np.mean(logs**2))))


def compared(found: list[Sample]) -> Fit:
    """The model as it is, beside the samples."""
    logs = np.log([sample.measured / sample.model for sample in found])
    return Fit(len(found), float(np.exp(logs.mean())), geometric_error(logs))


def fit(found: list[Sample]) -> Fit:
    """The factors of the two parts that fit the samples of a tile best."""
    model = compared(found)
    known = [x for x in found if x.parts]
    if len(known) < 2:
        return model
    terms = np.array([x.parts for x in known])
    measured = np.log([x.measured for x in known])
    logs = np.zeros(2)  # of the factors
    for _ in range(STEPS):  # Gauss and Newton's
        scaled = terms * np.exp(logs)
        total = scaled.sum(1)
        matrix = np.vstack([scaled / total[:, None], np.sqrt(PULL) * np.eye(2)])
        residual = np.concatenate([measured - np.log(total), -np.sqrt(PULL) * logs])
        step = np.linalg.lstsq(matrix, residual, rcond=None)[0]
        logs = logs + np.clip(step, -1, 1)
    after = geometric_error(np.log((terms * np.exp(logs)).sum(1)) - measured)
    overhead, rate = np.exp([logs[0], -logs[1]])
    return replace(model, overhead=float(overhead), rate=float(rate), error_after=after)


def fits(found: list[Sample]) -> dict[tuple[str, str], Fit]:
    """A fit for each kernel and tile, those of most rows first, and the error of each kernel."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in found:
        groups.setdefault((sample.kernel, sample.tile), []).append(sample)
    order = [name for name in torch_tiled.algorithms() if any(k == name for k, _ in groups)]
    told = {}
    for kernel in order:
        tiles = {tile: rows for (name, tile), rows in groups.items() if name == kernel}
        every = [sample for rows in tiles.values() for sample in rows]
        told[kernel, "all"] = compared(every)
        for tile in sorted(tiles, key=lambda tile: -len(tiles[tile])):
            told[kernel, tile] = fit(tiles[tile])
    return told


def print_fits(told: dict[tuple[str, str], Fit]) -> None:
    lines = [
        {
            "kernel": kernel if tile == "all" else "",
            "tile": tile,
            "rows": str(each.rows),
            "time / model": f"{each.ratio:.2f}",
            "model's error": f"{each.error:.2f}",
            "overhead, times": figure(each.overhead, ".2f"),
            "rate, times": figure(each.rate, ".2f"),
            "error then": figure(each.error_after, ".2f"),
        }
        for (kernel, tile), each in told.items()
    ]
    print(aligned(table(2, lines)))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.survey.fit_costs", __doc__, computes=False, writes=False)
    option = parser.add_argument
    option("results", nargs="+", type=Path, help="files of benchmarks.gemm and benchmarks.survey")
    option("--kernel", nargs="+", choices=torch_tiled.algorithms(), metavar="KERNEL")
    option("--mhz", type=positive, help="clock of the SMs; default: what the file's header says")
    oldest = at_least(80)
    option("--compute-capability", type=oldest, default=90, help="default: %(default)s")
    option("--sms", type=at_least(1), default=132, help="default: %(default)s, an H200's")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    gpu = Gpu(args.compute_capability, args.sms)
    found, surveyed, count = [], [], 0
    try:
        for path in args.results:
            results = read(path)
            products = shapes_of(path, results)
            surveyed += products
            rows = [
                row
                for product in products
                for row in kernels_of(product, results["header"].get("empty_us"))
                if not args.kernel or row["kernel"] in args.kernel
            ]
            count += len(rows)
            found += samples(rows, args.mhz or clock_mhz(path, results), gpu)
    except ResultsError as error:
        print(error)
        return 1
    if not found:
        print("No row has a kernel and a tile that explain() would plan for it.")
        return 1
    print_fits(fits(found))
    print(f"{count - len(found)} of {count} rows have another plan now.")
    print_picks(surveyed, gpu)
    return 0


if __name__ == "__main__":
    exit_with(main)
