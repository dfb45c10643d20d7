"""The generated parts of docs/guide/which_product.md: tables and a plot."""

from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages import plots
from benchmarks.pages.markdown import figure, table
from benchmarks.pages.rows import select, spread

PAGE = ROOT / "docs" / "guide" / "which_product.md"

# Operands for which a result can be exact, and a Gram matrix, which can be symmetric.
EXACT = ("one-hot rows", "a permutation", "integers above 2^11")
SHOWN = EXACT[0], EXACT[2]  # a permutation has one-hot rows
GRAM = "a @ a.T"
NORMAL = "normal"
COARSE = 1e-4  # the error of a way that rounds factors to 11 bits is larger
# The colour of a family of ways, and the markers of its members in their order.
COLOURS = {"torch_tiled": plots.BLUE, "cuBLAS": plots.BLACK, "Triton": plots.VERMILION}
COLOURS |= {"JAX": plots.GREEN}
MARKERS = "os^DPXv"


def _title(way: str) -> str:
    """A way in Markdown: "torch_tiled fp32" is torch_tiled `"fp32"`."""
    family, _, name = way.partition(" ")
    ours = {"torch_tiled": f'**{family}** `"{name}"`', "cuBLAS": way}
    return ours.get(family, f"{family} `{name}`")


def _ways(rows: list[dict]) -> list[str]:
    """The ways that were measured, in the order of COLOURS."""
    found = dict.fromkeys(row["way"] for row in rows if "error" in row)
    families = list(COLOURS)
    return sorted(found, key=lambda way: families.index(way.partition(" ")[0]))


def _of(rows: list[dict], **wanted) -> dict | None:
    """The row of these values, if it was measured."""
    return next((row for row in select(rows, **wanted) if "error" in row), None)


def _share(row: dict | None, key: str) -> str:
    """A share of elements in per cent; "0" only if there is no such element."""
    value = row and row.get(key)
    if value is None:
        return "-"
    return "0" if value == 0 else f"{_short(100 * value)} %"


def _short(value: float) -> str:
    """A number in at least two digits, without an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def write_exact(measured: dict) -> str:
    """The share of elements that are not exact, or not symmetric, by way."""
    rows = select(measured["rows"], kind="hard")
    lines = [
        {
            "way": _title(way),
            **{kind: _share(_of(rows, way=way, operands=kind), "inexact") for kind in SHOWN},
            f"`{GRAM}`: not symmetric": _share(_of(rows, way=way, operands=GRAM), "asymmetric"),
        }
        for way in _ways(rows)
    ]
    return table(1, lines)


def _sizes(rows: list[dict]) -> list[int]:
    return sorted({row["size"] for row in rows})


def write_choice(measured: dict) -> str:
    """The rate of each way by size, and its errors at the largest size."""
    rows = select(measured["rows"], kind="speed")
    sizes, lines = _sizes(rows), []
    for way in _ways(rows):
        line = {"way": _title(way)}
        for size in sizes:
            row = _of(rows, way=way, size=size)
            line[f"{size}: TFLOP/s"] = row and row["tflops"]
        line[f"error, {size}"] = f"{row['error']:.1e}" if row else "-"
        line[f"componentwise, {size}"] = _short(row["componentwise_u"]) if row else "-"
        lines.append(line)
    return table(1, lines)


def write_hard(measured: dict) -> str:
    """The error of each way on operands with a structure, the componentwise one in brackets.

    Ways by factors of 11 bits are left out.
    """
    rows = select(measured["rows"], kind="hard")
    kinds = [each for each in _kinds(rows) if each not in (*EXACT, GRAM)]

    def cell(row: dict | None) -> str:
        return f"{row['error']:.1e} ({_short(row['componentwise_u'])})" if row else "-"

    lines = []
    for way in _ways(rows):
        usual = _of(rows, way=way, operands=NORMAL)
        if usual is None or usual["error"] < COARSE:
            cells = {kind: cell(_of(rows, way=way, operands=kind)) for kind in kinds}
            lines.append({"way": _title(way), **cells})
    return table(1, lines)


def _kinds(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["operands"] for row in rows))


def write_cost(measured: dict) -> str:
    """What "fp32" flags of some kinds of operands, and times over those of normal operands.

    The other kinds of operands share a sentence.
    """
    rows = select(measured["rows"], kind="hard")
    timed = ("torch_tiled fp32", "torch_tiled tf32", "torch_tiled ieee", "cuBLAS SGEMM")
    lines, others = [], []
    for kind in _kinds(rows):
        if kind == NORMAL:
            continue
        found = {way: _of(rows, way=way, operands=kind) for way in timed}
        times = {way: row and row["us"] / row["normal_us"] for way, row in found.items()}
        flagged = _share(found[timed[0]], "flagged")
        if flagged == "0":
            others += [time for time in times.values() if time]
        else:
            shown = {_title(way): figure(time, ".2f") for way, time in times.items()}
            lines.append({"operands": kind, "flagged": flagged, **shown})
    if not others:
        return table(1, lines)
    told = f"Other operands flag nothing and take {spread(others)} times as long."
    return f"{table(1, lines)}\n\n{told}"


def draw(measured: dict, path: Path) -> None:
    """The time of each way against its error, a panel for each size."""
    rows = select(measured["rows"], kind="speed")
    sizes, ways = _sizes(rows), _ways(rows)
    figure_, every = plots.subplots(1, max(1, len(sizes)), size=(11, 4.4), squeeze=False)
    members: dict[str, int] = {}
    for way in ways:
        family = way.partition(" ")[0]
        members[family] = members.get(family, -1) + 1
        style = {"color": COLOURS[family], "marker": MARKERS[members[family]]}
        for axes, size in zip(every[0], sizes, strict=True):
            if row := _of(rows, way=way, size=size):
                label = way if axes is every[0][-1] else None
                axes.plot(row["error"], row["us"], linestyle="", markersize=8, label=label, **style)
    for axes, size in zip(every[0], sizes, strict=False):  # without results a panel is empty
        axes.set(xscale="log", yscale="log", xlabel="relative error against float64")
        plots.set_numbers(axes.yaxis, 1, 2, 5)
        axes.margins(0.12)
        axes.set_title(f"{size} x {size} x {size}")
    every[0][0].set_ylabel("us (lower is faster)")
    figure_.suptitle(measured["header"]["device"])
    if ways:
        figure_.legend(loc="outside right center")
    plots.save(figure_, path)


BLOCKS = {
    "exact": write_exact,
    "choice": write_choice,
    "hard": write_hard,
    "cost": write_cost,
}
