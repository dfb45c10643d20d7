"""Layers."""

import torch

from .ops import linear


class Linear(torch.nn.Linear):
    """torch.nn.Linear by torch_tiled.linear, with an activation in the same launch.

    Parameters, their initial values and the state_dict are those of torch.nn.Linear, so that each
    loads what the other saved.

    Args:
        in_features, out_features, bias, device, dtype: as for torch.nn.Linear.
        activation: "none", "relu", "gelu", "gelu_tanh", "tanh" or "silu".
        precision, algorithm: as for torch_tiled.matmul.

    Shape:
        (..., in_features) to (..., out_features); the input needs at least one dimension.

    Raises:
        RuntimeError: in forward, as torch_tiled.linear does.

    Example::

        >>> layer = torch_tiled.nn.Linear(32, 16, activation="relu")
        >>> layer(torch.randn(8, 32)).shape
        torch.Size([8, 16])
    """

    def __init__(
        self,
        in_features,
        out_features,
        bias=True,
        device=None,
        dtype=None,
        *,
        activation="none",
        precision="fp32",
        algorithm="auto",
    ):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.precision = precision
        self.algorithm = algorithm

    def forward(self, input):
        return linear(
            input,
            self.weight,
            self.bias,
            activation=self.activation,
            algorithm=self.algorithm,
            precision=self.precision,
        )

    def extra_repr(self):
        return (
            f"{super().extra_repr()}, activation={self.activation}, "
            f"precision={self.precision}, algorithm={self.algorithm}"
        )
