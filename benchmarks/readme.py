"""Writes the generated blocks of the README: speed and error, and what is slower than cuBLAS."""

from pages import table
from rows import mean, select

LONG_K = 3000  # from this K on, small bfloat16 products may be slower than cuBLAS's


def _auto(measured: dict, *suites: str, **wanted) -> list[dict]:
    """Plain rows of `auto` in these suites."""
    wanted |= {"algorithm": "auto", "variant": "plain"}
    return [row for row in select(measured["rows"], **wanted) if row["suite"] in suites]


def _squares(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["m"] == row["n"] == row["k"]]


def _compared(measured: dict) -> dict[str, tuple[str, list[dict]]]:
    """For each line of the table, by its title: the operands, and the rows of the results."""
    few = [row for row in _auto(measured, "skinny", precision="fp32") if row["group"][:4] == "m = "]
    return {
        '`"fp32"`, the default': ("float32", _squares(_auto(measured, "square"))),
        '`"tf32"`': ("float32 rounded to 11 bits", _squares(_auto(measured, "tf32_square"))),
        "bfloat16": ("bfloat16", _auto(measured, "mma_square", dtype="bfloat16")),
        '`"ieee"`': ("float32", _squares(_auto(measured, "ieee"))),
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


def write_slower(measured: dict, odd: dict) -> str:
    """A list of the kinds of products that are slower than cuBLAS's."""
    items = [*_slower_sizes(odd), *_slower_groups(measured)]
    if not items:
        return "No product that was measured is slower than cuBLAS's."
    return "\n".join(["Slower than cuBLAS:", "", *(f"- {item}" for item in items)])


def _slower_sizes(odd: dict) -> list[str]:
    """Kinds of random sizes: how many products are slower, and the least ratio."""
    slower = [row for row in odd["rows"] if row["ratio"] < 1]
    single = [row for row in slower if min(row["m"], row["n"]) == 1]
    long_k = [row for row in slower if row not in single and row["k"] >= LONG_K]
    count, items = len(odd["rows"]), []
    if single:
        worst = min(single, key=lambda row: row["ratio"])
        shape = f"{worst['m']} x {worst['n']} x {worst['k']}"
        items.append(
            f"bfloat16, single rows or columns: {len(single)} of {count} random sizes, "
            f"{worst['ratio']:.2f} at worst ({shape})"
        )
    if long_k:
        least, worst = min(row["k"] for row in long_k), min(row["ratio"] for row in long_k)
        items.append(
            f"bfloat16, small products with K from {least} on: {len(long_k)} of {count}, "
            f"{worst:.2f} at worst"
        )
    return items


def _slower_groups(measured: dict) -> list[str]:
    """Groups of products of the suites whose mean ratio is below 1."""
    gradients = _auto(measured, "mma_long_k", layout="TN")
    unaligned = [row for row in _auto(measured, "mma_unaligned_rows") if row["m"] > 64]
    batches = _auto(measured, "batched", precision="fp32")
    batches = [row for row in batches if row["ratio"] < 1]
    tf32 = [row for row in _auto(measured, "tf32_square") if row["ratio"] < 1]
    items = []
    for what, found in (
        ("bfloat16, weight gradients over {least_k} tokens and more", gradients),
        ("bfloat16, rows aligned to 16 bytes, not to cache lines", unaligned),
        ("float32, batched, {least_m} to {most_m} rows", batches),
        ('`"tf32"` up to {most_m}', tf32),
    ):
        if found and (average := mean(row["ratio"] for row in found)) < 1:
            rows, k = [row["m"] for row in found], min(row["k"] for row in found)
            title = what.format(least_k=k, least_m=min(rows), most_m=max(rows))
            items.append(f"{title}: {average:.2f} on average")
    return items
