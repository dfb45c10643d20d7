"""Which folder of csrc may include what. The arrows run one way."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import torch_tiled

CSRC = Path(__file__).resolve().parent.parent.parent / "csrc"

# A folder's files may include its own headers and those named here. "cuda" and "torch" are theirs.
MAY_INCLUDE = {
    # The operators, which alone know PyTorch: schemas, checks, outputs, streams.
    "binding": {
        *("torch", "cuda", "dlfcn.h", "core/*", "select/*", "staging/*", "cpu/apply_epilogue.h"),
        *("cpu/attention.h", "kernels/attention/launch.h", "kernels/grouped/launch.h"),
        *("cpu/norms.h", "cpu/rows.h", "kernels/rows/launch.h", "kernels/rows/norms_launch.h"),
        *("cpu/cumsum.h", "kernels/rows/cumsum.h"),
        *("cpu/convolution.h", "kernels/conv/launch.h"),
    },
    # Copies by threads of the host, which know neither PyTorch nor CUDA.
    "staging": {"unistd.h", "emmintrin.h"},
    # The table of kernels and the choice among them. It knows plans, and no kernel.
    # With it are the passes before and after a kernel.
    "select": {
        *("core/*", "kernels/*/plan.h", "kernels/fp16x3/split.h", "cpu/presplit.h"),
        *("kernels/complex/passes.h", "cpu/complex.h"),
    },
    # The host's kernels, which define the bits.
    "cpu": {"core/*"},
    # A family of kernels knows no other, with two exceptions: fp16x3 recomputes by simt's main
    # loop and, for that, has a complex B written as a real one, and tf32 multiplies by mma's and
    # recomputes by fp16x3's kernel.
    "kernels/attention": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    # Convolutions split their filters and descale their sums by what fp16x3 has.
    "kernels/conv": {"cuda", "core/*", "ptx/*", "kernels/common/*", "kernels/fp16x3/*"},
    "kernels/basics": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    "kernels/complex": {"core/*", "kernels/common/*"},
    "kernels/f64": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    "kernels/rows": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    "kernels/simt": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    "kernels/fp16x3": {
        *("cuda", "core/*", "ptx/*", "kernels/common/*"),
        *("kernels/simt/*", "kernels/complex/passes.h"),
    },
    "kernels/mma": {"cuda", "core/*", "ptx/*", "kernels/common/*"},
    # Grouped products multiply by the main loops of other families.
    "kernels/grouped": {
        *("cuda", "core/*", "ptx/*", "kernels/common/*"),
        *("kernels/basics/*", "kernels/mma/*", "kernels/fp16x3/*"),
    },
    # Units that instantiate the kernels of mma_tma and mma_unaligned.
    "kernels/mma/tma_instances": {"kernels/mma/tma_launch.cuh"},
    "kernels/mma/unaligned_instances": {"kernels/mma/unaligned_launch.cuh"},
    "kernels/tf32": {
        *("cuda", "core/*", "ptx/*", "kernels/common/*"),
        *("kernels/mma/*", "kernels/fp16x3/*"),
    },
    # What several families share: launches, tensor maps, tile schedulers.
    "kernels/common": {"cuda", "core/*", "ptx/*"},
    # Instructions with names, which know no problem.
    "ptx": {"cuda"},
    # What is computed, of what, in which order. element.h has CUDA's conversions.
    "core": {"cuda"},
}

FILES = sorted(str(path.relative_to(CSRC)) for path in CSRC.rglob("*") if path.is_file())
SOURCES = [file for file in FILES if not file.endswith(".md")]


def folder(file: str) -> str:
    return str(Path(file).parent)


def name(header: str, includer: str) -> str | None:
    """What a header is called in the table, or None for the standard library's."""
    for place in (CSRC / includer).parent, CSRC:
        path = (place / header).resolve()
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


@pytest.mark.parametrize("file", SOURCES)
def test_includes_keep_to_the_layers(file):
    assert folder(file) in MAY_INCLUDE, f"csrc/{file} is in no folder of MAY_INCLUDE"
    names = {name(header, file) for header in includes(file)} - {None}
    allowed = {f"{folder(file)}/*", *MAY_INCLUDE[folder(file)]}
    assert [name for name in names if not any(fnmatch(name, each) for each in allowed)] == []


def test_every_folder_of_the_table_is_there():
    assert set(MAY_INCLUDE) == {folder(file) for file in SOURCES}


def test_kernels_do_not_call_each_other():
    """Only select/ knows launchers: a kernel without memory says so, and the next one is taken."""
    launcher = r"\blaunch_(" + "|".join(torch_tiled.algorithms()) + r")\b"
    for file in SOURCES:
        text = (CSRC / file).read_text()
        named = set(re.findall(launcher, text))
        defined = set(re.findall("^bool " + launcher[2:], text, re.MULTILINE))
        assert named == defined, file


def test_plans_are_plain_cpp():
    """A compiler without CUDA builds select/ and the plans that it includes."""
    plain = [x for x in SOURCES if x.startswith("select/") or x.endswith("/plan.h")]
    for file in plain:
        text = re.sub(r"//.*", "", (CSRC / file).read_text())
        assert not re.search(r"<<<|__global__|__device__|\bcuda[A-Z]", text), file
