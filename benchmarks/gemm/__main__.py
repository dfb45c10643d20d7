"""Measures torch_tiled.matmul against the vendor's: cuBLAS on CUDA, torch.matmul on a CPU.

    python -m benchmarks.gemm
    python -m benchmarks.gemm --suite square skinny --json results.json
    python -m benchmarks.gemm --suite square --energy --kernels
    python -m benchmarks.gemm --shape 4096x768x3072 --layout NT TN --dtype bfloat16

measure.py says how it times, check.py what it demands of a result before it reports its time, and
variants.py what is measured beside a plain product. benchmarks/suites has the products. Without
arguments it measures the suite headline on a GPU and draws it, and the suite host on a CPU.
benchmarks.pages writes pages and plots of the results.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from benchmarks.gemm import machine, report
from benchmarks.gemm.check import Wrong, full_precision_peer, judge
from benchmarks.gemm.jobs import Job, plan
from benchmarks.gemm.measure import (
    Call,
    clock_name,
    copy,
    extra_bytes,
    joules,
    kernels_us,
    operand_sets,
    raise_clocks,
    side_by_side,
)
from benchmarks.gemm.options import DTYPES, parse
from benchmarks.gemm.variants import VARIANTS, Contest, planned
from benchmarks.suites import headline
from benchmarks.suites.suites import SUITES

Energy = Callable[[], float]  # a counter of joules

HOST_CODE = (
    "This compares host code with torch.matmul, since the device is a CPU. The host's kernels are "
    "there for their bits, which are those of a GPU, not for speed; auto is torch.matmul itself."
)


class Declined(Exception):
    """The op does not take a problem, or it does not fit in memory; the message says why."""


@dataclass
class Run:
    """The rows and the sentences that a run has found so far."""

    results: list[dict] = field(default_factory=list)
    declined: list[tuple[Job, str]] = field(default_factory=list)  # each with the reason
    refused: list[str] = field(default_factory=list)

    def save(self, path: Path, header: dict) -> None:
        header = header | {
            "geometric_means": report.geometric_means(self.results),
            "declined": [f"{job} was not measured: {why}" for job, why in self.declined],
            "refused": self.refused,
        }
        path.write_text(json.dumps({"header": header, "rows": self.results}, indent=1) + "\n")


@contextmanager
def _may_decline() -> Iterator[None]:
    """Raises what the op, or memory, refuses as Declined."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise Declined(f"it does not fit in memory: {error}") from error
    except RuntimeError as error:
        if not str(error).startswith("tiled::"):
            raise
        raise Declined(str(error)) from error


def contend(job: Job, sets: list) -> tuple[Contest, str | None, str | None]:
    """Both calls of a job, the kernel of ours and its tile.

    Raises Declined where another kernel would run than the one that was asked for.
    """
    ways = {"algorithm": job.algorithm, "precision": job.precision}
    contest = VARIANTS[job.variant](sets, **ways)
    kernel, tile = planned(contest, **ways)
    if job.algorithm != "auto" and kernel and not kernel.startswith(job.algorithm):
        raise Declined(f"{kernel} takes its place for this K and these strides.")
    return contest, kernel, tile


def measure(job: Job, sets: list, args: argparse.Namespace, energy: Energy | None) -> dict:
    """The row of one job. Raises Wrong where there is none to report."""
    device, shape, itemsize = sets[0][0].device, job.shape, DTYPES[job.dtype].itemsize
    with full_precision_peer(job.precision):
        contest, kernel, tile = contend(job, sets)
        calls = [contest.ours, contest.peer]
        verdict = judge(*map(_first, calls), *contest.operands[0], contest.truth)
        extra = extra_bytes(contest.ours)
        copies = []
        if args.suites[job.suite].copy:
            copies.append(copy(shape.elements * itemsize, device))
        spreads = side_by_side(calls + copies, seconds=args.seconds, repeats=args.repeats)
        used = [joules(call, energy) for call in calls] if energy else []
        kernels = kernels_us(contest.ours) if args.kernels and device.type == "cuda" else None
    us, peer_us, *copy_us = spreads
    flops = shape.flops * (4 if DTYPES[job.dtype].is_complex else 1)
    per_joule = [flops / 1e9 / each for each in used] or [None, None]
    return {
        "suite": job.suite,
        "group": shape.group,
        "op": "matmul",
        "dtype": job.dtype,
        "precision": job.precision,
        "algorithm": job.algorithm,
        "kernel": kernel,
        "tile": tile,
        "variant": job.variant,
        "layout": shape.layout,
        "batch": shape.batch,
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "us": us.median,
        "us_p10": us.p10,
        "us_p90": us.p90,
        "tflops": flops / us.median / 1e6,
        "peer": _peer(device.type, contest),
        "peer_us": peer_us.median,
        "ratio": peer_us.median / us.median,
        "copy_us": copy_us[0].median if copy_us else None,
        "error": verdict.error,
        "peer_error": verdict.peer_error,
        "extra_bytes": extra,
        "operand_bytes": shape.operands * itemsize,
        "gflops_per_watt": per_joule[0],
        "peer_gflops_per_watt": per_joule[1],
        "kernels_us": kernels,
    }


