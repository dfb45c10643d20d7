"""A product of tensors of the host, without a GPU."""

import itertools
import math
import threading

import torch

from ..ops import linear, matmul
from .progress import Clock, Interrupted, Progress, flops
from .threads import run_threads

__all__ = ["run_on_cpu"]

_TILE = 4096


def run_on_cpu(problem, report):
    """Blocks of C one after another, so that few pages of mapped files are needed at a time."""
    m, n, k = problem.sizes
    tiles = [
        (slice(row, min(row + _TILE, m)), slice(col, min(col + _TILE, n)))
        for row in range(0, m, _TILE)
        for col in range(0, n, _TILE)
    ]
    count = math.prod(problem.batch)
    clock, done = Clock(), []

    def progress():
        return Progress(
            tiles=len(tiles),
            tiles_done=len(done),
            bytes=count * (m * k + k * n + m * n) * problem.dtype.itemsize,
            flops=flops(problem.dtype, count, m, n, k),
            seconds=clock.seconds(),
        )

    def compute():
        with torch.inference_mode():
            for rows, cols in tiles:
                if stop.is_set():
                    return
                _multiply(problem, rows, cols)
                done.append((slice(None) if problem.batch else None, rows, cols))

    stop = threading.Event()
    errors = run_threads([compute], lambda: report(progress()), stop)
    if any(isinstance(error, KeyboardInterrupt) for error in errors):
        raise Interrupted(done, len(tiles), has_out=problem.has_out) from None
    if errors:
        raise errors[0]


def _multiply(problem, rows, cols):
    """Computes a block of C, or of each matrix of a batch."""
    a, b, c = problem.a[..., rows, :], problem.b[..., cols], problem.out[..., rows, cols]
    options = {"algorithm": problem.algorithm, "precision": problem.precision}
    if problem.epilogue.is_identity:
        matmul(a, b, out=c, **options)
        return
    epilogue = problem.epilogue.of(cols)
    options["activation"] = epilogue.activation
    for index in itertools.product(*map(range, problem.batch)):
        c[index].copy_(linear(a[index], b[index].mT, epilogue.bias, **options))
