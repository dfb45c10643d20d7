"""Tensors that are not plain: what they are, and how they become plain."""

import torch

from .._op.supported import PLAIN_TYPES

__all__ = ["why_not_plain"]

# PyTorch's subclasses whose elements as_subclass() does not give, and the expression that does.
_REMEDIES = {
    "AsyncCollectiveTensor": "pass {0}.wait()",
    "DTensor": "pass {0}.full_tensor(), or {0}.to_local(), the part of this process",
    "FakeTensor": "pass a tensor with elements, or to torch_tiled.stream.plan one on meta",
    "FunctionalTensor": "call it outside of torch.compile and torch.export",
    "MaskedTensor": "pass {0}.to_tensor(0), with zeros where the mask is False",
}


def why_not_plain(name, x):
    """Returns why a tensor cannot be streamed by its strides, and the remedy; or None."""
    kind = type(x).__qualname__
    if x.is_nested:
        return f"is a nested tensor; pass {name}.to_padded_tensor(0), or each of {name}.unbind()"
    if kind in _REMEDIES:
        return f"is a {kind}; {_REMEDIES[kind].format(name)}"
    if x.layout is not torch.strided:
        return f"has the layout {x.layout}; pass {name}.to_dense()"
    if type(x) not in PLAIN_TYPES:
        return f"is a {kind}, a subclass of torch.Tensor; pass {name}.as_subclass(torch.Tensor)"
    if x.is_quantized:
        return f"is quantized ({x.dtype}); pass {name}.dequantize()"
    return None
