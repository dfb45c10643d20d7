"""Times what layers ask for beside PyTorch: mixed operands, pointwise convolutions, groups.

    python -m benchmarks.suites.layers --json benchmarks/results/layers.json
    python -m benchmarks.suites.layers --small --device cpu

The suite `mixed` multiplies bfloat16 by float32, where PyTorch upcasts and multiplies in IEEE
float32; its heads compute float32 logits of bfloat16 activations, beside PyTorch's bfloat16
product. The suite `pointwise` calls torch.nn.functional.conv2d with a kernel of 1, under
torch_tiled.override() and without, where cuDNN runs its fastest algorithm without TF32. The suite
`grouped` has groups of equal sizes and of sizes by Zipf's law; its peer is
torch.nn.functional.grouped_mm in bfloat16, and torch.mm for each group in float32, where
grouped_mm reads offs on the host. Functions are timed as benchmarks.gemm times products, and
errors are relative Frobenius against float64.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

import torch_tiled
from benchmarks.command import DTYPES, Parser, Session, exit_with
from benchmarks.gemm import machine
from benchmarks.gemm.check import full_precision_peer
from benchmarks.gemm.measure import MOST_SETS, Operands, Product, cache_bytes, side_by_side
from benchmarks.pages import files

SECONDS = 0.3  # for a row
GROUPS = ((64, 1024, 256, 256), (64, 1024, 128, 128), (256, 64, 128, 128), (8, 4096, 1024, 1024))
ROUTERS = tuple((m, 256, k) for m in (1, 16, 64) for k in (7168, 6144))
SLAB = 2**26  # elements of a float64 result that are checked


@dataclass(frozen=True)
class Contest:
    suite: str
    what: str
    ours: Product
    peer: Product
    sets: list[Operands]
    flops: int
    exact: Product  # in float64, of the first rows of the first operand


def operands(make, device: torch.device) -> list[Operands]:
    """As many pairs as L2 does not hold."""
    first = make()
    moved = sum(x.numel() * x.itemsize for x in first)
    count = min(MOST_SETS, max(2, 4 * cache_bytes(device) // moved))
    return [first, *(make() for _ in range(count - 1))]


# --- mixed ---------------------------------------------------------------------------------------


def by_upcast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()


def exactly(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def mixed(device: torch.device, small: bool) -> Iterator[Contest]:
    normal = partial(torch.randn, device=device)

    def stored(rows: int, columns: int, letter: str, dtype: torch.dtype) -> torch.Tensor:
        if letter == "N":
            return normal(rows, columns, dtype=dtype)
        return normal(columns, rows, dtype=dtype).mT

    def contest(what: str, m: int, n: int, k: int, layout: str) -> Contest:
        def make() -> Operands:
            a = stored(m, k, layout[0], torch.bfloat16)
            return a, stored(k, n, layout[1], torch.float32)

        sets, flops = operands(make, device), 2 * m * n * k
        return Contest("mixed", what, torch_tiled.matmul, by_upcast, sets, flops, exactly)

    for size in (64,) if small else (4096, 8192):
        for layout in ("NN", "NT", "TN", "TT"):
            yield contest(f"{size} cubed {layout}", size, size, size, layout)
    for m, n, k in () if small else ROUTERS:
        yield contest(f"router {m} x {n} x {k}", m, n, k, "NT")
    tokens, width, words = (16, 32, 64) if small else (8192, 4096, 151_936)

    def make_head() -> Operands:
        weight = normal(words, width, dtype=torch.bfloat16)
        return normal(tokens, width, dtype=torch.bfloat16), weight.mT

    yield Contest(
        "mixed",
        f"float32 logits, {tokens} x {words} x {width}",
        partial(torch_tiled.matmul, out_dtype=torch.float32),
        torch.matmul,
        operands(make_head, device),
        2 * tokens * words * width,
        exactly,
    )


# --- pointwise -----------------------------------------------------------------------------------


def by_override(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch_tiled.override():
        return F.conv2d(x, weight)


def exactly_pointwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.double(), weight.double())


def pointwise(device: torch.device, small: bool) -> Iterator[Contest]:
    formats = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
    images, channels, sides = (2, (8,), (5,)) if small else (32, (64, 128, 256, 512), (28, 56))
    for c, side, (name, layout) in itertools.product(channels, sides, formats.items()):

        def make() -> Operands:
            x = torch.randn(images, c, side, side, device=device)  # noqa: B023
            return x.to(memory_format=layout), torch.randn(c, c, 1, 1, device=device)  # noqa: B023

        yield Contest(
            "pointwise",
            f"{images} x {c} x {side} x {side}, {name}",
            by_override,
            F.conv2d,
            operands(make, device),
            2 * images * side**2 * c**2,
            exactly_pointwise,
        )


# --- grouped -------------------------------------------------------------------------------------


def ends(groups: int, rows: int, law: str, device: torch.device) -> torch.Tensor:
    """Where groups of these rows together end: of equal sizes, or the g-th of size 1 / g."""
    share = 1 / torch.arange(1, groups + 1, dtype=torch.float64)
    if law == "equal":
        share = torch.ones(groups, dtype=torch.float64)
    return (share.cumsum(0) / share.sum() * rows).round().to(torch.int32).to(device)


def for_each_group(bounds: list[int], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = a.new_empty(a.shape[0], b.shape[-1])
    for group, (begin, end) in enumerate(itertools.pairwise([0, *bounds])):
        torch.mm(a[begin:end], b[group], out=c[begin:end])
    return c


def exactly_grouped(bounds: list[int], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return for_each_group(bounds, a.double(), b.double())


def by_torch(dtype: str, offs: torch.Tensor, bounds: list[int]) -> Product:
    if dtype == "float32":
        return partial(for_each_group, bounds)
    return partial(F.grouped_mm, offs=offs)


def grouped(device: torch.device, small: bool) -> Iterator[Contest]:
    cases = itertools.product(
        ((4, 16, 24, 32),) if small else GROUPS,
        ("float32", "bfloat16"),
        ("equal", "Zipf"),
        ("NN", "NT"),
    )
    for (groups, m, n, k), dtype, law, layout in cases:
        rows = groups * m
        offs = ends(groups, rows, law, device)
        bounds = offs.tolist()

        def make() -> Operands:
            normal = partial(torch.randn, device=device, dtype=DTYPES[dtype])  # noqa: B023
            weight = normal(groups, k, n) if layout == "NN" else normal(groups, n, k).mT  # noqa: B023
            return normal(rows, k), weight  # noqa: B023

        yield Contest(
            "grouped",
            f"{groups} of ({m}, {n}, {k}), {dtype}, {law}, {layout}",
            partial(torch_tiled.grouped_mm, offs=offs),
            partial(for_each_group, bounds)
            if dtype == "float32"
            else partial(F.grouped_mm, offs=offs),
            operands(make, device),
            2 * rows * n * k,
            partial(exactly_grouped, bounds),
        )


# --- the command ---------------------------------------------------------------------------------


def error(c: torch.Tensor, exact: torch.Tensor) -> float:
    return ((c.double() - exact).norm() / exact.norm()).item()


def measured(contest: Contest) -> dict:
    a, b = contest.sets[0]
    ours, peer = side_by_side(
        [(contest.ours, contest.sets), (contest.peer, contest.sets)], seconds=SECONDS, repeats=3
    )
    row = {"suite": contest.suite, "what": contest.what, "us": ours.median, "p10": ours.p10}
    row |= {"p90": ours.p90, "peer_us": peer.median, "ratio": peer.median / ours.median}
    row["tflops"] = contest.flops / ours.median / 1e6
    c = contest.ours(a, b)
    if c.numel() <= SLAB:
        exact = contest.exact(a, b)
        row |= {"error": error(c, exact), "peer_error": error(contest.peer(a, b), exact)}
    return row


SUITES = {"mixed": mixed, "pointwise": pointwise, "grouped": grouped}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.suites.layers", __doc__)
    parser.add_argument("--suite", choices=SUITES, nargs="+", default=list(SUITES))
    parser.add_argument("--small", action="store_true", help="small shapes alone")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    device = torch.device(args.device)
    results = {"header": machine.describe(args), "rows": []}
    write = partial(files.write, args.json, results)
    with full_precision_peer("fp32"), Session(args, results["header"], write) as session:
        for suite in args.suite:
            for contest in SUITES[suite](device, args.small):
                row = measured(contest)
                results["rows"].append(row)
                errors = (f"{row[x]:.1e}" for x in ("error", "peer_error") if x in row)
                print(
                    f"{suite:8} {row['what']:44} {row['us']:8.1f} us {row['tflops']:6.1f} TFLOP/s,"
                    f" peer {row['peer_us']:8.1f} us, ratio {row['ratio']:5.2f}, errors",
                    *errors,
                    flush=True,
                )
    return session.status(failed=False)


if __name__ == "__main__":
    exit_with(main)
