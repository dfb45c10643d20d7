"""`make wheel ARCH=aarch64` and what checks its wheel, as far as a machine without qemu can."""

import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers.packaging import ROOT, binutils, needed_libraries, output_of, run, without_cuda

COMPILER = "aarch64-linux-gnu-g++"
CROSS, CHECK = (ROOT / "tools" / "portable" / name for name in ("cross.py", "check_cross.py"))

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="cross compilation is from x86_64 alone"
)


def what_make_runs(*arguments: str, **environment: str) -> str:
    if not shutil.which("make"):
        pytest.skip("no make")
    return output_of("make", "--dry-run", *arguments, **environment)


def sentence_of(*command: str | Path, **environment) -> str:
    """The last line of a command that fails."""
    done = run(sys.executable, *command, **environment)
    assert done.returncode == 1, done.stdout
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def fake_compiler(tmp_path) -> dict[str, str]:
    """The environment in which a cross compiler is all that is in PATH."""
    compiler = tmp_path / COMPILER
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    return {"PATH": str(tmp_path)}


def test_make_cross_compiles_for_another_architecture_alone():
    commands = what_make_runs("wheel", "ARCH=aarch64")
    assert "tools/portable/cross.py aarch64 .venv/bin/python -m build " in commands
    assert "--plat manylinux_2_28_aarch64 " in commands
    assert "--wheel-dir dist/aarch64 " in commands
    commands = what_make_runs("wheel")
    assert "cross.py" not in commands
    assert "--plat manylinux_2_28_x86_64 " in commands and "--wheel-dir dist " in commands


def test_a_variable_of_the_shell_changes_no_architecture():
    assert "cross" not in what_make_runs("wheel", "check_wheel", ARCH="aarch64")


def test_make_checks_the_wheel_of_that_architecture():
    commands = what_make_runs("check_wheel", "ARCH=aarch64")
    assert re.search(r"check_cross\.py aarch64 \\?\s*dist/aarch64/\*\.whl", commands)
    assert re.search(r"tools/check_wheel\.py \\?\s*dist/\*\.whl", what_make_runs("check_wheel"))


@pytest.mark.parametrize("tool", [(CROSS, "arm64", "true"), (CHECK, "arm64", "a.whl")])
def test_unknown_architecture_says_which_there_are(tool):
    assert sentence_of(*tool) == (
        "torch_tiled: ARCH is arm64 on x86_64; wheels are cross compiled on x86_64 for aarch64 "
        "alone, so pass ARCH=aarch64 there, or no ARCH."
    )


@pytest.mark.parametrize("tool", [(CROSS, "aarch64", "true"), (CHECK, "aarch64", "a.whl")])
def test_missing_cross_compiler_says_how_to_install_it(tool, tmp_path):
    assert sentence_of(*tool, PATH=str(tmp_path)) == (
        f"torch_tiled: ARCH is aarch64, but there is no {COMPILER}; install it: apt install "
        "g++-aarch64-linux-gnu."
    )


def test_missing_wheel_says_how_to_build_it(fake_compiler, tmp_path):
    sentence = sentence_of(CHECK, "aarch64", tmp_path / "*.whl", **fake_compiler)
    assert sentence.endswith("*.whl; build it: make wheel ARCH=aarch64.")


def test_wheel_of_another_architecture_is_refused(fake_compiler, tmp_path):
    wheel = tmp_path / "torch_tiled-0.2.0-py3-none-manylinux_2_28_x86_64.whl"
    wheel.touch()
    sentence = sentence_of(CHECK, "aarch64", wheel, **fake_compiler)
    assert sentence.endswith("_x86_64.whl must have the tag py3-none-manylinux_2_28_aarch64.")


def test_the_program_whose_products_are_compared_compiles():
    if not shutil.which("g++"):
        pytest.skip("no g++")
    flags = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}")
    output_of("g++", *flags, CHECK.with_name("product_bits.cpp"))


def test_library_of_another_architecture(sdist, tmp_path):
    """The CPU library without optimization, in the unpacked sdist."""
    if not shutil.which(COMPILER):
        pytest.skip(f"no {COMPILER} (g++-aarch64-linux-gnu)")
    build = (sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path)
    environment = without_cuda(tmp_path)
    output_of(
        *(sys.executable, "tools/portable/cross.py", "aarch64", *build), cwd=sdist, **environment
    )
    library = tmp_path / "torch_tiled" / "_C.so"
    assert re.search("Machine: +AArch64", binutils("readelf", "--file-header", library))
    assert needed_libraries(library) >= {"libtorch_cpu", "libstdc++"}
    assert (sdist / "build/aarch64/objects/csrc/cpu/tiled.cpp.o").exists()
