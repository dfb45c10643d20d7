"""What benchmarks.stream prints: a sentence for each row, and tables at the end."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.gemm.report import text_table

NO_TEXT = "-"


def _figure(value: float | None, form: str = ".3g") -> str:
    return NO_TEXT if value is None else f"{value:{form}}"


def sentence(row: dict) -> str:
    """What a row found, or what was planned."""
    if row["way"] == "link":
        name = f"link {row['direction']}"
        return f"{name} {row['failure'] or _figure(row['gb_per_second']) + ' GB/s'}"
    if row["failure"]:
        return f"{row['way']} failed: {row['failure']}"
    parts = [row["way"]]
    if row["seconds"]:
        parts[0] += f" {_figure(row['seconds'])} s, {_figure(row['tflops'])} TFLOP/s"
    if row["ratio"]:
        parts.append(f"{row['ratio']:.2f}x {row['ratio_to']}")
    if row["plan"]:
        plan = row["plan"]
        tile = "x".join(map(str, plan["tile"]))
        parts.append(
            f"predicted {_figure(plan['seconds'])} s by tiles of {tile}, kept {plan['kept']}"
        )
    if row["error"] is not None:
        parts.append(f"error {row['error']:.1e}")
    if row["equal"] is not None:
        parts.append("equal" if row["equal"] else "NOT EQUAL to in_core")
    return ", ".join(parts)


def _gib(value: int | None) -> str:
    return NO_TEXT if value is None else f"{value / 2**30:.3g}"


def _products(rows: list[dict]) -> Table:
    headings = ["way", "dtype", "m = n = k", "s", "planned", "TFLOP/s", "ratio", "error"]
    headings += ["peak\nGiB", "planned\nGiB", "equal"]
    lines = []
    for row in sorted(rows, key=lambda row: (row["dtype"], row["size"])):
        plan = row["plan"] or {}
        equal = {True: "yes", False: "NO", None: ""}[row["equal"]]
        lines.append(
            (
                *(row["way"], row["dtype"], str(row["size"])),
                *(_figure(row["seconds"]), _figure(plan.get("seconds")), _figure(row["tflops"])),
                *(_figure(row["ratio"], ".2f"), _figure(row["error"], ".1e")),
                *(_gib(row["peak_bytes"]), _gib(plan.get("device_bytes"))),
                Text(equal, style="" if row["equal"] in (True, None) else "red"),
            )
        )
    return text_table("products", headings, 2, lines)


def _links(rows: list[dict]) -> Table:
    lines = [(row["direction"], _figure(row["gb_per_second"])) for row in rows]
    return text_table("copies", ["direction", "GB/s"], 1, lines)


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
