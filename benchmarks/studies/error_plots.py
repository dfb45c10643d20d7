"""The plot of the error study's results."""

from functools import partial

import torch

from benchmarks.gemm.check import reference
from benchmarks.pages import plots
from benchmarks.pages.rows import select

LABELS = {"naive": "a sum in sequence", "tiled": "ieee, in chunks", "fp16x3": "fp16x3"}
STYLES = [  # of the ways to multiply, which differ in their markers, too
    {"color": plots.BLACK, "marker": "s"},
    {"color": plots.ORANGE, "marker": "^"},
    {"color": plots.GREEN, "marker": "D"},
    {"color": plots.BLUE, "marker": "o", "linewidth": 2},
]
GUARD_STYLES = [
    {"color": plots.BLUE, "marker": "o"},
    {"color": plots.VERMILION, "marker": "v"},
    {"color": plots.PURPLE, "marker": "X"},
    {"color": plots.BLACK, "marker": "s"},
    {"color": plots.GREEN, "marker": "D"},
]
PROMISED = reference.BIAS / reference.U[torch.float32]


def draw(results, path):
    """A panel for each kind of operands but the last, and one for each other figure.

    The last kind has no panel: every element of it is recomputed, so that fp16x3 errs as ieee does.
    """
    rows, header = results["rows"], results["header"]
    ways = list(dict.fromkeys(row["product"] for row in rows))
    kinds = list(dict.fromkeys(row["operands"] for row in rows))
    panels = [partial(draw_errors, rows=select(rows, operands=x), kind=x) for x in kinds[:-1]]
    panels.append(partial(draw_bias, rows=select(rows, operands="uniform(0, 1)")))
    panels.append(partial(draw_shrinkage, rows=select(rows, operands="normal")))
    panels.append(partial(draw_iteration, rows=results["iteration"]))
    panels.append(partial(draw_guard, rows=rows, kinds=kinds))

    columns = -(-len(panels) // 2)
    figure, grid = plots.subplots(2, columns, size=(13 * columns / 3, 7.6))
    for panel, axes in zip(panels, grid.flat, strict=False):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("K")
        panel(axes, ways=ways)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles = grid.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(ways), fontsize="medium")
    figure.suptitle(
        f"float32 products against float64: {header['device']}, torch {header['torch']}, "
        f"M = N = {header['size']}, mean over {header['seeds']} seeds",
        fontsize="large",
    )
    plots.save(figure, path)


def points(rows, x, y):
    """The values of x and of y of the rows that have both."""
    found = [row for row in rows if x in row and y in row]
    return tuple(row[x] for row in found), tuple(row[y] for row in found)


def draw_ways(axes, rows, ways, x, y, **labels):
    """A line for each way to multiply."""
    for way, style in zip(ways, STYLES, strict=False):
        found = points(select(rows, product=way), x, y)
        axes.plot(*found, label=LABELS.get(way, way), markersize=4, **style)
    title = labels.pop("title")
    axes.set(**labels)
    axes.set_title(title, fontsize="large")


def draw_errors(axes, rows, ways, kind):
    labels = {"title": kind, "ylabel": "relative Frobenius error", "yscale": "log"}
    draw_ways(axes, rows, ways, "k", "error", **labels)


def draw_bias(axes, rows, ways):
    labels = {"title": "bias on uniform(0, 1)"}
    labels["ylabel"] = "mean relative error, units of $2^{-24}$"
    draw_ways(axes, rows, ways, "k", "bias_u", **labels)
    axes.axhspan(-PROMISED, PROMISED, color="0.92", zorder=0)
    axes.text(64, PROMISED, "promised", va="bottom", color="0.4", fontsize="small")
    axes.set_ylim(-2 * PROMISED, 2 * PROMISED)  # a long sum in sequence leaves the range


def draw_shrinkage(axes, rows, ways):
    labels = {"title": "shrinkage on normal"}
    labels["ylabel"] = "<error, exact> / |exact|², units of $2^{-24}$"
    draw_ways(axes, rows, ways, "k", "shrinkage_u", **labels)


def draw_iteration(axes, rows, ways):
    labels = {"xscale": "log", "yscale": "log", "xlabel": "N"}
    labels["title"] = f"N products by an orthogonal matrix of {rows[0]['k']} x {rows[0]['k']}"
    labels["ylabel"] = "relative Frobenius error"
    draw_ways(axes, rows, ways, "multiplications", "error", **labels)


def draw_guard(axes, rows, ways, kinds):
    shares = {}  # kinds that have the same shares have one line
    for kind in kinds:
        share = points(select(rows, operands=kind), "k", "guarded")
        if any(share):  # some GPUs have no fp16x3
            shares.setdefault(share, []).append(kind)
    for ((ks, values), same), style in zip(shares.items(), GUARD_STYLES, strict=False):
        percents = [100 * value for value in values]
        axes.plot(ks, percents, label="\n".join(same), markersize=4, **style)
    axes.set(ylim=(-5, 105), ylabel="% of the elements")
    axes.set_title("recomputed by fp16x3's guard", fontsize="large")
    if shares:
        axes.legend(loc="center left", bbox_to_anchor=(0, 0.6))
