"""Convolutions of torch.nn.functional by torch_tiled."""

import json
import math
import operator

import torch
import torch.nn.functional as F

from .._internals import is_jit_tracing
from .._op.activations import ACTIVATIONS
from .._op.call import call, entry_points
from .._op.namespace import operators
from .._op.supported import is_hopper, is_supported

__all__ = ["conv1d", "conv2d", "conv3d", "explain_conv"]

_conv = entry_points(operators._conv.default)
_TORCH = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
ALGORITHMS = ("auto", "fp16x3", "torch")
# From here on PyTorch's kernels are not faster: measured on an H200, docs/guide/convolutions.md.
_LEAST_CHANNELS, _LEAST_FILTERS, _LEAST_K = 48, 64, 512  # of a group
_MOST_REACH = {1: 120, 2: 120, 3: 15}  # of a filter, less 1, and of the padding: by TMA


def conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv1d by float16 products at float32's error, as conv2d computes it.

    Args:
        input: (images, channels, length), or without images. Any strides.
        weight: (filters, channels / groups, length).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: as for conv2d.
        dilation: as for PyTorch's function.
        groups: as for PyTorch's function.
        activation: as for conv2d.
        algorithm: as for conv2d.

    Returns:
        (images, filters, length); in the order of input's dimensions, as conv2d says.

    Raises:
        RuntimeError: as conv2d does.
        torch.OutOfMemoryError: as conv2d does.

    Examples:
        >>> x, weight = torch.randn(2, 8, 9), torch.randn(4, 8, 3)
        >>> torch_tiled.nn.functional.conv1d(x, weight).shape
        torch.Size([2, 4, 7])
    """
    given = (input, weight, bias, stride, padding, dilation, groups, activation, algorithm)
    return _convolve(1, *given)


def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv2d by float16 products at float32's error.

    An element's bits depend on its image, on its filter and on its place: not on the batch. No
    TF32 is in the result or in the gradients, whatever PyTorch's flags allow cuDNN: both gradients
    are the library's, too.

    Args:
        input: (images, channels, height, width), or without images. Any strides.
        weight: (filters, channels / groups, height, width).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: zeros on both sides: numbers, "valid" or, with a stride of 1, "same".
        dilation: as for PyTorch's function.
        groups: as for PyTorch's function; each group has a launch of its own.
        activation: "none", "relu", "gelu", "gelu_tanh", "tanh" or "silu".
        algorithm: "auto", "fp16x3" or "torch". "fp16x3" takes float32 tensors, on a Hopper GPU
            or, with the same bits but slowly, on a CPU. "torch" is PyTorch's function. "auto" is
            fp16x3 for float32 tensors on a Hopper GPU, outside of autocast regions, if a group
            has at least 64 filters of at least 48 channels and 512 weights,
            and else PyTorch's function: the layer alone decides, and not its input's size.

    Returns:
        (images, filters, height, width); in channels_last if input or weight is.

    Raises:
        RuntimeError: no such algorithm or activation; shapes, dtypes or devices that do not fit.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> x, weight = torch.randn(2, 64, 16, 16), torch.randn(32, 64, 3, 3)
        >>> torch_tiled.nn.functional.conv2d(x, weight, padding=1, activation="relu").shape
        torch.Size([2, 32, 16, 16])
    """
    given = (input, weight, bias, stride, padding, dilation, groups, activation, algorithm)
    return _convolve(2, *given)


def conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.conv3d by float16 products at float32's error, as conv2d computes it.

    Args:
        input: (images, channels, depth, height, width), or without images. Any strides.
        weight: (filters, channels / groups, depth, height, width).
        bias: (filters,), or None.
        stride: as for PyTorch's function.
        padding: as for conv2d.
        dilation: as for PyTorch's function.
        groups: as for PyTorch's function.
        activation: as for conv2d.
        algorithm: as for conv2d.

    Returns:
        (images, filters, depth, height, width); in the order of input's dimensions, as conv2d says.

    Raises:
        RuntimeError: as conv2d does.
        torch.OutOfMemoryError: as conv2d does.

    Examples:
        >>> x, weight = torch.randn(2, 8, *(5,) * 3), torch.randn(4, 8, 3, 3, 3)
        >>> torch_tiled.nn.functional.conv3d(x, weight).shape
        torch.Size([2, 4, 3, 3, 3])
    """
    given = (input, weight, bias, stride, padding, dilation, groups, activation, algorithm)
    return _convolve(3, *given)


def explain_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> dict[str, str | int]:
    """What "auto" would do for a convolution on a Hopper GPU outside of autocast regions, and why.

    Args:
        input: as for conv2d; of any device, also meta.
        weight: as for conv2d.
        bias: as for conv2d.
        stride: as for conv2d.
        padding: as for conv2d.
        dilation: as for conv2d.
        groups: as for conv2d.

    Returns:
        "algorithm": "fp16x3" or "torch"; "reason": a sentence; and the bytes that fp16x3 needs
        beside the result, "workspace_bytes", and for each of the two gradients at most,
        "workspace_bytes_of_gradient". Both are 0 if the algorithm is "torch".

    Raises:
        RuntimeError: as conv2d does for "fp16x3".

    Examples:
        >>> x, weight = torch.empty(8, 64, 56, 56), torch.empty(64, 64, 3, 3)
        >>> torch_tiled.nn.functional.explain_conv(x, weight, padding=1)["algorithm"]
        'fp16x3'
    """
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    check_are_tensors("torch_tiled.nn.functional.explain_conv", given)
    rank = weight.dim() - 2
    if rank not in _TORCH or input.dim() not in (rank + 1, rank + 2) or groups < 1:
        raise RuntimeError(
            f"torch_tiled.nn.functional.explain_conv: input is {tuple(input.shape)}, weight is "
            f"{tuple(weight.shape)} and groups is {groups}; weight must have 3 to 5 dimensions, "
            f"input as many, or one less without images, and groups must be positive"
        )
    wrong = [f"{name} is {x.dtype}" for name, x in given.items() if x.dtype != torch.float32]
    reason = f"{wrong[0]}, and fp16x3 takes torch.float32." if wrong else None
    of_layer = why_torch(rank, weight.shape, stride, padding, dilation, groups)
    reason = reason or of_layer
    stride, padding, dilation = _geometry(rank, weight.shape, stride, padding, dilation)
    shape = list(input.shape if input.dim() == rank + 2 else (1, *input.shape))
    if isinstance(padding[0], tuple):
        for d, sides in enumerate(padding):
            shape[d + 2] += sum(sides)
        padding = [0] * rank
    sms = 132
    if torch.cuda.is_available():
        sms = torch.cuda.get_device_properties(0).multi_processor_count
    sizes = shape, list(weight.shape), stride, padding, dilation, groups
    forward, *backward = (
        json.loads(operators._explain_conv.default(*sizes, result, sms))
        for result in ("y", "dx", "dw")
    )
    of_gradient = [each["workspace_bytes"] for each in backward]
    return {
        "algorithm": "torch" if reason else "fp16x3",
        "reason": reason or "The layer is large enough for three float16 products.",
        "workspace_bytes": 0 if reason else forward["workspace_bytes"],
        "workspace_bytes_of_gradient": 0 if reason else max(of_gradient),
    }


def _convolve(rank, input, weight, bias, stride, padding, dilation, groups, activation, algorithm):
    name = f"torch_tiled.nn.functional.conv{rank}d"
    check_algorithm(name, algorithm)
    if activation not in ("none", *ACTIVATIONS):
        raise RuntimeError(
            f'{name}: there is no activation "{activation}"; choose none, {", ".join(ACTIVATIONS)}'
        )
    check_are_tensors(name, {"input": input, "weight": weight})
    if algorithm == "torch" or (
        algorithm == "auto"
        and not takes(rank, input, weight, bias, stride, padding, dilation, groups)
    ):
        y = _TORCH[rank](input, weight, bias, stride, padding, dilation, groups)
        return y if activation == "none" else ACTIVATIONS[activation](y)
    check_dims(name, rank, input, weight)
    for argument, given in (("input", input), ("weight", weight)):
        if given.dtype != torch.float32:
            raise RuntimeError(
                f'{name}: {argument} is {given.dtype}, and "fp16x3" takes torch.float32; pass '
                f'{argument}.float(), or algorithm="torch"'
            )
    stride, padding, dilation = _geometry(rank, weight.shape, stride, padding, dilation)
    is_batch = input.dim() == rank + 2
    x = input if is_batch else input.unsqueeze(0)
    if isinstance(padding[0], tuple):  # another one on each side
        x = F.pad(x, [each for sides in reversed(padding) for each in sides])
        padding = [0] * rank
    y = call(
        *(_conv, x, weight, bias),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        activation=activation,
    )
    return y if is_batch else y.squeeze(0)


def check_algorithm(name, algorithm):
    if algorithm not in ALGORITHMS:
        *others, last = ALGORITHMS
        raise RuntimeError(
            f'{name}: there is no algorithm "{algorithm}"; choose {", ".join(others)} or {last}'
        )


def check_dims(name, rank, input, weight):
    if weight.dim() != rank + 2 or input.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"{name}: input is {tuple(input.shape)} and weight is {tuple(weight.shape)}; input "
            f"must have {rank + 2} dimensions, or {rank + 1} without images, and weight {rank + 2}"
        )


def check_are_tensors(name, given):
    for argument, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(f"{name}: {argument} is of type {type(x).__name__}; pass a tensor")


def takes(rank, input, weight, bias, stride, padding, dilation, groups) -> bool:
    """Returns whether "auto" is fp16x3."""
    if not may_take(rank, input, weight, bias):
        return False
    if input.shape[-rank - 1] != weight.shape[1] * groups:
        return False
    try:
        return why_torch(rank, weight.shape, stride, padding, dilation, groups) is None
    except RuntimeError:
        return False  # PyTorch's function refuses it


def may_take(rank, input, weight, bias) -> bool:
    """Returns whether "auto" may be fp16x3 for such tensors, transposed or not."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if not all(isinstance(x, torch.Tensor) and x.is_cuda and is_supported(x) for x in tensors):
        return False
    if any(x.dtype != torch.float32 for x in tensors) or torch.is_autocast_enabled("cuda"):
        return False
    if any(type(x).__name__ == "DTensor" for x in tensors) or not is_hopper(input.device):
        return False
    if not torch.compiler.is_compiling() and is_jit_tracing():  # it records integers as tensors
        return False
    if weight.dim() != rank + 2 or input.dim() not in (rank + 1, rank + 2):
        return False
    return 0 not in input.shape and 0 not in weight.shape


