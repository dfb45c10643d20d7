"""Builds torch_tiled/_C.so: one file for every Python, and for every torch from 2.11 on.

It uses only torch's stable ABI, needs no symbol of Python's, and brings CUDA's runtime along: so
it can be built here and run there, without a GPU, against a torch without CUDA. _C.json beside it
tells `python -m torch_tiled info` what it was built with.

    TORCH_TILED_CUDA=0|1|auto   without CUDA; with it or fail; with it where nvcc is (the default)
    MAX_JOBS=N                  compilers to run at a time (default: one a core)
    DEBUG=1                     no optimisation, debug information for host and device
    LINEINFO=1                  source lines in machine code, for Nsight Compute
    PORTABLE=1                  link by zig (ziglang on PyPI), for glibc 2.28 or later
    TORCH_TILED_NAMESPACE=x     the operators in torch.ops.x, beside other copies (default: tiled)
    TORCH_TILED_KERNELS=folder  your kernels, too: its .cu files and the rows of its kernels.def
    VERBOSE=1                   print the registers and spills of each kernel, too
    CI=true                     the same; a warning, a spill or serialised wgmmas fail the build

A file that is compiled is one line. Registers and spills of all kernels, as ptxas counts them, are
in build/ptxas.txt; warnings and spills are printed in any case.
"""

import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, PlatformError

ROOT = Path(__file__).resolve().parent
OBJECTS = ROOT / "build" / "objects"  # every kind of build shares them
REPORT = ROOT / "build" / "ptxas.txt"

DEBUG = os.environ.get("DEBUG") == "1"
STRICT = os.environ.get("CI") == "true"
LINEINFO = os.environ.get("LINEINFO") == "1"
PORTABLE = os.environ.get("PORTABLE") == "1"
VERBOSE = STRICT or os.environ.get("VERBOSE") == "1"
JOBS = int(os.environ.get("MAX_JOBS", 0)) or len(os.sched_getaffinity(0))
CXX = os.environ.get("CXX", "g++")
NAMESPACE = os.environ.get("TORCH_TILED_NAMESPACE", "tiled")
NAMESPACED = ("csrc/binding/ops.cpp", "csrc/binding/lazy_bits.cpp")  # they register operators
MORE_KERNELS = os.environ.get("TORCH_TILED_KERNELS", "")
TABLE_READER = "csrc/select/ladder.cpp"  # the file that includes kernels.def

OLDEST_TORCH = (2, 11)
OLDEST_CUDA = (12, 0)

# A fixed list, whatever GPU is in sight: Ampere's code, which Ada runs too, with PTX for what
# comes after Hopper; and Hopper's own. A file named *_sm80.cu or *_sm90.cu wants only the one.
ARCHITECTURES = {
    "_sm80": ["-gencode=arch=compute_80,code=[compute_80,sm_80]"],
    "_sm90": ["-gencode=arch=compute_90a,code=sm_90a"],
}

# Parts of the names of the files that take longest to compile. They are started first, in this
# order, so that none is left alone at the end.
LONGEST = ("mma/tma_instances/", "mma/unaligned", "mma/sync", "tf32/tma")

# No compiler contracts a*b+c: an FMA is written where it is meant, so that the
# same source gives the same bits on the host and on the device.
COMMON_FLAGS = [
    "-std=c++20",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # OLDEST_TORCH
    *(["-O0", "-g"] if DEBUG else ["-O3"]),
]
HOST_FLAGS = [
    *("-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"),
    *(["-Werror"] if STRICT else []),
]
# Nothing reads the flags of floating-point exceptions, so both sides of a condition may be
# computed, which loops over 16-bit floats need for SIMD. The values are the same.
NO_TRAPS = "-fno-trapping-math"
DEVICE_FLAGS = [
    *("--fmad=false", "-Xptxas=-v"),
    "-Xfatbin=-compress-all",  # by default, fatbinary compresses large modules alone
    *(["-G"] if DEBUG else ["-lineinfo"] if LINEINFO else []),
    *(["-Werror=all-warnings"] if STRICT else []),
]
LINK_FLAGS = ["--no-undefined", "--exclude-libs=ALL"]

PORTABLE_TARGET = f"{platform.machine()}-linux-gnu.2.28"  # the oldest glibc
PORTABLE_SOURCES = ROOT / "tools" / "portable"


def say(line: str) -> None:
    print(f"torch_tiled: {line}", flush=True)


