"""Frozen layers: torch_tiled.nn.Linear with a weight that is split once, for inference."""

import dataclasses
import functools
import threading
import weakref
from typing import TypeVar

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._internals import (
    is_in_fsdp_shards,
    is_jit_tracing,
    is_wrapped,
    transforms_active,
    version_of,
)
from ._op.argument_types import check_is_module
from ._op.checks import check_prepare
from ._op.supported import PLAIN_TYPES
from .ops import prepare
from .prepared import Prepared

__all__ = ["Freezable", "freeze", "frozen_bytes", "refreeze", "unfreeze"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


def freeze(model: _Model) -> _Model:
    """Splits the weight of every torch_tiled.nn.Linear in model, once, for inference.

    On Hopper GPUs a float32 product first splits both operands into hi and lo float16 parts. A
    frozen layer keeps the parts of its weight, and its products skip that work. They take about as
    much memory as the weight (torch_tiled.frozen_bytes returns how much). No bit of a result
    changes. A layer that is not frozen never keeps a split, since a split that outlives a write to
    the weight gives wrong results.

    On the CPU nothing is split, and a frozen layer reads its weight: every write counts. On GPUs

    - the layer compares its weight, before each call outside of compiled graphs, with the one that
      it split. It splits again after every write that the version counter counts (by copy_,
      torch.nn.init, ...), if the Parameter, storage, shape, strides, dtype or device is another,
      and after a step() of any torch.optim.Optimizer that has the weight and may have written it.
      Compiled graphs notice `.to()`, load_state_dict and a step() that is not compiled.
    - It cannot notice writes that leave no version: by collectives of torch.distributed
      (broadcast, all_reduce, recv, ...); through `.data`, `untyped_storage()` or DLPack; by other
      libraries' kernels, a replayed CUDA graph or another process; nor any in-place write to a
      weight that was made under torch.inference_mode(). Compiled graphs, exported programs and
      captured CUDA graphs notice no other write either. After such a write call
      torch_tiled.refreeze(model): it splits into the same memory if shapes are the same, and those
      graphs read that memory.
    - A layer splits on the stream of the call that noticed the write. If several streams use a
      model, call torch_tiled.refreeze(model) after every write, and let the other streams wait for
      it.

    A weight that is a DTensor, or sharded by fully_shard, is not split.

    A frozen weight has no gradient: if one would be recorded (grad mode is on and the weight
    requires grad) the layer raises, in train() and eval() alike. Its input and bias get their
    gradients. Under autocast the layer computes the same as an unfrozen one. Its state_dict, saved
    and loaded, is that of an unfrozen layer. Copies and pickles of a frozen layer are frozen, and
    split again at their first call; compiled graphs that come before it read the weight itself.

    Args:
        model: a torch.nn.Module. Its other layers are left alone.

    Returns:
        model.

    Raises:
        RuntimeError: a weight has a dtype or is on a GPU that torch_tiled does not support. No
            layer is frozen then that was not before.
        torch.OutOfMemoryError: as RuntimeError; there is no memory for the hi and lo parts.

    Examples:
        >>> model = torch.nn.Sequential(torch_tiled.nn.Linear(64, 16), torch.nn.ReLU())
        >>> model = torch_tiled.freeze(model.eval())
        >>> with torch.no_grad():
        ...     y = model(torch.randn(8, 64))
    """
    layers = _layers("freeze", model)
    unfrozen = [layer for layer in layers if not layer._frozen]
    try:
        for layer in layers:
            layer._freeze()
    except BaseException:
        for layer in unfrozen:
            layer._unfreeze()
        raise
    return model


def refreeze(model: _Model) -> _Model:
    """Splits the weight of every frozen layer in model again, after writes that it cannot notice.

    torch_tiled.freeze says which writes those are. The hi and lo parts are written into the memory
    that they have, if shapes are the same, so that compiled graphs and captured CUDA graphs read
    them. Layers that are not frozen are left alone.

    Args:
        model: a torch.nn.Module.

    Returns:
        model.

    Raises:
        RuntimeError: as torch_tiled.freeze does.
        torch.OutOfMemoryError: as torch_tiled.freeze does.

    Examples:
        >>> model = torch_tiled.freeze(torch_tiled.nn.Linear(64, 16).eval())
        >>> _ = model.weight.data.zero_()
        >>> model = torch_tiled.refreeze(model)
    """
    for layer in _layers("refreeze", model):
        if layer._frozen:
            layer._split()
    return model


def unfreeze(model: _Model) -> _Model:
    """Undoes torch_tiled.freeze(model): every layer reads its weight again, and can be trained.

    Args:
        model: a torch.nn.Module.

    Returns:
        model.

    Raises:
        RuntimeError: model is no torch.nn.Module.

    Examples:
        >>> model = torch_tiled.freeze(torch_tiled.nn.Linear(64, 16).eval())
        >>> model = torch_tiled.unfreeze(model).train()
    """
    for layer in _layers("unfreeze", model):
        layer._unfreeze()
    return model


def frozen_bytes(model: torch.nn.Module) -> int:
    """The bytes that torch_tiled.freeze(model) has taken, beside the weights' own.

    Args:
        model: a torch.nn.Module.

    Returns:
        The number of bytes. It is about that of the float32 weights on Hopper GPUs, and 0 on the
        CPU.

    Raises:
        RuntimeError: model is no torch.nn.Module.

    Examples:
        >>> layer = torch_tiled.nn.Linear(1024, 1024)
        >>> torch_tiled.frozen_bytes(torch_tiled.freeze(layer))
        0
    """
    layers = _layers("frozen_bytes", model)
    return sum(layer._prepared(layer.weight).nbytes for layer in layers if layer._frozen)


def _layers(function, model):
    check_is_module(f"torch_tiled.{function}", model)
    return [layer for layer in model.modules() if isinstance(layer, Freezable)]


@dataclasses.dataclass
class _Split:
    """What a layer has split."""

    weight: torch.Tensor  # the Parameter
    alias: torch.Tensor  # keeps the storage alive, so that no other tensor gets its address
    version: int | None  # of the weight at the time
    place: tuple  # of the weight at the time


class Freezable:
    """The part of torch_tiled.nn.Linear that freezes its weight.

    The hi and lo parts and the inverse scales are non-persistent buffers: no state_dict has them,
    and PyTorch takes them for constants when it compiles, exports and captures.
    """

    _frozen = False
    _split_of: _Split | None = None
    # The id() of the layer that allocated the buffers: a copy may have another layer's.
    _allocated_by = None

    def _freeze(self):
        if not self._frozen:
            self._frozen = True
            device = self.weight.device
            for name, dtype in (("_hi_lo", torch.uint8), ("_inverse_scales", torch.float32)):
                empty = torch.empty(0, dtype=dtype, device=device)
                self.register_buffer(name, empty, persistent=False)
        self._split()

    def _unfreeze(self):
        if self._frozen:
            del self._hi_lo, self._inverse_scales
            for name in ("_frozen", "_split_of", "_allocated_by"):
                self.__dict__.pop(name, None)

    def _prepared(self, weight):
        buffers = self._buffers  # Module.__getattr__ takes longer
        return Prepared(weight, buffers["_hi_lo"], buffers["_inverse_scales"], transposed=True)

    def _can_be_split(self, weight):
        """Returns whether the weight is a plain tensor, so that writes to it can be noticed.

        A tensor that a transform or subclass wraps, or that is gathered from shards, is none.
        """
        return _is_plain(weight) and not is_in_fsdp_shards(self)

    def _split(self):
        """Splits the weight, into the same memory if it fits: captured graphs read that memory."""
        self._split_of = None  # for the case that prepare() raises
        weight = self.weight
        if not self._can_be_split(weight) or weight.dim() != 2:  # FSDP's shards may be vectors
            return
        is_own = self._allocated_by == id(self)
        with torch.inference_mode(False), torch.no_grad():
            alias = weight.detach()
            version = version_of(alias)  # before it is read
            new = _hi_lo_and_scales(alias)
            for name, tensor in zip(("_hi_lo", "_inverse_scales"), new, strict=True):
                old = getattr(self, name)
                if is_own and _are_alike(old, tensor) and not old.is_inference():
                    old.copy_(tensor)
                else:
                    setattr(self, name, tensor)
        self._allocated_by = id(self)
        self._split_of = _Split(weight, alias, version, _place(alias))
        if self._hi_lo.numel() > 0:
            _watch(self)

    def _is_split(self, weight):
        """Returns whether the split is of the layer's weight. Outside of graphs it splits again."""
        split_of = self._split_of
        if is_compiling():
            if split_of is None:
                return False
            # Dynamo guards on this comparison. torch.export without Dynamo replaces the layer's
            # tensors by its own, so that it would fail. (is_exporting() is not asked: with torch
            # 2.11 Dynamo takes it for true.)
            return not is_dynamo_compiling() or split_of.weight is weight
        if is_jit_tracing() or not self._can_be_split(weight):
            return False
        if _compiled_steps.unseen:
            _forget_splits_after_compiled_steps()
            split_of = self._split_of
        if split_of is not None:
            is_same = split_of.weight is weight and split_of.version == version_of(weight)
            if is_same and split_of.place == _place(weight):
                return True
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # a split would be captured and not run
        self._split()
        return True

    def _apply(self, *args, **options):  # .to(), .half(), .to_empty() and others call it
        super()._apply(*args, **options)
        if self._frozen:
            self._split()
        return self

    def _load_from_state_dict(self, *args, **options):
        super()._load_from_state_dict(*args, **options)
        if self._frozen:
            self._split()

    def __getstate__(self):
        state = self.__dict__.copy()
        for name in ("_split_of", "_allocated_by"):
            state.pop(name, None)
        state["_buffers"] = self._buffers.copy()  # which a shallow copy would share
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._split_of = self._allocated_by = None  # pickles of older versions have a split


def _is_plain(tensor):
    """Returns whether no subclass and no transform wraps the tensor."""
    return type(tensor) in PLAIN_TYPES and not (transforms_active() and is_wrapped(tensor))


def _are_alike(x, y):
    return (x.shape, x.stride(), x.dtype, x.device) == (y.shape, y.stride(), y.dtype, y.device)


def _place(x):
    """What tells tensors of different memory apart: an address is of one device alone."""
    return x.data_ptr(), x.dtype, x.shape, x.stride()


def _splits(weight):
    """Returns whether the weight is split. The CPU would only model what a GPU gains by it."""
    return not weight.is_cpu


def _hi_lo_and_scales(weight):
    if _splits(weight):
        new = prepare(weight.mT)
        return new.hi_lo, new.inverse_scales
    check_prepare(weight.mT)
    return weight.new_empty(0, dtype=torch.uint8), weight.new_empty(0, dtype=torch.float32)


# --- steps of optimizers -------------------------------------------------------------------------
#
# PyTorch's fused optimizers write to a weight and leave its version as it was, and an optimizer of
# another library may do the same. So a hook runs after each step of any optimizer, from the first
# split on.

_split_layers = weakref.WeakSet()
_lock = threading.Lock()  # for changing and iterating over _split_layers


class _CompiledSteps:
    unseen = False  # whether a compiled step has run that no frozen layer knows of


_compiled_steps = _CompiledSteps()


def _watch(layer):
    """Makes the layer split its weight again after an optimizer's step that may have written it."""
    with _lock:
        _split_layers.add(layer)
        _register_hook()


@functools.cache
def _register_hook():
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer, args, kwargs):
    """Forgets the splits of the weights that an optimizer may have written."""
    if is_compiling():  # Dynamo traces this hook into the step, and could not trace the rest
        _compiled_steps.unseen = True
        return
    if not _split_layers:
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    written = {_storage(p) for p in parameters if _has_storage(p) and _may_be_stepped(p)}
    _forget_splits(lambda split: _storage(split.alias) in written)


def _forget_splits_after_compiled_steps():
    _compiled_steps.unseen = False  # first, so that a step that runs meanwhile is seen
    _forget_splits(lambda split: _may_be_stepped(split.weight))


def _forget_splits(is_written):
    with _lock:
        layers = list(_split_layers)
    for layer in layers:
        split_of = layer._split_of
        if split_of is not None and is_written(split_of):
            layer._split_of = None


def _may_be_stepped(parameter):
    """Returns whether optimizers write to the parameter: they pass over those without gradients."""
    return parameter.requires_grad or parameter.grad is not None


def _has_storage(tensor):
    return _is_plain(tensor) and tensor.layout == torch.strided


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()
