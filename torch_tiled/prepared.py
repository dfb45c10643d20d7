"""An operand that is split once, for many products."""

import torch

from ._internals import GetAttrKey, register_pytree_node

_LEAVES = ("tensor", "hi_lo", "inverse_scales")


class Prepared:
    """What torch_tiled.prepare returns: the right operand of torch_tiled.matmul, split beforehand.

    It stands for the tensor it was made of, and is made of plain tensors: a pytree, which passes
    through torch.compile, torch.export and the transforms of torch.func, and whose leaves
    torch.utils' tree functions can move to another device.

    Attributes:
        tensor: the operand itself, not a copy. Its writer must prepare it anew.
        hi_lo, inverse_scales: what torch.ops.tiled.prepare made of it; empty where there is nothing to
            split.
        transposed: whether it stands for the weight of torch_tiled.linear.
    """

    def __init__(self, tensor, hi_lo, inverse_scales, transposed=False):
        self.tensor = tensor
        self.hi_lo = hi_lo
        self.inverse_scales = inverse_scales
        self.transposed = transposed

    @property
    def mT(self):
        """The transpose: of prepare(weight.mT), what torch_tiled.linear takes as its weight."""
        return Prepared(self.tensor.mT, self.hi_lo, self.inverse_scales, not self.transposed)

    @property
    def shape(self):
        return self.tensor.shape

    @property
    def dtype(self):
        return self.tensor.dtype

    @property
    def device(self):
        return self.tensor.device

    @property
    def nbytes(self):
        """The memory that it takes beside the tensor's own."""
        return self.hi_lo.nbytes + self.inverse_scales.nbytes

    def __repr__(self):
        return (
            f"Prepared(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, "
            f"nbytes={self.nbytes})"
        )


def _flatten(prepared):
    return [getattr(prepared, name) for name in _LEAVES], prepared.transposed


def _flatten_with_keys(prepared):
    leaves, transposed = _flatten(prepared)
    return [
        (GetAttrKey(name), leaf) for name, leaf in zip(_LEAVES, leaves, strict=True)
    ], transposed


register_pytree_node(
    Prepared,
    _flatten,
    lambda leaves, transposed: Prepared(*leaves, transposed),
    serialized_type_name="torch_tiled.Prepared",
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([Prepared])  # for torch.load(..., weights_only=True)
