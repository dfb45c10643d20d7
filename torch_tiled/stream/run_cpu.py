"""A product of tensors of the host, without a GPU."""

import concurrent.futures
import threading

import torch

from ..ops import matmul
from .parts import count_of
from .progress import Clock, Interrupted, Progress, flops

__all__ = ["run_on_cpu"]

_TILE = 4096


def run_on_cpu(problem, report):
    """Blocks of C one after another, so that few pages of mapped files are needed at a time."""
    options = {"algorithm": problem.algorithm, "precision": problem.precision}
    m, n, k = problem.sizes
    tiles = [
        (slice(row, min(row + _TILE, m)), slice(col, min(col + _TILE, n)))
        for row in range(0, m, _TILE)
        for col in range(0, n, _TILE)
    ]
    count = count_of(problem) if problem.batch else 1
    clock, done = Clock(), []

    def compute():
        with torch.inference_mode():
            for rows, cols in tiles:
                if stop.is_set():
                    return
                a, b = problem.a[..., rows, :], problem.b[..., cols]
                matmul(a, b, out=problem.out[..., rows, cols], **options)
                done.append((slice(None) if problem.batch else None, rows, cols))

    # A signal reaches the main thread alone, which then waits for the tile that is under way.
    stop = threading.Event()
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            try:
                future = executor.submit(compute)
                while True:
                    finished, _ = concurrent.futures.wait([future], 0.1)
                    report(
                        Progress(
                            tiles=len(tiles),
                            tiles_done=len(done),
                            bytes=count * (m * k + k * n + m * n) * problem.dtype.itemsize,
                            flops=flops(problem.dtype, count, m, n, k),
                            seconds=clock.seconds(),
                        )
                    )
                    if finished:
                        return future.result()
            finally:
                stop.set()
    except KeyboardInterrupt:
        raise Interrupted(done, len(tiles)) from None
