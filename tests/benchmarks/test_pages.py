"""README.md, limits.md, docs/kernels/results*.md and the plots show the committed results."""

import json
import re

import pytest

from benchmarks.pages import __main__ as write_pages
from benchmarks.pages import files, limits, result_tables, rows, stream, surveys
from benchmarks.pages import markdown as pages
from benchmarks.suites import shapes, suites

RESULTS = write_pages.RESULTS
AGAIN = "python -m benchmarks.pages"


@pytest.fixture(scope="module")
def measured():
    return files.read(RESULTS / "hopper.json")


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


GONE = {"simt_thin"}  # kernels that were deleted after they were measured


def test_every_row_names_its_kernel_and_its_tile(measured):
    known = GONE | set(rows.kernels())
    for row in measured["rows"]:
        assert row["kernel"] in known
        assert re.fullmatch(r"\d+x\d+", row["tile"])
        assert row["algorithm"] == "auto" or row["kernel"].startswith(row["algorithm"])
    for survey in surveys.surveys(RESULTS).values():
        assert {row["kernel"] for row in survey["rows"]} <= known


def test_every_row_is_in_a_table_of_the_site(measured):
    text = "\n".join(result_tables.write_rows(measured).values())
    assert len(re.findall(r"^\| [NT]{2} \|", text, re.MULTILINE)) == len(measured["rows"])
    found = surveys.surveys(RESULTS)
    (seeds,) = surveys.write_seeds(found).values()
    assert seeds.count("\n| all |") == len(found)


def test_pages_have_few_words():
    for name in ("results", "random"):
        assert len((write_pages.KERNELS / f"{name}.md").read_text().split()) <= 1500


def test_results_of_a_run_become_pages(bench, monkeypatch):
    square = shapes.Suite("for tests", (shapes.Shape(8, 8, 8), shapes.Shape(8, 8, 9)))
    monkeypatch.setitem(suites.SUITES, "square", square)
    _, found, _ = bench("--suite", "square", "--device", "cpu")
    text = result_tables.write_rows(found)
    assert "| square |  | float32 | fp32 | auto | torch.matmul | 2 | " in text["results_means"]
    row = "| NN | `auto` | `torch.matmul` | - | 8 | 8 | 9 | "
    assert row in text["results_fp32"]


def test_what_is_hidden_is_told_by_the_measured_rate_of_the_link():
    plan = {"bytes_in": 10**9, "in_seconds": 5.0}
    same = {"dtype": "float32", "size": 8192}
    ours = same | {"way": "stream", "seconds": 2.0, "plan": plan}
    inner = same | {"way": "in_core", "seconds": 1.75, "plan": None}
    link = {"way": "link", "direction": "in", "gb_per_second": 1.0}

    def hidden(*found):
        return stream.hidden({"rows": list(found)}, "float32", 8192)

    # 10**9 bytes take a second, and the product waits for a quarter of it.
    assert hidden(link, ours, inner) == 0.75
    assert hidden(ours, inner) == pytest.approx(1 - 0.25 / 5)
    assert hidden(link, ours, inner | {"seconds": None}) is hidden(link, inner) is None


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
    for name in ("hopper", "front_page", "which_way", "survey_fp32_5"):
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
    kept_in_lines = surveys.surveys(RESULTS)
    for path in RESULTS.glob("*.json"):
        results = json.loads(path.read_text())
        one_space = json.dumps(results, indent=1) + "\n"
        expected = files.in_lines(results) if path.stem in kept_in_lines else one_space
        assert path.read_text() == expected
