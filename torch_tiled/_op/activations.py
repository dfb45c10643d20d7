"""The activations that torch_tiled.linear applies, as PyTorch functions.

A kernel applies the activation in its epilogue. These functions serve if the activation has to
be an operator of its own: its derivative needs the product before the activation, or a bias differs
among the examples of a vmap. The activation "none" has no entry.
"""

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": F.silu,
}
