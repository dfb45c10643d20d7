"""The figures of docs/kernels/ladder.md: their inputs, and how they follow from results."""

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages import ladder, roofline, rows
from benchmarks.pages.markdown import PageError
from torch_tiled.trace import trace

KERNELS = ladder.ROOT / "csrc/kernels"
TILED = KERNELS / "basics/02_tiled.cu"


def launched() -> dict[str, list[int]]:
    """The kernels of 02_tiled.cu: tile, depth, elements a thread each way, blocks an SM."""
    found = re.findall(r"launch_(tiled\d+)\(.*?launch<Tile<(.*?)>>", TILED.read_text(), re.DOTALL)
    return {kernel: [int(number) for number in numbers.split(",")] for kernel, numbers in found}


def test_tiles_are_those_of_the_kernels():
    """And as many blocks fit as the kernels' launch bounds ask the compiler for."""
    tiles = {
        kernel: [tile.m, tile.k, tile.thread_m, min(tile.limits().values())]
        for kernel, tile in roofline.TILED.items()
    }
    assert tiles == launched()
    assert all(x.m == x.n and x.thread_m == x.thread_n for x in roofline.TILED.values())
    source = TILED.read_text()
    arrays = ("a_smem[Tile::kM][Tile::kPitchA]", "b_smem[Tile::kK][Tile::kPitchB]")
    for text in ("kPitchA = kK + 4;", "kPitchB = kN + kPerThread;", *arrays):
        assert source.count(text) == 1, text
    assert source.count("__shared__") == 2


def test_the_tile_of_simt_tma_is_that_of_its_kernel():
    tile = roofline.TILES["simt_tma"]
    costs = (KERNELS / "simt/costs_h200.h").read_text()
    largest = re.search(r"kSimtTmaTiles\[\] = \{\s*\{([^}]*)\}", costs)[1].split(", ")
    sizes = [tile.m, tile.n, tile.thread_m, tile.thread_n]
    assert [int(number) for number in largest[:4]] == sizes


@pytest.mark.parametrize("kernel", roofline.TILED)
def test_the_compiler_says_the_same_of_a_tile(kernel):
    """Shared memory to the byte, and registers as far as they bound the blocks."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    folders += map(str, Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))
    cuobjdump = shutil.which("cuobjdump", path=os.pathsep.join(folders))
    if cuobjdump is None:
        pytest.skip("no cuobjdump")
    command = [cuobjdump, "-res-usage", str(ladder.ROOT / "torch_tiled/_C.so")]
    usage = subprocess.run(command, capture_output=True, text=True).stdout
    on_hopper = [part for part in usage.split("\narch = ") if part.startswith("sm_90")]
    numbers = "".join(f"ELi{number}" for number in launched()[kernel])[1:]
    function = rf"tiled_kernelIf\w*TileI{numbers}E\w*:\n.*REG:(\d+) .*SHARED:(\d+) "
    found = [each for part in on_hopper for each in re.findall(function, part)]
    if not on_hopper:
        pytest.skip("built without CUDA")
    ((registers, shared),) = found
    tile = roofline.TILED[kernel]
    assert int(shared) == tile.shared_bytes + roofline.SYSTEM_SHARED
    assert replace(tile, registers=int(registers)).limits() == tile.limits()


def test_blocks_are_bounded_by_what_there_is_least_room_for():
    small = roofline.Tile(16, 16, k=16, registers=16)
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
    assert traced.naive_reads == roofline.TILES["naive"].reads * size**3
    assert traced.tiled_reads == roofline.Tile(tile, tile).reads * size**3


def test_every_kernel_has_a_file_whose_title_begins_with_its_name(tmp_path, monkeypatch):
    files = {kernel: ladder.source_of(kernel)[0] for kernel in rows.kernels()}
    assert {files[f"tiled{size}"] for size in (16, 32, 64)} == {TILED}
    others = [file for kernel, file in files.items() if not kernel.startswith("tiled")]
    assert len(others) == len(set(others))
    assert all(idea for _, idea in map(ladder.source_of, files))
    monkeypatch.setattr(ladder, "ROOT", tmp_path)
    with pytest.raises(PageError, match="title that begins with naive"):
        ladder.source_of("naive")
