"""`make bench` without arguments: the suites headline and host, their tables and the plot."""

import pytest
import torch

from benchmarks.gemm import __main__ as bench_matmul
from benchmarks.gemm import report
from benchmarks.gemm.jobs import Job, plan
from benchmarks.gemm.options import parse
from benchmarks.pages import plots
from benchmarks.suites import headline, suites
from benchmarks.suites.shapes import Shape, Suite

KINDS = ["fp32", "ieee", "tf32", "bfloat16", "float64"]


def default_jobs(monkeypatch, *, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    return plan(parse([]))


def test_a_gpu_measures_the_headline(monkeypatch):
    jobs = default_jobs(monkeypatch, gpu=True)
    assert {(job.suite, job.algorithm, job.variant) for job in jobs} == {
        ("headline", "auto", "plain")
    }
    assert len(set(map(str, jobs))) == len(jobs) <= 15

    def squares(dtype, precision):
        kinds = [job.shape for job in jobs if (job.dtype, job.precision) == (dtype, precision)]
        return [x.m for x in kinds if x.m == x.n == x.k and x.batch == 1]

    assert squares("float32", "fp32") == [1024, 2048, 4096, 8192, 16384]
    assert squares("float32", "ieee") == squares("float32", "tf32") == [4096]
    assert squares("bfloat16", "fp32") == squares("float64", "fp32") == [4096]
    shapes = [job.shape for job in jobs]
    assert any(x.m % 2 and x.n % 2 and x.k % 2 and x.m > 1 for x in shapes)
    assert any(x.m <= 16 for x in shapes) and any(x.batch > 1 for x in shapes)


def test_a_cpu_measures_every_order_of_the_host(monkeypatch):
    jobs = default_jobs(monkeypatch, gpu=False)
    assert {job.suite for job in jobs} == {"host"} and len(jobs) <= 10
    assert {job.algorithm for job in jobs} == {"naive", "tiled", "fp16x3", "tf32", "mma"}


def test_what_is_asked_for_replaces_the_ways_of_a_shape(monkeypatch):
    def asked(*arguments):
        jobs = plan(parse(["--suite", "host", "--device", "cpu", *arguments]))
        return {(job.dtype, job.precision, job.algorithm) for job in jobs}

    assert asked("--dtype", "bfloat16") == {("bfloat16", "fp32", "auto")}
    assert asked("--precision", "ieee") == {("float32", "ieee", "auto")}
    assert {algorithm for *_, algorithm in asked("--algorithm", "naive")} == {"naive"}


def test_the_host_is_one_table_under_a_line_that_says_so(bench):
    status, results, output = bench("--device", "cpu")
    assert status == 0 and len(results["rows"]) == 10
    lines = output.splitlines()
    assert lines[0].startswith("This compares host code with torch.matmul")
    table = lines[lines.index(next(x for x in lines if x.startswith("host: GFLOP/s"))) :]
    assert len([line for line in table if line.split()[:1] and line.split()[0] in KINDS]) == 10
    assert "geometric means" not in output and "plot" not in output


def test_an_algorithm_that_takes_no_shape_is_one_line():
    def job(algorithm, size):
        return Job("smoke", Shape(size, size, size), "float32", "fp32", algorithm, "plain")

    declined = [
        (job("naive", 3), "no."),
        (job("tiled", 5), "never."),
        (job("naive", 4), "neither."),
        (job("naive", 5), "nor here."),
    ]
    assert report.declinations(declined) == [
        "naive was not measured: 3x3x3 NN and 2 more: no.",
        "float32 fp32 5x5x5 NN tiled was not measured: never.",
    ]
    assert report.declinations([]) == []


@pytest.fixture
def small_headline(monkeypatch, tmp_path):
    """The suite headline of small shapes, and where it is drawn."""
    small = (
        Shape(33, 34, 35, ways=headline.EVERY_KIND),
        Shape(3, 4, 150, batch=2, layout="NT", ways=headline.FP32),
    )
    monkeypatch.setitem(suites.SUITES, "headline", Suite("for tests", small, summary=True))
    monkeypatch.setattr(headline, "PLOT", tmp_path / "build" / "headline.svg")
    return headline.PLOT


def test_the_headline_ends_with_a_plot(bench, small_headline, device):
    pytest.importorskip("matplotlib")
    status, results, output = bench("--suite", "headline", "--device", device)
    assert status == 0 and len(results["rows"]) == 6
    assert output.splitlines()[-1].startswith("The plot is in ")
    assert output.splitlines()[-1].endswith("build/headline.svg.")
    text = small_headline.read_text()
    for part in (*KINDS, "33x34x35 NN  ieee", "2 x 3x4x150 NT  fp32", "TFLOP/s", "float64"):
        assert part in text, part


def test_without_matplotlib_a_sentence_says_so(bench, small_headline, monkeypatch):
    def missing():
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(plots, "pyplot", missing)
    status, _, output = bench("--suite", "headline", "--device", "cpu")
    assert status == 0 and not small_headline.exists()
    assert output.endswith("No plot was drawn, since matplotlib is not installed.\n")


def test_the_widest_summary_fits_a_hundred_columns(bench, capsys):
    _, results, _ = bench("--shape", "5x6x7", "--device", "cpu")
    wide = {"suite": "headline", "m": 16384, "n": 16384, "k": 16384, "tflops": 207.0}
    wide |= {"kernel": "fp16x3_cluster", "peer": "torch.matmul", "dtype": "bfloat16"}
    batched = wide | {"batch": 32, "m": 2048, "n": 2048, "k": 2048, "layout": "NT"}
    rows = [results["rows"][0] | each for each in (wide, batched)]
    report.print_summaries(report.make_console(), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip().startswith("headline: TFLOP/s of torch_tiled and torch.matmul")
    assert max(map(len, lines)) <= report.WIDTH
    for cell in ("16384x16384x16384 NN", "32 x 2048x2048x2048 NT", "fp16x3_cluster", "207"):
        assert any(cell in line for line in lines), cell


def test_both_tables_are_printed_where_both_kinds_of_suites_ran(bench, small_headline):
    _, _, output = bench("--suite", "headline", "tiny", "--device", "cpu")
    assert "headline: " in output and "tiny: float32, precision fp32" in output
    assert "geometric means" in output
    assert bench_matmul.HOST_CODE.split(",")[0] in output
