"""Writes the README's results from a results file, or other blocks of other pages."""

import json
from collections.abc import Callable
from pathlib import Path

import report

SQUARES = ("smoke", "square")  # suites


class ReadmeError(Exception):
    """A page or the results file is not what the writer needs; the message says why."""


def write_results(results: Path, readme: Path) -> None:
    """Replaces what stands between the two markers of `readme` by the tables of `results`."""
    write_blocks(results, readme, {"results": markdown})


def markers(block: str) -> tuple[str, str]:
    return f"<!-- {block}:begin -->", f"<!-- {block}:end -->"


def write_blocks(results: Path, page: Path, blocks: dict[str, Callable[[dict], str]]) -> dict:
    """Writes each block of `page`, by its name, between its markers. Returns the results."""
    try:
        measured = json.loads(results.read_text())
        text = page.read_text()
    except OSError as error:
        raise ReadmeError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise ReadmeError(f"{results} is not a JSON file: {error}.") from error
    for name, write in blocks.items():
        begin, end = markers(name)
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise ReadmeError(f"{page} must hold {begin} once, and {end} once after it.")
        try:
            block = write(measured)
        except KeyError as error:
            raise ReadmeError(
                f"{results} lacks {error}: another version of this benchmark wrote it; "
                "measure anew."
            ) from error
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n{block}\n{end}{after}"
    page.write_text(text)
    return measured


def markdown(measured: dict) -> str:
    """The square products one by one, and the means of everything measured."""
    header, rows = measured["header"], measured["rows"]
    parts = [_caption(header)]
    squares = [row for row in rows if row["suite"] in SQUARES and row["m"] == row["n"] == row["k"]]
    if squares:
        parts.append(_squares(squares))
    if header["geometric_means"]:
        parts.append(
            "Geometric means of the ratio, by suite and by group in it, and of the rate of a copy "
            "that moves as many bytes, where one was timed:"
        )
        parts.append(_means(header["geometric_means"]))
    if header.get("overheads"):
        parts.append(_overheads(header["overheads"]))
    return "\n\n".join(parts)


def measured_on(header: dict) -> str:
    versions = [f"torch {header['torch']}"]
    if header["cuda"]:
        versions += [f"CUDA {header['cuda']}", f"driver {header['driver']}"]
    if header["git_commit"]:
        versions.append(f"commit {header['git_commit'][:10]}")
    return f"Measured on {header['device']} ({', '.join(versions)}) at {header['time']}"


def _caption(header: dict) -> str:
    return (
        f"{measured_on(header)} by `{header['command_line']}`. The time is the median of a call, "
        "the ratio that of the peer's time to ours, and the errors are relative Frobenius errors "
        "against float64."
    )


def table(headings: list[str], left: int, rows: list[list[str]]) -> str:
    """A Markdown table, its first `left` columns aligned to the left and the rest to the right."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def _squares(rows: list[dict]) -> str:
    peer = rows[0]["peer"]
    headings = ["dtype", "precision", "layout", "kernel", "m = n = k", "us", "TFLOP/s"]
    headings += [f"{peer}, TFLOP/s", "ratio", "error", f"{peer}'s error"]
    powered = any(row["gflops_per_watt"] for row in rows)
    headings += ["GFLOP/s per watt", f"{peer}'s"] if powered else []
    return table(
        headings,
        4,
        [
            [
                row["dtype"],
                row["precision"],
                row["layout"],
                f"`{row['algorithm']}`",
                str(row["m"]),
                f"{row['us']:.1f}",
                f"{row['tflops']:.3g}",
                f"{row['tflops'] / row['ratio']:.3g}",
                f"{row['ratio']:.2f}",
                f"{row['error']:.1e}",
                f"{row['peer_error']:.1e}",
                *(_per_watt(row) if powered else []),
            ]
            for row in rows
        ],
    )


def _per_watt(row: dict) -> list[str]:
    each = (row["gflops_per_watt"], row["peer_gflops_per_watt"])
    return ["" if value is None else f"{value:.0f}" for value in each]


def _means(means: list[dict]) -> str:
    copied = any(mean["of_copy"] for mean in means)
    headings = ["suite", "group", "dtype", "precision", "kernel", "products", "ratio"]
    return table(
        [*headings, *(["of a copy"] if copied else [])],
        5,
        [
            [
                *(mean[key] for key in headings[:4]),
                report.kernel(mean),
                str(mean["rows"]),
                f"{mean['ratio']:.2f}",
                *([f"{mean['of_copy']:.2f}" if mean["of_copy"] else ""] if copied else []),
            ]
            for mean in means
        ],
    )


def _overheads(rows: list[dict]) -> str:
    told = table(
        ["call on 8x8 tensors", "passes", "us", "over PyTorch's"],
        2,
        [
            [
                f"`{row['call']}`",
                "forward, backward" if row["backward"] else "forward",
                f"{row['us']:.1f}",
                f"{row['over_peer']:.2f}",
            ]
            for row in rows
        ],
    )
    return f"The host's time, launches included:\n\n{told}"
