"""The suites of float64: its products, and its kernels by name."""

import dataclasses
from collections.abc import Iterable

from benchmarks.suites.shapes import LAYOUTS, Shape, Suite

KERNELS = ("naive", "tiled64", "f64_direct", "f64_mma")


def _products(odd: Iterable[Shape]) -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, group="squares to 1024") for size in (128, 256, 512, 1024)),
        *(
            Shape(size, size, size, layout=layout, group="squares from 2048")
            for size in (2048, 4096, 8192, 16384)
            for layout in LAYOUTS
        ),
        *(dataclasses.replace(shape, group="odd sizes") for shape in odd),
        *(
            Shape(m, n, 4096, layout="NT", group="few rows")
            for m in (1, 4, 16, 64, 128)
            for n in (4096, 11008)
        ),
        *(Shape(*sizes, group="long K") for sizes in ((64, 64, 65536), (32, 32, 1_000_000))),
        *(
            Shape(size, size, size, batch=batch, group="batches")
            for size, batch in ((8, 10_000), (16, 10_000), (32, 10_000), (64, 4096), (512, 64))
        ),
    )


def suites(odd: Iterable[Shape], sizes: Iterable[int]) -> dict[str, Suite]:
    """The suites by name: with these products of odd sizes, and kernels on squares of these."""
    return {
        "float64": Suite(
            "squares in every layout, odd sizes, few rows, long K and batches, in float64",
            _products(odd),
            dtypes=("float64",),
            copy=True,
        ),
        "float64_kernels": Suite(
            "the kernels of float64 by name, on squares",
            tuple(Shape(size, size, size, kernels=KERNELS) for size in sizes),
            dtypes=("float64",),
        ),
    }
