"""Writes docs/kernels/results.md, and the site's pages that have every row of the results."""

import re

from benchmarks.gemm.means import MEAN_OF, asked
from benchmarks.gemm.report import kind
from benchmarks.pages.markdown import figure, measured_on, table
from benchmarks.pages.rows import mean_and_spread, select, spread
from benchmarks.suites.suites import SUITES

# A page for each kind of product: its title, and the dtypes and the precision of its rows.
FAMILIES = {
    "results_fp32": ('float32, `"fp32"`', ("float32",), "fp32"),
    "results_ieee": ('float32, `"ieee"`', ("float32",), "ieee"),
    "results_tf32": ('float32, `"tf32"`', ("float32",), "tf32"),
    "results_16bit": ("bfloat16 and float16", ("bfloat16", "float16"), "fp32"),
}
MEANS_PAGE = "results_means"
# What the names of rows of benchmarks.suites.layers lose, so that rows of one kind share a line.
MERGED = {
    "mixed": r" [NT]{2}$|(?<=x 256) x \d+$",  # the layout; K of a router
    "pointwise": r" x \d+ x \d+, \w+$",  # the size of the image, and the memory format
    "grouped": r", (equal|Zipf), [NT]{2}$",
    "attention": r"^[\dx ]+, ",  # the shape
    "decode": r"^.* of \d+ x \d+, ",  # the same
}
SOURCE = "[hopper.json](../../benchmarks/results/hopper.json)"
INTRO = f"""# Results

[benchmarks.pages](../../benchmarks/pages/__main__.py) writes this page.

Each product of the [suites](../../benchmarks/suites/suites.py) is timed alternately with its peer,
PyTorch's product of the same operands. If a name does not say otherwise, operands are random normal
numbers. They are not in L2. Results are [compared](../../benchmarks/gemm/check.py) with float64.

[Limits](../guide/limits.md) has the means of `auto` by kind of product, and {SOURCE} every row. The
site's pages *Results, fp32* to *Results, 16-bit floats* show the rows with their kernels and tiles,
and *Results, means* the means of each suite, of `auto` and of every kernel by name."""
COLUMNS = """\
| column | meaning |
| --- | --- |
| algorithm | what the call named: `auto`, a family or a kernel; then a variant, if any |
| kernel, tile | what ran |
| us | median time of a call: copies or splits of operands, product, recompute, epilogue |
| ratio | the peer's time divided by ours; above 1, torch_tiled is faster |
| of a copy | the time of a copy that moves as many bytes, divided by ours |
| error | relative Frobenius error against float64 |"""


def write_about(measured: dict) -> str:
    """The part of docs/kernels/results.md on the products, by benchmarks.gemm."""
    header = measured["header"]
    command = f"```sh\npython -m benchmarks.gemm {_options(header)}\n```"
    return "\n\n".join([INTRO, f"{measured_on(header)} with:", command]) + "\n"


def write_rows(measured: dict) -> dict[str, str]:
    """The text of each page of the site, by its name."""
    header = measured["header"]
    device, table = f"{measured_on(header)}.", means(header["geometric_means"], measured["rows"])
    pages = {MEANS_PAGE: f"# Results, means\n\n{device}\n\n{table}\n"}
    for name, (title, dtypes, precision) in FAMILIES.items():
        rows = [
            row
            for dtype in dtypes
            for row in measured["rows"]
            if row["dtype"] == dtype and row["precision"] == precision
        ]
        parts = [f"# Results: {title}", f"{device} The rows are those of {SOURCE}."]
        pages[name] = "\n\n".join([*parts, COLUMNS, *_suites(rows)]) + "\n"
    return pages


def _options(header: dict) -> str:
    """The options of the command line that measured the results."""
    _, dashes, options = header["command_line"].partition(" --")
    return f"{dashes}{options}".strip()


