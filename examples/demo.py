"""Shows the point of torch_tiled: float32 products beside torch.matmul's.

    python examples/demo.py
    python examples/demo.py --device cpu

Two tables tell the time and the error of both, and how many rows of a product keep their bits when
other rows are multiplied beside them. PyTorch computes in IEEE float32, without TF32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from shared import Parser, Table
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


def milliseconds(product: Product, a: torch.Tensor, b: torch.Tensor, seconds: float) -> float:
    timer = Timer("product(a, b)", globals={"product": product, "a": a, "b": b})  # one thread
    return timer.blocked_autorange(min_run_time=seconds).median * 1e3


def error(product: Product, a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative Frobenius error of the first rows against float64."""
    exact = a[:CHECKED_ROWS].double() @ b.double()
    return ((product(a, b)[:CHECKED_ROWS] - exact).norm() / exact.norm()).item()


def equal_rows(product: Product, a: torch.Tensor, b: torch.Tensor, count: int) -> int:
    """How many of the first rows of a have the same bits in their product as among all rows."""
    return int((product(a[:count], b) == product(a, b)[:count]).all(dim=1).sum())


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    args = parser.parse_args(argv)
    plan = PLANS[torch.device(args.device).type]
    products = torch.matmul, partial(torch_tiled.matmul, algorithm=plan.algorithm)

    if args.device == "cpu":
        print(f"On a CPU auto is torch.matmul itself, so this asks for {plan.algorithm!r} by name.")
        print("A model of Hopper's tensor cores computes its bits: equal on a GPU, but slow here.")
    else:
        print(f"{torch.cuda.get_device_name(args.device)}, float32")

    print("\n                milliseconds            error against float64")
    columns = "m = n = k d", "torch 9.3f", "tiled 9.3f", "ratio 6.2f", "torch 9.1e", "tiled 9.1e"
    table = Table(*columns)
    for size in plan.sizes:
        a, b = torch.randn(2, size, size, device=args.device)
        errors = [error(product, a, b) for product in products]
        theirs, ours = (milliseconds(product, a, b, args.seconds) for product in products)
        table.add(size, theirs, ours, theirs / ours, *errors)

    k, n = plan.weight
    a, b = (torch.randn(*sides, device=args.device) for sides in ((plan.counts[-1], k), (k, n)))
    print(f"\nrows of a {tuple(a.shape)}, times b {tuple(b.shape)}: those that are equal to the")
    print("bit to the same rows of the whole product")
    table = Table("rows alone d", "torch 8d", "tiled 8d")
    for count in plan.counts:
        table.add(count, *(equal_rows(product, a, b, count) for product in products))
    explained = torch_tiled.explain(a, b, algorithm=plan.algorithm)
    print(f"\nThe whole product ran by {explained.algorithm}; torch_tiled.explain(a, b) tells why.")


if __name__ == "__main__":
    main()
