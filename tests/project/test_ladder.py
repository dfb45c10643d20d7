"""docs/ladder.md: what its figures are reckoned from, and that they are those of the results."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import ladder
import pytest
import readme

from torch_tiled.trace import trace

KERNELS = ladder.ROOT / "csrc/kernels"
RESULTS = ladder.ROOT / "benchmarks/results/h200.json"


def launched() -> dict[str, list[int]]:
    """Rungs of 02_tiled.cu: tile, depth, elements a thread each way, blocks a multiprocessor."""
    source = (KERNELS / "02_tiled.cu").read_text()
    found = re.findall(r"launch_(tiled\d+)\(.*?launch<Tile<(.*?)>>", source, re.DOTALL)
    return {rung: [int(number) for number in numbers.split(",")] for rung, numbers in found}


def test_tiles_are_those_of_the_kernels():
    """And as many blocks fit as the kernels' launch bounds ask the compiler for."""
    tiles = {
        rung: [tile.m, tile.k, tile.thread_m, min(tile.limits().values())]
        for rung, tile in ladder.TILED.items()
    }
    assert tiles == launched()
    assert all(x.m == x.n and x.thread_m == x.thread_n for x in ladder.TILED.values())
    source = (KERNELS / "02_tiled.cu").read_text()
    arrays = ("a_smem[Tile::kM][Tile::kPitchA]", "b_smem[Tile::kK][Tile::kPitchB]")
    for said in ("kPitchA = kK + 4;", "kPitchB = kN + kPerThread;", *arrays):
        assert source.count(said) == 1, said
    assert source.count("__shared__") == 2


def test_the_tile_of_simt_tma_is_that_of_its_kernel():
    (source,) = (path.read_text() for path in KERNELS.glob("*_simt_tma_sm90.cu"))
    tile = ladder.TILES["simt_tma"]
    bulk = (KERNELS.parent / "simt.h").read_text().partition("kBulkTiles[] = {")[2]
    assert bulk.split("{")[1].startswith(f"{tile.m}, {tile.n}, ")
    assert f"run<Tile<0, {tile.thread_m}, {tile.thread_n}, " in source


