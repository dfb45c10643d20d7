"""Times the kernels of the course beside cuBLAS, and asks Nsight Compute about each.

    python -m benchmarks.studies.course --json benchmarks/results/course.json
    python -m benchmarks.studies.course --size 64 --device cpu

The kernels are those of csrc/kernels/basics. Each is timed as benchmarks.gemm times a row, with
row-major operands (NN) and with a transposed B (NT): float32, or bfloat16 for a kernel that takes
no float32. The results have a row for each, and `profiles`: what Nsight Compute counted in one
product, of the size that `profile_size` of the header says. A metric that it does not know on this
GPU is null. Without a GPU or without ncu there are no profiles, and the header says why.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks import ROOT
from benchmarks.command import Parser, Session, at_least, exit_with, positive
from benchmarks.gemm import machine
from benchmarks.gemm.__main__ import Found, measure_all, print_results, profile
from benchmarks.gemm.jobs import Job, plan
from benchmarks.gemm.measure import clock_name
from benchmarks.pages import files
from benchmarks.pages.course_kernels import LAYOUTS, SIZE, rungs
from benchmarks.suites.shapes import Suite, Way
from benchmarks.suites.suites import products
from torch_tiled._op import registry

CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")

METRICS = {
    "registers": "launch__registers_per_thread",
    "static_shared_bytes": "launch__shared_mem_per_block_static",
    "dynamic_shared_bytes": "launch__shared_mem_per_block_dynamic",
    "blocks_by_registers": "launch__occupancy_limit_registers",
    "blocks_by_shared_memory": "launch__occupancy_limit_shared_mem",
    "blocks_by_threads": "launch__occupancy_limit_warps",
    "occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    # Conflicts are the wavefronts beyond those that the same accesses would ideally take.
    "load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    # The same of all accesses, by the instructions that were executed.
    "wavefronts": "memory_l1_wavefronts_shared",
    "ideal_wavefronts": "memory_l1_wavefronts_shared_ideal",
    # Sectors have 32 bytes.
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "dram_read_sectors": "dram__sectors_read.sum",
    "fma_percent": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_active",
}
STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle"),
    *("long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction"),
    *("not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait"),
)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"  # warps
MOST_STALLS = 3  # that a profile has


class NoProfile(Exception):
    """Nsight Compute says nothing here; the message says why."""


def suite(size: int) -> Suite:
    """A square of each layout for each kernel."""
    known = registry.kernels()
    ways = tuple(
        Way("float32" if torch.float32 in known[name].dtypes else "bfloat16", algorithm=name)
        for name in rungs()
    )
    shapes = products((size, size, size), layouts=LAYOUTS, ways=ways)
    return Suite("the kernels of the course", shapes)


# --- Nsight Compute ------------------------------------------------------------------------------


def command(args: argparse.Namespace, ncu: str, log: Path) -> list[str]:
    """ncu on a process that runs each product once. cuBLAS's kernels are left out."""
    metrics = [*METRICS.values(), *map(STALL.format, STALLS)]
    return [
        *(ncu, "--csv", "--print-units", "base", "--log-file", str(log)),
        *("--clock-control", "none", "--profile-from-start", "off"),
        *("--kernel-name-base", "demangled", "--kernel-name", "regex:tiled::cuda"),
        *("--metrics", ",".join(metrics)),
        *(sys.executable, "-m", "benchmarks.studies.course", "--profile"),
        *("--size", str(args.profile_size)),
    ]


def launches(log: str) -> Iterator[tuple[str, dict[str, float | None]]]:
    """The kernel of each launch in the output of ncu --csv, and its metrics."""
    rows: dict[str, tuple[str, dict[str, float | None]]] = {}
    for row in csv.DictReader(line for line in log.splitlines() if line.startswith('"')):
        _, metrics = rows.setdefault(row["ID"], (row["Kernel Name"], {}))
        metrics[row["Metric Name"]] = number(row["Metric Value"])
    yield from rows.values()


