"""What a person sees: progress, tables, means."""

import math
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH = 100  # of output that does not go to a terminal


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


class Steps:
    """A progress bar on a terminal, and a plain line for each step elsewhere."""

    def __init__(self, console: Console, total: int):
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
            line = f"[{self._done}/{self._total}] {what}"
            self._console.print(line, markup=False, soft_wrap=True)


def sentence(row: dict) -> str:
    return (
        f"{_number(row['us'])} us, {_number(row['tflops'])} TFLOP/s, "
        f"{row['ratio']:.2f}x {row['peer']}"
    )


def print_tables(console: Console, results: list[tuple[str, dict]]) -> None:
    """One table for each suite, dtype and precision; `results` pairs rows with their suites."""
    groups: dict[tuple, list[dict]] = {}
    for suite, row in results:
        groups.setdefault((suite, row["dtype"], row["precision"], row["peer"]), []).append(row)
    for (suite, dtype, precision, peer), rows in groups.items():
        asked = f"{dtype}, precision {precision}" if dtype == "float32" else dtype
        console.print(_table(f"{suite}: {asked}, against {peer}", rows))
        console.print()


def _table(title: str, rows: list[dict]) -> Table:
    batched = any(row["batch"] > 1 for row in rows)
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for heading in (*(["batch"] if batched else []), "m", "n", "k"):
        table.add_column(heading, justify="right")
    table.add_column("layout")
    table.add_column("kernel")
    for heading in ("us", "spread", "TFLOP/s", "ratio", "error", "peer's error"):
        table.add_column(heading, justify="right")
    before = None
    for row in rows:
        shape = tuple(row[key] for key in ("batch", "m", "n", "k", "layout"))
        sizes = shape if shape != before else ("",) * 5
        before = shape
        spread = (row["us_p90"] - row["us_p10"]) / 2 / row["us"]
        ratio = Text(f"{row['ratio']:.2f}", style="green" if row["ratio"] >= 1 else "")
        table.add_row(
            *(str(size) for size in sizes[0 if batched else 1 :]),
            row["algorithm"],
            _number(row["us"]),
            f"±{spread:.1%}",
            _number(row["tflops"]),
            ratio,
            f"{row['error']:.1e}",
            f"{row['peer_error']:.1e}",
        )
    return table


def _number(value: float) -> str:
    """Three significant digits, without an exponent, and five decimals at most."""
    digits = min(5, max(0, 2 - math.floor(math.log10(value))))
    return f"{value:.{digits}f}"


def geometric_means(results: Iterable[tuple[str, dict]]) -> list[dict]:
    """The mean ratio to the peer of each suite, dtype, precision and algorithm."""
    groups: dict[tuple, list[float]] = {}
    for suite, row in results:
        key = (suite, row["dtype"], row["precision"], row["algorithm"])
        groups.setdefault(key, []).append(row["ratio"])
    names = ("suite", "dtype", "precision", "algorithm")
    return [
        dict(zip(names, key, strict=True))
        | {"rows": len(ratios), "ratio": math.exp(math.fsum(map(math.log, ratios)) / len(ratios))}
        for key, ratios in groups.items()
    ]


def print_means(console: Console, means: list[dict]) -> None:
    if not means:
        return
    table = Table(
        title="geometric means of the ratio", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("suite", "dtype", "precision", "kernel"):
        table.add_column(heading)
    for heading in ("rows", "ratio"):
        table.add_column(heading, justify="right")
    for mean in means:
        table.add_row(
            mean["suite"],
            mean["dtype"],
            mean["precision"],
            mean["algorithm"],
            str(mean["rows"]),
            f"{mean['ratio']:.2f}",
        )
    console.print(table)


def print_overhead(console: Console, us: dict[str, float]) -> None:
    table = Table(
        title="host time of a call on 8x8 tensors", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("call")
    for heading in ("us", "over torch.mm"):
        table.add_column(heading, justify="right")
    for name, value in us.items():
        table.add_row(name, f"{value:.2f}", f"{value / us['torch.mm']:.2f}x")
    console.print(table)