def why_torch(rank, shape, stride, padding, dilation, groups):
    """Why "auto" is PyTorch's function for a layer with weights of a shape, or None."""
    stride, padding, dilation = _geometry(rank, shape, stride, padding, dilation)
    taps, reach = math.prod(shape[2:]), _MOST_REACH[rank]
    filters, channels = shape[0] // groups, shape[1]
    if taps == 1:
        return "A filter of one tap is a matrix product: torch_tiled.override computes it as one."
    if min(filters - _LEAST_FILTERS, channels - _LEAST_CHANNELS, taps * channels - _LEAST_K) < 0:
        return (
            f"PyTorch's kernels are as fast for {filters} filters of {channels} channels and "
            f"{taps} taps in a group."
        )
    sides = [side for each in padding for side in (each if isinstance(each, tuple) else (each,))]
    extents = [d * (n - 1) for d, n in zip(dilation, shape[2:], strict=True)]
    if max(extents) > reach or max(sides) > reach or max(stride) > 8:
        return (
            f"TMA reads no windows of this stride ({stride}), padding ({padding}) or extent "
            f"({[each + 1 for each in extents]})."
        )
    return None


def _geometry(rank, shape, stride, padding, dilation):
    """Stride, padding and dilation as lists. A padding that differs by sides is pairs."""
    stride, dilation = numbers(rank, "stride", stride), numbers(rank, "dilation", dilation)
    if not isinstance(padding, str):
        return stride, numbers(rank, "padding", padding), dilation
    if padding == "valid":
        return stride, [0] * rank, dilation
    if padding != "same" or any(each != 1 for each in stride):
        raise RuntimeError(
            f'torch_tiled.nn.functional: padding is "{padding}" and stride is {stride}; pass '
            f'numbers, "valid", or "same" with a stride of 1'
        )
    sums = [d * (n - 1) for d, n in zip(dilation, shape[2:], strict=True)]
    if all(each % 2 == 0 for each in sums):
        return stride, [each // 2 for each in sums], dilation
    return stride, [(each // 2, each - each // 2) for each in sums], dilation


def numbers(rank, name, given):
    values = list(given) if isinstance(given, (tuple, list)) else [given]
    try:
        values = [x if isinstance(x, torch.SymInt) else operator.index(x) for x in values]
    except TypeError:
        values = []
    if len(values) not in (1, rank):
        raise RuntimeError(
            f"torch_tiled.nn.functional: {name} is {given!r}; pass an integer, or {rank} of them"
        )
    return values * rank if len(values) == 1 else values
