"""Times torch_tiled.stream.matmul, products of matrices on the host, beside other ways to do it.

    python -m benchmarks.stream --json benchmarks/results/stream.json
    python -m benchmarks.stream --sizes 8192 --dtype float32 --peers in_core loop

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
import time

import torch

from benchmarks.command import DTYPES, Parser, Session, at_least, exit_with
from benchmarks.gemm import machine
from benchmarks.gemm.report import aligned
from benchmarks.pages.markdown import figure, table
from benchmarks.pages.stream import BLOCKS
from benchmarks.stream.run import PEERS, Job, Run, jobs

SIZES = (8192, 16384, 32768, 65536)
BUDGET = 16 << 30


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.stream", __doc__)
    option = parser.add_argument
    sizes = {"nargs": "+", "metavar": "N", "default": list(SIZES)}
    option("--sizes", type=at_least(1, most=1 << 24), **sizes, help="m = n = k")
    option("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    option("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all of them")
    option("--budget", type=at_least(1), default=BUDGET, help="bytes of the GPU for a product")
    option("--repeats", type=at_least(1), default=3, help="calls of each way, after a first one")
    return parser.parse_args(argv)


def sentence(row: dict) -> str:
    """What a row found, or what was planned."""
    if row["failure"]:
        return f"{row.get('direction') or row['way']} failed: {row['failure']}"
    if row["way"] == "link":
        return f"{row['direction']} {figure(row['gb_per_second'])} GB/s"
    parts = [f"{row['way']} {figure(row['seconds'])} s, {figure(row['tflops'])} TFLOP/s"]
    if row["ratio"]:
        parts.append(f"{row['ratio']:.2f}x {row['ratio_to']}")
    if row["plan"]:
        plan = row["plan"]
        tile = "x".join(map(str, plan["tile"]))
        parts.append(
            f"predicted {figure(plan['seconds'])} s by tiles of {tile}, kept {plan['kept']}"
        )
    if row["error"] is not None:
        parts.append(f"error {row['error']:.1e}")
    if row["equal"] is not None:
        parts.append("equal" if row["equal"] else "NOT EQUAL to in_core")
    return ", ".join(parts)


def measure_all(run: Run, planned: list[Job]) -> None:
    """Does job after job, and says of each row what it found."""
    start = time.monotonic()
    for number, job in enumerate(planned, start=1):
        before = len(run.rows)
        run.do(job)
        said = "; ".join(map(sentence, run.rows[before:]))
        seconds = time.monotonic() - start
        print(f"[{number}/{len(planned)}] {job} ({seconds:.0f} s): {said}", flush=True)


def products(rows: list[dict]) -> str:
    """A table of every product."""
    lines = []
    for row in rows:
        if row["way"] != "link":
            line = {"way": row["way"], "dtype": row["dtype"], "m = n = k": row["size"]}
            line |= {"s": figure(row["seconds"]), "TFLOP/s": figure(row["tflops"])}
            line |= {"error": figure(row["error"], ".1e"), "equal": row["equal"]}
            lines.append(line)
    return table(2, lines)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    asked = ("sizes", "dtype", "peers", "budget", "repeats")
    header = machine.describe(args, *asked)
    header["gpus"] = torch.cuda.device_count() if args.device == "cuda" else 0
    header["cpus"] = len(os.sched_getaffinity(0))
    print(f"{header['device']}, torch {header['torch']}")
    planned, run = jobs(args, header["gpus"]), Run(args, header)
    with Session(args, header, run.close) as session:
        run.prepare()
        measure_all(run, planned)
    print(f"\n{aligned(products(run.rows))}")
    for name in ("seconds", "links"):
        print(f"\n{aligned(BLOCKS[f'stream_{name}']({'header': header, 'rows': run.rows}))}")
    return session.status(any(row["failure"] for row in run.rows) or not run.rows)


if __name__ == "__main__":
    exit_with(main)
