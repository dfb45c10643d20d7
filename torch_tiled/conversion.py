"""Whole models: their layers made to compute by torch_tiled, and back."""

import contextlib
import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

import torch
from torch.compiler import is_compiling
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as _NDQLinear
from torch.nn.parameter import UninitializedParameter

from . import nn
from .ops import check_precision, linear
from .supported import why_unsupported
from .warning import warn

__all__ = ["Report", "Row", "convert", "enabled", "revert"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of a module.

    Attributes:
        name: as in model.named_modules(): "" is the model itself.
        kind: the name of its class, before and after.
        shape: (in_features, out_features), or None where it has no such two.
        action: "converted", "to be converted" in a dry run, "reverted", or "left" alone.
        reason: why it was left alone; otherwise empty.
    """

    name: str
    kind: str
    shape: tuple[int, int] | None
    action: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What convert() or revert() did: data, and a table where it is printed.

    Attributes:
        rows: a Row for each module that multiplies matrices, in the order of named_modules().
        notes: sentences on what no conversion of layers reaches.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> list[str]:
        """The names of the modules that were, or in a dry run would be, changed."""
        return [row.name for row in self.rows if row.action != "left"]

    @property
    def left(self) -> dict[str, str]:
        """Why others were left alone, by their names."""
        return {row.name: row.reason for row in self.rows if row.action == "left"}

    def __str__(self) -> str:
        cells = [
            (
                row.name or "(the model)",
                row.kind,
                "x".join(map(str, row.shape or ())),
                f"{row.action}: {row.reason}" if row.reason else row.action,
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        return "\n".join([*lines, *self.notes])


# --- what a converted module is ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Origin:
    """What a converted module was, and how it is to compute. It has this until it is reverted.

    One such is one layer: copies have others, the replicas of a DataParallel the same.
    """

    kind: type
    name: str
    precision: str
    strict: bool


class _Converted:
    """What converted classes share. A module becomes one by assignment to its __class__."""

    activation = "none"
    algorithm = "auto"
    _origin: _Origin
    _multiply: Callable[[torch.Tensor], torch.Tensor]  # forward, by torch_tiled

    @property
    def precision(self) -> str:
        return self._origin.precision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if is_compiling():
            reason = self._why_torch(input)
            if reason is None:
                return self._multiply(input)
        else:
            try:
                return self._multiply(input)
            except RuntimeError:
                reason = self._why_torch(input)
                if reason is None:
                    raise
        self._say(reason, self._origin.strict)
        return self._origin.kind.forward(self, input)

    def _why_torch(self, input: torch.Tensor) -> str | None:
        return why_unsupported(self.weight, "weight") or why_unsupported(input, "input")

    @torch.compiler.assume_constant_result
    def _say(self, reason: str, strict: bool) -> None:
        """Warns once for a layer and a reason that torch computes, or raises.

        In compiled code it runs where a graph is traced, which has guards on its arguments.
        """
        origin = self._origin
        name = f"{origin.name or 'the model'} ({origin.kind.__name__})"
        text = f"torch_tiled: {name} computes by torch, since {reason}"
        if strict:
            raise RuntimeError(f"{text}, which strict=True forbids")
        with _telling:
            told = _told.setdefault(origin, set())
            if reason not in told:
                warn(text)
                told.add(reason)


_telling = threading.RLock()
_told: weakref.WeakKeyDictionary[_Origin, set[str]] = weakref.WeakKeyDictionary()


class Linear(_Converted, nn.Linear):
    """What torch.nn.Linear becomes. Not made by itself."""

    def _multiply(self, input: torch.Tensor) -> torch.Tensor:
        return nn.Linear.forward(self, input)


class NonDynamicallyQuantizableLinear(Linear, _NDQLinear):
    """What torch.nn.modules.linear.NonDynamicallyQuantizableLinear becomes. Not made by itself."""


_BECOMES = {
    torch.nn.Linear: Linear,
    _NDQLinear: NonDynamicallyQuantizableLinear,
}


def _becomes(kind: type) -> type | None:
    """The class that modules of exactly this class become, or None."""
    if kind in _BECOMES:
        return _BECOMES[kind]
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and kind is transformers.Conv1D:
        return _conv1d()
    return None


@functools.cache
def _conv1d() -> type:
    """What transformers' Conv1D becomes: `Conv1D` of this module, made when first asked for."""
    from transformers.pytorch_utils import Conv1D as Original

    class Conv1D(_Converted, Original):
        """What transformers.pytorch_utils.Conv1D becomes. Not made by itself."""

        def _multiply(self, input: torch.Tensor) -> torch.Tensor:
            return linear(input, self.weight.mT, self.bias, precision=self.precision)

    Conv1D.__qualname__ = "Conv1D"
    return Conv1D


def __getattr__(name: str) -> type:  # so that pickles find it
    if name == "Conv1D":
        return _conv1d()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- what can be converted -----------------------------------------------------------------------


def _named_base(kind: type, name: str) -> bool:
    """Whether a class has a base of that name: asked for by name what need not be imported."""
    return any(base.__name__ == name for base in kind.__mro__)


def _why_not(module: torch.nn.Module) -> str | None:
    """Why a layer is left alone, or None."""
    kind = type(module)
    if isinstance(module, nn.Linear) and not isinstance(module, _Converted):
        return "it is torch_tiled's already"
    if isinstance(module, torch.jit.ScriptModule):
        return "it was compiled by torch.jit"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it is parametrized; convert the model before, or remove_parametrizations() first"
    if _named_base(kind, "FSDPModule"):
        return "it is wrapped by fully_shard; convert the model before"
    if isinstance(module, torch.nn.LazyLinear):
        return "it is lazy, without a weight yet; convert the model after its first call"
    if "quantized" in kind.__module__.split("."):
        return "it is quantized"
    if isinstance(module, _Converted):
        origin = module._origin
        if kind is not _becomes(origin.kind):
            return f"it was converted, and made a {kind.__qualname__} since"
    elif _becomes(kind) is None:
        return f"it is a {kind.__module__}.{kind.__qualname__}, which may compute something else"
    if "forward" in vars(module):
        return "it has a forward of its own, set on the instance"
    weight = module.weight
    if isinstance(weight, UninitializedParameter):
        return "it has no weight yet; convert the model after its first call"
    if type(weight) not in (torch.nn.Parameter, torch.Tensor) and not _is_dtensor(weight):
        return f"its weight is a {type(weight).__qualname__}"
    if weight.is_meta:
        return "its weight is on the meta device; convert the model when it has memory"
    return why_unsupported(weight, "weight")


def _is_dtensor(tensor: torch.Tensor) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and type(tensor) is tensors.DTensor


# Modules that multiply without a layer's forward, and where.
_UNREACHED = {
    torch.nn.MultiheadAttention: "multi_head_attention_forward reads its projections' weights",
    torch.nn.TransformerEncoderLayer: (
        "in eval(), without gradients, one operator reads its layers' weights; its layers are "
        "converted where it does not"
    ),
    torch.nn.RNNBase: "its products are in one operator",
    torch.nn.RNNCellBase: "its products are in one operator",
    torch.nn.Bilinear: "its product is torch.nn.functional.bilinear",
}
_NOTE = "Products without a layer (F.linear, @, einsum in a forward) are torch's as before."


def _is_layer(module: torch.nn.Module) -> bool:
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module.original_name in ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")
    if isinstance(module, (torch.nn.Linear, _Converted)):
        return True
    if any(
        base.__name__ == "Conv1D" and "transformers" in base.__module__ for base in kind.__mro__
    ):
        return True
    return "quantized" in kind.__module__.split(".") and hasattr(module, "in_features")


def _shape(module: torch.nn.Module) -> tuple[int, int] | None:
    names = ("nx", "nf") if hasattr(module, "nf") else ("in_features", "out_features")
    sizes = tuple(getattr(module, name, None) for name in names)
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _patterns(patterns: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if patterns is None else (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def convert(
    model: torch.nn.Module,
    filter_fn: Callable[[torch.nn.Module, str], bool] | None = None,
    *,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    precision: str = "fp32",
    dry_run: bool = False,
    strict: bool = False,
) -> Report:
    """Makes the layers of a model compute by torch_tiled, in place.

    A layer's class is exchanged for one that torch_tiled.conversion has, and nothing else: its
    parameters, names, hooks, optimizer state, ties to others, dtype, device and training mode are
    the same objects as before. Copies and pickles of a converted model are converted, and its
    state_dict is what it was. torch_tiled.revert(model) undoes it.

    Converted are torch.nn.Linear, its NonDynamicallyQuantizableLinear, and Conv1D of transformers:
    exactly these classes, since a subclass may compute something else. What is parametrized,
    wrapped by fully_shard, quantized, on the meta device or lazy is left alone, and the report says
    why. So convert first, then parametrize, shard and compile.

    A converted layer that is called with what torch_tiled does not multiply, say complex numbers
    or a nested tensor, computes by torch as before, and warns once for each reason.

    Args:
        model: any module, itself among those converted.
        filter_fn: filter_fn(module, name) says whether to convert a layer.
        include, exclude: patterns for names, as in fnmatch ("encoder.*"): a layer is converted if
            it matches one of include, where there are any, and none of exclude.
        precision: as for torch_tiled.matmul. Converting again changes it.
        dry_run: report only.
        strict: raise where a layer that is not filtered out would be left alone, before anything is
            changed; and let a converted layer raise instead of computing by torch.

    Returns:
        A Report of what was done.

    Raises:
        RuntimeError: an unknown precision, or as strict says.

    Example::

        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 4))
        >>> print(torch_tiled.convert(model, exclude="1"))
        0  Linear  64x8  converted
        1  Linear  8x4   left: filtered out
        Products without a layer (F.linear, @, einsum in a forward) are torch's as before.
    """
    check_precision(precision)
    included, excluded = _patterns(include), _patterns(exclude)

    def is_filtered_out(module, name):
        if _matches(name, excluded) or (included and not _matches(name, included)):
            return True
        return filter_fn is not None and not filter_fn(module, name)

    rows, layers, refused = [], [], []
    for name, module in model.named_modules():
        action = "left"
        if _is_layer(module):
            if is_filtered_out(module, name):
                reason = "filtered out"
            elif reason := _why_not(module):
                refused.append(f"{name or 'the model'}: {reason}")
            else:
                action = "to be converted" if dry_run else "converted"
                layers.append((name, module))
        else:
            kinds = (unreached for unreached in _UNREACHED if isinstance(module, unreached))
            reason = _UNREACHED.get(next(kinds, None))
            if reason is None:
                continue
        rows.append(Row(name, type(module).__name__, _shape(module), action, reason or ""))
    if strict and refused:
        raise RuntimeError(
            "torch_tiled.convert: with strict=True nothing was converted, since these layers "
            "cannot be: " + "; ".join(refused)
        )
    if not dry_run:
        for name, module in layers:
            kind = module._origin.kind if isinstance(module, _Converted) else type(module)
            module._origin = _Origin(kind, name, precision, strict)
            module.__class__ = _becomes(kind)
    return Report(tuple(rows), (_NOTE,))


def revert(model: torch.nn.Module) -> Report:
    """Undoes torch_tiled.convert(model): every converted layer has its former class again.

    Its parameters, hooks and the rest are those it has now. A layer that is frozen is unfrozen.

    Returns:
        A Report of what was done.

    Raises:
        RuntimeError: a converted layer was parametrized, or wrapped by fully_shard, since. Then
            nothing has been reverted.
    """
    return _revert([(name, x) for name, x in model.named_modules() if isinstance(x, _Converted)])


def _revert(converted: list[tuple[str, torch.nn.Module]]) -> Report:
    refused = []
    for name, module in converted:
        if type(module) is _becomes(module._origin.kind):
            continue
        if torch.nn.utils.parametrize.is_parametrized(module):
            why = "it was parametrized since; torch.nn.utils.parametrize.remove_parametrizations()"
        elif _named_base(type(module), "FSDPModule"):
            why = "it was wrapped by fully_shard since; revert the model before that"
        else:
            why = f"it was made a {type(module).__qualname__} since"
        refused.append(f"{name or 'the model'}: {why}")
    if refused:
        raise RuntimeError("torch_tiled.revert: nothing was reverted. " + "; ".join(refused))
    rows = []
    for name, module in converted:
        if isinstance(module, nn.Linear):
            nn.unfreeze(module)
        rows.append(Row(name, type(module).__name__, _shape(module), "reverted"))
        module.__class__ = module._origin.kind
        del module._origin
    return Report(tuple(rows))


@contextlib.contextmanager
def enabled(model: torch.nn.Module, *args, **options) -> Iterator[Report]:
    """A with statement in which a model is converted.

    Args:
        model, and the rest: as for torch_tiled.convert, whose report it gives.

    On leaving, the model is reverted; a layer that was converted before stays so.

    Example::

        >>> with torch_tiled.enabled(model):
        ...     y = model(x)
    """
    before = {x: x._origin for x in model.modules() if isinstance(x, _Converted)}
    report = convert(model, *args, **options)
    new = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _Converted) and module not in before
    ]
    try:
        yield report
    finally:
        for module, origin in before.items():
            module._origin = origin
        _revert(new)
