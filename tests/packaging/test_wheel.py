"""The wheel of `make wheel`: its tag is earned, and it is small. `make check_wheel` installs it."""

import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.packaging import ROOT, binutils, needed_libraries, run, undefined_symbols

import torch_tiled

MOST_BYTES = 25 << 20
OLDEST_GLIBC = 2, 28
# libgcc_s, whose versions manylinux_2_28 allows all of: these have been there since 2004.
NEWEST_GCC = 4, 2, 0


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list(ROOT.glob("dist/*.whl"))
    if not wheels and os.environ.get("CI") != "true":
        pytest.skip("no wheel in dist; make wheel builds one")
    (only,) = wheels
    return only


@pytest.fixture(scope="module")
def library(wheel, tmp_path_factory) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("torch_tiled/_C.so", tmp_path_factory.mktemp("wheel")))


def test_tag_and_size(wheel):
    version = torch_tiled.__version__
    assert re.fullmatch(rf"torch_tiled-{version}-py3-none-manylinux_2_28_\w+\.whl", wheel.name)
    assert wheel.stat().st_size <= MOST_BYTES


def test_library_loads_on_the_oldest_systems(library):
    names = "\n".join(undefined_symbols(library))
    versions = set(re.findall(r"@+(\w+?)_([\d.]+)$", names, re.MULTILINE))
    assert {name for name, _ in versions} <= {"GLIBC", "GCC"}  # libstdc++ is inside
    newest = {"GLIBC": OLDEST_GLIBC, "GCC": NEWEST_GCC}
    assert not [
        (name, version)
        for name, version in versions
        if tuple(map(int, version.split("."))) > newest[name]
    ]


def test_library_needs_the_c_runtime_and_torch_alone(library):
    needed = needed_libraries(library)
    of_glibc = {"libc", "libm", "libpthread", "libdl", "librt"}
    loaders = {"ld-linux-x86-64", "ld-linux-aarch64"}
    assert needed <= {"libtorch_cpu", "libgcc_s", *of_glibc, *loaders}


def test_library_exports_nothing(library):
    assert binutils("nm", "--dynamic", "--defined-only", library) == ""


def test_library_is_the_one_of_its_description(wheel):
    with zipfile.ZipFile(wheel) as archive:
        described = json.loads(archive.read("torch_tiled/_C.json"))
        digest = hashlib.sha256(archive.read("torch_tiled/_C.so")).hexdigest()
    assert described["sha256"] == digest


def take_library(wheel: Path | str) -> str:
    """What is printed where no library is taken."""
    command = [sys.executable, ROOT / "tools" / "take_library.py", wheel]
    done = run(*command)
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_library_of_another_wheel_is_not_taken(tmp_path):
    none, text, other = (tmp_path / name for name in ("none.whl", "text.whl", "a wheel.whl"))
    text.write_text("no archive")
    for path in (none, text, tmp_path, tmp_path / "*.whl"):
        assert f"{path} must be one wheel, and 0 match" in take_library(path)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("another/__init__.py", "")
    assert "is no wheel of torch_tiled: it has no torch_tiled/_C.so" in take_library(other)
    with zipfile.ZipFile(other, "a") as archive:
        for path in (ROOT / "torch_tiled").rglob("*.py"):
            archive.writestr(str(path.relative_to(ROOT)), path.read_bytes() + b"\n")
        for name in ("torch_tiled/_C.so", "torch_tiled/_C.json"):
            archive.writestr(name, "")
    assert "was built from other sources than this checkout" in take_library(other)


def test_sdist_is_beside_the_wheel(wheel):
    assert (wheel.parent / f"torch_tiled-{torch_tiled.__version__}.tar.gz").exists()
