"""The generated parts of docs/guide/stream.md: tables and a plot, from results of bench_stream.py.

The page has tables only where the results are there. Its blocks are called stream_source,
stream_rates, stream_errors and stream_links.
"""

from pathlib import Path

import plots
from pages import figure, measured_on, table
from rows import select

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guide" / "stream.md"
PLOT = PAGE.with_name("stream_sizes.svg")
NAME = "stream"  # of the results

# The ways of a plot, with the style of their lines.
STYLES = {
    "stream": ("streamed", {"color": plots.BLUE, "marker": "o", "linewidth": 2}),
    "in_core": ("within the GPU", {"color": plots.BLACK, "marker": "s", "linestyle": "--"}),
    "pageable": ("streamed, pageable", {"color": plots.BLUE, "marker": "o", "linestyle": ":"}),
    "loop": ("loop", {"color": plots.ORANGE, "marker": "^"}),
    "loop_tf32": ("loop, TF32", {"color": plots.GREEN, "marker": "D"}),
    "cublasxt": ("cublasXt", {"color": plots.VERMILION, "marker": "v"}),
}
DTYPE_STYLES = {"float32": plots.BLUE, "bfloat16": plots.VERMILION}


def _products(measured: dict) -> list[dict]:
    return [row for row in measured["rows"] if row["way"] != "link"]


def _kinds(measured: dict) -> list[tuple[str, int]]:
    """Each dtype and size, in the order of the rows of streamed products."""
    return [(row["dtype"], row["size"]) for row in select(measured["rows"], way="stream")]


def _row(measured: dict, way: str, dtype: str, size: int) -> dict:
    """The row of a product, or one without any figure."""
    found = select(_products(measured), way=way, dtype=dtype, size=size)
    nothing = dict.fromkeys(("seconds", "tflops", "ratio", "error", "equal", "plan"))
    return found[0] if found else nothing


def link_rate(measured: dict, direction: str) -> float | None:
    """The bytes a second of copies in a direction, where they were measured."""
    for row in select(measured["rows"], way="link", direction=direction):
        if row["gb_per_second"]:
            return row["gb_per_second"] * 1e9
    return None


def hidden(measured: dict, dtype: str, size: int) -> float | None:
    """The share of the transfers to the GPU that the products hide, or None.

    A streamed product takes longer than the product of operands on the GPU by the time in which
    the GPU waits. That is divided by the time of its transfers to the GPU, at the measured rate of
    the link (where that is missing, at the planned one), and taken from 1. So 1 means that the GPU
    never waited, and 0 that it waited for every byte; less than 0, that it waited for results, too.
    Where the transfers take longer than the products, the share is below 1 whatever the order.
    """
    ours, inner = (_row(measured, way, dtype, size) for way in ("stream", "in_core"))
    if not ours["seconds"] or not inner["seconds"] or not ours["plan"]:
        return None
    rate = link_rate(measured, "in")
    in_seconds = ours["plan"]["bytes_in"] / rate if rate else ours["plan"]["in_seconds"]
    return 1 - (ours["seconds"] - inner["seconds"]) / in_seconds if in_seconds else None


def write_source(measured: dict) -> str:
    header = measured["header"]
    budget = f"{header['budget'] / 2**30:.3g} GiB"
    return f"{measured_on(header)}, with `max_device_bytes` of {budget}."


