"""Products of tensors that nobody watches: no transform, mode, subclass or compiler.

Finding that out costs less than the Python kernels that the operators have for those who do, and
options are a good part of what a small product costs. So these operators have neither.
"""

import torch
from torch.compiler import is_dynamo_compiling

from ._internals import (
    call_without_python,
    dispatch_modes,
    forward_ad_active,
    function_modes,
    transforms_active,
)

_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))

matmul = call_without_python(torch.ops.tiled._plain_matmul.default)
linear = call_without_python(torch.ops.tiled._plain_linear.default)


def is_plain(*tensors):
    """Whether nothing but the recording of gradients may be in play, and autocast."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES:
            return False
    return not (
        is_dynamo_compiling()
        or function_modes()
        or dispatch_modes()
        or transforms_active()
        or forward_ad_active()
    )


# What is not dense, not on a device, or to be cast is the other operators' after all.


def _matmul_of_others(a, b):
    return torch.ops.tiled.matmul(a, b)


def _linear_of_others(x, weight, bias):
    return torch.ops.tiled.linear(x, weight, bias)


_OTHERS = "CompositeExplicitAutograd NestedTensorCPU NestedTensorCUDA AutocastCPU AutocastCUDA"


def register(library):
    ways = {"_plain_matmul": _matmul_of_others, "_plain_linear": _linear_of_others}
    for name, way in ways.items():
        for key in _OTHERS.split():
            library.impl(name, way, key)
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
