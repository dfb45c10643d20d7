"""The jobs of benchmarks.stream: their order, and the rows that each of them gives."""

import argparse
import dataclasses
from functools import partial

import torch

from benchmarks.command import DTYPES
from benchmarks.gemm.check import full_precision_peer
from benchmarks.pages import files
from benchmarks.pages.rows import select
from benchmarks.stream import cublasxt
from benchmarks.stream.host_pool import HostPool
from benchmarks.stream.ways import (
    XT_BLOCKS,
    InCore,
    Problem,
    Times,
    alternate,
    error_of,
    in_core_result,
    is_equal,
    link_calls,
    loop,
    loop_block,
    release,
    staged_calls,
    streamed,
    text_of,
)
from torch_tiled import stream

PEERS = ("in_core", "two_gpus", "loop", "cublasxt", "pageable", "link")
PLANNED = ("seconds", "product_seconds", "in_seconds", "out_seconds", "bytes_in", "bytes_out")
PLANNED += ("device_bytes", "pinned_bytes", "tile", "depth", "kept", "is_prepared", "bound")


@dataclasses.dataclass(frozen=True)
class Job:
    """What is measured together: a peer of the streamed product, or itself as "stream"."""

    way: str
    dtype: str | None = None
    size: int | None = None

    def __str__(self):
        return " ".join(str(x) for x in dataclasses.astuple(self) if x is not None)


def jobs(args: argparse.Namespace, gpus: int) -> list[Job]:
    """The jobs in their order: what matters most first, and last what needs pageable memory.

    Jobs that need a GPU are left out if there is none.
    """
    products = [(dtype, size) for dtype in args.dtype for size in args.sizes]
    found = [Job("link")] if "link" in args.peers else []
    found += [Job("stream", *x) for x in products]
    if "two_gpus" in args.peers and gpus >= 2:
        found += [Job("two_gpus", *x) for x in products]
    if "loop" in args.peers:
        found += [Job("loop", *x) for x in products]
    if "cublasxt" in args.peers and gpus:
        found += [Job("cublasxt", *x) for x in products if x[0] == "float32"]
    if "link" in args.peers and gpus:
        found.append(Job("staged link"))
    if "pageable" in args.peers:
        found += [Job("pageable", *x) for x in products]
    return found


