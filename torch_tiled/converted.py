"""The classes that torch_tiled.convert gives to layers.

convert() assigns one of these to a layer's __class__ and sets its _origin; revert() undoes both.
Code that rebuilds a layer by its class constructs one, as it would the class before.
"""

import copyreg
import dataclasses
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _NDQLinear

from . import nn
from ._internals import assume_constant_result
from ._op.supported import PLAIN_TYPES, SIXTEEN_BIT, why_unsupported
from ._routes import ATTENTION, PRODUCTS, ROUTES, broadcasts, is_autocast
from ._routes import linear as linear_of_pytorch
from ._warning import warn
from .ops import check_precision, linear

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Converted",
    "Linear",
    "MultiheadAttention",
    "NonDynamicallyQuantizableLinear",
    "Origin",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "converted_class",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """A converted layer's former class and its options: its attribute _origin until it is reverted.

    An Origin identifies a layer: copies have their own, replicas of a DataParallel share one.
    """

    kind: type
    name: str
    precision: str
    strict: bool


class Converted:
    """The base of all converted classes."""

    _origin: Origin

    @property
    def precision(self) -> str:
        return self._origin.precision

    @assume_constant_result
    def _tell(self, reason: str, strict: bool) -> None:
        """Warns that torch computes, once for each layer and reason; raises if strict.

        In compiled code this runs while a graph is traced, and the graph guards on its arguments.
        """
        origin = self._origin
        name = f"{origin.name or 'the model'} ({origin.kind.__name__})"
        text = f"torch_tiled: {name} computes by torch, since {reason}"
        if strict:
            raise RuntimeError(f"{text}, which strict=True forbids")
        with _lock:
            told = _told.setdefault(origin, set())
            if reason not in told:
                warn(text)
                told.add(reason)


def _constructor(kind: type) -> Callable:
    """An __init__ that makes a layer which convert() would have made of one of this class."""

    def __init__(self, *args: Any, precision: str = "fp32", **options: Any) -> None:
        check_precision(f"torch_tiled.{type(self).__name__}", precision)
        kind.__init__(self, *args, **options)
        self._origin = Origin(kind, "", precision, strict=False)

    signature = inspect.signature(kind.__init__)
    last = inspect.Parameter("precision", inspect.Parameter.KEYWORD_ONLY, default="fp32")
    __init__.__signature__ = signature.replace(parameters=[*signature.parameters.values(), last])
    return __init__


