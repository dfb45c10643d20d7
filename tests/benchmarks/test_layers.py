"""Mixed operands and grouped products beside PyTorch, by benchmarks.suites.layers."""

import pytest

from benchmarks.pages import result_tables
from benchmarks.suites import layers


@pytest.mark.parametrize("suite", layers.SUITES)
def test_a_suite_measures_us_and_pytorch(run, device, suite):
    status, found, output = run(layers.main, f"--small --suite {suite} --device {device}")
    assert status == 0
    rows = found["rows"]
    assert rows
    assert {row["suite"] for row in rows} == {suite}
    for row in rows:
        assert 0 < row["p10"] <= row["us"] <= row["p90"]
        assert row["ratio"] == row["peer_us"] / row["us"]
        assert row["error"] < 4e-3  # of a result in bfloat16
        assert row["what"] in output
    text = result_tables.write_layers(found, suite)
    counted = [int(line.split(" | ")[1]) for line in text.splitlines()[2:]]
    assert sum(counted) == len(rows)
