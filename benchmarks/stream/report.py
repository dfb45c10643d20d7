"""What benchmarks.stream prints: a sentence for each row, and tables at the end."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.gemm.report import text_table
from benchmarks.pages.markdown import figure


def sentence(row: dict) -> str:
    """What a row found, or what was planned."""
    if row["way"] == "link":
        name = f"link {row['direction']}"
        return f"{name} {row['failure'] or figure(row['gb_per_second']) + ' GB/s'}"
    if row["failure"]:
        return f"{row['way']} failed: {row['failure']}"
    parts = [row["way"]]
    if row["seconds"]:
        parts[0] += f" {figure(row['seconds'])} s, {figure(row['tflops'])} TFLOP/s"
    if row["ratio"]:
        parts.append(f"{row['ratio']:.2f}x {row['ratio_to']}")
    if row["plan"]:
        plan = row["plan"]
        tile = "x".join(map(str, plan["tile"]))
        parts.append(
            f"predicted {figure(plan['seconds'])} s by tiles of {tile}, kept {plan['kept']}"
        )
    if row["error"] is not None:
        parts.append(f"error {row['error']:.1e}")
    if row["equal"] is not None:
        parts.append("equal" if row["equal"] else "NOT EQUAL to in_core")
    return ", ".join(parts)


def _gib(value: int | None) -> str:
    return figure(value and value / 2**30)


def _products(rows: list[dict]) -> Table:
    lines = []
    for row in sorted(rows, key=lambda row: (row["dtype"], row["size"])):
        plan = row["plan"] or {}
        equal = {True: "yes", False: "NO", None: ""}[row["equal"]]
        lines.append(
            {
                "way": row["way"],
                "dtype": row["dtype"],
                "m = n = k": str(row["size"]),
                "s": figure(row["seconds"]),
                "planned": figure(plan.get("seconds")),
                "TFLOP/s": figure(row["tflops"]),
                "ratio": figure(row["ratio"], ".2f"),
                "error": figure(row["error"], ".1e"),
                "peak\nGiB": _gib(row["peak_bytes"]),
                "planned\nGiB": _gib(plan.get("device_bytes")),
                "equal": Text(equal, style="" if row["equal"] in (True, None) else "red"),
            }
        )
    return text_table("products", 2, lines)


def _links(rows: list[dict]) -> Table:
    lines = [{"direction": x["direction"], "GB/s": figure(x["gb_per_second"])} for x in rows]
    return text_table("copies", 1, lines)


def print_results(console: Console, results: dict) -> None:
    """The tables, and a line for each failure."""
    links = [row for row in results["rows"] if row["way"] == "link"]
    products = [row for row in results["rows"] if row["way"] != "link"]
    if products:
        console.print(_products(products))
    if links:
        console.print(_links(links))
    for row in results["rows"]:
        if row["failure"]:
            what = row["direction"] if row["way"] == "link" else f"{row['dtype']} {row['size']}"
            text = f"{row['way']} {what} failed: {row['failure']}"
            console.print(text, markup=False, soft_wrap=True)
