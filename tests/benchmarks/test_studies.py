"""The error study, the attack on the bounds, and the example that trains on digits."""

import argparse

import pytest
import torch
from helpers.specification import fp16x3_with_flags, tf32_with_flags

from benchmarks.gemm import machine
from benchmarks.gemm.check import reference
from benchmarks.studies import (
    attack_bounds,
    attention_errors,
    conv_models,
    convolutions,
    packed_attention,
)
from benchmarks.studies import complex_errors as complex_error_study
from benchmarks.studies import errors as error_study
from benchmarks.studies import rows as rows_study
from benchmarks.studies.attack_operands import ORDERS, names_of_starts, start, variants

RESULTS = machine.ROOT / "benchmarks" / "results"


def test_the_error_study_writes_its_results(run):
    status, results, output = run(error_study.main, "--device cpu --k-max 128 --size 4 --seeds 2")
    assert status == 0 and results["header"]["seeds"] == 2
    ways = ["torch.matmul", *error_study.ALGORITHMS]
    expected = [(x, k, way) for x in error_study.OPERANDS for k in (64, 128) for way in ways]
    assert [(r["operands"], r["k"], r["product"]) for r in results["rows"]] == expected
    assert all(0 < row["error"] < 1e-5 for row in results["rows"])
    assert all(abs(row["shrinkage_u"]) < 10 for row in results["rows"])
    assert all(("guarded" in row) == (row["product"] == "fp16x3") for row in results["rows"])
    expected = [(128, way, length) for way in ways for length in error_study.LENGTHS]
    keys = ("k", "product", "multiplications")
    assert [tuple(row[key] for key in keys) for row in results["iteration"]] == expected
    assert all(0 < row["error"] < 1e-4 for row in results["iteration"])
    assert "uniform(0, 1)" in output


def test_the_study_of_attention_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(attention_errors, "SIZES", ((70, 16),))
    attention_errors.main(["--queries", "3"])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert "PyTorch" in head and len(rows) == len(attention_errors.OPERANDS)
    for row in rows:
        name, keys, columns, *errors, shrinkage = (x.strip() for x in row.strip("|").split("|"))
        assert name in attention_errors.OPERANDS and (keys, columns) == ("70", "16")
        assert all(0 < float(error) < 100 for error in errors)
        assert abs(float(shrinkage.removesuffix(" u"))) < 50


def test_the_study_of_packed_attention_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(packed_attention, "LENGTHS", {"two": lambda: torch.tensor([3, 5])})
    packed_attention.main(["--device", "cpu", "--repeats", "1"])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| two", "8", which] for which in ("forward", "both")
    ]
    assert all(float(x.strip(" |")) > 0 for row in rows for x in row.split(" | ")[3:])
    case = packed_attention.Packed(torch.tensor([3, 5]), "cpu")
    expected, *others = (way(*case.tensors) for way in case.ways().values())
    for other in others:
        torch.testing.assert_close(other, expected)


