"""Measures torch_tiled.matmul against the vendor's: cuBLAS on CUDA, torch.matmul on a CPU.

    python benchmarks/bench_matmul.py
    python benchmarks/bench_matmul.py --suite square skinny --json results.json
    python benchmarks/bench_matmul.py --suite square --energy --kernels
    python benchmarks/bench_matmul.py --shape 4096x768x3072 --layout NT TN --dtype bfloat16
    python benchmarks/bench_matmul.py --readme benchmarks/results/h200.json

measure.py says how it times, check.py what it demands of a result before reporting its time,
shapes.py what the suites hold and variants.py what is measured of it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import machine
import readme
import report
from check import Wrong, full_precision_peer, judge, reference
from measure import (
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
from shapes import LAYOUTS, SUITES, Shape, Suite
from variants import VARIANTS, Contest

import torch_tiled

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
PRECISIONS = ("fp32", "ieee", "tf32")

Energy = Callable[[], float]  # a counter of joules


class Declined(Exception):
    """The op does not take a problem, or it does not fit in memory; the message says why."""


@dataclass(frozen=True)
class Job:
    suite: str
    shape: Shape
    dtype: str
    precision: str
    algorithm: str
    variant: str

    def __str__(self) -> str:
        precision = f" {self.precision}" if self.dtype == "float32" else ""
        return f"{self.dtype}{precision} {self.shape} {report.kernel(vars(self))}"


@dataclass
class Run:
    """What a run has found so far."""

    results: list[dict] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def save(self, path: Path, header: dict) -> None:
        header = header | {
            "geometric_means": report.geometric_means(self.results),
            "declined": self.declined,
            "refused": self.refused,
        }
        path.write_text(json.dumps({"header": header, "rows": self.results}, indent=1) + "\n")


def plan(args: argparse.Namespace) -> list[Job]:
    """Every measurement asked for; those on the same operands stand together."""
    jobs = []
    for name, suite in args.suites.items():
        for dtype in args.dtype or suite.dtypes:
            # The op reads `precision` for float32 alone.
            asked = args.precision or suite.precisions
            precisions = asked if dtype == "float32" else ["fp32"]
            for shape in _in_layouts(suite.shapes, args.layout):
                every_rung = name == "smoke" or (shape.ladder and args.device == "cuda")
                for precision in precisions:
                    rungs = [
                        rung
                        for rung in torch_tiled.algorithms()
                        if reference.takes(rung, DTYPES[dtype], args.device, precision)
                    ]
                    algorithms = args.algorithm or [*(rungs if every_rung else []), "auto"]
                    jobs += [
                        Job(name, shape, dtype, precision, each, variant)
                        for variant in suite.variants
                        for each in algorithms
                    ]
    return jobs


def _in_layouts(shapes: tuple[Shape, ...], layouts: list[str] | None) -> Iterator[Shape]:
    """The shapes as they are, or each size once in each of the layouts asked for."""
    if layouts is None:
        yield from shapes
        return
    sizes = dict.fromkeys(replace(shape, layout="NN", what="") for shape in shapes)
    for shape in sizes:
        for layout in layouts:
            yield replace(shape, layout=layout)


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


def contend(job: Job, sets: list) -> Contest:
    """Our call and the peer's. Raises Declined where another rung would run."""
    ways = {"algorithm": job.algorithm, "precision": job.precision}
    if job.algorithm != "auto":
        runs = torch_tiled.explain(*sets[0], **ways).algorithm
        if not runs.startswith(job.algorithm):  # it, or one of its family
            raise Declined(f"{runs} takes its place for this K and these strides.")
    return VARIANTS[job.variant](sets, **ways)