def torch_folders() -> tuple[str, str]:
    """Where torch's headers and its libraries are."""
    remedy = "Install torch 2.11 or later, then build with --no-build-isolation."
    try:
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        raise PlatformError(f"torch_tiled builds against torch ({error}). {remedy}") from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        raise PlatformError(f"torch_tiled needs a newer torch than {torch.__version__}. {remedy}")
    return include_paths()[0], library_paths()[0]


def find_nvcc() -> str | None:
    """CUDA_HOME decides where it is set; then PATH; then the usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=f"{home}/bin")
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def release_of(nvcc: str) -> tuple[int, int] | None:
    """The release of CUDA that an nvcc is of, or None where it doesn't say."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    return release and (int(release[1]), int(release[2]))


def choose_nvcc() -> str | None:
    """The nvcc to build with, or None for a build without CUDA."""
    wish = os.environ.get("TORCH_TILED_CUDA", "auto")
    if wish not in ("0", "1", "auto"):
        raise PlatformError(f"TORCH_TILED_CUDA is {wish!r}; it must be 0, 1 or auto.")
    if wish == "0":
        say("building for CPU only, because TORCH_TILED_CUDA is 0.")
        return None

    oldest = ".".join(map(str, OLDEST_CUDA))
    nvcc = find_nvcc()
    trouble = "no nvcc was found"
    if nvcc:
        release = release_of(nvcc)
        if release and release >= OLDEST_CUDA:
            say(f"building for CPU and CUDA with {nvcc} {'.'.join(map(str, release))}.")
            return nvcc
        trouble = f"{nvcc} is older than {oldest}"
    remedy = f"install the CUDA toolkit ({oldest} or later) and set CUDA_HOME to its folder"
    if wish == "1":
        raise PlatformError(
            f"TORCH_TILED_CUDA is 1, but {trouble}: {remedy}, or build for CPU only with "
            "TORCH_TILED_CUDA=0."
        )
    say(f"building for CPU only, because {trouble}; for CUDA, {remedy}, and build again.")
    return None


def compilations(nvcc: str | None, torch_headers: str) -> list["Compilation"]:
    """What there is to compile: the kernels first, which take longest.

    Without nvcc that is neither kernels/ nor cuda_*.cpp, which call CUDA's runtime.
    """
    flags = [*COMMON_FLAGS, f"-I{ROOT / 'csrc'}", "-isystem", torch_headers]
    sources = sorted(ROOT.glob("csrc/**/*.cpp"))
    more = more_kernels(nvcc)
    if nvcc is None:
        kernels = ROOT / "csrc/kernels"
        host = [x for x in sources if kernels not in x.parents and not x.name.startswith("cuda_")]
        return [Compilation(path, [CXX, *flags, *HOST_FLAGS, NO_TRAPS]) for path in host]

    # nvcc hands the .cpp files on to the host's compiler, along with the toolkit's headers.
    command = [nvcc, "-ccbin", CXX, *flags, "-DTORCH_TILED_WITH_CUDA", *DEVICE_FLAGS]
    command += [f"-Xcompiler={flag}" for flag in HOST_FLAGS]
    plan = []
    paths = sorted(ROOT.glob("csrc/kernels/**/*.cu"), key=start_order)
    for path in paths + more:
        only = ARCHITECTURES.get(path.stem[-5:])
        plan.append(Compilation(path, [*command, *(only or sum(ARCHITECTURES.values(), []))]))
    return plan + [Compilation(path, [*command, f"-Xcompiler={NO_TRAPS}"]) for path in sources]


def more_kernels(nvcc: str | None) -> list[Path]:
    """The .cu files of the folder that TORCH_TILED_KERNELS names."""
    if not MORE_KERNELS:
        return []
    folder = Path(MORE_KERNELS).resolve()
    rows, sources = folder / "kernels.def", sorted(folder.glob("*.cu"))
    trouble = None
    if not folder.is_dir():
        trouble = f"{folder} is not a folder"
    elif not rows.is_file() or "KERNEL(" not in rows.read_text():
        trouble = f"{folder} has no kernels.def with a row KERNEL(...)"
    elif not sources:
        trouble = f"{folder} has no .cu file"
    elif nvcc is None:
        trouble = "this build is without CUDA"
    if trouble:
        raise PlatformError(
            f"TORCH_TILED_KERNELS is {MORE_KERNELS!r}, but {trouble}; pass a folder with a "
            "kernels.def and .cu files, in a build with CUDA."
        )
    return sources


def start_order(source: Path) -> tuple[int, str]:
    """Sorts files by when their compilation is to start."""
    name = str(source.relative_to(ROOT))
    places = [place for place, part in enumerate(LONGEST) if part in name]
    return min(places, default=len(LONGEST)), name


