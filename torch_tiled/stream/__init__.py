"""Products larger than the GPU: tiles of C, for which panels of A and B stream to the GPU.

problem.py checks the arguments. parts.py cuts a batch into products that are streamed one after
another. planner.py picks the sizes of their tiles by what candidate.py says that each choice costs,
and schedule.py orders tiles and loads. run.py starts a worker for each GPU, which issues the copies
of staging.py and the products to the queues of its GPU.
"""

from collections.abc import Callable, Sequence

import torch

from .errors import fail, public, shown, whole_number
from .machine import Machine
from .parts import Settings, plan_product
from .planner import Plan
from .problem import make_linear_problem, make_problem
from .progress import Interrupted, Progress, make_report
from .run import run
from .staging import CudaQueues, threads_of

__all__ = ["Interrupted", "Plan", "Progress", "linear", "matmul", "plan"]

Devices = str | int | torch.device | Sequence[str | int | torch.device] | None
Report = bool | Callable[[Progress], None] | None

_SHARE_OF_FREE_MEMORY = 0.9


@public
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    devices: Devices = None,
    max_device_bytes: int | None = None,
    precision: str = "fp32",
    algorithm: str = "auto",
    progress: Report = None,
) -> torch.Tensor:
    """The product of matrices that need not fit into the memory of a GPU, computed by GPUs.

    The result has the shape and the dtype of torch_tiled.matmul(a, b). On a GPU it also has the
    bits of that product, whatever the tiles, the memory and the number of GPUs. The call returns
    when the result is complete.

    Args:
        a: (m, k), or (k,), or a batch (..., m, k), of any strides, on the CPU. Copies are fastest
            from pinned memory. Tensors that map a file (torch.from_file, or torch.from_numpy of a
            numpy.memmap) are read panel by panel. One of a and b may be on a GPU.
        b: (k, n), or (k,), or a batch (..., k, n), of a's dtype.
        out: a tensor of the result's shape and dtype on the CPU that is written to; it may map a
            file, and may not share memory with a or b.
        devices: the GPUs that share the tiles, such as ["cuda:0", "cuda:1"], or one of them;
            "cpu" computes blocks of C there. None is the GPU of a or b, or else the current GPU, or
            the CPU if there is no GPU.
        max_device_bytes: the bytes that the product may take of each GPU, its kernels' workspaces
            included. None is 0.9 of what is free.
        precision: as for torch_tiled.matmul.
        algorithm: as for torch_tiled.matmul.
        progress: True for a bar on a terminal, by the package rich; or a function, which is called
            with a Progress at the beginning and whenever tiles are complete. None and False report
            nothing.

    Returns:
        The product, on the CPU; or out.

    Raises:
        RuntimeError: an argument cannot be taken; the text names it and the remedy. Also if a or b
            requires a gradient, or max_device_bytes is too small for any tile.
        torch.OutOfMemoryError: a GPU has no memory even for small tiles, or the host has none for
            the result.
        Interrupted: Ctrl-C. Tiles of out are complete, or as they were.

    Examples:
        >>> a, b = torch.randn(300, 200), torch.randn(200, 100)
        >>> torch_tiled.stream.matmul(a, b).shape
        torch.Size([300, 100])
    """
    problem, result = make_problem(a, b, out, precision, algorithm)
    _run(problem, devices, max_device_bytes, progress)
    return result


@public
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    out: torch.Tensor | None = None,
    devices: Devices = None,
    max_device_bytes: int | None = None,
    precision: str = "fp32",
    algorithm: str = "auto",
    progress: Report = None,
) -> torch.Tensor:
    """activation(x @ weight.mT + bias) of operands that need not fit into the memory of a GPU.

    The result has the shape and the dtype of torch_tiled.linear and, on a GPU, its bits. The plan
    is the one of matmul(x, weight.mT), and each GPU has a copy of the bias besides.

    Args:
        x: (..., in_features), with at least one dimension, of any strides, on the CPU. One of x and
            weight may be on a GPU.
        weight: (out_features, in_features), of x's dtype.
        bias: (out_features,), of x's dtype, on the CPU or a GPU; or None.
        activation: "none", "relu", "gelu", "gelu_tanh" (its tanh approximation), "tanh" or "silu";
            "none" alone for complex operands.
        out: a tensor of the result's shape and dtype on the CPU that is written to; it may map a
            file, and may not share memory with x, weight or bias.
        devices: as for matmul.
        max_device_bytes: as for matmul.
        precision: as for torch_tiled.matmul.
        algorithm: as for torch_tiled.matmul.
        progress: as for matmul.

    Returns:
        (..., out_features), on the CPU; or out.

    Raises:
        RuntimeError: an argument cannot be taken, as for matmul; also if weight is a
            torch_tiled.Prepared.
        torch.OutOfMemoryError: as matmul does.
        Interrupted: as matmul does.

    Examples:
        >>> x, weight, bias = torch.randn(300, 200), torch.randn(100, 200), torch.randn(100)
        >>> torch_tiled.stream.linear(x, weight, bias, activation="gelu").shape
        torch.Size([300, 100])
    """
    problem, result = make_linear_problem(x, weight, bias, activation, out, precision, algorithm)
    _run(problem, devices, max_device_bytes, progress)
    return result


