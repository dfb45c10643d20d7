"""How the functions of torch_tiled/ops.py call an operator."""

from torch.compiler import is_dynamo_compiling

from .._internals import (
    BelowAutograd,
    argument_names,
    call_without_python,
    is_jit_tracing,
    transforms_active,
)
from .argument_types import check_are_tensors, raise_if_of_wrong_type
from .fast_path import is_plain
from .gradient_flow import is_differentiated
from .namespace import name_in_texts
from .out_of_memory import raise_if_out_of_memory
from .sharding import register_if_needed


def entry_points(op):
    """An OpOverload, the same without its Python frame, and names for errors; for call()."""
    name = name_in_texts(op)
    return op, call_without_python(op), name, argument_names(op)


def call(entries, *tensors, **options):
    """Calls an operator, below its Autograd key if the kernel there would do nothing.

    That kernel is Python, and finding out that it is not needed costs less than calling it.

    Args:
        entries: entry_points(op).
        tensors: the operator's tensors, without a bias that is None.
        options: its keyword arguments. A call without those that have their default values is
            cheaper.

    Raises:
        torch.OutOfMemoryError: memory ran out; the operator itself can only raise a RuntimeError.
        RuntimeError: as the operator does; also if an argument is of a wrong type.
    """
    op, direct, name, arguments = entries
    # No handler while Dynamo traces: torch 2.14 shows what one raises again as a repr.
    if is_dynamo_compiling():
        check_are_tensors(name, arguments, tensors, options)
        return op(*tensors, **options)
    try:
        if "out" not in options and is_plain(*tensors) and not is_differentiated(*tensors):
            with BelowAutograd():
                return direct(*tensors, **options)
        register_if_needed()  # inference mode skips Autograd, and its kernels do it otherwise
        if is_jit_tracing() and transforms_active():
            _refuse_trace_of_transform(name)
        return op(*tensors, **options)
    except (RuntimeError, AttributeError) as error:
        check_are_tensors(name, arguments, tensors, options)
        raise_if_out_of_memory(error)
        raise_if_of_wrong_type(error)
        raise


def _refuse_trace_of_transform(op_name):
    raise RuntimeError(
        f"{op_name}: torch.jit.trace does not record what is computed inside of torch.vmap or a "
        f"transform of torch.func; trace a function without them, or use torch.export or "
        f"torch.compile"
    )
