"""Who may include whom: every file of csrc knows one layer below its own and none above."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# A file, and what it may include besides the C++ standard library. "torch" and "cuda" stand for
# their headers; the rest are files of csrc. A file not listed here has no place in the layers yet.
MAY_INCLUDE = {
    # PyTorch: schemas, checks, outputs. It knows what there is to run, and nothing of how.
    "ops.cpp": {
        *("torch", "ladder.h", "product.h", "strided.h", "context.h", "fail.h"),
        *("cpu/apply_epilogue.h", "packed.h", "prepare.h", "tensors.h"),
    },
    "tensors.*": {
        *("torch", "tensors.h", "product.h", "strided.h", "problem.h", "context.h", "fail.h"),
        "packed.h",
    },
    "product.*": {"product.h", "strided.h", "problem.h", "fail.h"},
    "strided.*": {"strided.h"},
    # The table of rungs.
    "ladder.cpp": {
        "ladder.h",
        "cuts.h",
        "simt.h",
        "mma.h",
        "plan.h",
        "fp16x3.h",
        "chained.h",
        "tf32.h",
        "sum.h",
        "fail.h",
    },
    "ladder.h": {"problem.h", "context.h"},
    # What is split once, on either device.
    "prepare.cpp": {"prepare.h", "cpu/packed.h", "fp16x3.h", "kernels/fp16x3_parts.h"},
    "prepare.h": {"context.h", "packed.h", "problem.h"},
    # The rungs. None knows another, the ladder or PyTorch.
    "kernels/*tf32*.cu": {
        *("cuda", "launch.h", "chained.h", "element.h", "epilogue.h", "fp16x3.h", "mma.h"),
        *("problem.h", "tf32.h", "device/*.cuh", "kernels/fp16x3_marks.cuh"),
        *("kernels/fp16x3_parts.h", "kernels/fp16x3_range.cuh", "kernels/in_parts.h"),
        *("kernels/load_bias.cuh", "kernels/load_eight.cuh", "kernels/mma_bulk.cuh"),
        "kernels/mma_store.cuh",
        "kernels/tf32_halves.h",
    },
    "kernels/tf32_halves.h": {"context.h", "problem.h", "tf32.h", "kernels/stored_batch.h"},
    "kernels/in_parts*": {"context.h", "launch.h", "packed.h", "problem.h", "kernels/in_parts.h"},
    "kernels/load_bias.cuh": {"element.h", "launch.h", "device/*.cuh"},
    "kernels/load_eight.cuh": {"launch.h"},
    "kernels/load_halves.cuh": {"launch.h"},
    "kernels/fp16x3_marks.cuh": {"kernels/fp16x3_parts.h"},
    "kernels/*fp16x3*.cu": {
        *("cuda", "launch.h", "fp16x3.h", "sum.h", "epilogue.h", "device/*.cuh"),
        *("kernels/fp16x3_parts.h", "kernels/fp16x3_again.cuh", "kernels/fp16x3_range.cuh"),
        *("kernels/fp16x3_chunk.cuh", "kernels/fp16x3_in_flight.h", "kernels/fp16x3_in_flight.cuh"),
        *("kernels/tensor_map.h", "cuts.h", "kernels/in_parts.h", "kernels/load_eight.cuh"),
        *("kernels/fp16x3_marks.cuh", "kernels/load_bias.cuh", "kernels/tile_band.cuh"),
        "kernels/stored_batch.h",
    },
    "kernels/fp16x3_in_flight.cuh": {
        *("cuda", "launch.h", "device/*.cuh", "kernels/fp16x3_in_flight.h"),
        "kernels/fp16x3_range.cuh",
    },
    "kernels/fp16x3_in_flight.h": {"context.h", "fp16x3.h", "packed.h", "problem.h"},
    "kernels/fp16x3_chunk.cuh": {"fp16x3.h", "launch.h"},
    "kernels/fp16x3_range.cuh": {"fp16x3.h", "launch.h"},
    "kernels/fp16x3_again.cuh": {"epilogue.h", "launch.h", "problem.h", "sum.h"},
    "kernels/tensor_map*": {"cuda", "launch.h", "problem.h", "kernels/tensor_map.h"},
    "kernels/lane_place.cuh": {"launch.h"},
    "kernels/map_place.cuh": {"launch.h", "problem.h"},
    "kernels/divisor.cuh": set(),
    "kernels/tile_band.cuh": {"launch.h", "problem.h", "kernels/divisor.cuh"},
    "kernels/simt_store.cuh": {"epilogue.h", "launch.h", "problem.h", "kernels/lane_place.cuh"},
    "kernels/simt_add.cuh": {
        *("launch.h", "problem.h", "sum.h", "kernels/simt_store.cuh", "device/*.cuh"),
    },
    "kernels/simt_load.cuh": {"launch.h", "device/*.cuh"},
    "kernels/simt_layout.h": {"context.h", "problem.h"},
    "kernels/*simt*.cu": {
        *("cuda", "launch.h", "simt.h", "sum.h", "epilogue.h", "device/*.cuh"),
        *("kernels/simt_load.cuh", "kernels/simt_store.cuh", "kernels/simt_add.cuh"),
        *("kernels/simt_layout.h", "kernels/stored_batch.h"),
        *("kernels/lane_place.cuh", "kernels/map_place.cuh", "kernels/tensor_map.h"),
        *("kernels/divisor.cuh", "kernels/tile_band.cuh"),
    },
    "kernels/stored_batch.h": {"problem.h"},
    "kernels/mma_lines.h": {"context.h", "problem.h"},
    "kernels/mma_kind.h": {"element.h", "mma.h", "problem.h"},
    "kernels/mma_bulk.cuh": {
        *("cuda", "launch.h", "mma.h", "chained.h", "element.h", "device/*.cuh"),
        *("kernels/map_place.cuh", "kernels/mma_chunks.cuh", "kernels/mma_tile.cuh"),
        "kernels/tensor_map.h",
    },
    "kernels/mma_chunks.cuh": {"launch.h", "chained.h", "device/*.cuh", "kernels/mma_tile.cuh"},
    "kernels/mma_tile.cuh": {
        *("launch.h", "mma.h", "chained.h", "kernels/tensor_map.h", "kernels/tile_band.cuh"),
    },
    "kernels/mma_store.cuh": {"element.h", "epilogue.h", "launch.h", "device/*.cuh"},
    "kernels/*mma*.cu": {
        *("cuda", "launch.h", "mma.h", "chained.h", "element.h", "epilogue.h", "problem.h"),
        *("device/*.cuh", "kernels/divisor.cuh", "kernels/mma_lines.h", "kernels/stored_batch.h"),
        *("kernels/map_place.cuh", "kernels/tensor_map.h", "kernels/mma_kind.h"),
        *("kernels/load_bias.cuh", "kernels/mma_bulk.cuh", "kernels/mma_store.cuh"),
        "kernels/load_halves.cuh",
    },
    "kernels/*.cu": {"launch.h", "element.h", "sum.h", "epilogue.h", "problem.h", "device/*.cuh"},
    "kernels/fp16x3_parts.h": {"context.h", "packed.h", "problem.h"},
    # Instructions with names: they know no problem.
    "device/*": {"cuda", "device/*.cuh"},
    "cpu/packed.*": {
        *("context.h", "fp16x3.h", "packed.h", "sum.h", "problem.h", "cpu/packed.h"),
        "cpu/group.h",
    },
    "cpu/group.h": {"fp16x3.h"},
    "cpu/fp16x3.cpp": {
        *("context.h", "element.h", "fp16x3.h", "sum.h", "epilogue.h", "problem.h", "cpu/*"),
    },
    "cpu/chain.h": {"chained.h", "cpu/*"},
    "cpu/tf32.cpp": {
        *("chained.h", "context.h", "element.h", "fp16x3.h", "tf32.h", "problem.h", "cpu/*"),
    },
    "cpu/mma.cpp": {
        *("chained.h", "context.h", "element.h", "sum.h", "epilogue.h", "problem.h", "cpu/*"),
    },
    "cpu/*": {"context.h", "element.h", "sum.h", "epilogue.h", "problem.h", "cpu/*"},
    "launch.h": {"cuda", "context.h", "problem.h"},
    "cuda_context.cpp": {"cuda", "context.h", "dlfcn.h"},
    # What is computed, of what, in which order.
    "fp16x3.h": {"element.h", "sum.h", "problem.h"},
    "tf32.h": {"chained.h", "fp16x3.h"},
    "chained.h": set(),
    "cuts.h": {"problem.h", "sum.h"},
    "simt.h": {"plan.h", "problem.h", "sum.h"},
    "mma.h": {"chained.h", "plan.h", "problem.h"},
    "plan.h": set(),
    "packed.h": {"sum.h", "host_device.h"},
    "epilogue.h": {"element.h", "sum.h", "problem.h"},
    "sum.h": {"host_device.h"},
    "element.h": {"cuda", "problem.h"},
    "problem.h": {"packed.h", "host_device.h"},
    "host_device.h": set(),
    "context.h": set(),
    "fail.h": set(),
}

FILES = sorted(str(path.relative_to(CSRC)) for path in CSRC.rglob("*") if path.is_file())


def rule(file: str) -> str | None:
    """The line of the table that a file of csrc belongs to."""
    return next((pattern for pattern in MAY_INCLUDE if fnmatch(file, pattern)), None)


def name(header: str, includer: str) -> str | None:
    """What a header is called in the table, or None for the standard library's."""
    for folder in (CSRC / includer).parent, CSRC:
        path = (folder / header).resolve()
        if path.is_file() and path.is_relative_to(CSRC):
            return str(path.relative_to(CSRC))
    if header.startswith("torch/"):
        return "torch"
    if re.match(r"(cuda|cub|cooperative_groups|mma\.h)", header):
        return "cuda"
    return None if re.fullmatch(r"[a-z_0-9]+", header) else header


def includes(file: str) -> list[str]:
    text = (CSRC / file).read_text()
    return re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', text, re.MULTILINE)


@pytest.mark.parametrize("file", FILES)
def test_includes_keep_to_the_layers(file):
    pattern = rule(file)
    assert pattern, f"csrc/{file} is in no layer: add it to MAY_INCLUDE"
    names = {name(header, file) for header in includes(file)} - {None}
    allowed = MAY_INCLUDE[pattern]
    assert [name for name in names if not any(fnmatch(name, each) for each in allowed)] == []


def test_every_line_of_the_table_is_in_use():
    assert set(MAY_INCLUDE) == {rule(file) for file in FILES}


def test_the_ladder_is_plain_cpp():
    """ladder.cpp knows no CUDA syntax: a compiler without CUDA builds it."""
    assert not re.search(r"<<<|__global__|__device__|cuda[A-Z]", (CSRC / "ladder.cpp").read_text())
