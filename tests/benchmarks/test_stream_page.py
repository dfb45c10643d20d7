"""The generated parts of docs/guide/stream.md: what they say of results."""

import json
import re
import shutil

import pytest

from benchmarks.pages import __main__ as write_pages
from benchmarks.pages import markdown as pages
from benchmarks.pages import stream as stream_page

HEADER = {"device": "one", "torch": "2", "cuda": None, "git_commit": None, "time": "now"}
HEADER |= {"budget": 16 << 30}


def row(way, size=8192, dtype="float32", **other):
    found = {"way": way, "size": size, "dtype": dtype, "seconds": 2.0, "tflops": 50.0}
    found |= {"ratio": None, "error": 1e-7, "equal": None, "plan": None, "failure": None}
    return found | other


def streamed(size=8192, dtype="float32", **other):
    plan = {"bytes_in": 10**9, "in_seconds": 5.0, "seconds": 1.9}
    return row("stream", size, dtype, **{"plan": plan, "ratio": 0.9, "equal": True} | other)


def link(rate=1.0):
    return {"way": "link", "direction": "in", "gb_per_second": rate, "failure": None}


def results(*rows):
    return {"header": HEADER, "rows": list(rows)}


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_what_is_hidden_is_told_by_the_measured_rate_of_the_link():
    inner = row("in_core", seconds=1.75)
    # 10**9 bytes take a second, and the product waits for a quarter of it.
    assert stream_page.hidden(results(link(), streamed(), inner), "float32", 8192) == 0.75
    by_plan = stream_page.hidden(results(streamed(), inner), "float32", 8192)
    assert by_plan == pytest.approx(1 - 0.25 / 5)
    failed = row("in_core", seconds=None, tflops=None)
    assert stream_page.hidden(results(link(), streamed(), failed), "float32", 8192) is None
    assert stream_page.hidden(results(link(), inner), "float32", 8192) is None


def test_tables_have_the_ways_that_were_measured():
    inner, loop = row("in_core", seconds=1.75), row("loop", tflops=20.0, error=2e-7)
    failed = streamed(16384, seconds=None, tflops=None, ratio=None, equal=None, error=None)
    pageable = row("pageable", equal=False)
    measured = results(link(), streamed(), inner, failed, loop, pageable)
    heading, _, *lines = map(cells, stream_page.write_rates(measured).splitlines())
    assert heading[3:6] == ["within the GPU", "streamed, pageable", "loop"]
    first = ["float32", "8192", "50", "50", "50", "20", "0.90", "0.75"]
    assert lines == [first, ["float32", "16384", *"------"]]
    heading, _, *lines = map(cells, stream_page.write_seconds(measured).splitlines())
    assert heading[2:] == ["streamed, s", "predicted", "streamed, pageable, s", "predicted"]
    first = ["float32", "8192", "2", "1.9", "2", "-"]
    assert lines == [first, ["float32", "16384", "-", "1.9", *"--"]]
    heading, _, *lines = map(cells, stream_page.write_errors(measured).splitlines())
    assert lines[0][2:] == ["1.0e-07", "1.0e-07", "1.0e-07", "2.0e-07", "different"]
    assert lines[1][-1] == "-"
    same = stream_page.write_errors(results(streamed())).splitlines()[-1]
    assert cells(same)[-1] == "equal"
    assert stream_page.write_links(measured).endswith("| in | 1 |")
    assert stream_page.write_source(measured).endswith("with `max_device_bytes` of 16 GiB.")


def test_peers_may_have_a_run_of_their_own():
    ours = results(streamed(), row("in_core", tflops=40.0), row("loop", tflops=1.0))
    theirs = results(streamed(tflops=30.0), row("loop", tflops=20.0), row("cublasxt", tflops=25.0))
    measured = ours | {"peers": theirs}
    heading, _, *lines = map(cells, stream_page.write_rates(measured).splitlines())
    assert heading[2:6] == ["streamed, TFLOP/s", "within the GPU", "loop", "cublasXt"]
    assert lines == [["float32", "8192", "50", "40", "20", "25", "0.90", "1.00"]]
    assert stream_page.write_source(measured).count("easured on one") == 2


@pytest.mark.parametrize("rows", [[], [streamed(seconds=None, tflops=None)], [link(), streamed()]])
def test_the_plot_takes_results_that_have_little(tmp_path, rows):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    stream_page.draw(results(*rows), tmp_path / "plot.svg")
    assert "</svg>" in (tmp_path / "plot.svg").read_text()


def test_the_plot_has_a_line_for_each_way_and_a_panel_for_each_dtype(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    rows = [link()]
    for size in (8192, 16384):
        rows += [streamed(size), row("in_core", size), streamed(size, "bfloat16")]
        rows += [row("loop", size), row("loop_tf32", size), row("cublasxt", size)]
    stream_page.draw(results(*rows), tmp_path / "plot.svg")
    words = re.findall(r"<text[^>]*>(.*?)</text>", (tmp_path / "plot.svg").read_text())
    names = {"streamed", "within the GPU", "loop", "loop, TF32", "cublasXt"}
    assert {*names, "float32", "bfloat16", "8192", "16384"} <= set(words)


def test_the_page_is_written_where_its_results_are_there(tmp_path, monkeypatch):
    folder, page = tmp_path / "results", tmp_path / "stream.md"
    shutil.copytree(write_pages.RESULTS, folder)
    for name in (stream_page.NAME, stream_page.PEERS_NAME):
        (folder / f"{name}.json").unlink(missing_ok=True)
    monkeypatch.setattr(stream_page, "PAGE", page)
    assert page not in write_pages.texts(folder)
    assert stream_page.PLOT not in write_pages.drawings(folder)
    marks = ("\n".join(pages.markers(name)) for name in stream_page.BLOCKS)
    page.write_text("before\n" + "\n".join(marks) + "\n")
    (folder / "stream.json").write_text(json.dumps(results(link(), streamed())))
    text = write_pages.texts(folder)[page]
    assert text.startswith("before\n") and "| float32 | 8192 | 2 | 1.9 |" in text
    (folder / "stream_peers.json").write_text(json.dumps(results(row("loop", tflops=3.5))))
    assert "| float32 | 8192 | 50 | 3.5 |" in write_pages.texts(folder)[page]
    assert stream_page.PLOT in write_pages.drawings(folder)
