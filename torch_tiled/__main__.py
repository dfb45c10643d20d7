"""`python -m torch_tiled info` and `python -m torch_tiled trace`."""

import argparse
import json
import os
import sys

from ._trace_page import page
from .info import as_table, info
from .trace import MOST_STEPS, draw, trace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tiled")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run, text: str, end: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text}; {end}")
        added.set_defaults(run=run)
        return added

    text = "print versions, the library and devices, and test products on the CPU and the GPU"
    added = command("info", _info, text, "the exit code is 1 if a product is wrong")
    added.add_argument("--json", action="store_true", help="print it as JSON")

    text = "walk a small product through its tiles, and count what it reads from global memory"
    added = command("trace", _trace, text, "A is (m, k) and B is (k, n)")
    for name, what in (("m", "rows of A"), ("n", "columns of B"), ("k", "columns of A, rows of B")):
        added.add_argument(name, type=_size, help=what)
    text = "rows and columns of a tile (default: 2)"
    added.add_argument("--tile", type=_size, default=2, metavar="SIZE", help=text)
    drawing = added.add_mutually_exclusive_group()
    drawing.add_argument("--all", action="store_true", help="draw every phase of every block")
    text = "write a page that plays every phase, instead of drawing in the terminal"
    drawing.add_argument("--html", metavar="FILE", help=text)

    options = parser.parse_args()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may have ASCII alone
    try:
        code = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except OSError as error:  # a pipe that was closed, as by `| head -1`; a disk that is full
        if not isinstance(error, BrokenPipeError):
            print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        # What is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _size(text: str) -> int:
    digits = text.lstrip("0")
    if text.isdecimal() and 0 < len(digits) <= 9 and int(digits) <= MOST_STEPS:
        return int(digits)
    raise argparse.ArgumentTypeError(
        f"{text} is not a size; give a whole number from 1 to {MOST_STEPS}"
    )


def _info(options: argparse.Namespace) -> int:
    facts = info()
    print(json.dumps(facts, indent=2) if options.json else as_table(facts))
    return 0 if facts["ok"] else 1


def _trace(options: argparse.Namespace) -> int:
    try:
        traced = trace(options.m, options.n, options.k, options.tile)
        if options.html is not None:
            return _write(page(traced), options.html)
        draw(traced, every=options.all)
    except (ModuleNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _write(text: str, path: str) -> int:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        remedy = "name a file, in a folder that is there and that you may write to"
        print(f"{path!r} cannot be written ({error.strerror}); {remedy}", file=sys.stderr)
        return 1
    print(f"wrote {path}, a page for any browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
