"""Reads and writes results files."""

import json
from pathlib import Path


class ResultsError(Exception):
    """A results file is missing, or lacks what is needed; the message says what."""


def read(path: Path) -> dict:
    """A results file: its "header" and its "rows". Raises ResultsError."""
    try:
        results = json.loads(path.read_text())
    except OSError as error:
        raise ResultsError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path} is not a JSON file: {error}.") from error
    if not isinstance(results, dict) or not {"header", "rows"} <= results.keys():
        raise ResultsError(f"{path} is no results file: it has no header and rows.")
    return results


def write(path: Path | None, results: dict) -> None:
    """Writes a results file, if there is a path."""
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


def in_lines(results: dict) -> str:
    """The text of a results file of many rows: a line for each of them."""
    header = json.dumps(results["header"], indent=1)
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in results["rows"])
    return f'{{\n"header": {header},\n"rows": [\n{rows}\n]\n}}\n'