@public
def plan(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    devices: Devices = None,
    max_device_bytes: int | None = None,
    precision: str = "fp32",
    algorithm: str = "auto",
) -> Plan:
    """How torch_tiled.stream.matmul would compute a @ b with these options; print it.

    Without a GPU the plan is for an H200, and max_device_bytes has to be given.

    Args:
        a: as for matmul, but not read. a, b and out may be on the meta device, which counts as
            pinned memory.
        b: as for matmul.
        out: as for matmul.
        devices: as for matmul.
        max_device_bytes: as for matmul.
        precision: as for matmul.
        algorithm: as for matmul.

    Returns:
        A Plan: tiles, panels, passes over a and b, bytes that move, and the predicted seconds.

    Raises:
        RuntimeError: as matmul does.

    Examples:
        >>> a = torch.empty(65536, 65536, device="meta")
        >>> plan = torch_tiled.stream.plan(a, a, max_device_bytes=16 * 2**30)
        >>> plan.kept, plan.bound
        ('b', 'products')
    """
    problem, _ = make_problem(a, b, out, precision, algorithm, is_plan=True)
    settings = _settings(problem, devices, max_device_bytes, is_plan=True)
    return plan_product(problem, settings)


def _run(problem, devices, max_device_bytes, progress):
    settings = _settings(problem, devices, max_device_bytes)
    report = make_report(progress)
    try:
        run(problem, settings, report)
    finally:
        report.close()


def _settings(problem, devices, max_device_bytes, *, is_plan=False):
    """The devices and what they offer, from matmul's arguments."""
    given = None if max_device_bytes is None else _budget(max_device_bytes)
    found = _devices(problem, devices)
    if not found and is_plan:
        if given is None:
            fail("there is no GPU whose memory counts; pass max_device_bytes")
        return Settings((), given, Machine(), None, Machine().device)
    if not found:
        return Settings((), 0, Machine(), None, None)
    properties = [torch.cuda.get_device_properties(x) for x in found]
    kinds = {(10 * x.major + x.minor, x.multi_processor_count) for x in properties}
    if len(kinds) > 1:
        fail(
            f"devices are GPUs of several kinds, {', '.join(x.name for x in properties)}; pass "
            "GPUs of one kind, which compute the same bits"
        )
    if given is None:
        budget = int(_SHARE_OF_FREE_MEMORY * min(map(_free_bytes, found)))
    else:
        budget = given
    kind = kinds.pop()
    machine = Machine(device=kind, staging_threads=threads_of(len(found)))
    return Settings(tuple(found), budget, machine, CudaQueues, kind)


def _budget(max_device_bytes):
    budget = whole_number(max_device_bytes)
    if budget is None:
        given = shown(max_device_bytes)
        fail(f"max_device_bytes is {given}; pass a whole number of bytes, such as int(16e9)")
    if budget <= 0:
        fail(f"max_device_bytes is {budget}; it must be positive")
    return budget


def _free_bytes(device):
    """The free bytes of a GPU: those that the driver has left, and unused ones of the allocator."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused


def _devices(problem, devices):
    """The GPUs, or [] for the CPU."""
    operand = next((x.device for x in (problem.a, problem.b) if x.device.type == "cuda"), None)
    if devices is None:
        if operand is not None:
            return [operand]
        if not torch.cuda.is_available():
            return []
        return [torch.device("cuda", torch.cuda.current_device())]
    some = [devices] if _device(devices) else devices
    is_list = isinstance(some, Sequence) and not isinstance(some, (str, bytes))
    found = [_device(x) for x in some] if is_list else [None]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    remedy = f'pass "cpu", or one or a list of the {gpus} GPUs here, such as 0 or "cuda:0"'
    if gpus == 0:
        remedy = 'pass "cpu" or None, since there is no GPU here'
    if None in found:
        fail(f"devices is {shown(devices)}, which names no devices; {remedy}")
    if not found:
        fail("devices is empty; name a GPU, or pass None for the current one")
    if [x.type for x in found] == ["cpu"]:
        if operand is not None:
            fail(f"an operand is on {operand}, and devices is the CPU; pass devices=None")
        return []
    for x in found:
        if x.type != "cuda":
            fail(f"devices has {x}; each must be a CUDA device, or the CPU alone")
        if (x.index or 0) not in range(gpus):
            fail(f"devices has {x}, which is not here; {remedy}")
    found = [
        torch.device("cuda", torch.cuda.current_device()) if x.index is None else x for x in found
    ]
    if len(set(found)) < len(found):
        fail(f"devices names a GPU twice: {', '.join(map(str, found))}")
    return found


def _device(x):
    """The torch.device that an element of `devices` names, or None."""
    if isinstance(x, torch.device):
        return x
    index = whole_number(x)
    name = x if index is None else f"cuda:{index}"
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError):
        return None
    return found if str(found) == name else None  # indices beyond 127 wrap around