def number(text: str) -> float | None:
    """A value as ncu prints it, with commas between thousands; None for "n/a" and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def profiled(metrics: dict[str, float | None]) -> dict:
    """The fields of a profile: all of METRICS, and the MOST_STALLS largest stalls."""
    stalls = {name: metrics.get(STALL.format(name)) for name in STALLS}
    largest = sorted((-warps, name) for name, warps in stalls.items() if warps)[:MOST_STALLS]
    return {
        **{name: metrics.get(metric) for name, metric in METRICS.items()},
        "stalls": {name: -warps for warps, name in largest},
    }


def profiles(log: str, jobs: list[Job]) -> Iterator[dict]:
    """A profile for each job: the launches that are its kernel's, in order. Raises NoProfile."""
    every, left = rungs(), launches(log)
    for job in jobs:
        function = every[job.algorithm].function
        metrics = next((metrics for name, metrics in left if f"::{function}<" in name), None)
        if metrics is None:
            raise NoProfile(f"it shows no {function} of {job}; {last_line(log)}")
        fields = {"kernel": job.algorithm, "dtype": job.dtype, "layout": job.shape.layout}
        yield fields | {"size": job.shape.m} | profiled(metrics)


def last_line(log: str) -> str:
    """What ncu says of itself last."""
    said = [line for line in log.splitlines() if line.startswith("==")]
    return f"its last line is: {said[-1]}" if said else "it says nothing"


def ask_ncu(args: argparse.Namespace, jobs: list[Job]) -> Iterator[dict]:
    """Profiles of the jobs. Raises NoProfile."""
    if args.device == "cpu":
        raise NoProfile("there is no GPU here")
    ncu = shutil.which("ncu", path=os.pathsep.join([os.environ.get("PATH", ""), f"{CUDA}/bin"]))
    if ncu is None:
        raise NoProfile("ncu is not installed")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        try:
            done = subprocess.run(command(args, ncu, log), cwd=ROOT, timeout=args.limit)
        except subprocess.TimeoutExpired:
            raise NoProfile(f"ncu took more than {args.limit:.0f} s") from None
        text = log.read_text() if log.exists() else ""
    if done.returncode:
        raise NoProfile(f"ncu ended with status {done.returncode}; {last_line(text)}")
    yield from profiles(text, jobs)


# --- the command ---------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.studies.course", __doc__)
    option = parser.add_argument
    option("--size", type=at_least(1), default=SIZE, metavar="N", help="m = n = k")
    same = "of the products for Nsight Compute; default: the same"
    option("--profile-size", type=at_least(1), metavar="N", help=same)
    option("--seconds", type=positive, default=0.5, help="for each row, cuBLAS's share included")
    option("--repeats", type=at_least(1), default=3, help="the fewest passes of each")
    option("--limit", type=positive, default=80.0, help="the most seconds for Nsight Compute")
    option("--profile", action="store_true", help="run each once for Nsight Compute, time nothing")
    parser.set_defaults(dtype=None, precision=None, layout=None, algorithm=None)
    args = parser.parse_args(argv)
    if args.profile and args.device == "cpu":
        parser.error("--profile is for kernels on a GPU; torch sees none, or --device is cpu.")
    args.profile_size = args.profile_size or args.size
    args.suites = {"course": suite(args.size)}
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.profile:
        return profile(args)
    header, found, counted = machine.describe(args, "size", "profile_size"), Found(), []
    clock = clock_name(torch.device(args.device))
    header["timing"] = {"clock": clock, "seconds": args.seconds, "repeats": args.repeats}

    def save() -> None:
        header["refused"] = found.refused
        header["declined"] = [f"{job} was not measured: {why}" for job, why in found.declined]
        files.write(args.json, {"header": header, "rows": found.rows, "profiles": counted})

    with Session(args, header, save) as session:
        measure_all(args, None, found)
        save()
        jobs = plan(argparse.Namespace(**vars(args) | {"suites": {"": suite(args.profile_size)}}))
        try:
            for each in ask_ncu(args, jobs):
                counted.append(each)
            header["profile"] = f"Nsight Compute counted {len(counted)} products"
        except NoProfile as error:
            header["profile"] = f"Nsight Compute counted {len(counted)} products: {error}"
    print_results(args, found)
    if "profile" in header:
        print(f"{header['profile']}.")
    return session.status(bool(found.refused))


if __name__ == "__main__":
    exit_with(main)
