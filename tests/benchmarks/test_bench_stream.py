"""The benchmark of streamed products: its rows, its peers, and what it does where one fails."""

import argparse
import ctypes

import numpy as np
import pytest
import torch

from benchmarks.stream import __main__ as bench_stream
from benchmarks.stream import cublasxt
from benchmarks.stream import run as stream_run
from benchmarks.stream import ways as stream_ways
from benchmarks.stream.run import Job, Run

CPU = torch.device("cpu")


@pytest.fixture
def bench(run_in_line):
    """Runs the benchmark on the CPU: (exit status, JSON, output in one line)."""
    quick = "--device cpu --repeats 1"
    return lambda options: run_in_line(bench_stream.main, f"{quick} {options}")


@pytest.fixture
def make_run():
    """Makes a Run whose memory is for one small size."""

    def make(**options):
        args = {"sizes": [20], "dtype": ["float32"], "peers": ["in_core"], "budget": 1 << 24}
        args |= {"repeats": 1, "device": "cpu", "json": None} | options
        run = Run(argparse.Namespace(**args), {})
        run.prepare()
        return run

    return make


def problem(m, n, k, dtype=torch.float32, budget=1 << 20):
    a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
    made = stream_ways.Problem(a, b, torch.empty(m, n, dtype=dtype), CPU, budget)
    made.fill()
    made.forget()
    return made


# --- a run ---------------------------------------------------------------------------------------


def test_a_run_has_a_row_for_each_way_dtype_and_size(bench):
    status, results, output = bench("--sizes 20 33 --budget 10000000 --commit abc")
    header, rows = results["header"], results["rows"]
    assert status == 0
    assert (header["sizes"], header["budget"], header["gpus"]) == ([20, 33], 10000000, 0)
    assert header["git_commit"] == "abc"
    products = [row for row in rows if row["way"] != "link"]
    ways = {"float32": ["stream", "in_core", "loop", "loop_tf32", "pageable"]}
    ways["bfloat16"] = [way for way in ways["float32"] if way != "loop_tf32"]
    wanted = {(way, dtype, n) for dtype in ways for way in ways[dtype] for n in (20, 33)}
    assert {(row["way"], row["dtype"], row["size"]) for row in products} == wanted
    assert len(products) == len(wanted)
    for row in products:
        assert row["failure"] is None and row["seconds"] > 0
        assert row["tflops"] == pytest.approx(2 * row["size"] ** 3 / row["seconds"] / 1e12)
        assert 0 < row["error"] < (1e-2 if row["dtype"] == "bfloat16" else 1e-6)
        assert row["is_pinned"] is False and row["peak_bytes"] is None
        assert (row["plan"] is not None) == (row["way"] in ("stream", "pageable"))
        assert row["equal"] == (True if row["plan"] else None)
        assert (row["block"] is not None) == row["way"].startswith("loop")
        other = {"stream": "in_core", "in_core": None}.get(row["way"], "stream")
        assert row["ratio_to"] == other and (row["ratio"] is None) == (other is None)
        if row["plan"]:
            assert row["plan"]["seconds"] > 0 and row["plan"]["device_bytes"] <= 10000000
    links = [row for row in rows if row["way"] == "link"]
    assert [row["direction"] for row in links] == ["in", "out", "both"]
    assert all(row["gb_per_second"] > 0 for row in links)
    assert "[13/13] pageable bfloat16 33" in output and "copies in out both" in output


def test_options_choose_the_rows(bench):
    status, results, _ = bench("--sizes 20 --dtype float64 --peers loop")
    assert status == 0
    assert [row["way"] for row in results["rows"]] == ["stream", "loop"]
    assert results["rows"][0]["ratio"] is results["rows"][0]["equal"] is None
    _, results, _ = bench("--sizes 20 --dtype float32 --peers")
    assert [row["way"] for row in results["rows"]] == ["stream"]


def test_what_needs_gpus_is_planned_where_there_are_some():
    args = bench_stream.parse("--sizes 8 9 --device cpu".split())
    on_cpu, one, two = ([job.way for job in stream_run.jobs(args, gpus)] for gpus in range(3))
    assert set(one) - set(on_cpu) == {"cublasxt", "staged link"}
    assert set(two) - set(one) == {"two_gpus"}
    assert one.count("cublasxt") == 2  # those of float32
    order = list(dict.fromkeys(two))
    assert order[:2] == ["link", "stream"] and order[-2:] == ["staged link", "pageable"]


# --- failures ------------------------------------------------------------------------------------


