"""Runs a streamed product: a worker for each GPU, or blocks of C on the CPU."""

import concurrent.futures
import dataclasses
import gc
import itertools
import threading

import torch

from .._op.out_of_memory import raise_if_out_of_memory
from ..ops import matmul
from .machine import MIB
from .order import order_of
from .plan import Sizes, least_budget, make_plan
from .problem import fail
from .progress import Clock, Progress
from .repair import flagged_tiles, repair
from .schedule import Queue
from .staging import is_direct
from .worker import Worker

__all__ = ["Interrupted", "Settings", "plan_product", "run"]

_CPU_TILE = 4096


class Interrupted(KeyboardInterrupt):
    """A streamed product was interrupted. The GPUs are idle, and `out` has whole tiles or none.

    Attributes:
        done: (matrix, rows, columns) of the tiles of `out` that are complete: an index of the
            flattened batch, or a slice of it, and two slices.
        tiles: how many there are in all.

    Examples:
        >>> def stop(progress):
        ...     raise KeyboardInterrupt
        >>> a = torch.randn(300, 200)
        >>> try:
        ...     c = torch_tiled.stream.matmul(a, a.mT, progress=stop)
        ... except torch_tiled.stream.Interrupted as interrupted:
        ...     print(len(interrupted.done) <= interrupted.tiles)
        True
    """

    def __init__(self, done, tiles):
        super().__init__(
            f"torch_tiled.stream.matmul was interrupted: {len(done)} of {tiles} tiles are in out, "
            "and the others are as they were; the exception's `done` lists them"
        )
        self.done, self.tiles = done, tiles


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a product runs on.

    Attributes:
        devices: the GPUs; empty for the CPU.
        budget: bytes of each GPU.
        machine: the Machine of each.
        make_queues: a function of a device.
        compute: the (compute capability, SMs), or None for a simulated device.
    """

    devices: tuple
    budget: int
    machine: object
    make_queues: object
    compute: tuple | None


@dataclasses.dataclass
class _Part:
    """A product of matrices, or of a batch whose matrices go in groups, within the whole."""

    matrix: object  # an index of the flattened batch, or None
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


def _sizes(a, b, c, problem, settings):
    """The Sizes of a product of matrices, or of a flat batch of them."""
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    order = order_of(a.dtype, (m, n, k), problem.precision, problem.algorithm, settings.compute)
    return Sizes(
        batch=a.shape[0] if a.dim() == 3 else 1,
        m=m,
        n=n,
        k=k,
        shares_a=a.dim() == 3 and a.stride(0) == 0,
        shares_b=b.dim() == 3 and b.stride(0) == 0,
        on_gpu_a=a.device.type == "cuda",
        on_gpu_b=b.device.type == "cuda",
        element_bytes=a.dtype.itemsize,
        out_bytes=c.dtype.itemsize,
        stages_a=a.device.type == "cpu" and not is_direct(a),
        stages_b=b.device.type == "cpu" and not is_direct(b),
        stages_out=c.device.type == "cpu" and not is_direct(c),
        order=order,
    )


def plan_product(problem, settings):
    """Returns the Plan of a problem, whose batch counts as one of equal matrices."""
    a, b, c = _flat(problem)
    return _plan(_sizes(a, b, c, problem, settings), settings, settings.budget)


def _plan(sizes, settings, budget):
    plan = make_plan(sizes, settings.machine, budget, max(len(settings.devices), 1))
    if plan is None:
        least = least_budget(sizes, settings.machine) / MIB
        s = sizes
        whole = "" if s.order.chunk else f" (algorithm {s.order.algorithm} does not cut K)"
        fail(
            f"max_device_bytes is {budget} ({budget / MIB:.3g} MiB), too small for any tile of "
            f"m = {s.m}, n = {s.n}, k = {s.k}{whole}; at least {least:.3g} MiB are needed"
        )
    return plan


def _flat(problem):
    """A, B and C as matrices, or with a single batch dimension where strides allow."""
    operands = problem.a, problem.b, problem.out
    if not problem.batch:
        return operands
    flat = [_flatten(x, len(problem.batch)) for x in operands]
    if all(x is not None for x in flat):
        return flat
    return [x[(0,) * len(problem.batch)].expand(_count(problem), -1, -1) for x in operands]


def _count(problem):
    return problem.a.shape[:-2].numel()


def _flatten(x, dims):
    """x with one batch dimension, or None."""
    count = x.shape[:dims].numel()
    if count and all(x.stride(d) == 0 or x.shape[d] == 1 for d in range(dims)):
        return x[(0,) * dims].expand(count, -1, -1)
    try:
        return x.view(count, *x.shape[-2:])
    except RuntimeError:
        return None


def _parts(problem, settings):
    """The products that are streamed one after another."""
    if not problem.batch:
        return [_Part(None, problem.a, problem.b, problem.out)]
    flat = [_flatten(x, len(problem.batch)) for x in (problem.a, problem.b, problem.out)]
    if all(x is not None for x in flat):
        sizes = _sizes(*flat, problem, settings)
        plan = make_plan(sizes, settings.machine, settings.budget)
        if plan is not None and plan.matrices:
            return [_Part(slice(None), *flat)]
    parts = []
    for number, index in enumerate(itertools.product(*map(range, problem.batch))):
        parts.append(_Part(number, problem.a[index], problem.b[index], problem.out[index]))
    return parts


def run(problem, settings, report):
    """Computes the problem into its `out`.

    Args:
        problem: the Problem.
        settings: the Settings.
        report: a function of a Progress.
    """
    if problem.out.numel() == 0:
        return
    if problem.a.shape[-1] == 0:
        problem.out.zero_()
        return
    if not settings.devices:
        return _run_on_cpu(problem, report)
    parts = _parts(problem, settings)
    clock, done = Clock(), []
    for later, part in reversed(list(enumerate(reversed(parts)))):
        _Run(problem, settings, part, report, clock, done, len(parts), later).run()


class _Run:
    """One part of a product, by all GPUs."""

    def __init__(self, problem, settings, part, report, clock, done, parts, later):
        self.problem, self.settings, self.part = problem, settings, part
        self.report, self.clock, self.done, self.parts = report, clock, done, parts
        self.later = later  # parts that follow
        self.plan = None  # the first one, of the whole part
        self.left = 0  # its tiles that are not in a grid under way

    def run(self):
        self._stream(self.part.a, self.part.b, self.part.c, 0, 0, self.settings.budget)

    def _stream(self, a, b, c, first_row, first_col, budget):
        """Streams a rectangle of C, again with a smaller budget where memory runs out."""
        sizes = _sizes(a, b, c, self.problem, self.settings)
        plan = _plan(sizes, self.settings, budget)
        self.plan = self.plan or plan
        grid = plan.grid
        queue = Queue(grid, len(self.settings.devices))
        workers, failure = self._run_workers(a, b, c, plan, sizes.order, queue)
        finished = [tile for worker in workers for tile in worker.finished]
        flagged = dict(tile for worker in workers for tile in flagged_tiles(worker).items())
        workers.clear()  # and their buffers
        place = first_row, first_col
        if failure is None and flagged:
            failure = self._repair(flagged, (a, b, c, plan, sizes.order))
        if failure is None:
            self._note(plan, finished, place)
            return
        finished = [tile for tile in finished if tile not in flagged]
        total = self._total(grid)
        self._note(plan, finished, place)
        if isinstance(failure, KeyboardInterrupt):
            raise Interrupted(self.done, total) from None
        if not isinstance(failure, torch.OutOfMemoryError):
            raise failure
        smaller = budget // 2
        if make_plan(sizes, self.settings.machine, smaller, 1) is None:
            raise failure
        del failure
        gc.collect()  # of the traceback, which holds the buffers of a worker
        torch.cuda.empty_cache()
        self._stream_rest(a, b, c, plan, set(finished), place, smaller)

    def _stream_rest(self, a, b, c, plan, finished, place, budget):
        grid = plan.grid
        self.left += _tiles(grid) - len(finished)
        for row in range(grid.rows):
            for col in range(1 if grid.is_paired else grid.cols):
                if grid.is_paired:
                    tile = (row, row)
                    some = slice(row * plan.matrices, (row + 1) * plan.matrices)
                    rest = a[some], b[some], c[some], *place
                else:
                    tile = (row, col)
                    rows, cols = _slices(plan, row, col, c)
                    rest = (
                        *(a[rows], b[:, cols], c[rows, cols]),
                        *(place[0] + rows.start, place[1] + cols.start),
                    )
                if tile not in finished:
                    self.left -= 1
                    self._stream(*rest, budget)

    def _run_workers(self, a, b, c, plan, order, queue):
        """Returns (the workers, the exception that ended them or None)."""
        workers, threads, errors = [], [], []
        ended = threading.Semaphore(0)

        def work(number, device, queues):
            try:
                with torch.inference_mode(), queues.context():
                    worker = Worker(
                        *(a, b, c, plan, order, queues, device),
                        self.settings.machine.staging_bytes,
                    )
                    workers.append(worker)
                    worker.is_stopped = bool(errors)  # that came before it was in the list
                    worker.run(queue, number)
            except BaseException as error:
                errors.append(_without_frames(error))
                for each in list(workers):
                    each.is_stopped = True
            finally:
                ended.release()

        for number, device in enumerate(self.settings.devices):
            queues = self.settings.make_queues(device)  # by the caller's current stream
            arguments = number, device, queues
            threads.append(threading.Thread(target=work, args=arguments, daemon=True))
            threads[-1].start()
        left = len(threads)
        while left:
            try:
                left -= ended.acquire(timeout=0.1)
                self._report(plan, workers)
            except BaseException as error:
                errors.append(error)
                for each in list(workers):
                    each.is_stopped = True
        for thread in threads:
            thread.join()
        for error in errors:
            if isinstance(error, KeyboardInterrupt):
                return workers, error
        return workers, errors[0] if errors else None

    def _repair(self, flagged, product):
        """Recomputes flagged elements. Returns the exception that ended this, or None."""
        device = self.settings.devices[0]
        try:
            queues = self.settings.make_queues(device)
            flagged = {k: tuple(x.to(device) for x in v) for k, v in flagged.items()}
            with torch.inference_mode(), queues.context():
                repair(flagged, *product, queues, device, self.settings.machine.staging_bytes)
        except BaseException as error:
            return _without_frames(error)
        return None

    def _note(self, plan, finished, place):
        for row, col in finished:
            if plan.matrices:
                some = slice(row * plan.matrices, min((row + 1) * plan.matrices, plan.shape[0]))
                self.done.append((some, slice(None), slice(None)))
                continue
            rows, cols = _slices(plan, row, col, None)
            rows, cols = (
                slice(first + x.start, first + x.stop)
                for first, x in zip(place, (rows, cols), strict=True)
            )
            self.done.append((self.part.matrix, rows, cols))

    def _total(self, grid):
        """The tiles of all parts, where those of `grid` are under way."""
        later = self.later * _tiles(self.plan.grid)
        return len(self.done) + _tiles(grid) + self.left + later

    def _report(self, plan, workers):
        batch, m, n, k = self.plan.shape
        self.report(
            Progress(
                tiles=self._total(plan.grid),
                tiles_done=len(self.done) + sum(len(x.finished) for x in list(workers)),
                bytes=(self.plan.bytes_in + self.plan.bytes_out) * self.parts,
                flops=_flops(self.problem.dtype, batch * self.parts, m, n, k),
                seconds=self.clock.seconds(),
            )
        )


def _tiles(grid):
    return grid.rows if grid.is_paired else grid.rows * grid.cols


def _slices(plan, row, col, c):
    """The rows and columns of a tile."""
    (rows, cols), (_, m, n, _) = plan.tile, plan.shape
    return (
        slice(row * rows, min((row + 1) * rows, m)),
        slice(col * cols, min((col + 1) * cols, n)),
    )


def _without_frames(error):
    """The error; one that says that memory ran out without the frames that hold memory."""
    try:
        raise_if_out_of_memory(error)
    except torch.OutOfMemoryError:
        return torch.OutOfMemoryError(str(error))
    if isinstance(error, torch.OutOfMemoryError):
        return torch.OutOfMemoryError(str(error))
    return error


def _run_on_cpu(problem, report):
    """Blocks of C one after another, so that few pages of mapped files are needed at a time."""
    options = {"algorithm": problem.algorithm, "precision": problem.precision}
    m, n, k = problem.sizes
    tiles = [
        (slice(row, min(row + _CPU_TILE, m)), slice(col, min(col + _CPU_TILE, n)))
        for row in range(0, m, _CPU_TILE)
        for col in range(0, n, _CPU_TILE)
    ]
    count = _count(problem) if problem.batch else 1
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
                            flops=_flops(problem.dtype, count, m, n, k),
                            seconds=clock.seconds(),
                        )
                    )
                    if finished:
                        return future.result()
            finally:
                stop.set()
    except KeyboardInterrupt:
        raise Interrupted(done, len(tiles)) from None


def _flops(dtype, batch, m, n, k):
    return 2.0 * batch * m * n * k * (4 if dtype.is_complex else 1)
