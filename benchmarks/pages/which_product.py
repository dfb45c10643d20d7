"""The generated parts of docs/guide/which_product.md and from_tf32.md: tables and a plot."""

from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages import plots
from benchmarks.pages.ladder import SIZE, WAYS
from benchmarks.pages.markdown import figure, table
from benchmarks.pages.rows import peer_tflops, squares
from benchmarks.pages.speed_plots import STYLES

GUIDE = ROOT / "docs" / "guide"
PAGE, TF32_PAGE = GUIDE / "which_product.md", GUIDE / "from_tf32.md"

# The products to choose among: their dtype and precision, and a point's style.
PRODUCTS = WAYS | {"float16": ("float16", "fp32")}
POINTS = STYLES | {"float16": {"color": plots.PURPLE, "marker": "P"}}
LEAST_TF32 = 1024  # the smallest size of the table about TF32


def _found(measured: dict) -> dict[str, dict]:
    """The row-major square of SIZE of each product that was measured."""
    found = {name: squares(measured["rows"], "auto", *way) for name, way in PRODUCTS.items()}
    return {name: by_size[SIZE] for name, by_size in found.items() if SIZE in by_size}


def write_choice(measured: dict) -> str:
    """Speed and error of each product at SIZE, with cuBLAS's on the same operands."""
    found = _found(measured)
    lines = [
        [
            name,
            figure(row["tflops"]),
            figure(peer_tflops(row)),
            figure(row["ratio"], ".2f"),
            figure(row["error"], ".1e"),
            figure(row["peer_error"], ".1e"),
        ]
        for name, row in found.items()
    ]
    speeds = ["TFLOP/s", "cuBLAS", "speed / cuBLAS's"]
    return table(["product", *speeds, "error", "cuBLAS's error"], 1, lines)


def write_tf32(measured: dict) -> str:
    """cuBLAS's TF32 and float32, and `"fp32"`, by size: errors, then speeds."""
    fp32, tf32 = (squares(measured["rows"], "auto", "float32", way) for way in ("fp32", "tf32"))
    lines = []
    for size in sorted(fp32.keys() & tf32.keys()):
        if size >= LEAST_TF32:
            ours, rounded = fp32[size], tf32[size]
            errors = rounded["peer_error"], ours["peer_error"], ours["error"]
            speeds = peer_tflops(rounded), peer_tflops(ours), ours["tflops"]
            cells = [figure(error, ".1e") for error in errors], [figure(x) for x in speeds]
            lines.append([str(size), *cells[0], *cells[1]])
    names = ["cuBLAS, TF32", "cuBLAS, float32", '`"fp32"`']
    headings = [f"{what}: {name}" for what in ("error", "TFLOP/s") for name in names]
    return table(["m = n = k", *headings], 0, lines)


def draw(measured: dict, path: Path) -> None:
    """The speed of each product against its error, and cuBLAS's (hollow) on the same operands."""
    figure_, axes = plots.pyplot().subplots(figsize=(7, 4.4), layout="constrained")
    found = _found(measured)
    for name, row in found.items():
        style = {key: POINTS[name][key] for key in ("color", "marker")}
        ours, peer = (row["error"], row["tflops"]), (row["peer_error"], peer_tflops(row))
        axes.plot(*zip(ours, peer, strict=True), color=style["color"], linestyle=":", linewidth=1)
        axes.plot(*ours, markersize=9, linestyle="", zorder=3, **style)
        axes.plot(*peer, fillstyle="none", markersize=13, linestyle="", zorder=2, **style)
        beside = {"xytext": (0, 12), "textcoords": "offset points", "ha": "center"}
        axes.annotate(name.strip("`"), ours, **beside)
    for label, fill in (("torch_tiled", "full"), ("cuBLAS, same operands", "none")):
        point = {"color": "0.4", "marker": "o", "fillstyle": fill, "markersize": 9}
        axes.plot([], [], linestyle="", label=label, **point)
    if found:  # logarithmic axes need points
        axes.set_xscale("log")
        axes.set_yscale("log")
        plots.set_numbers(axes.yaxis, 1, 2, 5)
    axes.margins(x=0.12, y=0.2)
    axes.set_xlabel("relative error against float64 (left is more accurate)")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize="small", loc="lower right")
    plots.finish(figure_, axes, f"{SIZE} x {SIZE} x {SIZE}, {measured['header']['device']}", path)


BLOCKS = {"choice": write_choice}
TF32_BLOCKS = {"tf32": write_tf32}
