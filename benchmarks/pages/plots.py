"""What plots share; plots.mplstyle has their style. They need matplotlib."""

from pathlib import Path

# The colours of Okabe and Ito, which the colour-blind can tell apart.
BLACK, ORANGE, GREEN, BLUE = "#000000", "#e69f00", "#009e73", "#0072b2"
VERMILION, PURPLE = "#d55e00", "#cc79a7"
DASHED = {"linestyle": "--", "linewidth": 1}


def pyplot():
    """matplotlib.pyplot with the style of plots.mplstyle."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    matplotlib.pyplot.style.use(Path(__file__).with_suffix(".mplstyle"))
    return matplotlib.pyplot


def subplots(*shape: int, size: tuple[float, float], **options):
    """A figure of this size in inches, and its axes."""
    return pyplot().subplots(*shape, figsize=size, **options)


def add_dots(axes, xs: list[float], ys: list[float]) -> None:
    """Draws a dot for each point on logarithmic axes, all in one path, which keeps an SVG small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    # Each dot is a line of next to no length whose ends are round.
    ends = [(x * factor, y) for x, y in zip(xs, ys, strict=True) for factor in (1, 1.001)]
    path = Path(ends, [Path.MOVETO, Path.LINETO] * len(xs))
    path.should_simplify = False
    axes.add_patch(PathPatch(path, fill=False, edgecolor=BLUE, linewidth=1.5, capstyle="round"))
    axes.set(xscale="log", yscale="log")
    axes.autoscale_view()


def set_numbers(axis, *digits: int) -> None:
    """Ticks of a logarithmic axis at these digits of each decade, written without exponents."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def set_sizes(axes, sizes: list[int]) -> None:
    """A logarithmic horizontal axis with a tick at each size."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, labels=map(str, sizes))
    axes.minorticks_off()
    axes.set_xlabel("M = N = K")


def save(figure, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata)
    pyplot().close(figure)
