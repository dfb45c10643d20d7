"""The benchmark and the example: what they measure, refuse, write and print."""

import json
import math
import subprocess
import sys

import bench_matmul
import error_study
import machine
import measure
import pytest
import readme
import report
import shapes
import survey
import torch
import variants
from check import Verdict, full_precision_peer
from helpers.reference import takes
from helpers.specification import fp16x3_or_mark

import torch_tiled

ROW_KEYS = "suite group op dtype precision algorithm variant layout batch m n k"
ROW_KEYS += " us us_p10 us_p90 tflops peer peer_us ratio copy_us error peer_error"
ROW_KEYS += " extra_bytes operand_bytes gflops_per_watt peer_gflops_per_watt kernels_us"
BEGIN, END = readme.markers("results")


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Runs the benchmark on a suite of three small shapes: (exit status, JSON, output)."""
    tiny = (shapes.Shape(5, 6, 7), shapes.Shape(3, 4, 5, batch=2), shapes.Shape(300, 2, 9))
    monkeypatch.setitem(shapes.SUITES, "tiny", shapes.Suite("for tests", tiny))
    path = tmp_path / "results.json"

    def run(*arguments):
        quick = ["--seconds", "1e-3", "--repeats", "2", "--json", str(path)]
        status = bench_matmul.main([*quick, *arguments])
        return status, json.loads(path.read_text()), capsys.readouterr().out

    return run


def as_suite(monkeypatch, *members, **options):
    monkeypatch.setitem(shapes.SUITES, "tiny", shapes.Suite("for tests", members, **options))


def tiny(device, *arguments):
    return ("--suite", "tiny", "--device", device, *arguments)


# --- what is measured -----------------------------------------------------------------------------


def test_rows_have_exactly_the_keys_of_the_format(bench, device):
    status, results, _ = bench(*tiny(device, "--layout", *shapes.LAYOUTS))
    assert status == 0
    assert len(results["rows"]) == 3 * len(shapes.LAYOUTS)
    for row in results["rows"]:
        assert " ".join(row) == ROW_KEYS
        assert 0 < row["us_p10"] <= row["us"] <= row["us_p90"]
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["us"])
        flops = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
        assert row["tflops"] == pytest.approx(flops / row["us"] / 1e6)
        assert row["peer"] == ("cuBLAS" if device == "cuda" else "torch.matmul")
    assert {row["layout"] for row in results["rows"]} == set(shapes.LAYOUTS)


def test_header_says_what_ran_where(bench, device):
    _, results, _ = bench(*tiny(device))
    header = results["header"]
    assert header["torch"] == torch.__version__
    assert header["torch_tiled"] == torch_tiled.__version__
    assert header["command_line"].startswith("benchmarks/bench_matmul.py ")
    assert "--suite tiny" in header["command_line"]
    assert header["timing"]["clock"] == ("graph" if device == "cuda" else "perf_counter")
    assert header["refused"] == header["declined"] == []
    for key in ("device", "driver", "cuda", "git_commit", "git_dirty", "time"):
        assert key in header
    for key in ("clocks_before", "clocks_after"):
        assert (header[key] is None) == (device == "cpu")


@pytest.mark.parametrize("dtype", bench_matmul.DTYPES)
def test_every_rung_is_measured_in_every_dtype(bench, monkeypatch, device, dtype):
    some = shapes.Shape(5, 8, 604, layout="NT"), shapes.Shape(3, 4, 524, layout="NT", batch=2)
    as_suite(monkeypatch, *some)  # which every rung takes
    taken = bench_matmul.DTYPES[dtype]
    rungs = [name for name in torch_tiled.algorithms() if takes(name, taken, device)] + ["auto"]
    status, results, _ = bench(*tiny(device, "--dtype", dtype, "--algorithm", *rungs))
    assert status == 0
    assert [row["algorithm"] for row in results["rows"]] == 2 * rungs


def test_a_rung_that_does_not_run_is_not_measured(bench, device):
    if not takes("fp16x3_small", torch.float32, device):
        pytest.skip("no Hopper GPU")
    status, results, output = bench(*tiny(device, "--algorithm", "fp16x3_small", "naive"))
    assert status == 0
    assert [row["algorithm"] for row in results["rows"]] == 3 * ["naive"]
    assert len(results["header"]["declined"]) == 3
    assert "takes its place for this K and these strides." in " ".join(output.split())


def test_smoke_is_the_default_and_covers_every_rung():
    arguments = bench_matmul.parse([])
    jobs = bench_matmul.plan(arguments)
    rungs = [x for x in torch_tiled.algorithms() if takes(x, torch.float32, arguments.device)]
    assert {job.suite for job in jobs} == {"smoke"}
    assert {job.algorithm for job in jobs} == {*rungs, "auto"}
    assert {job.shape.layout for job in jobs} == set(shapes.LAYOUTS)


def test_shapes_of_no_suite_are_measured(bench, device):
    asked = ("--shape", "5x6x7", "2x3x4x5", "--layout", "NT", "TN", "--device", device)
    status, results, _ = bench(*asked)
    assert status == 0
    keys = ("suite", "batch", "m", "n", "k", "layout")
    assert [tuple(row[key] for key in keys) for row in results["rows"]] == [
        ("asked", 1, 5, 6, 7, "NT"),
        ("asked", 1, 5, 6, 7, "TN"),
        ("asked", 2, 3, 4, 5, "NT"),
        ("asked", 2, 3, 4, 5, "TN"),
    ]
    both = bench_matmul.parse(["--shape", "5x6x7", "--suite", "smoke"])
    assert list(both.suites) == ["smoke", "asked"]


# --- variants, copies, memory and energy ----------------------------------------------------------


def test_every_variant_is_held_to_its_reference(bench, monkeypatch, device):
    names = tuple(variants.VARIANTS)
    as_suite(monkeypatch, shapes.Shape(9, 8, 70, layout="NT"), variants=names)
    pairs = ("fp16x3", "fp32"), ("auto", "fp32"), ("auto", "ieee"), ("tf32", "tf32")
    for algorithm, precision in pairs:
        if not takes(algorithm, torch.float32, device, precision):
            continue
        most = 1e-3 if precision == "tf32" else 1e-5
        ways = ("--algorithm", algorithm, "--precision", precision)
        status, results, output = bench(*tiny(device, *ways))
        assert status == 0
        rows = {row["variant"]: row for row in results["rows"]}
        assert tuple(rows) == names
        assert all(0 < row["error"] < most for row in rows.values())  # of what is finite
        assert rows["halves"]["peer"].endswith(", float16") and "against " in output
        assert f"{algorithm}, bad row" in output
        plain = report.geometric_means([rows["plain"]])
        assert [mean for mean in results["header"]["geometric_means"] if mean in plain] == plain


def test_marked_operands_are_computed_again():
    operands = [(torch.randn(5, 1100), torch.randn(1100, 7))]
    contest = variants.marked(operands, algorithm="fp16x3", precision="fp32")
    told = torch_tiled.explain(*contest.operands[0], algorithm="fp16x3")
    assert told.recomputed == "35 of 35 elements"
    untouched = torch_tiled.explain(*operands[0], algorithm="fp16x3")
    assert untouched.recomputed == "0 of 35 elements"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_a_wrong_value_among_non_finite_ones_is_refused(bench, monkeypatch, device, value):
    def damage(result):
        last = result.view(-1, result.shape[-1])[-1]
        last[0] = torch.inf if last[0] == value or last[0].isnan() else value

    spoil(monkeypatch, damage)
    as_suite(monkeypatch, shapes.Shape(9, 8, 70), variants=("bad row",))
    status, results, output = bench(*tiny(device))
    assert status == 1 and results["rows"] == []
    assert "element (8, 0) is" in " ".join(output.split())


def test_a_copy_is_timed_where_a_suite_asks_for_one(bench, monkeypatch, device):
    as_suite(monkeypatch, shapes.Shape(9, 8, 70, group="nine"), shapes.Shape(8, 8, 8), copy=True)
    status, results, output = bench(*tiny(device))
    assert status == 0
    rows = results["rows"]
    assert all(row["copy_us"] > 0 for row in rows)
    assert [row["operand_bytes"] for row in rows] == [4 * (9 + 8) * 70, 4 * (8 + 8) * 8]
    whole, nine = results["header"]["geometric_means"]
    assert (whole["group"], whole["rows"]) == ("", 2)
    assert (nine["group"], nine["rows"]) == ("nine", 1)
    assert nine["of_copy"] == pytest.approx(rows[0]["copy_us"] / rows[0]["us"])
    assert "of a" in output


def test_a_copy_moves_the_bytes_asked_for(device):
    function, pairs = measure.copy(4096, torch.device(device))
    source, out = pairs[0]
    assert function(source, out) is out
    assert torch.equal(out, -source)
    assert source.nbytes + out.nbytes == 4096


def test_memory_and_energy_are_told_on_a_gpu(bench, monkeypatch, device):
    member = shapes.Shape(70, 80, 90, energy=True)
    as_suite(monkeypatch, member)
    monkeypatch.setattr(measure, "POWER_SECONDS", 1e-3)
    monkeypatch.setattr(measure, "ENERGY_SECONDS", 0.3)
    status, results, output = bench(*tiny(device, "--energy", "--kernels"))
    assert status == 0
    (row,) = results["rows"]
    if device == "cpu":
        assert results["header"]["energy"] == "Energy cannot be read: only a GPU counts it."
        assert results["header"]["energy"] in output
        assert row["extra_bytes"] is row["gflops_per_watt"] is row["kernels_us"] is None
        return
    assert row["extra_bytes"] >= 0
    assert row["kernels_us"] and all(us > 0 for us in row["kernels_us"].values())
    assert "energy" in results["header"] or row["gflops_per_watt"] > 0


def test_energy_is_counted_of_what_auto_picks_for_large_squares(monkeypatch):
    """With a counter in place of NVML's, and of a GPU's."""
    sets = [(torch.randn(4, 4), torch.randn(4, 4))]
    monkeypatch.setattr(bench_matmul, "joules", lambda call, energy: energy())
    args = bench_matmul.parse(["--device", "cpu", "--seconds", "1e-3"])
    job = bench_matmul.Job("smoke", shapes.Shape(4, 4, 4), "float32", "fp32", "auto", "plain")
    row = bench_matmul.measure(job, sets, args, lambda: 2.0)
    assert row["gflops_per_watt"] == row["peer_gflops_per_watt"] == 2 * 4**3 / 1e9 / 2.0
    told = report.sentence(row | {"kernels_us": {"one_kernel": 12.34}})
    assert told.endswith("GFLOP/s per watt, 1.00x torch.matmul; one_kernel 12.3 us")
    header = {"device": "one", "torch": "2", "cuda": None, "git_commit": None, "time": "now"}
    header |= {"command_line": "bench", "geometric_means": report.geometric_means([row])}
    page = readme.markdown({"header": header, "rows": [row]})
    assert "GFLOP/s per watt | torch.matmul's |" in page


# --- suites ---------------------------------------------------------------------------------------


def test_a_suite_has_its_precisions_where_none_is_asked_for():
    def told(arguments):
        jobs = bench_matmul.plan(bench_matmul.parse(f"--suite {arguments} --device cpu".split()))
        return [(job.precision, job.variant) for job in jobs]

    for suite in ("guard", "epilogue"):
        names, sizes = shapes.SUITES[suite].variants, len(shapes.SUITES[suite].shapes)
        both = [(each, name) for each in ("fp32", "ieee") for name in names]
        assert told(suite) == both * sizes
        assert told(f"{suite} --precision ieee") == [("ieee", name) for name in names] * sizes
    assert set(told("ieee")) == {("ieee", "plain")}
    assert set(told("square")) == {("fp32", "plain")}
    assert set(told("tf32_square")) == {("tf32", "plain")}


def test_a_suite_has_its_dtypes_where_none_is_asked_for():
    def told(arguments):
        jobs = bench_matmul.plan(bench_matmul.parse(f"--suite {arguments} --device cpu".split()))
        return {job.dtype for job in jobs}

    assert told("square") == {"float32"}
    assert told("mma_square") == {"bfloat16", "float16"}
    assert told("mma_decode --dtype float16") == {"float16"}


def test_every_kind_of_product_is_measured_by_ieee_multiply_adds():
    """Each group has a mean of its own; the counts are of what is in it, in so many layouts."""
    arguments = "--suite ieee skinny batched --device cpu"
    jobs = bench_matmul.plan(bench_matmul.parse(arguments.split()))
    groups = {}
    for job in jobs:
        if job.precision == "ieee" and job.shape.group:
            assert (job.dtype, job.algorithm, job.variant) == ("float32", "auto", "plain")
            groups.setdefault(job.shape.group, []).append(job.shape)

    def told(group):
        return {(s.batch, s.m, s.n, s.k, s.layout) for s in groups.pop(group)}

    small = {(1, size, size, size, "NN") for size in (128, 256, 512, 1024)}
    assert told("squares to 1024") == small
    large = {(1, x, x, x, way) for x in (2048, 4096, 8192, 16384) for way in shapes.LAYOUTS}
    assert told("squares from 2048") == large
    ragged = told("odd sizes")
    sizes = [size for _, *sizes, _ in ragged for size in sizes]
    assert len(ragged) >= 30 and {way for *_, way in ragged} == set(shapes.LAYOUTS)
    assert all(size % 2 == 1 and 300 <= size <= 5000 for size in sizes)
    primes = [x for x in sizes if all(x % y for y in range(2, math.isqrt(x) + 1))]
    assert len(primes) > len(sizes) / 2
    few = {"m = 1": (1,), "m = 2 to 16": (2, 4, 8, 16), "m = 32 to 128": (32, 64, 128)}
    for group, rows in few.items():
        wide = {(1, m, x, x, way) for m in rows for x in (4096, 11008) for way in ("NN", "NT")}
        assert told(group) == wide
    long = [(64, 64, 65536), (128, 128, 131072), (32, 32, 1_000_000), (8192, 32, 8192)]
    assert told("long sums or few columns") == {(1, *sizes, "NN") for sizes in long}
    assert told("cubes") == {(10_000, size, size, size, "NN") for size in (8, 16, 32, 64)}
    assert set(groups) == {"router"}
    assert shapes.SUITES["skinny"].copy and shapes.SUITES["batched"].copy


def test_tf32_is_measured_in_each_layout_and_at_odd_sizes():
    jobs = bench_matmul.plan(bench_matmul.parse("--suite tf32_square --device cpu".split()))
    assert {(job.dtype, job.algorithm) for job in jobs} == {("float32", "auto")}
    layouts = {}
    for job in jobs:
        shape = job.shape
        layouts.setdefault((shape.m, shape.n, shape.k), set()).add(shape.layout)
    assert {size for size, *_ in layouts} == {1024, 2048, 4095, 4096, 8192, 16384}
    for size in (4096, 8192):
        assert layouts[size, size, size] == set(shapes.LAYOUTS)
    assert layouts[4095, 4097, 4093] == {"NN"}


def test_lines_of_halves_begin_where_their_suite_says():
    for shape in shapes.SUITES["mma_unaligned_rows"].shapes:
        a = shape.k if shape.layout[0] == "N" else shape.m
        b = shape.n if shape.layout[1] == "N" else shape.k
        if shape.group == "few rows, odd lines":
            assert shape.m <= 64 and b % 2, shape
        else:
            assert all(pitch % 8 == 0 and pitch % 64 for pitch in (a, b)), shape


@pytest.mark.parametrize("precision", bench_matmul.PRECISIONS)
def test_the_peer_may_use_tf32_only_where_it_is_asked_for(precision):
    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32
    with full_precision_peer(precision):
        assert flags.allow_tf32 == (precision == "tf32")
    assert flags.allow_tf32 == before


def test_the_ladder_is_measured_rung_by_rung_on_a_gpu():
    """docs/ladder.md shows every rung at these sizes."""
    args = bench_matmul.parse("--suite ladder square --device cpu".split())
    args.device = "cuda"  # of which nothing is asked but what it takes
    rungs = {x for x in torch_tiled.algorithms() if takes(x, torch.float32, "cuda")}
    assert len(rungs) >= 4
    measured = {}
    for job in bench_matmul.plan(args):
        assert job.precision == "fp32"
        if job.shape.m == job.shape.n == job.shape.k and job.shape.layout == "NN":
            measured.setdefault(job.shape.m, set()).add(job.algorithm)
    every = [size for size, algorithms in measured.items() if algorithms == {*rungs, "auto"}]
    assert sorted(every) == [256, 512, 1024, 2048, 4096]


def test_precisions_multiply_the_rows_of_float32_alone():
    arguments = "--suite square --device cpu --dtype float32 float16 --precision fp32 ieee"
    jobs = bench_matmul.plan(bench_matmul.parse(arguments.split()))
    sizes = len(shapes.SUITES["square"].shapes)
    assert sum(job.dtype == "float32" for job in jobs) == 2 * sizes
    assert sum(job.dtype == "float16" for job in jobs) == sizes


# --- what is refused, and left out ----------------------------------------------------------------


def spoil(monkeypatch, damage):
    """Puts a product in place that is right but for what `damage` does to it."""
    right = torch_tiled.matmul

    def wrong(a, b, **ways):
        result = right(a, b, **ways)
        damage(result)
        return result

    monkeypatch.setattr(torch_tiled, "matmul", wrong)


def test_one_wrong_element_is_refused(bench, monkeypatch, device):
    def damage(result):
        result.view(-1, *result.shape[-2:])[0, -1, -1] += 0.001

    spoil(monkeypatch, damage)
    status, results, output = bench(*tiny(device))
    assert status == 1
    assert results["rows"] == []
    assert len(results["header"]["refused"]) == 3
    output = " ".join(output.split())  # where lines wrap depends on the device's name
    assert "5x6x7 NN auto is wrong: element (4, 5) is" in output
    assert "2 x 3x4x5 NN auto is wrong: element (0, 2, 3) is" in output
    assert "300x2x9 NN auto is wrong: element (299, 1) is" in output


def test_an_element_left_unwritten_is_refused(bench, monkeypatch, device):
    def idle(a, b, **ways):
        return a.new_empty(*a.shape[:-1], b.shape[-1])

    monkeypatch.setattr(torch_tiled, "matmul", idle)
    status, results, output = bench(*tiny(device))
    assert status == 1
    assert results["rows"] == []
    assert "30 of 30 elements not finite" in output


def test_a_problem_that_the_op_declines_is_named_and_left_out(bench, monkeypatch):
    right = torch_tiled.matmul

    def picky(a, b, **ways):
        if a.shape[-1] == 7:
            raise RuntimeError("tiled::matmul: k is 7, and picky takes none of that.")
        return right(a, b, **ways)

    monkeypatch.setattr(torch_tiled, "matmul", picky)
    status, results, output = bench(*tiny("cpu"))
    assert status == 0
    assert [row["k"] for row in results["rows"]] == [5, 9]
    assert len(results["header"]["declined"]) == 1
    assert "was not measured: tiled::matmul: k is 7, and picky takes none of that." in output


def test_a_problem_that_does_not_fit_in_memory_is_named_and_left_out(bench, monkeypatch):
    right = bench_matmul.operand_sets

    def small(shape, dtype, device):
        if shape.k == 7:
            raise torch.OutOfMemoryError("no room")
        return right(shape, dtype, device)

    monkeypatch.setattr(bench_matmul, "operand_sets", small)
    status, results, output = bench(*tiny("cpu", "--algorithm", "tiled", "auto"))
    assert status == 0
    assert [row["k"] for row in results["rows"]] == [5, 5, 9, 9]
    assert output.count("was not measured: it does not fit in memory: no room") > 1


def test_an_interruption_keeps_what_was_measured(bench, monkeypatch):
    measure, calls = bench_matmul.measure, []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*args, **options)

    monkeypatch.setattr(bench_matmul, "measure", interrupted)
    status, results, output = bench(*tiny("cpu"))
    assert status == 130
    assert len(results["rows"]) == 2
    assert "Interrupted" in output


# --- what is printed, and the host's time ---------------------------------------------------------


def test_output_fits_a_hundred_columns(bench):
    dtypes = torch.float32, torch.bfloat16
    rungs = [x for x in torch_tiled.algorithms() if all(takes(x, dtype) for dtype in dtypes)]
    _, _, output = bench(*tiny("cpu", "--dtype", "float32", "bfloat16", "--algorithm", *rungs))
    table = output[output.index("tiny: ") :]
    assert "peer's" in table and "geometric means" in table
    assert max(map(len, output.splitlines())) <= report.WIDTH


def test_the_widest_tables_fit_too(bench):
    _, results, _ = bench(*tiny("cpu", "--layout", "NN"))
    same = results["rows"][0] | {"us": 43000.0, "us_p10": 40000.0, "us_p90": 46000.0}
    same |= {"extra_bytes": same["operand_bytes"], "tflops": 0.001, "ratio": 10.0}
    square = {"suite": "square", "m": 16384, "n": 16384, "k": 16384, "algorithm": "fp16x3_skinny"}
    skinny = {"suite": "skinny", "m": 8192, "n": 11008, "k": 131072, "copy_us": 1e4}
    skinny |= {"group": "m = 32 to 128"}
    prepared = {"suite": "prepared", "m": 8192, "n": 11008, "k": 65536, "variant": "prepared"}
    console = report.make_console()
    with console.capture() as captured:
        rows = [same | each for each in (square, skinny, prepared)]
        report.print_tables(console, rows)
        report.print_means(console, report.geometric_means(rows))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= report.WIDTH
    for cell in ("16384  16384  16384", "131072", "fp16x3_skinny", "auto, prepared", "1.00x"):
        assert any(cell in line for line in lines), cell  # and so is not broken


def test_the_host_time_of_calls_is_measured(bench, device):
    status, results, output = bench("--overhead", "--device", device)
    assert status == 0
    assert results["rows"] == []
    rows = results["header"]["overheads"]
    assert [row["backward"] for row in rows] == 2 * ([False] * 5 + [True] * 5)
    assert [row["call"].endswith(", bfloat16") for row in rows] == [False] * 10 + [True] * 10
    us = {(row["call"], row["backward"]): row["us"] for row in rows}
    assert len(us) == len(rows) and min(us.values()) > 0
    for row in rows:
        assert row["over_peer"] == row["us"] / us[row["peer"], row["backward"]]
    assert "converted torch.nn.Linear" in output


# --- for a profiler -------------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """What ran while a profiler, of which there is none here, would have looked."""
    seen, looking = [], []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: looking.append(True))
    monkeypatch.setattr(torch.cuda.profiler, "stop", looking.clear)

    def watch(module):
        product = module.matmul

        def matmul(*args, **ways):
            seen.extend([module.__name__] if looking else [])
            return product(*args, **ways)

        monkeypatch.setattr(module, "matmul", matmul)

    watch(torch_tiled)
    watch(torch)
    return seen


def test_a_profiler_sees_one_product_of_ours_and_one_of_the_peer(
    monkeypatch, profiled, device, capsys
):
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked = ["--shape", "5x6x7", "--algorithm", "naive", "tiled16", "mma_tma"]
    args = bench_matmul.parse([*asked, "--device", device])
    assert bench_matmul.profile(args, report.make_console()) == 0
    assert profiled == 2 * ["torch_tiled", "torch"]
    output = " ".join(capsys.readouterr().out.split())
    assert "float32 fp32 5x6x7 NN naive: first ours, then " in output
    assert "5x6x7 NN mma_tma was not profiled: tiled::" in output


def test_a_profile_without_a_gpu_is_refused_in_a_sentence(capsys):
    with pytest.raises(SystemExit):
        bench_matmul.main(["--profile", "--device", "cpu"])
    assert "--profile is for kernels on a GPU; " in capsys.readouterr().err


# --- what may be asked for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("--algorithm fastest", "no algorithm is called fastest; there are naive, "),
        ("--seconds 0", "--seconds is 0.0; it must be more than 0."),
        ("--repeats 0", "--repeats is 0; it must be at least 1."),
        ("--json /nowhere/at/all.json", "the folder /nowhere/at does not exist."),
        ("--suite round", "invalid choice: 'round'"),
        ("--shape 5x6", "5x6 is no shape; write MxNxK, or BATCHxMxNxK, of numbers from 1 on."),
        ("--shape 5x6x0", "5x6x0 is no shape; "),
        ("--shape 1x2x3x4x5", "1x2x3x4x5 is no shape; "),
        ("--shape large", "large is no shape; "),
    ],
)
def test_bad_arguments_are_told_in_a_sentence(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as stop:
        bench_matmul.main(arguments.split())
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_asking_for_a_missing_gpu_is_told_in_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench_matmul.main(["--device", "cuda"])
    assert "torch sees no CUDA device; leave --device out" in capsys.readouterr().err


def test_list_prints_every_suite(capsys):
    assert bench_matmul.main(["--list"]) == 0
    output = capsys.readouterr().out
    assert all(f"{name}: " in output for name in shapes.SUITES)


@pytest.mark.parametrize("name", shapes.SUITES)
def test_suites_are_well_formed(name):
    members = shapes.SUITES[name].shapes
    assert shapes.SUITES[name].description
    problems = [(shape.batch, shape.m, shape.n, shape.k, shape.layout) for shape in members]
    assert len(problems) == len(set(problems)) > 0
    for *sizes, layout in problems:
        assert min(sizes) > 0
        assert layout in shapes.LAYOUTS
    assert set(shapes.SUITES[name].variants) <= set(variants.VARIANTS)


def test_the_products_of_a_layer_cost_the_same():
    members = shapes.SUITES["transformer"].shapes
    for layer in range(0, len(members), 3):
        forward, input_gradient, weight_gradient = members[layer : layer + 3]
        assert forward.flops == input_gradient.flops == weight_gradient.flops


def test_geometric_means_are_per_suite_group_algorithm_and_variant():
    def row(suite, algorithm, ratio, group="", variant="plain"):
        same = {"dtype": "float32", "precision": "fp32", "copy_us": None}
        names = {"suite": suite, "group": group, "algorithm": algorithm, "variant": variant}
        return names | same | {"ratio": ratio}

    one = [row("one", "auto", 2.0), row("one", "auto", 8.0, "large")]
    two = [row("two", "naive", 0.5), row("two", "naive", 3.0, variant="prepared")]
    means = report.geometric_means(one + two)
    told = [(mean["suite"], mean["group"], mean["variant"], mean["rows"]) for mean in means]
    assert told[:2] == [("one", "", "plain", 2), ("one", "large", "plain", 1)]
    assert told[2:] == [("two", "", "plain", 1), ("two", "", "prepared", 1)]
    assert math.isclose(means[0]["ratio"], 4.0)
    assert all(mean["of_copy"] is None for mean in means)


# --- the README -----------------------------------------------------------------------------------


def test_the_readme_is_written_from_a_results_file(bench, tmp_path, monkeypatch):
    square = shapes.Suite("for tests", (shapes.Shape(8, 8, 8), shapes.Shape(8, 8, 9)))
    monkeypatch.setitem(shapes.SUITES, "square", square)
    bench("--suite", "square", "--device", "cpu", "--overhead")
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):  # the second time changes nothing
        readme.write_results(tmp_path / "results.json", page)
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\n")
        assert text.endswith(f"\n{END}\nafter\n")
        assert "old" not in text
        assert text.count("| float32 | fp32 | NN | `auto` | 8 |") == 1  # 8x8x9 is no square
        assert "| square |  | float32 | fp32 | auto | 2 |" in text
        assert "`torch_tiled.matmul`" in text


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_a_readme_without_its_markers_is_left_alone(tmp_path, text):
    page, results = tmp_path / "README.md", tmp_path / "results.json"
    page.write_text(text)
    results.write_text('{"header": {}, "rows": []}')
    with pytest.raises(readme.ReadmeError, match="must hold <!-- results:begin --> once"):
        readme.write_results(results, page)
    assert page.read_text() == text


def test_a_missing_results_file_is_told_in_a_sentence(capsys):
    assert bench_matmul.main(["--readme", "/nowhere/results.json"]) == 1
    assert "/nowhere/results.json cannot be read" in capsys.readouterr().out


# --- the example and the error study --------------------------------------------------------------


def test_the_digits_example_trains_both_networks(device):
    pytest.importorskip("sklearn", reason="no scikit-learn")
    command = f"examples/digits.py --epochs 2 --algorithm tiled --device {device}".split()
    done = subprocess.run(
        [sys.executable, *command], cwd=machine.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    curves = [[float(number) for number in line.split()] for line in lines[2:4]]
    assert [curve[0] for curve in curves] == [1, 2]
    assert curves[1][1] < curves[0][1]
    assert "test accuracy: torch_tiled" in lines[4]
    assert float(lines[5].split()[3]) < 1e-3


def test_the_error_study_writes_and_draws_its_results(tmp_path, capsys):
    path, plot = tmp_path / "errors.json", tmp_path / "errors.svg"
    options = "--device cpu --k-max 128 --size 4 --seeds 2 --json".split()
    assert error_study.main([*options, str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["header"]["seeds"] == 2
    command_line = results["header"]["command_line"]
    assert (
        command_line.startswith("benchmarks/error_study.py ") and str(tmp_path) not in command_line
    )
    ways = ["torch.matmul", *error_study.RUNGS]
    expected = [(x, k, way) for x in error_study.OPERANDS for k in (64, 128) for way in ways]
    assert [(r["operands"], r["k"], r["product"]) for r in results["rows"]] == expected
    assert all(0 < row["error"] < 1e-5 for row in results["rows"])
    assert "uniform(0, 1)" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert error_study.main(["--redraw", str(path), "--plot", str(plot)]) == 0
    assert "</svg>" in plot.read_text()


@pytest.mark.parametrize("operands", ["normal", "scales opposed by exp(2 N)"])
def test_the_error_study_counts_what_the_guard_marks(operands):
    a, b = error_study.OPERANDS[operands](20, 1100, 20)
    _, marked = fp16x3_or_mark(a, b)
    assert error_study.guarded(a, b) == marked.double().mean().item()


@pytest.mark.parametrize("sides", survey.SIDES)
def test_the_survey_has_the_same_problems_each_time(sides):
    problems = survey.problems(50, sides, seed=3, most=1e8)
    assert problems == survey.problems(50, sides, seed=3, most=1e8)
    assert problems != survey.problems(50, sides, seed=4, most=1e8)
    for shape in problems:
        sizes = (shape.m, shape.n, shape.k)
        assert shape.flops < 2e8
        assert sides != "odd" or all(size % 2 == 1 for size in sizes)
        assert sides != "eights" or all(size % 8 == 0 for size in sizes)
        near = survey.aligned(shape)
        for size, up in zip(sizes, (near.m, near.n, near.k), strict=True):
            assert up % 64 == 0 and 0 <= up - size < 64


def test_the_survey_has_sets_of_operands_that_share_nothing():
    pool = torch.arange(10_000.0)
    shape = shapes.Shape(3, 11, 17, layout="NT")
    sets = survey.views(pool, shape)
    assert len(sets) == survey.MOST_SETS
    assert {(tuple(a.shape), tuple(b.shape)) for a, b in sets} == {((3, 17), (17, 11))}
    assert all(a.is_contiguous() and b.mT.is_contiguous() for a, b in sets)
    assert all(x.storage_offset() % 128 == 0 for pair in sets for x in pair)
    numbers = torch.cat([x.flatten() for pair in sets for x in pair])
    assert len(numbers.unique()) == len(numbers)


def test_the_survey_writes_its_results(tmp_path, capsys):
    path = tmp_path / "survey.json"
    options = "--device cpu --dtype float32 --count 4 --most 4e5 --repeats 1 --json".split()
    assert survey.main([*options, str(path)]) == 0
    results = json.loads(path.read_text())
    header, rows = results["header"], results["rows"]
    assert header["summary"]["products"] == len(rows) == 4 and header["refused"] == []
    assert header["command_line"].startswith("benchmarks/survey.py ")
    assert str(tmp_path) not in header["command_line"]
    assert all(row["us"] > 0 and row["aligned_us"] > 0 and row["peer_us"] > 0 for row in rows)
    assert all(row["over_aligned"] == row["us"] / row["aligned_us"] for row in rows)
    assert "Of 4 products" in capsys.readouterr().out.replace("\n", " ")


def test_the_survey_times_rungs_beside_each_other(tmp_path, capsys):
    path = tmp_path / "survey.json"
    options = "--device cpu --dtype float32 --count 3 --most 4e5 --repeats 1".split()
    assert survey.main([*options, "--beside", "tiled16", "simt_tma", "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    assert results["header"]["beside"] == ["tiled16", "simt_tma"]
    for row in results["rows"]:  # simt_tma takes K from 64 on, PyTorch's product is none of ours
        assert set(row["beside_us"]) == {"tiled16"} | ({"simt_tma"} if row["k"] >= 64 else set())
        assert row["best_us"] == min(row["us"], *row["beside_us"].values())
    summary = results["header"]["summary"]
    assert summary["over_best"] >= 1 and summary["over_twice_at_best"] <= summary["over_twice"]
    assert "By the fastest of auto's rung and tiled16, simt_tma" in capsys.readouterr().out


def test_the_survey_reports_no_time_of_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr("check.check", lambda *_: Verdict(1.0, 0.0, "element (0, 0) is 1"))
    options = "--device cpu --dtype float32 --count 2 --most 4e5 --repeats 1".split()
    assert survey.main(options) == 1
    said = capsys.readouterr().out
    assert "its time is not reported" in said and "the aligned one's time" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--count 0", "--count is 0"),
        ("--most 100", "--most is 100"),
        ("--dtype float32 --beside mma_sync", 'algorithm "mma_sync" takes float16 and bfloat16'),
    ],
)
def test_the_survey_says_what_it_cannot_do(options, said, capsys):
    with pytest.raises(SystemExit):
        survey.parse(options.split())
    assert said in capsys.readouterr().err
