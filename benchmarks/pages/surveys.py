"""Writes docs/kernels/random.md and its plot, and the site's page of every seed's regimes."""

from pathlib import Path

from benchmarks.pages import plots
from benchmarks.pages.files import read
from benchmarks.pages.markdown import figure, measured_on, table
from benchmarks.survey.regimes import BELOW, kind, over_best, regimes, summary, without_each

PLOT = "random.svg"
SEEDS_PAGE = "random_seeds"
ORDER = (  # of the files' kinds
    *("fp32", "ieee", "tf32", "bfloat16", "float16"),
    *("float64", "complex64", "complex128"),
)
INTRO = """# Random products

[benchmarks.pages](../../benchmarks/pages/__main__.py) writes this page from
`benchmarks/results/survey_<precision or dtype>_<seed>.json`.

[benchmarks.survey](../../benchmarks/survey/__main__.py) draws
[products](../../benchmarks/survey/products.py) with log-uniform sides from 1 on, K from 8, batches
and every layout; most have a side that is not a multiple of 4. A CUDA graph of `auto` alternates
with one of `torch.matmul` in the same precision, after L2 was overwritten. A ratio is torch's
median time divided by ours. Results are compared with float64."""
NOTHING = "No survey is committed yet."
SHOWN = f"![Torch's time over ours against torch's time, a dot for each product of a seed]({PLOT})"
SURVEYS = """## The surveys

*Mean* is geometric, and a column *below* has the share of products with a smaller ratio. *Over
fastest* is the mean factor from the time of the fastest kernel of the product's order to that of
the picked one. The site's page *Random products, by seed* has each seed by itself, and what
products would lose without each kernel."""
BY_REGIME = f"""## Regimes

Each cell has the mean ratio of all seeds on a GPU, and the share of products with a ratio below
{BELOW[0]}. The regimes overlap. A *side* is the shorter one of C, a *single* product has no batch,
and the times are torch's."""
WITHOUT_EACH = """## Without each kernel

Every kernel that sums in the product's order was timed beside `auto`. The time of the fastest other
kernel is divided by that of the fastest kernel, which says how much slower products would be
without it: the geometric mean of *all*, and of *those* in which it is the fastest. `simt_thin` was
deleted after [this measurement](../notes/simt.md)."""


def surveys(results: Path) -> dict[str, dict]:
    """The surveys in a folder by their names, those of a kind together. Raises ResultsError."""
    names = [path.stem for path in results.glob("survey_*_[0-9]*.json")]

    def place(name: str) -> tuple:
        _, kind, *layers, seed = name.split("_")
        return ORDER.index(kind) if kind in ORDER else len(ORDER), kind, layers, int(seed)

    return {name: read(results / f"{name}.json") for name in sorted(names, key=place)}


def write(found: dict[str, dict]) -> str:
    """The text of docs/kernels/random.md."""
    if not found:
        return f"{INTRO}\n\n{NOTHING}\n"
    parts = [INTRO, SHOWN, SURVEYS, _surveys(found), BY_REGIME, _regimes(found)]
    return "\n\n".join(parts) + "\n"


def write_seeds(found: dict[str, dict]) -> dict[str, str]:
    """The site's page of every survey: its regimes, and what each kernel is worth."""
    parts = ["# Random products, by seed", "[Random products](random.md) explains the columns."]
    for name, survey in found.items():
        header = survey["header"]
        about = f"{len(survey['rows'])} products ([rows]({_file(name)})). {measured_on(header)}. "
        about += f"A kernel that writes one number takes {header['empty_us']['alone']:.2g} us in "
        about += "this way of timing."
        parts += [f"## {kind(header)}, seed {header['seed']}", about]
        parts.append(table(1, regimes(survey["rows"])))
    beside = [survey for survey in found.values() if survey["header"]["beside"]]
    if beside:
        parts.append(WITHOUT_EACH)
    for survey in beside:
        about = f"{kind(survey['header'])}, seed {survey['header']['seed']}, {_gpu(survey)}"
        parts += [f"### {about}", table(1, without_each(survey["rows"]))]
    return {SEEDS_PAGE: "\n\n".join(parts) + "\n"}


def _file(name: str) -> str:
    return f"../../benchmarks/results/{name}.json"


def _gpu(survey: dict) -> str:
    return survey["header"]["device"].removeprefix("NVIDIA ").split()[0]


def _surveys(found: dict[str, dict]) -> str:
    """A line for the surveys of a kind on a GPU at a commit, whatever their seeds."""
    alike: dict[tuple, dict[str, dict]] = {}
    for name, survey in found.items():
        header = survey["header"]
        key = kind(header), _gpu(survey), header["git_commit"] or "-", bool(header["beside"])
        alike.setdefault(key, {})[name] = survey
    lines = []
    for (products, gpu, commit, has_beside), some in alike.items():
        rows = [row for survey in some.values() for row in survey["rows"]]
        seeds = (f"[{x['header']['seed']}]({_file(name)})" for name, x in some.items())
        cells = summary([row["ratio"] for row in rows])
        count = cells.pop("products")
        cells.pop(f"below {BELOW[1]}")
        line = {"products": products, "GPU": gpu, "commit": commit, "seeds": ", ".join(seeds)}
        over = figure(over_best(rows) if has_beside else None, ".3f")
        lines.append({**line, "count": count, **cells, "over fastest": over})
    return table(4, lines)


def _regimes(found: dict[str, dict]) -> str:
    """A column for each kind of products and each GPU."""
    columns: dict[str, list[dict]] = {}
    for survey in found.values():
        name = f"{kind(survey['header'])}, {_gpu(survey)}".removeprefix("float32, ")
        columns.setdefault(name, []).extend(survey["rows"])
    lines: dict[str, dict[str, str]] = {}
    for name, rows in columns.items():
        for cells in regimes(rows):
            line = lines.setdefault(cells["regime"], {"regime": cells["regime"]})
            shown = f"{cells['mean']}, {cells[f'below {BELOW[0]}']}"
            line[name] = "-" if cells["products"] == "0" else shown
    return table(1, list(lines.values()))


def draw(found: dict[str, dict], path: Path) -> None:
    """A panel for each kind of products, with those of its first survey."""
    first: dict[str, dict] = {}
    for survey in found.values():
        first.setdefault(kind(survey["header"]), survey)
    lines = -(-len(first) // 2)
    shared = {"sharex": True, "sharey": True, "squeeze": False}
    figure, every = plots.subplots(lines, 2, size=(8, 0.6 + 2.8 * lines), **shared)
    for axes in every.flat[len(first) :]:
        axes.set_visible(False)
    for axes, (name, survey) in zip(every.flat, first.items(), strict=False):
        rows = survey["rows"]
        plots.add_dots(axes, *([row[x] for row in rows] for x in ("peer_us", "ratio")))
        plots.set_numbers(axes.xaxis, 1)
        plots.set_numbers(axes.yaxis, 1, 2, 5)
        axes.axhline(1, color=plots.BLACK, linewidth=1)
        axes.set_title(f"{name.replace('`', '')}, {survey['header']['device']}", fontsize="small")
    figure.supxlabel("torch's time, us", fontsize="medium")
    figure.supylabel("torch's time / ours", fontsize="medium")
    plots.save(figure, path)
