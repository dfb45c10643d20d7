"""The suites of complex64 and complex128."""

import dataclasses
from collections.abc import Iterable

from benchmarks.suites.shapes import Shape, Suite

LAYOUTS = ("NN", "NT", "TN")
WIDE = 4096  # K, and the long side of products of few rows or columns
FEW = (1, 16, 64)


def _products(odd: Iterable[Shape], largest: int) -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, group="squares to 512") for size in (64, 128, 256, 512)),
        *(
            Shape(size, size, size, layout=layout, group="squares from 1024")
            for size in (1024, 2048, 4096, 8192)
            for layout in LAYOUTS
            if size <= largest
        ),
        *(dataclasses.replace(shape, group="odd sizes") for shape in odd),
        *(
            Shape(m, WIDE, WIDE, layout=layout, group="few rows")
            for m in FEW
            for layout in ("NN", "NT")
        ),
        *(Shape(WIDE, n, WIDE, group="few columns") for n in FEW),
        Shape(64, 64, 65536, group="long K"),
        *(
            Shape(size, size, size, batch=batch, group="batches")
            for size, batch in ((8, 4096), (16, 4096), (32, 4096), (512, 64))
        ),
        # A gate on one qubit or on two, times a state of 20 qubits.
        *(Shape(size, 2**20 // size, size, group="states of circuits") for size in (2, 4)),
    )


def suites(odd: Iterable[Shape]) -> dict[str, Suite]:
    """The suites by name, with these products of odd sizes."""
    odd = tuple(odd)
    described = "squares, odd sizes, few rows or columns, long K, batches and states of circuits"
    return {
        "complex64": Suite(
            f"{described}, in complex64",
            _products(odd, 8192),
            precisions=("fp32", "ieee"),
            dtypes=("complex64",),
            copy=True,
        ),
        "complex128": Suite(
            f"{described}, in complex128",
            _products(odd, 4096),
            dtypes=("complex128",),
            copy=True,
        ),
        "complex_adjoint": Suite(
            "a's conjugate transpose times b, beside a's transpose",
            tuple(Shape(size, size, size, layout="TN") for size in (1024, 4096)),
            ("plain", "conjugated"),
            precisions=("fp32", "ieee"),
            dtypes=("complex64",),
        ),
    }
