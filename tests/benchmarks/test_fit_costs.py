"""The fit of the cost model's constants, on rows whose time is known."""

import json

import numpy as np
import pytest

from benchmarks.survey import fit_costs
from benchmarks.survey.fit_costs import Gpu, Sample

H200 = Gpu(compute_capability=90, sms=132)
MHZ = 2000.0


def row(kernel, m, n, k, *, overhead=1.0, rate=1.0, dtype="bfloat16", **other):
    """A row whose time is the model's, with its two parts as so many times what they are."""
    shape = {"dtype": dtype, "precision": "fp32", "layout": "NT", "batch": 1, "m": m, "n": n}
    shape |= {"k": k}
    fixed, grows = fit_costs.parts(kernel, shape, H200)
    us = (fixed * overhead + grows / rate) / MHZ
    tile = fit_costs.plan(kernel, shape, H200).tile
    return shape | {"variant": "plain", "kernel": kernel, "tile": tile, "us": us} | other


def measured(path, rows, **header):
    header = {"clocks_before": {"sm_mhz": MHZ}} | header
    path.write_text(json.dumps({"header": header, "rows": rows}))
    return str(path)


def test_factors_are_found_that_rows_were_made_with():
    choose = np.random.default_rng(0)
    terms = choose.uniform(1e3, 1e5, (40, 2))
    rows = [
        Sample("mma_tma", "64x64", 1.5 * fixed + grows / 0.8, fixed + grows, (fixed, grows))
        for fixed, grows in terms
    ]
    fitted = fit_costs.fit(rows)
    assert fitted.overhead == pytest.approx(1.5, rel=0.02)
    assert fitted.rate == pytest.approx(0.8, rel=0.02)
    assert fitted.error > 1.2 and fitted.error_after == pytest.approx(1, abs=0.01)


def test_factors_stay_near_1_where_rows_do_not_tell_them_apart():
    """Every row has the same two parts, so one number decides two factors."""
    fitted = fit_costs.fit([Sample("simt_tma", "64x64", 200, 100, (50, 50))] * 9)
    assert fitted.overhead == pytest.approx(1 / fitted.rate) == pytest.approx(2, rel=0.02)
    assert fitted.error_after == pytest.approx(1, abs=0.02)


def test_parts_are_of_a_plan_that_k_alone_changes():
    """They add up to the model's cycles. K of 64 leaves no second K."""
    shape = {"dtype": "bfloat16", "precision": "fp32", "layout": "NT", "batch": 1}
    shape |= {"m": 4096, "n": 4096, "k": 4096}
    fixed, grows = fit_costs.parts("mma_tma", shape, H200)
    assert 0 < fixed < grows
    total = fit_costs.cycles(fit_costs.plan("mma_tma", shape, H200))
    assert fixed + grows == pytest.approx(total)
    assert fit_costs.parts("mma_tma", shape | {"k": 64}, H200) is None


