"""What is printed of a survey: its regimes, its worst products, and the fastest kernels."""

import statistics

from benchmarks.gemm.report import aligned, product
from benchmarks.pages.markdown import table
from benchmarks.survey.regimes import Rows, kind, over_best, regimes, without_each

WORST = 20  # products of the printed list
SAME = 1.02  # kernels whose times differ by less than this factor are equally fast


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


def print_results(results: dict) -> None:
    header, rows = results["header"], results["rows"]
    tables = {
        f"{kind(header)}, seed {header['seed']}: torch's time / ours": regimes(rows),
        f"the {min(WORST, len(rows))} worst": worst(rows),
    }
    if header["beside"]:
        tables["ran, and the fastest (saves)"] = picks(rows)
        tables["slower without a kernel, by"] = without_each(rows)
    for title, lines in tables.items():
        print(f"\n{title}\n{aligned(table(2, lines))}")
    empty = header["empty_us"]
    print(
        f"\nA kernel that writes one number takes {empty['alone']} us in this way of timing, and "
        f"{empty['among_many']} us among many of one graph."
    )
    if header["beside"]:
        print(
            f"auto takes {over_best(rows):.3f} times the time of the fastest kernel of its order, "
            "in the mean."
        )
