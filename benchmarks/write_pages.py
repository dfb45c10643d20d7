"""Writes the pages and the plots that show results: README, docs/kernels and docs/guide.

    python benchmarks/write_pages.py
    python benchmarks/write_pages.py --results folder

The folder has hopper.json, float64.json and complex.json of bench_matmul.py, errors_hopper.json of
error_study.py, survey_odd.json and survey_eights.json of an older survey.py, any number of
survey_<precision or dtype>_<seed>.json of survey.py, and of bench_stream.py stream.json and
stream_peers.json where they were measured; front_page.json of front_page.py, and which_way.json of
which_way.py. tests/project/test_pages.py fails where a page differs
from these.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import ladder
import limits
import random_page
import readme
import result_tables
import speed_plots
import stream_page
import stream_pipeline
import which_product
from pages import PageError, measured_on, with_blocks, written
from rows import ResultsError, read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
KERNELS = ROOT / "docs" / "kernels"
SUITES = {"float64": KERNELS / "f64.md", "complex": KERNELS / "complex.md"}  # a file's suites
SURVEYS = ("survey_odd", "survey_eights")
# The plots: the file, the results that it shows, and what draws it.
PLOTS = {
    ROOT / "docs" / "speed.svg": ("hopper", speed_plots.draw_speed),
    ROOT / "docs" / "error.svg": ("errors_hopper", speed_plots.draw_error),
    KERNELS / "ladder_rungs.svg": ("hopper", speed_plots.draw_kernels),
    KERNELS / "ladder_sizes.svg": ("hopper", speed_plots.draw_sizes),
    KERNELS / "f64_sizes.svg": ("float64", speed_plots.draw_f64_sizes),
    KERNELS / "complex_sizes.svg": ("complex", speed_plots.draw_complex_sizes),
    which_product.PAGE.with_suffix(".svg"): ("which_way", which_product.draw),
}


def texts(results: Path) -> dict[Path, str]:
    """Returns the text of every page that shows results. Raises ResultsError or PageError."""
    file = results / "hopper.json"
    measured = read(file)
    surveys = {name: read(results / f"{name}.json") for name in SURVEYS}
    front, ways = results / "front_page.json", results / "which_way.json"
    ratios = {
        **limits.BLOCKS,
        "random": lambda measured: limits.write_random(random_page.surveys(results)),
        "surveys": lambda measured: limits.write_surveys(surveys),
    }
    source = {"source": lambda measured: f"{measured_on(measured['header'])}."}
    choice, tf32 = source | which_product.BLOCKS, source | which_product.TF32_BLOCKS
    tables = {"pages": lambda measured: result_tables.write_pages(measured, surveys)}
    pages = {
        ladder.PAGE: with_blocks(ladder.PAGE, written(str(file), ladder.BLOCKS, measured)),
        limits.PAGE: with_blocks(limits.PAGE, written(str(file), ratios, measured)),
        which_product.PAGE: with_blocks(which_product.PAGE, written(str(ways), choice, read(ways))),
        which_product.TF32_PAGE: with_blocks(
            which_product.TF32_PAGE, written(str(file), tf32, measured)
        ),
        README: with_blocks(README, written(str(front), readme.BLOCKS, read(front))),
    }
    for name, page in SUITES.items():
        found = results / f"{name}.json"
        pages[page] = with_blocks(page, written(str(found), source, read(found)))
    if streamed := stream_page.read_results(results):
        blocks = written(f"{results}/stream*.json", stream_page.BLOCKS, streamed)
        pages[stream_page.PAGE] = with_blocks(stream_page.PAGE, blocks)
    for name, text in written(str(file), tables, measured)["pages"].items():
        pages[KERNELS / f"{name}.md"] = text
    random = written(str(results), {"random": random_page.write}, random_page.surveys(results))
    return pages | {KERNELS / "random.md": random["random"]}


def drawings(results: Path) -> dict[Path, Callable[[Path], None]]:
    """Returns what draws each plot to a path. Raises ResultsError."""
    drawn = {
        path: partial(draw, read(results / f"{name}.json")) for path, (name, draw) in PLOTS.items()
    }
    if surveys := random_page.surveys(results):
        drawn[KERNELS / random_page.PLOT] = partial(random_page.draw, surveys)
    if streamed := stream_page.read_results(results):
        drawn[stream_page.PLOT] = partial(stream_page.draw, streamed)
    return drawn | {stream_pipeline.PLOT: stream_pipeline.draw}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="default: benchmarks/results",
    )
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
    sys.exit(main())
