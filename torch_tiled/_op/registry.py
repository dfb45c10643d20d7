"""The kernels and the orders of summation, as csrc/select/kernels.def and ladder.cpp have them."""

import dataclasses
import functools
import json

import torch

from .namespace import operators

__all__ = ["Kernel", "Order", "family", "kernels", "orders"]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A row of csrc/select/kernels.def.

    Attributes:
        name: the kernel's.
        family: the name for the fastest kernel of several.
        order: the name of the order in which it sums.
        dtypes: the dtypes of operands that it takes.
        needs_hopper: whether it runs on Hopper GPUs alone, and on the CPU as its twin.
        min_k, max_k: the lengths of K that it takes, in real numbers; None if there is no limit.
        by_name_only: whether "auto" and other kernels' families leave it out.
        keeps_flagged: whether it can leave flagged elements NaN.
        reads_presplit_b: whether it leaves the split of a prepared B out.
        reads_complex_b: whether it reads a complex B in place.
    """

    name: str
    family: str
    order: str
    dtypes: tuple[torch.dtype, ...]
    needs_hopper: bool
    min_k: int
    max_k: int | None
    by_name_only: bool
    keeps_flagged: bool
    reads_presplit_b: bool
    reads_complex_b: bool


@dataclasses.dataclass(frozen=True)
class Order:
    """An order of summation (csrc/core/order_*.h).

    Attributes:
        name: "plain", "chunked", "fp16x3", "mma" or "tf32".
        chunk: a length of K, in real numbers; sums may be cut at its multiples. Or None.
        min_k, max_k: the lengths of K of these sums; others are in the chunked order.
        is_guarded: whether elements may be flagged, and are recomputed in the chunked order.
        first_total: the zero to which the first chunk is added. -0 leaves it as it is.
    """

    name: str
    chunk: int | None
    min_k: int
    max_k: int | None
    is_guarded: bool
    first_total: float


@functools.cache
def _tables():
    return json.loads(operators._registry())


@functools.cache
def kernels() -> dict[str, Kernel]:
    """The kernels by name, in the order of the ladder."""
    rows = {}
    for row in _tables()["kernels"]:
        dtypes = tuple(getattr(torch, x.removeprefix("torch.")) for x in row.pop("dtypes"))
        rows[row["name"]] = Kernel(**row, dtypes=dtypes)
    return rows


@functools.cache
def orders() -> dict[str, Order]:
    """The orders by name."""
    return {row["name"]: Order(**row) for row in _tables()["orders"]}


@functools.cache
def family(algorithm: str) -> tuple[Kernel, ...]:
    """The kernels that an algorithm names: one, or a family's. They have one order."""
    return tuple(x for x in kernels().values() if algorithm in (x.name, x.family))
