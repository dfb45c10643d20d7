"""The plots of the README, and of the kernels' pages in docs/kernels, from results files."""

import functools
from pathlib import Path

from benchmarks.gemm import report
from benchmarks.pages import plots
from benchmarks.pages.ladder import SIZE, WAYS
from benchmarks.pages.roofline import PEAK, peak
from benchmarks.pages.rows import kernel_squares, kernels, kind, peer_tflops, select, squares
from torch_tiled._op import registry

# The lines by size: a way of ladder.py's, and its style.
STYLES = {
    '`"fp32"`': {"color": plots.BLUE, "marker": "o", "linewidth": 2},
    '`"ieee"`': {"color": plots.ORANGE, "marker": "^"},
    '`"tf32"`': {"color": plots.GREEN, "marker": "D"},
    "bfloat16": {"color": plots.VERMILION, "marker": "s"},
    "float64": {"color": plots.PURPLE, "marker": "P"},
    'complex64, `"fp32"`': {"color": plots.BLUE, "marker": "o", "linewidth": 2},
    'complex64, `"ieee"`': {"color": plots.ORANGE, "marker": "^"},
    "complex128": {"color": plots.PURPLE, "marker": "P"},
}
# The lines of the pages on float64 and on complex numbers: a name, the dtype and the precision.
F64_WAYS = {"float64": ("float64", "fp32")}
COMPLEX_WAYS = {
    'complex64, `"fp32"`': ("complex64", "fp32"),
    'complex64, `"ieee"`': ("complex64", "ieee"),
    "complex128": ("complex128", "fp32"),
}
COLORS = {  # of bars, by what a kernel computes on
    "CUDA cores": plots.ORANGE,
    "tensor cores, fp16x3": plots.BLUE,
    "tensor cores, bfloat16": plots.VERMILION,
    "tensor cores, tf32": plots.GREEN,
    "tensor cores, float64": plots.PURPLE,
}
# The colours of the suite headline, by kind.
KINDS = {
    "fp32": plots.BLUE,
    "ieee": plots.ORANGE,
    "tf32": plots.GREEN,
    "bfloat16": plots.VERMILION,
    "float64": plots.PURPLE,
}
# The lines of the error plot: a product of errors_hopper.json, its label and its style.
PRODUCTS = {
    "naive": ("a sum in sequence", {"color": "0.6", "marker": "v"}),
    "cuBLAS": ("cuBLAS", {"color": plots.BLACK, "marker": "s"}),
    "tiled": ('"ieee"', STYLES['`"ieee"`']),
    "fp16x3": ('"fp32"', STYLES['`"fp32"`']),
}


def _units(kernel: str) -> str:
    if registry.kernels()[kernel].order == "fp16x3":
        return "tensor cores, fp16x3"
    dtype, precisions = kind(kernel)
    if precisions == ("tf32",):
        return "tensor cores, tf32"
    return "CUDA cores" if dtype == "float32" else f"tensor cores, {dtype}"


