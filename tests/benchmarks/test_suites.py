"""The suites of the benchmark: what their names promise is in them."""

import pytest
import torch

import torch_tiled
from benchmarks.command import PRECISIONS
from benchmarks.gemm import report, variants
from benchmarks.gemm.check import full_precision_peer, reference
from benchmarks.gemm.jobs import plan
from benchmarks.gemm.options import parse
from benchmarks.pages.rows import kernels
from benchmarks.suites import suites
from benchmarks.suites.shapes import LAYOUTS
from benchmarks.survey.fit_costs import Gpu
from benchmarks.survey.fit_costs import plan as planned
from torch_tiled._op import registry


def test_a_suite_has_its_precisions_where_none_is_asked_for():
    def precisions_of(arguments):
        jobs = plan(parse(f"--suite {arguments} --device cpu".split()))
        return [(job.precision, job.variant) for job in jobs]

    for suite in ("guard", "epilogue"):
        names, sizes = suites.SUITES[suite].variants, len(suites.SUITES[suite].shapes)
        both = [(each, name) for each in ("fp32", "ieee") for name in names]
        assert precisions_of(suite) == both * sizes
        assert (
            precisions_of(f"{suite} --precision ieee") == [("ieee", name) for name in names] * sizes
        )
    assert set(precisions_of("ieee")) == {("ieee", "plain")}
    assert set(precisions_of("square")) == {("fp32", "plain")}
    assert set(precisions_of("tf32_square")) == {("tf32", "plain")}


def test_a_suite_has_its_dtypes_where_none_is_asked_for():
    def dtypes_of(arguments):
        jobs = plan(parse(f"--suite {arguments} --device cpu".split()))
        return {job.dtype for job in jobs}

    assert dtypes_of("square") == {"float32"}
    assert dtypes_of("mma_square") == {"bfloat16", "float16"}
    assert dtypes_of("mma_decode --dtype float16") == {"float16"}


def test_16_bit_rows_are_aligned_as_their_suite_says():
    for shape in suites.SUITES["mma_unaligned_rows"].shapes:
        a = shape.k if shape.layout[0] == "N" else shape.m
        b = shape.n if shape.layout[1] == "N" else shape.k
        if shape.group == "few rows, odd row pitch":
            assert shape.m <= 64 and b % 2, shape
        else:
            assert all(pitch % 8 == 0 and pitch % 64 for pitch in (a, b)), shape


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_peer_may_use_tf32_only_where_it_is_asked_for(precision):
    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32
    with full_precision_peer(precision):
        assert flags.allow_tf32 == (precision == "tf32")
    assert flags.allow_tf32 == before


@pytest.fixture
def on_hopper(monkeypatch):
    """A function that gives the jobs of suites on a Hopper GPU, which need not be there."""
    monkeypatch.setattr(reference, "_is_hopper", lambda: True)

    def jobs(*names):
        args = parse(["--device", "cpu", "--suite", *names])
        args.device = "cuda"
        return plan(args)

    return jobs


def test_every_kernel_of_float32_is_measured_at_the_sizes_of_the_ladder(on_hopper):
    families = {name: registry.family(name)[0] for name in torch_tiled.algorithms()}
    float32 = {"auto"} | {
        name for name, x in families.items() if torch.float32 in x.dtypes and x.order != "tf32"
    }
    measured = {}
    for job in on_hopper("ladder", "square"):
        assert job.precision == "fp32"
        if job.shape.m == job.shape.n == job.shape.k and job.shape.layout == "NN":
            measured.setdefault(job.shape.m, set()).add(job.algorithm)
    every = [size for size, algorithms in measured.items() if algorithms == float32]
    assert sorted(every) == list(suites.LADDER_SIZES)


def test_every_kernel_is_measured_by_name_on_shapes_that_it_is_for(on_hopper):
    """As the plan for an H200 says, no other kernel takes its place there."""
    named = set()
    for job in on_hopper("kernels", "mma_kernels", "tf32_kernels", "float64_kernels"):
        if job.algorithm == "auto":
            continue
        shape = vars(job.shape) | {"dtype": job.dtype, "precision": job.precision}
        assert planned(job.algorithm, shape, Gpu(90, 132)).algorithm == job.algorithm, job
        named.add(job.algorithm)
    assert sorted(named) == sorted(kernels())


@pytest.mark.parametrize("name", suites.SUITES)
def test_suites_are_well_formed(name):
    members = suites.SUITES[name].shapes
    assert suites.SUITES[name].description
    problems = [(shape.batch, shape.m, shape.n, shape.k, shape.layout) for shape in members]
    assert len(problems) == len(set(problems)) > 0
    for *sizes, layout in problems:
        assert min(sizes) > 0
        assert layout in LAYOUTS
    assert set(suites.SUITES[name].variants) <= set(variants.VARIANTS)


# --- `make bench` without arguments --------------------------------------------------------------

KINDS = ["fp32", "ieee", "tf32", "bfloat16", "float64"]


def default_jobs(monkeypatch, *, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    return plan(parse([]))


def test_a_gpu_measures_the_headline(monkeypatch):
    jobs = default_jobs(monkeypatch, gpu=True)
    ways = {(job.suite, job.algorithm, job.variant) for job in jobs}
    assert ways == {("headline", "auto", "plain")}
    assert {report.kind(vars(job)) for job in jobs} == set(KINDS)
    assert len(set(map(str, jobs))) == len(jobs) <= 15


def test_a_cpu_measures_every_order_of_the_host(monkeypatch):
    jobs = default_jobs(monkeypatch, gpu=False)
    assert {job.suite for job in jobs} == {"host"} and len(jobs) <= 10
    assert {job.algorithm for job in jobs} == {"naive", "tiled", "fp16x3", "tf32", "mma"}


def test_what_is_asked_for_replaces_the_ways_of_a_shape():
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
    table = lines[lines.index("host, against torch.matmul") + 1 :]
    assert table[0].split()[:2] == ["kind", "layout"] and len(table) == 1 + 10
    assert {line.split()[0] for line in table[1:]} == {*KINDS} - {"ieee"}
    assert len(set(map(len, table))) <= 2  # columns have one width
