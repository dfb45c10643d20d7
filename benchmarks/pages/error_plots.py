"""The plots of docs/guide/numerics.md, of results of the studies errors and complex_errors."""

from dataclasses import dataclass

import torch

from benchmarks.gemm.check import reference
from benchmarks.pages import plots
from benchmarks.pages.rows import select

LABELS = {"naive": "a sum in sequence", "tiled": "ieee, in chunks"}
COLOURS = (plots.BLACK, plots.ORANGE, plots.GREEN, plots.BLUE, plots.VERMILION)
PROMISED = reference.BIAS / reference.U[torch.float32]
ERROR, UNITS = "relative Frobenius error", "units of $2^{-24}$"


@dataclass
class Panel:
    """Lines of the rows that have x and y, one for each value of `by`; dashed ones of `beside`."""

    title: str
    rows: list[dict]
    y: str
    ylabel: str = ERROR
    x: str = "k"
    by: str = "product"
    yscale: str = "log"
    beside: str | None = None

    def draw(self, axes) -> None:
        for i, name in enumerate(dict.fromkeys(row[self.by] for row in self.rows)):
            found = [row for row in select(self.rows, **{self.by: name}) if self.y in row]
            xs, style = [row[self.x] for row in found], {"color": COLOURS[i % len(COLOURS)]}
            ys = [row[self.y] for row in found]
            axes.plot(xs, ys, label=LABELS.get(name, name), marker="s^Dov"[i % 5], **style)
            if self.beside:
                axes.plot(xs, [row[self.beside] for row in found], **style, **plots.DASHED)
        if self.y == "bias_u":
            axes.axhspan(-PROMISED, PROMISED, color="0.92", zorder=0)
            axes.text(64, PROMISED, "promised", va="bottom", color="0.4", fontsize="small")
            axes.set_ylim(-2 * PROMISED, 2 * PROMISED)  # a long sum in sequence leaves the range
        axes.set_xscale("log", base=2)
        axes.set(yscale=self.yscale, xlabel={"k": "K", "multiplications": "N"}[self.x])
        axes.set_ylabel(self.ylabel, fontsize="medium")
        axes.set_title(self.title, fontsize="large")


def draw(panels, results, path):
    """The panels in two rows, a legend for the first ones, and their own for others."""
    columns, header = -(-len(panels) // 2), results["header"]
    figure, grid = plots.subplots(2, columns, size=(13 * columns / 3, 7.6))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid.flat, strict=False):
        panel.draw(axes)
        if panel.by != panels[0].by:
            axes.legend(fontsize="small")
    handles = grid.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]), fontsize="medium")
    figure.suptitle(
        f"against float64: {header['device']}, torch {header['torch']}, "
        f"M = N = {header['size']}, mean over {header['seeds']} seeds"
    )
    plots.save(figure, path)


def by_kind(results, y, **options):
    """A panel for each kind of operands."""
    kinds = dict.fromkeys(row["operands"] for row in results["rows"])
    return [Panel(x, select(results["rows"], operands=x), y, **options) for x in kinds]


def draw_study(results, path):
    """A panel for each kind of operands but the last, and one for each other figure.

    The last kind has no panel: every element of it is recomputed, so that fp16x3 errs as ieee does.
    """
    rows, iterated = results["rows"], results["iteration"]
    uniform, normal = (select(rows, operands=x) for x in ("uniform(0, 1)", "normal"))
    flagged = select(rows, product="fp16x3")
    side = f"{iterated[0]['k']} x {iterated[0]['k']}"
    mean, shrinkage = f"mean relative error, {UNITS}", f"<error, exact> / |exact|², {UNITS}"
    linear, by_operands = {"yscale": "linear"}, {"yscale": "linear", "by": "operands"}
    panels = [
        *by_kind(results, "error")[:-1],
        Panel("bias on uniform(0, 1)", uniform, "bias_u", mean, **linear),
        Panel("shrinkage on normal", normal, "shrinkage_u", shrinkage, **linear),
        Panel(f"N products by an orthogonal {side}", iterated, "error", x="multiplications"),
        Panel("recomputed by fp16x3's guard", flagged, "guarded", "share", **by_operands),
    ]
    draw(panels, results, path)


def draw_complex(results, path):
    """A panel for each kind of operands: the worse part's errors, and dashed those by modulus."""
    worse = "error of the worse part; dashed: modulus"
    draw(by_kind(results, "part_error", ylabel=worse, beside="error"), results, path)
