"""The tensors that the operators take."""

import functools

import torch

from .._internals import assume_constant_result

__all__ = [
    *("COMPLEX", "DTYPES", "PLAIN_TYPES", "SIXTEEN_BIT"),
    *("is_hopper", "is_supported", "is_traced", "why_unsupported"),
]

SIXTEEN_BIT = (torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (torch.float32, torch.float64, *SIXTEEN_BIT, *COMPLEX)
_STRIDED = torch.strided
_DEVICES = ("cpu", "cuda", "meta")

PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))

# PyTorch's own wrappers, which multiply the tensors in them: DTensor; the result of a
# collective that may still run, which DTensor.to_local() returns; the tensors that torch.compile
# and torch.export trace with. (torch.func's are torch.Tensors in Python.) They are named,
# since importing some takes long. Any other subclass may give a product a meaning of its own.
_TRACED = frozenset(
    (
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._subclasses.functional_tensor.FunctionalTensor",
    )
)
_WRAPPERS = _TRACED | {
    "torch.distributed.tensor.DTensor",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
}


@functools.cache
def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None


@assume_constant_result
def is_hopper(device: torch.device) -> bool:
    """Returns whether this is a Hopper GPU of this machine, asking for its properties once."""
    return _capability(device) == (9, 0)


def _name_of_type(tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def is_traced(tensor: torch.Tensor) -> bool:
    """Returns whether torch.compile or torch.export traces with this tensor."""
    return _name_of_type(tensor) in _TRACED


def is_supported(tensor: torch.Tensor) -> bool:
    """Returns whether this is a tensor that torch_tiled multiplies."""
    if type(tensor) in PLAIN_TYPES and tensor.dtype in DTYPES and tensor.layout is _STRIDED:
        if (tensor.is_cuda or tensor.is_cpu) and not tensor.is_nested:
            return True
    return isinstance(tensor, torch.Tensor) and why_unsupported(tensor) is None


def why_unsupported(tensor: torch.Tensor, name: str = "operand") -> str | None:
    """Returns why torch_tiled does not multiply by this tensor, or None if it does.

    The text continues a sentence after "since". A meta tensor is supported: its product is a meta
    tensor. Anything but a tensor is left to the operators, which refuse it.
    """
    if not isinstance(tensor, torch.Tensor):
        return None
    kind = type(tensor)
    if kind not in PLAIN_TYPES and _name_of_type(tensor) not in _WRAPPERS:
        if kind.__qualname__ == "NestedTensor":  # of layout torch.jagged
            return f"its {name} is a nested tensor"
        return f"its {name} is a {kind.__qualname__}, which may multiply in a way of its own"
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