def draw_kernels(measured: dict, path: Path) -> None:
    """A bar for each kernel at SIZE, and cuBLAS's speed on it."""
    found = {
        kernel: by_size[SIZE]
        for kernel in kernels()
        if SIZE in (by_size := kernel_squares(measured["rows"], kernel))
    }
    height = 1.8 + 0.34 * len(found)
    figure, axes = plots.pyplot().subplots(figsize=(8, height), layout="constrained")
    names, places = list(found), range(len(found))
    for units, color in COLORS.items():
        bars = {i: found[name]["tflops"] for i, name in enumerate(names) if _units(name) == units}
        if bars:
            axes.barh(list(bars), list(bars.values()), color=color, label=units)
    marks = {"marker": "|", "markersize": 16, "markeredgewidth": 2, "linestyle": ""}
    peers, peaks = map(peer_tflops, found.values()), map(peak, names)
    axes.plot(list(peers), places, color=plots.BLACK, label="cuBLAS, same operands", **marks)
    axes.plot(list(peaks), places, color="0.65", label="peak of the units", **marks)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    labels = [f"{name}  {row['tflops']:.3g}" for name, row in found.items()]
    axes.set_yticks(places, labels=labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("TFLOP/s")
    figure.legend(fontsize="small", loc="outside lower center", ncols=3)
    device = measured["header"]["device"]
    plots.finish(figure, axes, f"{SIZE} x {SIZE} x {SIZE}, {device}", path)


def draw_headline(found: list[dict], device: str, path: Path) -> None:
    """A bar of TFLOP/s for each product, the peer's speed on it, and the errors of both."""
    figure, (speed, error) = plots.pyplot().subplots(
        *(1, 2), figsize=(10, 1.8 + 0.3 * len(found)), layout="constrained", sharey=True
    )
    places, peer = range(len(found)), found[0]["peer"]
    for name, color in KINDS.items():
        bars = {i: row["tflops"] for i, row in enumerate(found) if report.kind(row) == name}
        if bars:
            speed.barh(list(bars), list(bars.values()), color=color, label=name)
    mark = {"marker": "|", "markersize": 12, "markeredgewidth": 2, "linestyle": ""}
    speed.plot(list(map(peer_tflops, found)), places, color=plots.BLACK, label=peer, **mark)
    for i, row in enumerate(found):
        ends = max(row["tflops"], peer_tflops(row))
        speed.annotate(
            *(f"{row['ratio']:.2f}x", (ends, i)),
            **{
                "xytext": (6, 0),
                "textcoords": "offset points",
                "va": "center",
                "fontsize": "small",
            },
        )
    colors = [KINDS[report.kind(row)] for row in found]
    error.scatter([row["error"] for row in found], places, color=colors, zorder=3)
    error.plot([row["peer_error"] for row in found], places, color=plots.BLACK, **mark)
    for axes, label in ((speed, "TFLOP/s"), (error, "relative error against float64")):
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel(label)
        plots.add_grid(axes)
    labels = [f"{report.product(row)}  {report.kind(row)}" for row in found]
    speed.set_yticks(places, labels=labels)
    speed.invert_yaxis()
    figure.legend(fontsize="small", loc="outside lower center", ncols=6)
    figure.suptitle(f"auto, {device}", fontsize="medium")
    plots.save(figure, path)


def _draw_sizes(ways: dict, units: str, measured: dict, path: Path) -> None:
    """TFLOP/s of `auto` by size, of the peer (dashed), and of units whose peak is PEAK (dotted)."""
    figure, axes = plots.pyplot().subplots(figsize=(8, 4.8), layout="constrained")
    sizes = set()
    for name, way in ways.items():
        found, style = squares(measured["rows"], "auto", *way), STYLES[name]
        sizes |= found.keys()
        label = name.replace("`", "")
        axes.plot(
            list(found), [r["tflops"] for r in found.values()], label=label, markersize=5, **style
        )
        dashed = {"color": style["color"], "linestyle": "--", "linewidth": 1}
        axes.plot(list(found), [peer_tflops(r) for r in found.values()], **dashed)
    axes.plot([], [], color="0.3", linestyle="--", linewidth=1, label="cuBLAS, same operands")
    axes.axhline(PEAK, color=plots.BLACK, linestyle=":", label=f"peak of {units}")
    axes.set_yscale("log")
    plots.set_sizes(axes, sorted(sizes), "M = N = K")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize="small")
    plots.finish(figure, axes, f"auto, {measured['header']['device']}", path)


# The units that multiply float32 and float64: PEAK is that of both.
draw_sizes = functools.partial(_draw_sizes, WAYS, "CUDA cores")
draw_f64_sizes = functools.partial(_draw_sizes, F64_WAYS, "tensor cores in float64")
draw_complex_sizes = functools.partial(
    *(_draw_sizes, COMPLEX_WAYS, "CUDA cores in float32, of tensor cores in float64")
)


def draw_speed(measured: dict, path: Path) -> None:
    """The speed of `auto` by size, relative to cuBLAS on the same operands."""
    figure, axes = plots.pyplot().subplots(figsize=(6, 4), layout="constrained")
    sizes = set()
    for name, way in WAYS.items():
        found = squares(measured["rows"], "auto", *way)
        sizes |= found.keys()
        ratios = [row["ratio"] for row in found.values()]
        axes.plot(list(found), ratios, label=name.strip("`"), markersize=5, **STYLES[name])
    axes.axhline(1, color=plots.BLACK, linestyle="--", linewidth=1, label="cuBLAS")
    plots.set_sizes(axes, sorted(sizes), "M = N = K")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("speed, cuBLAS = 1")
    axes.legend(fontsize="small")
    plots.finish(figure, axes, f"speed, {measured['header']['device']}", path)


def draw_error(errors: dict, path: Path) -> None:
    """The error of float32 products of normal operands by K."""
    figure, axes = plots.pyplot().subplots(figsize=(6, 4), layout="constrained")
    for product, (label, style) in PRODUCTS.items():
        found = select(errors["rows"], operands="normal", product=product)
        ks, values = [row["k"] for row in found], [row["error"] for row in found]
        axes.plot(ks, values, label=label, markersize=5, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("K")
    axes.set_ylabel("relative error against float64")
    axes.legend(fontsize="small")
    size, device = errors["header"]["size"], errors["header"]["device"]
    plots.finish(figure, axes, f"float32, normal operands, M = N = {size}, {device}", path)
