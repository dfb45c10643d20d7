"""Words that this project no longer uses, since the field has others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SUFFIXES = (".py", ".cpp", ".cu", ".cuh", ".h", ".def", ".md")

# The folders and files that are held to it.
CHECKED = (
    *("csrc", "torch_tiled", "benchmarks", "tests", "docs", "examples", "tools"),
    *("README.md", "CONTRIBUTING.md", "setup.py", "Makefile"),
)

# Places where old names are quoted.
QUOTING = ("docs/notes", "CHANGELOG.md", "tests/sources/test_vocabulary.py")

# Each expression, without regard to case, and what to write instead.
WORDS = {
    r"copy[ _]engine|\bcopy_box\b|\bin_boxes\b": "TMA, box, is_tma_aligned()",
    r"\bacross K\b|\b(lines?|lies?|rows|columns|copied|read) along K\b": "MN-major, K-major",
    r"kA?Across|kAlongK?\b|lies_across": "MN-major, K-major",
    r"\bhalves\b(?! (the|its?|a|them)\b)": "16-bit floats; hi and lo; sub-problems",
    r"\bby (ones|twos|fours|eights|sixteens)\b|\b(fours|sixteens)\b": "vectorized, x4, x8, x16",
    r"\bmarked\b|\b(list|is|or|with)_mark(s|ed)?\b|\bmarks (it|them|elements|an?)\b": "flagged",
    r"\b(multi)?processors?\b": "SM",
    r"\bturned\b(?! (on|off|into|out)\b)|\b(by|in) turns\b|_turns?\b": "swapped, swap_ab",
    r"\b(in|of|\d+) clocks\b|\bclocks? (a|per|each)\b": "cycles",
    r"\bmultiply-adds?\b": "FMA",
    r"\brerout": "override",
    r"\b((simt|mma)_ring|(simt|fp16x3|mma|tf32)_bulk|fp16x3_narrow|mma_shift)\b": "the new name",
}

# Lines that need such a word: (file, a part of the line).
EXCEPTIONS = {
    "benchmarks/gemm/machine.py": ("platform.processor()",),
    "benchmarks/gemm/measure.py": ("on a copy engine",),  # that of cudaMemcpyAsync
}


def files(place: str) -> list[Path]:
    """The sources and pages of a folder, or one file."""
    path = ROOT / place
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    names = {each: str(each.relative_to(ROOT)) for each in found if each.suffix in SUFFIXES}
    return [each for each, name in names.items() if not name.startswith(QUOTING)]


@pytest.mark.parametrize("place", CHECKED)
def test_replaced_words_are_not_used(place):
    wrong = []
    for path in files(place):
        file = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if any(part in line for part in EXCEPTIONS.get(file, ())):
                continue
            for word, instead in WORDS.items():
                if found := re.search(word, line, re.IGNORECASE):
                    wrong.append(f"{file}:{number}: {found[0]!r}; write {instead}")
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_needed():
    for file, parts in EXCEPTIONS.items():
        text = (ROOT / file).read_text()
        assert all(part in text for part in parts), file