@pytest.mark.parametrize("rung", ladder.TILED)
def test_the_compiler_says_the_same_of_a_tile(rung):
    """Shared memory to the byte, and registers as far as they bound the blocks."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    folders += map(str, Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))
    cuobjdump = shutil.which("cuobjdump", path=os.pathsep.join(folders))
    if cuobjdump is None:
        pytest.skip("no cuobjdump")
    command = [cuobjdump, "-res-usage", str(ladder.ROOT / "torch_tiled/_C.so")]
    told = subprocess.run(command, capture_output=True, text=True).stdout
    on_hopper = [part for part in told.split("\narch = ") if part.startswith("sm_90")]
    numbers = "".join(f"ELi{number}" for number in launched()[rung])[1:]
    kernel = rf"tiled_kernelIf\w*TileI{numbers}E\w*:\n.*REG:(\d+) .*SHARED:(\d+) "
    found = [each for part in on_hopper for each in re.findall(kernel, part)]
    if not on_hopper:
        pytest.skip("built without CUDA")
    ((registers, shared),) = found
    tile = ladder.TILED[rung]
    assert int(shared) == tile.shared_bytes + ladder.SHARED_OF_ITS_OWN
    assert replace(tile, registers=int(registers)).limits() == tile.limits()


def test_blocks_are_bounded_by_what_there_is_least_room_for():
    small = ladder.Tile(16, 16, k=16, registers=16)
    assert small.shared_bytes == 4 * (16 * 20 + 16 * 17) == 2368
    assert small.limits() == {"registers": 16, "threads": 8, "shared memory": 68}
    # A warp of 33 registers a thread, 1056, gets 1280: 12 warps in each part of 16384.
    assert replace(small, registers=33).limits()["registers"] == 6
    deep = replace(small, k=256)
    assert deep.shared_bytes == 4 * (16 * 260 + 256 * 17) == 34048
    assert deep.limits()["shared memory"] == 233472 // (34048 + 1024) == 6
    assert replace(small, thread_m=2, thread_n=2).limits()["threads"] == 32


@pytest.mark.parametrize("size, tile", [(8, 2), (12, 4)])
def test_the_model_of_traffic_counts_what_trace_counts(size, tile):
    traced = trace(size, size, size, tile)
    assert traced.naive_reads == ladder.TILES["naive"].reads * size**3
    assert traced.tiled_reads == ladder.Tile(tile, tile).reads * size**3


def test_roofs_follow_from_their_inputs():
    assert ladder.PEAK == pytest.approx(66.9, abs=0.05)
    assert ladder.TILES["simt_tma"].loads == 3 / 16
    fed = [round(ladder.Tile(m, n, m, n).fed) for m, n in ladder.THREAD_TILES]
    assert fed == [16, 64, 85, 128, 171]
    row = product("auto", copy_us=100.0)
    assert ladder.copy_rate({"rows": [row]}) == (4 * 3 * 4096**2, 4 * 3 * 4096**2 / 100e-6)
    faster_but_smaller = product("auto", size=1024, copy_us=1.0)
    both = {"rows": [faster_but_smaller, row]}
    assert ladder.copy_rate(both) == ladder.copy_rate({"rows": [row]})
    with pytest.raises(readme.ReadmeError, match="no copy"):
        ladder.copy_rate({"rows": [product("auto")]})


def product(algorithm, size=4096, *, tflops=10.0, copy_us=None, **other):
    row = {"m": size, "n": size, "k": size, "batch": 1, "layout": "NN", "variant": "plain"}
    row |= {"dtype": "float32", "precision": "fp32", "algorithm": algorithm, "tflops": tflops}
    row |= {"ratio": 0.5, "copy_us": copy_us, "operand_bytes": 2 * size * size * 4}
    return row | other


def test_the_table_has_every_rung_of_the_results_and_no_family():
    rows = [
        product("simt_tma", tflops=51.5),
        product("simt_skinny", tflops=30.0),
        product("simt_small", 256, tflops=5.0),
        product("simt"),
        product("fp16x3_wgmma", tflops=200.0),
        product("fp16x3_small", 256, tflops=6.0),
        product("fp16x3"),
        product("tiled64", 256, tflops=1.5),
        product("tiled"),
        product("naive", tflops=6.5),
        product("naive", layout="TT", tflops=1.0),
        product("tiled16", variant="bias"),
        product("auto"),
    ]
    measured = {"rows": rows}
    assert ladder.rungs(measured) == [
        "naive",
        "tiled64",
        "simt_tma",
        "simt_small",
        "simt_skinny",
        "fp16x3_wgmma",
        "fp16x3_small",
    ]
    lines = ladder.write_rungs(measured).splitlines()
    assert lines[0] == "| rung | idea | 256 | 4096 | of the peak | of cuBLAS |"
    cells = {line.split("`")[1]: line.split(" | ")[2:] for line in lines[2:]}
    assert cells["naive"] == ["-", "6.5", "0.10", "0.50 |"]
    assert cells["tiled64"] == ["1.5", "-", "-", "- |"]
    assert cells["simt_tma"] == ["-", "51.5", "0.77", "0.50 |"]
    assert "multiply-adds on CUDA cores" in lines[4] and "_simt_tma_sm90.cu)" in lines[4]
    assert "_simt_small.cu)" in lines[5] and "_simt_skinny_sm90.cu)" in lines[6]


def test_a_rung_without_a_file_is_told_in_a_sentence():
    with pytest.raises(readme.ReadmeError, match="title that begins with strassen"):
        ladder.write_rungs({"rows": [product("strassen")]})


def test_tiles_are_compared_where_all_were_measured():
    rates = {"tiled16": 3.0, "tiled32": 5.0, "tiled64": 4.0}
    rows = [product(rung, 512, tflops=rate) for rung, rate in rates.items()]
    rows.append(product("tiled64", 1024))
    assert ladder.write_tiles({"rows": rows}).endswith("as measured: `tiled32` at 512.")
    assert ladder.write_tiles({"rows": rows[:1]}).endswith("was not measured.")


def test_sizes_have_both_precisions_and_each_its_peer():
    rows = [product("auto", 128), product("auto", 256, precision="ieee", tflops=3.0)]
    lines = ladder.write_sizes({"rows": [*rows, product("auto", 1000)]}).splitlines()
    assert lines[2:] == [
        "| 128 | 10 | 20 | 0.50 | - | - | - |",
        "| 256 | - | - | - | 3 | 6 | 0.50 |",
    ]


def test_the_page_is_what_the_results_say(tmp_path):
    """Where this fails: python benchmarks/ladder.py benchmarks/results/h200.json"""
    page = tmp_path / "ladder.md"
    page.write_text(ladder.PAGE.read_text())
    readme.write_blocks(RESULTS, page, ladder.BLOCKS)
    assert page.read_text() == ladder.PAGE.read_text()


def test_the_readme_is_what_the_results_say(tmp_path):
    """Where this fails: python benchmarks/bench_matmul.py --readme benchmarks/results/h200.json"""
    page = tmp_path / "README.md"
    page.write_text((ladder.ROOT / "README.md").read_text())
    readme.write_results(RESULTS, page)
    assert page.read_text() == (ladder.ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ladder.PLOTS)
def test_plots_are_what_the_results_say(tmp_path, name):
    """To the byte where the same matplotlib drew them; of others the text has to be the same."""
    matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
    ladder.PLOTS[name](json.loads(RESULTS.read_text()), tmp_path / name)
    drawn, kept = (path.read_text() for path in (tmp_path / name, ladder.PAGE.parent / name))
    if f"Matplotlib v{matplotlib.__version__}," in kept:
        assert drawn == kept
    words = re.compile(r"<text[^>]*>(.*?)</text>")
    assert words.findall(drawn) == words.findall(kept) != []


def test_plots_take_what_results_have(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    measured = {"header": {"device": "one"}, "rows": [product("auto", precision="ieee")]}
    for name, draw in ladder.PLOTS.items():
        draw(measured, tmp_path / name)
        assert "</svg>" in (tmp_path / name).read_text()


def test_missing_results_are_told_in_a_sentence(capsys):
    assert ladder.main(["/nowhere/results.json"]) == 1
    assert "/nowhere/results.json cannot be read" in capsys.readouterr().out
