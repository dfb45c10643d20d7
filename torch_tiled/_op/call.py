"""How the functions of torch_tiled/ops.py, and torch.ops.tiled, call an operator."""

import torch
from torch.compiler import is_dynamo_compiling

from .._internals import (
    BelowAutograd,
    OpOverloadPacket,
    argument_names,
    call_without_python,
    is_jit_tracing,
    transforms_active,
)
from .argument_types import check_are_tensors, raise_if_of_wrong_type
from .fast_path import is_plain
from .gradient_flow import may_require_grad
from .namespace import name_in_texts
from .out_of_memory import raise_if_out_of_memory
from .sharding import register_if_needed

# What is no tensor, nor stands for one: an object with __torch_function__ may have a gradient.
_OPTIONS = (str, int, float, torch.dtype, type(None))


def entry_points(op):
    """What call() takes of an OpOverload, or of an OpOverloadPacket.

    Returns the operator, the same without its Python frame, and names for errors.
    """
    overload = op.default if isinstance(op, OpOverloadPacket) else op
    return op, call_without_python(op), name_in_texts(overload), argument_names(overload)


def call(entries, *args, **options):
    """Calls an operator, below its Autograd key if the kernel there would do nothing.

    That kernel is Python, and finding out that it is not needed costs less than calling it.

    Args:
        entries: entry_points(op).
        args: the operator's tensors.
        options: its keyword arguments. A call without those with default values is cheaper.

    Raises:
        torch.OutOfMemoryError: where the operator itself can only raise a RuntimeError.
        RuntimeError: as the operator does; also if an argument is of a wrong type.
    """
    op, direct, name, arguments = entries
    # No handler where Dynamo traces: torch 2.14 shows what one raises again as a repr.
    if is_dynamo_compiling():
        check_are_tensors(name, arguments, args, options)
        return op(*args, **options)
    try:
        if "out" not in options:
            tensors = [x for x in (*args, *options.values()) if not isinstance(x, _OPTIONS)]
            if is_plain(*tensors) and not may_require_grad(*tensors):
                with BelowAutograd():
                    return direct(*args, **options)
        register_if_needed()  # inference mode skips Autograd, and its kernels do it otherwise
        if is_jit_tracing() and transforms_active():
            _refuse_trace_of_transform(name)
        return direct(*args, **options)
    except (RuntimeError, AttributeError) as error:
        check_are_tensors(name, arguments, args, options)
        raise_if_out_of_memory(error)
        raise_if_of_wrong_type(error)
        raise


def _refuse_trace_of_transform(op_name):
    raise RuntimeError(
        f"{op_name}: torch.jit.trace does not record what is computed inside of torch.vmap or a "
        f"transform of torch.func; trace a function without them, or use torch.export or "
        f"torch.compile"
    )
