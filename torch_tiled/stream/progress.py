"""The progress of a streamed product, and the exception of an interrupted one."""

import dataclasses
import sys
import time

from .errors import fail, shown

__all__ = ["Clock", "Interrupted", "Progress", "flops", "make_report"]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a streamed product is.

    Attributes:
        tiles, tiles_done: of C, in all and on the host.
        bytes, bytes_done: of matrices that move in both directions, the latter by the share of
            tiles.
        flops, flops_done: floating-point operations, likewise.
        seconds: since the product began.

    Examples:
        >>> a, shares = torch.randn(300, 200), []
        >>> c = torch_tiled.stream.matmul(a, a.mT, progress=lambda x: shares.append(x.share))
        >>> shares[-1]
        1.0
    """

    tiles: int
    tiles_done: int
    bytes: int
    flops: float
    seconds: float

    @property
    def share(self):
        """The part that is done, from 0 to 1."""
        return self.tiles_done / self.tiles if self.tiles else 1.0

    @property
    def bytes_done(self):
        return int(self.bytes * self.share)

    @property
    def flops_done(self):
        return self.flops * self.share

    @property
    def tflops(self):
        """10**12 floating-point operations a second so far."""
        return self.flops_done / self.seconds / 1e12 if self.seconds else 0.0

    @property
    def seconds_left(self):
        """By the speed so far; None before a tile is done."""
        return self.seconds * (1 / self.share - 1) if self.tiles_done else None


class Interrupted(KeyboardInterrupt):
    """A streamed product was interrupted. The GPUs are idle, and `out` has whole tiles or none.

    A second interrupt may leave tiles with NaN for elements that were to be recomputed; the text
    says how many. Without `out` in the call, the tiles are lost.

    Attributes:
        done: (matrix, rows, columns) of the complete tiles of `out`, as m x n matrices; m or n is
            1 for a vector. If the matrix is None, they are out.view(-1, n)[rows, columns];
            otherwise it is an index or a slice, and they are out.view(-1, m, n)[matrix, rows,
            columns].
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

    def __init__(self, done, tiles, flagged=0, has_out=True):
        others = "and the others are as they were"
        if flagged:
            others = f"{flagged} have NaN where elements were not recomputed, {others}"
        where = f"in out, {others}; the exception's `done` lists them"
        if not has_out:
            where = "complete, and lost; a call with out= keeps them"
        text = f"a product of torch_tiled.stream was interrupted: {len(done)} of {tiles} tiles are "
        super().__init__(text + where)
        self.done, self.tiles, self._others = done, tiles, (flagged, has_out)

    def __reduce__(self):
        return type(self), (self.done, self.tiles, *self._others)


def flops(dtype, batch, m, n, k):
    """The floating-point operations of a product."""
    return 2.0 * batch * m * n * k * (4 if dtype.is_complex else 1)


class _Silent:
    def __call__(self, progress):
        pass

    def close(self):
        pass


class _Callable(_Silent):
    """Calls the user's function, once for each number of tiles."""

    def __init__(self, function):
        self._function, self._last = function, None

    def __call__(self, progress):
        if progress.tiles_done != self._last:
            self._last = progress.tiles_done
            self._function(progress)


class _Bar(_Silent):
    def __init__(self):
        from rich import progress as rich

        text = "{task.fields[moved]}  {task.fields[rate]}"
        self._bar = rich.Progress(
            rich.TextColumn("tiles"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn(text),
            rich.TimeRemainingColumn(),
        )
        self._bar.start()
        self._task = None

    def __call__(self, progress):
        fields = {
            "moved": f"{progress.bytes_done / 2**30:.1f} of {progress.bytes / 2**30:.1f} GiB",
            "rate": f"{progress.tflops:.1f} TFLOP/s",
        }
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.tiles, **fields)
        self._bar.update(self._task, completed=progress.tiles_done, total=progress.tiles, **fields)

    def close(self):
        self._bar.stop()


def _is_terminal(file):
    """Returns whether a file is a terminal; processes without a console have None for stderr."""
    return file is not None and not file.closed and file.isatty()


def make_report(progress):
    """Returns a function of a Progress, with a close() method.

    Args:
        progress: True for a bar if stderr is a terminal, False or None for nothing, or a
            function.

    Raises:
        RuntimeError: progress is none of these, or True, and the package rich is missing.
    """
    if callable(progress):
        return _Callable(progress)
    if progress is not None and not isinstance(progress, bool):
        fail(f"progress is {shown(progress)}; pass True, False or a function of a Progress")
    if not progress or not _is_terminal(sys.stderr):
        return _Silent()
    try:
        return _Bar()
    except ImportError:
        fail(
            "progress=True draws a bar by the package rich, which is not installed; pip install "
            "rich, or pass a function of a Progress"
        )


class Clock:
    """The time since it was made."""

    def __init__(self):
        self._start = time.perf_counter()

    def seconds(self):
        return time.perf_counter() - self._start
