"""Writes docs/kernels/results*.md: a table with every row of the results, and their means."""

from benchmarks.gemm import report
from benchmarks.pages.markdown import figure, measured_on, table
from benchmarks.pages.rows import select
from benchmarks.suites.suites import SUITES

# A page for each kind of product: its title, and the dtypes and the precision of its rows.
FAMILIES = {
    "results_fp32": ('Results: float32, `"fp32"`', ("float32",), "fp32"),
    "results_ieee": ('Results: float32, `"ieee"`', ("float32",), "ieee"),
    "results_tf32": ('Results: float32, `"tf32"`', ("float32",), "tf32"),
    "results_16bit": ("Results: bfloat16 and float16", ("bfloat16", "float16"), "fp32"),
}
WRITTEN = (
    "This page is written by [benchmarks.pages](../../benchmarks/pages/__main__.py) from "
    "[benchmarks/results](../../benchmarks/results/hopper.json)."
)
INTRO = f"""# Results

{WRITTEN}

Each product is timed alternately with its peer, PyTorch's product of the same operands. Where a
heading does not say otherwise, operands are random normal numbers. They are not in L2. A result is
compared with float64 before its time is reported ([check.py](../../benchmarks/gemm/check.py)).
[suites.py](../../benchmarks/suites/suites.py) lists the products.

| column | meaning |
| --- | --- |
| algorithm | what the call named: `auto`, a family or a kernel; then a variant, if any |
| kernel, tile | what ran |
| us | median time of a call: copies or splits of operands, product, recompute, epilogue |
| ratio | the peer's time divided by ours; above 1, torch_tiled is faster |
| of a copy | the time of a copy that moves as many bytes, divided by ours |
| error | relative Frobenius error against float64 |"""
MEANS = (
    "Means of the ratio and of the column *of a copy*, for each suite and for each group of "
    "products in it."
)
SURVEYS = """\
## Random sizes

[Random products](random.md) have sizes, layouts and batches of every kind. Here are products of odd
sizes and of multiples of 8, cuBLAS's products of the same sizes, and the *aligned* products, whose
sizes are the next multiples of 64 ([benchmarks.survey](../../benchmarks/survey/__main__.py),
`--aligned`):"""


def write_pages(measured: dict, surveys: dict[str, dict]) -> dict[str, str]:
    """The text of each page, by its name."""
    pages = {"results": _summary(measured, surveys)}
    for name, (title, dtypes, precision) in FAMILIES.items():
        rows = [
            row
            for dtype in dtypes
            for row in select(measured["rows"], dtype=dtype, precision=precision)
        ]
        parts = [f"# {title}", f"{WRITTEN} [Results](results.md) explains the columns."]
        parts += [f"{measured_on(measured['header'])}.", *_suites(rows)]
        pages[name] = "\n\n".join(parts) + "\n"
    return pages


def _summary(measured: dict, surveys: dict[str, dict]) -> str:
    header = measured["header"]
    parts = [
        INTRO,
        f"{measured_on(header)} with:",
        f"```sh\npython -m benchmarks.gemm {_options(header)}\n```",
        "The rows, by kind of product:",
        "\n".join(
            f"- [{title.removeprefix('Results: ')}]({name}.md)"
            for name, (title, *_) in FAMILIES.items()
        ),
        "## Geometric means",
        MEANS,
        _means(measured),
    ]
    if header.get("overheads"):
        parts += ["## Host time", _overheads(header["overheads"])]
    if surveys:
        parts += [SURVEYS, _surveys(surveys)]
    return "\n\n".join(parts) + "\n"


def _options(header: dict) -> str:
    """The options of the command line that measured the results."""
    _, dashes, options = header["command_line"].partition(" --")
    return f"{dashes}{options}".strip()


