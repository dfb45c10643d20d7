"""Times random products against torch.matmul in the same precision: where are we slower?

    python -m benchmarks.survey --precision ieee --seed 2 --json survey_ieee_2.json
    python -m benchmarks.survey --dtype bfloat16 --model --seconds 60
    python -m benchmarks.survey --beside all    # did auto pick the fastest kernel of the order?

products.py says what the products of a seed are. A product is judged before it is timed. Then one
replay of a CUDA graph of `auto` alternates with one of torch.matmul, each after L2 was overwritten,
and medians are reported (benchmarks/gemm/check.py and measure.py). Operands are views of one piece
of random normal numbers, so that a product takes little longer than its passes. benchmarks.pages
shows the files survey_<precision or dtype>_<seed>.json in docs/kernels/random.md.
"""

import argparse
import itertools
import sys
import time
from functools import partial

import torch

import torch_tiled
from benchmarks.gemm import machine
from benchmarks.gemm.check import Wrong, full_precision_peer, judge
from benchmarks.gemm.measure import Call, clock_name, raise_clocks, side_by_side
from benchmarks.gemm.options import (
    DTYPES,
    PRECISIONS,
    add_results,
    check_folders,
    check_least,
    check_positive,
    make_parser,
    settle_device,
)
from benchmarks.gemm.report import Steps, make_console
from benchmarks.gemm.variants import Contest, plain
from benchmarks.pages.files import in_lines
from benchmarks.pages.rows import kernels
from benchmarks.suites.shapes import IN_PRECISIONS, Shape
from benchmarks.survey import report as survey_report
from benchmarks.survey.products import LEAST_FMAS, MOST_FMAS, aligned, fits, pool, products, views

COUNT = 1500  # products, where neither --count nor --seconds says how many
EMPTY_CALLS = 64  # in a graph


def empty_us(device: torch.device) -> dict[str, float]:
    """The time of a kernel that writes one number: alone in a graph, and among many."""
    one = torch.zeros(1, device=device)
    calls = [(lambda x, _: x.fill_(1), [(one, one)] * count) for count in (1, EMPTY_CALLS)]
    alone, among = side_by_side(calls, seconds=0, repeats=51, dirty=True)
    return {"alone": short(alone.median), "among_many": short(among.median)}


def short(value: float, digits: int = 4) -> float:
    """The number in few digits, which keeps the results small."""
    return float(f"{value:.{digits}g}")


def beside(names: list[str], picked, contest: Contest, precision: str) -> dict[str, str]:
    """The tiles of the kernels that sum the product in the same order as the picked one.

    On a CPU `auto` is torch.matmul, which has no order, and every kernel counts.
    """
    tiles = {}
    for name in names:
        told = torch_tiled.explain(*contest.operands[0], algorithm=name, precision=precision)
        takes = told.algorithm == name != picked.algorithm
        if takes and told.order == getattr(picked, "order", told.order):
            tiles[name] = told.tile
    return tiles


def measure(numbers: torch.Tensor, shape: Shape, args: argparse.Namespace) -> dict:
    """The row of one product. Raises Wrong where there is none to report."""
    ways = {"algorithm": "auto", "precision": args.precision}
    contest = plain([views(numbers, shape)], **ways)
    first = contest.operands[0]
    picked = torch_tiled.explain(*first, **ways)
    tiles = beside(args.beside, picked, contest, args.precision)
    named = {name: partial(torch_tiled.matmul, **ways | {"algorithm": name}) for name in tiles}
    peer, verdicts = partial(contest.peer[0], *first), {}
    for name, function in {"auto": contest.ours[0], **named}.items():
        try:
            verdicts[name] = judge(partial(function, *first), peer, *first, contest.truth)
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
    calls: list[Call] = [contest.ours, contest.peer]
    calls += [(function, contest.operands) for function in named.values()]
    near = aligned(shape)
    neighbour = args.aligned and fits(numbers, near)
    if neighbour:
        calls.append((contest.ours[0], [views(numbers, near)]))
    timed = side_by_side(calls, seconds=0, repeats=args.repeats, dirty=True)
    us, peer_us, *others = (short(spread.median) for spread in timed)
    row = {name: getattr(shape, name) for name in ("batch", "m", "n", "k", "layout")}
    row |= {"kernel": picked.algorithm, "tile": getattr(picked, "tile", None)}
    row |= {"us": us, "peer_us": peer_us, "ratio": short(peer_us / us)}
    row["error"] = short(verdicts["auto"].error, 2)
    row["peer_error"] = short(verdicts["auto"].peer_error, 2)
    if neighbour:
        row["aligned_us"] = others.pop()
    if args.beside:
        row["beside"] = [[*told, time] for told, time in zip(tiles.items(), others, strict=True)]
    return row


