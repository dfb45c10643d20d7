"""Writes the generated blocks of the README: speed and error, and what is slower than cuBLAS."""

import itertools

from benchmarks.pages.limits import FEW_ROWS, auto, few_rows, small_batches, squares
from benchmarks.pages.markdown import table
from benchmarks.pages.rows import mean
from benchmarks.survey import report as survey_report


def _compared(measured: dict) -> dict[str, tuple[str, list[dict]]]:
    """For each line of the table, by its title: the operands, and the rows of the results."""
    few = [row for row in auto(measured, "skinny", precision="fp32") if row["group"][:4] == "m = "]
    return {
        '`"fp32"`, the default': ("float32", squares(auto(measured, "square"))),
        '`"tf32"`': ("float32 rounded to 11 bits", squares(auto(measured, "tf32_square"))),
        "bfloat16": ("bfloat16", auto(measured, "mma_square", dtype="bfloat16")),
        '`"ieee"`': ("float32", squares(auto(measured, "ieee"))),
        '`"fp32"`, skinny': ("float32", few),
    }


def _sizes(rows: list[dict]) -> str:
    """The sizes of squares, or the numbers of rows of skinny products."""
    m, n = ([row[side] for row in rows] for side in ("m", "n"))
    if m == n:
        return f"squares, {min(m)} to {max(m)}"
    return f"{min(m)} to {max(m)} rows"


def write_table(measured: dict) -> str:
    """The speed and the error of each kind of product, relative to cuBLAS's of that kind."""
    lines = []
    for name, (operands, rows) in _compared(measured).items():
        if not rows:
            lines.append([name, operands, *"----"])
            continue
        ratios = [row["ratio"] for row in rows]
        lines.append(
            [
                name,
                f"{operands}, {_sizes(rows)}",
                f"{max(row['tflops'] for row in rows):.0f}",
                f"**{mean(ratios):.2f}**",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{mean(row['error'] / row['peer_error'] for row in rows):.2f}",
            ]
        )
    headings = ["precision", "operands", "best TFLOP/s", "speed / cuBLAS's", "range"]
    return table([*headings, "error / cuBLAS's"], 2, lines)


def write_slower(measured: dict, surveys: dict[str, dict]) -> str:
    """A list of the kinds of products that are slower than cuBLAS's; of random ones how many."""
    items = [*_random_products(surveys), *_slower_groups(measured)]
    if not items:
        return "No product that was measured is slower than cuBLAS's."
    heading = "Slower than cuBLAS (mean of speed / cuBLAS's):"
    return "\n".join([heading, "", *(f"- {item}" for item in items)])


def _random_products(surveys: dict[str, dict]) -> list[str]:
    """The share of random products that are slower, and the mean of those with a side of 1."""
    shares = []
    for kind, found in itertools.groupby(
        surveys.values(), lambda survey: survey_report.kind(survey["header"])
    ):
        rows, gpus = [], set()
        for survey in found:
            rows += survey["rows"]
            gpus.add(survey["header"]["device"].removeprefix("NVIDIA ").split()[0])
        share = sum(row["ratio"] < 1 for row in rows) / len(rows)
        thin = [row["ratio"] for row in rows if min(row["m"], row["n"]) == 1]
        in_brackets = ([f"{mean(thin):.2f}"] if thin else []) + sorted(gpus)
        shares.append(f"{kind.removeprefix('float32, ')} {share:.0%} ({', '.join(in_brackets)})")
    if not shares:
        return []
    return [
        "[random sizes](docs/kernels/random.md), slower (mean with a side of 1, GPU): "
        + ", ".join(shares)
    ]


def _slower_groups(measured: dict) -> list[str]:
    """Groups of products of the suites whose mean ratio is below 1."""
    unaligned = [row for row in auto(measured, "mma_unaligned_rows") if row["m"] > FEW_ROWS]
    batches = auto(measured, "batched", precision="fp32")
    tf32 = squares(auto(measured, "tf32_square", "tf32_kernels", precision="tf32"))
    groups = {
        "bfloat16, weight gradients over {k} tokens and more": auto(
            measured, "mma_long_k", layout="TN"
        ),
        "bfloat16, rows aligned to 16 bytes, not to cache lines": unaligned,
        '`"fp32"`, batches, sides of 64 to 128': small_batches(batches, 64, 128),
        '`"fp32"`, every element recomputed': auto(
            measured, "guard", precision="fp32", variant="flagged"
        ),
        '`"ieee"`, 64 and 128 rows': few_rows(auto(measured, "skinny", precision="ieee"), 64, 128),
        '`"ieee"`, odd sizes': auto(measured, "ieee", group="odd sizes"),
        '`"tf32"`, {k} to {m}': [row for row in tf32 if row["ratio"] < 1],
    }
    items = []
    for title, rows in groups.items():
        if rows and (average := mean(row["ratio"] for row in rows)) < 1:
            sizes = {"k": min(row["k"] for row in rows), "m": max(row["m"] for row in rows)}
            items.append(f"{title.format(**sizes)}: {average:.2f}")
    return items
