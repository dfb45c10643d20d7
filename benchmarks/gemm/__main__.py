"""Measures torch_tiled.matmul against the vendor's: cuBLAS on CUDA, torch.matmul on a CPU.

    python -m benchmarks.gemm
    python -m benchmarks.gemm --suite square skinny --json results.json
    python -m benchmarks.gemm --suite square --energy
    python -m benchmarks.gemm --shape 4096x768x3072 --layout NT TN --dtype bfloat16

measure.py says how it times, check.py what it demands of a result before it reports its time, and
variants.py what is measured beside a plain product. benchmarks/suites has the products. Without
arguments it measures the suite headline on a GPU, and the suite host on a CPU.
benchmarks.pages writes pages and plots of the results.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from benchmarks.command import DTYPES, Session, exit_with
from benchmarks.gemm import machine, report
from benchmarks.gemm.check import Wrong, full_precision_peer, judge
from benchmarks.gemm.jobs import Job, plan
from benchmarks.gemm.means import geometric_means
from benchmarks.gemm.measure import (
    Call,
    clock_name,
    copy,
    extra_bytes,
    joules,
    operand_sets,
    side_by_side,
)
from benchmarks.gemm.options import parse
from benchmarks.gemm.variants import VARIANTS, Contest, planned
from benchmarks.pages import files, result_tables
from benchmarks.suites.suites import SUITES
from torch_tiled._op import registry

HOST_CODE = (
    "This compares host code with torch.matmul, since the device is a CPU. The host's kernels are "
    "there for their bits, which are those of a GPU, not for speed; auto is torch.matmul itself."
)

# What PyTorch says in a RuntimeError where it finds no memory for a tensor on a CPU.
NO_MEMORY = re.compile("can't allocate memory|Storage size calculation overflowed")

Energy = Callable[[], float]  # a counter of joules


class Declined(Exception):
    """The op does not take a problem, or it does not fit in memory; the message says why."""


@contextmanager
def _may_decline() -> Iterator[None]:
    """Raises what the op, or memory, refuses as Declined."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise Declined(f"it does not fit in memory: {error}") from error
    except RuntimeError as error:
        if NO_MEMORY.search(str(error)):
            raise Declined(f"it does not fit in memory: {error}") from error
        if not str(error).startswith("tiled::"):
            raise
        raise Declined(str(error)) from error


def contend(job: Job, sets: list) -> tuple[Contest, str | None, str | None]:
    """Both calls of a job, the kernel of ours and its tile.

    Raises Declined if another kernel would run than the one that was asked for.
    """
    ways = {"algorithm": job.algorithm, "precision": job.precision}
    contest = VARIANTS[job.variant](sets, **ways)
    kernel, tile = planned(contest, **ways)
    if job.algorithm != "auto" and kernel not in [x.name for x in registry.family(job.algorithm)]:
        raise Declined(f"{kernel} takes its place for this K and these strides.")
    return contest, kernel, tile


def measure(job: Job, sets: list, args: argparse.Namespace, energy: Energy | None) -> dict:
    """The row of one job. Raises Wrong if there is none to report."""
    device, shape, itemsize = sets[0][0].device, job.shape, DTYPES[job.dtype].itemsize
    with full_precision_peer(job.precision):
        contest, kernel, tile = contend(job, sets)
        calls = [contest.ours, contest.peer]
        error, peer_error = judge(*map(_first, calls), *contest.operands[0], contest.truth)
        extra = extra_bytes(contest.ours)
        copies = []
        if args.suites[job.suite].copy:
            copies.append(copy(shape.elements * itemsize, device))
        spreads = side_by_side(calls + copies, seconds=args.seconds, repeats=args.repeats)
        used = [joules(call, energy) for call in calls] if energy else []
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
        "error": error,
        "peer_error": peer_error,
        "extra_bytes": extra,
        "operand_bytes": shape.operands * itemsize,
        "gflops_per_watt": per_joule[0],
        "peer_gflops_per_watt": per_joule[1],
    }


def _peer(device_type: str, contest: Contest) -> str:
    return ("cuBLAS" if device_type == "cuda" else "torch.matmul") + contest.peer_suffix


def _first(call: Call) -> Callable[[], torch.Tensor]:
    function, sets = call
    return partial(function, *sets[0])


