"""Copies by threads through staging memory: csrc/staging/staged_copy.h."""

import os
import random
import threading
import time

import pytest
import torch
from helpers.needs import needs_cuda
from helpers.packaging import python

from torch_tiled._op.namespace import operators
from torch_tiled.stream.machine import Machine
from torch_tiled.stream.staging import CudaQueues, Staging

DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.complex128]
UNTOUCHED = 7


def frame(rows, cols, dtype, device="cpu"):
    """Elements of which a view is copied; the others are to stay."""
    return torch.full((rows, cols), UNTOUCHED, dtype=dtype, device=device)


def host_views(m, n, dtype):
    """(frame, m x n view) in the strides that a matrix of the host may have."""
    for rows, cols, cut in [
        (m, n, lambda x: x),
        (m, n + 3, lambda x: x[:, :n]),
        (2 * m, 3 * n, lambda x: x[::2, ::3]),
        (n, m, lambda x: x.mT),
        (n + 1, m + 5, lambda x: x[:n, 2 : m + 2].mT),
    ]:
        whole = frame(rows, cols, dtype)
        yield whole, cut(whole)


def gpu_views(m, n, dtype, device):
    """The same for the GPU's side, whose rows or columns are adjacent."""
    for rows, cols, cut in [(m, n, lambda x: x), (m, n + 4, lambda x: x[:, :n])]:
        whole = frame(rows, cols, dtype, device)
        yield whole, cut(whole)
    whole = frame(n, m + 2, dtype, device)
    yield whole, whole.mT[:m]


def staging_memory(threads, nbytes, device):
    """Memory in which each thread has slots of so many bytes."""
    return torch.empty(threads * 4 * nbytes, dtype=torch.uint8, pin_memory=device == "cuda")


