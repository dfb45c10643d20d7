"""Measures how long the host takes for a call of PyTorch's and of torch_tiled's, alternately.

    python -m benchmarks.suites.host --json benchmarks/results/host.json
    python -m benchmarks.suites.host --small --device cpu

A turn is a few calls, between which nothing waits for the GPU and after which all does, so that the
GPU's time does not count. The process stays on one core of the CPU. A row has the least and the
median time of a call over all turns, in microseconds. PyTorch computes in IEEE float32.
"""

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

import torch_tiled
from benchmarks.command import DTYPES, Parser, Session, at_least, exit_with
from benchmarks.gemm import machine
from benchmarks.pages import files

Call = Callable[[], object]
WARM_SECONDS = 1.0  # until the core has its clock
CALLS = {8: 100, 1024: 30, 2048: 30, 4096: 20}  # of a turn, by size: fewer than the GPU can queue


@dataclass(frozen=True)
class Contest:
    """A way of calling, and what it is compared with."""

    name: str
    peer_name: str
    ours: Call
    peer: Call


def contests(size: int, dtype: torch.dtype, device: str) -> Iterator[Contest]:
    """The ways to multiply two squares of this size."""
    make = partial(torch.randn, size, size, device=device, dtype=dtype)
    a, b, c = make(), make(), make()
    yield Contest(
        "torch_tiled.matmul",
        "torch.matmul",
        lambda: torch_tiled.matmul(a, b),
        lambda: torch.matmul(a, b),
    )
    if size > 8:
        return
    yield Contest(
        "torch.ops.tiled.matmul",
        "torch.mm",
        lambda: torch.ops.tiled.matmul(a, b),
        lambda: torch.mm(a, b),
    )
    yield Contest(
        "torch_tiled.matmul, out=",
        "torch.mm, out=",
        lambda: torch_tiled.matmul(a, b, out=c),
        lambda: torch.mm(a, b, out=c),
    )
    yield Contest(
        "torch_tiled.gemm_",
        "Tensor.addmm_",
        lambda: torch_tiled.gemm_(c, a, b, beta=0.5),
        lambda: c.addmm_(a, b, beta=0.5),
    )
    if dtype in (torch.float32, torch.bfloat16):
        yield from of_groups(a, device)
    if dtype == torch.float32:
        yield from of_models(a, b, device)
        yield from of_convolutions(device)


def ten_under_override(name: str, call: Call) -> Contest:
    """Ten calls of one function of PyTorch's, in a statement of override and without."""

    def ten():
        for _ in range(10):
            call()

    def overridden():
        with torch_tiled.override():
            ten()

    return Contest(f"{name} under override, ten calls", f"{name}, ten calls", overridden, ten)


def of_groups(rows: torch.Tensor, device: str) -> Iterator[Contest]:
    """Two groups of four rows, beside PyTorch's grouped product and a plain product of ours."""
    weights = torch.randn(2, 8, 8, device=device, dtype=rows.dtype)
    weight = weights[0]
    offs, ptr = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([4, 8], [0, 4, 8]))

    def grouped():
        return torch_tiled.grouped_mm(rows, weights, offs=offs)

    def segments():
        return torch_tiled.segment_matmul(rows, ptr, weights)

    def plain():
        return torch_tiled.matmul(rows, weight)

    def by_torch():
        return F.grouped_mm(rows, weights, offs=offs)

    yield Contest("torch_tiled.grouped_mm", "F.grouped_mm", grouped, by_torch)
    yield Contest("torch_tiled.grouped_mm", "torch_tiled.matmul", grouped, plain)
    yield Contest("torch_tiled.segment_matmul", "torch_tiled.matmul", segments, plain)


def of_convolutions(device: str) -> Iterator[Contest]:
    """Pointwise convolutions of one image of 2 x 2 pixels and 8 channels, without gradients."""
    weight = torch.randn(8, 8, 1, 1, device=device)
    layer, converted = (torch.nn.Conv2d(8, 8, 1, device=device) for _ in range(2))
    torch_tiled.convert(converted)
    image = torch.randn(1, 8, 2, 2, device=device)
    yield ten_under_override("F.conv2d", lambda: F.conv2d(image, weight))
    for name, x in (("", image), (", channels_last", image.to(memory_format=torch.channels_last))):
        yield Contest(
            f"converted nn.Conv2d{name}",
            "nn.Conv2d",
            torch.no_grad()(partial(converted, x)),
            torch.no_grad()(partial(layer, x)),
        )


