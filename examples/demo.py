"""Shows the point of torch_tiled: float32 products beside torch.matmul's.

    python examples/demo.py
    python examples/demo.py --device cpu

Two tables tell the time and the error of both, and how many rows of a product keep their bits when
other rows are multiplied beside them. PyTorch computes in IEEE float32, without TF32.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
from torch.utils.benchmark import Timer

import torch_tiled

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

CHECKED_ROWS = 256  # rows that are compared with float64


@dataclass(frozen=True)
class Plan:
    """The products that are shown on a device."""

    algorithm: str
    sizes: tuple[int, ...]  # m = n = k of the products that are timed
    weight: tuple[int, int]  # (k, n) of the operand that rows are multiplied by
    counts: tuple[int, ...]  # numbers of rows


PLANS = {
    "cuda": Plan(
        "auto",
        (1024, 2048, 4096, 8192),
        (4096, 4096),
        (1, 2, 3, 5, 8, 16, 33, 64, 100, 128, 256, 1000, 4096),
    ),
    "cpu": Plan("fp16x3", (128, 256), (300, 128), (1, 2, 3, 5, 8, 13, 21, 34, 64)),
}


@dataclass(frozen=True)
class Row:
    """A square product: milliseconds and errors, PyTorch's and ours."""

    size: int
    ms: tuple[float, float]
    errors: tuple[float, float]


def milliseconds(product: Product, a: torch.Tensor, b: torch.Tensor, seconds: float) -> float:
    timer = Timer("product(a, b)", globals={"product": product, "a": a, "b": b})  # one thread
    return timer.blocked_autorange(min_run_time=seconds).median * 1e3


def error(product: Product, a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative Frobenius error of the first rows against float64."""
    exact = a[:CHECKED_ROWS].double() @ b.double()
    return ((product(a, b)[:CHECKED_ROWS] - exact).norm() / exact.norm()).item()


def compare(products: tuple[Product, Product], size: int, device: str, seconds: float) -> Row:
    a, b = torch.randn(2, size, size, device=device)
    errors = tuple(error(product, a, b) for product in products)
    ms = tuple(milliseconds(product, a, b, seconds) for product in products)
    return Row(size, ms, errors)


def equal_rows(product: Product, a: torch.Tensor, b: torch.Tensor, count: int) -> int:
    """How many of the first rows of a have the same bits in their product as among all rows."""
    return int((product(a[:count], b) == product(a, b)[:count]).all(dim=1).sum())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    args = parser.parse_args(argv)
    device = torch.device(args.device).type
    if device not in PLANS:
        parser.error(f"--device is {args.device}; it must be cpu or cuda")
    plan = PLANS[device]
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    ours = partial(torch_tiled.matmul, algorithm=plan.algorithm)
    products = torch.matmul, ours

    if device == "cuda":
        print(f"{torch.cuda.get_device_name(args.device)}, float32")
    else:
        print(
            f"On a CPU auto is torch.matmul itself, so this asks for algorithm={plan.algorithm!r}."
        )
        print("A model of Hopper's tensor cores computes its bits: equal on a GPU, but slow here.")

    print("\n               milliseconds               error against float64")
    print("m = n = k     torch     tiled   ratio       torch     tiled")
    for size in plan.sizes:
        row = compare(products, size, args.device, args.seconds)
        print(
            f"{size:9}  {row.ms[0]:8.3f}  {row.ms[1]:8.3f}  {row.ms[0] / row.ms[1]:6.2f}"
            f"     {row.errors[0]:7.1e}   {row.errors[1]:7.1e}"
        )

    k, n = plan.weight
    a, b = (
        torch.randn(plan.counts[-1], k, device=args.device),
        torch.randn(k, n, device=args.device),
    )
    print(
        f"\nrows of a {tuple(a.shape)}, times b {tuple(b.shape)}: those that are equal to the bit"
    )
    print("to the same rows of the whole product")
    print("rows alone     torch     tiled")
    for count in plan.counts:
        same = [equal_rows(product, a, b, count) for product in products]
        print(f"{count:10}  {same[0]:8}  {same[1]:8}")
    explained = torch_tiled.explain(a, b, algorithm=plan.algorithm)
    print(f"\nThe whole product ran by {explained.algorithm}; torch_tiled.explain(a, b) tells why.")


if __name__ == "__main__":
    main()
