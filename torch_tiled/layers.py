"""Layers without a state of their own: kernels.kernelize gives their forward to a model's layers.

kernelize, a function of the package `kernels`, binds forward to a torch.nn.Linear, which keeps its
class and its parameters. So these classes have neither a constructor nor other methods. The class
names the precision, since kernelize passes no options.
"""

import torch
import torch.nn.functional as F

from ._routes import PRODUCTS
from ._routes import linear as linear_of_pytorch

__all__ = ["Linear", "LinearIEEE", "LinearTF32"]


def _forward(precision: str, layer: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    """Multiplies by torch_tiled if it takes the operands, otherwise by PyTorch."""
    result = linear_of_pytorch(PRODUCTS[precision], input, layer.weight, layer.bias)
    return F.linear(input, layer.weight, layer.bias) if result is None else result


class Linear(torch.nn.Module):
    """The forward of torch.nn.Linear by torch_tiled.linear, in precision "fp32"."""

    has_backward = True
    can_torch_compile = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _forward("fp32", self, input)


class LinearIEEE(torch.nn.Module):
    """The forward of torch.nn.Linear by torch_tiled.linear, in precision "ieee"."""

    has_backward = True
    can_torch_compile = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _forward("ieee", self, input)


class LinearTF32(torch.nn.Module):
    """The forward of torch.nn.Linear by torch_tiled.linear, in precision "tf32"."""

    has_backward = True
    can_torch_compile = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _forward("tf32", self, input)
