"""The command line of benchmarks.gemm."""

import argparse

import torch_tiled
from benchmarks.command import DTYPES, PRECISIONS, Parser, at_least, positive
from benchmarks.suites.shapes import LAYOUTS, Shape, Suite
from benchmarks.suites.suites import SUITES


def parse(argv: list[str] | None, description: str = "") -> argparse.Namespace:
    """The options, with the suites asked for by name in `suites`."""
    parser = Parser("benchmarks.gemm", description)
    option = parser.add_argument
    known = [*torch_tiled.algorithms(), "auto"]
    option("--suite", nargs="+", choices=SUITES, help="default: headline on a GPU, else host")
    option("--shape", nargs="+", type=shape, metavar="MxNxK", help="products of no suite")
    option("--dtype", nargs="+", choices=DTYPES, help="default: the suite's")
    in_precisions = "of float32 and complex64; default: the suite's"
    option("--precision", nargs="+", choices=PRECISIONS, help=in_precisions)
    in_suites = "default: in the smoke suite all, else the suite's"
    option("--algorithm", nargs="+", choices=known, metavar="NAME", help=in_suites)
    option("--layout", nargs="+", choices=LAYOUTS, help="default: each shape in its own")
    option("--seconds", type=positive, default=0.2, help="for each row, the peer's share included")
    option("--repeats", type=at_least(1), default=5, help="the fewest passes of each")
    option("--energy", action="store_true", help="GFLOP/s per watt of large squares, 5 s for each")
    option("--profile", action="store_true", help="run each once for Nsight Compute, time nothing")
    option("--list", action="store_true", help="print the suites, run nothing")
    args = parser.parse_args(argv)
    if args.profile and args.device == "cpu":
        parser.error("--profile is for kernels on a GPU; torch sees none, or --device is cpu.")
    default = "headline" if args.device == "cuda" else "host"
    names = args.suite or ([] if args.shape else [default])
    args.suites = {name: SUITES[name] for name in names}
    if args.shape:
        args.suites["asked"] = Suite("what --shape says", tuple(args.shape))
    return args


def shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no shape; write MxNxK, or BATCHxMxNxK, of numbers from 1 to 2**63 - 1."
        ) from error