class Compilation:
    """One source file, its object, and the command that makes the one of the other."""

    def __init__(self, source: Path, command: list[str]):
        inside = source.is_relative_to(ROOT)
        self.name = name = str(source.relative_to(ROOT) if inside else f"more/{source.name}")
        if name == TABLE_READER and MORE_KERNELS:
            rows = Path(MORE_KERNELS).resolve() / "kernels.def"
            command = [*command, f'-DTORCH_TILED_MORE_KERNELS="{rows}"']
            name = f"{name}.more"
        if name in NAMESPACED and NAMESPACE != "tiled":  # the default's object stays beside it
            command = [*command, f"-DTORCH_TILED_NAMESPACE={NAMESPACE}"]
            name = f"{name}.{NAMESPACE}"
        self.object = OBJECTS / f"{name}.o"
        self.dependencies = OBJECTS / f"{name}.d"
        self.stamp = OBJECTS / f"{name}.command"  # written when the object is good
        self.report = OBJECTS / f"{name}.ptxas"  # the registers and spills of its kernels
        self.command = [*command, "-MD", "-MF", str(self.dependencies)]
        self.command += ["-c", str(source), "-o", str(self.object)]

    def is_current(self) -> bool:
        """Whether this very command made the object, from files that are no newer than it."""
        try:
            if self.stamp.read_text() != shlex.join(self.command):
                return False
            rule = self.dependencies.read_text().replace("\\\n", " ")
            files = shlex.split(rule.partition(":")[2])
            made = self.object.stat().st_mtime
            return all(os.stat(file).st_mtime <= made for file in files)
        except FileNotFoundError:
            return False

    def run(self) -> list[str]:
        """Compiles, and returns the lines to print: the first with the file's name and its time."""
        self.stamp.unlink(missing_ok=True)
        self.object.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        output = read_compiler(run(self.command))
        seconds = time.monotonic() - start
        if output.faults and STRICT:
            lines = [self.name, *output.registers, *output.warnings, *output.faults]
            raise CompileError("\n".join(lines))
        self.report.write_text("".join(f"{line}\n" for line in output.registers))
        self.stamp.write_text(shlex.join(self.command))
        registers = output.registers if VERBOSE else []
        return [f"{self.name} {seconds:.0f} s", *registers, *output.warnings, *output.faults]


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise CompileError(f"{shlex.join(command)}\n{done.stdout}")
    return done.stdout


@dataclass
class CompilerOutput:
    """The lines of a compiler's output."""

    registers: list[str] = field(default_factory=list)  # a kernel's, and its local memory
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # under CI=true they are errors


def read_compiler(text: str) -> CompilerOutput:
    """Sorts a compiler's output, in which ptxas -v tells of each kernel in several lines."""
    if shutil.which("c++filt"):
        filter = subprocess.run(["c++filt", "-p"], input=text, capture_output=True, text=True)
        text = filter.stdout
    output = CompilerOutput()
    kernel = arch = stack = spilled = None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(.+)' for '(.+)'", line):
            kernel = re.sub(r"(\(anonymous namespace\)|\w+)::", "", found[1])
            arch = found[2]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) .* stores, (\d+)", line):
            stack, *moved = map(int, found.groups())
            spilled = sum(moved)
        elif kernel and (found := re.search(r"Used (\d+) registers", line)):
            used = f"{found[1]:>3} registers {spilled:>4} B spilled {stack:>4} B stack"
            output.registers.append(f"  {arch:6} {used}  {kernel}")
            if spilled and not DEBUG:
                output.faults.append(f"  {kernel} spills {spilled} bytes of registers on {arch}.")
            kernel = None
        elif "Potential Performance Loss" in line:  # ptxas serialised wgmmas
            output.faults.append(f"  {line}")
        elif line.strip() and not line.startswith("ptxas info"):
            output.warnings.append(f"  {line}")
    return output


def write_report(plan: list[Compilation]) -> None:
    """Writes what ptxas said of every kernel of the library, also of files compiled before."""
    found = [(each.name, each.report.read_text()) for each in plan if each.report.exists()]
    text = "".join(f"{name}\n{registers}" for name, registers in found if registers)
    if text:
        REPORT.write_text(text)
        say(f"the registers and spills of each kernel are in {REPORT.relative_to(ROOT)}.")
    else:
        REPORT.unlink(missing_ok=True)  # of another build, with CUDA


