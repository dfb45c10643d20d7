"""The kernels of the course as their sources have them: tiles, shared memory, banks.

csrc/kernels/basics has a file for each step, and a launcher for each kernel of the step. The
constants are those for float32, or for 16-bit floats if a kernel takes no others.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ROOT

FOLDER = ROOT / "csrc/kernels/basics"
SIZE = 4096  # m = n = k of what the study measures and the pages show
LAYOUTS = ("NN", "NT")
BANKS = 32  # of shared memory, each a word of 4 bytes wide
WARP = 32
SECTOR = 32  # bytes that L2 and DRAM read at once


@dataclass(frozen=True)
class Rung:
    """A kernel: its file, and the constants of its tile by name, such as kM."""

    name: str
    path: Path
    function: str  # the name of its __global__ function
    arguments: tuple[int, ...]  # of its tile's template
    constants: dict[str, int] = field(hash=False)
    # The dimensions of a_smem and b_smem in elements, by name, as they are declared.
    arrays: dict[str, tuple[str, ...]] = field(hash=False)
    itemsize: int = 4  # bytes of an element of A and B

    @property
    def step(self) -> int:
        return int(self.path.name[:2])

    @property
    def m(self) -> int:
        return self.constants["kM"]

    @property
    def n(self) -> int:
        return self.constants["kN"]

    @property
    def k(self) -> int:
        """The depth of a step along K; 1 for a kernel without shared memory."""
        return self.constants.get("kK", 1)

    @property
    def per(self) -> int:
        """The rows and the columns of C of a thread."""
        return self.constants.get("kPer", 1)

    @property
    def threads(self) -> int:
        return self.constants["kThreads"]

    @property
    def stages(self) -> int:
        """The tiles of each operand that shared memory holds at a time."""
        if not self.arrays:
            return self.constants.get("kStages", 0)
        *stages, _, _ = self.dimensions("a")
        return math.prod(stages)

    def dimensions(self, operand: str) -> tuple[int, ...]:
        """Of the array of operand "a" or "b" in shared memory."""
        return tuple(evaluate(each, self.constants) for each in self.arrays[operand])

    @property
    def shared_bytes(self) -> int:
        """What the tiles of A and B take of a block's shared memory."""
        if not self.arrays:
            return self.stages * (self.m + self.n) * self.k * self.itemsize
        return self.itemsize * sum(math.prod(self.dimensions(operand)) for operand in self.arrays)

    @property
    def reads(self) -> float:
        """Elements of A and B that are read from global memory for each FMA."""
        return 1 / self.m + 1 / self.n if self.stages else 2

    def place(self, operand: str, mn: int, k: int) -> int:
        """The word of an element in its tile: row mn of A or column mn of B, and step k."""
        *_, outer, _ = self.arrays[operand]
        *_, pitch = self.dimensions(operand)
        return k * pitch + mn if outer == "kK" else mn * pitch + k

    def wavefronts(self, operand: str, k_major: bool) -> int:
        """The wavefronts of the first store of a block's first warp, an element a lane: one for
        each word of the busiest bank."""
        side = self.k if k_major else (self.m if operand == "a" else self.n)
        along = ((lane % side, lane // side) for lane in range(WARP))
        places = (self.place(operand, *(x[::-1] if k_major else x)) for x in along)
        return max(words_by_bank(places).values())


def words_by_bank(words: Iterable[int]) -> dict[int, int]:
    """How many different words are in each bank."""
    return Counter(word % BANKS for word in set(words))


def evaluate(expression: str, constants: dict[str, int]) -> int:
    """The value of a constant expression in C++ of integers and of names in `constants`."""
    if not re.fullmatch(r"[\w\s+*/%()-]+", expression):
        raise ValueError(f"{expression} is no expression of integers.")
    return eval(expression.replace("/", "//"), {"__builtins__": {}}, dict(constants))


def _arguments(source: str, launcher: str) -> tuple[int, ...]:
    """The arguments of the Tile<...> that a launcher names, for float32; () without a template."""
    aliases = dict(re.findall(r"using (\w+)\s*=\s*(.*?);", source, re.DOTALL))
    text = launcher
    while not (found := re.findall(r"\bTile<([\d,\s]+)>", text)):
        named = [name for name in re.findall(r"\w+", text) if name in aliases]
        if not named:
            return ()
        text = " ".join(aliases.pop(name) for name in dict.fromkeys(named))
    # std::conditional_t has float32's tile after float64's.
    return tuple(map(int, found[-1].split(",")))


def _constants(source: str, arguments: tuple[int, ...]) -> dict[str, int]:
    """The static constants of the struct Tile, with these arguments of its template."""
    struct = r"(template <[^>]*>\n)?struct Tile \{(.*?)\n\};"
    head, body = re.search(struct, source, re.DOTALL).groups()
    names = re.findall(r"int (\w+)", head or "")
    known = dict(zip(names, arguments, strict=True))
    for line in re.findall(r"static constexpr int (.*?);", body, re.DOTALL):
        for name, value in re.findall(r"(\w+) = ([^,]+)", line):
            known[name] = evaluate(value, known)
    return known


def _rungs_of(path: Path) -> list[Rung]:
    source = path.read_text()
    arrays = {
        operand: tuple(re.findall(r"\[(?:Tile::)?(\w+)\]", declared))
        for operand, declared in re.findall(r"__shared__ .*?([ab])_smem(\[.*?);", source)
    }
    function = re.search(r"\b(\w+_kernel)\(const __grid_constant__", source)[1]
    launchers = re.findall(r"^bool launch_(\w+)\((.*?)^\}", source, re.DOTALL | re.MULTILINE)
    found = []
    for name, launcher in launchers:
        arguments = _arguments(source, launcher)
        constants = _constants(source, arguments)
        found.append(
            Rung(
                name,
                path,
                function,
                arguments,
                constants,
                arrays,
                itemsize=2 if "wgmma" in source else 4,
            )
        )
    return found


@functools.cache
def rungs() -> dict[str, Rung]:
    """The kernels by name, step by step."""
    every = [rung for path in sorted(FOLDER.glob("[0-9]*.cu")) for rung in _rungs_of(path)]
    return {rung.name: rung for rung in every}
