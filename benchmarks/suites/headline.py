"""The two suites that `make bench` measures by itself: one for a GPU, and one for a CPU."""

from benchmarks import ROOT
from benchmarks.suites.shapes import Shape, Suite, Way

PLOT = ROOT / "build" / "headline.svg"

FP32 = (Way(),)
EVERY_KIND = (
    *(Way(precision=precision) for precision in ("fp32", "ieee", "tf32")),
    *(Way(dtype) for dtype in ("bfloat16", "float64")),
)

HEADLINE = Suite(
    "a first look, on a GPU: squares, each precision and dtype, odd sizes, few rows, a batch",
    (
        *(Shape(size, size, size, ways=FP32) for size in (1024, 2048)),
        Shape(4096, 4096, 4096, ways=EVERY_KIND),
        *(Shape(size, size, size, ways=FP32) for size in (8192, 16384)),
        Shape(4095, 4097, 4093, ways=FP32),
        Shape(1, 4096, 4096, layout="NT", ways=FP32),
        Shape(16, 11008, 4096, layout="NT", ways=FP32),
        Shape(2048, 2048, 128, batch=32, layout="NT", ways=FP32),
    ),
    summary=True,
)


def _by_name(*algorithms: str, **way: str) -> tuple[Way, ...]:
    return tuple(Way(algorithm=algorithm, **way) for algorithm in algorithms)


HOST = Suite(
    "the host's kernels, which give the bits of the GPU's: seconds on two CPU cores",
    (
        Shape(
            *(256, 256, 256),
            ways=(
                *_by_name("naive", "tiled", "fp16x3"),
                *_by_name("tf32", precision="tf32"),
                *_by_name("mma", dtype="bfloat16"),
                *_by_name("tiled", dtype="float64"),
            ),
        ),
        Shape(127, 129, 131, layout="TT", ways=_by_name("tiled", "fp16x3")),
        Shape(1, 1024, 1024, layout="NT", ways=_by_name("tiled", "fp16x3")),
    ),
    summary=True,
)
