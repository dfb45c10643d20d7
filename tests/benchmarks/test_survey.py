"""The survey: its random products, what it measures, and what it says of that."""

import itertools
import re
import types

import pytest
import torch

from benchmarks.gemm.check import Wrong
from benchmarks.gemm.report import product as shape_of
from benchmarks.pages.files import in_lines
from benchmarks.suites.shapes import LAYOUTS
from benchmarks.survey import __main__ as survey
from benchmarks.survey import products as random_products
from benchmarks.survey import regimes

QUICK = "--device cpu --most 1e5 --repeats 1"


def first(count, *args, **options):
    return list(itertools.islice(random_products.products(*args, **options), count))


@pytest.fixture
def measure(run_in_line):
    """Runs the survey: (exit status, JSON, output in one line)."""
    return lambda options: run_in_line(survey.main, f"{QUICK} {options}")


# --- the products --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [False, True])
def test_a_seed_has_the_same_products_each_time(model):
    longer = first(200, 3, model=model)
    assert first(50, 3, model=model) == longer[:50]
    assert first(50, 4, model=model) != longer[:50]


def test_products_have_sides_of_every_size_and_stay_within_the_limits():
    found = first(3000, 1)
    assert {shape.layout for shape in found} == set(LAYOUTS)
    assert {shape.batch for shape in found} == set(random_products.BATCHES)
    for shape in found:
        assert shape.k >= random_products.LEAST_K
        assert shape.flops <= 2 * random_products.MOST_FMAS
        assert shape.elements <= random_products.MOST_ELEMENTS
    sides = [side for shape in found for side in (shape.m, shape.n)]
    assert min(sides) == 1 and max(sides) > 11_585  # which is 2 ** 13.5
    singles = sum(shape.batch == 1 for shape in found)
    assert 3 / 8 < singles / len(found) < 3 / 5  # the limits leave out more batches
    even = regimes.REGIMES["M, N, K multiples of 4"]
    share = sum(even({"m": shape.m, "n": shape.n, "k": shape.k}) for shape in found) / len(found)
    assert 0.05 < share < 0.2


def test_products_of_layers_have_the_sides_of_layers():
    found = first(3000, 1, model=True)
    assert {shape.what for shape in found} == {
        *("forward", "input gradient", "weight gradient", "scores", "values")
    }
    linear = [shape for shape in found if shape.batch == 1]
    for shape in linear:
        out, width, rows_of = {
            "forward": (shape.n, shape.k, shape.m),
            "input gradient": (shape.k, shape.n, shape.m),
            "weight gradient": (shape.m, shape.n, shape.k),
        }[shape.what]
        assert width % 8 == 0 and (out % 8 == 0 or out in random_products.VOCABULARIES)
        assert 1 <= rows_of <= random_products.MOST_ROWS
    assert max(shape.m for shape in linear if shape.what == "forward") > 10_000
    assert {50257, 128256} <= {shape.n for shape in linear}
    scores = [shape for shape in found if shape.what == "scores"]
    assert {shape.k for shape in scores} == set(random_products.HEADS)
    assert any(shape.m == 1 for shape in scores)


@pytest.mark.parametrize("model", [False, True])
def test_the_pool_holds_the_operands_of_every_product(model):
    most = 2e5
    numbers = random_products.pool(0, most, model, torch.float32, torch.device("cpu"))
    for shape in first(300, 0, most, model=model):
        a, b = random_products.views(numbers, shape)
        batch = (shape.batch,) if shape.batch > 1 else ()
        assert a.shape == (*batch, shape.m, shape.k) and b.shape == (*batch, shape.k, shape.n)
        assert b.storage_offset() % random_products.ALIGNED == 0
        for x, letter in ((a, shape.layout[0]), (b, shape.layout[1])):
            assert (x if letter == "N" else x.mT).is_contiguous()
        assert a.storage_offset() + a.numel() <= b.storage_offset()


# --- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
def test_the_survey_writes_a_line_for_each_product(measure, tmp_path, dtype):
    status, results, output = measure(f"--count 5 --dtype {dtype}")
    header, found = results["header"], results["rows"]
    assert status == 0 and header["refused"] == []
    assert (header["dtype"], header["seed"], header["model"]) == (dtype, 1, False)
    assert header["empty_us"]["alone"] > 0 and header["empty_us"]["among_many"] > 0
    assert [shape_of(row) for row in found] == first(5, 1, 1e5)
    for row in found:
        assert (row["kernel"], row["tile"]) == ("torch.matmul", None)
        assert row["us"] > 0 and row["ratio"] == survey.short(row["peer_us"] / row["us"])
        assert row["error"] > 0 or dtype == "float64"
        assert row["us"] == survey.short(row["us"])
    (text,) = (path.read_text() for path in tmp_path.iterdir())
    assert text == in_lines(results) and text.count("\n{") == len(found)
    assert "seed 1: torch's time / ours" in output and "the 5 worst" in output


@pytest.mark.parametrize(
    ("options", "count"),
    [("--count 2", 2), ("--count 4", 4), ("--seconds 3", 3), ("--seconds 5 --count 4", 4)],
)
def test_a_longer_survey_extends_a_shorter_one(measure, monkeypatch, options, count):
    """The budget is a count of products, or seconds: here the clock tells one for each product."""
    seconds = itertools.count()
    monkeypatch.setattr(survey, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))
    status, results, output = measure(f"{options} --seed 7")
    assert status == 0
    assert [shape_of(row) for row in results["rows"]] == first(count, 7, 1e5)
    assert ("[1/?]" in output) == ("--count" not in options)


