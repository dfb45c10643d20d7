"""`make bench` without arguments: the suites headline and host, their tables and the plot."""

import pytest
import torch

from benchmarks.gemm import __main__ as gemm
from benchmarks.gemm import report
from benchmarks.gemm.jobs import plan
from benchmarks.gemm.options import parse
from benchmarks.pages import plots
from benchmarks.suites import suites
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
    assert {report.kind(vars(job)) for job in jobs} == set(KINDS)
    assert len(set(map(str, jobs))) == len(jobs) <= 15


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


@pytest.fixture
def small_headline(monkeypatch, tmp_path):
    """The suite headline of small shapes, and where it is drawn."""
    small = (
        Shape(33, 34, 35, ways=suites.EVERY_KIND),
        Shape(3, 4, 150, batch=2, layout="NT", ways=suites.FP32),
    )
    monkeypatch.setitem(suites.SUITES, "headline", Suite("for tests", small, summary=True))
    monkeypatch.setattr(gemm, "PLOT", tmp_path / "build" / "headline.svg")
    return gemm.PLOT


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
