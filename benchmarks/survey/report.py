"""What is printed of a survey: its regimes, its worst products, and the fastest kernels."""

import statistics

from benchmarks.gemm.report import product, text_table
from benchmarks.survey.regimes import Rows, kind, over_best, regimes, without_each

WORST = 20  # products of the printed list
SAME = 1.02  # kernels whose times differ by less than this factor are equally fast
TWICE = 2.0  # times of the aligned product


def worst(rows: Rows) -> list[dict[str, str]]:
    """The lines of a table: the products of the least ratios."""
    return [
        {
            "product": str(product(row)),
            "kernel": f"{row['kernel']} {row['tile'] or ''}".strip(),
            "us": f"{row['us']:.1f}",
            "torch's": f"{row['peer_us']:.1f}",
            "ratio": f"{row['ratio']:.2f}",
            "error": f"{row['error']:.0e}",
            "torch's error": f"{row['peer_error']:.0e}",
        }
        for row in sorted(rows, key=lambda row: row["ratio"])[:WORST]
    ]


def fastest(row: dict) -> tuple[str, float]:
    """The fastest kernel that was timed and its time; the one that ran, if it is as fast."""
    name, us = min(((name, us) for name, _, us in row["beside"]), key=lambda x: x[1])
    return (row["kernel"], row["us"]) if row["us"] <= SAME * us else (name, us)


def picks(rows: Rows) -> list[dict[str, str]]:
    """The lines of a table: kernels that ran, and for each how often which is fastest.

    A cell has the count of products, and the mean factor by which the fastest kernel is faster.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        name, us = fastest(row) if row["beside"] else (row["kernel"], row["us"])
        found.setdefault((row["kernel"], name), []).append(row["us"] / us)

    def cell(kernel: str, name: str) -> str:
        if (kernel, name) not in found:
            return ""
        factors = found[kernel, name]
        saves = "" if name == kernel else f" ({statistics.geometric_mean(factors):.2f})"
        return f"{len(factors)}{saves}"

    best = sorted({kernel for _, kernel in found})
    return [
        {"ran": kernel, **{name: cell(kernel, name) for name in best}}
        for kernel in sorted({kernel for kernel, _ in found})
    ]


def print_results(console, results: dict) -> None:
    header, rows = results["header"], results["rows"]
    title = f"{kind(header)}, seed {header['seed']}: torch's time / ours"
    console.print(text_table(title, 1, regimes(rows)))
    lines = worst(rows)
    console.print(text_table(f"\nthe {len(lines)} worst", 2, lines))
    empty = header["empty_us"]
    sentences = [
        f"A kernel that writes one number takes {empty['alone']} us in this way of timing, and "
        f"{empty['among_many']} us among many of one graph."
    ]
    if header["beside"]:
        console.print(text_table("\nran, and the fastest (saves)", 1, picks(rows)))
        console.print(text_table("\nslower without a kernel, by", 1, without_each(rows)))
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
