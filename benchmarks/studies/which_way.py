"""Times ways to multiply float32 matrices side by side, and measures their errors.

    python -m benchmarks.studies.which_way --json benchmarks/results/which_way.json
    python -m benchmarks.studies.which_way --sizes 256 --hard-size 256 --device cpu

The ways are cuBLAS in float32 and in TF32, a tuned Triton kernel for each input_precision that
splits float32 into parts, the algorithm presets of jax.lax.dot, and torch_tiled in its three
precisions. The results have two kinds of rows:

    speed  random normal operands: microseconds (median, p10, p90), TFLOP/s and errors by size
    hard   operands with a structure, of one size: errors, the share of elements that are not the
           exact result rounded, and for torch_tiled the share of flagged elements and the time

An error is relative Frobenius against float64. The componentwise error is the largest
|error| / (|a| |b|) of an element, in units of u = 2^-24. All ways but JAX's are replayed from CUDA
graphs, interleaved, on operands that are not in L2. A jitted call of JAX holds one product of each
set of operands; it is timed from the host, with cuBLAS timed so beside it. A way that cannot run
has rows that say why. The file is written anew after each stage, so that an interrupted run leaves
what it measured. On a CPU torch_tiled runs the algorithms that have the bits of a GPU.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

import torch_tiled
from benchmarks.command import Parser, Session, at_least, exit_with
from benchmarks.gemm import machine
from benchmarks.gemm.check import full_precision_peer
from benchmarks.gemm.measure import Operands, clock_name, operand_sets, side_by_side
from benchmarks.pages import files
from benchmarks.studies.hard_operands import HARD, hard_sets
from benchmarks.studies.jax_product import PRESETS as JAX
from benchmarks.studies.jax_product import Jax, NotRun
from benchmarks.suites.shapes import Shape

SIZES = (1024, 4096, 8192)
HARD_SIZE = 4096
SLAB_ROWS = 2048  # of the float64 product, at a time
U = 2.0**-24
# An algorithm on the CPU has the bits of its precision on a GPU.
OURS = {"fp32": "fp16x3", "ieee": "tiled", "tf32": "tf32"}
TRITON = ("bf16x3", "tf32x3", "bf16x6")
MOST_ERROR = 1e-3  # of a right product of normal operands in any of the ways

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Wrong(Exception):
    """A result that no rounding explains; the message says of which way."""


@dataclass(frozen=True)
class Way:
    name: str
    multiply: Product
    note: str = ""


def by_torch(precision: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with full_precision_peer(precision):
        return torch.matmul(a, b)


def ours(precision: str, device: torch.device) -> Way:
    algorithm = "auto" if device.type == "cuda" else OURS[precision]
    multiply = partial(torch_tiled.matmul, precision=precision, algorithm=algorithm)
    return Way(f"torch_tiled {precision}", multiply)


def ways_of_torch(device: torch.device) -> list[Way]:
    if device.type == "cpu":
        return [Way("torch.matmul", torch.matmul), *(ours(each, device) for each in OURS)]
    peers = {"cuBLAS SGEMM": "fp32", "cuBLAS TF32": "tf32"}
    return [
        *(Way(name, partial(by_torch, precision)) for name, precision in peers.items()),
        *(ours(each, device) for each in OURS),
    ]


# --- Triton --------------------------------------------------------------------------------------


class Triton:
    """The Triton kernel in every precision. Raises NotRun if it cannot run here."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise NotRun("Triton's kernels need a GPU")
        try:
            from benchmarks.studies import triton_product
        except ImportError as error:
            raise NotRun(f"{error.name} is not importable") from error
        self._product = triton_product
        triton_product.compile_all(TRITON, triton_product.TILES, os.cpu_count() or 1)

    def ways(self, sets: list[Operands]) -> list[Way]:
        """For each precision the kernel with its fastest tile for these operands."""
        found = []
        for precision in TRITON:
            tile = next(iter(self._product.tune(precision, sets, self._product.TILES)))
            multiply = partial(self._multiply, precision, tile)
            found.append(Way(f"Triton {precision}", multiply, str(tile)))
        return found

    def _multiply(self, precision: str, tile, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self._product.multiply(precision, tile, a.contiguous(), b.contiguous())


def host_us(calls: dict[str, Callable[[], object]], products: int, repeats: int) -> dict:
    """The microseconds of a product by the host's clock; each call has `products` and waits."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 1):  # the first round warms up
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if i:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) * 1e6 / products for name, each in seconds.items()}


# --- errors --------------------------------------------------------------------------------------


def errors(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> dict:
    """The errors of a product against float64, a slab of rows at a time."""
    squared = exact_squared = worst = 0.0
    inexact = 0
    wide_b, size_b = b.double(), b.double().abs()
    for rows, part in zip(a.split(SLAB_ROWS), result.split(SLAB_ROWS), strict=True):
        exact, size = rows.double() @ wide_b, rows.double().abs() @ size_b
        off = (part.double() - exact).abs()
        squared += off.square().sum().item()
        exact_squared += exact.square().sum().item()
        relative = torch.where(off == 0, 0.0, off / size)  # inf for an error beside zeros
        worst = max(worst, relative.max().item())
        inexact += int((part != exact.float()).sum())
    return {
        "error": (squared / exact_squared) ** 0.5,
        "componentwise_u": worst / U,
        "inexact": inexact / result.numel(),
    }


def flagged_share(precision: str, a: torch.Tensor, b: torch.Tensor, device) -> float:
    """The share of elements that torch_tiled flags and recomputes."""
    algorithm = "auto" if device.type == "cuda" else OURS[precision]
    facts = torch_tiled.explain(a, b, precision=precision, algorithm=algorithm)
    return facts.values.get("recomputed", 0) / (len(a) * b.shape[1])  # "ieee" flags nothing


# --- stages --------------------------------------------------------------------------------------


class Study:
    """The rows that are measured, and the file that they are written to."""

    def __init__(self, args: argparse.Namespace, header: dict) -> None:
        self.args, self.device = args, torch.device(args.device)
        self.results = {"header": header, "rows": []}
        self._start = time.monotonic()
        self._deadline = self._start + args.limit
        self.triton, self._no_triton = self._found(Triton)

    def _found(self, kind: type) -> tuple:
        """What computes in a way, and why there is none."""
        try:
            return kind(self.device), None
        except NotRun as error:
            return None, str(error)

    def add(self, **row) -> None:
        self.results["rows"].append(row)
        values = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items() if v}
        seconds = time.monotonic() - self._start
        print(f"{seconds:5.0f} s", *(f"{k}={v}" for k, v in values.items()), flush=True)

    def save(self) -> None:
        files.write(self.args.json, self.results)

    def ways(self, sets: list[Operands]) -> list[Way]:
        return ways_of_torch(self.device) + (self.triton.ways(sets) if self.triton else [])

    def sets(self, size: int) -> list[Operands]:
        return operand_sets(Shape(size, size, size), torch.float32, self.device)

    def _not_run(self, name: str, why: str, size: int) -> None:
        self.add(kind="speed", way=name, size=size, not_run=f"not run here: {why}")

    def speed(self, size: int) -> None:
        """Rows of normal operands by every way but JAX's."""
        sets = self.sets(size)
        ways = self.ways(sets)
        found = [errors(way.multiply(*sets[0]), *sets[0]) for way in ways]
        for way, each in zip(ways, found, strict=True):
            if not each["error"] < MOST_ERROR:
                raise Wrong(f"{way.name} errs by {each['error']:.3g} on normal operands")
        calls = [(way.multiply, sets) for way in ways]
        spreads = side_by_side(calls, seconds=self.args.seconds, repeats=self.args.repeats)
        for way, spread, each in zip(ways, spreads, found, strict=True):
            self.add(
                kind="speed",
                way=way.name,
                size=size,
                us=spread.median,
                p10=spread.p10,
                p90=spread.p90,
                tflops=2 * size**3 / spread.median / 1e6,
                clock=clock_name(self.device),
                note=way.note,
                **each,
            )
        if not self.triton:
            for precision in TRITON:
                self._not_run(f"Triton {precision}", self._no_triton, size)
        self.save()

    def hard(self, size: int) -> None:
        """Rows of every kind of operands, by every way but JAX's."""
        ways = self.ways(self.sets(size))
        count = 2 if self.device.type == "cpu" else len(self.sets(size))
        usual = hard_sets("normal", size, self.device, count)
        timed = [way for way in ways if way.name.startswith(("torch_tiled", "cuBLAS SGEMM"))]
        for kind in HARD:
            sets = hard_sets(kind, size, self.device, count)
            pairs = [(way.multiply, each) for way in timed for each in (sets, usual)]
            spreads = side_by_side(pairs, seconds=self.args.seconds / 2, repeats=self.args.repeats)
            us = {
                way.name: (here.median, normally.median)
                for way, here, normally in zip(timed, spreads[::2], spreads[1::2], strict=True)
            }
            for way in ways:
                self._hard_row(way.name, kind, sets[0], way.multiply(*sets[0]), us.get(way.name))
            self.save()

    def _hard_row(self, name: str, kind: str, pair: Operands, result, us=None) -> None:
        a, b = pair
        row = {"kind": "hard", "way": name, "operands": kind, "size": a.shape[0]}
        row |= errors(result, a, b)
        if kind == "a @ a.T":
            row["asymmetric"] = (result != result.mT).double().mean().item()
        if name.startswith("torch_tiled"):
            row["flagged"] = flagged_share(name.removeprefix("torch_tiled "), a, b, self.device)
        if us:
            row |= {"us": us[0], "normal_us": us[1]}
        self.add(**row)

    def by_jax(self, sizes: list[int], hard_size: int) -> None:
        """Rows of JAX's presets: speeds from the host beside cuBLAS, and errors.

        JAX begins when all else is done: it takes memory, and its compiler the GPU.
        """
        jax, why = self._found(Jax)
        for size in sorted(sizes, key=lambda size: (size != hard_size, size)):
            sets = self.sets(size)
            kinds = HARD if size == hard_size else ()
            hard = {kind: hard_sets(kind, size, self.device, 1) for kind in kinds}
            for preset in JAX:
                name = f"JAX {preset}"
                try:
                    if not jax:
                        raise NotRun(why)
                    if time.monotonic() > self._deadline:
                        raise NotRun("the time was over")
                    self._jax_speed(name, sets, jax, jax.compiled(preset, sets))
                    if hard:
                        compiled = jax.compiled(preset, hard["normal"])
                        for kind, ((a, b),) in hard.items():
                            (result,) = jax.finish(compiled(jax.arrays([(a, b.contiguous())])))
                            self._hard_row(name, kind, (a, b), torch.from_dlpack(result))
                except NotRun as error:
                    self._not_run(name, str(error), size)
            self.save()

    def _jax_speed(self, name: str, sets: list[Operands], jax: Jax, compiled) -> None:
        arrays, size = jax.arrays(sets), len(sets[0][0])

        def by_jax():
            return jax.finish(compiled(arrays))

        def by_peer():
            for pair in sets:
                result = by_torch("fp32", *pair)
            if result.is_cuda:
                torch.cuda.synchronize()

        us = host_us({name: by_jax, "peer": by_peer}, len(sets), self.args.repeats)
        self.add(
            kind="speed",
            way=name,
            size=size,
            us=us[name],
            peer_us=us["peer"],
            tflops=2 * size**3 / us[name] / 1e6,
            clock="host",
            **errors(torch.from_dlpack(by_jax()[0]), *sets[0]),
        )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.studies.which_way", __doc__)
    option = parser.add_argument
    option("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="m = n = k")
    option("--hard-size", type=int, default=HARD_SIZE, metavar="N", help="of the hard operands")
    option("--seconds", type=float, default=2.0, help="for the timings of each size")
    option("--repeats", type=at_least(1), default=5, help="the fewest passes of each way")
    option("--limit", type=float, default=180.0, help="no preset of JAX begins after these seconds")
    args = parser.parse_args(argv)
    step = 256 if args.device == "cuda" else 1  # every tile of Triton's divides it
    for size in (*args.sizes, args.hard_size):
        if size < step or size % step:
            parser.error(f"a size is {size}; it must be a multiple of {step}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    header = machine.describe(args)
    study = Study(args, header)
    with Session(args, header, study.save) as session:
        for size in args.sizes:
            study.speed(size)
        study.hard(args.hard_size)
        study.by_jax(args.sizes, args.hard_size)
    return session.status(False)


if __name__ == "__main__":
    exit_with(main)