def _peer(device_type: str, contest: Contest) -> str:
    return ("cuBLAS" if device_type == "cuda" else "torch.matmul") + contest.peer_suffix


def _first(call: Call) -> Callable[[], torch.Tensor]:
    function, sets = call
    return partial(function, *sets[0])


def measure_all(
    jobs: list[Job], args: argparse.Namespace, energy: Energy | None, console, run: Run
) -> None:
    """Adds to `run` job by job, so that an interruption keeps what was measured before."""
    device = torch.device(args.device)
    held, sets = None, []
    with report.Steps(console, len(jobs)) as steps:
        for job in jobs:
            steps.begin(str(job))
            try:
                with _may_decline():
                    if held != (job.shape, job.dtype):
                        sets.clear()
                        held = None
                        sets = operand_sets(job.shape, DTYPES[job.dtype], device)
                        held = (job.shape, job.dtype)
                    hot = job.shape.energy and job.algorithm == "auto"
                    row = measure(job, sets, args, energy if hot else None)
            except Wrong as error:
                run.refused.append(f"{job} is wrong: {error}.")
                steps.finish(run.refused[-1])
            except Declined as error:
                run.declined.append((job, str(error)))
                steps.finish(f"{job}: not measured")
            else:
                run.results.append(row)
                steps.finish(f"{job}: {report.sentence(row)}")


def profile(args: argparse.Namespace, console) -> int:
    """Runs every product and its peer once, for a profiler that waits for cudaProfilerStart."""
    profiled = 0
    for job in plan(args):
        try:
            with full_precision_peer(job.precision), _may_decline():
                device = torch.device(args.device)
                sets = operand_sets(job.shape, DTYPES[job.dtype], device, most=1)
                contest, *_ = contend(job, sets)
                for call in (contest.ours, contest.peer):
                    product = _first(call)
                    product()  # a first call may load code
                    torch.cuda.synchronize()
                    torch.cuda.profiler.start()
                    product()
                    torch.cuda.synchronize()
                    torch.cuda.profiler.stop()
        except Declined as error:
            console.print(f"{job} was not profiled: {error}", markup=False)
        else:
            profiled += 1
            console.print(f"{job}: first ours, then {_peer(args.device, contest)}", markup=False)
    return 0 if profiled else 1


def print_suites(console) -> None:
    for name, suite in SUITES.items():
        console.print(f"{name}: {suite.description}", style="bold")
        for shape in suite.shapes:
            console.print(f"  {shape}  {shape.what or shape.group}".rstrip())


def main(argv: list[str] | None = None) -> int:
    args = parse(argv, __doc__.partition("\n")[0])
    console = report.make_console()
    if args.list:
        print_suites(console)
        return 0
    if args.profile:
        return profile(args, console)
    return bench(args, console, machine.command_line("benchmarks.gemm", argv, args.json))


def print_results(args: argparse.Namespace, console, run: Run) -> None:
    """The tables, what was not measured or refused, and a plot of the suite headline."""
    short, rest = [], []
    for row in run.results:
        (short if args.suites[row["suite"]].summary else rest).append(row)
    report.print_summaries(console, short)
    report.print_tables(console, rest)
    report.print_means(console, report.geometric_means(rest))
    for sentence in (*report.declinations(run.declined), *run.refused):
        console.print(sentence, markup=False)
    if drawn := [row for row in short if row["suite"] == "headline"]:
        console.print(plot(drawn, torch.device(args.device)), markup=False, soft_wrap=True)


def plot(rows: list[dict], device: torch.device) -> str:
    """Draws the suite headline, and says where."""
    from benchmarks.pages.speed_plots import draw_headline

    headline.PLOT.parent.mkdir(exist_ok=True)
    try:
        draw_headline(rows, machine.device_name(device), headline.PLOT)
    except ModuleNotFoundError as error:
        return f"No plot was drawn, since {error.name} is not installed."
    return f"The plot is in {os.path.relpath(headline.PLOT)}."


def bench(args: argparse.Namespace, console, command_line: str) -> int:
    device = torch.device(args.device)
    header = machine.describe(device, command_line, args.commit)
    header["timing"] = {
        "clock": clock_name(device),
        "seconds": args.seconds,
        "repeats": args.repeats,
    }
    if args.suites and device.type == "cpu":
        console.print(HOST_CODE, markup=False)
    console.print(f"{header['device']}, torch {header['torch']}", markup=False)
    raise_clocks(device)
    header["clocks_before"] = machine.clocks(device)
    run = Run()
    energy = None
    if args.energy:
        try:
            energy = machine.energy_counter(device)
        except machine.Unreadable as error:
            header["energy"] = f"Energy cannot be read: {error}."
            console.print(header["energy"], markup=False)
    interrupted = False
    try:
        if args.overhead:
            header["overheads"] = machine.overheads(device)
            report.print_overheads(console, header["overheads"])
        measure_all(plan(args), args, energy, console, run)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        header["clocks_after"] = machine.clocks(device)
        if args.json:
            run.save(args.json, header)
    print_results(args, console, run)
    if interrupted:
        console.print("Interrupted: this is what was measured before.")
        return 130
    if args.suites and not run.results:
        console.print("Nothing was measured.")
        return 1
    return 1 if run.refused else 0


if __name__ == "__main__":
    sys.exit(main())
