"""Every relative link of the README, CONTRIBUTING, the changelog, docs/ and csrc/ works."""

import re
from pathlib import Path

import pytest

from benchmarks.pages.result_tables import FAMILIES, MEANS_PAGE
from benchmarks.pages.surveys import SEEDS_PAGE

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("csrc/**/*.md")),
    ROOT / "benchmarks" / "README.md",
]


def without_code(text: str) -> str:
    """The text of a page without its code blocks and code spans."""
    text = re.sub(r"^[ >]*```.*?^[ >]*```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def links(page: Path) -> list[str]:
    """The relative links of a page, its images included."""
    found = re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", without_code(page.read_text()))
    return [link for link in found if not re.match(r"[a-z][a-z0-9+.-]*:", link)]


def anchors(page: Path) -> list[str]:
    """The names that GitHub and the documentation site give to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, heading = link.partition("#")
        assert not path.startswith("/"), f"{link} is not a relative link"
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT) and target.exists(), f"{link} leads nowhere"
        if heading:
            assert heading in anchors(target), f"{link}: {target.name} has no such heading"


def test_tests_that_pages_name_are_there():
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_every_page_of_docs_is_in_the_navigation():
    """And the navigation names no page that is not there."""
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    pages += [f"kernels/{name}.md" for name in (*FAMILIES, MEANS_PAGE, SEEDS_PAGE)]
    pages += [f"course/{path.stem}.md" for path in ROOT.glob("docs/course/*.ipynb")]
    assert sorted(named) == sorted(pages)


def test_the_first_page_links_every_page_of_the_guide():
    pages = {f"guide/{page.name}" for page in ROOT.glob("docs/guide/*.md")} | {"api.md"}
    assert pages <= set(links(ROOT / "docs" / "index.md"))
