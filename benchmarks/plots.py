"""What plots have in common. They need matplotlib."""

from pathlib import Path

# Okabe and Ito's colours, which the colour-blind tell apart.
BLACK, ORANGE, GREEN, BLUE = "#000000", "#e69f00", "#009e73", "#0072b2"
VERMILION, PURPLE = "#d55e00", "#cc79a7"


def pyplot():
    """matplotlib's, that draws the same file for the same results, and text that is text."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "torch_tiled", "svg.fonttype": "none"}
    import matplotlib.pyplot

    return matplotlib.pyplot


def add_grid(axes) -> None:
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def save(figure, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, facecolor="white")
