"""The layout of the sources: the length of files, and what tests import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("csrc", "torch_tiled", "tests", "benchmarks", "tools", "examples")
SUFFIXES = (".py", ".cpp", ".cu", ".cuh", ".h", ".def")
MOST_LINES = 400
README_LINES, README_WORDS = 150, 900

# Files that were longer when this test was written, with the lines that they had. Their lines may
# only shrink, and a file of MOST_LINES or fewer leaves the table.
LONGER = {
    "csrc/kernels/fp16x3/fused_sm90.cu": 565,
    "csrc/kernels/fp16x3/skinny_sm90.cu": 463,
    "csrc/kernels/fp16x3/small_sm90.cu": 405,
    "csrc/kernels/fp16x3/wgmma_sm90.cu": 543,
    "csrc/kernels/mma/mainloop.cuh": 425,
    "csrc/kernels/mma/unaligned_sm90.cu": 631,
    "torch_tiled/conversion.py": 436,
}


def lines_of_sources() -> dict[str, int]:
    """The number of lines of each source file."""
    paths = [ROOT / "setup.py"]
    paths += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    sources = sorted(path for path in paths if path.suffix in SUFFIXES)
    return {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in sources}


def test_no_source_file_is_long():
    lines = lines_of_sources()
    assert {file: n for file, n in lines.items() if n > LONGER.get(file, MOST_LINES)} == {}


def test_exceptions_are_needed():
    lines = lines_of_sources()
    assert [file for file in LONGER if lines.get(file, 0) <= MOST_LINES] == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= README_LINES
    assert len(text.split()) <= README_WORDS


TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_test_files_have_names_of_their_own():
    """A name alone says which file a failure is in."""
    names = [path.name for path in TESTS]
    assert len(set(names)) == len(names) > 50


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_no_test_imports_another(path):
    """Functions that several test files need are in tests/helpers."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported += [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
    parts = {part for name in imported for part in name.split(".")}
    assert parts.isdisjoint({"tests", "conftest", *(test.stem for test in TESTS)})
