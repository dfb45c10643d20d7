"""Finds rows in results."""

import math
from collections.abc import Iterable

import torch

# The kinds of products: the dtype and the precisions of their rows.
FLOAT32, BFLOAT16 = ("float32", ("fp32", "ieee")), ("bfloat16", ("fp32",))
TF32, FLOAT64 = ("float32", ("tf32",)), ("float64", ("fp32",))


def select(rows: Iterable[dict], **wanted) -> list[dict]:
    """The rows that have these values."""
    return [row for row in rows if wanted.items() <= row.items()]


def is_square(row: dict) -> bool:
    """True for a plain product of one matrix with m = n = k."""
    plain = row["batch"] == 1 and row["variant"] == "plain"
    return plain and row["m"] == row["n"] == row["k"]


def squares(
    rows: Iterable[dict], algorithm: str, dtype: str = "float32", precision: str = "fp32"
) -> dict[int, dict]:
    """The row-major squares of an algorithm whose size is a power of 2, by size."""
    wanted = {"algorithm": algorithm, "dtype": dtype, "precision": precision, "layout": "NN"}
    found = [row for row in select(rows, **wanted) if is_square(row)]
    first = {row["m"]: row for row in reversed(found) if row["m"] & (row["m"] - 1) == 0}
    return dict(sorted(first.items()))


def kernels() -> dict:
    """The kernels by name, in the order of the ladder."""
    from torch_tiled._op import registry  # not above: the site is made without the library

    return registry.kernels()


def kind(kernel: str) -> tuple[str, tuple[str, ...]]:
    """The dtype and the precisions of a kernel's rows."""
    row = kernels()[kernel]
    if row.order == "tf32":
        return TF32
    every = FLOAT32, FLOAT64, BFLOAT16
    return next(kind for kind in every if getattr(torch, kind[0]) in row.dtypes)


def of_kernel(rows: Iterable[dict], kernel: str) -> list[dict]:
    """The rows that a kernel ran, by name or picked by `auto`, those by name first."""
    dtype, precisions = kind(kernel)
    found = [
        row for row in select(rows, kernel=kernel, dtype=dtype) if row["precision"] in precisions
    ]
    return sorted(found, key=lambda row: row["algorithm"] != kernel)


def kernel_squares(rows: Iterable[dict], kernel: str) -> dict[int, dict]:
    """The row-major squares that a kernel ran, by size."""
    found = [row for row in of_kernel(rows, kernel) if is_square(row) and row["layout"] == "NN"]
    return {row["m"]: row for row in reversed(found)}


def peer_tflops(row: dict) -> float:
    return row["tflops"] / row["ratio"]


def mean(values: Iterable[float]) -> float | None:
    """The geometric mean, or None if there is no value."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def mean_and_spread(rows: list[dict]) -> str:
    """The ratios of these rows: the mean, and the least and the most if there are several."""
    if not rows:
        return "-"
    ratios = [row["ratio"] for row in rows]
    return f"{mean(ratios):.2f}" + (f", {spread(ratios)}" if len(rows) > 1 else "")


def spread(values: list[float], form: str = ".2f") -> str:
    """The least and the most of some values, or one number if both look the same."""
    least, most = f"{min(values):{form}}", f"{max(values):{form}}"
    return least if least == most else f"{least} to {most}"
