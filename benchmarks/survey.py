"""Times products of random sizes against the next multiples of 64, and against the vendor's.

    python benchmarks/survey.py
    python benchmarks/survey.py --sides eights --count 400 --json survey.json
    python benchmarks/survey.py --beside mma_unaligned mma_tma    # did auto pick the faster one?

The logarithms of M, N and K are uniform; M and N are exchanged in a third of the products, and
every layout is as likely. For each product measure.py alternates `auto`, `auto` on M, N and K
rounded up to multiples of 64, which tiles fit, and the vendor's; check.py judges the first
beforehand. Operands are views of one piece of random normal numbers, so that a product takes
little longer than its passes. The vendor's product is cuBLAS on CUDA, torch.matmul's on a CPU.
"""

import argparse
import json
import math
import random
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.table import Table

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import machine
from check import Wrong, full_precision_peer, judge
from measure import Call, Operands, raise_clocks, side_by_side
from options import DTYPES
from report import Steps, make_console
from shapes import LAYOUTS, Shape
from variants import Contest, plain, planned

import torch_tiled

SIDES = {
    "odd": lambda size: size | 1,
    "eights": lambda size: max(8, size // 8 * 8),
    "any": lambda size: size,
}
# The ranges of m, n and k, before some are exchanged.
RANGES = ((1, 5800), (64, 16000), (64, 11600))
MOST_SETS = 24
MOST_NUMBERS = 2**30  # elements of the piece of memory that operands are views of
TWICE = 2.0  # products are counted that take longer than this multiple of the aligned one
WORST = 20  # rows of the printed table


def problems(count: int, sides: str, seed: int, most: float) -> list[Shape]:
    """`count` products of less than `most` FMAs each: the same ones for the same arguments."""
    choose = random.Random(seed)
    found: list[Shape] = []
    while len(found) < count:
        m, n, k = (
            int(math.exp(choose.uniform(math.log(least), math.log(largest))))
            for least, largest in RANGES
        )
        if choose.random() < 1 / 3:
            m, n = n, m
        m, n, k = map(SIDES[sides], (m, n, k))
        layout = choose.choice(LAYOUTS)
        if m * n * k < most:
            found.append(Shape(m, n, k, layout=layout))
    return found


def aligned(shape: Shape) -> Shape:
    """The next larger shape whose sizes are multiples of 64."""
    m, n, k = (-(-size // 64) * 64 for size in (shape.m, shape.n, shape.k))
    return replace(shape, m=m, n=n, k=k)


def views(pool: torch.Tensor, shape: Shape) -> list[Operands]:
    """As many sets of operands as the pool holds, at most MOST_SETS, at multiples of 128."""

    def padded(numbers: int) -> int:
        return -(-numbers // 128) * 128

    def take(at: int, rows: int, columns: int, letter: str) -> torch.Tensor:
        piece = pool[at : at + rows * columns]
        return piece.view(rows, columns) if letter == "N" else piece.view(columns, rows).mT

    a_numbers, b_numbers = padded(shape.m * shape.k), padded(shape.k * shape.n)
    of_set = a_numbers + b_numbers
    starts = [i * of_set for i in range(min(MOST_SETS, len(pool) // of_set))]
    return [
        (
            take(at, shape.m, shape.k, shape.layout[0]),
            take(at + a_numbers, shape.k, shape.n, shape.layout[1]),
        )
        for at in starts
    ]


def beside(names: list[str], picked: str, contest: Contest, **ways) -> dict[str, Call]:
    """Calls of the kernels that take the product, except the one that was picked."""
    calls = {}
    for name in names:
        own = ways | {"algorithm": name}
        if name != picked and torch_tiled.explain(*contest.operands[0], **own).algorithm == name:
            calls[name] = (partial(torch_tiled.matmul, **own), contest.operands)
    return calls


def measure(pool: torch.Tensor, shape: Shape, args: argparse.Namespace) -> dict:
    """The row of one product. Raises Wrong where there is none to report."""
    ways = {"algorithm": "auto", "precision": "fp32"}
    contest = plain(views(pool, shape), **ways)
    neighbour = plain(views(pool, aligned(shape)), **ways)
    calls = [contest.ours, neighbour.ours, contest.peer]
    first = contest.operands[0]
    kernel, tile = planned(contest, **ways)
    others = beside(args.beside, kernel, contest, **ways)
    peer, verdicts = partial(contest.peer[0], *first), {}
    for name, (function, _) in {"auto": contest.ours, **others}.items():
        try:
            verdicts[name] = judge(partial(function, *first), peer, *first, contest.truth)
        except Wrong as wrong:
            raise Wrong(f"{shape}, {name}: {wrong}") from None
    us, aligned_us, peer_us, *others_us = side_by_side(
        [*calls, *others.values()], seconds=args.seconds, repeats=args.repeats
    )
    beside_us = {name: spread.median for name, spread in zip(others, others_us, strict=True)}
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "layout": shape.layout,
        "kernel": kernel,
        "tile": tile,
        "us": us.median,
        "us_p10": us.p10,
        "us_p90": us.p90,
        "aligned_us": aligned_us.median,
        "peer_us": peer_us.median,
        "beside_us": beside_us,
        "best_us": min([us.median, *beside_us.values()]),
        "over_aligned": us.median / aligned_us.median,
        "ratio": peer_us.median / us.median,
        "error": verdicts["auto"].error,
        "peer_error": verdicts["auto"].peer_error,
    }


def summary(rows: list[dict]) -> dict:
    """How many products take more than TWICE the aligned one's time, and means of ratios.

    "over_best" and "over_twice_at_best" compare with the fastest kernel of `--beside`.
    """
    over = [row for row in rows if row["over_aligned"] > TWICE]
    return {
        "products": len(rows),
        "over_twice": len(over),
        "over_twice_and_10_us": sum(row["us"] > 10 for row in over),
        "largest": max(row["over_aligned"] for row in rows),
        "over_aligned": statistics.geometric_mean(row["over_aligned"] for row in rows),
        "ratio": statistics.geometric_mean(row["ratio"] for row in rows),
        "over_best": statistics.geometric_mean(row["us"] / row["best_us"] for row in rows),
        "over_twice_at_best": sum(row["best_us"] > TWICE * row["aligned_us"] for row in rows),
    }


def table(rows: list[dict]) -> Table:
    worst = sorted(rows, key=lambda row: -row["over_aligned"])[:WORST]
    printed = Table(title=f"the {len(worst)} worst", title_justify="left", box=None, pad_edge=False)
    headings = ("m", "n", "k", "us", "aligned", "over it", "vendor's", "ratio")
    for heading in headings:
        printed.add_column(heading, justify="right")
    for heading in ("layout", "kernel"):
        printed.add_column(heading)
    for row in worst:
        sizes = (str(row[size]) for size in ("m", "n", "k"))
        times = (f"{row['us']:.1f}", f"{row['aligned_us']:.1f}", f"{row['over_aligned']:.2f}")
        peers = (f"{row['peer_us']:.1f}", f"{row['ratio']:.2f}")
        printed.add_row(
            *sizes, *times, *peers, row["layout"], f"{row['kernel']} {row['tile'] or ''}"
        )
    return printed


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--device", choices=["cpu", "cuda"], help="by default cuda where there is a GPU")
    option("--dtype", choices=DTYPES, default="bfloat16")
    option("--sides", choices=SIDES, default="odd", help="of M, N and K")
    option("--count", type=int, default=700, help="products")
    option("--seed", type=int, default=0, help="another one has other products")
    option("--most", type=float, default=4e10, help="FMAs of a product")
    option("--seconds", type=float, default=0.0, help="to time a product for, at least")
    option("--repeats", type=int, default=3, help="passes of each, at least")
    option(
        "--beside",
        nargs="+",
        choices=torch_tiled.algorithms(),
        default=[],
        metavar="KERNEL",
        help="time these as well",
    )
    option("--json", type=Path, metavar="PATH", help="write the results there")
    option("--commit", help="the sources' commit for the results, where they have no .git")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; leave --device out or say --device cpu.")
    if args.count < 1:
        parser.error(f"--count is {args.count}; it must be at least 1.")
    smallest = 8 * 64 * 64  # FMAs; every choice of --sides has such a product
    if args.most <= smallest:
        parser.error(f"--most is {args.most:g}; it must be more than {smallest}.")
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    any_operand = torch.empty(64, 64, dtype=DTYPES[args.dtype], device=args.device)
    for name in args.beside:
        try:
            torch_tiled.explain(any_operand, any_operand, algorithm=name)
        except RuntimeError as error:
            parser.error(str(error))
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    console = make_console()
    words = [__file__, *argv] if argv is not None else sys.argv
    device = torch.device(args.device)
    header = machine.describe(device, machine.command_line(words, args.json), args.commit)
    asked = ("dtype", "sides", "count", "seed", "most", "beside")
    header |= {name: getattr(args, name) for name in asked}
    raise_clocks(device)
    header["clocks_before"] = machine.clocks(device)
    shapes = problems(args.count, args.sides, args.seed, args.most)
    # Two sets of the largest product fit, so that successive calls have different operands.
    least = 2 * max(aligned(shape).operands + 256 for shape in shapes)
    numbers = max(least, min(MOST_NUMBERS, least * MOST_SETS // 2))
    pool = torch.empty(numbers, dtype=DTYPES[args.dtype], device=device).normal_()
    rows: list[dict] = []
    refused: list[str] = []
    with full_precision_peer("fp32"), Steps(console, len(shapes)) as steps:
        for shape in shapes:
            steps.begin(str(shape))
            try:
                row = measure(pool, shape, args)
            except Wrong as wrong:
                refused.append(str(wrong))
                steps.finish(refused[-1])
                continue
            rows.append(row)
            steps.finish(
                f"{shape}: {row['us']:.1f} us, {row['over_aligned']:.2f} of the aligned one's time"
            )
    header["clocks_after"] = machine.clocks(device)
    header["refused"] = refused
    if rows:
        header["summary"] = found = summary(rows)
        console.print(table(rows))
        console.print(
            f"Of {found['products']} products ({args.dtype}, sides: {args.sides}) "
            f"{found['over_twice']} take more than twice the aligned one's time, "
            f"{found['over_twice_and_10_us']} of those more than 10 us; in the mean "
            f"{found['over_aligned']:.2f} times it, {found['largest']:.2f} at most, at "
            f"{found['ratio']:.2f} of the vendor's speed.",
            markup=False,
        )
        if args.beside:
            console.print(
                f"By the fastest of auto's kernel and {', '.join(args.beside)} "
                f"{found['over_twice_at_best']} would take more than twice; auto's takes "
                f"{found['over_best']:.3f} times its time.",
                markup=False,
            )
    if args.json:
        args.json.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    for said in refused:
        console.print(said, markup=False)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
