"""The layout of the sources: the length of files, and what tests import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("csrc", "torch_tiled", "tests", "benchmarks", "tools", "examples")
SUFFIXES = (".py", ".cpp", ".cu", ".cuh", ".h", ".def")
MOST_LINES = 600  # the mainloop of a kernel is read in one file


def lines_of_sources() -> dict[str, int]:
    """The number of lines of each source file."""
    paths = [ROOT / "setup.py"]
    paths += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    sources = sorted(path for path in paths if path.suffix in SUFFIXES)
    return {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in sources}


def test_no_source_file_is_long():
    assert {file: n for file, n in lines_of_sources().items() if n > MOST_LINES} == {}


FAMILIES = sorted(path.parent for path in ROOT.glob("csrc/kernels/*/README.md"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.name)
def test_a_family_s_readme_names_its_files(family):
    text = (family / "README.md").read_text()
    files = {path.name for path in family.iterdir() if path.is_file()} - {"README.md"}
    assert {name for name in files if f"]({name})" not in text} == set()


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
