"""Runs a streamed product: a worker for each GPU, or blocks of C on the CPU."""

import functools
import itertools
import math
import threading

import torch

from .._op.out_of_memory import raise_if_out_of_memory
from ..ops import linear, matmul
from .parts import PlannedProduct, find_plan, parts_of, plan_of, sizes_of
from .progress import Clock, Interrupted, Progress, flops
from .schedule import Queue
from .worker import Worker, flagged_tiles, repair

__all__ = ["run"]

_CPU_TILE = 4096  # rows and columns of a block of C


def run(problem, settings, report):
    """Computes the problem into its `out`.

    Args:
        problem: the Problem.
        settings: the Settings.
        report: a function of a Progress.
    """
    if problem.is_empty:
        problem.out.zero_()
        report(Progress(tiles=0, tiles_done=0, bytes=0, flops=0.0, seconds=0.0))
        return
    if not settings.devices:
        return _run_on_cpu(problem, report)
    parts = parts_of(problem, settings)
    clock, done = Clock(), []
    for i, part in enumerate(parts):
        later = len(parts) - 1 - i
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
        place = self.part.matrix, 0, 0
        self._stream(self.part.a, self.part.b, self.part.c, place, self.settings.budget)

    def _stream(self, a, b, c, place, budget):
        """Streams a rectangle of C, again with a smaller budget if memory runs out.

        `place` is its first (matrix, row, column).
        """
        sizes = sizes_of(a, b, c, self.problem, self.settings)
        plan = plan_of(sizes, self.settings, budget)
        grid = plan.grid
        if a.dim() == 3 and not plan.matrices:  # memory ran out, and groups are not possible now
            self.left += a.shape[0] * grid.tile_count
            for i in range(a.shape[0]):
                self.left -= grid.tile_count
                self._stream(a[i], b[i], c[i], (place[0] + i, *place[1:]), budget)
            return
        self.plan = self.plan or plan
        queue = Queue(grid, len(self.settings.devices))
        epilogue = self.problem.epilogue.of(slice(place[2], place[2] + c.shape[-1]))
        product = PlannedProduct(a, b, c, plan, sizes.order, epilogue)
        workers, failure = self._run_workers(product, queue)
        finished = [tile for worker in workers for tile in worker.finished]
        flagged = dict(tile for worker in workers for tile in flagged_tiles(worker).items())
        workers.clear()  # and their buffers
        # Tiles are to be whole after an interrupt, too.
        if flagged and (failure is None or isinstance(failure, KeyboardInterrupt)):
            repaired = self._repair(product, {x: flagged[x] for x in flagged if x in finished})
            flagged = {} if repaired is None else flagged
            failure = failure or repaired
        if failure is None:
            self._note(plan, finished, place)
            return
        finished = [tile for tile in finished if tile not in flagged]
        total = self._total(grid)
        self._note(plan, finished, place)
        if isinstance(failure, KeyboardInterrupt):
            raise Interrupted(self.done, total, len(flagged), self.problem.has_out) from None
        if not isinstance(failure, torch.OutOfMemoryError):
            raise failure
        smaller = budget // 2
        if find_plan(sizes, self.settings, smaller) is None:
            raise failure
        torch.cuda.empty_cache()
        self._stream_rest(product, set(finished), place, smaller)

    def _stream_rest(self, product, finished, place, budget):
        a, b, c, plan = product.a, product.b, product.c, product.plan
        self.left += plan.grid.tile_count - len(finished)
        for tile in plan.grid.tiles:
            if tile in finished:
                continue
            self.left -= 1
            if plan.matrices:
                (some,) = plan.slices(*tile)
                first = place[0] + some.start, *place[1:]
                self._stream(a[some], b[some], c[some], first, budget)
            else:
                rows, cols = plan.slices(*tile)
                first = place[0], place[1] + rows.start, place[2] + cols.start
                self._stream(a[rows], b[:, cols], c[rows, cols], first, budget)

    def _run_workers(self, product, queue):
        """Returns (the workers, the exception that ended them or None)."""
        workers, stop = [], threading.Event()

        def work(number, device, queues):
            with torch.inference_mode(), queues.context():
                worker = Worker(product, queues, device, self.settings.machine)
                workers.append(worker)
                worker.run(queue, stop, number)

        functions = [
            # By the caller's current stream, thus in the caller's thread.
            functools.partial(work, number, device, self.settings.make_queues(device))
            for number, device in enumerate(self.settings.devices)
        ]
        errors = _run_threads(functions, lambda: self._report(product.plan, workers), stop)
        interrupts = [x for x in errors if isinstance(x, KeyboardInterrupt)]
        for error in interrupts or errors:
            return workers, _without_frames(error)
        return workers, None

    def _repair(self, product, flagged):
        """Recomputes flagged elements. Returns the exception that ended this, or None."""
        device = self.settings.devices[0]
        try:
            queues = self.settings.make_queues(device)
            flagged = {k: tuple(x.to(device) for x in v) for k, v in flagged.items()}
            with torch.inference_mode(), queues.context():
                repair(product, flagged, queues, device, self.settings.machine)
        except BaseException as error:
            return _without_frames(error)
        return None

    def _note(self, plan, finished, place):
        for tile in finished:
            firsts = place[:1] if plan.matrices else place[1:]
            found = [
                slice(first + x.start, first + x.stop)
                for first, x in zip(firsts, plan.slices(*tile), strict=True)
            ]
            if plan.matrices:
                self.done.append((*found, slice(None), slice(None)))
            else:
                self.done.append((place[0], *found))

    def _total(self, grid):
        """The tiles of all parts, while the tiles of `grid` are under way."""
        later = self.later * self.plan.grid.tile_count
        return len(self.done) + grid.tile_count + self.left + later

    def _report(self, plan, workers):
        batch, m, n, k = self.plan.shape
        self.report(
            Progress(
                tiles=self._total(plan.grid),
                tiles_done=len(self.done) + sum(len(x.finished) for x in list(workers)),
                bytes=(self.plan.bytes_in + self.plan.bytes_out) * self.parts,
                flops=flops(self.problem.dtype, batch * self.parts, m, n, k),
                seconds=self.clock.seconds(),
            )
        )


