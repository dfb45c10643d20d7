"""The operators on torch.distributed's DTensors: entry to the rules of sharding_rules.py.

torch.distributed.tensor takes long to import, so nothing here imports it before the user has. Each
kernel that a DTensor may reach first calls register_if_needed().
"""

import math
import sys

import torch

from .supported import PLAIN_TYPES

_is_registered = False


def register_if_needed() -> None:
    """Registers the DTensor rules, once, if torch.distributed.tensor has been imported."""
    global _is_registered
    if not _is_registered and "torch.distributed.tensor" in sys.modules:
        _is_registered = True
        from . import sharding_rules

        sharding_rules.register()


def move_shards_to_front(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Permutes the leading dimensions of tensors so that DTensor can fold them into one.

    DTensor folds dimensions without communication if only the first of them is sharded, evenly. So
    one sharded dimension moves to the front, and others are gathered. The tensors have the same
    sizes except in the last dimension, which stays in place; plain tensors are
    permuted alike.
    """
    if not _is_registered:
        return tensors
    from torch.distributed.tensor import DTensor, Replicate

    last = tensors[0].ndim - 1

    def shards(x):
        """The number of shards of each sharded dimension before the last."""
        counts = {}
        for placement, size in zip(x.placements, x.device_mesh.shape, strict=True):
            if placement.is_shard() and placement.dim < last:
                counts[placement.dim] = counts.get(placement.dim, 1) * size
        return counts

    counts_of_each = [shards(x) for x in tensors if isinstance(x, DTensor)]
    sharded = {dim for counts in counts_of_each for dim in counts}
    even = [
        dim
        for dim in sharded
        if all(tensors[0].shape[dim] % counts.get(dim, 1) == 0 for counts in counts_of_each)
    ]
    front = min(even, default=None)
    result = []
    for x in tensors:
        if isinstance(x, DTensor) and shards(x).keys() - {front}:
            placements = [
                Replicate() if p.is_shard() and p.dim < last and p.dim != front else p
                for p in x.placements
            ]
            x = x.redistribute(placements=placements)
        if front is not None:
            x = x.movedim(front, 0)
        if sharded and isinstance(x, DTensor):
            # reshape() decides by the global strides, and a local tensor may have others.
            x = x.clone(memory_format=torch.contiguous_format)
        result.append(x)
    return tuple(result)


def gather_from(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Gathers the shards of a DTensor's dimensions from `dim` on, which a view is about to fold."""
    if type(x) in PLAIN_TYPES or "torch.distributed.tensor" not in sys.modules:
        return x
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(x, DTensor):
        return x
    return x.redistribute(
        placements=[Replicate() if p.is_shard() and p.dim >= dim else p for p in x.placements]
    )


def gather_folded(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Gathers the shards of a DTensor of (batch, heads, rows, columns) that cannot be folded.

    The heads of q that share a head of k and v are folded into rows. Shards of the batch stay, and
    shards of heads, if no such group is divided. DTensor of torch 2.11 refuses other shards, and
    that of torch 2.13 gathers them itself.
    """
    if not _is_registered:
        return x
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(x, DTensor):
        return x

    pairs = list(zip(x.placements, x.device_mesh.shape, strict=True))
    whole_groups = kv_heads % math.prod(size for p, size in pairs if p.is_shard(1)) == 0

    def stays(placement):
        folds = placement.is_shard() and not placement.is_shard(0)
        return not folds or placement.is_shard(1) and whole_groups

    return x.redistribute(placements=[p if stays(p) else Replicate() for p, _ in pairs])
