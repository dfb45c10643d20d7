"""Writes the pages and the plots that show results: README, and docs/kernels, guide and course.

    python -m benchmarks.pages
    python -m benchmarks.pages --results folder

The folder has hopper.json, float64.json and complex.json of benchmarks.gemm, host.json, layers.json
and front_page.json of benchmarks.suites, errors_*.json, complex_errors_*.json, which_way.json and
course.json of benchmarks.studies, stream.json and stream_peers.json of benchmarks.stream, and any
number of survey_<precision or dtype>_<seed>.json of benchmarks.survey.
tests/benchmarks/test_pages.py fails if a page differs from these. tools/result_pages.py adds pages
with every row to the site.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.command import Parser, exit_with
from benchmarks.pages import (
    course,
    error_plots,
    ladder,
    limits,
    readme,
    result_tables,
    speed_plots,
    which_product,
)
from benchmarks.pages import stream as stream_page
from benchmarks.pages import surveys as random_page
from benchmarks.pages.files import ResultsError, read
from benchmarks.pages.markdown import PageError, measured_on, with_blocks, written
from benchmarks.suites.layers import SUITES as LAYERS

README = ROOT / "README.md"
KERNELS = ROOT / "docs" / "kernels"
SUITES = {"float64": KERNELS / "f64.md", "complex": KERNELS / "complex.md"}  # a file's suites
# The plots: the file, the results that it shows, and what draws it.
PLOTS = {
    ROOT / "docs" / "speed.svg": ("hopper", speed_plots.draw_speed),
    ROOT / "docs" / "error.svg": ("errors_hopper", speed_plots.draw_error),
    **{
        ROOT / "docs" / "guide" / f"{name}_{device}.svg": (f"{name}_{device}", draw)
        for name, draw in (
            ("errors", error_plots.draw_study),
            ("complex_errors", error_plots.draw_complex),
        )
        for device in ("cpu", "hopper")
    },
    KERNELS / "ladder_rungs.svg": ("hopper", speed_plots.draw_kernels),
    KERNELS / "ladder_sizes.svg": ("hopper", speed_plots.draw_sizes),
    KERNELS / "f64_sizes.svg": ("float64", speed_plots.draw_f64_sizes),
    KERNELS / "complex_sizes.svg": ("complex", speed_plots.draw_complex_sizes),
    KERNELS / "attention.svg": ("layers", speed_plots.draw_attention),
    which_product.PAGE.with_suffix(".svg"): ("which_way", which_product.draw),
    course.STAIRCASE: ("course", course.draw_staircase),
}


def texts(results: Path) -> dict[Path, str]:
    """Returns the text of every page that shows results. Raises ResultsError or PageError."""
    surveys = random_page.surveys(results)
    random = {"random": lambda _: limits.write_random(surveys)}
    source = {"source": lambda measured: f"{measured_on(measured['header'])}."}
    layers = {x: functools.partial(result_tables.write_layers, suite=x) for x in LAYERS}
    blocks = [
        (ladder.PAGE, "hopper", ladder.BLOCKS),
        (limits.PAGE, "hopper", limits.BLOCKS | random),
        (which_product.PAGE, "which_way", source | which_product.BLOCKS),
        (README, "front_page", readme.BLOCKS),
        *((page, name, source) for name, page in SUITES.items()),
        (KERNELS / "layers.md", "layers", source | layers),
        *((page, "course", writers) for page, writers in course.blocks().items()),
    ]
    pages, cached = {}, functools.cache(read)
    for page, name, writers in blocks:
        file = results / f"{name}.json"
        pages[page] = with_blocks(page, written(str(file), writers, cached(file)))
    streamed = stream_page.read_results(results)
    tables = written(f"{results}/stream*.json", stream_page.BLOCKS, streamed)
    pages[stream_page.PAGE] = with_blocks(stream_page.PAGE, tables)
    hopper, host = results / "hopper.json", results / "host.json"
    about = written(str(hopper), {"about": result_tables.write_about}, cached(hopper))["about"]
    times = written(str(host), {"host": result_tables.write_host}, cached(host))["host"]
    pages |= {KERNELS / "results.md": f"{about}\n{times}\n"}
    every = written(str(results), {"random": random_page.write}, surveys)["random"]
    return pages | {KERNELS / "random.md": every}


def drawings(results: Path) -> dict[Path, Callable[[Path], None]]:
    """Returns what draws each plot to a path. Raises ResultsError."""
    drawn = {
        path: functools.partial(draw, read(results / f"{name}.json"))
        for path, (name, draw) in PLOTS.items()
    }
    return drawn | {
        KERNELS / random_page.PLOT: functools.partial(
            random_page.draw, random_page.surveys(results)
        ),
        stream_page.PLOT: functools.partial(stream_page.draw, stream_page.read_results(results)),
    }


def main(argv: list[str] | None = None) -> int:
    parser = Parser("benchmarks.pages", __doc__, computes=False, writes=False)
    default = {"default": RESULTS, "help": "default: benchmarks/results"}
    parser.add_argument("--results", type=Path, metavar="FOLDER", **default)
    args = parser.parse_args(argv)
    try:
        pages = texts(args.results)
        plots = drawings(args.results)
    except (ResultsError, PageError) as error:
        print(error)
        return 1
    for page, text in pages.items():
        page.write_text(text)
    for path, draw in plots.items():
        draw(path)
    return 0


if __name__ == "__main__":
    exit_with(main)
