"""README.md, limits.md, docs/kernels/results*.md and the plots show the committed results."""

import json
import re

import limits
import pages
import pytest
import random_page
import report
import result_tables
import rows
import shapes
import speed_plots
import stream_pipeline
import suites
import write_pages

from torch_tiled.stream.machine import Machine

RESULTS = write_pages.RESULTS
AGAIN = "python benchmarks/write_pages.py"


@pytest.fixture(scope="module")
def measured():
    return rows.read(RESULTS / "hopper.json")


def test_every_page_is_what_the_results_say():
    stale = [
        str(page.relative_to(write_pages.ROOT))
        for page, text in write_pages.texts(RESULTS).items()
        if page.read_text() != text
    ]
    assert stale == [], f"write them anew: {AGAIN}"


DRAWINGS = write_pages.drawings(RESULTS)


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_plots_are_what_the_results_say(tmp_path, path):
    """To the byte where the same matplotlib drew them; with others the text has to be the same."""
    matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
    DRAWINGS[path](tmp_path / path.name)
    drawn, kept = (file.read_text() for file in (tmp_path / path.name, path))
    if f"Matplotlib v{matplotlib.__version__}," in kept:
        assert drawn == kept, f"draw it anew: {AGAIN}"
    words = re.compile(r"<text[^>]*>(.*?)</text>")
    assert words.findall(drawn) == words.findall(kept) != []


def test_plots_take_results_that_have_little(tmp_path, measured):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    ieee = rows.select(measured["rows"], precision="ieee")[:3]
    errors = rows.read(RESULTS / "errors_hopper.json")
    few = {
        "which_way": {"header": measured["header"], "rows": []},
        "hopper": measured | {"rows": ieee},
        "errors_hopper": errors | {"rows": errors["rows"][:1]},
    }
    for name in write_pages.SUITES:
        found = rows.read(RESULTS / f"{name}.json")
        few[name] = found | {"rows": found["rows"][:1]}
    for path, (name, draw) in write_pages.PLOTS.items():
        draw(few[name], tmp_path / path.name)
        assert "</svg>" in (tmp_path / path.name).read_text()


@pytest.mark.parametrize(
    "size, budget", [(stream_pipeline.SIZE, stream_pipeline.BUDGET), (9000, 1 << 30)]
)
def test_the_drawn_queues_end_when_their_plan_says(size, budget):
    plan = stream_pipeline.planned(size, budget)
    assert plan.grid.slices == 1 and plan.grid.rows * plan.grid.cols > 1
    spans = [*stream_pipeline.spans_of(plan)]
    assert spans[-1].end == pytest.approx(plan.seconds - Machine().call_seconds)
    for queue in stream_pipeline.QUEUES:
        times = [each for span in spans if span.queue == queue for each in (span.start, span.end)]
        assert times == sorted(times)
    loaded = [span for span in spans if span.queue == "in"]
    seconds = sum(span.end - span.start for span in loaded)
    assert seconds == pytest.approx(plan.in_seconds)


@pytest.mark.parametrize(
    "name, ways", [("float64", speed_plots.F64_WAYS), ("complex", speed_plots.COMPLEX_WAYS)]
)
def test_plots_by_size_have_every_way_of_their_file(name, ways):
    found = rows.read(RESULTS / f"{name}.json")["rows"]
    assert {(row["dtype"], row["precision"]) for row in found} == set(ways.values())
    for way in ways.values():
        sizes = rows.squares(found, "auto", *way)
        assert len(sizes) >= 7 and max(sizes) >= 4096


def test_no_ratio_of_the_limits_is_written_by_hand():
    """Ratios that were typed in stayed as they were when products were measured anew."""
    text = limits.PAGE.read_text().partition("### Anything else")[0]
    by_hand = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    assert len(by_hand) < len(text) / 2
    assert re.findall(r"\d\.\d", by_hand) == []


def test_the_readme_shows_plots_that_are_drawn_from_results():
    text = write_pages.README.read_text()
    images = re.findall(r'<img src="([^"]+)"', text)
    assert images == ["docs/speed.svg", "docs/error.svg"]
    assert {write_pages.ROOT / image for image in images} <= set(write_pages.PLOTS)