def _suites(rows: list[dict]) -> list[str]:
    """A heading and a table for each suite, dtype and variant."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["suite"], row["dtype"], row["variant"]), []).append(row)
    dtypes = {row["dtype"] for row in rows}
    parts = []
    for (suite, dtype, variant), found in groups.items():
        title = f"## {suite}"
        title += f", {dtype}" if len(dtypes) > 1 else ""
        title += "" if variant == "plain" else f", variant {variant}"
        about = f"The peer is {found[0]['peer']}."
        if suite in SUITES:
            description = SUITES[suite].description
            about = f"{description[0].upper()}{description[1:]}. {about}"
        parts += [title, about, _rows(found)]
    return parts


def _rows(rows: list[dict]) -> str:
    batched = any(row["batch"] > 1 for row in rows)
    copied = any(row["copy_us"] for row in rows)
    powered = any(row["gflops_per_watt"] for row in rows)
    headings = ["layout", "algorithm", "kernel", "tile", *(["batch"] if batched else [])]
    headings += ["m", "n", "k", "us", "TFLOP/s", "ratio", *(["of a copy"] if copied else [])]
    headings += ["error", "peer's error"]
    headings += ["GFLOP/s per watt", "peer's"] if powered else []
    lines = []
    for row in rows:
        cells = [row["layout"], f"`{row['algorithm']}`", f"`{row['kernel']}`", row["tile"] or "-"]
        cells += [str(row["batch"])] if batched else []
        cells += [str(row[size]) for size in ("m", "n", "k")]
        cells += [f"{row['us']:.1f}", f"{row['tflops']:.3g}", f"{row['ratio']:.2f}"]
        copy_us = row["copy_us"]
        cells += [figure(copy_us / row["us"] if copy_us else None, ".2f")] if copied else []
        cells += [f"{row['error']:.1e}", f"{row['peer_error']:.1e}"]
        watts = (row["gflops_per_watt"], row["peer_gflops_per_watt"])
        cells += [figure(each, ".0f") for each in watts] if powered else []
        lines.append(cells)
    return table(headings, 4, lines)


def _means(measured: dict) -> str:
    means = measured["header"]["geometric_means"]
    copied = any(mean["of_copy"] for mean in means)
    headings = ["suite", "group", "dtype", "precision", "algorithm", "kernels that ran"]
    headings += ["products", "ratio", *(["of a copy"] if copied else [])]
    lines = []
    for mean in means:
        cells = [mean[key] for key in ("suite", "group", "dtype", "precision")]
        cells += [report.asked(mean), _kernels(measured["rows"], mean)]
        cells += [str(mean["rows"]), f"{mean['ratio']:.2f}"]
        cells += [figure(mean["of_copy"], ".2f")] if copied else []
        lines.append(cells)
    return table(headings, 6, lines)


def _kernels(rows: list[dict], mean: dict) -> str:
    """The kernels of the rows that a mean is over, the most frequent first."""
    wanted = {key: mean[key] for key in report.MEAN_OF if key != "group" or mean["group"]}
    ran = [row["kernel"] for row in select(rows, **wanted)]
    names = sorted(dict.fromkeys(ran), key=ran.count, reverse=True)
    return ", ".join(name if len(names) == 1 else f"{name} {ran.count(name)}" for name in names)


def _overheads(rows: list[dict]) -> str:
    rows_of_calls = table(
        ["call on 8x8 tensors", "passes", "us", "over PyTorch's"],
        2,
        [
            [
                f"`{row['call']}`",
                "forward, backward" if row["backward"] else "forward",
                f"{row['us']:.1f}",
                f"{row['over_peer']:.2f}",
            ]
            for row in rows
        ],
    )
    return f"Host time of a call, launches included:\n\n{rows_of_calls}"


def _surveys(surveys: dict[str, dict]) -> str:
    rows = []
    for name, survey in surveys.items():
        header, summary = survey["header"], survey["header"]["summary"]
        slower = sum(row["ratio"] < 1 for row in survey["rows"])
        rows.append(
            [
                f"[{header['dtype']}, {header['sides']}](../../benchmarks/results/{name}.json)",
                str(summary["products"]),
                f"{summary['over_aligned']:.2f}",
                f"{summary['largest']:.2f}",
                str(summary["over_twice"]),
                f"{summary['ratio']:.2f}",
                f"{min(row['ratio'] for row in survey['rows']):.2f}",
                str(slower),
            ]
        )
    headings = ["sizes", "products", "mean of time / aligned time", "largest", "count above 2"]
    return table([*headings, "mean of ratio", "least", "count below 1"], 1, rows)
