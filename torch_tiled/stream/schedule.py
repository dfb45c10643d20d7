"""The order in which tiles of C are computed, and the slots that panels of A and B have meanwhile.

The unit of the schedule is a Step: one product of a panel of A and a panel of B, which is a tile of
C. A panel of one operand is kept while the other operand's panels stream past it. For the next kept
panel they stream backward, so that the panels in the slots serve both (a serpentine). If K is cut
in slices, the steps of a tile are its slices, in order.

Panels live in slots. The panel of an operand that was read least recently gives its slot to a new
one, once the last step that reads it has been issued: that step is the Load's `after`. Several
workers (GPUs) share the kept panels, and a worker without one takes over half of what is left of
another's.
"""

import collections
import dataclasses
import itertools
import threading
from typing import NamedTuple

SLOTS = 2  # of each panel and tile: one is computed with while the other one is copied


@dataclasses.dataclass(frozen=True)
class Grid:
    """The tiles of one product, which the schedule numbers by their indices.

    Attributes:
        rows: the panels of A.
        cols: the panels of B.
        slices: the parts of K.
        keeps_b: whether B's panels are kept, and A's stream.
        is_paired: whether panel i of A meets panel i of B alone, as matrices of a batch do.
        shares_a, shares_b: whether one panel of A, or of B, serves all pairs.
    """

    rows: int
    cols: int
    slices: int = 1
    keeps_b: bool = True
    is_paired: bool = False
    shares_a: bool = False
    shares_b: bool = False

    @property
    def tiles(self):
        """(row, column) of each tile."""
        if self.is_paired:
            return [(i, i) for i in range(self.rows)]
        return [*itertools.product(range(self.rows), range(self.cols))]

    @property
    def tile_count(self):
        return self.rows if self.is_paired else self.rows * self.cols


class Load(NamedTuple):
    """A panel that is copied to a slot, after a step (an index, or -1) has read what was there.

    The next kept panel comes in `parts`, one with each step, so that streamed panels need not wait
    for all of it. `part` counts from 0.
    """

    operand: str  # "a" or "b"
    index: int
    slice: int
    slot: int
    after: int
    part: int = 0
    parts: int = 1


@dataclasses.dataclass
class Step:
    """A product of two panels, their slots, and what has to be loaded for it.

    The tile of C is complete after the step if `is_last`, and begins with it if `is_first`.
    """

    number: int
    row: int
    col: int
    slice: int
    is_first: bool
    is_last: bool
    a_slot: int = -1
    b_slot: int = -1
    loads: tuple = ()


class Job:
    """A kept panel, and the streamed panels that are left for it, front to back."""

    def __init__(self, kept, streamed):
        self.kept = kept
        self._streamed = collections.deque(streamed)
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._streamed)

    def take(self):
        """Returns the next streamed panel, or None."""
        with self._lock:
            return self._streamed.popleft() if self._streamed else None

    def take_half(self):
        """Returns the half that is farthest from its turn, as a Job, or None."""
        with self._lock:
            taken = [self._streamed.pop() for _ in range(len(self._streamed) // 2)]
        return Job(self.kept, taken) if taken else None


class Queue:
    """The tiles that workers share. Each is given out once, whichever threads ask."""

    def __init__(self, grid, workers=1):
        kept, streamed = (grid.cols, grid.rows) if grid.keeps_b else (grid.rows, grid.cols)
        self._kept = collections.deque(range(1 if grid.is_paired else kept))
        self._streamed = range(streamed)
        self._jobs = []  # those that were given out
        self._is_backward = [False] * workers
        self._have_none = set(range(workers))  # that did not claim a kept panel yet
        self._lock = threading.Lock()

    def claim(self, worker):
        """Returns a Job of a kept panel that nobody has, or None.

        Each worker gets its first one before another gets the last ones.
        """
        with self._lock:
            others = self._have_none - {worker}
            is_first = worker in self._have_none
            self._have_none = others
            if not self._streamed or len(self._kept) <= (0 if is_first else len(others)):
                return None
            order = reversed(self._streamed) if self._is_backward[worker] else self._streamed
            self._is_backward[worker] = not self._is_backward[worker]
            self._jobs.append(Job(self._kept.popleft(), order))
            return self._jobs[-1]

    def take_over(self):
        """Returns a Job of half of what is left of the longest one, or None."""
        with self._lock:
            longest = max(self._jobs, key=len, default=None)
            job = None if longest is None else longest.take_half()
            if job is not None:
                self._jobs.append(job)
            return job


class TileList:
    """Some tiles for one worker, in the place of a Queue."""

    def __init__(self, grid, tiles):
        """tiles: (row, column) of each."""
        self._tiles = collections.deque((c, r) if grid.keeps_b else (r, c) for r, c in tiles)

    def claim(self, worker):
        if not self._tiles:
            return None
        kept, streamed = self._tiles.popleft()
        return Job(kept, [streamed])

    def take_over(self):
        return None


class Slots:
    """The panels of one operand that are on the GPU."""

    def __init__(self, operand, count):
        self._operand = operand
        self._keys = [None] * count  # (index, slice) of each slot
        self._last_step = [-1] * count  # that reads it

    def find(self, index, slice_, step):
        """Returns the slot of a panel for a step, and the Load that brings it, or None."""
        key = index, slice_
        if key in self._keys:
            slot = self._keys.index(key)
            self._last_step[slot] = step
            return slot, None
        slot = self._last_step.index(min(self._last_step))  # that was read least recently
        load = Load(self._operand, index, slice_, slot, self._last_step[slot])
        self._keys[slot], self._last_step[slot] = key, step
        return slot, load


_PARTS = 8  # of a kept panel that is loaded ahead, at most


def _in_parts(load, steps_left):
    """A kept panel's load in parts, for the steps that are left until it is read."""
    if load is None:
        return []
    parts = max(min(steps_left, _PARTS), 1)
    return [load._replace(part=part, parts=parts) for part in range(parts)]


def steps(grid, a_slots, b_slots, queue=None, worker=0):
    """Yields the steps of a worker, which claims tiles of the queue as it goes."""
    queue = Queue(grid) if queue is None else queue
    a, b = Slots("a", a_slots), Slots("b", b_slots)
    kept_slots = b if grid.keeps_b else a
    number, ahead = 0, collections.deque()  # ahead: loads of the next job's kept panel
    job = None
    while (job := job or queue.claim(worker) or queue.take_over()) is not None:
        following = queue.claim(worker)
        is_first = True
        while (streamed := job.take()) is not None:
            row, col = (streamed, job.kept) if grid.keeps_b else (job.kept, streamed)
            if grid.is_paired:
                row = col = streamed
            for slice_ in range(grid.slices):
                step = Step(number, row, col, slice_, slice_ == 0, slice_ == grid.slices - 1)
                step.a_slot, a_load = a.find(0 if grid.shares_a else row, slice_, number)
                step.b_slot, b_load = b.find(0 if grid.shares_b else col, slice_, number)
                loads = [*ahead] if is_first else []
                loads += (b_load, a_load) if grid.keeps_b else (a_load, b_load)
                if is_first:
                    ahead.clear()
                    if following is not None and grid.slices == 1:
                        _, load = kept_slots.find(following.kept, 0, number)
                        ahead.extend(_in_parts(load, len(job)))
                elif ahead:
                    loads.append(ahead.popleft())
                step.loads = tuple(load for load in loads if load is not None)
                yield step
                number += 1
                is_first = False
        job = following
