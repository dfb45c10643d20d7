"""The plots of the README, and of the kernels' pages in docs/kernels, from results files."""

import functools
from pathlib import Path

from benchmarks.pages import plots
from benchmarks.pages.ladder import SIZE, WAYS
from benchmarks.pages.roofline import PEAK, peak
from benchmarks.pages.rows import kernel_squares, kernels, kind, peer_tflops, select, squares
from torch_tiled._op import registry

# The lines of the pages on float64 and on complex numbers: a name, the dtype and the precision.
F64_WAYS = {"float64": ("float64", "fp32")}
COMPLEX_WAYS = {
    'complex64, `"fp32"`': ("complex64", "fp32"),
    'complex64, `"ieee"`': ("complex64", "ieee"),
    "complex128": ("complex128", "fp32"),
}
# The lines by size: the dtype and the precision of WAYS, and their style.
_FP32 = {"color": plots.BLUE, "marker": "o", "linewidth": 2}
_IEEE = {"color": plots.ORANGE, "marker": "^"}
_DOUBLE = {"color": plots.PURPLE, "marker": "P"}
STYLES = {
    ("float32", "fp32"): _FP32,
    ("float32", "ieee"): _IEEE,
    ("float32", "tf32"): {"color": plots.GREEN, "marker": "D"},
    ("bfloat16", "fp32"): {"color": plots.VERMILION, "marker": "s"},
    ("float64", "fp32"): _DOUBLE,
    ("complex64", "fp32"): _FP32,
    ("complex64", "ieee"): _IEEE,
    ("complex128", "fp32"): _DOUBLE,
}
COLORS = {  # of bars, by what a kernel computes on
    "CUDA cores": plots.ORANGE,
    "tensor cores, fp16x3": plots.BLUE,
    "tensor cores, bfloat16": plots.VERMILION,
    "tensor cores, tf32": plots.GREEN,
    "tensor cores, float64": plots.PURPLE,
}
# The lines of the error plot: a product of errors_hopper.json, its label and its style.
PRODUCTS = {
    "naive": ("a sum in sequence", {"color": "0.6", "marker": "v"}),
    "cuBLAS": ("cuBLAS", {"color": plots.BLACK, "marker": "s"}),
    "tiled": ('"ieee"', _IEEE),
    "fp16x3": ('"fp32"', _FP32),
}


def _units(kernel: str) -> str:
    if registry.kernels()[kernel].order == "fp16x3":
        return "tensor cores, fp16x3"
    dtype, precisions = kind(kernel)
    if precisions == ("tf32",):
        return "tensor cores, tf32"
    return "CUDA cores" if dtype == "float32" else f"tensor cores, {dtype}"


def _bars(axes, rates: list[float], kinds: list[str], colors: dict[str, str]) -> None:
    """Horizontal bars, in the colour of the kind of each, with a label for each kind."""
    for label, color in colors.items():
        if places := [i for i, each in enumerate(kinds) if each == label]:
            axes.barh(places, [rates[i] for i in places], color=color, label=label)