def write_rates(measured: dict) -> str:
    """TFLOP/s of every way; of the streamed products also their time, and what was predicted."""
    others = ("in_core", "pageable", "two_gpus", "loop", "loop_tf32", "cublasxt")
    present = {row["way"] for row in _products(measured)}
    others = [way for way in others if way in present]
    names = {way: name for way, (name, _) in STYLES.items()} | {"two_gpus": "two GPUs"}
    lines = []
    for dtype, size in _kinds(measured):
        ours = _row(measured, "stream", dtype, size)
        rates = (_row(measured, way, dtype, size)["tflops"] for way in others)
        plan = ours["plan"] or {}
        lines.append(
            [
                *(dtype, str(size), figure(ours["seconds"]), figure(plan.get("seconds"))),
                *(figure(ours["tflops"]), *(figure(rate) for rate in rates)),
                *(figure(ours["ratio"], ".2f"), figure(hidden(measured, dtype, size), ".2f")),
            ]
        )
    headings = ["dtype", "m = n = k", "seconds", "predicted", "streamed, TFLOP/s"]
    headings += [names[way] for way in others]
    return table([*headings, "speed / that within the GPU", "transfers hidden"], 1, lines)


def write_errors(measured: dict) -> str:
    """Errors of every way, and whether streamed results have the bits of the one in the GPU."""
    ways = [way for way in STYLES if way in {row["way"] for row in _products(measured)}]
    lines = []
    for dtype, size in _kinds(measured):
        found = [_row(measured, way, dtype, size) for way in ways]
        bits = [row["equal"] for row in found if row["equal"] is not None]
        same = "-" if not bits else "equal" if all(bits) else "different"
        errors = (figure(row["error"], ".1e") for row in found)
        lines.append([dtype, str(size), *errors, same])
    headings = ["dtype", "m = n = k", *(STYLES[way][0] for way in ways)]
    return table([*headings, "bits of streamed products"], 1, lines)


def write_links(measured: dict) -> str:
    """The rate of copies between the host and the GPU."""
    found = select(measured["rows"], way="link")
    lines = [[row["direction"], figure(row["gb_per_second"])] for row in found]
    return table(["copies", "GB/s"], 1, lines)


def draw(measured: dict, path: Path) -> None:
    """TFLOP/s by size, a panel for each dtype, and the share of transfers that is hidden."""
    dtypes = list(dict.fromkeys(dtype for dtype, _ in _kinds(measured)))
    count = len(dtypes) + 1
    figure_, panels = plots.pyplot().subplots(
        *(1, count), figsize=(0.5 + 3.8 * count, 4.4), layout="constrained", squeeze=False
    )
    *rates, share = panels[0]
    sizes = sorted({size for _, size in _kinds(measured)})
    for axes, dtype in zip(rates, dtypes, strict=True):
        for way, (name, style) in STYLES.items():
            found = select(_products(measured), way=way, dtype=dtype)
            points = sorted((row["size"], row["tflops"]) for row in found if row["tflops"])
            if points:
                axes.plot(*zip(*points, strict=True), label=name, markersize=5, **style)
        axes.set_ylabel("TFLOP/s")
        axes.set_title(dtype, fontsize="medium")
    for dtype in dtypes:
        shares = {size: hidden(measured, dtype, size) for size in sizes}
        points = [(size, value) for size, value in shares.items() if value is not None]
        if points:
            style = {"color": DTYPE_STYLES.get(dtype, plots.PURPLE), "marker": "o"}
            share.plot(*zip(*points, strict=True), label=dtype, markersize=5, **style)
    share.axhline(1, color=plots.BLACK, linestyle="--", linewidth=1, label="all hidden")
    share.set_ylabel("share that is hidden")
    share.set_title("transfers to the GPU", fontsize="medium")
    share.legend(fontsize="small", loc="lower right")
    lines = {line.get_label(): line for axes in rates for line in axes.lines}
    if lines:
        figure_.legend(handles=list(lines.values()), loc="outside lower center", ncols=len(lines))
    for axes in panels[0]:
        plots.set_sizes(axes, sizes, "M = N = K")
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]) if axes is share else 0)
        plots.add_grid(axes)
    figure_.suptitle(measured["header"]["device"], fontsize="medium")
    plots.save(figure_, path)


BLOCKS = {
    "stream_source": write_source,
    "stream_rates": write_rates,
    "stream_errors": write_errors,
    "stream_links": write_links,
}
