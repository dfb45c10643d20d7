"""The benchmark: what it measures, refuses and prints, and its runs for a profiler."""

import pytest
import torch
from helpers.benchmarking import as_suite, tiny
from helpers.reference import lengths, takes

import torch_tiled
from benchmarks.command import DTYPES
from benchmarks.gemm import __main__ as bench_matmul
from benchmarks.gemm import measure, report, variants
from benchmarks.gemm.jobs import Job, plan
from benchmarks.gemm.means import geometric_means
from benchmarks.gemm.options import parse
from benchmarks.suites import shapes, suites

ROW_KEYS = "suite group op dtype precision algorithm kernel tile variant layout batch m n k"
ROW_KEYS += " us us_p10 us_p90 tflops peer peer_us ratio copy_us error peer_error"
ROW_KEYS += " extra_bytes operand_bytes gflops_per_watt peer_gflops_per_watt"


# --- what is measured ----------------------------------------------------------------------------


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
    assert "python -m benchmarks.gemm " in header["command_line"]
    assert "--suite tiny" in header["command_line"]
    assert header["timing"]["clock"] == ("graph" if device == "cuda" else "perf_counter")
    assert header["refused"] == header["declined"] == []
    for key in ("device", "driver", "cuda", "git_commit", "git_dirty", "time"):
        assert key in header
    for key in ("clocks_before", "clocks_after"):
        assert (header[key] is None) == (device == "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_is_measured_in_every_dtype(bench, monkeypatch, device, dtype):
    taken = DTYPES[dtype]
    parts = 2 if taken.is_complex else 1  # products in a sum for each of K
    some = (
        shapes.Shape(5, 8, 604 // parts, layout="NT"),
        shapes.Shape(3, 4, 500 // parts, layout="NT", batch=2),
        shapes.Shape(3, 4, 100 // parts, layout="NT"),
        shapes.Shape(5, 8, 608 // parts, layout="NT"),  # that TMA can read
    )
    only = {"tensor_core": some[3:], "mma_unaligned": some[:3], "f64_gemv": ()}
    as_suite(monkeypatch, *some)  # every kernel takes one of these
    kernels = [name for name in torch_tiled.algorithms() if takes(name, taken, device)] + ["auto"]
    status, results, _ = bench(*tiny(device, "--dtype", dtype, "--algorithm", *kernels))
    assert status == 0
    assert [row["algorithm"] for row in results["rows"]] == [
        name
        for x in some
        for name in kernels
        if lengths(name)[0] <= parts * x.k <= lengths(name)[1] and x in only.get(name, some)
    ]
    if "f64_gemv" in kernels:
        as_suite(monkeypatch, shapes.Shape(1, 9, 604 // parts))
        status, results, _ = bench(*tiny(device, "--dtype", dtype, "--algorithm", "f64_gemv"))
        assert status == 0 and [row["algorithm"] for row in results["rows"]] == ["f64_gemv"]


@pytest.mark.parametrize("dtype, error", [("complex64", 1e-6), ("complex128", 1e-14)])
def test_a_complex_product_counts_as_four_real_ones(bench, device, dtype, error):
    ways = ("--dtype", dtype, "--precision", "fp32", "ieee", "--algorithm", "tiled")
    status, results, output = bench(*tiny(device, *ways))
    assert status == 0
    precisions = ["fp32", "ieee"] if dtype == "complex64" else ["fp32"]
    assert [row["precision"] for row in results["rows"]] == 3 * precisions
    for row in results["rows"]:
        flops = 8 * row["batch"] * row["m"] * row["n"] * row["k"]
        assert row["tflops"] == pytest.approx(flops / row["us"] / 1e6)
        numbers = row["batch"] * (row["m"] + row["n"]) * row["k"]
        assert row["operand_bytes"] == numbers * DTYPES[dtype].itemsize
        assert 0 < row["error"] < error
        assert report.kind(row) == " ".join([dtype, row["precision"]][: len(precisions)])
    assert ("tiny, complex64 ieee, against" in output) == (dtype == "complex64")


def test_a_kernel_that_does_not_run_is_not_measured(bench, device):
    if not takes("fp16x3_small", torch.float32, device):
        pytest.skip("no Hopper GPU")
    status, results, output = bench(*tiny(device, "--algorithm", "fp16x3_small", "naive"))
    assert status == 0
    assert [row["algorithm"] for row in results["rows"]] == 3 * ["naive"]
    assert len(results["header"]["declined"]) == 3
    assert "takes its place for this K and these strides." in " ".join(output.split())


def test_smoke_covers_every_kernel():
    arguments = parse(["--suite", "smoke"])
    jobs = plan(arguments)
    kernels = [x for x in torch_tiled.algorithms() if takes(x, torch.float32, arguments.device)]
    assert {job.algorithm for job in jobs} == {*kernels, "auto"}
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
    both = parse(["--shape", "5x6x7", "--suite", "smoke"])
    assert list(both.suites) == ["smoke", "asked"]


# --- variants, copies, memory and energy ---------------------------------------------------------


def test_every_variant_is_held_to_its_reference(bench, monkeypatch, device):
    names = tuple(variants.VARIANTS)
    as_suite(monkeypatch, shapes.Shape(9, 8, 140, layout="NT"), variants=names)
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
        assert rows["fp16 peer"]["peer"].endswith(", float16") and "against " in output
        assert f"{algorithm}, bad row" in output
        plain = geometric_means([rows["plain"]])
        assert [mean for mean in results["header"]["geometric_means"] if mean in plain] == plain


def test_flagged_operands_are_recomputed():
    operands = [(torch.randn(5, 1100), torch.randn(1100, 7))]
    contest = variants.flagged(operands, algorithm="fp16x3", precision="fp32")
    explained = torch_tiled.explain(*contest.operands[0], algorithm="fp16x3")
    assert explained.recomputed == "35 of 35 elements"
    untouched = torch_tiled.explain(*operands[0], algorithm="fp16x3")
    assert untouched.recomputed == "0 of 35 elements"


def test_scales_oppose_each_other_in_a_product_that_stays_the_same():
    operands = [(torch.randn(5, 4000), torch.randn(7, 4000).mT)]
    contest = variants.opposed(operands, algorithm="fp16x3", precision="fp32")
    (a, b), (scaled_a, scaled_b) = *operands, *contest.operands
    torch.testing.assert_close(scaled_a @ scaled_b, a @ b, rtol=1e-4, atol=1e-3)
    assert scaled_b.stride() == b.stride()
    scale = (scaled_a / a).log()
    torch.testing.assert_close(scale, scale[:1].expand_as(scale), rtol=1e-4, atol=1e-4)
    assert scale[0].std() == pytest.approx(2, rel=0.1)


def test_padded_operands_flag_nothing():
    operands = [(torch.randn(6, 1100), torch.randn(7, 1100).mT)]
    for variant, zero_rows in ((variants.decayed, 0), (variants.padded, 3)):
        contest = variant(operands, algorithm="fp16x3", precision="fp32")
        a, b = contest.operands[0]
        assert [bool(row.any()) for row in a] == [True] * (6 - zero_rows) + [False] * zero_rows
        assert b.stride() == operands[0][1].stride()
        tiny_numbers = (b.abs() < 1e-7) & (b != 0)
        assert 0.003 < tiny_numbers.double().mean() < 0.03
        explained = torch_tiled.explain(a, b, algorithm="fp16x3")
        assert explained.recomputed == "0 of 42 elements"
    assert bool(operands[0][0].all())  # they are left as they were


def test_rows_name_the_kernel_that_ran(bench, device):
    algorithms = ("naive", "tiled", "auto")
    status, results, _ = bench(*tiny(device, "--algorithm", *algorithms))
    assert status == 0
    for row in results["rows"]:
        if device == "cpu" and row["algorithm"] == "auto":
            assert (row["kernel"], row["tile"]) == ("torch.matmul", None)
        else:
            a, b = torch.empty(row["m"], row["k"]), torch.empty(row["k"], row["n"])
            assert row["kernel"] in torch_tiled.algorithms() and row["kernel"] != "tiled"
            assert row["tile"] == torch_tiled.explain(a, b, algorithm=row["kernel"]).tile
    assert {row["kernel"] for row in results["rows"] if row["algorithm"] == "naive"} == {"naive"}


@pytest.mark.parametrize("same", [True, False])
def test_the_memory_of_a_prepared_product_tells_its_kernel(monkeypatch, same):
    """explain() takes no prepared b. A split b makes one kernel cheaper, or changes nothing."""
    taken = iter([1024, 1024 if same else 4096])
    monkeypatch.setattr(variants, "extra_bytes", lambda call: next(taken))
    ways = {"algorithm": "fp16x3", "precision": "fp32"}
    sets = [(torch.randn(4, 1024), torch.randn(1024, 64))]
    contest = variants.prepared(sets, **ways)
    unprepared = variants.planned(variants.plain(sets, **ways), **ways)
    assert unprepared[0] != variants.SPLITS_BOTH
    by_name = (variants.SPLITS_BOTH, "128x128")
    assert variants.planned(contest, **ways) == (by_name if same else unprepared)


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


def test_memory_and_energy_are_reported_on_a_gpu(bench, monkeypatch, device):
    member = shapes.Shape(70, 80, 90, energy=True)
    as_suite(monkeypatch, member)
    monkeypatch.setattr(measure, "POWER_SECONDS", 1e-3)
    monkeypatch.setattr(measure, "ENERGY_SECONDS", 0.3)
    status, results, output = bench(*tiny(device, "--energy"))
    assert status == 0
    (row,) = results["rows"]
    if device == "cpu":
        assert results["header"]["energy"] == "Energy cannot be read: only a GPU counts it."
        assert results["header"]["energy"] in output
        assert row["extra_bytes"] is row["gflops_per_watt"] is None
        return
    assert row["extra_bytes"] >= 0
    assert "energy" in results["header"] or row["gflops_per_watt"] > 0


def test_energy_is_measured_for_the_kernel_that_auto_picks(monkeypatch):
    """With a counter in place of NVML's, and of a GPU's."""
    sets = [(torch.randn(4, 4), torch.randn(4, 4))]
    monkeypatch.setattr(bench_matmul, "joules", lambda call, energy: energy())
    args = parse(["--suite", "smoke", "--device", "cpu", "--seconds", "1e-3"])
    job = Job("smoke", shapes.Shape(4, 4, 4), "float32", "fp32", "auto", "plain")
    row = bench_matmul.measure(job, sets, args, lambda: 2.0)
    assert row["gflops_per_watt"] == row["peer_gflops_per_watt"] == 2 * 4**3 / 1e9 / 2.0
    line = report.sentence(row)
    assert line.endswith("GFLOP/s per watt, 1.00x torch.matmul")


# --- what is refused, and left out ---------------------------------------------------------------


def spoil(monkeypatch, damage):
    """Puts a product in place that is right but for what `damage` does to it."""
    right = torch_tiled.matmul

    def wrong(a, b, **ways):
        result = right(a, b, **ways)
        damage(result)
        return result

    monkeypatch.setattr(torch_tiled, "matmul", wrong)


@pytest.mark.parametrize(
    "dtype, added, said",
    [
        ("float32", 0.001, "element"),
        ("complex64", 0.001, "real part of element"),
        ("complex64", 0.001j, "imaginary part of element"),
    ],
)
def test_one_wrong_element_is_refused(bench, monkeypatch, device, dtype, added, said):
    def damage(result):
        result.view(-1, *result.shape[-2:])[0, -1, -1] += added

    spoil(monkeypatch, damage)
    status, results, output = bench(*tiny(device, "--dtype", dtype))
    assert status == 1
    assert results["rows"] == []
    assert len(results["header"]["refused"]) == 3
    output = " ".join(output.split())  # where lines wrap depends on the device's name
    assert f"5x6x7 NN auto is wrong: {said} (4, 5) is" in output
    assert f"2 x 3x4x5 NN auto is wrong: {said} (0, 2, 3) is" in output
    assert f"300x2x9 NN auto is wrong: {said} (299, 1) is" in output


def test_an_element_left_unwritten_is_refused(bench, monkeypatch, device):
    def idle(a, b, **ways):
        return a.new_empty(*a.shape[:-1], b.shape[-1])

    monkeypatch.setattr(torch_tiled, "matmul", idle)
    status, results, output = bench(*tiny(device))
    assert status == 1 and results["rows"] == []
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


def test_an_interruption_keeps_what_was_measured(bench, interrupt):
    interrupt(bench_matmul, "measure")
    status, results, output = bench(*tiny("cpu"))
    assert status == 130
    assert len(results["rows"]) == 2
    assert "Interrupted" in output


# --- for a profiler, and without a run -----------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """The products that ran while a profiler would have looked; there is none here."""
    seen, looking = [], []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: looking.append(True))
    monkeypatch.setattr(torch.cuda.profiler, "stop", looking.clear)
    for module in (torch_tiled, torch):

        def matmul(*args, module=module, product=module.matmul, **ways):
            seen.extend([module.__name__] if looking else [])
            return product(*args, **ways)

        monkeypatch.setattr(module, "matmul", matmul)
    return seen


def test_a_profiler_sees_one_product_of_ours_and_one_of_the_peer(
    monkeypatch, profiled, device, capsys
):
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked = ["--shape", "5x6x7", "--algorithm", "naive", "tiled16", "mma_tma"]
    assert bench_matmul.profile(parse([*asked, "--device", device])) == 0
    assert profiled == 2 * ["torch_tiled", "torch"]
    output = capsys.readouterr().out
    assert "float32 fp32 5x6x7 NN naive: first ours, then " in output
    assert "5x6x7 NN mma_tma was not profiled: tiled::" in output


def test_list_prints_every_suite(capsys):
    assert bench_matmul.main(["--list"]) == 0
    output = capsys.readouterr().out
    assert all(f"{name}: " in output for name in suites.SUITES)


def test_geometric_means_are_per_suite_group_algorithm_and_variant():
    def row(suite, algorithm, ratio, group="", variant="plain"):
        same = {"dtype": "float32", "precision": "fp32", "copy_us": None}
        names = {"suite": suite, "group": group, "algorithm": algorithm, "variant": variant}
        return names | same | {"ratio": ratio}

    one = [row("one", "auto", 2.0), row("one", "auto", 8.0, "large")]
    two = [row("two", "naive", 0.5), row("two", "naive", 3.0, variant="prepared")]
    means = geometric_means(one + two)
    summary = [(mean["suite"], mean["group"], mean["variant"], mean["rows"]) for mean in means]
    assert summary[:2] == [("one", "", "plain", 2), ("one", "large", "plain", 1)]
    assert summary[2:] == [("two", "", "plain", 1), ("two", "", "prepared", 1)]
    assert means[0]["ratio"] == pytest.approx(4.0)
    assert all(mean["of_copy"] is None for mean in means)
