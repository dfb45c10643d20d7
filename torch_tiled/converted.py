"""The classes that torch_tiled.convert gives to layers.

convert() assigns one of these to a layer's __class__ and sets its _origin; revert() undoes both.
Code that rebuilds a layer by its class constructs one, as it would the class before.
"""

import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _NDQLinear

from . import nn
from ._internals import assume_constant_result
from ._op.supported import PLAIN_TYPES, SIXTEEN_BIT, why_unsupported
from ._routes import broadcasts, is_autocast
from ._routes import linear as linear_of_pytorch
from ._warning import warn
from .ops import check_precision, linear

__all__ = ["Converted", "Linear", "NonDynamicallyQuantizableLinear", "Origin", "converted_class"]


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

    activation = "none"
    algorithm = "auto"
    _origin: Origin
    # _multiply(input, weight, bias) is forward, by torch_tiled, for a bias that does not broadcast.
    _multiply: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def _construct(self, kind: type, precision: str, *args: Any) -> None:
        """Makes a layer that convert() would have made of kind(*args)."""
        check_precision(f"torch_tiled.{type(self).__name__}", precision)
        kind.__init__(self, *args)
        self._origin = Origin(kind, "", precision, strict=False)

    @property
    def precision(self) -> str:
        return self._origin.precision

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
        result = linear_of_pytorch(self.precision, input, self._matrix(weight), bias)
        if result is not None:
            return result
        self._tell(reason, self._origin.strict)
        return self._origin.kind.forward(self, input)

    def _matrix(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as (out_features, in_features)."""
        return weight

    def _why_torch(self, input, weight, bias) -> str | None:
        """Returns why _multiply does not compute this call, or None if it does or should raise."""
        tensors = {"weight": weight, "input": input, "bias": bias}
        for name, tensor in tensors.items():
            if reason := why_unsupported(tensor, name):
                return reason
        if bias is not None and isinstance(input, torch.Tensor):
            cols = self._matrix(weight).shape[:1]
            rows = input.shape[:-1] or (1,)  # PyTorch takes a vector for a row
            if bias.shape != cols and broadcasts(bias, (*rows, *cols)):
                return f"its bias is {tuple(bias.shape)}"
        return None

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


def _is_mixed(input, weight) -> bool:
    """Returns whether PyTorch refuses these dtypes, which torch_tiled.linear takes."""
    if not isinstance(input, torch.Tensor) or is_autocast(input):
        return False
    dtypes = {input.dtype, weight.dtype}
    return torch.float32 in dtypes and bool(dtypes & set(SIXTEEN_BIT))


_lock = threading.RLock()
_told: weakref.WeakKeyDictionary[Origin, set[str]] = weakref.WeakKeyDictionary()


class Linear(Converted, nn.Linear):
    """The class of a converted torch.nn.Linear."""

    _kind = torch.nn.Linear

    def __init__(
        self, in_features, out_features, bias=True, device=None, dtype=None, *, precision="fp32"
    ):
        sizes = in_features, out_features
        self._construct(self._kind, precision, *sizes, bias, device, dtype)


class NonDynamicallyQuantizableLinear(Linear, _NDQLinear):
    """The class of a converted torch.nn.modules.linear.NonDynamicallyQuantizableLinear."""

    _kind = _NDQLinear


_CONVERTED_CLASSES = {
    torch.nn.Linear: Linear,
    _NDQLinear: NonDynamicallyQuantizableLinear,
}


def converted_class(kind: type) -> type | None:
    """Returns the converted class for layers of exactly this class, or None if there is none."""
    if kind in _CONVERTED_CLASSES:
        return _CONVERTED_CLASSES[kind]
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and kind is transformers.Conv1D:
        return _conv1d()
    return None


@functools.cache
def _conv1d() -> type:
    """Makes the class Conv1D of this module, when transformers is imported already."""
    from transformers.pytorch_utils import Conv1D as Original

    class Conv1D(Converted, Original):
        """The class of a converted transformers.pytorch_utils.Conv1D."""

        def __init__(self, nf, nx, *, precision="fp32"):
            self._construct(Original, precision, nf, nx)

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
