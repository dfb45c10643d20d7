"""The package: the symbols of its object, the loader, the sdist, the wheel, the build."""

import ast
import hashlib
import inspect
import json
import platform
import re
import shutil
import subprocess
import sys
import typing
import zipfile
from pathlib import Path

import pytest
import torch
from helpers.packaging import (
    ROOT,
    binutils,
    needed_libraries,
    output_of,
    run,
    undefined_symbols,
    without_cuda,
)

import torch_tiled

PACKAGE = Path(torch_tiled.__file__).resolve().parent
LIBRARY = PACKAGE / "_C.so"

# The docs promise systems with these versions; the static CUDA runtime needs them.
NEWEST_VERSION = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}


# --- the object ----------------------------------------------------------------------------------


def test_object_takes_only_the_c_runtime_and_the_stable_abi():
    c_runtime = re.compile(r"@+(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+$")
    bookkeeping = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
    rest = {name for name in undefined_symbols(LIBRARY) if not c_runtime.search(name)} - bookkeeping
    stable_abi = {name for name in rest if re.match(r"(aoti_)?torch_[A-Za-z0-9_]+$", name)}
    assert rest == stable_abi
    assert "aoti_torch_library_init_def" in stable_abi


def test_object_needs_no_cuda_library_and_no_python():
    needed = needed_libraries(LIBRARY)
    assert needed <= {"libtorch_cpu", "libstdc++", "libgcc_s", "libm", "libc", "ld-linux-x86-64"}


def test_object_exports_nothing_of_its_own():
    lines = binutils("nm", "--dynamic", "--defined-only", LIBRARY).splitlines()
    exported = [line.split()[-1] for line in lines]
    assert not [name for name in exported if re.search("cuda|tiled|torch", name, re.IGNORECASE)]


def test_object_loads_on_the_oldest_systems():
    too_new = []
    for name in undefined_symbols(LIBRARY):
        library, _, version = name.partition("@")[2].strip("@").partition("_")
        if tuple(map(int, re.findall(r"\d+", version))) > NEWEST_VERSION.get(library, (99,)):
            too_new.append(name)
    libc = platform.libc_ver()[1]
    if too_new and tuple(map(int, libc.split("."))) > (2, 36):
        pytest.skip(f"built with glibc {libc}, for systems as new as this one")
    assert not too_new


# --- the loader, each case in a process of its own, since a library is loaded once ---------------


def import_error(code: str, package_folder: Path, cwd: Path) -> str:
    """The message of the ImportError that code ends in."""
    first = f"import sys\nsys.path.insert(0, {str(package_folder)!r})\n"
    done = run(sys.executable, "-c", first + code, cwd=cwd)
    assert done.returncode == 1, done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("ImportError: "), done.stdout
    return last.removeprefix("ImportError: ")


@pytest.fixture
def unbuilt(tmp_path) -> Path:
    """A folder with the package's Python files alone."""
    without_objects = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "torch_tiled", ignore=without_objects)
    return tmp_path


def test_unbuilt_package_says_how_to_build(unbuilt):
    message = import_error("import torch_tiled", unbuilt, unbuilt)
    assert message.startswith(f"torch_tiled is not built: {unbuilt}/torch_tiled/_C.so")
    assert "make build" in message


def test_broken_object_is_an_import_error(unbuilt):
    (unbuilt / "torch_tiled" / "_C.so").write_text("not a library")
    message = import_error("import torch_tiled", unbuilt, unbuilt)
    assert message.startswith(f"torch_tiled could not load {unbuilt}/torch_tiled/_C.so: ")


def test_old_glibc_is_an_import_error(unbuilt):
    shutil.copy(LIBRARY, unbuilt / "torch_tiled")
    code = """
import torch
def load_library(path):
    raise OSError(f"/lib/libc.so.6: version `GLIBC_2.99' not found (required by {path})")
torch.ops.load_library = load_library
import torch_tiled"""
    message = import_error(code, unbuilt, unbuilt)
    assert f"has glibc {platform.libc_ver()[1]}, and the library was built for 2.99" in message
    assert "Install a wheel, which takes glibc 2.28, or rebuild it on this machine" in message


def test_old_torch_is_an_import_error(tmp_path):
    code = "import torch\ntorch.__version__ = '2.10.1+cpu'\nimport torch_tiled"
    message = import_error(code, PACKAGE.parent, tmp_path)
    assert "needs torch 2.11 or later, and this is torch 2.10.1+cpu" in message


