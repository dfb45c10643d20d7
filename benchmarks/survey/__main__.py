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
import time
from functools import partial

import torch

import torch_tiled
from benchmarks.command import DTYPES, PRECISIONS, Parser, Session, at_least, exit_with, positive
from benchmarks.gemm import machine
from benchmarks.gemm.check import Wrong, full_precision_peer, judge
from benchmarks.gemm.measure import Call, clock_name, side_by_side
from benchmarks.gemm.variants import Contest, plain
from benchmarks.pages.files import in_lines
from benchmarks.pages.rows import kernels
from benchmarks.suites.shapes import IN_PRECISIONS, Shape
from benchmarks.survey import report as survey_report
from benchmarks.survey.products import LEAST_FMAS, MOST_FMAS, pool, products, views

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
    peer, errors = partial(contest.peer[0], *first), {}
    for name, function in {"auto": contest.ours[0], **named}.items():
        try:
            errors[name] = judge(partial(function, *first), peer, *first, contest.truth)
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
    calls: list[Call] = [contest.ours, contest.peer]
    calls += [(function, contest.operands) for function in named.values()]
    timed = side_by_side(calls, seconds=0, repeats=args.repeats, dirty=True)
    us, peer_us, *others = (short(spread.median) for spread in timed)
    row = {name: getattr(shape, name) for name in ("batch", "m", "n", "k", "layout")}
    row |= {"kernel": picked.algorithm, "tile": getattr(picked, "tile", None)}
    row |= {"us": us, "peer_us": peer_us, "ratio": short(peer_us / us)}
    row["error"], row["peer_error"] = (short(each, 2) for each in errors["auto"])
    if args.beside:
        row["beside"] = [[*told, time] for told, time in zip(tiles.items(), others, strict=True)]
    return row


def measure_all(args: argparse.Namespace, rows: list[dict], refused: list[str]) -> None:
    """Adds to rows and refused product by product, so that an interruption keeps them."""
    numbers = pool(args.seed, args.most, args.model, DTYPES[args.dtype], torch.device(args.device))
    shapes = itertools.islice(products(args.seed, args.most, model=args.model), args.count)
    end = time.monotonic() + (args.seconds or float("inf"))
    with full_precision_peer(args.precision):
        for number, shape in enumerate(shapes, start=1):
            if time.monotonic() > end:
                break
            try:
                row = measure(numbers, shape, args)
                rows.append(row)
                said = f"{shape}: {row['kernel']} {row['us']} us, ratio {row['ratio']:.2f}"
            except (Wrong, RuntimeError) as error:
                said = f"{shape}: {error}"
                refused.append(said)
            print(f"[{number}/{args.count or '?'}] {said}", flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.survey", __doc__)
    option = parser.add_argument
    option("--dtype", choices=DTYPES, default="float32")
    option("--precision", choices=PRECISIONS, default="fp32", help="of float32 and complex64")
    option("--seed", type=at_least(0), default=1, help="another one has other products")
    option("--model", action="store_true", help="the products of layers")
    counted = f"products; by default {COUNT}, or what --seconds hold"
    option("--count", type=at_least(1), help=counted)
    option("--seconds", type=positive, help="the survey ends with the product after these")
    most = at_least(LEAST_FMAS, float)
    option("--most", type=most, default=MOST_FMAS, help="FMAs of a product")
    option("--repeats", type=at_least(1), default=7, help="passes of each")
    option(
        "--beside",
        nargs="+",
        choices=[*kernels(), "all"],
        default=[],
        metavar="KERNEL",
        help="time these as well, or all, if they sum in auto's order",
    )
    args = parser.parse_args(argv)
    if args.precision != "fp32" and args.dtype not in IN_PRECISIONS:
        parser.error(f"--precision is {args.precision}, which is for float32 and complex64 alone.")
    if not args.seconds:
        args.count = args.count or COUNT
    args.beside = _taken(args, parser.error)
    return args


def _taken(args: argparse.Namespace, refuse) -> list[str]:
    """The kernels of --beside; for "all", those that "auto" may pick in the dtype and precision."""
    auto = [name for name, kernel in kernels().items() if not kernel.by_name_only]
    asked = auto if "all" in args.beside else args.beside
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
    device = torch.device(args.device)
    asked = ("dtype", "precision", "seed", "model", "count", "seconds", "most", "beside")
    header, rows, refused = machine.describe(args, *asked), [], []
    header["timing"] = {"clock": clock_name(device), "repeats": args.repeats, "l2": "overwritten"}
    header["refused"] = refused
    results = {"header": header, "rows": rows}
    print(f"{header['device']}, torch {header['torch']}")

    def save() -> None:
        if args.json:
            args.json.write_text(in_lines(results))

    with Session(args, header, save) as session:
        header["empty_us"] = empty_us(device)
        measure_all(args, rows, refused)
    if rows:
        survey_report.print_results(results)
    for said in refused:
        print(said)
    return session.status(bool(refused) or not rows)


if __name__ == "__main__":
    exit_with(main)