def untouched(whole):
    return int((whole == UNTOUCHED).sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads, nbytes", [(1, 64), (3, 100), (8, 4096), (2, 1 << 20)])
def test_all_elements_and_no_others(dtype, threads, nbytes, device):
    memory = staging_memory(threads, nbytes, device)
    draw = random.Random(0)
    for m, n in [(1, 1), (1, 50), (50, 1), (7, 13), (129, 67)]:
        for _, source in host_views(m, n, dtype):
            source.copy_(torch.randn(m, n, dtype=dtype))
            whole, there = draw.choice([*gpu_views(m, n, dtype, device)])
            operators._copy_staged_(there, source, memory, threads, True)
            assert torch.equal(there.cpu(), source)
            assert untouched(whole) == whole.numel() - m * n
            for whole, back in host_views(m, n, dtype):
                operators._copy_staged_(back, there, memory, threads, False)
                assert torch.equal(back, source)
                assert untouched(whole) == whole.numel() - m * n


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_are_one_in_memory(device):
    memory = staging_memory(2, 64, device)
    for source in (torch.randn(1, 30).expand(20, 30), torch.randn(20, 1).expand(20, 30)):
        for _, there in gpu_views(20, 30, torch.float32, device):
            operators._copy_staged_(there, source, memory, 2, True)
            assert torch.equal(there.cpu(), source)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m, n", [(0, 4), (4, 0)])
def test_no_elements(m, n, device):
    x, there = torch.empty(m, n), torch.empty(m, n, device=device)
    operators._copy_staged_(there, x, staging_memory(1, 64, device), 1, True)


@needs_cuda
def test_many_pieces_of_each_thread():
    """More than the slots hold, on a stream of the caller, in both directions at once."""
    source, back = torch.randn(3000, 5001), torch.empty(5001, 3000).mT
    there, others = torch.empty(3000, 5120, device="cuda")[:, :5001], source.cuda()
    errors = []

    def copy(to, x, to_gpu):
        try:
            memory = staging_memory(4, 10000, "cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(5):
                    operators._copy_staged_(to, x, memory, 4, to_gpu)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    torch.cuda.synchronize()
    calls = (there, source, True), (back, others, False)
    threads = [threading.Thread(target=copy, args=x) for x in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert torch.equal(there.cpu(), source) and torch.equal(back, source)


@needs_cuda
@pytest.mark.parametrize("threads", [1, 3])
def test_slots_that_the_gpu_has_not_read_yet(threads):
    """The next call fills a slot once the copy of the last one is done, however late that is."""
    queues = CudaQueues(torch.device("cuda", 0))
    machine = Machine(staging_bytes=threads * 4 * 4096, staging_threads=threads)
    staging = Staging(machine, queues, "in")
    sources = [torch.randn(threads * 4, 1024) for _ in range(5)]  # each takes all slots
    there = [torch.full((threads * 4, 1024), torch.nan, device="cuda") for _ in sources]
    torch.cuda.synchronize()
    queues.run("in", torch.cuda._sleep, 10**8)
    for to, source in zip(there, sources, strict=True):
        staging.copy(to, source)
    queues.synchronize()
    for to, source in zip(there, sources, strict=True):
        assert torch.equal(to.cpu(), source)


def count_of_threads():
    """The threads of this process, once none has ended for a while."""
    counts = [0]
    while counts[-20:] != counts[-1:] * 20:
        counts.append(len(os.listdir("/proc/self/task")))
        time.sleep(1e-3)
    return counts[-1]


def copy_by(threads):
    x, to = torch.randn(100, 100), torch.empty(100, 100)
    operators._copy_staged_(to, x, staging_memory(threads, 64, "cpu"), threads, True)
    assert torch.equal(to, x)


def test_threads_end_with_the_one_that_calls():
    before, during = count_of_threads(), []

    def call():
        for _ in range(3):
            copy_by(8)
            during.append(count_of_threads())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert during == [before + 8] * 3
    assert count_of_threads() == before


def run_program(text):
    """Runs a program that may copy_by() so many threads, and checks that it ends well."""
    python(f"from stream.test_staged import *\n{text}")


@pytest.mark.parametrize("threads", [0, 2, 4])
def test_a_process_that_was_forked(threads):
    """It has none of the threads, makes its own, and ends."""
    used = f"copy_by({threads})" if threads else ""
    run_program(f"""
copy_by(3)
if os.fork() == 0:
    {used or "pass"}
else:
    copy_by(5)
    assert os.wait()[1] == 0
""")


def test_a_limit_of_threads():
    """Those that there are do the work. A thread takes 8 MiB of addresses or more for its stack."""
    run_program("""
import resource
from pathlib import Path
copy_by(2)
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2**24
resource.setrlimit(resource.RLIMIT_AS, (most, most))
copy_by(50)
assert count_of_threads() < 50
""")


X = torch.randn(4, 5)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((torch.empty(4, 6), X, 1, 256), r"to is \(4, 6\) and from is \(4, 5\)"),
        ((torch.empty(4, 5).double(), X, 1, 256), r"to is torch.float64 and from is torch.float32"),
        ((torch.empty(4, 5), X, 0, 256), "threads is 0; it must be at least 1"),
        ((torch.empty(4, 5), X, 3, 767), "buffer has 767 bytes on cpu and threads is 3; .* 256"),
        ((torch.empty(4, 5), X, 1 << 56, 767), "threads is 72057594037927936; .* for each"),
        ((torch.empty(8, 10)[::2, ::2], X, 1, 256), "neither rows nor columns of the GPU's matrix"),
    ],
)
def test_what_is_refused(arguments, sentence):
    to, x, threads, nbytes = arguments
    memory = torch.empty(nbytes, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=sentence):
        operators._copy_staged_(to, x, memory, threads, True)


@needs_cuda
@pytest.mark.parametrize("to_gpu", [False, True])
def test_memory_of_a_gpu_on_the_hosts_side(to_gpu):
    memory, x = staging_memory(1, 64, "cuda"), X.cuda()
    to, source = (torch.empty_like(x), x) if to_gpu else (x, X)
    with pytest.raises(RuntimeError, match="with to_gpu = .* must be on the host"):
        operators._copy_staged_(to, source, memory, 1, to_gpu)
