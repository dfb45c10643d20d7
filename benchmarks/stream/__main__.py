"""Times torch_tiled.stream.matmul, products of matrices on the host, beside other ways to do it.

    python -m benchmarks.stream --json benchmarks/results/stream.json
    python -m benchmarks.stream --sizes 8192 --dtype float32 --peers in_core loop
    python -m benchmarks.stream --dry-run

A, B and C are square, on the host, in memory that is pinned once for all products. The product of
each size is streamed within --budget bytes of the GPU. The peers:

    in_core   torch_tiled.matmul of operands on the GPU; its calls and those of stream alternate,
              and the bits of both results are compared
    two_gpus  the streamed product by two GPUs
    loop      blocks by .to() and .cpu(), within the budget, in torch's float32 and in TF32
    cublasxt  cublasXtSgemm, by the best of some block sizes
    pageable  the streamed product of memory that is not pinned
    link      the rate of copies between host and GPU

A row is written for each way, dtype and size, as soon as it is measured: its median of seconds, its
error against float64 on sampled rows and columns, and for a streamed product what its plan
predicted. A way that fails has a row that says why. benchmarks.pages shows the results in
docs/guide/stream.md.
"""

import argparse
import os
import sys
import time

import torch

from benchmarks.gemm import machine
from benchmarks.gemm.measure import raise_clocks
from benchmarks.gemm.options import (
    DTYPES,
    add_results,
    check_folders,
    check_least,
    make_parser,
    settle_device,
)
from benchmarks.gemm.report import Steps, make_console
from benchmarks.stream import report as stream_report
from benchmarks.stream.run import PEERS, Job, Run, jobs

SIZES = (8192, 16384, 32768, 65536)
BUDGET = 16 << 30


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = make_parser("benchmarks.stream", __doc__)
    option = parser.add_argument
    option("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="m = n = k")
    option("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    option("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all of them")
    option("--budget", type=int, default=BUDGET, help="bytes of the GPU for a streamed product")
    option("--repeats", type=int, default=3, help="calls of each way, after a first one")
    option("--limit", type=float, metavar="SECONDS", help="no row begins after these")
    option("--dry-run", action="store_true", help="plan the streamed products, multiply nothing")
    add_results(parser)
    args = parser.parse_args(argv)
    check_least(args, parser.error, 1, "budget", "repeats")
    if min(args.sizes) < 1:
        parser.error(f"--sizes has {min(args.sizes)}; a size must be at least 1.")
    settle_device(args, parser.error)
    check_folders(args, parser.error, "json")
    return args


def measure_all(run: Run, planned: list[Job], limit: float | None, console) -> None:
    """Does job after job, and says of each row what it found."""
    start = time.monotonic()
    with Steps(console, len(planned)) as steps:
        for job in planned:
            steps.begin(str(job))
            if limit is not None and time.monotonic() - start > limit:
                run.decline(job, f"the limit of {limit:g} s was over")
            else:
                run.do(job)
            said = "; ".join(stream_report.sentence(row) for row in run.new_rows())
            steps.finish(f"{job} ({time.monotonic() - start:.0f} s): {said}")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    console, device = make_console(), torch.device(args.device)
    command_line = machine.command_line("benchmarks.stream", argv, args.json)
    header = machine.describe(device, command_line, args.commit)
    asked = ("sizes", "dtype", "peers", "budget", "repeats", "dry_run")
    header |= {name: getattr(args, name) for name in asked}
    header["gpus"] = torch.cuda.device_count() if device.type == "cuda" else 0
    header["cpus"] = len(os.sched_getaffinity(0))
    console.print(f"{header['device']}, torch {header['torch']}", markup=False)
    planned = jobs(args, header["gpus"])
    header["clocks_before"] = None
    run = Run(args, header)
    interrupted = False
    try:
        if not args.dry_run:
            raise_clocks(device)
            header["clocks_before"] = machine.clocks(device)
            run.prepare(console)
        measure_all(run, planned, args.limit, console)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        run.close()
        header["clocks_after"] = machine.clocks(device)
        run.save()
    stream_report.print_results(console, {"header": header, "rows": run.rows})
    if interrupted:
        console.print("Interrupted: this is what was measured before.")
        return 130
    return 1 if any(row["failure"] for row in run.rows) or not run.rows else 0


if __name__ == "__main__":
    sys.exit(main())