def of_models(a: torch.Tensor, b: torch.Tensor, device: str) -> Iterator[Contest]:
    """Calls with a gradient, of layers and under override."""
    yield ten_under_override("torch.mm", lambda: torch.mm(a, b))
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()

    def step(multiply: Callable) -> None:
        x.grad = y.grad = None
        multiply(x, y).backward(a)

    yield Contest(
        "torch_tiled.matmul, forward and backward",
        "torch.mm, forward and backward",
        lambda: step(torch_tiled.matmul),
        lambda: step(torch.mm),
    )
    yield Contest(
        'torch_tiled.matmul, precision="ieee"',
        "torch.matmul",
        lambda: torch_tiled.matmul(a, b, precision="ieee"),
        lambda: torch.matmul(a, b),
    )
    for name, features, mode in (
        ("no_grad", 64, torch.no_grad),
        ("with gradients", 64, contextlib.nullcontext),
        ("frozen, no_grad", 256, torch.no_grad),  # a frozen layer splits weights from K = 128 on
    ):
        ours = torch_tiled.nn.Linear(features, features, device=device)
        if "frozen" in name:
            torch_tiled.freeze(ours)

        rows = torch.randn(8, features, device=device)

        def under(layer, mode=mode, rows=rows):
            with mode():
                return layer(rows)

        yield Contest(
            f"torch_tiled.nn.Linear, {name}",
            f"torch.nn.Linear, {name.removeprefix('frozen, ')}",
            partial(under, ours),
            partial(under, torch.nn.Linear(features, features, device=device)),
        )


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def turn(call: Call, calls: int, device: str) -> float:
    """Microseconds of a call."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measured(contest: Contest, calls: int, turns: int, device: str) -> dict:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for call, each in zip((contest.ours, contest.peer), times, strict=True):
            each.append(turn(call, calls, device))
    synchronize(device)
    (us, median), (peer_us, peer_median) = ((min(x), statistics.median(x)) for x in times)
    return {
        "call": contest.name,
        "peer": contest.peer_name,
        "us": us,
        "peer_us": peer_us,
        "ratio": peer_us / us,
        "us_median": median,
        "peer_us_median": peer_median,
    }


def jobs(small: bool) -> Iterator[tuple[int, str]]:
    for dtype in ("float32", "bfloat16", "float64", "complex64"):
        yield 8, dtype
    if not small:
        for size in (1024, 2048, 4096):
            for dtype in ("float32", "bfloat16"):
                yield size, dtype


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps the process on one of its cores, by which a call's time varies less."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def warm(call: Call, seconds: float, device: str) -> None:
    """Calls until the core has its clock, and once at least."""
    end = time.perf_counter() + seconds
    turn(call, 1, device)
    while time.perf_counter() < end:
        turn(call, 1, device)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.suites.host", __doc__)
    parser.add_argument("--small", action="store_true", help="the smallest products alone")
    parser.add_argument("--turns", type=at_least(1), default=60, help="of each call")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    results = {"header": machine.describe(args), "rows": []}
    torch.set_float32_matmul_precision("highest")
    seconds = 0 if args.small else WARM_SECONDS
    with (
        one_core(),
        Session(args, results["header"], partial(files.write, args.json, results)) as session,
    ):
        for size, dtype in jobs(args.small):
            for contest in contests(size, DTYPES[dtype], args.device):
                warm(contest.peer, seconds, args.device)
                row = measured(contest, CALLS[size], args.turns, args.device)
                results["rows"].append({"dtype": dtype, "size": size} | row)
                print(
                    f"{size:5} {dtype:10} {row['call']:42} {row['us']:6.2f} us, {row['peer']}"
                    f" {row['peer_us']:6.2f} us, ratio {row['ratio']:.2f}"
                    f" (medians {row['us_median']:.2f}, {row['peer_us_median']:.2f})",
                    flush=True,
                )
    return session.status(failed=False)


if __name__ == "__main__":
    exit_with(main)
