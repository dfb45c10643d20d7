"""The tensors that the operators take."""

import torch

__all__ = ["DTYPES", "SIXTEEN_BIT", "why_unsupported"]

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIXTEEN_BIT = (torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")


def why_unsupported(tensor: torch.Tensor, name: str = "operand") -> str | None:
    """Returns why torch_tiled does not multiply by this tensor, or None if it does.

    The text continues a sentence after "since". A meta tensor is supported: its product is a meta
    tensor.
    """
    if tensor.is_nested:
        return f"its {name} is a nested tensor"
    if tensor.is_quantized:
        return f"its {name} is quantized ({tensor.dtype})"
    if tensor.layout is not torch.strided:
        return f"its {name} is {tensor.layout}"
    if tensor.dtype not in DTYPES:
        return f"its {name} is {tensor.dtype}"
    if tensor.device.type not in _DEVICES:
        return f"its {name} is on {tensor.device}"
    return None