def measure_all(args: argparse.Namespace, console, rows: list[dict], refused: list[str]) -> None:
    """Adds to rows and refused product by product, so that an interruption keeps them."""
    numbers = pool(args.seed, args.most, args.model, DTYPES[args.dtype], torch.device(args.device))
    shapes = itertools.islice(products(args.seed, args.most, model=args.model), args.count)
    end = time.monotonic() + (args.seconds or float("inf"))
    with full_precision_peer(args.precision), Steps(console, args.count) as steps:
        for shape in shapes:
            if time.monotonic() > end:
                break
            steps.begin(str(shape))
            try:
                row = measure(numbers, shape, args)
            except (Wrong, RuntimeError) as error:
                refused.append(f"{shape}: {error}")
                steps.finish(refused[-1])
                continue
            rows.append(row)
            steps.finish(f"{shape}: {row['kernel']} {row['us']} us, ratio {row['ratio']:.2f}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = make_parser("benchmarks.survey", __doc__)
    option = parser.add_argument
    option("--dtype", choices=DTYPES, default="float32")
    option("--precision", choices=PRECISIONS, default="fp32", help="of float32 and complex64")
    option("--seed", type=int, default=1, help="another one has other products")
    option("--model", action="store_true", help="the products of layers")
    option("--count", type=int, help=f"products; by default {COUNT}, or what --seconds hold")
    option("--seconds", type=float, help="the survey ends with the product after these")
    option("--most", type=float, default=MOST_FMAS, help="FMAs of a product")
    option("--repeats", type=int, default=7, help="passes of each")
    option(
        "--beside",
        nargs="+",
        choices=[*kernels(), "all"],
        default=[],
        metavar="KERNEL",
        help="time these as well, or all, where they sum in auto's order",
    )
    option("--aligned", action="store_true", help="time the next multiples of 64 as well")
    add_results(parser)
    args = parser.parse_args(argv)
    _check(args, parser.error)
    if not args.seconds:
        args.count = args.count or COUNT
    args.beside = _taken(args, parser.error)
    return args


def _check(args: argparse.Namespace, refuse) -> None:
    settle_device(args, refuse)
    if args.precision != "fp32" and args.dtype not in IN_PRECISIONS:
        refuse(f"--precision is {args.precision}, which is for float32 and complex64 alone.")
    check_least(args, refuse, 1, "count", "repeats")
    check_positive(args, refuse, "seconds")
    check_least(args, refuse, LEAST_FMAS, "most")
    check_folders(args, refuse, "json")


def _taken(args: argparse.Namespace, refuse) -> list[str]:
    """The kernels of --beside; all of those that take the dtype and the precision, for "all"."""
    asked = kernels() if "all" in args.beside else args.beside
    operand = torch.empty(64, 64, dtype=DTYPES[args.dtype], device=args.device)
    taken = []
    for name in asked:
        try:
            torch_tiled.explain(operand, operand, algorithm=name, precision=args.precision)
        except RuntimeError as error:
            if "all" not in args.beside:
                refuse(str(error))
        else:
            taken.append(name)
    return taken


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    console, device = make_console(), torch.device(args.device)
    command_line = machine.command_line("benchmarks.survey", argv, args.json)
    header = machine.describe(device, command_line, args.commit)
    asked = ("dtype", "precision", "seed", "model", "count", "seconds", "most", "beside")
    header |= {name: getattr(args, name) for name in asked}
    console.print(f"{header['device']}, torch {header['torch']}", markup=False)
    raise_clocks(device)
    header["clocks_before"] = machine.clocks(device)
    header["timing"] = {"clock": clock_name(device), "repeats": args.repeats, "l2": "overwritten"}
    header["empty_us"] = empty_us(device)
    rows: list[dict] = []
    header["refused"] = refused = []
    interrupted = False
    try:
        measure_all(args, console, rows, refused)
    except KeyboardInterrupt:
        interrupted = True
    header["clocks_after"] = machine.clocks(device)
    results = {"header": header, "rows": rows}
    if args.json:
        args.json.write_text(in_lines(results))
    if rows:
        survey_report.print_results(console, results)
    for said in refused:
        console.print(said, markup=False)
    if interrupted:
        console.print("Interrupted: this is what was measured before.")
        return 130
    return 1 if refused or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