# --- the committed results -----------------------------------------------------------------------


def test_every_row_names_its_kernel_and_its_tile(measured):
    for row in measured["rows"]:
        assert row["kernel"] in rows.kernels()
        assert re.fullmatch(r"\d+x\d+", row["tile"])
        assert row["algorithm"] == "auto" or row["kernel"].startswith(row["algorithm"])
    for name in (*write_pages.SURVEYS, *random_page.surveys(RESULTS)):
        survey = rows.read(RESULTS / f"{name}.json")
        assert {row["kernel"] for row in survey["rows"]} <= set(rows.kernels())


def test_every_row_is_in_a_table_of_a_family(measured):
    written = result_tables.write_pages(measured, {})
    lines = [line for name in result_tables.FAMILIES for line in written[name].splitlines()]
    assert len([line for line in lines if re.match(r"\| [NT]{2} \|", line)]) == len(
        measured["rows"]
    )


# --- pages made of a few rows --------------------------------------------------------------------


def row(suite="square", size=512, **other):
    found = {"suite": suite, "group": "", "dtype": "float32", "precision": "fp32"}
    found |= {"algorithm": "auto", "kernel": "fp16x3_wgmma", "tile": "128x128", "layout": "NN"}
    found |= {"variant": "plain", "batch": 1, "m": size, "n": size, "k": size, "us": 10.0}
    found |= {"tflops": 20.0, "ratio": 2.0, "peer": "cuBLAS", "copy_us": None, "error": 1e-7}
    found |= {"peer_error": 4e-7, "gflops_per_watt": None, "peer_gflops_per_watt": None}
    return found | other


def results(*found, **header):
    header = {"device": "one", "torch": "2", "cuda": None, "git_commit": None} | header
    header |= {"time": "now", "command_line": "bench", "geometric_means": []}
    header |= {"geometric_means": report.geometric_means(found)}
    return {"header": header, "rows": list(found)}


def survey(sides, *found):
    return {"header": {"sides": sides}, "rows": [each | {"over_aligned": 1.5} for each in found]}


def test_limits_have_the_share_of_random_products_that_are_slower():
    header = {"device": "NVIDIA H100 80GB", "dtype": "float32", "precision": "ieee", "model": False}
    found = row(m=1, n=9, ratio=0.5), row(ratio=0.9), row(ratio=2.0), row(ratio=1.5)
    surveys = {"survey_ieee_1": {"header": header, "rows": list(found)}}
    lines = limits.write_random(surveys).splitlines()
    assert lines[2:] == ['| float32, `"ieee"` | 4 | 50% | 0.50 | H100 |']
    wide = {"survey_ieee_1": {"header": header, "rows": [row()]}}
    assert limits.write_random(wide).splitlines()[2:] == [
        '| float32, `"ieee"` | 1 | 0% | - | H100 |'
    ]


def test_batches_of_small_and_of_large_products_have_lines_of_their_own():
    """Batches of large products were hidden behind "batches with K from 64 on"."""
    large = row("batched", batch=32, m=2048, n=2048, k=128, ratio=1.8)
    small = row("batched", batch=384, m=128, n=128, k=64, ratio=0.6)
    lines = limits.write_fp32(results(large, small)).splitlines()[2:]
    assert lines == [
        "| batches of 64 x 64 to 128 x 128, K from 64 | 1 | 0.60 | 0.60 |",
        "| batches of 2048 x 2048 and 2048 x 128 | 1 | 1.80 | 1.80 |",
    ]


def test_limits_have_means_and_ranges():
    lines = limits.write_ieee(
        results(row("ieee", precision="ieee"), row("ieee", precision="ieee", ratio=0.5))
    )
    assert lines.splitlines()[-1] == "| squares, 128 to 16384 | 2 | 1.00 | 0.50 to 2.00 |"
    told = limits.write_surveys({"odd": survey("odd", row(m=1, k=5001, ratio=0.5), row())})
    assert told.splitlines()[-1] == "| slower, with other sizes | 0 of 1 |"
    assert "| slower, with one row or column | 1 of 1, 0.50 at worst (1 x 512 x 5001) |" in told


