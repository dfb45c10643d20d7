"""What a streamed product tells of its progress."""

import dataclasses
import sys
import time

__all__ = ["Progress", "make_report"]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a streamed product is.

    Attributes:
        tiles, tiles_done: of C, in all and on the host.
        bytes, bytes_done: that move in both directions, the latter by the share of tiles.
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


def make_report(progress):
    """Returns a function of a Progress, with a close() method.

    Args:
        progress: True for a bar where stderr is a terminal, False for nothing, or a function.

    Raises:
        RuntimeError: progress is True, and the package rich is missing.
    """
    if callable(progress):
        return _Callable(progress)
    if not progress or not sys.stderr.isatty():
        return _Silent()
    try:
        return _Bar()
    except ImportError:
        raise RuntimeError(
            "torch_tiled.stream.matmul: progress=True draws a bar by the package rich, which is "
            "not installed; pip install rich, or pass a function of a Progress"
        ) from None


class Clock:
    """The time since it was made."""

    def __init__(self):
        self._start = time.perf_counter()

    def seconds(self):
        return time.perf_counter() - self._start
