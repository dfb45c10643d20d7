"""Layers: torch.nn.Linear by torch_tiled.linear. Functions are in functional.py."""

import torch

from .._op.checks import check_options_of_linear
from ..frozen import Freezable
from ..ops import linear
from . import functional

__all__ = ["Linear", "functional"]


class Linear(Freezable, torch.nn.Linear):
    """torch.nn.Linear by torch_tiled.linear, with an activation in the same launch.

    It maps (..., in_features) to (..., out_features); the input needs at least one dimension.

    Its parameters, their initial values and its state_dict are torch.nn.Linear's, so each of
    the two loads a state_dict of the other. torch_tiled.freeze(model) freezes it.

    In an autocast region input, weight and bias are cast to the region's dtype, unless they are
    float64 or complex, and the result has that dtype unless out_dtype says another.

    Args:
        in_features: as for torch.nn.Linear.
        out_features: as for torch.nn.Linear.
        bias: as for torch.nn.Linear.
        device: as for torch.nn.Linear.
        dtype: as for torch.nn.Linear; one that torch_tiled.matmul takes.
        activation: "none", "relu", "gelu", "gelu_tanh", "tanh" or "silu"; "none" if the dtype is
            complex.
        precision: as for torch_tiled.matmul.
        algorithm: as for torch_tiled.matmul.
        out_dtype: as for torch_tiled.linear: torch.float32 keeps the sums of a layer of 16-bit
            floats.

    Raises:
        RuntimeError: there is no such activation, precision or algorithm, or no such activation of
            complex numbers; in forward, as torch_tiled.linear does.

    Examples:
        >>> layer = torch_tiled.nn.Linear(32, 16, activation="relu")
        >>> layer(torch.randn(8, 32)).shape
        torch.Size([8, 16])
    """

    out_dtype: torch.dtype | None = None  # of layers that were pickled without one

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "none",
        precision: str = "fp32",
        algorithm: str = "auto",
        out_dtype: torch.dtype | None = None,
    ) -> None:
        check_options_of_linear(activation, algorithm, precision, dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.precision = precision
        self.algorithm = algorithm
        self.out_dtype = out_dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._multiply(input, self.weight, self.bias)

    def _multiply(self, input, weight, bias):
        return linear(
            input,
            self._prepared(weight) if self._frozen and self._is_split(weight) else weight,
            bias,
            activation=self.activation,
            algorithm=self.algorithm,
            precision=self.precision,
            out_dtype=self.out_dtype,
        )

    def extra_repr(self):
        return (
            f"{super().extra_repr()}, activation={self.activation}, "
            f"precision={self.precision}, algorithm={self.algorithm}"
            f"{'' if self.out_dtype is None else f', out_dtype={self.out_dtype}'}"
            f"{', frozen' if self._frozen else ''}"
        )