def test_kernels_are_timed_beside_each_other(measure):
    status, results, output = measure("--count 4 --beside tiled16 simt_tma")
    assert status == 0 and results["header"]["beside"] == ["tiled16", "simt_tma"]
    for row in results["rows"]:  # simt_tma takes K from 64 on
        names = ["tiled16", *(["simt_tma"] if row["k"] >= 64 else [])]
        assert [name for name, *_ in row["beside"]] == names
        assert all(re.fullmatch(r"\d+x\d+", tile) and us > 0 for _, tile, us in row["beside"])
    assert "slower without a kernel" in output
    assert "times the time of the fastest kernel of its order" in output


@pytest.mark.parametrize(
    ("options", "takes", "not_taken"),
    [
        ("--dtype float32", "fp16x3_wgmma", "mma_tma"),
        ("--dtype float32 --precision ieee", "simt_tma", "fp16x3_wgmma"),
        ("--dtype float16", "mma_tma", "simt_tma"),
    ],
)
def test_all_kernels_are_those_that_take_the_dtype(options, takes, not_taken):
    names = survey.parse(f"{QUICK} {options} --beside all".split()).beside
    assert takes in names and "tiled64" in names and not_taken not in names


def test_kernels_of_another_order_are_not_compared(monkeypatch):
    """`auto` has an order on a GPU, which is planned for one that is not there."""
    explain = survey.torch_tiled.explain
    monkeypatch.setattr(
        survey.torch_tiled,
        "explain",
        lambda a, b, **ways: explain(a, b, **ways, compute_capability=90, sms=132),
    )
    names = survey.parse(f"{QUICK} --beside all".split()).beside
    for k, family in ((63, ("tiled", "simt")), (600, ("fp16x3",))):
        contest = survey.plain([(torch.empty(100, k), torch.empty(k, 70))], algorithm="auto")
        picked = survey.torch_tiled.explain(*contest.operands[0])
        tiles = survey.beside(names, picked, contest, "fp32")
        assert len(tiles) > 1 and picked.algorithm not in tiles
        assert all(name.startswith(family) for name in [picked.algorithm, *tiles])


def test_no_time_of_what_is_wrong_is_reported(measure, monkeypatch):
    def refuse(*_):
        raise Wrong("element (0, 0) is 1; its time is not reported")

    monkeypatch.setattr(survey, "judge", refuse)
    status, results, output = measure("--count 2")
    assert status == 1 and results["rows"] == []
    shape = first(1, 1, 1e5)[0]
    assert results["header"]["refused"][0].startswith(f"{shape}: auto: element (0, 0) is 1")
    assert "its time is not reported" in output and "worst" not in output


def test_a_product_that_fails_is_named_and_the_survey_goes_on(measure, monkeypatch):
    right, calls = survey.judge, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no room")
        return right(*args)

    monkeypatch.setattr(survey, "judge", failing)
    status, results, _ = measure("--count 3")
    assert status == 1 and len(results["rows"]) == 2
    assert results["header"]["refused"] == [f"{first(1, 1, 1e5)[0]}: no room"]


def test_an_interruption_keeps_what_was_measured(measure, interrupt):
    interrupt(survey, "measure")
    status, results, output = measure("--count 5")
    assert status == 130 and len(results["rows"]) == 2 and "Interrupted" in output


def test_the_survey_runs_on_the_device(run, device):
    options = f"--device {device} --most 1e6 --count 6 --repeats 1 --beside all"
    status, results, _ = run(survey.main, options)
    assert status == 0
    assert (results["header"]["clocks_before"] is None) == (device == "cpu")
    assert (results["rows"][0]["tile"] is None) == (device == "cpu")


# --- what it says --------------------------------------------------------------------------------


def test_a_regime_has_its_mean_its_shares_and_its_worst():
    sizes = {"batch": 1, "m": 512, "n": 512, "k": 512, "peer_us": 20.0}
    found = [sizes | {"ratio": ratio} for ratio in (4.0, 0.97, 0.94, 0.25)]
    lines = {cells.pop("regime"): list(cells.values()) for cells in regimes.regimes(found)}
    assert lines["all"] == ["4", "0.98", "75%", "50%", "25%", "0.25"]
    assert lines["K below 64"] == ["0", "-", "-", "-", "-", "-"]
    assert lines["10 us or more"] == lines["M, N, K multiples of 4"] == lines["all"]


def test_a_kernel_is_left_out_of_the_products_that_it_wins_and_of_all():
    found = [
        {"kernel": "tiled16", "us": 1.0, "beside": [["naive", "", 2.0], ["tiled64", "", 3.0]]},
        {"kernel": "naive", "us": 9.0, "beside": [["tiled16", "", 1.0], ["tiled64", "", 8.0]]},
        {"kernel": "tiled64", "us": 3.0, "beside": [["naive", "", 4.5]]},
        {"kernel": "naive", "us": 7.0, "beside": []},  # no other kernel takes this one
    ]
    assert [list(line.values()) for line in regimes.without_each(found)] == [
        ["tiled16", "2", "2.520", "4.00"],  # 2 and 8, and 1 in the third product
        ["tiled64", "1", "1.145", "1.50"],
        ["naive", "0", "1.000", "-"],
    ]
    assert regimes.over_best(found) == pytest.approx(9 ** (1 / 4))
