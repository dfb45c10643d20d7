"""What the README shows first, and the ways to a float32 product: scripts and their pages."""

import pytest
import torch

from benchmarks import RESULTS
from benchmarks.pages import files, readme, rows, which_product
from benchmarks.studies import which_way
from benchmarks.suites import front_page

HEADER = {"device": "NVIDIA H200", "torch": "2", "cuda": None, "git_commit": None, "time": "now"}


def results(*found):
    return {"header": HEADER, "rows": list(found)}


# --- the table of the README ---------------------------------------------------------------------


@pytest.mark.parametrize("left", ["product", "prompts", "streamed"])
def test_the_readme_is_not_written_from_a_part_of_the_results(left):
    found = files.read(RESULTS / "front_page.json")["rows"]
    with pytest.raises(files.ResultsError, match="there are 0 such rows"):
        readme.write_table(results(*(row for row in found if row["kind"] != left)))
    failed = {"kind": "training", "model": "BERT base", "failure": "ImportError: no"}
    others = [row for row in found if row.get("model") != "BERT base"]
    with pytest.raises(files.ResultsError, match="ImportError: no"):
        readme.write_table(results(*others, failed))


def test_the_front_page_is_measured_in_one_run(run, monkeypatch):
    pytest.importorskip("transformers", reason="no transformers")
    monkeypatch.setattr(front_page, "MODELS", {"gpt2": "GPT-2 small"})
    monkeypatch.setattr(front_page, "PROMPTS", 2)
    quick = "--small --device cpu --seconds 0.01 --repeats 1 --steps 2 --tokens 1"
    status, found, _ = run(front_page.main, quick)
    assert status == 0
    kinds = [row["kind"] for row in found["rows"]]
    assert kinds == ["product"] * 2 + ["training", "prefill", "streamed"] + ["prompts"] * 6
    assert all(row.get("ratio", 1) > 0 for row in found["rows"])
    for row in found["rows"]:
        if row["kind"] in ("training", "prefill"):
            assert 0 < row["attention_share"] < 1
    assert len(readme.write_table(found).splitlines()) == 2 + 6


def test_a_job_that_fails_has_a_row_that_says_why():
    def fails():
        raise ModuleNotFoundError("No module named 'transformers'")

    (row,) = front_page.measured({"kind": "training", "model": "BERT base"}, fails)
    assert row["failure"] == "ModuleNotFoundError: No module named 'transformers'"


# --- the ways to a float32 product ---------------------------------------------------------------


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    """The results of a small run on the CPU."""
    path = tmp_path_factory.mktemp("ways") / "ways.json"
    quick = "--sizes 128 --hard-size 128 --device cpu --seconds 0.001 --repeats 1 --json"
    assert which_way.main([*quick.split(), str(path)]) == 0
    return files.read(path)


def test_every_way_has_rows_or_says_why_not(ways):
    speeds = {row["way"]: row for row in rows.select(ways["rows"], kind="speed")}
    measured = ["torch.matmul", *(f"torch_tiled {each}" for each in which_way.OURS)]
    assert [way for way, row in speeds.items() if "error" in row][:4] == measured
    assert "Triton's kernels need a GPU" in speeds["Triton bf16x3"]["not_run"]
    assert {f"JAX {each}" for each in which_way.JAX} <= speeds.keys()
    for way in measured:
        kinds = [row["operands"] for row in rows.select(ways["rows"], kind="hard", way=way)]
        assert kinds == list(which_way.HARD)


def hard(ways, way, operands):
    (row,) = rows.select(ways["rows"], kind="hard", way=f"torch_tiled {way}", operands=operands)
    return row


def test_float32_by_parts_is_what_the_page_says(ways):
    for operands in ("one-hot rows", "a permutation"):
        assert hard(ways, "ieee", operands)["inexact"] == 0
        by_parts = hard(ways, "fp32", operands)
        assert by_parts["inexact"] > 0 and by_parts["componentwise_u"] <= 2
    assert hard(ways, "ieee", "integers above 2^11")["inexact"] == 0
    assert hard(ways, "fp32", "integers above 2^11")["inexact"] > 0
    assert hard(ways, "ieee", "a @ a.T")["asymmetric"] == 0
    assert hard(ways, "fp32", "a @ a.T")["asymmetric"] > 0


def test_operands_with_opposed_scales_are_flagged(ways):
    assert hard(ways, "fp32", "opposed scales")["flagged"] > 0.5
    assert hard(ways, "fp32", "normal")["flagged"] == 0


def test_errors_are_those_of_float64():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    exact = a.double() @ b.double()
    found = which_way.errors(exact.float(), a, b)
    assert found["inexact"] == 0 and 0 < found["error"] < 6e-8
    off = exact.float()
    off[2, 1] += 1
    size = (a.double().abs() @ b.double().abs())[2, 1].item()
    found = which_way.errors(off, a, b)
    assert found["inexact"] == 1 / 15
    assert found["componentwise_u"] == pytest.approx(2**24 / size, rel=1e-6)
    a[2] = 0
    assert which_way.errors(off, a, b)["componentwise_u"] == float("inf")


def test_the_ways_are_drawn_by_size(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    found = [
        {"kind": "speed", "way": way, "size": size, "us": 10.0 * size, "error": error}
        for way, error in (("torch_tiled fp32", 1e-7), ("JAX X", 1e-5), ("cuBLAS TF32", 3e-4))
        for size in (1024, 4096)
    ]
    for measured in (results(*found), results()):
        which_product.draw(measured, tmp_path / "plot.svg")
        drawn = (tmp_path / "plot.svg").read_text()
        assert "</svg>" in drawn
        assert all((name in drawn) == bool(measured["rows"]) for name in ("JAX X", "1024 x 1024"))
