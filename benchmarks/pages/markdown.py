"""Writes Markdown: tables, and the blocks between the markers of a page."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.pages.files import ResultsError


class PageError(Exception):
    """A page lacks the markers of a block; the message says which."""


def markers(block: str) -> tuple[str, str]:
    return f"<!-- {block}:begin -->", f"<!-- {block}:end -->"


def with_blocks(page: Path, blocks: dict[str, str]) -> str:
    """Returns the text of `page` with each block between the markers of its name."""
    try:
        text = page.read_text()
    except OSError as error:
        raise PageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    for name, block in blocks.items():
        begin, end = markers(name)
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise PageError(f"{page} must hold {begin} once, and {end} once after it.")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


def written(source: str, writers: dict[str, Callable[[dict], str]], measured: dict) -> dict:
    """Returns what each writer makes of the results; a missing field raises ResultsError."""
    try:
        return {name: write(measured) for name, write in writers.items()}
    except KeyError as error:
        raise ResultsError(
            f"{source} lacks {error}: another version of this benchmark wrote it; measure anew."
        ) from error


def table(left: int, rows: list[dict]) -> str:
    """A Markdown table of rows by heading; its first `left` columns are aligned to the left.

    A heading may be a tuple that ends with the text, so that columns may share a text. A cell that
    is no text is written as it is if it is an integer, and else as figure() does.
    """
    if not rows:
        return ""
    headings = [each if isinstance(each, str) else each[-1] for each in rows[0]]
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    cells = [
        [str(x) if isinstance(x, str | int) else figure(x) for x in row.values()] for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *cells))


def figure(value: float | None, form: str = ".3g") -> str:
    """Formats a number for a cell; a dash stands for None, which was not measured."""
    return "-" if value is None else f"{value:{form}}"


def measured_on(header: dict) -> str:
    versions = [f"torch {header['torch']}"]
    if header["cuda"]:
        versions += [f"CUDA {header['cuda']}", f"driver {header['driver']}"]
    if header["git_commit"]:
        versions.append(f"commit {header['git_commit'][:10]}")
    if header.get("numerics"):
        versions.append(f"numerics version {header['numerics']}")
    return f"Measured on {header['device']} ({', '.join(versions)}) at {header['time']}"