def draw_kernels(measured: dict, path: Path) -> None:
    """A bar for each kernel at SIZE, and cuBLAS's speed on it."""
    found = {
        kernel: by_size[SIZE]
        for kernel in kernels()
        if SIZE in (by_size := kernel_squares(measured["rows"], kernel))
    }
    figure, axes = plots.subplots(size=(8, 1.8 + 0.34 * len(found)))
    places = range(len(found))
    _bars(axes, [row["tflops"] for row in found.values()], list(map(_units, found)), COLORS)
    marks = {"marker": "|", "markersize": 16, "markeredgewidth": 2, "linestyle": ""}
    peers, peaks = map(peer_tflops, found.values()), map(peak, found)
    axes.plot(list(peers), places, color=plots.BLACK, label="cuBLAS, same operands", **marks)
    axes.plot(list(peaks), places, color="0.65", label="peak of the units", **marks)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    labels = [f"{name}  {row['tflops']:.3g}" for name, row in found.items()]
    axes.set_yticks(places, labels=labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    title = f"{SIZE} x {SIZE} x {SIZE}, {measured['header']['device']}"
    axes.set(xlabel="TFLOP/s", title=title)
    figure.legend(loc="outside lower center", ncols=3)
    plots.save(figure, path)


def _draw_sizes(ways: dict, units: str, measured: dict, path: Path) -> None:
    """TFLOP/s of `auto` by size, of the peer (dashed), and of units whose peak is PEAK (dotted)."""
    figure, axes = plots.subplots(size=(8, 4.8))
    sizes = set()
    for name, way in ways.items():
        found, style = squares(measured["rows"], "auto", *way), STYLES[way]
        sizes |= found.keys()
        rates = [row["tflops"] for row in found.values()]
        axes.plot(list(found), rates, label=name.replace("`", ""), markersize=5, **style)
        peers = list(map(peer_tflops, found.values()))
        axes.plot(list(found), peers, color=style["color"], **plots.DASHED)
    axes.plot([], [], color="0.3", label="cuBLAS, same operands", **plots.DASHED)
    axes.axhline(PEAK, color=plots.BLACK, linestyle=":", label=f"peak of {units}")
    axes.set_yscale("log")
    plots.set_sizes(axes, sorted(sizes))
    axes.set(ylabel="TFLOP/s", title=f"auto, {measured['header']['device']}")
    axes.legend()
    plots.save(figure, path)


# The units that multiply float32 and float64: PEAK is that of both.
draw_sizes = functools.partial(_draw_sizes, WAYS, "CUDA cores")
draw_f64_sizes = functools.partial(_draw_sizes, F64_WAYS, "tensor cores in float64")
_OF_COMPLEX = "CUDA cores in float32, of tensor cores in float64"
draw_complex_sizes = functools.partial(_draw_sizes, COMPLEX_WAYS, _OF_COMPLEX)


def draw_speed(measured: dict, path: Path) -> None:
    """The speed of `auto` by size, relative to cuBLAS on the same operands."""
    figure, axes = plots.subplots(size=(6, 4))
    sizes = set()
    for name, way in WAYS.items():
        found = squares(measured["rows"], "auto", *way)
        sizes |= found.keys()
        ratios = [row["ratio"] for row in found.values()]
        axes.plot(list(found), ratios, label=name.strip("`"), markersize=5, **STYLES[way])
    axes.axhline(1, color=plots.BLACK, label="cuBLAS", **plots.DASHED)
    plots.set_sizes(axes, sorted(sizes))
    axes.set_ylim(bottom=0)
    axes.set(ylabel="speed, cuBLAS = 1", title=f"speed, {measured['header']['device']}")
    axes.legend()
    plots.save(figure, path)


def draw_attention(measured: dict, path: Path) -> None:
    """Bars of attention's TFLOP/s, forward and in a step; PyTorch's speed and the ratio on each."""
    ways = {"": ("all keys", plots.BLUE), "causal": ("causal", plots.ORANGE)}
    found = {}  # rows by panel and way, and in these by shape
    for row in select(measured["rows"], suite="attention"):
        shape, what, *way = row["what"].split(", ")
        if "bfloat16" in way:
            continue
        found.setdefault(what, {}).setdefault("".join(way), {})[shape] = row
    height = 0.4
    shapes = list(found["forward"][""])
    size = (10, 1.8 + height * len(shapes))
    figure, panels = plots.subplots(1, len(found), size=size, sharey=True)
    beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
    for axes, (what, by_way) in zip(panels, found.items(), strict=True):
        for i, (way, by_shape) in enumerate(by_way.items()):
            label, color = ways[way]
            places = [place + (i - 0.5) * height for place in range(len(by_shape))]
            rates = [row["tflops"] for row in by_shape.values()]
            axes.barh(places, rates, height, color=color, label=label)
            peers = list(map(peer_tflops, by_shape.values()))
            mark = {"marker": "|", "markersize": 9, "markeredgewidth": 2, "linestyle": ""}
            name = None if i else "PyTorch, memory-efficient kernel"
            axes.plot(peers, places, color=plots.BLACK, label=name, **mark)
            for place, rate, peer, row in zip(places, rates, peers, by_shape.values(), strict=True):
                axes.annotate(f"{row['ratio']:.2f}x", (max(rate, peer), place), **beside)
        axes.set(xlabel="TFLOP/s", title=what)
        axes.margins(x=0.15)
    panels[0].set_yticks(range(len(shapes)), labels=shapes)
    panels[0].set_ylabel("batch x heads x length x columns")
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"float32 attention, {measured['header']['device']}")
    plots.save(figure, path)


def draw_error(errors: dict, path: Path) -> None:
    """The error of float32 products of normal operands by K."""
    figure, axes = plots.subplots(size=(6, 4))
    for product, (label, style) in PRODUCTS.items():
        found = select(errors["rows"], operands="normal", product=product)
        ks, values = [row["k"] for row in found], [row["error"] for row in found]
        axes.plot(ks, values, label=label, markersize=5, **style)
    axes.set_xscale("log", base=2)
    size, device = errors["header"]["size"], errors["header"]["device"]
    axes.set(yscale="log", xlabel="K", ylabel="relative error against float64")
    axes.set_title(f"float32, normal operands, M = N = {size}, {device}")
    axes.legend()
    plots.save(figure, path)