def tables(rows: list[dict]) -> list[tuple[str, list[dict]]]:
    """The rows of each table with its title: by suite, kind of product and variant."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        is_summary = row["suite"] in SUITES and SUITES[row["suite"]].summary
        what = "" if is_summary else kind(row)
        groups.setdefault((row["suite"], what, row["variant"]), []).append(row)
    has_kinds = len({kind(row) for row in rows}) > 1
    found = []
    for (suite, what, variant), some in groups.items():
        variant = "" if variant == "plain" else f"variant {variant}"
        found.append((", ".join(filter(None, (suite, has_kinds * what, variant))), some))
    return found


def _suites(rows: list[dict]) -> list[str]:
    """A heading and a table for each suite, dtype and variant."""
    parts = []
    for title, found in tables(rows):
        about = f"The peer is {found[0]['peer']}."
        if found[0]["suite"] in SUITES:
            description = SUITES[found[0]["suite"]].description
            about = f"{description[0].upper()}{description[1:]}. {about}"
        parts += [f"## {title}", about, table_of(found)]
    return parts


def table_of(rows: list[dict]) -> str:
    has_kinds = len({kind(row) for row in rows}) > 1
    batched = any(row["batch"] > 1 for row in rows)
    copied = any(row["copy_us"] for row in rows)
    powered = any(row["gflops_per_watt"] for row in rows)
    lines = []
    for row in rows:
        line = ({"kind": kind(row)} if has_kinds else {}) | {"layout": row["layout"]}
        line |= {name: f"`{row[name]}`" for name in ("algorithm", "kernel")}
        line["tile"] = row["tile"] or "-"
        line |= {name: row[name] for name in (*(["batch"] if batched else []), "m", "n", "k")}
        line |= {"us": f"{row['us']:.1f}", "TFLOP/s": float(row["tflops"])}
        line["ratio"] = f"{row['ratio']:.2f}"
        if copied:
            line["of a copy"] = figure(row["copy_us"] and row["copy_us"] / row["us"], ".2f")
        line |= {"error": f"{row['error']:.1e}", "peer's error": f"{row['peer_error']:.1e}"}
        if powered:
            line["GFLOP/s per watt"] = figure(row["gflops_per_watt"], ".0f")
            line["peer's"] = figure(row["peer_gflops_per_watt"], ".0f")
        lines.append(line)
    return table(4 + has_kinds, lines)


def means(found: list[dict], rows: list[dict]) -> str:
    """A table of geometric means of every algorithm, with the kernels that ran."""
    lines = [
        {
            **{key: mean[key] for key in ("suite", "group", "dtype", "precision")},
            "algorithm": asked(mean),
            "kernels that ran": _kernels(rows, mean),
            "products": mean["rows"],
            "ratio": f"{mean['ratio']:.2f}",
            "of a copy": figure(mean["of_copy"], ".2f"),
        }
        for mean in found
    ]
    return table(6, lines)


def _kernels(rows: list[dict], mean: dict) -> str:
    """The kernels of the rows that a mean is over, the most frequent first."""
    wanted = {key: mean[key] for key in MEAN_OF if key != "group" or mean["group"]}
    ran = [row["kernel"] for row in rows if wanted.items() <= row.items()]
    names = sorted(dict.fromkeys(ran), key=ran.count, reverse=True)
    return ", ".join(name if len(names) == 1 else f"{name} {ran.count(name)}" for name in names)


def write_layers(measured: dict, suite: str) -> str:
    """A table of a suite of benchmarks.suites.layers: a line for the rows of one kind."""
    kinds: dict[str, list[dict]] = {}
    for row in select(measured["rows"], suite=suite):
        kinds.setdefault(re.sub(MERGED[suite], "", row["what"]), []).append(row)
    lines = []
    for what, rows in kinds.items():
        line = {"product": what, "rows": len(rows)}
        line["TFLOP/s"] = spread([row["tflops"] for row in rows], ".3g")
        line["ratio"] = mean_and_spread(rows)
        for name, field in (("error", "error"), ("PyTorch's", "peer_error")):
            line[name] = figure(max(row.get(field, 0) for row in rows) or None, ".1e")
        lines.append(line)
    return table(1, lines)


def write_host(measured: dict) -> str:
    """The part of docs/kernels/results.md on the host's time, by benchmarks.suites.host."""
    lines: dict[tuple, dict[str, str]] = {}
    for row in measured["rows"]:
        line = lines.setdefault((row["size"], row["call"], row["peer"]), {})
        line[row["dtype"]] = f"{row['us']:.1f} ({row['ratio']:.2f})"
    dtypes = dict.fromkeys(row["dtype"] for row in measured["rows"])
    several, one = [], []
    for (size, call, peer), times in lines.items():
        named = {"call": f"`{call}`", "beside": f"`{peer}`"}
        if len(times) > 1:
            several.append(named | {"size": size} | dict.fromkeys(dtypes, "-") | times)
        else:
            one.append(named | times)
    return "\n\n".join(
        [
            "## Host time",
            "The host's time of a call on squares of a size, in us, launches included: the least "
            "of many turns, and in brackets its peer's time over it. "
            f"{measured_on(measured['header'])} by `python -m benchmarks.suites.host`.",
            table(2, several),
            table(2, one),
        ]
    )
