"""The generated blocks of the README: how fast, how exact, and where it is slower."""

from pages import table
from rows import mean, select

LONG_K = 3000  # with this K and few tiles, bfloat16 products are slower than cuBLAS's


def _auto(measured: dict, *suites: str, **wanted) -> list[dict]:
    """Plain rows of `auto` in these suites."""
    wanted |= {"algorithm": "auto", "variant": "plain"}
    return [row for row in select(measured["rows"], **wanted) if row["suite"] in suites]


def _squares(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["m"] == row["n"] == row["k"]]


def _compared(measured: dict) -> dict[str, tuple[str, list[dict]]]:
    """The operands and the rows of each line of the table."""
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
    for name, (what, rows) in _compared(measured).items():
        if not rows:
            lines.append([name, what, *"----"])
            continue
        ratios = [row["ratio"] for row in rows]
        lines.append(
            [
                name,
                f"{what}, {_sizes(rows)}",
                f"{max(row['tflops'] for row in rows):.0f}",
                f"**{mean(ratios):.2f}**",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{mean(row['error'] / row['peer_error'] for row in rows):.2f}",
            ]
        )
    headings = ["precision", "operands", "best TFLOP/s", "speed / cuBLAS's", "range"]
    return table([*headings, "error / cuBLAS's"], 2, lines)


def write_slower(measured: dict, odd: dict) -> str:
    """A list of the products that are slower than cuBLAS's, by the results and a survey."""
    told = [*_slower_sizes(odd), *_slower_groups(measured)]
    if not told:
        return "No product that was measured is slower than cuBLAS's."
    return "\n".join(["Slower than cuBLAS:", "", *(f"- {each}" for each in told)])


def _slower_sizes(odd: dict) -> list[str]:
    """Kinds of random products: how many are slower, and by how much at worst."""
    slower = [row for row in odd["rows"] if row["ratio"] < 1]
    single = [row for row in slower if min(row["m"], row["n"]) == 1]
    long_k = [row for row in slower if row not in single and row["k"] >= LONG_K]
    count, told = len(odd["rows"]), []
    if single:
        worst = min(single, key=lambda row: row["ratio"])
        shape = f"{worst['m']} x {worst['n']} x {worst['k']}"
        told.append(
            f"single bfloat16 rows or columns: {len(single)} of {count} random sizes, "
            f"{worst['ratio']:.2f} at worst, {shape}"
        )
    if long_k:
        least, worst = min(row["k"] for row in long_k), min(row["ratio"] for row in long_k)
        told.append(
            f"small bfloat16 products with K from {least} on: {len(long_k)} of them, "
            f"{worst:.2f} at worst"
        )
    return told


def _slower_groups(measured: dict) -> list[str]:
    """Groups of the suites that are slower in the mean."""
    gradients = _auto(measured, "mma_long_k", layout="TN")
    part_lines = [row for row in _auto(measured, "mma_unaligned_rows") if row["m"] > 64]
    batches = _auto(measured, "batched", precision="fp32")
    batches = [row for row in batches if row["ratio"] < 1]
    tf32 = [row for row in _auto(measured, "tf32_square") if row["ratio"] < 1]
    told = []
    for what, found in (
        ("bfloat16 weight gradients over {k} tokens and more", gradients),
        ("bfloat16 operands whose rows are not whole cache lines", part_lines),
        ("float32 batches with K from {k} on", batches),
        ('`"tf32"` up to {m}', tf32),
    ):
        if found and (average := mean(row["ratio"] for row in found)) < 1:
            said = what.format(k=min(row["k"] for row in found), m=max(row["m"] for row in found))
            told.append(f"{said}: {average:.2f} on average")
    return told
