"""The README's Python, run on the CPU as it stands there, in order, in one namespace."""

import re
from pathlib import Path

import pytest
import torch

import torch_tiled

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
# Every fence of the file, by what it opens with: none has another way of being Python.
FENCES = re.findall(r"^[ >]*(?:```|~~~)(.*)$", README, re.MULTILINE)


def snippets() -> list[tuple[int, str]]:
    """The line that each begins at, and its code."""
    found = re.finditer(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [(README.count("\n", 0, each.start(1)), each[1]) for each in found]


@pytest.fixture
def namespace() -> dict:
    """What snippets take for granted: a model with either kind of layer, and its input."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch_tiled.nn.Linear(32, 8))
    return {"model": model, "x": torch.randn(4, 64)}


def test_every_snippet_is_found():
    assert set(FENCES[::2]) == {"python", "sh"} and set(FENCES[1::2]) == {""}
    assert len(snippets()) == FENCES.count("python")


def test_snippets_run(namespace):
    for line, code in snippets():
        on_cpu = code.replace('device="cuda"', 'device="cpu"')
        # As many empty lines as are above it, so that a traceback has the README's.
        exec(compile("\n" * line + on_cpu, "README.md", "exec"), namespace)

    # What the comments beside them say.
    assert namespace["model"][0].weight.grad is not None
    assert isinstance(namespace["layer"], torch.nn.Linear)
    assert namespace["model"][1]._frozen
    prepared, a, b = namespace["prepared"], namespace["a"], namespace["b"]
    assert torch.equal(torch_tiled.matmul(a, prepared), torch_tiled.matmul(a, b))