@dataclass
class Found:
    """What a run has found so far."""

    rows: list[dict] = field(default_factory=list)
    declined: list[tuple[Job, str]] = field(default_factory=list)  # each with the reason
    refused: list[str] = field(default_factory=list)


def measure_all(args: argparse.Namespace, energy: Energy | None, found: Found) -> None:
    """Adds to `found` job by job, so that an interruption keeps what was measured before."""
    jobs, held, sets = plan(args), None, []
    for number, job in enumerate(jobs, start=1):
        try:
            with _may_decline():
                if held != (job.shape, job.dtype):
                    sets.clear()
                    held = None
                    sets = operand_sets(job.shape, DTYPES[job.dtype], torch.device(args.device))
                    held = (job.shape, job.dtype)
                hot = job.shape.energy and job.algorithm == "auto"
                found.rows.append(measure(job, sets, args, energy if hot else None))
            said = f"{job}: {report.sentence(found.rows[-1])}"
        except Wrong as error:
            said = f"{job} is wrong: {error}."
            found.refused.append(said)
        except Declined as error:
            found.declined.append((job, str(error)))
            said = f"{job}: not measured"
        print(f"[{number}/{len(jobs)}] {said}", flush=True)


def profile(args: argparse.Namespace) -> int:
    """Runs every product and its peer once, for a profiler that waits for cudaProfilerStart."""
    profiled = 0
    for job in plan(args):
        try:
            with full_precision_peer(job.precision), _may_decline():
                device = torch.device(args.device)
                sets = operand_sets(job.shape, DTYPES[job.dtype], device, most=1)
                contest, *_ = contend(job, sets)
                for product in map(_first, (contest.ours, contest.peer)):
                    product()  # a first call may load code
                    torch.cuda.synchronize()
                    torch.cuda.profiler.start()
                    product()
                    torch.cuda.synchronize()
                    torch.cuda.profiler.stop()
        except Declined as error:
            print(f"{job} was not profiled: {error}")
        else:
            profiled += 1
            print(f"{job}: first ours, then {_peer(args.device, contest)}")
    return 0 if profiled else 1


def print_suites() -> None:
    for name, suite in SUITES.items():
        print(f"{name}: {suite.description}")
        for shape in suite.shapes:
            print(f"  {shape}  {shape.what or shape.group}".rstrip())


def print_results(args: argparse.Namespace, found: Found) -> None:
    """The tables, the means of suites that are no summary, and what was not measured or refused."""
    for title, rows in result_tables.tables(found.rows):
        table = report.aligned(result_tables.table_of(rows))
        print(f"\n{title}, against {rows[0]['peer']}\n{table}")
    rest = [row for row in found.rows if not args.suites[row["suite"]].summary]
    if rest:
        means = result_tables.means(geometric_means(rest), rest)
        print(f"\ngeometric means\n{report.aligned(means)}")
    for sentence in (*report.declinations(found.declined), *found.refused):
        print(sentence)


def bench(args: argparse.Namespace) -> int:
    device = torch.device(args.device)
    header, found = machine.describe(args), Found()
    timing = {"clock": clock_name(device), "seconds": args.seconds, "repeats": args.repeats}
    header["timing"] = timing
    if args.suites and device.type == "cpu":
        print(HOST_CODE)
    print(f"{header['device']}, torch {header['torch']}")
    energy = None
    if args.energy:
        try:
            energy = machine.energy_counter(device)
        except machine.Unreadable as error:
            header["energy"] = f"Energy cannot be read: {error}."
            print(header["energy"])

    def save() -> None:
        header["geometric_means"] = geometric_means(found.rows)
        header["declined"] = [f"{job} was not measured: {why}" for job, why in found.declined]
        header["refused"] = found.refused
        files.write(args.json, {"header": header, "rows": found.rows})

    with Session(args, header, save) as session:
        measure_all(args, energy, found)
    print_results(args, found)
    if args.suites and not found.rows and not session.is_interrupted:
        print("Nothing was measured.")
        return 1
    return session.status(bool(found.refused))


def main(argv: list[str] | None = None) -> int:
    args = parse(argv, __doc__.partition("\n")[0])
    if args.list:
        print_suites()
        return 0
    return profile(args) if args.profile else bench(args)


if __name__ == "__main__":
    exit_with(main)
