"""What the README shows first, and the ways to a float32 product: scripts and their pages."""

import json

import pytest
import torch

from benchmarks.pages import files, readme, rows, which_product
from benchmarks.studies import which_way
from benchmarks.suites import front_page

HEADER = {"device": "NVIDIA H200", "torch": "2", "cuda": None, "git_commit": None, "time": "now"}


def results(*found):
    return {"header": HEADER, "rows": list(found)}


# --- the table of the README ---------------------------------------------------------------------


def front_rows():
    product = {"kind": "product", "dtype": "float32", "size": 4096, "us": 700.0, "ratio": 4.0}
    product |= {"tflops": 200.0, "peer_tflops": 50.0, "error": 1.5e-7, "peer_error": 1e-6}
    half = {"dtype": "bfloat16", "ratio": 1.0, "error": 1e-3, "peer_error": 1e-3}
    step = {"kind": "training", "ms": 40.0, "peer_ms": 80.0, "ratio": 2.0, "inputs": [[8, 512]]}
    prompts = {"kind": "prompts", "prompts": 8, "length": 64}
    streamed = {"kind": "streamed", "size": 32768, "seconds": 0.5, "in_core_seconds": 0.4}
    streamed |= {"budget": 4 << 30, "bytes": 12 << 30, "tflops": 140.0, "equal": True}
    return [
        product,
        product | half,
        step | {"model": "GPT-2 small"},
        step | {"model": "BERT base", "inputs": [[16, 256], [16]]},
        streamed,
        *(
            prompts | {"dtype": dtype, "way": way, "same_prompts": count}
            for dtype in ("float32", "bfloat16")
            for way, count in (("torch", 0), ("convert", 8), ("the same, means too", 8))
        ),
    ]


def test_the_readme_has_five_rows():
    lines = readme.write_table(results(*front_rows())).splitlines()
    assert len(lines) == 2 + 5
    float32, training, prompts, bfloat16, streamed = lines[2:]
    assert float32 == (
        "| a float32 product, 4096 cubed | 50 TFLOP/s, error 1.0e-06 | 200 TFLOP/s, error 1.5e-07 "
        "| **4.00x** the speed, 0.15 of the error |"
    )
    assert "GPT-2, BERT | 80.0, 80.0 ms | 40.0, 40.0 ms | **2.00, 2.00x**" in training
    assert "float32, bfloat16 | 0 and 0 of 8 | 8 and 8 of 8 |" in prompts
    assert bfloat16.endswith("| **1.00x** the speed, the same error |")
    assert "12 GiB, with 4 GiB of the GPU | does not fit | 140 TFLOP/s" in streamed
    assert streamed.endswith("| **0.80x** the speed within the GPU, the same bits |")
    source = readme.write_source(results(*front_rows()))
    assert "GPT-2 small on 8 x 512, BERT base on 16 x 256" in source and "64 tokens" in source


@pytest.mark.parametrize("left", ["product", "prompts", "streamed"])
def test_the_readme_is_not_written_from_a_part_of_the_results(left):
    some = [row for row in front_rows() if row["kind"] != left]
    with pytest.raises(files.ResultsError, match="there are 0 such rows"):
        readme.write_table(results(*some))
    failed = {"kind": "training", "model": "BERT base", "failure": "ImportError: no"}
    others = [row for row in front_rows() if row.get("model") != "BERT base"]
    with pytest.raises(files.ResultsError, match="ImportError: no"):
        readme.write_table(results(*others, failed))


def test_the_front_page_is_measured_in_one_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="no transformers")
    monkeypatch.setattr(front_page, "MODELS", {"gpt2": "GPT-2 small"})
    monkeypatch.setattr(front_page, "PROMPT_WAYS", ("torch", "convert"))
    monkeypatch.setattr(front_page.same_answer, "PROMPTS", 2)
    path = tmp_path / "front.json"
    quick = "--small --device cpu --seconds 0.01 --repeats 1 --steps 2 --tokens 1 --json"
    precision = torch.get_float32_matmul_precision()
    try:
        assert front_page.main([*quick.split(), str(path)]) == 0
    finally:
        torch.set_float32_matmul_precision(precision)
    found = files.read(path)
    kinds = [row["kind"] for row in found["rows"]]
    assert kinds == ["product"] * 2 + ["training", "streamed"] + ["prompts"] * 4
    assert all(row.get("ratio", 1) > 0 for row in found["rows"])
    assert len(readme.write_table(found).splitlines()) == 2 + 5
    assert found["header"]["command_line"].startswith(
        "python -m benchmarks.suites.front_page --small"
    )


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


def test_the_page_has_a_line_for_each_way_that_was_measured():
    def speed(way, size, **other):
        row = {"kind": "speed", "way": way, "size": size, "us": 10.0, "tflops": 20.0, "note": ""}
        return row | {"error": 1e-7, "componentwise_u": 3.0} | other

    measured = results(
        speed("Triton bf16x3", 1024, note="64x64x32, 4 warps, 4 stages, TMA"),
        speed("cuBLAS SGEMM", 1024),
        speed("torch_tiled fp32", 1024),
        speed("torch_tiled fp32", 4096, error=2e-7),
        {"kind": "speed", "way": "JAX X", "size": 1024, "not_run": "not run here: no jax"},
    )
    lines = which_product.write_choice(measured).splitlines()[2:]
    assert lines == [
        '| **torch_tiled** `"fp32"` | 10, 20 | 10, 20 | 2.0e-07 | 3 |',
        "| cuBLAS SGEMM | 10, 20 | - | - | - |",
        "| Triton `bf16x3` | 10, 20 | - | - | - |",
    ]


def test_the_page_shows_shares_and_times_of_hard_operands():
    row = {"kind": "hard", "way": "torch_tiled fp32", "error": 1e-7, "componentwise_u": 2.0}
    row |= {"us": 30.0, "normal_us": 20.0, "flagged": 0.25, "inexact": 0.25, "size": 128}
    measured = results(
        row | {"operands": "normal"},
        row | {"operands": "ReLU"},
        row | {"operands": "normal", "way": "torch_tiled tf32", "error": 3e-4, "inexact": 0.9999},
        row | {"operands": "one-hot rows", "flagged": 0.0},
        row | {"operands": "a @ a.T", "asymmetric": 0.0},
    )
    assert which_product.write_exact(measured).splitlines()[2:] == [
        '| **torch_tiled** `"fp32"` | 25 % | - | - | 0 |',
        '| **torch_tiled** `"tf32"` | - | - | - | - |',
    ]
    assert which_product.write_hard(measured).splitlines()[2:] == [
        '| **torch_tiled** `"fp32"` | 1.0e-07 (2) | 1.0e-07 (2) |'
    ]
    assert which_product.write_cost(measured).splitlines()[2:] == [
        "| ReLU | 25 % | 1.50 | - | - | - |",
        "| one-hot rows | 0 | 1.50 | - | - | - |",
        "| a @ a.T | 25 % | 1.50 | - | - | - |",
    ]


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


def test_a_results_file_is_written_after_each_stage(tmp_path, monkeypatch):
    path = tmp_path / "ways.json"

    def ends(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(which_way.Study, "hard", ends)
    with pytest.raises(KeyboardInterrupt):
        which_way.main(f"--sizes 128 --device cpu --seconds 0.001 --json {path}".split())
    assert json.loads(path.read_text())["rows"][0]["way"] == "torch.matmul"