class BuildObject(build_ext):
    """Compiles what has changed, several files at a time, and links torch_tiled/_C.so.

    torch's own BuildExtension has one set of flags for all .cu files, follows the headers they
    include only under ninja with a CUDA build of torch, and refuses an nvcc whose major version
    is not torch's, which is nothing to an object that brings its own CUDA runtime.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, extension: Extension) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*", NAMESPACE, re.ASCII):
            raise PlatformError(f"TORCH_TILED_NAMESPACE is {NAMESPACE!r}; pass an identifier.")
        torch_headers, torch_libraries = torch_folders()
        nvcc = choose_nvcc()
        plan = compilations(nvcc, torch_headers)
        stale = [each for each in plan if not each.is_current()]
        say(f"{len(stale)} of {len(plan)} files to compile.")
        with ThreadPoolExecutor(JOBS) as pool:
            try:
                waiting = [pool.submit(each.run) for each in stale]
                for count, done in enumerate(as_completed(waiting), start=1):
                    lines = "\n".join(done.result())
                    print(f"[{count:{len(str(len(stale)))}}/{len(stale)}] {lines}", flush=True)
            except CompileError:
                pool.shutdown(cancel_futures=True)
                raise

        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        link = portable_link if PORTABLE else plain_link
        run(link(target, [str(each.object) for each in plan], nvcc, torch_libraries))
        self.description = describe(target, nvcc)
        write_report(plan)
        say(f"linked {target}.")

    def run(self) -> None:
        super().run()
        # Only now is the path that of an --inplace build, which is linked elsewhere and copied.
        for extension in self.extensions:
            target = Path(self.get_ext_fullpath(extension.name)).with_suffix(".json")
            target.write_text(json.dumps(self.description, indent=2) + "\n")


def plain_link(target: Path, objects: list[str], nvcc: str | None, torch: str) -> list[str]:
    """The command that links for systems whose glibc and libstdc++ are as new as here."""
    if nvcc:
        command = [nvcc, "-ccbin", CXX, "-cudart=static", "-nodlink"]
        command += [f"-Xlinker={flag}" for flag in LINK_FLAGS]
    else:
        command = [CXX, *(f"-Wl,{flag}" for flag in LINK_FLAGS)]
    return [*command, "-shared", "-o", str(target), *objects, f"-L{torch}", "-ltorch_cpu"]


def portable_link(target: Path, objects: list[str], nvcc: str | None, torch: str) -> list[str]:
    """The command that links for systems with an older glibc: PORTABLE_TARGET says which.

    zig knows the symbol versions of every glibc. Its `cc`, unlike its `c++`, adds no C++ library of
    its own. libstdc++ is linked statically, libgcc_s is not: it unwinds exceptions, and all
    libraries of a process have to share it.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise PlatformError("PORTABLE is 1, but there is no zig; install it: pip install ziglang.")

    def library(name: str) -> str:
        found = subprocess.run([CXX, f"-print-file-name={name}"], capture_output=True, text=True)
        return os.path.realpath(found.stdout.strip())

    command = [sys.executable, "-m", "ziglang", "cc", "-target", PORTABLE_TARGET, "-shared", "-s"]
    command += ["-o", str(target), *objects, str(PORTABLE_SOURCES / "newer_glibc.c")]
    command += [f"-Wl,--version-script={PORTABLE_SOURCES / 'exports.map'}"]
    command += ["-Wl,-z,defs,--gc-sections"]
    command += [library("libstdc++.a"), library("libgcc_s.so.1"), f"{torch}/libtorch_cpu.so"]
    if nvcc:
        dryrun = run([nvcc, "--dryrun", "-ccbin", CXX, "-x", "cu", os.devnull])
        folders = shlex.split(re.search(r"LIBRARIES=(.*)", dryrun)[1])
        command += [*folders, f"-L{torch}", "-lcudart_static", "-lrt", "-ldl"]
    return [*command, "-lpthread", "-lm"]


def describe(library: Path, nvcc: str | None) -> dict:
    """What a library was built with and as, and its digest, by which it is told from others."""
    import torch

    flags = " ".join(sum(ARCHITECTURES.values(), []))
    codes = [code.split(",") for code in re.findall(r",code=\[?([\w,]+)", flags)]
    return {
        "torch": torch.__version__,
        "cuda": ".".join(map(str, release_of(nvcc))) if nvcc else "none",
        "architectures": sum(codes, []) if nvcc else [],
        "namespace": NAMESPACE,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
    }


class AnyPythonWheel(bdist_wheel):
    """A wheel for every Python 3: the object knows nothing of the Python that loads it."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(
        license="BSD-3-Clause",  # pyproject.toml spells it one way for old setuptools, one for new
        ext_modules=[Extension("torch_tiled._C", sources=[])],
        cmdclass={"build_ext": BuildObject, "bdist_wheel": AnyPythonWheel},
    )
