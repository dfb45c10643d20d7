"""Layers."""

from typing import TypeVar

import torch
from torch.compiler import is_compiling, is_dynamo_compiling

from ._internals import is_in_fsdp_shards, is_wrapped, transforms_active, version_of
from .ops import linear, prepare
from .prepared import Prepared

__all__ = ["Linear", "freeze", "frozen_bytes", "unfreeze"]

_Model = TypeVar("_Model", bound=torch.nn.Module)


def freeze(model: _Model) -> _Model:
    """Splits the weight of every torch_tiled.nn.Linear in model, once, for a model that serves.

    A float32 product on a GPU of the Hopper generation begins with splitting both operands in
    halves. A frozen layer keeps its weight's, about as much memory as the weight
    (torch_tiled.frozen_bytes says how much), and spares that work. Results do not change by a bit.
    Nothing is ever frozen unless this is called, since a weight that was split and then written to
    is a wrong answer:

    - What a layer notices, before each call outside compiled graphs, it splits anew: a write that
      the version counter counts (optimizers, copy_, ...), another Parameter, storage, shape,
      strides, dtype or device. `.to()` and load_state_dict are noticed in compiled graphs, too.
    - What leaves no trace it cannot notice: writes through `.data` or `.detach().numpy()`, DLPack,
      other libraries' kernels, a replayed CUDA graph or another process, and any write to a weight
      that was made under torch.inference_mode(). Compiled graphs, exported programs and captured
      CUDA graphs look for no write at all. Call freeze(model) again after such a write: it splits
      anew, into the same memory where shapes are the same, which those graphs read.
    - It splits on the stream of the call that noticed. Where several streams use a model, call
      freeze(model) after every write, and let them wait for that.

    Where a weight is a DTensor, or in shards by fully_shard, nothing is split.

    A frozen weight has no gradient: while one would be recorded (grad mode is on and the weight
    requires grad) the layer refuses to run, in train() and eval() alike. Gradients to its input and
    bias flow. Under autocast it computes what an unfrozen layer does. The state_dict, as saved and
    as loaded, is that of an unfrozen layer; copies and pickles of a frozen layer are frozen, and
    split anew at their first call (before it, compiled graphs read the weight itself).

    Args:
        model: a torch.nn.Module; other layers in it are left alone.

    Returns:
        model.

    Example::

        >>> model = torch.nn.Sequential(torch_tiled.nn.Linear(64, 16), torch.nn.ReLU())
        >>> model = torch_tiled.freeze(model.eval())
        >>> with torch.no_grad():
        ...     y = model(torch.randn(8, 64))
    """
    for layer in _layers(model):
        layer._freeze()
    return model


def unfreeze(model: _Model) -> _Model:
    """Undoes torch_tiled.freeze(model): every layer reads its weight again, and can be trained.

    Returns:
        model.

    Example::

        >>> model = torch_tiled.unfreeze(model).train()
    """
    for layer in _layers(model):
        layer._unfreeze()
    return model


def frozen_bytes(model: torch.nn.Module) -> int:
    """The memory in bytes that torch_tiled.freeze(model) has taken, beside the weights' own.

    Example::

        >>> torch_tiled.frozen_bytes(torch_tiled.freeze(torch_tiled.nn.Linear(1024, 1024)))
        4198400
    """
    return sum(layer._prepared_weight().nbytes for layer in _layers(model) if layer._frozen)


def _layers(model):
    return [layer for layer in model.modules() if isinstance(layer, Linear)]