class _ConvertedLinear(Converted):
    """The base of layers that are linear maps of their input's last dimension."""

    activation = "none"
    algorithm = "auto"
    # _multiply(input, weight, bias) is forward, by torch_tiled, for a bias that does not broadcast.
    _multiply: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(self, Converted):
            # The layer was reverted, but a wrapper that was set as its forward in the meantime, by
            # accelerate for example, has kept this method.
            return type(self).forward(self, input)
        weight, bias = self.weight, self.bias
        if (
            is_compiling()
            or type(input) not in PLAIN_TYPES
            or type(weight) not in PLAIN_TYPES
            or not (bias is None or type(bias) in PLAIN_TYPES)
        ):
            reason = self._why_torch(input, weight, bias)
            if reason is None and _is_mixed(input, weight):
                return self._origin.kind.forward(self, input)
            if reason is None:
                return self._multiply(input, weight, bias)
        elif input.dtype is not weight.dtype and _is_mixed(input, weight):
            return self._origin.kind.forward(self, input)
        else:
            try:
                return self._multiply(input, weight, bias)
            except RuntimeError:
                reason = self._why_torch(input, weight, bias)
                if reason is None:
                    raise
        result = linear_of_pytorch(PRODUCTS[self.precision], input, self._matrix(weight), bias)
        if result is not None:
            return result
        self._tell(reason, self._origin.strict)
        return self._origin.kind.forward(self, input)

    def _matrix(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as (out_features, in_features)."""
        return weight

    def _why_torch(self, input, weight, bias) -> str | None:
        """Returns why _multiply does not compute this call, or None if it does or should raise."""
        if reason := _why_unsupported(weight=weight, input=input, bias=bias):
            return reason
        if bias is not None and isinstance(input, torch.Tensor):
            cols = self._matrix(weight).shape[:1]
            rows = input.shape[:-1] or (1,)  # PyTorch takes a vector for a row
            if bias.shape != cols and broadcasts(bias, (*rows, *cols)):
                return f"its bias is {tuple(bias.shape)}"
        return None


def _why_unsupported(**tensors: torch.Tensor | None) -> str | None:
    """Returns why torch_tiled does not multiply one of these tensors, or None."""
    for name, tensor in tensors.items():
        if reason := why_unsupported(tensor, name):
            return reason
    return None


def _is_mixed(input, weight) -> bool:
    """Returns whether PyTorch refuses these dtypes, which torch_tiled.linear takes."""
    if not isinstance(input, torch.Tensor) or is_autocast(input):
        return False
    dtypes = {input.dtype, weight.dtype}
    return torch.float32 in dtypes and bool(dtypes & set(SIXTEEN_BIT))


_lock = threading.RLock()
_told: weakref.WeakKeyDictionary[Origin, set[str]] = weakref.WeakKeyDictionary()


class Linear(_ConvertedLinear, nn.Linear):
    """The class of a converted torch.nn.Linear."""

    __init__ = _constructor(torch.nn.Linear)


class NonDynamicallyQuantizableLinear(Linear, _NDQLinear):
    """The class of a converted torch.nn.modules.linear.NonDynamicallyQuantizableLinear."""

    __init__ = _constructor(_NDQLinear)


class _Convolution(Converted):
    """The base of convolutions."""

    _route: Callable[..., torch.Tensor | None]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(self, Converted):  # as in _ConvertedLinear
            return type(self).forward(self, input)
        weight, bias, padding, x = self.weight, self.bias, self.padding, input
        if self.padding_mode != "zeros" and any(self._reversed_padding_repeated_twice):
            x, padding = F.pad(x, self._reversed_padding_repeated_twice, self.padding_mode), 0
        options = self.stride, padding, self.dilation, self.groups
        result = self._route(PRODUCTS[self.precision], x, weight, bias, *options)
        if result is not None:
            return result
        if reason := _why_unsupported(weight=weight, input=input, bias=bias):
            self._tell(reason, self._origin.strict)
        return self._origin.kind.forward(self, input)


class Conv1d(_Convolution, torch.nn.Conv1d):
    """The class of a converted torch.nn.Conv1d."""

    __init__ = _constructor(torch.nn.Conv1d)
    _route = staticmethod(ROUTES[F.conv1d])


class Conv2d(_Convolution, torch.nn.Conv2d):
    """The class of a converted torch.nn.Conv2d."""

    __init__ = _constructor(torch.nn.Conv2d)
    _route = staticmethod(ROUTES[F.conv2d])


class Conv3d(_Convolution, torch.nn.Conv3d):
    """The class of a converted torch.nn.Conv3d."""

    __init__ = _constructor(torch.nn.Conv3d)
    _route = staticmethod(ROUTES[F.conv3d])


class MultiheadAttention(Converted, torch.nn.MultiheadAttention):
    """The class of a converted torch.nn.MultiheadAttention.

    Its projections are torch_tiled's, and so is the attention between them if override takes it.
    """

    __init__ = _constructor(torch.nn.MultiheadAttention)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        options = {
            "key_padding_mask": key_padding_mask,
            "need_weights": need_weights,
            "attn_mask": attn_mask,
            "average_attn_weights": average_attn_weights,
            "is_causal": is_causal,
        }
        if not isinstance(self, Converted):  # as in _ConvertedLinear
            return type(self).forward(self, query, key, value, **options)
        in_proj, q_proj = self.in_proj_weight, self.q_proj_weight
        weight = q_proj if in_proj is None else in_proj
        if reason := _why_unsupported(query=query, key=key, value=value, weight=weight):
            self._tell(reason, self._origin.strict)
            return self._origin.kind.forward(self, query, key, value, **options)
        swaps = self.batch_first and query.dim() == 3
        if swaps:  # a tensor that is given twice stays one, which in_proj multiplies once
            first, second, third = query, key, value
            query = first.transpose(0, 1)
            key = query if second is first else second.transpose(0, 1)
            value = key if third is second else third.transpose(0, 1)
        sizes, biases = (self.embed_dim, self.num_heads), (self.bias_k, self.bias_v)
        last = self.dropout, self.out_proj.weight, self.out_proj.bias, self.training
        options |= {"use_separate_proj_weight": in_proj is None, "q_proj_weight": q_proj}
        options |= {"k_proj_weight": self.k_proj_weight, "v_proj_weight": self.v_proj_weight}
        output, shares = ATTENTION[self.precision](
            *(query, key, value, *sizes, in_proj, self.in_proj_bias, *biases, self.add_zero_attn),
            *last,
            **options,
        )
        return (output.transpose(0, 1) if swaps else output), shares


def _reading(name: str, value: Any) -> property:
    """An attribute that reads as `value`, although the layer keeps its own for revert()."""
    return property(lambda self: value, lambda self, own: self.__dict__.update({name: own}))


class TransformerEncoderLayer(Converted, torch.nn.TransformerEncoderLayer):
    """The class of a torch.nn.TransformerEncoderLayer with converted layers, which it calls.

    In eval() without gradients PyTorch's would be one operator that reads their weights.
    """

    __init__ = _constructor(torch.nn.TransformerEncoderLayer)
    forward = torch.nn.TransformerEncoderLayer.forward
    activation_relu_or_gelu = _reading("activation_relu_or_gelu", 0)  # neither, for that operator


class TransformerEncoder(Converted, torch.nn.TransformerEncoder):
    """The class of a torch.nn.TransformerEncoder with converted layers, which get no nested tensor.

    PyTorch's makes nested tensors of padded ones for that operator alone.
    """

    __init__ = _constructor(torch.nn.TransformerEncoder)
    forward = torch.nn.TransformerEncoder.forward
    use_nested_tensor = _reading("use_nested_tensor", False)


@functools.cache
def _encoder(kind: type) -> type:
    """Makes the same of a subclass of torch.nn.TransformerEncoder."""

    class Encoder(Converted, kind):
        __init__ = _constructor(kind)
        use_nested_tensor = TransformerEncoder.use_nested_tensor

        def __reduce_ex__(self, protocol):  # a pickle cannot name this class
            function, arguments, *rest = super().__reduce_ex__(max(protocol, 2))
            if function is copyreg.__newobj__:
                function, arguments = _new_encoder, (kind,)
            return function, arguments, *rest

    Encoder.__name__, Encoder.__qualname__ = kind.__name__, kind.__qualname__
    Encoder.__module__, Encoder.__doc__ = kind.__module__, kind.__doc__
    return Encoder


def _new_encoder(kind: type) -> torch.nn.Module:
    encoder = _encoder(kind)
    return encoder.__new__(encoder)


_CONVERTED_CLASSES = {
    torch.nn.Linear: Linear,
    _NDQLinear: NonDynamicallyQuantizableLinear,
    torch.nn.Conv1d: Conv1d,
    torch.nn.Conv2d: Conv2d,
    torch.nn.Conv3d: Conv3d,
    torch.nn.MultiheadAttention: MultiheadAttention,
    torch.nn.TransformerEncoderLayer: TransformerEncoderLayer,
    torch.nn.TransformerEncoder: TransformerEncoder,
}


def converted_class(kind: type) -> type | None:
    """Returns the converted class for layers of exactly this class, or None if there is none."""
    if kind in _CONVERTED_CLASSES:
        return _CONVERTED_CLASSES[kind]
    if issubclass(kind, torch.nn.TransformerEncoder):  # it keeps its own forward
        return _encoder(kind)
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and kind is transformers.Conv1D:
        return _conv1d()
    return None


@functools.cache
def _conv1d() -> type:
    """Makes the class Conv1D of this module, when transformers is imported already."""
    from transformers.pytorch_utils import Conv1D as Original

    class Conv1D(_ConvertedLinear, Original):
        """The class of a converted transformers.pytorch_utils.Conv1D."""

        __init__ = _constructor(Original)

        def _multiply(self, input, weight, bias):
            return linear(input, weight.mT, bias, precision=self.precision)

        def _matrix(self, weight):
            return weight.mT

    Conv1D.__qualname__ = "Conv1D"
    return Conv1D


def __getattr__(name: str) -> type:  # pickles look up Conv1D in this module
    if name == "Conv1D":
        return _conv1d()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
