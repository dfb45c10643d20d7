"""The operators of torch.ops.tiled: one file for each thing that PyTorch's dispatcher runs.

csrc/binding/ops.cpp defines the schemas and the kernels of the keys CPU and CUDA. The kernels of
all other keys are written in Python, and importing this package registers them. A call visits the
keys from the top of this list to the bottom, and skips each that its tensors and modes do not set:

    file            dispatch key                what it does there
    --------------  --------------------------  --------------------------------------------------
    vmap.py         FuncTorchBatched            makes the mapped dimension a batch dimension
    autocast.py     AutocastCPU, AutocastCUDA   casts operands to the region's dtype
    autograd.py     Autograd                    applies a Function if a derivative is asked for
    inplace.py      Autograd                    refuses derivatives through gemm_ and out=
                    ADInplaceOrView             counts the write in the tensor's version
    lazy.py         Conjugate, Negative         leaves the bits of complex views to csrc
    sharding.py     Python (of a DTensor)       divides a product among devices
    functional.py   Python (functionalization)  makes the write of a complex tensor a copy_
    fake.py         Python (FakeTensor), Meta   checks the arguments, returns an empty result
    layouts.py      SparseCPU, QuantizedCPU,    refuses the tensor and names a remedy
                    NestedTensorCPU, ...
    csrc/binding/   CPU, CUDA                   checks the arguments, runs a kernel

PyTorch's own kernel handles Functionalize. Inside torch.func transforms, the
dispatcher starts over once for each level, the innermost transform first: a level of vmap runs the
kernel of FuncTorchBatched, a level of grad or jvp that of Autograd.

The functions in torch_tiled/ops.py, and torch.ops.tiled.matmul, linear and gemm_ as packets.py has
Python call them, enter in one of these ways:

    file            used for                    where it enters
    --------------  --------------------------  --------------------------------------------------
    fast_path.py    plain tensors, no options   _plain_matmul and the like, which skip Autograd
    call.py         plain tensors, options,     the operator, below Autograd
                    nothing to differentiate
    call.py         everything else             the operator, at its highest key
    row_calls.py    plain tensors, reductions   the operator below Autograd, or its Function

These files are used by several of the above:

    derivatives.py      the Functions: forward, backward and jvp of matmul, linear, grouped_mm
    attention.py        the derivatives of attention: a kernel for gradients, else a composite
    attention_packed.py those of packed sequences, a kernel's or a padded batch's
    rows.py             the derivatives of reductions of rows, and vmap
    channels.py         _channel_affine, for the parameters of group norms
    convolution.py      convolutions: derivatives, vmap, checks
    gather.py           _row_gather and _row_scatter, for the classes of losses
    gradient_flow.py    asks if a gradient or a tangent may flow through a tensor
    checks.py           the argument checks and error texts, the same as in csrc
    supported.py        the dtypes, layouts and devices that the operators take
    activations.py      the activations of linear as PyTorch functions
    sharding_rules.py   the DTensor rules, imported after torch.distributed.tensor
    out_of_memory.py    raises torch.OutOfMemoryError for the shared library, which cannot
    flops.py            the formulas of torch.utils.flop_counter
    namespace.py        the namespace that _C.so was built for
    library.py          loads _C.so

Private names of PyTorch come from torch_tiled/_internals.py.
"""

import torch

from . import library  # noqa: F401, first: the modules below look up operators that it loads

# isort: split
from . import (
    autocast,
    autograd,
    channels,
    convolution,
    fake,
    fast_path,
    flops,
    functional,
    gather,
    inplace,
    layouts,
    lazy,
    packets,
    rows,
    vmap,
)
from .namespace import NAMESPACE

_registrations = torch.library.Library(NAMESPACE, "FRAGMENT")  # they last as long as this object
for _module in (
    vmap,
    autocast,
    autograd,
    rows,
    channels,
    convolution,
    gather,
    inplace,
    lazy,
    functional,
    fake,
    layouts,
    fast_path,
):
    _module.register(_registrations)
flops.register()
packets.enter()