def test_the_study_of_rows_prints_a_table_and_means(capsys, device):
    options = f"--device {device} --dtype float32 --rows 3 --columns 20 1100"
    rows_study.main(options.split())
    table, means = capsys.readouterr().out.split("\n\n")
    rows = [[x.strip() for x in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    named = [row[:4] for row in rows if row[0] == "softmax, gradient"]
    assert named == [["softmax, gradient", "float32", "3", columns] for columns in ("20", "1100")]
    assert all(float(x) > 0 for row in rows for x in row[4:])
    assert means.count("\n") == 2 + len({row[0] for row in rows})


@pytest.mark.parametrize("name", rows_study.REDUCTIONS)
def test_the_study_of_rows_compares_equal_things(device, name):
    if device == "cpu" and name == "rms_norm":
        pytest.skip("PyTorch has no kernel of RMS norm on a CPU")
    (tensors, *_) = rows_study.operands(5, 70, torch.float32, device)
    calls = rows_study.REDUCTIONS[name]
    for ours, theirs in (calls[:2], calls[2:])[: len(calls) // 2]:
        found, expected = ours(*tensors), theirs(*tensors)
        pairs = [(found, expected)]
        if isinstance(found, tuple):  # y alone of the forward pass, and all gradients
            is_forward = ours is calls[0]
            pairs = [(found[0], expected[0])] if is_forward else zip(found, expected, strict=False)
        for x, y in pairs:
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_results_that_are_too_small_have_a_negative_shrinkage():
    exact = torch.randn(30, 40, dtype=torch.float64)
    found = error_study.figures(exact * (1 - 3 * error_study.U), exact)
    assert found["shrinkage_u"] == pytest.approx(-3, abs=1e-3)
    assert found["error"] == pytest.approx(3 * error_study.U, rel=1e-3)


def test_errors_add_up_where_products_are_repeated():
    def shrunk(a, b):
        return (reference.product(a, b) * (1 - 2.0**-15)).float()

    args = argparse.Namespace(device="cpu", size=4, seeds=2)
    found = error_study.iterate({"shrunk": shrunk}, args)
    assert [row["multiplications"] for row in found] == list(error_study.LENGTHS)
    for row in found:
        lost = 1 - (1 - 2.0**-15) ** row["multiplications"]
        assert row["error"] == pytest.approx(lost, rel=1e-2)
        assert row["shrinkage_u"] == pytest.approx(-lost / error_study.U, rel=1e-2)


def test_the_complex_error_study_writes_its_results(run, device):
    """Three products lose the smaller part beside the larger one, and four do not."""
    options = f"--device {device} --k-max 128 --size 4 --seeds 2"
    status, results, output = run(complex_error_study.main, options)
    ways = ["cuBLAS" if device == "cuda" else "torch.matmul", "ieee", "fp32", "3M"]
    kinds = list(complex_error_study.OPERANDS)
    expected = [(kind, k, way) for kind in kinds for k in (64, 128) for way in ways]
    assert status == 0
    assert [(r["operands"], r["k"], r["product"]) for r in results["rows"]] == expected
    for row in results["rows"]:
        assert 0 < row["error"] < 1e-6 and row["part_error"] > 0
        lost = row["product"] == "3M" and "2^12" in row["operands"]
        assert (row["part_error"] > 1e-4) == lost and (row["part_error"] < 1e-6) != lost
        assert ("recomputed" in row) == (row["product"] == "fp32")
    assert "scales opposed" in output


def test_three_real_products_make_a_complex_one():
    a, b = complex_error_study.opposed(5, 6, 7)
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    torch.testing.assert_close(complex_error_study.three_products(a, b), a @ b)


def test_the_complex_error_study_counts_what_the_guard_flags():
    """All parts of an element, or those of one that meet a large number and a zero."""
    a = torch.complex(torch.rand(3, 70), torch.rand(3, 70))
    b = torch.complex(torch.rand(70, 4), torch.rand(70, 4))
    assert error_study.recomputed(a, b, algorithm="fp16x3") == 0
    a.real[:, 0], b.real[0] = 2.0**40, 0  # the imaginary parts of b meet the large numbers
    assert error_study.recomputed(a, b, algorithm="fp16x3") == 0.5
    b.imag[0] = 0
    assert error_study.recomputed(a, b, algorithm="fp16x3") == 1


def padded(m, k, n):
    """Half of a's rows are zero, and b has small numbers."""
    a, b = error_study.normal(m, k, n)
    a[m // 2 :] = 0
    return a, torch.where(torch.rand(k, n) < 0.01, b * 1e-8, b)


@pytest.mark.parametrize(
    "operands, k, flags",
    [
        (error_study.normal, 1100, 0),
        (padded, 1100, 0),
        (error_study.opposed(2.5), 1100, None),  # some elements
        (error_study.opposed(5), 128, 1),
        (error_study.opposed(5), 127, 0),  # the chunked order
    ],
)
def test_the_error_study_counts_what_the_guard_flags(operands, k, flags):
    torch.manual_seed(0)
    a, b = operands(20, k, 20)
    share = error_study.recomputed(a, b, algorithm="fp16x3")
    assert share == flags if flags is not None else 0.01 < share < 0.99
    if k >= reference.MIN_K["fp16x3"]:
        _, flagged = fp16x3_with_flags(a, b)
        assert share == flagged.double().mean().item()


ATTACK = "--device cpu --k 128 --rounds 1 --size 8".split()


def test_an_attack_comes_close_to_the_bounds_and_can_be_repeated(capsys):
    assert attack_bounds.main(ATTACK) == 0
    said = capsys.readouterr().out
    ratios = {row.split()[0]: float(row.split()[4]) for row in said.splitlines()[1:]}
    assert list(ratios) == list(ORDERS)
    assert all(0.8 < ratio <= 1 for ratio in ratios.values())
    assert attack_bounds.main(ATTACK) == 0
    assert capsys.readouterr().out == said


def test_an_attack_reports_an_exceeded_bound(monkeypatch, capsys):
    promised = attack_bounds.promised
    monkeypatch.setattr(attack_bounds, "promised", lambda *args: promised(*args) / 2)
    assert attack_bounds.main([*ATTACK, "--order", "fp16x3"]) == 1
    assert "A promise of fp16x3 is broken at K = 128: the result is " in capsys.readouterr().out


def test_an_attack_reports_other_bits_of_flagged_elements(monkeypatch, capsys):
    def every(order, a, b):
        return torch.ones(len(a), len(b)).bool()

    monkeypatch.setattr(attack_bounds, "flagged", every)
    assert attack_bounds.main([*ATTACK, "--order", "tf32"]) == 1
    assert 'the element is flagged, and has not the bits of "ieee".' in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, with_flags", [("fp16x3", fp16x3_with_flags), ("tf32", tf32_with_flags)]
)
def test_an_attack_knows_which_elements_are_flagged(name, with_flags):
    order, generator = ORDERS[name], torch.Generator().manual_seed(0)
    share = 0
    for began in names_of_starts(order):
        a, b = (variants(x, 9, generator) for x in start(began, order, 1030, generator))
        expected = with_flags(a, b.mT)[1]
        assert torch.equal(attack_bounds.flagged(order, a, b), expected)
        share += expected.double().mean().item() / len(names_of_starts(order))
    assert 0 < share < 0.5


def test_layers_of_the_study_of_convolutions():
    assert convolutions._parse("32x64x128x56x3/2") == (32, 64, 128, 56, 3, 2)
    for layer in convolutions.LAYERS:
        assert len(convolutions._parse(layer)) == 6


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: conv_models.UNet(2, (8, 16)), (1, 2, 8, 8)),
        (lambda: conv_models.FNO(2, 8, 3), (2, 2, 12, 12)),
        (lambda: conv_models.Bottleneck(8, 4, 2), (2, 8, 6, 6)),
    ],
)
def test_networks_of_the_study_of_convolutions(model, shape):
    model, x = model(), torch.randn(shape)
    y, grads = conv_models._step(model, x)
    assert y.shape[:2] == (shape[0], {8: 16}.get(shape[1], shape[1]))
    assert grads.numel() == sum(p.numel() for p in model.parameters())
    wide, of_wide = conv_models._step(model.double(), x.double())
    for found, exact in ((y, wide), (grads, of_wide)):
        assert (found - exact).norm() < 1e-4 * exact.norm()
