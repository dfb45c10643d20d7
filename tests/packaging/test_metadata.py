"""The papers of a release: the citation, the forms for reports, and the policy."""

import re
from pathlib import Path

import pytest

import torch_tiled

ROOT = Path(__file__).resolve().parent.parent.parent
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))


def read(path: Path) -> dict:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def test_the_citation_has_the_version_and_the_license():
    found = read(ROOT / "CITATION.cff")
    assert found["version"] == torch_tiled.__version__
    assert found["license"] == "BSD-3-Clause"
    assert {"cff-version", "message", "title", "authors"} <= found.keys()


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_forms_have_what_github_asks_for(form):
    found = read(form)
    assert found["name"] and found["description"]
    for field in found["body"]:
        assert field["type"] in ("textarea", "checkboxes", "input", "dropdown", "markdown")
        assert field["attributes"].get("label")
    names = [field["id"] for field in found["body"]]
    assert len(set(names)) == len(names) > 0


def test_a_bug_report_asks_for_the_versions():
    assert {form.stem for form in FORMS} == {"bug_report", "feature_request"}
    fields = read(ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml")["body"]
    (info,) = [field for field in fields if field["id"] == "info"]
    assert "python -m torch_tiled info" in info["attributes"]["label"]
    assert info["validations"]["required"]


def test_the_policy_supports_what_the_build_asks_for():
    policy = (ROOT / "docs/guide/policy.md").read_text()
    setup = (ROOT / "setup.py").read_text()
    torch = ".".join(re.search(r"OLDEST_TORCH = \((\d+), (\d+)\)", setup).groups())
    python = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    for name, oldest in (("PyTorch", torch), ("Python", python)):
        assert f"| {name} | {oldest} and later |" in policy
