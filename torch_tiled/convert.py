"""Whole models: convert() makes their layers compute by torch_tiled, revert() undoes it."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from . import converted, nn
from ._op.argument_types import check_is_module
from ._op.supported import why_unsupported
from .converted import Converted, Origin, converted_class
from .frozen import unfreeze
from .nn.convolutions import why_torch
from .ops import check_precision

__all__ = ["Report", "Row", "convert", "enabled", "revert"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What convert() or revert() did to a module.

    Attributes:
        name: as in model.named_modules(); "" is the model itself.
        kind: the name of its class, which is the same before and after.
        shape: (in_features, out_features) or (in_channels, out_channels), or None.
        action: "converted", "to be converted" in a dry run, "reverted", or "left" alone.
        reason: why it was left alone, or what converting it means; or "".

    Examples:
        >>> row = torch_tiled.convert(torch.nn.Linear(64, 8), dry_run=True).rows[0]
        >>> row.kind, row.shape, row.action
        ('Linear', (64, 8), 'to be converted')
    """

    name: str
    kind: str
    shape: tuple[int, int] | None
    action: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What convert() or revert() did. str() makes a table of it.

    Attributes:
        rows: a Row for each module that multiplies matrices, in the order of named_modules().
        notes: sentences on products that no conversion of layers reaches.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.LazyLinear(4))
        >>> report = torch_tiled.convert(model)
        >>> report.changed, list(report.left)
        (['0'], ['1'])
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> list[str]:
        """The names of the modules that were changed, or in a dry run would be."""
        return [row.name for row in self.rows if row.action != "left"]

    @property
    def left(self) -> dict[str, str]:
        """The reasons of the modules that were left alone, by name."""
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


def _named_base(kind: type, name: str) -> bool:
    """Returns whether a class has a base of this name, without importing the base's module."""
    return any(base.__name__ == name for base in kind.__mro__)


def _why_not(module: torch.nn.Module) -> str | None:
    """Returns why a layer is left alone, or None if it can be converted."""
    kind = type(module)
    if isinstance(module, nn.Linear) and not isinstance(module, Converted):
        return "it is torch_tiled's already"
    if isinstance(module, torch.jit.ScriptModule):
        return "it was compiled by torch.jit"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it is parametrized; convert the model first, then parametrize it"
    if _named_base(kind, "FSDPModule"):
        return "it is wrapped by fully_shard; convert the model first"
    if isinstance(module, LazyModuleMixin):
        return "it is lazy, without a weight yet; convert the model after its first call"
    if "quantized" in kind.__module__.split("."):
        return "it is quantized"
    if isinstance(module, Converted):
        origin = module._origin
        if kind is not converted_class(origin.kind):
            return f"it was converted, and its class was changed to {kind.__qualname__} since"
    elif converted_class(kind) is None:
        return f"it is a {kind.__module__}.{kind.__qualname__}, which may compute something else"
    if "forward" in vars(module) and not _has_its_class_forward(module):
        return "it has a forward of its own, set on the instance"
    weight = _weight(module)
    if isinstance(weight, UninitializedParameter):
        return "it has no weight yet; convert the model after its first call"
    if weight.is_meta:
        return "its weight is on the meta device; convert the model when it has memory"
    return why_unsupported(weight, "weight")


def _kind(module: torch.nn.Module) -> type:
    """Returns the class of a module before any conversion."""
    return module._origin.kind if isinstance(module, Converted) else type(module)


def _weight(module: torch.nn.Module) -> torch.Tensor:
    """Returns the weight of a layer, or the first of several."""
    if not isinstance(module, torch.nn.MultiheadAttention):
        return module.weight
    return module.q_proj_weight if module.in_proj_weight is None else module.in_proj_weight


def _has_its_class_forward(module: torch.nn.Module) -> bool:
    """Returns whether the forward set on the instance is that of its class, bound to it.

    Accelerate sets it when its hooks are removed. That of a converted class computes by the class
    that the layer has, too.
    """
    forward = vars(module).get("forward")
    function = getattr(forward, "__func__", None)
    is_ours = getattr(function, "__module__", None) == converted.__name__
    return (is_ours or function is type(module).forward) and forward.__self__ is module