def test_a_way_that_fails_has_a_row_and_the_others_go_on(bench, monkeypatch):
    def fail(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(stream_run, "loop", fail)
    monkeypatch.setattr(stream_run, "link_calls", fail)
    status, results, output = bench("--sizes 20 --dtype float32 bfloat16")
    failures = {row["way"]: row["failure"] for row in results["rows"] if row["failure"]}
    assert status == 1
    assert failures == dict.fromkeys(("link", "loop", "loop_tf32"), "RuntimeError: no luck")
    assert "loop failed: RuntimeError: no luck; loop_tf32 failed: " in output
    whole = {"stream", "in_core", "pageable"}
    assert {row["way"] for row in results["rows"] if not row["failure"]} == whole


def test_without_memory_of_the_gpu_the_streamed_product_is_measured_alone(make_run, monkeypatch):
    def no_memory(_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(stream_run, "InCore", no_memory)
    monkeypatch.setattr(stream_ways, "InCore", no_memory)
    run = make_run()
    for way in ("stream", "pageable"):
        run.do(Job(way, "float32", 20))
    ours, inner, pageable = run.rows
    assert ours["seconds"] and ours["failure"] is None
    assert ours["equal"] is pageable["equal"] is None and pageable["ratio"] > 0
    assert inner["failure"] == "OutOfMemoryError: full" and inner["seconds"] is None


def test_an_interruption_keeps_the_rows(bench, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(stream_run, "loop", interrupt)
    status, results, output = bench("--sizes 20 --dtype float32 --peers in_core loop")
    assert status == 130 and output.endswith("what was measured before.")
    assert [row["way"] for row in results["rows"]] == ["stream", "in_core"]


# --- operands and judgements ---------------------------------------------------------------------


def test_a_wrong_element_is_seen():
    made = problem(40, 50, 30)
    made.c.copy_(made.a @ made.b)
    reference = made.c.clone()
    right = stream_ways.error_of(made)
    assert right < 1e-6 and stream_ways.is_equal(made.c, reference)
    made.c[39, 49] += 1
    assert stream_ways.error_of(made) > 1e-3 and not stream_ways.is_equal(made.c, reference)
    zero = torch.zeros(3, 3)
    assert not stream_ways.is_equal(zero, -zero)  # bits, rather than values


@pytest.mark.parametrize("budget, block", [(1 << 20, 128), (4 * 32 * (2 * 128 + 32), 32)])
def test_the_loop_multiplies_within_its_budget(budget, block):
    made = problem(100, 100, 128, budget=budget)
    assert stream_ways.loop_block(made) == block
    stream_ways.loop(made, block)
    assert stream_ways.error_of(made) < 1e-6


# --- cublasXt ------------------------------------------------------------------------------------


class Library:
    """Column-major products of the CPU, by the signatures of cublasXt.h."""

    def __init__(self):
        self.blocks, self.alive = [], 0

    def cublasXtCreate(self, handle):
        handle._obj.value = 7
        self.alive += 1
        return 0

    def cublasXtDestroy(self, handle):
        assert handle.value == 7
        self.alive -= 1
        return 0

    def cublasXtDeviceSelect(self, handle, count, numbers):
        assert list(numbers)[:count] == [0]
        return 0

    def cublasXtSetBlockDim(self, handle, size):
        self.blocks.append(size)
        return 0

    def cublasXtSgemm(self, handle, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        def matrix(address, rows, cols, pitch):
            assert pitch >= rows
            flat = np.ctypeslib.as_array((ctypes.c_float * (pitch * cols)).from_address(address))
            return flat.reshape(cols, pitch)[:, :rows].T

        assert (trans_a, trans_b, beta._obj.value) == (0, 0, 0)
        product = matrix(a, m, k, lda) @ matrix(b, k, n, ldb)
        matrix(c, m, n, ldc)[:] = alpha._obj.value * product
        return 0


def test_cublasxt_is_called_for_the_transposed_product():
    made, library = problem(5, 6, 7), Library()
    with cublasxt.CublasXt(library) as xt:
        xt.multiply(made.a, made.b, made.c)
        with pytest.raises(ValueError, match="contiguous float32"):
            xt.multiply(made.a, made.b, made.c.double())
    assert stream_ways.error_of(made) < 1e-6 and library.alive == 0


def test_cublasxt_has_a_row_for_its_best_block(make_run, monkeypatch):
    library = Library()
    monkeypatch.setattr(cublasxt, "load", lambda: library)
    run = make_run()
    run.do(Job("cublasxt", "float32", 20))
    (row,) = run.rows
    assert row["failure"] is None and row["error"] < 1e-6 and row["block"] in stream_ways.XT_BLOCKS
    assert tuple(library.blocks) == stream_ways.XT_BLOCKS and library.alive == 0
    monkeypatch.setattr(Library, "cublasXtSgemm", lambda *_: 15)
    run.do(Job("cublasxt", "float32", 20))
    assert run.rows[1]["failure"] == "RuntimeError: cublasXtSgemm returned the status 15"
