"""Fixtures for tests of benchmarks."""

import json

import pytest
from helpers.benchmarking import TINY, as_suite

from benchmarks.gemm import __main__ as bench_matmul


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the command of a `main`: (exit status, the JSON that it wrote, output)."""
    path = tmp_path / "results.json"

    def run_main(main, options):
        words = options.split() if isinstance(options, str) else options
        status = main([*words, "--json", str(path)])
        results = json.loads(path.read_text())
        assert results["header"]["command_line"].startswith("python -m benchmarks.")
        assert str(tmp_path) not in results["header"]["command_line"]
        return status, results, capsys.readouterr().out

    return run_main


@pytest.fixture
def run_in_line(run):
    """`run`, with the output in one line."""

    def run_main(main, options):
        status, results, output = run(main, options)
        return status, results, " ".join(output.split())

    return run_main


@pytest.fixture
def bench(monkeypatch, run):
    """Runs benchmarks.gemm in the same way, with a suite "tiny" that is TINY."""
    as_suite(monkeypatch, *TINY)
    quick = ["--seconds", "1e-3", "--repeats", "2"]
    return lambda *arguments: run(bench_matmul.main, [*quick, *arguments])


@pytest.fixture
def interrupt(monkeypatch):
    """Makes a function of a module raise KeyboardInterrupt at its third call."""

    def patch(module, name):
        right, calls = getattr(module, name), []

        def interrupted(*args, **options):
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return right(*args, **options)

        monkeypatch.setattr(module, name, interrupted)

    return patch