def test_second_copy_is_an_import_error(unbuilt):
    shutil.copy(LIBRARY, unbuilt / "torch_tiled")
    code = f"""
import torch_tiled
for name in [name for name in sys.modules if name.split('.')[0] == 'torch_tiled']:
    del sys.modules[name]
sys.path.insert(0, {str(unbuilt)!r})
import torch_tiled
"""
    message = import_error(code, PACKAGE.parent, unbuilt)
    assert message.startswith("The operator tiled::matmul exists already")
    assert str(LIBRARY) in message and f"{unbuilt}/torch_tiled/_C.so" in message


# --- the sdist, built from the checkout, and the wheel, built from the sdist ---------------------
#
# conftest.py has the fixtures.


def test_sdist_has_every_source(sdist):
    sources = [path for path in ROOT.glob("csrc/**/*") if path.is_file()]
    sources += [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    sources += [ROOT / name for name in ("LICENSE", "setup.py", "pyproject.toml", "Makefile")]
    sources += [PACKAGE / "py.typed"]
    missing = [path for path in sources if not (sdist / path.relative_to(ROOT)).exists()]
    assert not missing


def test_build_without_nvcc_says_so_in_one_line(wheel):
    lines = re.findall(r"torch_tiled: building for .*", wheel[1])
    assert len(lines) == 1
    assert lines[0].startswith("torch_tiled: building for CPU only, because no nvcc was found")


def test_build_prints_a_line_for_each_file(wheel):
    lines = re.findall(r"\[ *(\d+)/(\d+)\] (csrc/\S+) \d+ s$", wheel[1], re.MULTILINE)
    counts, totals, files = zip(*lines, strict=True)
    assert list(map(int, counts)) == list(range(1, len(lines) + 1))
    assert set(totals) == {str(len(lines))}
    assert len(set(files)) == len(lines) and "csrc/cpu/tiled.cpp" in files


def test_wheel_is_for_every_python_and_has_all_it_needs(wheel):
    version = torch_tiled.__version__
    assert wheel[0].name == f"torch_tiled-{version}-py3-none-linux_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel[0]) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"torch_tiled-{version}.dist-info/METADATA").decode()
    python_files = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.py")}
    packaged = {name for name in names if ".dist-info/" not in name}
    others = {f"torch_tiled/{name}" for name in ("_C.so", "_C.json", "py.typed", "trace.html")}
    assert packaged == python_files | others
    requirements = re.findall(r"^Requires-Dist: (.*)", metadata, re.MULTILINE)
    assert requirements == ["torch>=2.11", 'rich; extra == "trace"']


BUILT_WITHOUT_CUDA = {
    **{"torch": torch.__version__, "cuda": "none", "architectures": []},
    "namespace": "tiled",
}


def without_digest(description: bytes, library: bytes) -> dict:
    """The description of a build in _C.json, which must have the digest of that library."""
    built = json.loads(description)
    assert built.pop("sha256") == hashlib.sha256(library).hexdigest()
    return built


def test_wheel_says_what_it_was_built_with(wheel):
    with zipfile.ZipFile(wheel[0]) as archive:
        description = archive.read("torch_tiled/_C.json")
        assert without_digest(description, archive.read("torch_tiled/_C.so")) == BUILT_WITHOUT_CUDA


def test_checkout_says_what_it_was_built_with(sdist, wheel, tmp_path):
    build_in_place = (sys.executable, "setup.py", "build_ext", "--inplace")
    log = output_of(*build_in_place, cwd=sdist, **without_cuda(tmp_path))
    assert "torch_tiled: 0 of " in log  # the objects of the wheel are linked once more
    package = sdist / "torch_tiled"
    description = (package / "_C.json").read_bytes()
    assert without_digest(description, (package / "_C.so").read_bytes()) == BUILT_WITHOUT_CUDA


def test_architectures_are_those_that_are_compiled_for(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    code = f"""
import pathlib, runpy
describe = runpy.run_path('setup.py')['describe']
print(describe(pathlib.Path({str(nvcc)!r}), {str(nvcc)!r}))
"""
    built = ast.literal_eval(output_of(sys.executable, "-c", code))
    assert (built["torch"], built["cuda"]) == (torch.__version__, "13.0")
    assert built["architectures"] == ["compute_80", "sm_80", "sm_90a"]


def test_wheel_works(wheel, tmp_path):
    with zipfile.ZipFile(wheel[0]) as archive:
        archive.extractall(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch, torch_tiled
a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4)
assert torch_tiled.__file__.startswith({str(tmp_path)!r})
assert torch.equal(torch_tiled.matmul(a, b, algorithm="naive"), a @ b)
"""
    output_of(sys.executable, "-c", code, cwd=tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        *(torch_tiled.matmul, torch_tiled.linear, torch_tiled.gemm_, torch_tiled.prepare),
        *(torch_tiled.algorithms, torch_tiled.explain, torch_tiled.convert, torch_tiled.revert),
        *(torch_tiled.freeze, torch_tiled.refreeze, torch_tiled.unfreeze),
        torch_tiled.frozen_bytes,
        *(torch_tiled.nn.Linear.__init__, torch_tiled.nn.Linear.forward),
    ],
    ids=lambda function: function.__qualname__,
)
def test_public_functions_have_type_hints(function):
    parameters = set(inspect.signature(function).parameters) - {"self"}
    assert set(typing.get_type_hints(function)) == parameters | {"return"}


# --- the build -----------------------------------------------------------------------------------


def build(target: Path, **environment) -> subprocess.CompletedProcess:
    return run(sys.executable, "setup.py", "build_ext", "--build-lib", target, **environment)


def test_cuda_without_nvcc_says_how_to_fix_it(tmp_path):
    done = build(tmp_path, TORCH_TILED_CUDA="1", CUDA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert (
        "error: TORCH_TILED_CUDA is 1, but no nvcc was found: install the CUDA toolkit (12.0 or "
        "later) and set CUDA_HOME to its folder, or build for CPU only with TORCH_TILED_CUDA=0."
    ) in done.stdout


def test_unknown_value_of_torch_tiled_cuda_is_an_error(tmp_path):
    done = build(tmp_path, TORCH_TILED_CUDA="yes")
    assert done.returncode != 0
    assert "error: TORCH_TILED_CUDA is 'yes'; it must be 0, 1 or auto." in done.stdout


COMPILER_OUTPUT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'naive_kernel' for 'sm_80'
ptxas info    : Function properties for naive_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 384 bytes cmem[0]
ptxas info    : Compiling entry function 'tiled_kernel' for 'sm_90a'
ptxas info    : Function properties for tiled_kernel
    72 bytes stack frame, 72 bytes spill stores, 144 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 72 bytes cumulative stack size
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized
file.cu(7): warning #177-D: variable "i" was declared but never referenced
"""
REGISTERS = [
    "  sm_80   40 registers    0 B spilled    0 B stack  naive_kernel",
    "  sm_90a 255 registers  216 B spilled   72 B stack  tiled_kernel",
]
WARNING = '  file.cu(7): warning #177-D: variable "i" was declared but never referenced'


def test_spills_and_serialized_wgmma_are_errors():
    code = f"""
import runpy
output = runpy.run_path('setup.py')['read_compiler']({COMPILER_OUTPUT!r})
print([output.registers, output.warnings, output.faults])
"""
    registers, warnings, faults = ast.literal_eval(output_of(sys.executable, "-c", code))
    assert registers == REGISTERS
    assert warnings == [WARNING]
    assert len(faults) == 2
    assert faults[0] == "  tiled_kernel spills 216 bytes of registers on sm_90a."
    assert "(C7511)" in faults[1]


@pytest.fixture
def compiled(tmp_path):
    """Compiles a file by a compiler that prints COMPILER_OUTPUT: the lines, and the report."""
    (tmp_path / "output").write_text(COMPILER_OUTPUT)
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\ncat {tmp_path}/output\n")
    compiler.chmod(0o755)
    code = f"""
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location('setup_script', 'setup.py')
setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup)
setup.ROOT = pathlib.Path({str(tmp_path)!r})
setup.OBJECTS, setup.REPORT = setup.ROOT / 'build/objects', setup.ROOT / 'build/ptxas.txt'
plan = [setup.Compilation(setup.ROOT / 'csrc/file.cu', [{str(compiler)!r}])]
lines = plan[0].run()
setup.write_report(plan)
print([lines, setup.REPORT.read_text()])
"""

    def run_compiler(**environment) -> subprocess.CompletedProcess:
        return run(sys.executable, "-c", code, **{"CI": "", "VERBOSE": "", **environment})

    return run_compiler


@pytest.mark.parametrize("verbose", ["", "1"])
def test_registers_go_to_a_report_and_faults_are_printed(compiled, verbose):
    done = compiled(VERBOSE=verbose)
    assert done.returncode == 0, done.stdout
    told, printed = done.stdout.splitlines()
    assert told == "torch_tiled: the registers and spills of each kernel are in build/ptxas.txt."
    (first, *others), report = ast.literal_eval(printed)
    assert re.fullmatch(r"csrc/file\.cu \d+ s", first)
    assert others[:-2] == [*(REGISTERS if verbose else []), WARNING]
    assert "spills 216 bytes" in others[-2] and "(C7511)" in others[-1]
    assert report.splitlines() == ["csrc/file.cu", *REGISTERS]


def test_a_spill_fails_a_strict_build(compiled):
    done = compiled(CI="true")
    assert done.returncode != 0
    for line in ("csrc/file.cu", *REGISTERS, "  tiled_kernel spills 216 bytes of registers"):
        assert line in done.stdout
