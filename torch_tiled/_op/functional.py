"""Writes of complex tensors in a graph: a product in memory of its own, and a copy.

AOTAutograd replaces an operator that writes to its argument by auto_functionalized_v2, and Inductor
of torch 2.13 does not compile that of complex tensors. For the real part of a complex tensor it
passes the complex one to the operator. It replaces copy_, an operator of ATen, by others that
Inductor compiles, in views of complex tensors, too. Other tensors take PyTorch's way, which copies
nothing if Inductor finds that it need not.
"""

import torch

from .._internals import FunctionalTensor, FunctionalTensorMode
from .checks import check_gemm_, check_matmul_out
from .namespace import operators

_matmul_out = operators.matmul.out
_gemm = operators.gemm_.default


def _is_complex(x):
    """Whether x is a complex tensor, or a view of one."""
    if not isinstance(x, FunctionalTensor):
        return False
    return x.is_complex() or (x._base is not None and x._base.is_complex())


def _functional_matmul_out(mode, op, types, args, kwargs):
    if not _is_complex(kwargs["out"]):
        return mode.__torch_dispatch__(op, types, args, kwargs)
    check_matmul_out(*args, **kwargs)
    options = dict(kwargs)
    out = options.pop("out")
    with mode:
        out.copy_(operators.matmul(*args, **options))
    return None


def _functional_gemm(mode, op, types, args, kwargs):
    if not _is_complex(args[0]):
        return mode.__torch_dispatch__(op, types, args, kwargs)
    check_gemm_(*args, **kwargs)
    with mode:
        args[0].copy_(operators._gemm(*args, **kwargs))
    return None


def register(library):
    for op, rule in ((_matmul_out, _functional_matmul_out), (_gemm, _functional_gemm)):
        torch.library.register_torch_dispatch(op, FunctionalTensorMode, rule, lib=library)
