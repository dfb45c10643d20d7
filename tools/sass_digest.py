"""Digests the machine code of every kernel, to tell whether a change to the sources reached it.

    python tools/sass_digest.py torch_tiled/_C.so --write digest.json
    python tools/sass_digest.py torch_tiled/_C.so --against digest.json --renames renames.json
    python tools/sass_digest.py build/objects/csrc/kernels/*.o --against digest.json --some

A kernel is known by its architecture and its demangled name without namespaces. Its digest covers
its SASS without addresses, encodings, line information, and symbols; beside it stand its registers,
its stack in bytes, and how many instructions access local memory, which is where spills go. The
file of renames is a JSON object of identifiers, old to new, which are applied to the names of
`--against`. Exits with 1 where a kernel differs, is missing, or is new.

Needs cuobjdump, of the CUDA toolkit or of PyPI's nvidia-cuda-cuobjdump, and c++filt.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

Digests = dict[str, dict[str, dict]]  # by architecture, then by kernel


class DigestError(Exception):
    """What prevents a digest, in a sentence."""


def find_tool(name: str) -> str:
    """A tool on the PATH, in the usual toolkit's folder, or in PyPI's packages for CUDA."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    folders += map(str, Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise DigestError(f"{name} was not found; install the CUDA toolkit, or binutils.")
    return found


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Kernels' names as C++ has them, by their mangled ones."""
    mangled = sorted(set(names))
    if not mangled:
        return {}
    done = subprocess.run(
        [find_tool("c++filt"), "-p"], input="\n".join(mangled), capture_output=True, text=True
    )
    return dict(zip(mangled, map(without_namespaces, done.stdout.splitlines()), strict=True))


def without_namespaces(name: str) -> str:
    """A demangled name without namespaces, return types, or hashes of unnamed namespaces."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|_INTERNAL_\w+::", "", name)
    name = re.sub(r"\b[a-z_][a-z_0-9]*::(?=\w)", "", name)
    return name.removeprefix("void ")


def renamed(name: str, renames: dict[str, str]) -> str:
    """A name with its identifiers replaced, each as a whole."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: renames.get(found[0], found[0]), name)


def functions(lines: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Architecture, mangled name, and instructions of each function that cuobjdump prints."""
    arch, name, code = "", "", []
    for line in lines:
        if found := re.match(r"\s*(?:arch = |\.target\s+)(sm_\w+)", line):
            if name:
                yield arch, name, code
            arch, name, code = found[1], "", []
        elif found := re.match(r"\s*Function : (\S+)", line):
            if name:
                yield arch, name, code
            name, code = found[1], []
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;?\s*(/\*.*)?$", line):
            if name and found[1]:
                code.append(instruction(found[1]))
    if name:
        yield arch, name, code


def instruction(text: str) -> str:
    """An instruction without symbols, whose names hold hashes, and with single spaces."""
    return " ".join(re.sub(r"\S*\b_Z\w+\S*", "SYMBOL", text).rstrip(";").split())


def usage(binary: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Registers, and bytes of stack, by architecture and mangled name."""
    told = subprocess.run(
        [find_tool("cuobjdump"), "-res-usage", str(binary)], capture_output=True, text=True
    ).stdout
    found, arch = {}, ""
    pattern = r"^arch = (sm_\w+)|^ *Function (\S+):\n.*REG:(\d+) STACK:(\d+)"
    for match in re.finditer(pattern, told, re.MULTILINE):
        if match[1]:
            arch = match[1]
        else:
            found[arch, match[2]] = int(match[3]), int(match[4])
    return found


def digests_of(binaries: Iterable[Path]) -> Digests:
    """The digests of all kernels of object files or libraries."""
    rows = []
    for binary in binaries:
        resources = usage(binary)
        command = [find_tool("cuobjdump"), "-sass", str(binary)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for arch, name, code in functions(process.stdout):
                registers, stack = resources.get((arch, name), (0, 0))
                rows.append((arch, name, summary(code, registers, stack)))
    names = demangle(name for _, name, _ in rows)
    result: Digests = {}
    for arch, name, row in rows:
        kernels = result.setdefault(arch, {})
        kernel = names[name]
        if kernels.get(kernel, row) != row:
            raise DigestError(f"Two kernels of {arch} are called {kernel} and differ.")
        kernels[kernel] = row
    return {arch: dict(sorted(kernels.items())) for arch, kernels in sorted(result.items())}


def summary(code: list[str], registers: int, stack: int) -> dict:
    while code and code[-1] in ("NOP", "BRA 0x0"):  # what pads a function
        code = code[:-1]
    return {
        "sass": hashlib.sha256("\n".join(code).encode()).hexdigest()[:16],
        "instructions": len(code),
        "registers": registers,
        "stack": stack,
        "local": sum(re.search(r"\b(LDL|STL)\b", each) is not None for each in code),
    }


def differences(old: Digests, new: Digests, some: bool) -> list[str]:
    """A line for each kernel that is not the same; `some`: kernels may be missing in `new`."""
    lines = []
    for arch in sorted({*old, *new}):
        before, after = old.get(arch, {}), new.get(arch, {})
        lines += [f"new: {arch} {name}" for name in sorted({*after} - {*before})]
        if not some:
            lines += [f"missing: {arch} {name}" for name in sorted({*before} - {*after})]
        for name in sorted({*before} & {*after}):
            if before[name] != after[name]:
                parts = [
                    f"{key} {before[name][key]} -> {after[name][key]}"
                    for key in after[name]
                    if before[name][key] != after[name][key]
                ]
                lines.append(f"differs: {arch} {name}: {', '.join(parts)}")
    return lines


def apply_renames(digests: Digests, renames: dict[str, str]) -> Digests:
    return {
        arch: {renamed(name, renames): row for name, row in kernels.items()}
        for arch, kernels in digests.items()
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("binaries", nargs="+", type=Path, help="object files, or a library")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the digests there")
    parser.add_argument("--against", type=Path, metavar="PATH", help="compare with these")
    parser.add_argument("--renames", type=Path, metavar="PATH", help="identifiers, old to new")
    parser.add_argument("--some", action="store_true", help="compare those that there are alone")
    args = parser.parse_args(argv)
    try:
        digests = digests_of(args.binaries)
    except DigestError as error:
        print(error)
        return 1
    count = sum(map(len, digests.values()))
    print(f"{count} kernels of {', '.join(digests) or 'no architecture'}.")
    if args.write:
        args.write.write_text(json.dumps(digests, indent=1) + "\n")
    if not args.against:
        return 0
    renames = json.loads(args.renames.read_text()) if args.renames else {}
    old = apply_renames(json.loads(args.against.read_text()), renames)
    lines = differences(old, digests, args.some)
    print("\n".join(lines[:40]))
    print(f"{len(lines)} differences." if lines else "All are the same.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
