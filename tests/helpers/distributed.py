"""Processes in which checks of torch.distributed run.

A test module decorates its checks with @check. `failed_checks` starts as many processes as the
backend needs, runs every check of some modules in all of them, and returns what was raised.
"""

import datetime
import importlib.util
import os
import socket
import traceback

import torch
import torch.distributed as dist
from helpers import thinning

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
WORLDS = {"gloo": 4, "nccl": 2}


def check(function):
    """Declares that a function runs in every process."""
    function.is_check = True
    return function


def checks_in(namespace):
    """The checks of a module by name, in the order in which they stand there."""
    return {name: f for name, f in namespace.items() if getattr(f, "is_check", False)}


def device():
    """The device of this process."""
    return DEVICES[dist.get_backend()]


def random(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, device=device()) for shape in shapes]


def own_part(batches):
    """This process's rows of each batch."""
    return batches.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def mesh_of(*shape):
    """A mesh of all processes, in one dimension or of that shape."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device(), shape or (dist.get_world_size(),))


def run_checks(rank, files, backend, port, whole, failures):
    """The body of each process."""
    # Without multicast, which not every machine's GPUs offer.
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    torch.set_num_threads(1)
    thinning.use_whole_products(whole)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    patience = datetime.timedelta(seconds=60)  # with processes that have failed
    dist.init_process_group(backend, rank=rank, world_size=WORLDS[backend], timeout=patience)
    for file in files:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, function in checks_in(vars(module)).items():
            torch.manual_seed(0)
            try:
                function()
            except Exception:
                failures.append((name, rank, traceback.format_exc()))
            dist.barrier()
    dist.destroy_process_group()


def failed_checks(files, backend):
    """Runs the checks of test modules: (name, rank, traceback) of each that failed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        failures = manager.list()
        arguments = (files, backend, port, thinning.whole(), failures)
        torch.multiprocessing.spawn(run_checks, arguments, nprocs=WORLDS[backend])
        return list(failures)


def assert_passed(name, failures):
    texts = [f"In process {rank}:\n{text}" for each, rank, text in failures if each == name]
    assert not texts, "\n".join(texts)
