"""The output of a run: progress, tables, means."""

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from benchmarks.gemm.means import asked
from benchmarks.pages.rows import peer_tflops
from benchmarks.suites.shapes import IN_PRECISIONS, Shape

WIDTH = 100  # columns of output that does not go to a terminal


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def text_table(title: str | Text | None, headings: list[str], left: int, rows: list) -> Table:
    """A table without lines; its first `left` columns are aligned to the left."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right")
    for cells in rows:
        table.add_row(*cells)
    return table


class Steps:
    """A progress bar on a terminal, and a plain line for each step elsewhere."""

    def __init__(self, console: Console, total: int | None):
        self._console = console
        self._total = total
        self._done = 0
        self._bar = Progress(
            BarColumn(30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            auto_refresh=False,  # a thread that draws would take time from what is timed
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def begin(self, what: str) -> None:
        self._bar.update(self._task, description=what, refresh=True)

    def finish(self, what: str) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if not self._console.is_terminal:
            line = f"[{self._done}/{self._total or '?'}] {what}"
            self._console.print(line, markup=False, soft_wrap=True)


def sentence(row: dict) -> str:
    parts = [
        f"{_number(row['us'])} us, {_number(row['tflops'])} TFLOP/s, "
        f"{row['ratio']:.2f}x {row['peer']}"
    ]
    if row["algorithm"] == "auto" and row["kernel"] != row["peer"]:
        parts[0] += f", by {row['kernel']}"
    if row["gflops_per_watt"]:
        ours, peer = row["gflops_per_watt"], row["peer_gflops_per_watt"]
        parts.append(f"{_number(ours)} GFLOP/s per watt, {ours / peer:.2f}x {row['peer']}")
    parts += [f"{name} {_number(us)} us" for name, us in (row["kernels_us"] or {}).items()]
    return "; ".join(parts)


def ran(row: dict) -> str:
    """The kernel that ran, with a star where `auto` picked it."""
    return row["kernel"] + ("*" if row["algorithm"] == "auto" else "")


def print_tables(console: Console, rows: list[dict]) -> None:
    """One table for each suite, dtype, precision and variant."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        key = (row["suite"], row["dtype"], row["precision"], row["variant"], row["peer"])
        groups.setdefault(key, []).append(row)
    for (suite, dtype, precision, variant, peer), rows in groups.items():
        title = f"{suite}: {dtype}"
        title += f", precision {precision}" if dtype in IN_PRECISIONS else ""
        title += "" if variant == "plain" else f", {variant}"
        console.print(_table(f"{title}, against {peer}", rows))
        console.print()


def kind(row: dict) -> str:
    """The precision of a float32 product, and another one's dtype; of complex64 both."""
    dtype, precision = row["dtype"], row["precision"]
    if dtype == "float32":
        return precision
    return f"{dtype} {precision}" if dtype in IN_PRECISIONS else dtype


def product(row: dict) -> str:
    """The sizes and the layout."""
    sizes = {name: row[name] for name in ("m", "n", "k", "batch", "layout")}
    return str(Shape(**sizes))


def print_summaries(console: Console, rows: list[dict]) -> None:
    """One short table for each suite, whatever the dtypes and precisions in it."""
    for suite in dict.fromkeys(row["suite"] for row in rows):
        console.print(_summary([row for row in rows if row["suite"] == suite]))
        console.print()


def _summary(rows: list[dict]) -> Table:
    peer = rows[0]["peer"]
    rate, unit = (1, "TFLOP/s") if max(row["tflops"] for row in rows) > 1 else (1e3, "GFLOP/s")
    title = Text(f"{rows[0]['suite']}: {unit} of torch_tiled and {peer}, errors against float64")
    headings = ["kind", "product", "kernel", unit, peer, "ratio", "error", "peer's\nerror"]
    lines = [
        (
            *(kind(row), product(row)),
            row["kernel"] if row["algorithm"] == "auto" else row["algorithm"],
            *(_number(row["tflops"] * rate), _number(peer_tflops(row) * rate), _ratio(row)),
            *(f"{row[error]:.1e}" if row[error] else "0" for error in ("error", "peer_error")),
        )
        for row in rows
    ]
    return text_table(title, headings, 3, lines)


