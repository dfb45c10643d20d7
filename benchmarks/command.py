"""What the commands of benchmarks share: their options, and what ends a run."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from benchmarks.gemm import machine
from benchmarks.gemm.measure import raise_clocks

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
PRECISIONS = ("fp32", "ieee", "tf32")


MOST = 2**63 - 1  # that PyTorch takes for a size or a seed


def at_least(
    least: float, kind: Callable[[str], float] = int, most: int = MOST
) -> Callable[[str], float]:
    """A type of arguments: numbers from `least` to `most`."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            limit = f"at least {least:.6g}" if value < least else f"at most {most}"
            raise argparse.ArgumentTypeError(f"it is {text}; it must be {limit}.")
        return value

    return number


def positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        limit = "finite" if value > 0 else "more than 0"
        raise argparse.ArgumentTypeError(f"it is {text}; it must be {limit}.")
    return value


def new_file(text: str) -> Path:
    """A type of arguments: a file to write, in a folder that exists."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"it is {text}; the folder {path.parent} does not exist.")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"it is {text!r}, a folder; name a file.")
    return path


class Parser(argparse.ArgumentParser):
    """The parser of `python -m module`.

    Args:
        computes: it has the option --device.
        writes: it has --json and --commit for results.
    """

    def __init__(
        self, module: str, description: str, *, computes: bool = True, writes: bool = True
    ) -> None:
        super().__init__(
            f"python -m {module}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        option = self.add_argument
        if computes:
            option("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
        if writes:
            option("--json", type=new_file, metavar="PATH", help="write the results there")
            option("--commit", help="the sources' commit for the results, if they have no .git")

    def parse_args(self, argv: list[str] | None = None) -> argparse.Namespace:
        """The arguments, with the device that is there and the command line for results.

        The command line has the names of files without their folders.
        """
        args = super().parse_args(argv)
        if "device" in args:
            has_gpu = torch.cuda.is_available()
            if args.device == "cuda" and not has_gpu:
                self.error("torch sees no CUDA device; leave --device out or say --device cpu.")
            args.device = args.device or ("cuda" if has_gpu else "cpu")
        names = {str(x): x.name for x in vars(args).values() if isinstance(x, Path)}
        words = [names.get(word, word) for word in (sys.argv[1:] if argv is None else argv)]
        args.command_line = f"{self.prog} {shlex.join(words)}"
        return args


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Ends the process by a command's status, or by 1 if its output has nowhere to go."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may have ASCII alone
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"{error.filename or 'the output'}: {error.strerror}.", file=sys.stderr)
        # What is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


class Session:
    """The context in which a command measures: Ctrl-C ends it, and what was found is saved.

    Args:
        args: the arguments of a Parser.
        header: gets a GPU's clocks, "clocks_before" and "clocks_after".
        save: writes the results; it is called however the context ends.
    """

    def __init__(self, args: argparse.Namespace, header: dict, save: Callable[[], None]) -> None:
        self.device, self.header, self.save = torch.device(args.device), header, save
        self.is_interrupted = False

    def __enter__(self) -> "Session":
        raise_clocks(self.device)
        self.header["clocks_before"] = machine.clocks(self.device)
        return self

    def __exit__(self, kind: type | None, *_) -> bool:
        self.header["clocks_after"] = machine.clocks(self.device)
        self.save()
        self.is_interrupted = kind is KeyboardInterrupt
        return self.is_interrupted

    def status(self, failed: bool) -> int:
        """The exit status of the command."""
        if self.is_interrupted:
            print("Interrupted: this is what was measured before.")
            return 130
        return int(failed)