class Linear(torch.nn.Linear):
    """torch.nn.Linear by torch_tiled.linear, with an activation in the same launch.

    Parameters, their initial values and the state_dict are those of torch.nn.Linear, so that each
    loads what the other saved.

    Args:
        in_features, out_features, bias, device, dtype: as for torch.nn.Linear.
        activation: "none", "relu", "gelu", "gelu_tanh", "tanh" or "silu".
        precision, algorithm: as for torch_tiled.matmul.

    Shape:
        (..., in_features) to (..., out_features); the input needs at least one dimension.

    Raises:
        RuntimeError: in forward, as torch_tiled.linear does.

    Example::

        >>> layer = torch_tiled.nn.Linear(32, 16, activation="relu")
        >>> layer(torch.randn(8, 32)).shape
        torch.Size([8, 16])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "none",
        precision: str = "fp32",
        algorithm: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.precision = precision
        self.algorithm = algorithm

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(
            input,
            self._prepared_weight() if self._frozen and self._is_split() else self.weight,
            self.bias,
            activation=self.activation,
            algorithm=self.algorithm,
            precision=self.precision,
        )

    def extra_repr(self):
        return (
            f"{super().extra_repr()}, activation={self.activation}, "
            f"precision={self.precision}, algorithm={self.algorithm}"
            f"{', frozen' if self._frozen else ''}"
        )

    # Freezing. The halves are buffers that no state_dict has, so that they are what PyTorch takes
    # for fixed where it compiles, exports and captures.

    _frozen = False
    # The Parameter that was split, an alias that keeps its storage from being used for another,
    # and how often it had been written to; None where what was split is not this layer's.
    _split_of = None

    def _freeze(self):
        if not self._frozen:
            self._frozen = True
            self.register_buffer("_hi_lo", torch.empty(0, dtype=torch.uint8), persistent=False)
            self.register_buffer("_inverse_scales", torch.empty(0), persistent=False)
        self._split()

    def _unfreeze(self):
        if self._frozen:
            self._frozen = False
            self._split_of = None
            del self._hi_lo, self._inverse_scales

    def _prepared_weight(self):
        return Prepared(self.weight, self._hi_lo, self._inverse_scales, transposed=True)

    def _can_be_split(self):
        """Whether the weight is a tensor with memory of its own, where a write to it is noticed.

        Not one that a transform or subclass wraps, or that is gathered from shards.
        """
        weight = self.weight
        if type(weight) not in (torch.nn.Parameter, torch.Tensor) or is_in_fsdp_shards(self):
            return False
        return not (transforms_active() and is_wrapped(weight))

    def _split(self):
        """Splits the weight as it is now: into the same memory, which a graph may hold."""
        self._split_of = None  # until it is done
        if not self._can_be_split():
            return
        with torch.inference_mode(False), torch.no_grad():
            alias = self.weight.detach()
            version = version_of(alias)  # before it is read
            new = prepare(alias.mT)
            for name, tensor in (("_hi_lo", new.hi_lo), ("_inverse_scales", new.inverse_scales)):
                old = getattr(self, name)
                if _are_alike(old, tensor) and not old.is_inference():
                    old.copy_(tensor)
                else:
                    setattr(self, name, tensor)
        self._split_of = (self.weight, alias, version)

    def _is_split(self):
        """Whether what was split is the weight of now; outside compiled graphs it is made so."""
        weight, split_of = self.weight, self._split_of
        if is_compiling():
            if split_of is None:
                return False
            # Dynamo guards what it finds here. (With torch 2.11 it takes is_exporting() for true.)
            # Where torch.export goes without it, a program has its own tensors for the layer's.
            return not is_dynamo_compiling() or split_of[0] is weight
        if not self._can_be_split():
            return False
        if split_of is not None:
            owner, alias, version = split_of
            same = owner is weight and version_of(weight) == version
            if same and weight.data_ptr() == alias.data_ptr() and _are_alike(weight, alias):
                return True
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # a split would be captured, and not done
        self._split()
        return True

    def _apply(self, *args, **options):  # what .to(), .half(), .to_empty(), ... come down to
        super()._apply(*args, **options)
        if self._frozen:
            self._split()
        return self

    def _load_from_state_dict(self, *args, **options):
        super()._load_from_state_dict(*args, **options)
        if self._frozen:
            self._split()

    def __setstate__(self, state):
        super().__setstate__(state)
        self._split_of = None


def _are_alike(x, y):
    return (x.shape, x.stride(), x.dtype, x.device) == (y.shape, y.stride(), y.dtype, y.device)
