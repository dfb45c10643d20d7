"""What the examples share: where torch_tiled is, their options, a clock, and printed tables."""

import argparse
import math
import re
import sys
import time
from pathlib import Path

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch


def whole(text: str) -> int:
    """A positive whole number, such as 40e9."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(number)


def device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"it is {text}; it must be cpu, cuda or cuda:<index>")
    if text != "cpu" and not torch.cuda.is_available():
        sentence = "torch sees no CUDA device; leave --device out or say --device cpu"
        raise argparse.ArgumentTypeError(sentence)
    return text


class Parser(argparse.ArgumentParser):
    """The parser of an example with this docstring. PyTorch computes in IEEE float32 then."""

    def __init__(self, docstring: str, *, has_device: bool = True) -> None:
        super().__init__(description=docstring.partition("\n")[0])
        if has_device:
            default = "cuda" if torch.cuda.is_available() else "cpu"
            self.add_argument("--device", type=device, default=default)
        self.add_argument("--seed", type=int, default=0)
        torch.set_float32_matmul_precision("highest")

    def parse_args(self, argv: list[str] | None = None) -> argparse.Namespace:
        args = super().parse_args(argv)
        torch.manual_seed(args.seed % 2**64)
        return args


def now(tensor: torch.Tensor) -> float:
    """The time when the tensor's device is done."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


class Table:
    """A table that is printed row by row, in Markdown if `bars`.

    Args:
        columns: the heading of each and the format of its cells, such as "ms a step 9.2f"; "s"
            stands for text.
    """

    def __init__(self, *columns: str, bars: bool = False) -> None:
        headings, self.forms = zip(*(each.rsplit(" ", 1) for each in columns), strict=True)
        self.bars = bars
        self.widths = [
            max(len(heading), int(re.match(r"\d*", form)[0] or 0))
            for heading, form in zip(headings, self.forms, strict=True)
        ]
        self._print(headings)
        if bars:
            self._print("---" if form.endswith("s") else "---:" for form in self.forms)

    def add(self, *values) -> None:
        self._print(map(format, values, self.forms))

    def _print(self, cells) -> None:
        line = [
            cell.ljust(width) if form.endswith("s") else cell.rjust(width)
            for cell, form, width in zip(cells, self.forms, self.widths, strict=True)
        ]
        text = f"| {' | '.join(line)} |" if self.bars else "  ".join(line).rstrip()
        print(text, flush=True)
