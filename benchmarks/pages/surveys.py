"""Writes docs/kernels/random.md and its plot, from the surveys of random products."""

from pathlib import Path

from benchmarks.pages import plots
from benchmarks.pages.markdown import measured_on, table
from benchmarks.pages.rows import read
from benchmarks.survey import report as survey_report

PLOT = "random.svg"
ORDER = ("fp32", "ieee", "tf32", "bfloat16", "float16", "float64")  # of the files' kinds
INTRO = """# Random products

This page is written by [benchmarks.pages](../../benchmarks/pages/__main__.py) from the files
`survey_<precision or dtype>_<seed>.json` in `benchmarks/results`.

[benchmarks.survey](../../benchmarks/survey/__main__.py) draws
[products](../../benchmarks/survey/products.py) with log-uniform sides from 1 on, K from 8, batches
and every layout; most have a side that is not a multiple of 4. One replay of a CUDA graph of `auto`
alternates with one of `torch.matmul` in the same precision, each after L2 was overwritten. The
ratio is torch's median time divided by ours. A result is compared with float64 before its time is
reported.

The regimes overlap. A *side* is the shorter one of C, a *single* product has no batch, and the
times in a regime's name are torch's. A column *below* has the share of products whose ratio is
less."""
NOTHING = "No survey is committed yet."
SHOWN = f"""\
![Torch's time over ours against torch's time, a dot for each product]({PLOT})

The plot has a dot for each product of one seed; above 1, torch_tiled is faster."""


def surveys(results: Path) -> dict[str, dict]:
    """The surveys in a folder by their names, those of a kind together. Raises ResultsError."""
    names = [path.stem for path in results.glob("survey_*_[0-9]*.json")]

    def place(name: str) -> tuple:
        _, kind, *layers, seed = name.split("_")
        return ORDER.index(kind) if kind in ORDER else len(ORDER), kind, layers, int(seed)

    return {name: read(results / f"{name}.json") for name in sorted(names, key=place)}


def write(found: dict[str, dict]) -> str:
    """The text of the page."""
    parts = [INTRO, *([SHOWN] if found else [NOTHING])]
    for name, survey in found.items():
        header, rows = survey["header"], survey["rows"]
        about = f"{len(rows)} products ([rows](../../benchmarks/results/{name}.json)). "
        about += f"{measured_on(header)}. A kernel that writes one number takes "
        about += f"{header['empty_us']['alone']:.2g} us in this way of timing."
        if header["beside"]:
            about += f" `auto` takes {survey_report.over_best(rows):.3f} times the time of the "
            about += "fastest kernel of its order, in the mean."
        parts += [f"## {survey_report.kind(header)}, seed {header['seed']}", about]
        parts.append(table(survey_report.HEADINGS, 1, survey_report.regimes(rows)))
    return "\n\n".join(parts) + "\n"


def draw(found: dict[str, dict], path: Path) -> None:
    """A panel for each kind of products, with those of its first survey."""
    first: dict[str, dict] = {}
    for survey in found.values():
        first.setdefault(survey_report.kind(survey["header"]), survey)
    lines = -(-len(first) // 2)
    figure, every = plots.pyplot().subplots(
        *(lines, 2),
        **{"figsize": (8, 0.6 + 2.8 * lines), "layout": "constrained"},
        **{"sharex": True, "sharey": True, "squeeze": False},
    )
    for axes in every.flat[len(first) :]:
        axes.set_visible(False)
    for axes, (kind, survey) in zip(every.flat, first.items(), strict=False):
        rows = survey["rows"]
        plots.add_dots(axes, *([row[x] for row in rows] for x in ("peer_us", "ratio")))
        plots.set_numbers(axes.xaxis, 1)
        plots.set_numbers(axes.yaxis, 1, 2, 5)
        axes.axhline(1, color=plots.BLACK, linewidth=1)
        plots.add_grid(axes)
        name = kind.replace("`", "")
        axes.set_title(f"{name}, {survey['header']['device']}", fontsize="small")
    figure.supxlabel("torch's time, us", fontsize="medium")
    figure.supylabel("torch's time / ours", fontsize="medium")
    plots.save(figure, path)
