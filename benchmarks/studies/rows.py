"""Times reductions of rows of a fixed order beside PyTorch's, forward and backward.

    python -m benchmarks.studies.rows
    python -m benchmarks.studies.rows --dtype bfloat16 --columns 768 4096 --rows 1 8192

Calls are captured in CUDA graphs with operands that rotate past L2, and are interleaved, as
benchmarks.gemm times products. The table has microseconds, medians, and PyTorch's time over ours;
then comes the geometric mean of each reduction. Norms have a weight, and layer norm a bias. On a
CPU, where PyTorch has no kernel for it, RMS norm is left out.
"""

import argparse
import functools
import math
from collections.abc import Callable

import torch

from benchmarks.command import DTYPES
from benchmarks.gemm.measure import count_sets, raise_clocks, side_by_side
from torch_tiled._op.namespace import operators

ROWS, COLUMNS = (1, 64, 4096, 65536), (64, 768, 4096, 65536)
MOST_ELEMENTS = 2**28
SECONDS = 0.05  # for a row of the table
EPS = 1e-5
aten = torch.ops.aten


def softmax(log: bool) -> tuple[Callable, Callable, Callable, Callable]:
    """Ours and PyTorch's, and the gradients from dy and y."""
    ours = functools.partial(operators._row_softmax.default, log=log)
    theirs = aten._log_softmax if log else aten._softmax
    gradient = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    return (
        lambda dy, x, *_: ours(x),
        lambda dy, x, *_: theirs(x, -1, False),
        lambda dy, y, *_: operators._row_softmax_backward.default(dy, y, log),
        lambda dy, y, *_: gradient(dy, y, -1, y.dtype),
    )


def norm(centered: bool) -> tuple[Callable, Callable, Callable, Callable]:
    """The same; the gradients are those of x, of the weight and, of a layer norm, the bias."""

    def ours(dy, x, w, b, *_):
        return operators._row_norm.default(x, w, b if centered else None, EPS, centered)

    def theirs(dy, x, w, b, *_):
        if centered:
            return aten.native_layer_norm(x, w.shape, w, b, EPS)
        return aten._fused_rms_norm(x, w.shape, w, EPS)

    def our_gradient(dy, x, w, b, mean, inverse):
        mean = mean if centered else mean[:0]
        needs = True, True, centered
        return operators._row_norm_backward.default(dy, x, w, mean, inverse, centered, *needs)

    def their_gradient(dy, x, w, b, mean, inverse):
        mean, inverse = mean[:, None], inverse[:, None]
        if centered:
            return aten.native_layer_norm_backward(
                dy, x, w.shape, mean, inverse, w, b, [True, True, True]
            )
        return aten._fused_rms_norm_backward(dy, x, w.shape, inverse, w, [True, True])

    return ours, theirs, our_gradient, their_gradient


def reduction(ours: Callable, theirs: Callable) -> tuple[Callable, Callable]:
    return lambda dy, x, *_: ours(x), lambda dy, x, *_: theirs(x)


REDUCTIONS = {
    "softmax": softmax(log=False),
    "log_softmax": softmax(log=True),
    "logsumexp": reduction(operators._row_logsumexp.default, lambda x: x.logsumexp(-1)),
    "sum": reduction(lambda x: operators._row_sum.default(x, False), lambda x: x.sum(-1)),
    "mean": reduction(lambda x: operators._row_sum.default(x, True), lambda x: x.mean(-1)),
    "cumsum": reduction(lambda x: operators._row_cumsum.default(x, False), lambda x: x.cumsum(-1)),
    "layer_norm": norm(centered=True),
    "rms_norm": norm(centered=False),
}


def operands(rows: int, columns: int, dtype: torch.dtype, device: str) -> list[tuple]:
    """Sets of dy, x (or y of softmax), weight, bias, mean and inverse deviation."""

    def make() -> tuple[torch.Tensor, ...]:
        dy, x = torch.randn(2, rows, columns, dtype=dtype, device=device)
        w, b = torch.randn(2, columns, dtype=dtype, device=device)
        wide = x if dtype == torch.float64 else x.float()
        variance, mean = torch.var_mean(wide, -1, correction=0)
        return dy, x, w, b, mean, (variance + EPS).rsqrt()

    count = count_sets(2 * rows * columns * dtype.itemsize, torch.device(device))
    return [make() for _ in range(count)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    raise_clocks(torch.device(options.device))
    print("| reduction | dtype | rows | columns | ours | PyTorch | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|")
    ratios = {}
    sizes = [(r, c) for r in options.rows for c in options.columns if r * c <= MOST_ELEMENTS]
    for dtype in options.dtype:
        for rows, columns in sizes:
            sets = operands(rows, columns, DTYPES[dtype], options.device)
            for name, calls in REDUCTIONS.items():
                if name == "rms_norm" and options.device == "cpu":
                    continue
                for which, pair in zip(("", ", gradient"), (calls[:2], calls[2:]), strict=True):
                    if not pair:
                        continue
                    both = [(call, sets) for call in pair]
                    ours, theirs = side_by_side(both, seconds=SECONDS, repeats=3)
                    ratio = theirs.median / ours.median
                    ratios.setdefault(f"{name}{which}", []).append(ratio)
                    times = f"{ours.median:.1f} | {theirs.median:.1f} | {ratio:.2f}"
                    row = f"| {name}{which} | {dtype} | {rows} | {columns} | {times} |"
                    print(row, flush=True)
    print("\n| reduction | mean ratio | least |\n|---|---:|---:|")
    for name, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"| {name} | {mean:.2f} | {min(found):.2f} |")


if __name__ == "__main__":
    main()
