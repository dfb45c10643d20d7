"""The host's time of a call, by benchmarks.suites.host."""

import os

from benchmarks.pages import result_tables
from benchmarks.suites import host


def test_every_way_of_calling_is_measured_beside_pytorchs(run, device):
    cores = os.sched_getaffinity(0)
    status, found, output = run(host.main, f"--small --turns 1 --device {device}")
    assert status == 0
    assert os.sched_getaffinity(0) == cores
    rows = found["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float64", "complex64"}
    calls = {row["call"] for row in rows}
    assert {"torch.ops.tiled.matmul", "torch_tiled.gemm_", "torch_tiled.nn.Linear, no_grad"} < calls
    assert {"torch_tiled.grouped_mm", "torch_tiled.segment_matmul"} < calls
    assert {"F.conv2d under override, ten calls", "converted nn.Conv2d, channels_last"} < calls
    peers = {row["peer"] for row in rows if row["call"] == "torch_tiled.grouped_mm"}
    assert peers == {"F.grouped_mm", "torch_tiled.matmul"}
    for row in rows:
        assert 0 < row["us"] <= row["us_median"]
        assert row["ratio"] == row["peer_us"] / row["us"]
    text = result_tables.write_host(found)
    assert all(f"`{call}`" in text for call in calls)
    assert "torch_tiled.gemm_" in output