def test_suites_that_were_not_measured_have_no_lines():
    scaled = row("opposed", size=4096, variant="opposed", ratio=3.0)
    zeros = row("padded", size=4096, variant="padded", ratio=4.0)
    plain = [row("opposed", size=4096), row("padded", size=4096, variant="decayed")]
    lines = limits.write_fp32(results(scaled, zeros, *plain)).splitlines()[2:]
    assert lines == [
        "| a's columns and b's rows scaled against each other | 1 | 3.00 | 3.00 |",
        "| decayed weights, half of the rows padded with zeros | 1 | 4.00 | 4.00 |",
    ]
    text = result_tables.write_pages(results(scaled, zeros, *plain), {})["results_fp32"]
    headings = ["opposed, variant opposed", "opposed", "padded, variant decayed"]
    assert {f"## {heading}" for heading in headings} <= set(text.splitlines())
    assert len(limits.write_fp32(results(row())).splitlines()) == 2 + 1
    assert "opposed" not in result_tables.write_pages(results(row()), {})["results_fp32"]


def test_means_name_the_kernels_that_ran():
    found = [row(), row(size=256, kernel="fp16x3_small"), row(size=128, kernel="fp16x3_small")]
    text = result_tables.write_pages(results(*found), {})["results"]
    means = "| square |  | float32 | fp32 | auto | fp16x3_small 2, fp16x3_wgmma 1 | 3 | 2.00 |"
    assert means in text
    assert "Host time" not in text and "Random sizes" not in text


def test_results_of_a_run_become_pages(bench, monkeypatch):
    square = shapes.Suite("for tests", (shapes.Shape(8, 8, 8), shapes.Shape(8, 8, 9)))
    monkeypatch.setitem(suites.SUITES, "square", square)
    _, found, _ = bench("--suite", "square", "--device", "cpu", "--overhead")
    text = result_tables.write_pages(found, {})
    assert "| NN | `auto` | `torch.matmul` | - | 8 | 8 | 9 | " in text["results_fp32"]
    assert "`torch_tiled.matmul`" in text["results"]
    powered = [each | {"gflops_per_watt": 20.0} for each in found["rows"]]
    text = result_tables.write_pages(found | {"rows": powered}, {})
    assert "GFLOP/s per watt | peer's |" in text["results_fp32"]


# --- pages and results that are refused ----------------------------------------------------------

BEGIN, END = pages.markers("table")


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_a_page_without_its_markers_is_refused_in_a_sentence(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(pages.PageError, match="must hold <!-- table:begin --> once"):
        pages.with_blocks(page, {"table": "new"})
    assert page.read_text() == text


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert pages.with_blocks(page, {"table": "new"}) == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, "cannot be read"),
        ("{", "is not a JSON file"),
        ("[]", "is no results file: it has no header and rows."),
        ('{"header": {}, "rows": []}', "another version of this benchmark wrote it"),
    ],
)
def test_missing_or_old_results_are_refused_in_a_sentence(tmp_path, capsys, content, sentence):
    for name in ("hopper", "front_page", "which_way", *write_pages.SURVEYS):
        if content is not None:
            (tmp_path / f"{name}.json").write_text(content)
    before = write_pages.README.read_text()
    assert write_pages.main(["--results", str(tmp_path)]) == 1
    assert sentence in capsys.readouterr().out
    assert write_pages.README.read_text() == before


def test_a_results_file_keeps_its_format():
    """One space of indentation, which keeps the differences of a new run small.

    Surveys of random products have many rows, and a line for each.
    """
    surveys = random_page.surveys(RESULTS)
    for path in RESULTS.glob("*.json"):
        results = json.loads(path.read_text())
        one_space = json.dumps(results, indent=1) + "\n"
        assert path.read_text() == (rows.in_lines(results) if path.stem in surveys else one_space)
