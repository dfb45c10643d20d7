"""What torch_tiled multiplies."""

import torch

__all__ = ["why_unsupported"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")


def why_unsupported(tensor: torch.Tensor, name: str = "operand") -> str | None:
    """Why torch_tiled does not multiply by this tensor, in words that go on from "since"; or None.

    Meta tensors are multiplied as those are, without numbers.
    """
    if tensor.is_nested:
        return f"its {name} is a nested tensor"
    if tensor.is_quantized:
        return f"its {name} is quantized ({tensor.dtype})"
    if tensor.layout is not torch.strided:
        return f"its {name} is {tensor.layout}"
    if tensor.dtype not in _DTYPES:
        return f"its {name} is {tensor.dtype}"
    if tensor.device.type not in _DEVICES:
        return f"its {name} is on {tensor.device}"
    return None