def _without_frames(error):
    """The error; one that says that memory ran out without the frames that hold memory."""
    try:
        raise_if_out_of_memory(error)
    except torch.OutOfMemoryError as found:
        error = found
    return (
        torch.OutOfMemoryError(str(error)) if isinstance(error, torch.OutOfMemoryError) else error
    )


def _run_on_cpu(problem, report):
    """Blocks of C one after another, so that few pages of mapped files are needed at a time."""
    m, n, k = problem.sizes
    tiles = [
        (slice(row, min(row + _CPU_TILE, m)), slice(col, min(col + _CPU_TILE, n)))
        for row in range(0, m, _CPU_TILE)
        for col in range(0, n, _CPU_TILE)
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
                _multiply_on_cpu(problem, rows, cols)
                done.append((slice(None) if problem.batch else None, rows, cols))

    stop = threading.Event()
    errors = _run_threads([compute], lambda: report(progress()), stop)
    if any(isinstance(error, KeyboardInterrupt) for error in errors):
        raise Interrupted(done, len(tiles), has_out=problem.has_out) from None
    if errors:
        raise errors[0]


def _multiply_on_cpu(problem, rows, cols):
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


def _run_threads(functions, meanwhile, stop):
    """Calls functions, each in a thread of its own, and waits until all have returned.

    A signal raises KeyboardInterrupt in the main thread alone, at any place of this function, and
    more than one may come.

    Args:
        functions: of no argument; they return soon once `stop` is set.
        meanwhile: a function that is called first, about ten times a second and last, until there
            is an error.
        stop: a threading.Event, which the first error sets.

    Returns:
        The exceptions of the functions, of `meanwhile` and of signals.
    """
    errors, ended, wake = [], [], threading.Semaphore(0)

    def call(function):
        try:
            if not stop.is_set():  # after an interrupted start() a thread may begin late
                function()
        except BaseException as error:
            errors.append(error)
            stop.set()
        finally:
            ended.append(function)
            wake.release()

    threads = [threading.Thread(target=call, args=(x,), daemon=True) for x in functions]
    is_begun = False
    while True:
        try:
            if not is_begun:
                is_begun = True
                meanwhile()
                for thread in threads:
                    thread.start()
            # If Ctrl-C interrupts join(), Python 3.11 takes the thread for one that has ended.
            while len(ended) < sum(thread.ident is not None for thread in threads):
                wake.acquire(timeout=0.1)
                if not stop.is_set():
                    meanwhile()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            if not stop.is_set():
                meanwhile()
            found = tuple(errors)
            errors.clear()  # the frames of the errors hold it, and it holds them
            return found
        except BaseException as error:
            errors.append(error)
            stop.set()
