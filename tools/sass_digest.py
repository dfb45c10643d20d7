"""Digests the machine code of every kernel, to tell whether a change to the sources reached it.

    python tools/sass_digest.py torch_tiled/_C.so --write digest.json
    python tools/sass_digest.py torch_tiled/_C.so --against digest.json --renames renames.json
    python tools/sass_digest.py build/objects/csrc/kernels/*/*.o --against digest.json --some

A kernel is known by its architecture and its demangled name without namespaces; kernels of several
files that have one name then are a list. A digest covers the SASS without addresses, encodings,
line information, and symbols. Beside it stand the number of instructions, the registers, the bytes
of stack, and how many instructions access local memory, which is where spills go. The file of
renames is a JSON object of identifiers, old to new, which are applied to the names of `--against`.
Exits with 1 where a kernel differs, is missing, or is new.

Needs cuobjdump, of the CUDA toolkit or of PyPI's nvidia-cuda-cuobjdump, and c++filt.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

Row = tuple[str, int, int, int, int]  # SASS, instructions, registers, stack, local
COLUMNS = ("sass", "instructions", "registers", "stack", "local")
Digests = dict[str, dict[str, list[Row]]]  # by architecture, then by kernel


class DigestError(Exception):
    """What prevents a digest or a comparison, in a sentence."""


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
    done = subprocess.run(
        [find_tool("cuobjdump"), "-res-usage", str(binary)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise DigestError(f"cuobjdump cannot read {binary}: {done.stderr.strip()}")
    told = done.stdout
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
        found = result.setdefault(arch, {}).setdefault(names[name], [])
        if row not in found:
            found.append(row)
    return {
        arch: {name: sorted(found) for name, found in sorted(kernels.items())}
        for arch, kernels in sorted(result.items())
    }


def summary(code: list[str], registers: int, stack: int) -> Row:
    while code and code[-1] in ("NOP", "BRA 0x0"):  # what pads a function
        code = code[:-1]
    local = sum(re.search(r"\b(LDL|STL)\b", each) is not None for each in code)
    digest = hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]
    return digest, len(code), registers, stack, local


def differences(old: Digests, new: Digests, some: bool) -> list[str]:
    """A line for each kernel that is not the same; `some`: kernels may be missing in `new`."""
    lines = []
    for arch in sorted({*old, *new}):
        before, after = old.get(arch, {}), new.get(arch, {})
        for name in sorted({*before, *after}):
            gone = [row for row in before.get(name, []) if row not in after.get(name, [])]
            came = [row for row in after.get(name, []) if row not in before.get(name, [])]
            for was, now in itertools.zip_longest(gone, came):
                if was is None:
                    lines.append(f"new: {arch} {name}")
                elif now is not None:
                    lines.append(f"differs: {arch} {name}: {change(was, now)}")
                elif not some:
                    lines.append(f"missing: {arch} {name}")
    return lines


def change(old: Row, new: Row) -> str:
    pairs = zip(COLUMNS, old, new, strict=True)
    return ", ".join(f"{name} {was} -> {now}" for name, was, now in pairs if was != now)


def apply_renames(digests: Digests, renames: dict[str, str]) -> Digests:
    return {
        arch: {renamed(name, renames): list(map(tuple, rows)) for name, rows in kernels.items()}
        for arch, kernels in digests.items()
    }


def read(path: Path) -> dict:
    """The JSON object in a file of digests or renames."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise DigestError(f"{path} cannot be read: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise DigestError(f"{path} is not a JSON file: {error}.") from error


def written(digests: Digests) -> str:
    """JSON with a line for each kernel."""
    parts = []
    for arch, kernels in digests.items():
        lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in kernels.items()]
        parts.append(f"{json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


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
    count = sum(len(rows) for kernels in digests.values() for rows in kernels.values())
    if count == 0:
        print("There are no kernels in what was given.")
        return 1
    print(f"{count} kernels of {', '.join(digests)}.")
    if args.write:
        args.write.write_text(written(digests))
    if not args.against:
        return 0
    try:
        renames = read(args.renames) if args.renames else {}
        old = apply_renames(read(args.against), renames)
    except DigestError as error:
        print(error)
        return 1
    lines = differences(old, digests, args.some)
    print("\n".join(lines[:40]))
    print(f"{len(lines)} differences." if lines else "All are the same.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
