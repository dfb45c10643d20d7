"""`python -m torch_tiled info`."""

import argparse
import json
import sys

from torch_tiled.info import as_table, info


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tiled")
    commands = parser.add_subparsers(dest="command", required=True)
    text = "print versions, the library and devices, and test products on the CPU and the GPU"
    end = "the exit code is 1 if a product is wrong"
    command = commands.add_parser("info", help=text, description=f"{text}; {end}")
    command.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args()

    facts = info()
    print(json.dumps(facts, indent=2) if options.json else as_table(facts))
    return 0 if facts["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
