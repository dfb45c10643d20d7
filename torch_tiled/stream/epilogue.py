"""What follows the sums of a streamed product: a bias and an activation."""

import dataclasses

import torch

from .._op.namespace import operators

__all__ = ["IDENTITY", "Epilogue"]


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """activation(sum + bias).

    Attributes:
        bias: (n,), contiguous and without lazy bits, of the operands' dtype; or None.
        activation: as for torch_tiled.linear.
    """

    bias: torch.Tensor | None = None
    activation: str = "none"

    @property
    def is_identity(self):
        """Whether the result is the sums, rounded."""
        return self.bias is None and self.activation == "none"

    def to(self, device):
        """Returns the Epilogue with its bias on another device."""
        return self if self.bias is None else Epilogue(self.bias.to(device), self.activation)

    def of(self, columns):
        """Returns the Epilogue of some columns of C: a slice, or a tensor of indices."""
        return self if self.bias is None else Epilogue(self.bias[columns], self.activation)

    def apply_(self, sums):
        """Finishes the sums of all of K, (m, n), in place, as a kernel does before it rounds."""
        if self.bias is not None:
            _parts(sums).add_(_parts(self.bias))
        if self.activation != "none":
            operators._activate_(sums, activation=self.activation)


IDENTITY = Epilogue()


def _parts(x):
    """Complex numbers as pairs, since PyTorch's sum of complex ones may make NaN of an Inf."""
    return torch.view_as_real(x) if x.is_complex() else x