def test_the_table_has_a_line_for_each_tile(tmp_path, capsys):
    sizes = [(4096, 4096, k) for k in (1024, 2048, 4096, 8192)]
    rows = [row("mma_tma", *size, overhead=2, rate=0.5) for size in sizes]
    rows += [row("simt_tma", *size, dtype="float32") for size in sizes]
    rows.append(rows[0] | {"tile": "1x1"})  # by now explain() says another one
    rows.append(rows[0] | {"kernel": "simt_thin"})  # which is deleted
    rows.append(rows[0] | {"variant": "bias", "us": 1e9})
    file = measured(tmp_path / "r.json", rows)
    assert fit_costs.main([file]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (mma,) = (line for line in lines if line[0] == "128x256")
    assert mma[1:4] == ["4", "2.00", "2.00"] and mma[6] == "1.00"
    assert [float(factor) for factor in mma[4:6]] == pytest.approx([2, 0.5], rel=0.1)
    (simt,) = (line for line in lines if line[0] == "256x128")
    assert simt[1:4] == ["4", "1.00", "1.00"] and simt[-1] == "1.00"
    assert ["mma_tma", "all", "4", "2.00", "2.00", "-", "-", "-"] in lines
    assert "2 of 10 rows have another plan now.".split() in lines
    assert fit_costs.main([file, "--kernel", "simt_tma"]) == 0
    assert "mma_tma" not in capsys.readouterr().out


def test_a_survey_has_kernels_beside_the_one_that_ran_and_the_start_of_a_graph(tmp_path, capsys):
    """The model is of a call among others, and a survey replays graphs of one call."""
    empty = {"alone": 3.4, "among_many": 1.2}
    rows = [row("mma_unaligned", 700, 700, k) for k in (1001, 2001, 4001)]
    beside = [row("mma_tma", 700, 700, each["k"], rate=0.5) for each in rows]
    for each, other in zip(rows, beside, strict=True):
        each["beside"] = [[other["kernel"], other["tile"], other["us"] + 2.2]]
        each["us"] += 2.2
        for key in ("dtype", "precision", "variant"):
            del each[key]
    header = {"dtype": "bfloat16", "precision": "fp32", "empty_us": empty}
    file = measured(tmp_path / "s.json", rows, **header)
    assert fit_costs.main([file, "--kernel", "mma_unaligned"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mma_unaligned", "all", "3", "1.00", "1.00", "-", "-", "-"] in lines
    (ran, other) = fit_costs.kernels_of(rows[0], empty)
    assert (ran["kernel"], other["kernel"]) == ("mma_unaligned", "mma_tma")
    assert other["us"] == pytest.approx(beside[0]["us"])
    (fast,) = fit_costs.kernels_of({"kernel": "naive", "tile": "32x32", "us": 3.3}, empty)
    assert fast["us"] == 1.2  # no kernel takes less than an empty one
    assert fit_costs.kernels_of(beside[0], None) == [beside[0]]


@pytest.mark.parametrize(
    "change, header, sentence",
    [
        ({"kernel": None}, {}, "Row 1 of "),
        (
            {"tile": None},
            {},
            "does not say which kernel ran, and with which tile; ",
        ),
        ({}, {"clocks_before": None}, "has no clock of the SMs; name it with --mhz."),
        ({"tile": "1x1"}, {}, "No row has a kernel and a tile that explain() would plan"),
    ],
)
def test_results_that_cannot_be_fitted_are_refused(tmp_path, capsys, change, header, sentence):
    usual = row("mma_tma", 512, 512, 512)
    first = usual | {"tile": "1x1"} if "tile" in change else usual
    file = measured(tmp_path / "r.json", [first, usual | change], **header)
    assert fit_costs.main([file]) == 1
    assert sentence in " ".join(capsys.readouterr().out.split())
    if header:
        assert fit_costs.main([file, "--mhz", str(MHZ)]) == 0


def test_a_file_that_is_not_there_is_refused(capsys):
    assert fit_costs.main(["/nowhere/r.json"]) == 1
    assert "/nowhere/r.json cannot be read" in capsys.readouterr().out


def test_picks_by_todays_costs_are_compared_with_the_fastest_kernel():
    shape = {"dtype": "float32", "precision": "ieee", "layout": "NN", "batch": 1}
    shape |= {"m": 512, "n": 512, "k": 512}
    picked = fit_costs.plan("auto", shape, H200).algorithm
    timed = {
        "kernel": "naive",
        "us": 30.0,
        "beside": [[picked, "any", 12.0], ["tiled16", "any", 10.0]],
    }
    assert fit_costs.over_best(shape | timed, H200) == 1.2
    assert fit_costs.over_best(shape | {"kernel": "naive", "us": 30.0}, H200) is None
    assert fit_costs.over_best(shape | timed | {"beside": [["tiled16", "any", 1.0]]}, H200) is None