class Run:
    """The rows of a run, and the memory of its operands."""

    def __init__(self, args: argparse.Namespace, header: dict):
        self.args, self.header = args, header
        self.device = torch.device(args.device)
        self.rows: list[dict] = []
        self._pool: HostPool | None = None
        self._held: tuple | None = None  # what A and B are filled for
        self._is_pinned = False

    # --- memory and results ----------------------------------------------------------------------

    def prepare(self) -> None:
        """Allocates and pins the memory of the largest product that the host has memory for."""
        itemsize = max(DTYPES[dtype].itemsize for dtype in self.args.dtype)
        for size in sorted(self.args.sizes, reverse=True):
            try:
                self._pool = HostPool(size**2 * itemsize)
                break
            except RuntimeError as error:
                print(f"{size}: {text_of(error)}")
        if self._pool is not None and self.device.type == "cuda":
            try:
                self._pool.pin()
                self._is_pinned = True
            except RuntimeError as error:
                self._pool.unpin()
                print(text_of(error))

    def close(self) -> None:
        """Writes the results, and gives pinned memory back."""
        self.save()
        self._unpin()

    def _unpin(self) -> None:
        if self._is_pinned:
            self._pool.unpin()
            self._is_pinned = False

    def save(self) -> None:
        files.write(self.args.json, {"header": self.header, "rows": self.rows})

    def _problem(self, job: Job) -> Problem:
        """The operands of a job, which are filled where those of another one are there."""
        size = (job.size, job.size, DTYPES[job.dtype])
        if self._pool is None or job.size**2 * size[-1].itemsize > self._pool.part_bytes:
            raise MemoryError("the host has no memory for A, B and C")
        a, b, c = (self._pool.matrix(name, *size) for name in ("a", "b", "c"))
        problem = Problem(a, b, c, self.device, self.args.budget)
        if self._held != (job.dtype, job.size):
            self._held = None
            problem.fill()
            self._held = job.dtype, job.size
        problem.forget()
        return problem

    # --- rows ------------------------------------------------------------------------------------

    def _timed(self, way: str, call) -> Times:
        return self._alternate({way: call})[way]

    def _alternate(self, calls: dict) -> dict[str, Times]:
        room = 2 * self.args.budget
        return alternate(calls, self.args.repeats, self.device, room)

    def _add(self, job: Job, times: Times, problem: Problem | None = None, **fields) -> None:
        """Adds the row of a product and writes the results; the error is that of the problem's C.

        The ratio to a row before follows from "ratio_to", if the fields do not have it.
        """
        seconds, other = times.median, fields.get("ratio_to")
        before = select(self.rows, way=other, dtype=job.dtype, size=job.size)
        theirs = before[0]["seconds"] if before else None
        row = {
            "way": job.way,
            "dtype": job.dtype,
            "size": job.size,
            "is_pinned": self._is_pinned,
            "seconds": seconds,
            "all_seconds": times.seconds,
            "tflops": 2.0 * job.size**3 / seconds / 1e12 if seconds else None,
            "ratio": theirs / seconds if theirs and seconds else None,  # of speeds
            "ratio_to": None,
            "error": error_of(problem) if problem and seconds else None,
            "equal": None,  # to the bits of in_core
            "peak_bytes": times.peak_bytes,
            "block": None,
            "plan": None,
            "failure": times.failure,
        }
        self.rows.append(row | fields)
        self.save()

    def _add_copy(self, direction: str, moved: int | None, times: Times) -> None:
        seconds = times.median
        self.rows.append(
            {
                "way": "link",
                "direction": direction,
                "bytes": moved,
                "seconds": seconds,
                "all_seconds": times.seconds,
                "gb_per_second": moved / seconds / 1e9 if seconds else None,
                "failure": times.failure,
            }
        )
        self.save()

    def _decline(self, job: Job, why: str) -> None:
        """Adds a row that says why there is none of a job."""
        if job.size is None:
            self._add_copy(job.way, None, Times(failure=why))
        else:
            self._add(job, Times(failure=why))

    def do(self, job: Job) -> None:
        """Adds the rows of a job; one that fails as a whole has a row that says why."""
        do = {
            "stream": self._stream,
            "two_gpus": partial(self._streamed, gpus=2),
            "loop": self._loop,
            "cublasxt": self._cublasxt,
            "pageable": self._streamed,
            "link": lambda job: self._copies(link_calls),
            "staged link": lambda job: self._copies(staged_calls),
        }[job.way]
        try:
            if job.way in ("pageable", "staged link"):
                self._unpin()
            do(job)
        except Exception as error:  # the run goes on, since it may be the only one
            self._decline(job, text_of(error))
        finally:
            release(self.device)

    def _devices(self, gpus: int = 1):
        return [f"cuda:{i}" for i in range(gpus)] if self.device.type == "cuda" else "cpu"

    def _planned(self, problem: Problem, devices) -> dict | None:
        """What the plan says, or None if there is none: the product itself says why."""
        options = {"devices": devices, "max_device_bytes": self.args.budget}
        try:
            plan = stream.plan(problem.a, problem.b, out=problem.c, **options)
        except Exception:
            return None
        return {name: getattr(plan, name) for name in PLANNED}

    # --- jobs ------------------------------------------------------------------------------------

    def _stream(self, job: Job) -> None:
        """The streamed product, and the one within the GPU between its calls."""
        problem, devices = self._problem(job), self._devices()
        plan = self._planned(problem, devices)
        calls = {"stream": streamed(problem, devices)}
        product, failure = None, None
        if "in_core" in self.args.peers:
            try:
                product = calls["in_core"] = InCore(problem)
            except Exception as error:
                failure = text_of(error)
        times = self._alternate(calls)
        ours = times["stream"]
        inner = times.get("in_core", Times(failure=failure))
        fields = {"plan": plan}
        if inner.median:
            fields["ratio_to"] = "in_core"
            if ours.median:
                fields["ratio"] = inner.median / ours.median
                fields["equal"] = is_equal(problem.c, product.result)
        self._add(job, ours, problem, **fields)
        if "in_core" in self.args.peers:
            if inner.median:
                problem.c.copy_(product.result)
            self._add(job, inner, problem, way="in_core")

    def _streamed(self, job: Job, gpus: int = 1) -> None:
        """Another streamed product, beside the first one of the same size."""
        problem, devices = self._problem(job), self._devices(gpus)
        fields = {"plan": self._planned(problem, devices), "ratio_to": "stream"}
        times = self._timed(job.way, streamed(problem, devices))
        release(self.device)
        if times.median and "in_core" in self.args.peers:
            reference = in_core_result(problem)
            if reference is not None:
                fields["equal"] = is_equal(problem.c, reference)
        self._add(job, times, problem, **fields)

    def _loop(self, job: Job) -> None:
        """In torch's float32, and of float32 operands in TF32 as well."""
        ways = {"loop": "fp32"} | ({"loop_tf32": "tf32"} if job.dtype == "float32" else {})
        for way, precision in ways.items():
            problem = self._problem(job)
            block = loop_block(problem)
            with full_precision_peer(precision):
                times = self._timed(way, partial(loop, problem, block))
            self._add(job, times, problem, way=way, block=block, ratio_to="stream")

    def _cublasxt(self, job: Job) -> None:
        """cublasXtSgemm by the best of its blocks."""
        problem = self._problem(job)
        library = cublasxt.load()
        best, best_block = Times(), None
        with cublasxt.CublasXt(library) as xt:
            for block in XT_BLOCKS:
                xt.set_block(block)
                operands = problem.a, problem.b, problem.c
                times = self._timed(job.way, partial(xt.multiply, *operands))
                is_better = times.median and (not best.median or times.median < best.median)
                if is_better or best_block is None:
                    best, best_block = times, block
        best.peak_bytes = None  # the library's memory is not PyTorch's
        self._add(job, best, problem, block=best_block, ratio_to="stream")

    def _copies(self, make_calls) -> None:
        """A row for each direction. What the copies write to C is nobody's result."""
        calls = make_calls(self._pool.part("a"), self._pool.part("c"), self.device)
        for direction, (call, moved) in calls.items():
            self._add_copy(direction, moved, self._timed(direction, call))
