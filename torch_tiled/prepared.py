"""A matrix that is split into hi and lo parts once, for many products."""

import torch

from ._internals import GetAttrKey, register_pytree_node
from ._op.namespace import operators
from .version import numerics_version

_LEAVES = ("tensor", "hi_lo", "inverse_scales")


class Prepared:
    """The result of torch_tiled.prepare: a right operand of torch_tiled.matmul, split beforehand.

    It has the shape, dtype and device of the tensor that it was made of. It is a pytree of plain
    tensors: it passes through torch.compile, torch.export and the transforms of torch.func, and
    torch.utils' tree functions can move it to another device.

    Attributes:
        tensor: the operand itself, (k, n), not a copy. After a write to it, prepare it again.
        hi_lo: uint8, (bytes,): the hi and lo float16 parts of the scaled operand, in the kernels'
            layout; empty if products do not split it. For a complex64 operand the real matrix that
            stands for it follows.
        inverse_scales: float32, (groups,): one for each column and chunk of K; empty if products do
            not split the operand.
        transposed: whether it is a weight of torch_tiled.linear, so that `tensor` is (n, k).

    Examples:
        >>> prepared = torch_tiled.prepare(torch.randn(64, 16))
        >>> prepared.shape, prepared.mT.shape
        (torch.Size([64, 16]), torch.Size([16, 64]))
    """

    def __init__(self, tensor, hi_lo, inverse_scales, transposed=False):
        self.tensor = tensor
        self.hi_lo = hi_lo
        self.inverse_scales = inverse_scales
        self.transposed = transposed

    @property
    def mT(self):
        """The transpose; torch_tiled.linear takes prepare(weight.mT).mT as a weight."""
        return Prepared(self.tensor.mT, self.hi_lo, self.inverse_scales, not self.transposed)

    @property
    def mH(self):
        """The transpose of the conjugate, as conj().mT."""
        return self._conjugate("mH", ".mT" * (not self.transposed)).mT

    def conj(self):
        """The conjugate, without a copy. That of a complex64 operand has to be prepared itself.

        Raises:
            AttributeError: the operand is complex64.
        """
        return self._conjugate("conj()", ".mT" * self.transposed)

    def _conjugate(self, name, transpose):
        if self.dtype == torch.complex64:  # its real matrix has the signs of imaginary parts
            raise AttributeError(
                f"torch_tiled.Prepared: {name} of a complex64 operand b is no view of its real "
                f"matrix; pass torch_tiled.prepare(b.conj()){transpose}"
            )
        return Prepared(self.tensor.conj(), self.hi_lo, self.inverse_scales, self.transposed)

    @property
    def shape(self):
        """The shape of `tensor`."""
        return self.tensor.shape

    @property
    def dtype(self):
        """The dtype of `tensor`."""
        return self.tensor.dtype

    @property
    def device(self):
        """The device of `tensor`."""
        return self.tensor.device

    @property
    def nbytes(self):
        """The bytes of hi_lo and inverse_scales."""
        return self.hi_lo.nbytes + self.inverse_scales.nbytes

    def __getstate__(self):
        return {**self.__dict__, "numerics_version": numerics_version}

    def __setstate__(self, state):
        """Splits the operand again if it was saved by another version of the numerics."""
        tensor, transposed = state["tensor"], state.get("transposed", False)
        if state.get("numerics_version") == numerics_version:
            parts = state["hi_lo"], state["inverse_scales"]
        else:
            parts = operators.prepare(tensor.mT if transposed else tensor)
        self.__init__(tensor, *parts, transposed)

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
    serialized_type_name=f"{__package__}.Prepared",
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([Prepared])  # for torch.load(..., weights_only=True)