def _set_class(module: torch.nn.Module, kind: type) -> None:
    if _has_its_class_forward(module):
        del module.forward  # it would outlive the class
    module.__class__ = kind


# Modules with products outside of a layer's forward, and what computes them.
_UNREACHED = {
    torch.nn.RNNBase: "its products are in one operator",
    torch.nn.RNNCellBase: "its products are in one operator",
    torch.nn.Bilinear: "its product is torch.nn.functional.bilinear",
}
# Modules with a fast path: in eval(), without gradients, one operator reads their layers' weights.
_WITH_FAST_PATH = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
_CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
_NOTE = "Products without a layer (F.linear, @, einsum in a forward) are torch's as before."


def _is_layer(module: torch.nn.Module, precision: str) -> bool:
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module.original_name in ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")
    if isinstance(module, (torch.nn.Linear, torch.nn.MultiheadAttention, Converted)):
        return True
    if isinstance(module, _CONVOLUTIONS):
        return _why_no_convolution(module, precision) is None
    if any(
        base.__name__ == "Conv1D" and "transformers" in base.__module__ for base in kind.__mro__
    ):
        return True
    return "quantized" in kind.__module__.split(".") and hasattr(module, "in_features")


def _why_no_convolution(module: torch.nn.Module, precision: str) -> str | None:
    """Returns why a convolution stays PyTorch's, or None if fp16x3 or a product computes it."""
    reason = _why_no_product(module)
    if reason is None or isinstance(module, LazyModuleMixin):  # the latter has no channels yet
        return None
    if precision != "fp32" or all(each == 1 for each in module.kernel_size):
        return reason
    shape = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
    padding = module.padding if module.padding_mode == "zeros" else 0
    rank = len(module.kernel_size)
    return why_torch(rank, shape, module.stride, padding, module.dilation, module.groups)


def _why_no_product(module: torch.nn.Module) -> str | None:
    """Returns why a convolution is not a product, or None if it is one."""
    for name, wanted in (("kernel_size", 1), ("stride", 1), ("padding", 0)):
        value = getattr(module, name)
        if not isinstance(value, str) and any(each != wanted for each in value):
            return f"its {name} is {value}; one with only {wanted} is a product"
    return None if module.groups == 1 else f"its groups are {module.groups}; one is a product"


