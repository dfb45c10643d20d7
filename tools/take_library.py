"""Takes the compiled library of a wheel into this checkout, instead of building it.

    python tools/take_library.py torch_tiled-0.2.0-py3-none-manylinux_2_28_x86_64.whl

The wheel must be of this checkout's version: Python files and library belong together.
"""

import argparse
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "torch_tiled/version.py"
LIBRARY = ["torch_tiled/_C.so", "torch_tiled/_C.json"]


def version(text: str) -> str:
    return re.search(r'__version__ = "(.+)"', text)[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    args = parser.parse_args()
    if not args.wheel.is_file():
        sys.exit(f"torch_tiled: there is no wheel {args.wheel}.")
    with zipfile.ZipFile(args.wheel) as wheel:
        theirs, ours = version(wheel.read(VERSION).decode()), version((ROOT / VERSION).read_text())
        if theirs != ours:
            sys.exit(
                f"torch_tiled: {args.wheel.name} is version {theirs}, and this checkout is {ours}. "
                f"Check out {theirs}, or build the library: make build."
            )
        wheel.extractall(ROOT, LIBRARY)
    print(f"torch_tiled: took {LIBRARY[0]} from {args.wheel.name}.")


if __name__ == "__main__":
    main()
