"""Fixtures for tests of benchmarks."""

import json

import pytest
from helpers.benchmarking import TINY, as_suite

from benchmarks.gemm import __main__ as bench_matmul


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Runs the benchmark, where the suite "tiny" is TINY: (exit status, JSON, output)."""
    as_suite(monkeypatch, *TINY)
    path = tmp_path / "results.json"

    def run(*arguments):
        quick = ["--seconds", "1e-3", "--repeats", "2", "--json", str(path)]
        status = bench_matmul.main([*quick, *arguments])
        return status, json.loads(path.read_text()), capsys.readouterr().out

    return run
