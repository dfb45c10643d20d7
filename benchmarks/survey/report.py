"""What a survey found: its regimes, its worst products, and what auto should have picked."""

import statistics
from collections.abc import Callable

from rich.table import Table

from benchmarks.pages.rows import IN_PRECISIONS
from benchmarks.suites.shapes import Shape

BELOW = (0.98, 0.95, 0.8)  # a product is called slower below the first
WORST = 20  # products of the printed list
SAME = 1.02  # kernels whose times differ by less than this factor are equally fast
TWICE = 2.0  # times of the aligned product

Rows = list[dict]


def long_single(low: int, high: int) -> Callable[[dict], bool]:
    return lambda row: (
        low <= min(row["m"], row["n"]) <= high
        and row["k"] >= 1024
        and row["batch"] == 1
        and row["peer_us"] < 50
    )


def short_batch(low: int, high: int) -> Callable[[dict], bool]:
    return lambda row: (
        low <= min(row["m"], row["n"]) <= high
        and 64 <= row["k"] < 1024
        and row["batch"] > 1
        and row["peer_us"] > 50
    )


# The regimes overlap. A side is the shorter one of C, and a time is torch's.
REGIMES: dict[str, Callable[[dict], bool]] = {
    "all": lambda row: True,
    "side of 1": lambda row: min(row["m"], row["n"]) == 1,
    "side 2-8, K 1024+, single, under 50 us": long_single(2, 8),
    "side 9-64, K 1024+, single, under 50 us": long_single(9, 64),
    "side 2-8, K 64-1023, batch, over 50 us": short_batch(2, 8),
    "side 9-64, K 64-1023, batch, over 50 us": short_batch(9, 64),
    "K below 64": lambda row: row["k"] < 64,
    "under 6 us": lambda row: row["peer_us"] < 6,
    "under 10 us": lambda row: row["peer_us"] < 10,
    "10 us or more": lambda row: row["peer_us"] >= 10,
    "over 100 us": lambda row: row["peer_us"] > 100,
    "M, N, K multiples of 4": lambda row: all(row[size] % 4 == 0 for size in "mnk"),
}
HEADINGS = ["regime", "products", "mean", *(f"below {x}" for x in BELOW), "worst"]


def regimes(rows: Rows) -> list[list[str]]:
    """The cells of a table: for each regime the ratios of torch's time to ours."""
    return [
        [name, *_cells([row["ratio"] for row in rows if holds(row)])]
        for name, holds in REGIMES.items()
    ]


def _cells(ratios: list[float]) -> list[str]:
    if not ratios:
        return ["0", *("-" for _ in HEADINGS[2:])]
    shares = (sum(ratio < limit for ratio in ratios) / len(ratios) for limit in BELOW)
    cells = [str(len(ratios)), f"{statistics.geometric_mean(ratios):.2f}"]
    return [*cells, *(f"{share:.0%}" for share in shares), f"{min(ratios):.2f}"]


def shape(row: dict) -> Shape:
    return Shape(**{name: row[name] for name in ("batch", "m", "n", "k", "layout")})


def worst(rows: Rows) -> list[list[str]]:
    """The cells of a table: the products of the least ratios."""
    return [
        [
            str(shape(row)),
            f"{row['kernel']} {row['tile'] or ''}".strip(),
            *(f"{row[time]:.1f}" for time in ("us", "peer_us")),
            f"{row['ratio']:.2f}",
            *(f"{row[error]:.0e}" for error in ("error", "peer_error")),
        ]
        for row in sorted(rows, key=lambda row: row["ratio"])[:WORST]
    ]


def timed(row: dict) -> dict[str, float]:
    """The time of the kernel that ran, and of those that were timed beside it."""
    return {kernel: us for kernel, _, us in row.get("beside", [])} | {row["kernel"]: row["us"]}


def fastest(row: dict) -> tuple[str, float]:
    """The fastest kernel that was timed and its time; the one that ran, where it is as fast."""
    name, us = min(((name, us) for name, _, us in row["beside"]), key=lambda x: x[1])
    return (row["kernel"], row["us"]) if row["us"] <= SAME * us else (name, us)


def over_best(rows: Rows) -> float:
    """The mean factor from the time of the fastest kernel to that of the one that ran."""
    return statistics.geometric_mean(row["us"] / min(timed(row).values()) for row in rows)


def picks(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table: kernels that ran, and for each how often which is fastest.

    A cell has the count of products, and the mean factor by which the fastest kernel is faster.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        name, us = fastest(row) if row["beside"] else (row["kernel"], row["us"])
        found.setdefault((row["kernel"], name), []).append(row["us"] / us)
    ran = sorted({kernel for kernel, _ in found})
    best = sorted({kernel for _, kernel in found})

    def cell(kernel: str, name: str) -> str:
        factors = found.get((kernel, name))
        if not factors:
            return ""
        saves = "" if name == kernel else f" ({statistics.geometric_mean(factors):.2f})"
        return f"{len(factors)}{saves}"

    lines = [[kernel, *(cell(kernel, name) for name in best)] for kernel in ran]
    return ["ran", *best], lines


def _table(title: str, headings: list[str], left: int, lines: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right")
    for cells in lines:
        table.add_row(*cells)
    return table


def print_results(console, results: dict) -> None:
    header, rows = results["header"], results["rows"]
    title = f"{kind(header)}, seed {header['seed']}: torch's time / ours"
    console.print(_table(title, HEADINGS, 1, regimes(rows)))
    headings, lines = (
        ["product", "kernel", "us", "torch's", "ratio", "error", "torch's"],
        worst(rows),
    )
    console.print(_table(f"\nthe {len(lines)} worst", headings, 2, lines))
    empty = header["empty_us"]
    sentences = [
        f"A kernel that writes one number takes {empty['alone']} us in this way of timing, and "
        f"{empty['among_many']} us among many of one graph."
    ]
    if header["beside"]:
        headings, lines = picks(rows)
        console.print(_table("\nran, and the fastest (saves)", headings, 1, lines))
        sentences.append(
            f"auto takes {over_best(rows):.3f} times the time of the fastest kernel of its order, "
            "in the mean."
        )
    if near := [row["us"] / row["aligned_us"] for row in rows if "aligned_us" in row]:
        sentences.append(
            f"{sum(over > TWICE for over in near)} of {len(near)} products take more than twice "
            f"the time of the next multiples of 64, {statistics.geometric_mean(near):.2f} times it "
            f"in the mean, {max(near):.2f} at most."
        )
    console.print("\n" + "\n".join(sentences), markup=False)


def kind(header: dict) -> str:
    """What products a survey is of, in Markdown."""
    name = header["dtype"]
    name += f', `"{header["precision"]}"`' if name in IN_PRECISIONS else ""
    return name + (", layers" if header["model"] else "")
