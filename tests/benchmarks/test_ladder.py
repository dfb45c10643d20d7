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
from benchmarks.pages.course_kernels import rungs
from benchmarks.pages.markdown import PageError
from torch_tiled.trace import trace

KERNELS = ladder.ROOT / "csrc/kernels"


def test_as_many_blocks_fit_as_the_kernels_ask_the_compiler_for():
    blocks = {kernel: min(tile.limits().values()) for kernel, tile in roofline.TILED.items()}
    assert blocks == {kernel: rungs()[kernel].constants.get("kBlocksPerSm", 1) for kernel in blocks}


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
    rung = rungs()[kernel]
    numbers = "".join(f"ELi{number}" for number in rung.arguments)[1:]
    function = rf"\d{rung.function}If\w*TileI{numbers}E\w*:\n.*REG:(\d+) .*SHARED:(\d+) "
    found = [each for part in on_hopper for each in re.findall(function, part)]
    if not on_hopper:
        pytest.skip("built without CUDA")
    ((registers, shared),) = found
    tile = roofline.TILED[kernel]
    assert int(shared) == tile.shared_bytes + roofline.SYSTEM_SHARED
    assert replace(tile, registers=int(registers)).limits() == tile.limits()


def test_blocks_are_bounded_by_what_there_is_least_room_for():
    small = roofline.Tile(16, 16, registers=16, shared_bytes=2368)
    assert small.limits() == {"registers": 16, "threads": 8, "shared memory": 68}
    # A warp of 33 registers a thread, 1056, gets 1280: 12 warps in each part of 16384.
    assert replace(small, registers=33).limits()["registers"] == 6
    deep = replace(small, shared_bytes=34048)
    assert deep.limits()["shared memory"] == 233472 // (34048 + 1024) == 6
    assert replace(small, thread_m=2, thread_n=2).limits()["threads"] == 32


@pytest.mark.parametrize("size, tile", [(8, 2), (12, 4)])
def test_the_model_of_traffic_counts_what_trace_counts(size, tile):
    traced = trace(size, size, size, tile)
    assert traced.naive_reads == roofline.TILES["naive"].reads * size**3
    assert traced.tiled_reads == roofline.Tile(tile, tile).reads * size**3


def test_every_kernel_has_a_file_with_a_title(tmp_path, monkeypatch):
    files = {kernel: ladder.source_of(kernel)[0] for kernel in rows.kernels()}
    assert files["tiled16"] == files["tiled32"] == rungs()["tiled32"].path
    assert files["tiled64"] == files["register_tile"] == rungs()["tiled64"].path
    assert len(set(files.values())) == len(files) - 2
    assert all(idea for _, idea in map(ladder.source_of, files))
    monkeypatch.setattr(ladder, "ROOT", tmp_path)
    with pytest.raises(PageError, match="with a title launches naive"):
        ladder.source_of("naive")
