"""The generated parts of docs/guide/stream.md: tables and a plot of results of benchmarks.stream.

They are those of NAME, and for the ways of PEERS those of PEERS_NAME, another run.
"""

from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages import plots
from benchmarks.pages.files import read
from benchmarks.pages.markdown import figure, measured_on, table
from benchmarks.pages.rows import select

PAGE = ROOT / "docs" / "guide" / "stream.md"
PLOT = PAGE.with_name("stream_sizes.svg")
NAME, PEERS_NAME = "stream", "stream_peers"  # of the results
PEERS = ("loop", "loop_tf32", "cublasxt")

# The ways of a plot, with the style of their lines.
STYLES = {
    "stream": ("streamed", {"color": plots.BLUE, "marker": "o", "linewidth": 2}),
    "in_core": ("within the GPU", {"color": plots.BLACK, "marker": "s", "linestyle": "--"}),
    "pageable": ("streamed, pageable", {"color": plots.BLUE, "marker": "o", "linestyle": ":"}),
    "two_gpus": (
        "streamed, two GPUs",
        {"color": plots.PURPLE, "marker": "o", "linestyle": "-."},
    ),
    "loop": ("loop", {"color": plots.ORANGE, "marker": "^"}),
    "loop_tf32": ("loop, TF32", {"color": plots.GREEN, "marker": "D"}),
    "cublasxt": ("cublasXt", {"color": plots.VERMILION, "marker": "v"}),
}
PLANNED = "stream", "pageable", "two_gpus"  # the ways with a plan
DTYPE_STYLES = {"float32": plots.BLUE, "bfloat16": plots.VERMILION}


def read_results(folder: Path) -> dict:
    """The results of a folder: those of peers are in "peers". Raises ResultsError."""
    found, peers = (read(folder / f"{name}.json") for name in (NAME, PEERS_NAME))
    return found | {"peers": peers}


def _products(measured: dict) -> list[dict]:
    """The rows of products, those of peers from their own run where there is one."""
    rows = [row for row in measured["rows"] if row["way"] != "link"]
    if not measured.get("peers"):
        return rows
    theirs = [row for row in measured["peers"]["rows"] if row["way"] in PEERS]
    return [row for row in rows if row["way"] not in PEERS] + theirs


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
    text = f"{measured_on(header)}, with `max_device_bytes` of {budget}."
    if measured.get("peers"):
        theirs = measured_on(measured["peers"]["header"])
        text += f" The loop and cublasXt were {theirs[0].lower()}{theirs[1:]}."
    return text


def _present(measured: dict) -> list[str]:
    """The ways that were measured."""
    present = {row["way"] for row in _products(measured)}
    return [way for way in STYLES if way in present]


def write_seconds(measured: dict) -> str:
    """The seconds of every way with a plan, what the plan predicted, and what is hidden."""
    lines = []
    for dtype, size in _kinds(measured):
        line: dict = {"dtype": dtype, "m = n = k": size}
        for way in _present(measured):
            if way in PLANNED:
                row = _row(measured, way, dtype, size)
                predicted = figure((row["plan"] or {}).get("seconds"))
                line[f"{STYLES[way][0]}, s"] = f"{figure(row['seconds'])} ({predicted})"
        ratio = _row(measured, "stream", dtype, size)["ratio"]
        line["speed / that within the GPU"] = figure(ratio, ".2f")
        line["transfers hidden"] = figure(hidden(measured, dtype, size), ".2f")
        lines.append(line)
    return table(1, lines)


def write_links(measured: dict) -> str:
    """The rate of copies between the host and the GPU."""
    found = select(measured["rows"], way="link")
    return table(1, [{"copies": "GB/s"} | {x["direction"]: x["gb_per_second"] for x in found}])


def draw(measured: dict, path: Path) -> None:
    """TFLOP/s by size, a panel for each dtype, and the share of transfers that is hidden."""
    dtypes = list(dict.fromkeys(dtype for dtype, _ in _kinds(measured)))
    count = len(dtypes) + 1
    figure_, panels = plots.subplots(1, count, size=(0.5 + 3.8 * count, 4.4), squeeze=False)
    *rates, share = panels[0]
    sizes = sorted({size for _, size in _kinds(measured)})
    for axes, dtype in zip(rates, dtypes, strict=True):
        for way, (name, style) in STYLES.items():
            found = select(_products(measured), way=way, dtype=dtype)
            points = sorted((row["size"], row["tflops"]) for row in found if row["tflops"])
            if points:
                axes.plot(*zip(*points, strict=True), label=name, markersize=5, **style)
        axes.set(ylabel="TFLOP/s", title=dtype)
    for dtype in dtypes:
        shares = {size: hidden(measured, dtype, size) for size in sizes}
        points = [(size, value) for size, value in shares.items() if value is not None]
        if points:
            style = {"color": DTYPE_STYLES.get(dtype, plots.PURPLE), "marker": "o"}
            share.plot(*zip(*points, strict=True), label=dtype, markersize=5, **style)
    share.axhline(1, color=plots.BLACK, label="all hidden", **plots.DASHED)
    share.set(ylabel="share that is hidden", title="transfers to the GPU")
    share.legend(loc="lower right")
    lines = {line.get_label(): line for axes in rates for line in axes.lines}
    if lines:
        every = {"handles": list(lines.values()), "ncols": len(lines), "fontsize": "medium"}
        figure_.legend(loc="outside lower center", **every)
    for axes in panels[0]:
        plots.set_sizes(axes, sizes)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]) if axes is share else 0)
    figure_.suptitle(measured["header"]["device"])
    plots.save(figure_, path)


BLOCKS = {
    "stream_source": write_source,
    "stream_seconds": write_seconds,
    "stream_links": write_links,
}