def _ratio(row: dict) -> Text:
    return Text(f"{row['ratio']:.2f}", style="green" if row["ratio"] >= 1 else "")


def declinations(declined: list[tuple]) -> list[str]:
    """A sentence for each algorithm of the jobs that were not measured, with the first reason."""
    of: dict[str, list[tuple]] = {}
    for job, why in declined:
        of.setdefault(job.algorithm, []).append((job, why))
    sentences = []
    for algorithm, found in of.items():
        job, why = found[0]
        if len(found) == 1:
            sentences.append(f"{job} was not measured: {why}")
        else:
            others = f"and {len(found) - 1} more"
            sentences.append(f"{algorithm} was not measured: {job.shape} {others}: {why}")
    return sentences


def _of_copy(row: dict) -> str:
    return f"{row['copy_us'] / row['us']:.2f}" if row["copy_us"] else ""


def _memory(row: dict) -> str:
    extra = row["extra_bytes"]
    return "" if extra is None else f"{extra / row['operand_bytes']:.2f}x"


# Columns of a table in which any row has them: the part of a copy's rate, and the peak of memory
# beside operands and result, as a multiple of the operands.
OPTIONAL = {"of a\ncopy": _of_copy, "extra\nmemory": _memory}


def _table(title: str, rows: list[dict]) -> Table:
    batched = any(row["batch"] > 1 for row in rows)
    optional = {heading: of for heading, of in OPTIONAL.items() if any(map(of, rows))}
    style = {"box": None, "pad_edge": False, "collapse_padding": True}
    table = Table(title=Text(title), title_justify="left", **style)
    for heading in (*(["batch"] if batched else []), "m", "n", "k"):
        table.add_column(heading, justify="right")
    table.add_column("layout")
    table.add_column("kernel\n(* by auto)")
    headings = ("us", "spread", "TFLOP/s", "ratio", "error", "peer's\nerror", *optional)
    for heading in headings:
        table.add_column(heading, justify="right")
    before = None
    for row in rows:
        shape = tuple(row[key] for key in ("batch", "m", "n", "k", "layout"))
        sizes = shape if shape != before else ("",) * 5
        before = shape
        spread = (row["us_p90"] - row["us_p10"]) / 2 / row["us"]
        table.add_row(
            *(str(size) for size in sizes[0 if batched else 1 :]),
            ran(row),
            _number(row["us"]),
            f"±{spread:.1%}",
            _number(row["tflops"]),
            _ratio(row),
            f"{row['error']:.1e}",
            f"{row['peer_error']:.1e}",
            *(of(row) for of in optional.values()),
        )
    return table


def _number(value: float) -> str:
    """Three significant digits, without an exponent, and five decimals at most."""
    digits = min(5, max(0, 2 - math.floor(math.log10(value))))
    return f"{value:.{digits}f}"


def print_means(console: Console, means: list[dict]) -> None:
    if not means:
        return
    copied = any(mean["of_copy"] for mean in means)
    headings = ["suite", "group", "dtype", "precision", "algorithm", "rows", "ratio"]
    lines = [
        (
            *(mean[key] for key in ("suite", "group", "dtype", "precision")),
            *(asked(mean), str(mean["rows"]), f"{mean['ratio']:.2f}"),
            *([f"{mean['of_copy']:.2f}" if mean["of_copy"] else ""] if copied else []),
        )
        for mean in means
    ]
    headings += ["of a copy"] if copied else []
    console.print(text_table("geometric means of the ratio", headings, 5, lines))


def print_overheads(console: Console, rows: list[dict]) -> None:
    lines = [
        (
            *(row["call"], "forward, backward" if row["backward"] else "forward"),
            *(f"{row['us']:.2f}", f"{row['over_peer']:.2f}x"),
        )
        for row in rows
    ]
    headings = ["call", "passes", "us", "over PyTorch's"]
    console.print(text_table("host time of a call on 8x8 tensors", headings, 2, lines))
