"""The command line of benchmarks.gemm, and checks that other benchmarks share."""

import argparse
from pathlib import Path

import torch

import torch_tiled
from benchmarks.suites.shapes import LAYOUTS, Shape, Suite
from benchmarks.suites.suites import SUITES

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
PRECISIONS = ("fp32", "ieee", "tf32")


def parse(argv: list[str] | None, description: str = "") -> argparse.Namespace:
    """The options, with the suites asked for by name in `suites`."""
    parser = make_parser("benchmarks.gemm", description)
    option = parser.add_argument
    option("--suite", nargs="+", choices=SUITES, help="default: headline on a GPU, else host")
    option("--shape", nargs="+", type=_shape, metavar="MxNxK", help="products of no suite")
    option("--dtype", nargs="+", choices=DTYPES, help="default: the suite's")
    option(
        "--precision",
        nargs="+",
        choices=PRECISIONS,
        help="of float32 and complex64; default: the suite's",
    )
    option("--algorithm", nargs="+", help="default: in the smoke suite all, else the suite's")
    option("--layout", nargs="+", choices=LAYOUTS, help="default: each shape in its own")
    option("--seconds", type=float, default=0.2, help="for each row, the peer's share included")
    option("--repeats", type=int, default=5, help="the fewest passes of each, whatever they take")
    option("--energy", action="store_true", help="GFLOP/s per watt of large squares, 5 s for each")
    option("--kernels", action="store_true", help="time each CUDA kernel; may slow what follows")
    option("--profile", action="store_true", help="run each once for Nsight Compute, time nothing")
    option("--overhead", action="store_true", help="the host's time of a call (alone, or as well)")
    option("--list", action="store_true", help="print the suites, run nothing")
    add_results(parser)
    args = parser.parse_args(argv)
    _check(args, parser.error)
    if args.profile and args.device == "cpu":
        parser.error("--profile is for kernels on a GPU; torch sees none, or --device is cpu.")
    default = "headline" if args.device == "cuda" else "host"
    names = args.suite or ([] if args.overhead or args.shape else [default])
    args.suites = {name: SUITES[name] for name in names}
    if args.shape:
        args.suites["asked"] = Suite("what --shape says", tuple(args.shape))
    return args


def _check(args: argparse.Namespace, refuse) -> None:
    known = [*torch_tiled.algorithms(), "auto"]
    unknown = [name for name in args.algorithm or [] if name not in known]
    if unknown:
        refuse(f"no algorithm is called {unknown[0]}; there are {', '.join(known)}.")
    settle_device(args, refuse)
    check_positive(args, refuse, "seconds")
    check_least(args, refuse, 1, "repeats")
    check_folders(args, refuse, "json")


def make_parser(module: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m module`, with the option that every benchmark has."""
    parser = argparse.ArgumentParser(
        f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where there is one"
    )
    return parser


def add_results(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a benchmark that writes results."""
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there")
    parser.add_argument(
        "--commit", help="the sources' commit for the results, where they have no .git"
    )


def settle_device(args: argparse.Namespace, refuse) -> None:
    """Sets the device if none was asked for. Refuses --device cuda where there is none."""
    has_gpu = torch.cuda.is_available()
    if args.device == "cuda" and not has_gpu:
        refuse("torch sees no CUDA device; leave --device out or say --device cpu.")
    args.device = args.device or ("cuda" if has_gpu else "cpu")


def check_least(args: argparse.Namespace, refuse, least: float, *names: str) -> None:
    """Refuses an option, among these, that is less than `least`."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value >= least:
            option = name.replace("_", "-")
            refuse(f"--{option} is {value:.6g}; it must be at least {least:.6g}.")


def check_positive(args: argparse.Namespace, refuse, name: str) -> None:
    """Refuses an option that is not more than 0."""
    value = getattr(args, name)
    if value is not None and not value > 0:
        refuse(f"--{name} is {value}; it must be more than 0.")


def check_folders(args: argparse.Namespace, refuse, *names: str) -> None:
    """Refuses a file to write, among these options, if its folder does not exist."""
    for name in names:
        path = getattr(args, name)
        if path and not path.absolute().parent.is_dir():
            refuse(f"--{name} is {path}; the folder {path.parent} does not exist.")


def _shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no shape; write MxNxK, or BATCHxMxNxK, of numbers from 1 on."
        ) from error
