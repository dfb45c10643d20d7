"""The output of a run: a sentence for each row, and the tables of the pages."""

import math
from collections.abc import Iterator

from benchmarks.suites.shapes import IN_PRECISIONS, Shape


def sentence(row: dict) -> str:
    parts = [
        f"{number(row['us'])} us, {number(row['tflops'])} TFLOP/s, "
        f"{row['ratio']:.2f}x {row['peer']}"
    ]
    if row["algorithm"] == "auto" and row["kernel"] != row["peer"]:
        parts[0] += f", by {row['kernel']}"
    if row["gflops_per_watt"]:
        ours, peer = row["gflops_per_watt"], row["peer_gflops_per_watt"]
        parts.append(f"{number(ours)} GFLOP/s per watt, {ours / peer:.2f}x {row['peer']}")
    return "; ".join(parts)


def kind(row: dict) -> str:
    """The precision of a float32 product, and another one's dtype; of complex64 both."""
    dtype, precision = row["dtype"], row["precision"]
    if dtype == "float32":
        return precision
    return f"{dtype} {precision}" if dtype in IN_PRECISIONS else dtype


def product(row: dict) -> Shape:
    return Shape(**{name: row[name] for name in ("m", "n", "k", "batch", "layout")})


def declinations(declined: list[tuple]) -> Iterator[str]:
    """A sentence for each algorithm of the jobs that were not measured, with the first reason."""
    for algorithm in dict.fromkeys(job.algorithm for job, _ in declined):
        (job, why), *others = [found for found in declined if found[0].algorithm == algorithm]
        more = f", and {len(others)} more" if others else ""
        yield f"{job}{more} was not measured: {why}"


def number(value: float) -> str:
    """Three significant digits, without an exponent, and five decimals at most."""
    digits = min(5, max(0, 2 - math.floor(math.log10(value))))
    return f"{value:.{digits}f}"


def aligned(table: str) -> str:
    """A Markdown table with columns of equal widths, for a terminal."""
    lines = [line[2:-2].split(" | ") for line in table.replace("`", "").splitlines()]
    rule = lines.pop(1) if lines else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def padded(line: list[str]) -> str:
        cells = zip(line, widths, rule, strict=True)
        return "  ".join(x.rjust(w) if r.endswith(":") else x.ljust(w) for x, w, r in cells)

    return "\n".join(padded(line).rstrip() for line in lines)
