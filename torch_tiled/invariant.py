"""invariant: a with statement, or a switch, in which a sample has the same bits in every batch."""

import threading
from collections.abc import Callable

import torch
from torch.compiler import is_compiling
from torch.overrides import resolve_name

from ._internals import (
    OpOverload,
    WithoutFunctionModes,
    assume_constant_result,
    insert_function_mode,
    remove_function_mode,
    tree_leaves,
)
from ._invariant_routes import INSIDE, INVARIANT_PRODUCTS, INVARIANT_ROUTES
from ._invariant_table import ATOMIC, IN_EVAL, advice, is_kept, row_of
from ._op.namespace import NAMESPACE
from ._op.supported import PLAIN_TYPES
from ._statement import Statement
from .ops import check_precision

__all__ = ["invariant"]


_NORM, _UNFLATTEN = torch.Tensor.norm, torch.Tensor.unflatten
# Operators of these namespaces are torch_tiled's own, or in compiled code, of which the functions
# were checked when it was traced.
_TRACED = (NAMESPACE, "aten", "prims", "inductor")


class _Enabled(threading.local):
    """The switches of a thread, the last one innermost."""

    def __init__(self):
        self.modes = []


_enabled = _Enabled()


class invariant(Statement):
    """A with statement in which a sample has the same bits alone and in every batch.

    It is torch_tiled.override with products of a fixed order on a CPU, too, and with torch_tiled's
    attention and reductions in place of PyTorch's: softmax, log_softmax, logsumexp, sum, mean,
    cumsum, nansum, nanmean, trace, var, std, linalg.vector_norm, norm, layer_norm, rms_norm,
    group_norm, instance_norm, cosine_similarity, normalize, nll_loss, cross_entropy and losses of
    each element, as functions, as methods and with out=. Convolutions are products of copied
    windows. The gradients of all of these have a fixed order, even if they are computed after the
    statement. docs/guide/invariant_functions.md has a table of all functions of PyTorch.

    A row's bits depend on its numbers, their places and its length; sums that are padded on the
    right with zeros keep their bits, and so does attention with masked keys on the right. What is
    of the batch itself depends on it: a loss's mean, a weight's gradient, BatchNorm in training and
    random numbers. Gradients with create_graph=True or by torch.func have other bits than those of
    backward(), which depend on the batch as little. On a CPU PyTorch may round functions of each
    element, such as gelu and silu, otherwise in a view and at the end of a tensor: contiguous
    tensors of multiples of 32 elements a sample are safe.

    On a GPU that is no Hopper, and for float64, "ieee", dropout and more than 256 columns,
    attention is composed of products and softmax. So is the attention of
    multi_head_attention_forward if that returns weights. PyTorch computes integers, sparse and
    nested tensors, tensor subclasses, and what is not covered. With strict=True the first of these
    with floating-point numbers raises.

    Statements nest, and the innermost one counts; of an override inside of one its precision
    counts, and of one around it nothing. A statement holds for its own thread. It does not see
    calls of torch.ops.aten, modules of torch.jit, and Python code that a backward pass runs.
    `@torch_tiled.invariant()` is one around each call of a function. `invariant.enable()` is a
    statement around all others of the thread, until `invariant.disable()`. Compiled functions may
    be called in a statement or contain one, and keep the bits of products and reductions; on a CPU
    grouped_mm breaks a graph. A generator that yields in a statement leaves it active for its
    caller. A function that torch.utils.checkpoint recomputes is outside of the statement then: put
    one into the function, or pass context_fn.

    Args:
        precision: as for torch_tiled.matmul.
        strict: raise at the first function that is not covered.

    Raises:
        RuntimeError: there is no such precision; in the statement, with strict=True, a function of
            floating-point tensors that is not covered.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.LayerNorm(64))
        >>> x = torch.randn(7, 96)
        >>> with torch_tiled.invariant(strict=True):
        ...     torch.equal(model(x)[3:4], model(x[3:4]))
        True
    """

    def __init__(self, precision: str = "fp32", strict: bool = False) -> None:
        super().__init__()
        if not is_compiling():
            check_precision("torch_tiled.invariant", precision)
        self.precision = precision
        self.strict = strict
        self._products = INVARIANT_PRODUCTS[precision]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # Dynamo does not find methods in Python code in a dict, of which norm is one.
        route = INVARIANT_ROUTES.get(torch.norm if func is _NORM else func)
        if route is not None:
            result = route(self._products, *args, **kwargs)
            if result is not None:
                return result
        elif PLAIN_TYPES.issuperset(types):
            if func is _UNFLATTEN:  # Dynamo cannot trace the method in a mode
                return torch.unflatten(*args, **kwargs)
            inside = INSIDE.get(func)
            if inside is not None:
                with self:
                    return inside(*args, **kwargs)
        if self.strict and _has_floats(args, kwargs):
            _check_is_covered(func, args, kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def enable(precision: str = "fp32", strict: bool = False) -> None:
        """Begins a statement around all others of this thread, which disable() ends.

        Args:
            precision: as for the statement.
            strict: as for the statement.

        Raises:
            RuntimeError: there is no such precision.

        Examples:
            >>> torch_tiled.invariant.enable()
            >>> x = torch.randn(4, 1000)
            >>> torch.equal(x.sum(1)[:1], x[:1].sum(1))
            True
            >>> torch_tiled.invariant.disable()
        """
        _refuse_compiled("enable")
        mode = invariant(precision, strict)
        insert_function_mode(mode, _enabled.modes)
        _enabled.modes.append(mode)

    @staticmethod
    def disable() -> None:
        """Ends what the last enable() of this thread began.

        Raises:
            RuntimeError: nothing is enabled in this thread.

        Examples:
            >>> torch_tiled.invariant.enable()
            >>> torch_tiled.invariant.disable()
        """
        _refuse_compiled("disable")
        if not _enabled.modes:
            raise RuntimeError(
                "torch_tiled.invariant.disable: nothing is enabled in this thread; call it once "
                "for each torch_tiled.invariant.enable() of the same thread"
            )
        remove_function_mode(_enabled.modes.pop())


def _refuse_compiled(name: str) -> None:
    if is_compiling():
        raise RuntimeError(
            f"torch_tiled.invariant.{name}: a compiled function cannot switch it; call it outside, "
            f"or write `with torch_tiled.invariant():` in the function"
        )


def _tensors(args, kwargs) -> list[torch.Tensor]:
    return [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]


def _has_floats(args, kwargs) -> bool:
    tensors = _tensors(args, kwargs)
    if is_compiling():
        return any(x.is_floating_point() or x.is_complex() for x in tensors)
    with WithoutFunctionModes():  # or statements around this one would be asked
        return any(x.is_floating_point() or x.is_complex() for x in tensors)


def _check_is_covered(func: Callable, args: tuple, kwargs: dict) -> None:
    """Raises if PyTorch's function may have other bits in another batch."""
    row = _row(func)
    what = None
    if row == IN_EVAL:
        if kwargs.get("training", args[5] if len(args) > 5 else False):
            what = "its statistics are the batch's; call eval(), or use layer_norm or group_norm"
    elif row in ATOMIC.split():
        if _is_unordered(row, args, kwargs):
            what = "it adds in any order; call torch.use_deterministic_algorithms(True)"
    elif row is not None:
        what = advice(row) or "it is not in torch_tiled's table; call it for one sample at a time"
        if func in INVARIANT_ROUTES or func in INSIDE or func is _NORM:
            what = (
                "torch_tiled does not take its operands or options; pass dense tensors of one dtype"
            )
    if what is not None:
        raise RuntimeError(
            f"torch_tiled.invariant: {_name(func)} may have other bits in another batch: {what}; "
            f"or drop strict=True"
        )


def _is_unordered(row: str, args: tuple, kwargs: dict) -> bool:
    if torch.are_deterministic_algorithms_enabled():
        return False
    if row in ("index_put", "put"):
        return kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    return any(x.is_cuda for x in _tensors(args, kwargs))


@assume_constant_result
def _row(func: Callable) -> str | None:
    """Returns the function's name in the table, or None if PyTorch's result has a fixed order."""
    if isinstance(func, OpOverload) and func.namespace in _TRACED:
        return None
    row = row_of(getattr(func, "__name__", str(func)))
    return None if is_kept(row) else row


@assume_constant_result
def _name(func: Callable) -> str:
    return resolve_name(func) or getattr(func, "__name__", str(func))