def _shape(module: torch.nn.Module) -> tuple[int, int] | None:
    names = ("nx", "nf") if hasattr(module, "nf") else ("in_features", "out_features")
    names = ("in_channels", "out_channels") if isinstance(module, _CONVOLUTIONS) else names
    sizes = tuple(getattr(module, name, None) for name in names)
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _patterns(option: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        return (patterns,)
    several = tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
    for pattern in several:
        if not isinstance(pattern, str):
            raise RuntimeError(
                f"torch_tiled.convert: {option} has a pattern of type {type(pattern).__name__}; "
                f"pass a string, or several"
            )
    return several


def _matches(names: list[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


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

    Only a layer's class is changed, to one of torch_tiled.converted. Its parameters, names, hooks,
    optimizer state, ties to other layers, dtype, device and training mode stay the same objects.
    Copies and pickles of a converted model are converted, and its state_dict does not change.
    torch_tiled.revert(model) undoes the conversion.

    The layers of exactly these classes are converted: torch.nn.Linear, its
    NonDynamicallyQuantizableLinear, Conv1D of transformers, torch.nn.MultiheadAttention (its
    projections, and the attention that torch_tiled.override takes), and torch.nn.Conv1d, Conv2d and
    Conv3d that torch_tiled.override takes: with a kernel of 1, stride 1, no padding and groups 1,
    or with "fp32" those of float32 that torch_tiled.nn.functional.conv2d computes on Hopper. A
    subclass may compute something else, and is left alone. So is a layer that is parametrized,
    wrapped by fully_shard, quantized, on the meta device or lazy; the report says why. So convert
    first, then parametrize, shard and compile.

    A torch.nn.TransformerEncoder (or a subclass) or TransformerEncoderLayer with a converted layer
    changes its class, too: it calls its layers in eval() as in train(), without PyTorch's fast path
    and nested tensors. Rows of padding are then not zeros.

    float64 layers are converted, too. On an H100 torch_tiled multiplies float64 at 0.95 of cuBLAS's
    speed for squares from 2048 on, and at 0.85 with 1 to 128 rows.

    If torch_tiled does not multiply the input of a converted layer (integers, a nested tensor, a
    tensor subclass, ...), the layer computes by torch as before, and warns once for each reason.

    Args:
        model: any module. If it is a layer, it is converted itself.
        filter_fn: filter_fn(module, name) returns whether to convert a layer.
        include: a pattern for names, or several, as in fnmatch ("encoder.*"). Only layers that
            match one of them are converted. A layer that has several names matches by any of them;
            filter_fn and the Report have the first.
        exclude: patterns as well. Layers that match one of them are left alone.
        precision: as for torch_tiled.matmul. Converting again changes it.
        dry_run: report only.
        strict: raise if a layer that is not filtered out cannot be converted, before anything is
            changed; and let a converted layer raise instead of computing by torch.

    Returns:
        A Report.

    Raises:
        RuntimeError: there is no such precision; an argument has a wrong type; or, with
            strict=True, a layer cannot be converted.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 4))
        >>> print(torch_tiled.convert(model, exclude="1"))
        0  Linear  64x8  converted
        1  Linear  8x4   left: filtered out
        Products without a layer (F.linear, @, einsum in a forward) are torch's as before.
    """
    check_is_module("torch_tiled.convert", model)
    check_precision("torch_tiled.convert", precision)
    if filter_fn is not None and not callable(filter_fn):
        raise RuntimeError(
            f"torch_tiled.convert: filter_fn is of type {type(filter_fn).__name__}; pass a "
            f"function, or patterns for names as include or exclude"
        )
    included = _patterns("include", "*" if include is None else include)
    excluded = _patterns("exclude", () if exclude is None else exclude)
    names_of = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names_of.setdefault(module, []).append(name)

    def is_filtered_out(module, names):
        if _matches(names, excluded) or not _matches(names, included):
            return True
        return filter_fn is not None and not filter_fn(module, names[0])

    # Attention multiplies by their weights and does not call them.
    of_attention = {
        module.out_proj for module in names_of if _kind(module) is torch.nn.MultiheadAttention
    }
    done = "to be converted" if dry_run else "converted"
    found, layers, refused = {}, [], []
    for module, names in names_of.items():
        name, action = names[0], "left"
        if isinstance(module, _WITH_FAST_PATH):
            continue  # it depends on its layers
        if module in of_attention:
            reason = "its attention multiplies by its weight"
        elif _is_layer(module, precision):
            if is_filtered_out(module, names):
                reason = "filtered out"
            elif reason := _why_not(module):
                refused.append(f"{name or 'the model'}: {reason}")
            else:
                action, reason = done, ""
                layers.append((name, module))
        elif isinstance(module, _CONVOLUTIONS):
            reason = _why_no_convolution(module, precision)
        else:
            kinds = (unreached for unreached in _UNREACHED if isinstance(module, unreached))
            reason = _UNREACHED.get(next(kinds, None))
            if reason is None:
                continue
        found[module] = action, reason
    changed = {module for _, module in layers}
    for module, names in names_of.items():
        if not isinstance(module, _WITH_FAST_PATH):
            continue
        kind, is_parametrized = _kind(module), torch.nn.utils.parametrize.is_parametrized(module)
        if _named_base(kind, "FSDPModule") or is_parametrized or converted_class(kind) is None:
            found[module] = "left", "in eval(), without gradients, it reads its layers' weights"
        elif changed.isdisjoint(module.modules()):
            found[module] = "left", "no layer in it is converted"
        else:
            found[module] = done, "it calls its layers, without PyTorch's fast path"
            layers.append((names[0], module))
    rows = [
        Row(names[0], type(module).__name__, _shape(module), *found[module])
        for module, names in names_of.items()
        if module in found
    ]
    if strict and refused:
        raise RuntimeError(
            "torch_tiled.convert: with strict=True nothing was converted, since these layers "
            "cannot be: " + "; ".join(refused)
        )
    if not dry_run:
        for name, module in layers:
            kind = _kind(module)
            module._origin = Origin(kind, name, precision, strict)
            _set_class(module, converted_class(kind))
    return Report(tuple(rows), (_NOTE,))


def revert(model: torch.nn.Module) -> Report:
    """Undoes torch_tiled.convert(model): every converted layer gets its former class back.

    Parameters, hooks and all else stay as they are. A frozen layer is unfrozen. A forward that was
    set on a converted layer since (by accelerate's hooks, layer.forward = wrap(layer.forward))
    stays, and what it wraps computes by the former class.

    Args:
        model: any module.

    Returns:
        A Report.

    Raises:
        RuntimeError: a converted layer was parametrized, or wrapped by fully_shard, since its
            conversion, and nothing is reverted then; or model is no torch.nn.Module.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU())
        >>> report = torch_tiled.convert(model)
        >>> print(torch_tiled.revert(model))
        0  Linear  64x8  reverted
    """
    check_is_module("torch_tiled.revert", model)
    layers = [(name, x) for name, x in model.named_modules() if isinstance(x, Converted)]
    if refused := _refused(layers):
        raise RuntimeError(
            "torch_tiled.revert: nothing was reverted. " + "; ".join(refused.values())
        )
    return _revert(layers)


def _refused(layers: list[tuple[str, torch.nn.Module]]) -> dict[torch.nn.Module, str]:
    """Returns a sentence for each of these converted layers that cannot be reverted."""
    refused = {}
    for name, module in layers:
        if type(module) is converted_class(module._origin.kind):
            continue
        if torch.nn.utils.parametrize.is_parametrized(module):
            parametrized = next(iter(module.parametrizations))
            why = (
                "it was parametrized since; call torch.nn.utils.parametrize."
                f'remove_parametrizations(layer, "{parametrized}"), which keeps the present value '
                "and ends the parametrization for good, then revert"
            )
        elif _named_base(type(module), "FSDPModule"):
            why = "it was wrapped by fully_shard since; revert the model before that"
        else:
            why = f"its class was changed to {type(module).__qualname__} since"
        refused[module] = f"{name or 'the model'}: {why}"
    return refused


def _revert(layers: list[tuple[str, torch.nn.Module]]) -> Report:
    rows = []
    for name, module in layers:
        if isinstance(module, nn.Linear):
            unfreeze(module)
        rows.append(Row(name, type(module).__name__, _shape(module), "reverted"))
        _set_class(module, module._origin.kind)
        del module._origin
    return Report(tuple(rows))


@contextlib.contextmanager
def enabled(model: torch.nn.Module, *args: Any, **options: Any) -> Iterator[Report]:
    """A with statement in which a model is converted.

    On leaving, the model is reverted, except for layers that were converted before, and for those
    that cannot be: they were parametrized, or wrapped by fully_shard, in the statement.

    Args:
        model: as for torch_tiled.convert.
        *args: as for torch_tiled.convert.
        **options: as for torch_tiled.convert.

    Yields:
        The Report of torch_tiled.convert.

    Raises:
        RuntimeError: as torch_tiled.convert does; also on leaving, if a layer cannot be reverted,
            unless the statement raises an exception of its own.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU())
        >>> with torch_tiled.enabled(model) as report:
        ...     y = model(torch.randn(4, 64))
        >>> report.changed
        ['0']
    """
    check_is_module("torch_tiled.enabled", model)
    before = {x: x._origin for x in model.modules() if isinstance(x, Converted)}
    report = convert(model, *args, **options)
    new = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, Converted) and module not in before
    ]
    try:
        yield report
    finally:  # layers that were reverted in the statement are Converted no more
        for module, origin in before.items():
            if isinstance(module, Converted):
                module._origin = origin
        new = [(name, module) for name, module in new if isinstance(module, Converted)]
        refused = _refused(new)
        _revert([(name, module) for name, module in new if module not in refused])
    if refused:
        raise RuntimeError(
            "torch_tiled.enabled: these layers stay converted. " + "; ".join(refused.values())
        )
