"""The output of a run: progress, tables, means."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from benchmarks.gemm.means import asked
from benchmarks.pages.rows import peer_tflops
from benchmarks.suites.shapes import IN_PRECISIONS, Shape

WIDTH = 100  # columns of output that does not go to a terminal


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def text_table(title: str | Text | None, left: int, rows: list[dict]) -> Table:
    """A table without lines, by headings; its first `left` columns are aligned to the left.

    A column is left out if all of its cells are empty.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    shown = [heading for heading in rows[0] if any(row[heading] for row in rows)] if rows else []
    for number, heading in enumerate(shown):
        table.add_column(heading, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*(row[heading] for heading in shown))
    return table


class Steps(Progress):
    """A progress bar on a terminal, and a plain line for each step elsewhere."""

    def __init__(self, console: Console, total: int | None):
        # A thread that draws would take time from what is timed.
        super().__init__(console=console, transient=True, auto_refresh=False)
        self.disable = not console.is_terminal
        self._task = self.add_task("", total=total)

    def begin(self, what: str) -> None:
        self.update(self._task, description=escape(what), refresh=True)

    def finish(self, what: str) -> None:
        self.advance(self._task)
        (task,) = self.tasks
        if self.disable:
            line = f"[{task.completed:.0f}/{task.total or '?'}] {what}"
            self.console.print(line, markup=False, soft_wrap=True)


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


def print_tables(console: Console, rows: list[dict]) -> None:
    """One table for each suite, dtype, precision and variant."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        title = f"{row['suite']}: {row['dtype']}"
        title += f", precision {row['precision']}" if row["dtype"] in IN_PRECISIONS else ""
        title += "" if row["variant"] == "plain" else f", {row['variant']}"
        groups.setdefault(f"{title}, against {row['peer']}", []).append(row)
    for title, group in groups.items():
        is_batched = any(row["batch"] > 1 for row in group)
        lines, before = [], None
        for row in group:
            shape = {name: str(row[name]) for name in ("layout", "batch", "m", "n", "k")}
            shape["batch"] *= is_batched
            extra = row["extra_bytes"]
            line = {
                "kernel\n(* by auto)": row["kernel"] + "*" * (row["algorithm"] == "auto"),
                **(dict.fromkeys(shape, "") if shape == before else shape),
                "us": number(row["us"]),
                "spread": f"±{(row['us_p90'] - row['us_p10']) / 2 / row['us']:.1%}",
                "TFLOP/s": number(row["tflops"]),
                "ratio": _ratio(row),
                "error": f"{row['error']:.1e}",
                "peer's\nerror": f"{row['peer_error']:.1e}",
                # A part of a copy's rate, and the peak of memory beside operands and result.
                "of a\ncopy": f"{row['copy_us'] / row['us']:.2f}" if row["copy_us"] else "",
                "extra\nmemory": "" if extra is None else f"{extra / row['operand_bytes']:.2f}x",
            }
            lines.append(line)
            before = shape
        table = text_table(Text(title), 2, lines)
        table.collapse_padding = True
        console.print(table)
        console.print()


def print_summaries(console: Console, rows: list[dict]) -> None:
    """One short table for each suite, whatever the dtypes and precisions in it."""
    for suite in dict.fromkeys(row["suite"] for row in rows):
        some = [row for row in rows if row["suite"] == suite]
        peer = some[0]["peer"]
        rate, unit = (1, "TFLOP/s") if max(row["tflops"] for row in some) > 1 else (1e3, "GFLOP/s")
        title = Text(f"{suite}: {unit} of torch_tiled and {peer}, errors against float64")
        lines = [
            {
                "kind": kind(row),
                "product": str(product(row)),
                "kernel": row["kernel"] if row["algorithm"] == "auto" else row["algorithm"],
                unit: number(row["tflops"] * rate),
                peer: number(peer_tflops(row) * rate),
                "ratio": _ratio(row),
                "error": f"{row['error']:.1e}" if row["error"] else "0",
                "peer's\nerror": f"{row['peer_error']:.1e}" if row["peer_error"] else "0",
            }
            for row in some
        ]
        console.print(text_table(title, 3, lines))
        console.print()


def _ratio(row: dict) -> Text:
    return Text(f"{row['ratio']:.2f}", style="green" if row["ratio"] >= 1 else "")


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


def print_means(console: Console, means: list[dict]) -> None:
    lines = [
        {
            **{key: mean[key] for key in ("suite", "group", "dtype", "precision")},
            "algorithm": asked(mean),
            "rows": str(mean["rows"]),
            "ratio": f"{mean['ratio']:.2f}",
            "of a copy": f"{mean['of_copy']:.2f}" if mean["of_copy"] else "",
        }
        for mean in means
    ]
    if lines:
        console.print(text_table("geometric means of the ratio", 5, lines))
