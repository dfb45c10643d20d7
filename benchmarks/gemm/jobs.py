"""The measurements that a command line asks for."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch_tiled
from benchmarks.command import DTYPES
from benchmarks.gemm.check import reference
from benchmarks.gemm.means import asked
from benchmarks.suites.shapes import IN_PRECISIONS, Shape, Suite


@dataclass(frozen=True)
class Job:
    """One row to measure."""

    suite: str
    shape: Shape
    dtype: str
    precision: str
    algorithm: str
    variant: str

    def __str__(self) -> str:
        precision = f" {self.precision}" if self.dtype in IN_PRECISIONS else ""
        return f"{self.dtype}{precision} {self.shape} {asked(vars(self))}"


def plan(args: argparse.Namespace) -> list[Job]:
    """Every job asked for; jobs on the same operands stand together."""
    jobs = []
    for name, suite in args.suites.items():
        for dtype in _dtypes(suite, args):
            for shape in _in_layouts(suite.shapes, args.layout):
                for precision, algorithms in _ways(name, suite, shape, dtype, args):
                    jobs += [
                        Job(name, shape, dtype, precision, algorithm, variant)
                        for variant in suite.variants
                        for algorithm in args.algorithm or algorithms
                    ]
    return jobs


def _keeps_ways(args: argparse.Namespace) -> bool:
    """True where shapes run in their own ways."""
    return not (args.dtype or args.precision)


def _dtypes(suite: Suite, args: argparse.Namespace) -> list[str]:
    if not _keeps_ways(args):
        return args.dtype or list(suite.dtypes)
    own = (way.dtype for shape in suite.shapes for way in shape.ways)
    return list(dict.fromkeys([*suite.dtypes, *own]))


def _ways(
    name: str, suite: Suite, shape: Shape, dtype: str, args: argparse.Namespace
) -> Iterator[tuple[str, list[str]]]:
    """The precisions in which a shape runs, and the algorithms of each."""
    if shape.ways and _keeps_ways(args):
        own = [way for way in shape.ways if way.dtype == dtype]
        for precision in dict.fromkeys(way.precision for way in own):
            yield precision, [way.algorithm for way in own if way.precision == precision]
    elif dtype in (args.dtype or suite.dtypes):
        asked = args.precision or suite.precisions
        for precision in asked if dtype in IN_PRECISIONS else ["fp32"]:
            named = [
                algorithm
                for algorithm in _by_name(name, shape, args.device)
                if reference.takes(algorithm, DTYPES[dtype], args.device, precision)
            ]
            yield precision, [*named, "auto"]


def _by_name(suite: str, shape: Shape, device: str) -> list[str] | tuple[str, ...]:
    """The algorithms that run on a shape beside `auto`."""
    if suite == "smoke" or (shape.every_kernel and device == "cuda"):
        return torch_tiled.algorithms()
    return shape.kernels if device == "cuda" else ()


def _in_layouts(shapes: tuple[Shape, ...], layouts: list[str] | None) -> Iterator[Shape]:
    """The shapes as they are, or each size once in each of the layouts asked for."""
    if layouts is None:
        yield from shapes
        return
    sizes = dict.fromkeys(replace(shape, layout="NN", what="") for shape in shapes)
    for shape in sizes:
        for layout in layouts:
            yield replace(shape, layout=layout)
