"""The operators in autocast regions: matmul, linear and grouped_mm cast their operands as
torch.matmul does.

float64 operands and other devices' operands are not cast. gemm_ and matmul.out have no kernel here:
a written tensor keeps its dtype, as in torch.mm(..., out=).
"""

import torch

from .._internals import DispatchKey, DispatchKeySet, ExcludeKeys
from .gradient_flow import refuse_derivative_of_prepared
from .namespace import operators

_matmul = operators.matmul.default
_linear = operators.linear.default
_grouped_mm = operators.grouped_mm.default


def _casting(op, device, key):
    """The kernel of op at an autocast key: casts, then calls op with that key excluded."""
    excluded = DispatchKeySet(key)

    def kernel(*tensors, **options):
        dtype = torch.get_autocast_dtype(device)

        def cast(tensor):
            if tensor is None or tensor.device.type != device or not tensor.is_floating_point():
                return tensor
            return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

        with ExcludeKeys(excluded):
            return op(*map(cast, tensors), **options)

    return kernel


def _casting_prepared(op_name, operand_name, casting):
    """The kernel for a prepared operand. Its hi and lo parts are of the uncast tensor, so the
    product is the unprepared one."""

    def kernel(x, prepared, hi_lo, inverse_scales, *bias, **options):
        refuse_derivative_of_prepared(op_name, operand_name, prepared)
        return casting(x, prepared, *bias, **options)

    return kernel


def register(library):
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        excluded = getattr(DispatchKey, key)
        matmul, linear = (_casting(op, device, excluded) for op in (_matmul, _linear))
        library.impl("matmul", matmul, key)
        library.impl("linear", linear, key)
        library.impl("grouped_mm", _casting(_grouped_mm, device, excluded), key)
        library.impl("matmul.prepared", _casting_prepared("tiled::matmul", "b", matmul), key)
        library.impl("linear.prepared", _casting_prepared("tiled::linear", "weight", linear), key)
