"""Tensors that are not plain: what they are, and how they become plain."""

from .._op.layouts import why_not_dense
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
    if kind in _REMEDIES:
        return f"is a {kind}; {_REMEDIES[kind].format(name)}"
    if found := why_not_dense(name, x):
        return "is a {}; use {}".format(*found)
    if type(x) not in PLAIN_TYPES:
        return f"is a {kind}, a subclass of torch.Tensor; pass {name}.as_subclass(torch.Tensor)"
    return None
