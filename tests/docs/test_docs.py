"""The examples in README.md and docs/**/*.md run on the CPU, and print what the pages say.

The Python blocks of a page run in order, in one namespace and an empty folder. A block whose first
line is a comment with a file's name is written to that file instead. In shell blocks, the lines run
that start such a file or `python -m torch_tiled`; others are about a checkout. A block of text is
the output of the block before it, where "..." stands for anything.
"""

import contextlib
import dataclasses
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_tiled

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclasses.dataclass(frozen=True)
class Block:
    page: Path
    line: int  # the number of its first line
    kind: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that a script is to be written to."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named and self.kind == "python" else None

    @property
    def code(self) -> str:
        """The text after as many empty lines as the page has lines above it, for tracebacks."""
        return "\n" * (self.line - 1) + self.text.replace('device="cuda"', 'device="cpu"')


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, text.count("\n", 0, each.start(2)) + 1, each[1], each[2]) for each in found]


def python(*arguments: str, loads_package: bool = False) -> str:
    """The output of a process, which must succeed."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *arguments]
    for _ in range(3 if "torch.distributed.run" in arguments else 1):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        # At its end, a process of gloo's aborts once in a while on a busy machine, with PyTorch's
        # own layers as well.
        if "terminate called without an active exception" not in done.stderr:
            break
    if loads_package and done.returncode < 0 and torch.__version__.startswith("2.11."):
        pytest.skip("AOTInductor packages of PyTorch's own products crash with torch 2.11, too")
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_command(command: str, scripts: dict[str, Block]) -> str:
    program, *arguments = shlex.split(command, comments=True) or [""]
    started = [scripts[name] for name in arguments if name in scripts]
    if not started and arguments[:2] != ["-m", "torch_tiled"]:
        return ""
    if program == "torchrun":
        if not dist.is_available() or not dist.is_gloo_available():
            pytest.skip("no gloo")
        arguments = ["-m", "torch.distributed.run", *arguments]
    else:
        assert program == "python"
    loads_package = any("aoti_load_package" in block.text for block in started)
    try:
        return python(*arguments, loads_package=loads_package)
    except AssertionError as error:
        text = str(error)
        for name, block in scripts.items():  # whose line numbers are the page's
            text = text.replace(str(Path.cwd() / name), str(block.page))
        raise AssertionError(text) from None


def run(block: Block, scripts: dict[str, Block], namespace: dict) -> str:
    """Runs a block, and returns what it prints."""
    if block.kind == "sh":
        return "".join(run_command(line, scripts) for line in block.text.splitlines())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.code, block.page, "exec"), namespace)
    return printed.getvalue()


@each_page
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.compiler.reset()
    namespace, printed = {"__name__": page.stem}, ""
    scripts = {block.file: block for block in blocks(page) if block.file}
    for name, block in scripts.items():
        Path(name).write_text(block.code)
    for block in blocks(page):
        if block.kind == "text":
            same = doctest.OutputChecker().check_output(block.text, printed, doctest.ELLIPSIS)
            assert same, f"{block.where} says\n{block.text}and printed is\n{printed}"
        elif block.file is None:
            try:
                printed = run(block, scripts, namespace)
            except Exception as error:
                error.add_note(f"in {block.where}")
                raise


@each_page
def test_every_block_is_found(page):
    """No block is written in another way, and every script is started."""
    fences = re.findall(r"^[ >]*(?:```|~~~)(.*)$", page.read_text(), re.MULTILINE)
    assert fences[::2] == [block.kind for block in blocks(page)]
    assert set(fences[::2]) <= {"python", "sh", "text"} and set(fences[1::2]) <= {""}
    words = " ".join(block.text for block in blocks(page) if block.kind == "sh").split()
    assert {block.file for block in blocks(page) if block.file} <= set(words)


def test_every_public_name_is_documented():
    text = "\n".join(page.read_text() for page in PAGES)
    documented = set(re.findall(r"\btorch_tiled\.(\w+)", text))
    assert set(torch_tiled.__all__) <= documented
