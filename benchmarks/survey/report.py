"""What is printed of a survey: its regimes, its worst products, and the fastest kernels."""

import statistics

from benchmarks.gemm.report import text_table
from benchmarks.suites.shapes import Shape
from benchmarks.survey.regimes import (
    HEADINGS,
    WITHOUT,
    Rows,
    kind,
    over_best,
    regimes,
    without_each,
)

WORST = 20  # products of the printed list
SAME = 1.02  # kernels whose times differ by less than this factor are equally fast
TWICE = 2.0  # times of the aligned product


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


def fastest(row: dict) -> tuple[str, float]:
    """The fastest kernel that was timed and its time; the one that ran, where it is as fast."""
    name, us = min(((name, us) for name, _, us in row["beside"]), key=lambda x: x[1])
    return (row["kernel"], row["us"]) if row["us"] <= SAME * us else (name, us)


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


def print_results(console, results: dict) -> None:
    header, rows = results["header"], results["rows"]
    title = f"{kind(header)}, seed {header['seed']}: torch's time / ours"
    console.print(text_table(title, HEADINGS, 1, regimes(rows)))
    headings, lines = (
        ["product", "kernel", "us", "torch's", "ratio", "error", "torch's"],
        worst(rows),
    )
    console.print(text_table(f"\nthe {len(lines)} worst", headings, 2, lines))
    empty = header["empty_us"]
    sentences = [
        f"A kernel that writes one number takes {empty['alone']} us in this way of timing, and "
        f"{empty['among_many']} us among many of one graph."
    ]
    if header["beside"]:
        headings, lines = picks(rows)
        console.print(text_table("\nran, and the fastest (saves)", headings, 1, lines))
        console.print(text_table("\nslower without a kernel, by", WITHOUT, 1, without_each(rows)))
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
