"""Runs a command that builds for another architecture: `make wheel ARCH=aarch64` runs it.

    python tools/portable/cross.py aarch64 python -m build --wheel

The command's environment names the cross compiler, CUDA's headers and the platform, from which
setup.py takes the architecture. nvcc takes it from the compiler that -ccbin names. The headers of
torch and CUDA are the same on both architectures, so those of this machine are used. The link finds
in build/aarch64/lib the two libraries that are not:

    libtorch_cpu.so       a stub with the functions of the stable ABI that torch exports here
    libcudart_static.a    from NVIDIA's wheel of CUDA's runtime, of nvcc's release
"""

import argparse
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STABLE_ABI = re.compile(r"\bT ((?:aoti_)?torch_[a-z0-9_]+)$", re.MULTILINE)


def fail(sentence: str) -> None:
    sys.exit(f"torch_tiled: {sentence}")


def find_compiler(arch: str) -> str:
    """The name of the cross compiler; exits with a sentence where there is none."""
    if (platform.machine(), arch) != ("x86_64", "aarch64"):
        fail(
            f"ARCH is {arch} on {platform.machine()}; wheels are cross compiled on x86_64 for "
            "aarch64 alone, so pass ARCH=aarch64 there, or no ARCH."
        )
    compiler = f"{arch}-linux-gnu-g++"
    if not shutil.which(compiler):
        fail(
            f"ARCH is {arch}, but there is no {compiler}; install it: apt install "
            f"g++-{arch}-linux-gnu."
        )
    return compiler


def output_of(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        fail(f"failed: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def write_torch_stub(compiler: str, folder: Path) -> None:
    """A libtorch_cpu.so for the linker, in which each function returns 0, which means success."""
    import torch

    exported = output_of("nm", "-D", "--defined-only", f"{torch.__path__[0]}/lib/libtorch_cpu.so")
    functions = [f"int {name}(void) {{ return 0; }}\n" for name in STABLE_ABI.findall(exported)]
    source, library = folder / "libtorch_cpu.c", folder / "libtorch_cpu.so"
    source.write_text("".join(functions))
    flags = ["-x", "c", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname={library.name}"]
    output_of(compiler.replace("g++", "gcc"), *flags, source, "-o", library)


def fetch_cuda_runtime(release: str, arch: str, folder: Path) -> None:
    library = folder / "libcudart_static.a"
    made_for = folder / "cuda_release"
    if library.exists() and made_for.exists() and made_for.read_text() == release:
        return
    package = f"nvidia-cuda-runtime=={release}.*"
    with tempfile.TemporaryDirectory() as downloads:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads)
        output_of(*pip, "--platform", f"manylinux2014_{arch}", "--only-binary", ":all:", package)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(library.name))
            library.write_bytes(archive.read(name))
    made_for.write_text(release)


def cuda_headers(nvcc: str) -> str:
    """The folders of CUDA's headers for this machine, which are those for others, too."""
    dryrun = output_of(nvcc, "--dryrun", "-x", "cu", os.devnull)
    folders = re.findall(r'"(?:-I|-isystem" ")([^"]+)"', dryrun)
    return ":".join(dict.fromkeys(folders))


def prepare(arch: str) -> dict[str, str]:
    """Writes build/<arch>/lib, and returns what the environment of the build has besides."""
    compiler = find_compiler(arch)
    folder = ROOT / "build" / arch / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    write_torch_stub(compiler, folder)
    environment = {"CXX": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{arch}"}
    setup = runpy.run_path(str(ROOT / "setup.py"))
    nvcc = setup["find_nvcc"]()
    if nvcc and os.environ.get("TORCH_TILED_CUDA") != "0":
        fetch_cuda_runtime(".".join(map(str, setup["release_of"](nvcc))), arch, folder)
        environment["CPLUS_INCLUDE_PATH"] = cuda_headers(nvcc)
    return environment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arch")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    environment = {**os.environ, **prepare(args.arch)}
    sys.exit(subprocess.run(args.command, env=environment).returncode)


if __name__ == "__main__":
    main()
