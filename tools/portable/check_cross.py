"""Checks a wheel that was built for another architecture, as far as this machine can.

    python tools/portable/check_cross.py aarch64 dist/aarch64/torch_tiled-*.whl

Its tag, and the symbols that its library takes, are read. Then product_bits.cpp is compiled for
both architectures, from the sources and with the flags of the library. Where qemu-user is there, it
loads the library of the wheel, beside the stub of torch that it was linked with, and its products
must have the same bits as here. No kernel for the GPU runs.
"""

import argparse
import os
import re
import runpy
import shutil
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cross import ROOT, fail, find_compiler, output_of

OLDEST_GLIBC = 2, 28
NEWEST_GCC = 4, 2, 0  # libgcc_s, whose symbols have been there since 2004
NEEDED = {"libtorch_cpu", "libgcc_s", "libc", "libm", "libpthread", "libdl", "librt", "ld-linux"}


def check_library(library: Path, arch: str) -> None:
    """Exits with a sentence unless systems of that architecture with glibc 2.28 load the file."""
    text = output_of("readelf", "--wide", "--file-header", "--dynamic", "--dyn-syms", library)
    if re.search(r"Machine: +(\w+)", text)[1].lower() != arch:
        fail(f"{library.name} is for another architecture than {arch}.")
    exported = re.findall(r"(?:GLOBAL|WEAK) +DEFAULT +\d+ (\S+)", text)
    if exported:
        fail(f"{library.name} exports {len(exported)} symbols, such as {exported[0]}.")
    newest = {"GLIBC": OLDEST_GLIBC, "GCC": NEWEST_GCC}
    taken = {}
    for name, version in set(re.findall(r" UND \w+@+([A-Z]+)_([\d.]+)", text)):
        numbers = tuple(map(int, version.split(".")))
        taken[name] = max(taken.get(name, ()), numbers)
        if numbers > newest.get(name, ()):
            fail(f"{library.name} takes symbols of {name}_{version}, too new for its tag.")
    libraries = {re.split(r"\.so|-linux", x)[0] for x in re.findall(r"NEEDED.*\[(.+)\]", text)}
    others = libraries - NEEDED - {"ld"}
    if others:
        fail(f"{library.name} needs {', '.join(sorted(others))}.")
    versions = ", ".join(f"{name}_{'.'.join(map(str, taken[name]))}" for name in sorted(taken))
    print(f"{library.name}: {library.stat().st_size / 1e6:.1f} MB, newest symbols: {versions}")


def compile_product_bits(compiler: str, program: Path) -> Path:
    setup = runpy.run_path(str(ROOT / "setup.py"))
    flags = [*setup["COMMON_FLAGS"], *setup["HOST_FLAGS"], f"-I{ROOT / 'csrc'}"]
    sources = [Path(__file__).with_name("product_bits.cpp")]
    sources += [
        x for folder in ("core", "cpu", "select") for x in ROOT.glob(f"csrc/{folder}/*.cpp")
    ]
    output_of(compiler, *flags, *sources, "-o", program)
    return program


def compare_products(library: Path, arch: str, compiler: str, folder: Path) -> None:
    """Loads the library and compares products under qemu, or says why not."""
    with ThreadPoolExecutor() as pool:
        compilers = (os.environ.get("CXX", "g++"), compiler)
        programs = (folder / "product_bits", folder / f"product_bits_{arch}")
        here, there = pool.map(compile_product_bits, compilers, programs)
    qemu = shutil.which(f"qemu-{arch}") or shutil.which(f"qemu-{arch}-static")
    if not qemu:
        print(
            "torch_tiled: the library was not loaded and no product was computed, since there is "
            f"no qemu-{arch}; install it: apt install qemu-user."
        )
        return
    libc = Path(output_of(compiler, "-print-file-name=libc.so.6").strip()).resolve()
    system = libc.parent.parent  # has lib, with the loader
    stub = ROOT / "build" / arch / "lib"
    expected = output_of(here).splitlines()
    start = time.perf_counter()
    emulator = (qemu, "-L", system, "-E", f"LD_LIBRARY_PATH={stub}")
    found = output_of(*emulator, there, library).splitlines()
    seconds = time.perf_counter() - start
    different = [pair for pair in zip(expected, found, strict=True) if len(set(pair)) > 1]
    if different:
        fail(
            f"{len(different)} of {len(expected)} products have other bits under qemu than here, "
            "such as\n{}\n{}".format(*different[0])
        )
    print(f"under qemu the library loads, and {len(found)} lines are the same ({seconds:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arch")
    parser.add_argument("wheel", type=Path)
    args = parser.parse_args()
    compiler = find_compiler(args.arch)
    if not args.wheel.is_file():
        fail(f"there is no {args.wheel}; build it: make wheel ARCH={args.arch}.")
    if not re.fullmatch(
        rf"torch_tiled-.+-py3-none-manylinux_2_28_{args.arch}\.whl", args.wheel.name
    ):
        fail(f"{args.wheel.name} must have the tag py3-none-manylinux_2_28_{args.arch}.")
    print(f"{args.wheel.name}: {args.wheel.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(args.wheel) as archive:
            library = Path(archive.extract("torch_tiled/_C.so", folder))
        check_library(library, args.arch)
        compare_products(library, args.arch, compiler, Path(folder))


if __name__ == "__main__":
    main()