def measure(job: Job, sets: list, args: argparse.Namespace, energy: Energy | None) -> dict:
    """The row of one job. Raises Wrong where there is none to report."""
    device, shape, itemsize = sets[0][0].device, job.shape, DTYPES[job.dtype].itemsize
    with full_precision_peer(job.precision):
        contest = contend(job, sets)
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
    per_joule = [shape.flops / 1e9 / each for each in used] or [None, None]
    return {
        "suite": job.suite,
        "group": shape.group,
        "op": "matmul",
        "dtype": job.dtype,
        "precision": job.precision,
        "algorithm": job.algorithm,
        "variant": job.variant,
        "layout": shape.layout,
        "batch": shape.batch,
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "us": us.median,
        "us_p10": us.p10,
        "us_p90": us.p90,
        "tflops": shape.flops / us.median / 1e6,
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
    """Adds to `run` job by job, so that what was found survives an interruption."""
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
                run.declined.append(f"{job} was not measured: {error}")
                steps.finish(run.declined[-1])
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
                contest = contend(job, operand_sets(job.shape, DTYPES[job.dtype], device, most=1))
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


def _shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no shape; write MxNxK, or BATCHxMxNxK, of numbers from 1 on."
        ) from error


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    option = parser.add_argument
    option("--suite", nargs="+", choices=SUITES, help="default: smoke, if no shape is asked for")
    option("--shape", nargs="+", type=_shape, metavar="MxNxK", help="products of no suite")
    option("--dtype", nargs="+", choices=DTYPES, help="default: the suite's")
    option("--precision", nargs="+", choices=PRECISIONS, help="of float32; default: the suite's")
    option("--algorithm", nargs="+", help="default: in the smoke suite every rung, else auto")
    option("--layout", nargs="+", choices=LAYOUTS, help="default: each shape in its own")
    option("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    option("--seconds", type=float, default=0.2, help="for each row, the peer's share included")
    option("--repeats", type=int, default=5, help="the fewest passes of each, whatever they take")
    option("--energy", action="store_true", help="GFLOP/s per watt of large squares, 5 s for each")
    option("--kernels", action="store_true", help="each kernel's time; may slow what follows")
    option("--profile", action="store_true", help="run each once for Nsight Compute, time nothing")
    option("--overhead", action="store_true", help="the host's time of a call (alone, or as well)")
    option("--json", type=Path, metavar="PATH", help="write the results there")
    option("--commit", help="the sources' commit for the results, where they have no .git")
    option("--readme", type=Path, metavar="RESULTS", help="write the README's table, run nothing")
    option("--list", action="store_true", help="print the suites, run nothing")
    args = parser.parse_args(argv)

    known = [*torch_tiled.algorithms(), "auto"]
    unknown = [name for name in args.algorithm or [] if name not in known]
    if unknown:
        parser.error(f"no algorithm is called {unknown[0]}; there are {', '.join(known)}.")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; leave --device out or say --device cpu.")
    if not args.seconds > 0:
        parser.error(f"--seconds is {args.seconds}; it must be more than 0.")
    if args.repeats < 1:
        parser.error(f"--repeats is {args.repeats}; it must be at least 1.")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json is {args.json}; the folder {args.json.parent} does not exist.")
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.profile and args.device == "cpu":
        parser.error("--profile is for kernels on a GPU; torch sees none, or --device is cpu.")
    names = args.suite or ([] if args.overhead or args.shape else ["smoke"])
    args.suites = {name: SUITES[name] for name in names}
    if args.shape:
        args.suites["asked"] = Suite("what --shape says", tuple(args.shape))
    return args


def print_suites(console) -> None:
    for name, suite in SUITES.items():
        console.print(f"{name}: {suite.description}", style="bold")
        for shape in suite.shapes:
            console.print(f"  {shape}  {shape.what or shape.group}".rstrip())


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    console = report.make_console()
    if args.list:
        print_suites(console)
        return 0
    if args.readme:
        try:
            readme.write_results(args.readme, machine.ROOT / "README.md")
        except readme.ReadmeError as error:
            console.print(str(error), markup=False)
            return 1
        return 0
    if args.profile:
        return profile(args, console)
    words = sys.argv if argv is None else [__file__, *argv]
    return bench(args, console, machine.command_line(words, args.json))


def bench(args: argparse.Namespace, console, command_line: str) -> int:
    device = torch.device(args.device)
    header = machine.describe(device, command_line, args.commit)
    header["timing"] = {
        "clock": clock_name(device),
        "seconds": args.seconds,
        "repeats": args.repeats,
    }
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
    report.print_tables(console, run.results)
    report.print_means(console, report.geometric_means(run.results))
    for sentence in (*run.declined, *run.refused):
        console.print(sentence, markup=False)
    if interrupted:
        console.print("Interrupted: this is what was measured before.")
        return 130
    if args.suites and not run.results:
        console.print("Nothing was measured.")
        return 1
    return 1 if run.refused else 0


if __name__ == "__main__":
    sys.exit(main())
