"""The suites of the benchmark: what their names promise is in them."""

import math

import pytest
import torch

import torch_tiled
from benchmarks.gemm import variants
from benchmarks.gemm.check import full_precision_peer, reference
from benchmarks.gemm.jobs import plan
from benchmarks.gemm.options import DTYPES, PRECISIONS, parse
from benchmarks.pages.rows import kernels
from benchmarks.suites import suites
from benchmarks.suites.shapes import LAYOUTS
from benchmarks.survey.fit_costs import Gpu
from benchmarks.survey.fit_costs import plan as planned


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


def test_every_kind_of_product_is_measured_in_precision_ieee():
    """Each group, which has a mean of its own, holds the sizes and layouts that its name says."""
    arguments = "--suite ieee skinny batched --device cpu"
    jobs = plan(parse(arguments.split()))
    groups = {}
    for job in jobs:
        if job.precision == "ieee" and job.shape.group:
            assert (job.dtype, job.algorithm, job.variant) == ("float32", "auto", "plain")
            groups.setdefault(job.shape.group, []).append(job.shape)

    def shapes_of(group):
        return {(s.batch, s.m, s.n, s.k, s.layout) for s in groups.pop(group)}

    small = {(1, size, size, size, "NN") for size in (128, 256, 512, 1024)}
    assert shapes_of("squares to 1024") == small
    large = {(1, x, x, x, way) for x in (2048, 4096, 8192, 16384) for way in LAYOUTS}
    assert shapes_of("squares from 2048") == large
    ragged = shapes_of("odd sizes")
    sizes = [size for _, *sizes, _ in ragged for size in sizes]
    assert len(ragged) >= 30 and {way for *_, way in ragged} == set(LAYOUTS)
    assert all(size % 2 == 1 and 300 <= size <= 5000 for size in sizes)
    primes = [x for x in sizes if all(x % y for y in range(2, math.isqrt(x) + 1))]
    assert len(primes) > len(sizes) / 2
    few = {"m = 1": (1,), "m = 2 to 16": (2, 4, 8, 16), "m = 32 to 128": (32, 64, 128)}
    for group, rows in few.items():
        wide = {(1, m, x, x, way) for m in rows for x in (4096, 11008) for way in ("NN", "NT")}
        assert shapes_of(group) == wide
    long = [(64, 64, 65536), (128, 128, 131072), (32, 32, 1_000_000), (8192, 32, 8192)]
    assert shapes_of("long K or few columns") == {(1, *sizes, "NN") for sizes in long}
    assert shapes_of("cubes") == {(10_000, size, size, size, "NN") for size in (8, 16, 32, 64)}
    assert set(groups) == {"router"}
    assert suites.SUITES["skinny"].copy and suites.SUITES["batched"].copy


def test_tf32_is_measured_in_each_layout_and_at_odd_sizes():
    jobs = plan(parse("--suite tf32_square --device cpu".split()))
    assert {(job.dtype, job.algorithm) for job in jobs} == {("float32", "auto")}
    layouts = {}
    for job in jobs:
        shape = job.shape
        layouts.setdefault((shape.m, shape.n, shape.k), set()).add(shape.layout)
    assert {size for size, *_ in layouts} == {1024, 2048, 4095, 4096, 8192, 16384}
    for size in (4096, 8192):
        assert layouts[size, size, size] == set(LAYOUTS)
    assert layouts[4095, 4097, 4093] == {"NN"}


@pytest.mark.parametrize(
    "suite, names, sizes",
    [
        ("opposed", ("plain", "opposed"), [(1024, 1024, 4096), (4096, 4096, 4096)]),
        (
            "padded",
            ("decayed", "padded"),
            [(1024, 1024, 1024), (4096, 4096, 4096), (8192, 768, 3072)],
        ),
    ],
)
def test_operands_that_are_hard_to_scale_stand_beside_others(suite, names, sizes):
    jobs = plan(parse(f"--suite {suite} --device cpu".split()))
    found = [(job.shape.m, job.shape.n, job.shape.k, job.variant) for job in jobs]
    assert found == [(*size, name) for size in sizes for name in names]
    assert {(job.dtype, job.precision, job.algorithm) for job in jobs} == {
        ("float32", "fp32", "auto")
    }


def test_complex_products_of_every_kind_are_measured():
    """complex64 has both precisions, complex128 one, and squares to half the size."""
    jobs = plan(parse("--suite complex64 complex128 complex_adjoint --device cpu".split()))
    assert {job.algorithm for job in jobs} == {"auto"}
    kinds, groups = set(), {}
    for job in jobs:
        kinds.add((job.suite, job.dtype, job.precision, job.variant))
        shape = job.shape
        sizes = shape.batch, shape.m, shape.n, shape.k, shape.layout
        groups.setdefault((job.dtype, shape.group), set()).add(sizes)
    adjoint = ("complex_adjoint", "complex64")
    assert kinds == {
        ("complex128", "complex128", "fp32", "plain"),
        *(("complex64", "complex64", precision, "plain") for precision in ("fp32", "ieee")),
        *((*adjoint, p, name) for p in ("fp32", "ieee") for name in ("plain", "conjugated")),
    }
    assert groups.pop(("complex64", "")) == {(1, x, x, x, "TN") for x in (1024, 4096)}
    for dtype, largest in (("complex64", 8192), ("complex128", 4096)):
        assert suites.SUITES[dtype].copy

        def shapes_of(group, dtype=dtype):
            return groups.pop((dtype, group))

        assert shapes_of("squares to 512") == {(1, x, x, x, "NN") for x in (64, 128, 256, 512)}
        sizes = [size for size in (1024, 2048, 4096, 8192) if size <= largest]
        large = {(1, x, x, x, way) for x in sizes for way in ("NN", "NT", "TN")}
        assert shapes_of("squares from 1024") == large
        odd = [size for _, *sizes, _ in shapes_of("odd sizes") for size in sizes]
        assert len(odd) == 15 and all(size % 2 == 1 and size > 1500 for size in odd)
        few = {(1, m, 4096, 4096, way) for m in (1, 16, 64) for way in ("NN", "NT")}
        assert shapes_of("few rows") == few
        assert shapes_of("few columns") == {(1, 4096, n, 4096, "NN") for n in (1, 16, 64)}
        assert shapes_of("long K") == {(1, 64, 64, 65536, "NN")}
        cubes = {(4096, size, size, size, "NN") for size in (8, 16, 32)}
        assert shapes_of("batches") == cubes | {(64, 512, 512, 512, "NN")}
        assert shapes_of("states of circuits") == {
            (1, 2, 2**19, 2, "NN"),
            (1, 4, 2**18, 4, "NN"),
        }
    assert not groups


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
    float32 = {
        name for name in torch_tiled.algorithms() if not name.startswith(("mma", "tf32", "f64"))
    } | {"auto"}
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


def test_precisions_multiply_the_rows_of_float32_and_complex64_alone():
    arguments = f"--suite square --device cpu --dtype {' '.join(DTYPES)} --precision fp32 ieee"
    jobs = plan(parse(arguments.split()))
    sizes = len(suites.SUITES["square"].shapes)
    for dtype in DTYPES:
        precisions = 2 if dtype in ("float32", "complex64") else 1
        assert sum(job.dtype == dtype for job in jobs) == precisions * sizes


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


def test_the_products_of_a_layer_cost_the_same():
    members = suites.SUITES["transformer"].shapes
    for layer in range(0, len(members), 3):
        forward, input_gradient, weight_gradient = members[layer : layer + 3]
        assert forward.flops == input_gradient.flops == weight_gradient.flops
