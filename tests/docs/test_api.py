"""The API page names every public symbol, and the examples of their docstrings run on the CPU."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import torch_tiled

ROOT = Path(__file__).resolve().parent.parent.parent
NAMED = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
# Modules of whose names torch_tiled's own are a part, and those that it has as they are.
MODULES = (
    *("torch_tiled", "torch_tiled.nn", "torch_tiled.inductor", "torch_tiled.info"),
    *("torch_tiled.attention", "torch_tiled.experts", "torch_tiled.nn.functional"),
)


def found(name: str):
    """The object of a name whose first part is a module: torch_tiled.convert is one, too."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


DOCUMENTED = {name: thing for name in NAMED if callable(thing := found(name))}


def test_the_page_names_every_public_symbol():
    on_page = {id(thing) for thing in DOCUMENTED.values()}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                assert id(thing) in on_page or f"{module.__name__}.{name}" in NAMED, name


def test_the_page_names_nothing_twice():
    assert len(set(NAMED)) == len(NAMED)


def test_results_of_public_functions_are_on_the_page():
    """A class that a public function returns is public."""
    for name, thing in DOCUMENTED.items():
        hints = inspect.get_annotations(thing, eval_str=True) if inspect.isfunction(thing) else {}
        result = hints.get("return")
        if inspect.isclass(result) and result.__module__.startswith("torch_tiled"):
            assert result in DOCUMENTED.values(), f"{name} returns a {result.__name__}"


each = pytest.mark.parametrize("name", DOCUMENTED)


@each
def test_examples_of_docstrings_run(name):
    thing = DOCUMENTED[name]
    torch.manual_seed(0)
    names = {"torch": torch, "torch_tiled": torch_tiled}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing), names, name, None, 0)
    assert test.examples, f"{name} has no example"
    told = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert results.failed == 0, "".join(told)


@each
def test_docstrings_tell_arguments_results_and_errors(name):
    """A section for each that there is, in the order of Google's style."""
    thing = DOCUMENTED[name]
    text = inspect.getdoc(thing)
    sections = re.findall(r"^(Args|Attributes|Returns|Yields|Raises|Examples):$", text, re.M)
    order = ["Args", "Attributes", "Returns", "Yields", "Raises", "Examples"]
    assert sections == [section for section in order if section in sections]
    if inspect.isclass(thing):
        return
    parameters = inspect.signature(thing).parameters.values()
    listed = re.findall(r"^    \*{0,2}(\w+): ", text.partition("Args:\n")[2], re.M)
    assert {parameter.name for parameter in parameters} <= set(listed)
    returns = inspect.signature(thing).return_annotation
    assert returns is None or {"Returns", "Yields"} & set(sections)
