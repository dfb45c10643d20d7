"""What is printed of a survey: its regimes, its worst products, and what each kernel is worth."""

from benchmarks.gemm.report import aligned, product
from benchmarks.pages.markdown import table
from benchmarks.survey.regimes import Rows, kind, over_best, regimes, without_each

WORST = 20  # products of the printed list


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


def print_results(results: dict) -> None:
    header, rows = results["header"], results["rows"]
    tables = {
        f"{kind(header)}, seed {header['seed']}: torch's time / ours": regimes(rows),
        f"the {min(WORST, len(rows))} worst": worst(rows),
    }
    if header["beside"]:
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
