"""The benchmark's output, its command line, and its runs for a profiler."""

import math

import pytest
import torch
from helpers.benchmarking import tiny
from helpers.reference import takes

import torch_tiled
from benchmarks.gemm import __main__ as bench_matmul
from benchmarks.gemm import report
from benchmarks.gemm.means import geometric_means
from benchmarks.gemm.options import parse
from benchmarks.suites import suites

# --- what is printed -----------------------------------------------------------------------------


def test_output_fits_a_hundred_columns(bench):
    dtypes = torch.float32, torch.bfloat16
    taken = [x for x in torch_tiled.algorithms() if all(takes(x, dtype) for dtype in dtypes)]
    _, _, output = bench(*tiny("cpu", "--dtype", "float32", "bfloat16", "--algorithm", *taken))
    table = output[output.index("tiny: ") :]
    assert "peer's" in table and "geometric means" in table
    assert max(map(len, output.splitlines())) <= report.WIDTH


# --- for a profiler ------------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """The products that ran while a profiler would have looked; there is none here."""
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
    args = parse([*asked, "--device", device])
    assert bench_matmul.profile(args, report.make_console()) == 0
    assert profiled == 2 * ["torch_tiled", "torch"]
    output = " ".join(capsys.readouterr().out.split())
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
    assert math.isclose(means[0]["ratio"], 4.0)
    assert all(mean["of_copy"] is None for mean in means)
