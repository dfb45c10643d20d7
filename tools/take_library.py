"""Takes the compiled library of a wheel into this checkout, instead of building it.

    python tools/take_library.py torch_tiled-0.2.0-py3-none-manylinux_2_28_x86_64.whl

The wheel's Python files must be those of this checkout, since files and library belong together.
The sources of the library are not in a wheel, so they are not compared.
"""

import argparse
import glob
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ["torch_tiled/_C.so", "torch_tiled/_C.json"]


def differing(wheel: zipfile.ZipFile) -> list[str]:
    """The Python files that the wheel and this checkout do not share."""
    ours = {str(path.relative_to(ROOT)): path for path in (ROOT / "torch_tiled").rglob("*.py")}
    theirs = {name for name in wheel.namelist() if name.endswith(".py")}
    both = ours.keys() & theirs
    other = {name for name in both if wheel.read(name) != ours[name].read_bytes()}
    return sorted((ours.keys() ^ theirs) | other)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", help="a file, or a pattern that one file matches")
    pattern = parser.parse_args().wheel
    files = [path for path in glob.glob(pattern) if zipfile.is_zipfile(path)]
    if len(files) != 1:
        sys.exit(f"torch_tiled: {pattern} must be one wheel, and {len(files)} match.")
    with zipfile.ZipFile(files[0]) as wheel:
        if not set(LIBRARY) <= set(wheel.namelist()):
            sys.exit(f"torch_tiled: {files[0]} is no wheel of torch_tiled: it has no {LIBRARY[0]}.")
        if others := differing(wheel):
            sys.exit(
                f"torch_tiled: {files[0]} was built from other sources than this checkout: "
                f"{len(others)} Python files differ, such as {others[0]}. Build the library: "
                "make build; or check out what the wheel was built from."
            )
        wheel.extractall(ROOT, LIBRARY)
    print(f"torch_tiled: took {LIBRARY[0]} from {files[0]}.")


if __name__ == "__main__":
    main()
