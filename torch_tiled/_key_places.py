"""The keys of a padded or packed batch at the places that they have in a sample alone.

Attention's bits depend on the places of the keys that a query sees. Padding on the left moves a
sample's keys to later places, and packing moves them behind those of other samples.
"""

import functools
import threading
import weakref

import torch
from torch.compiler import is_compiling

from ._internals import dispatch_modes, is_jit_tracing, is_wrapped, version_of
from ._op.attention_packed import pad, row_of_place, unpad

__all__ = ["from_first_key", "in_sequences"]


def _once_a_mask(compute):
    """Keeps compute(mask, *others) for the next call: all layers of a model have one mask.

    compute is told whether the values of the mask may be read on the host.
    """
    last = threading.local()

    @functools.wraps(compute)
    def of_mask(mask, *others):
        traced = is_compiling() or is_jit_tracing() or dispatch_modes() or is_wrapped(mask)
        if traced or mask.is_meta or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
            return compute(mask, *others, is_readable=False)
        version = version_of(mask)
        kept, of_version, result = getattr(last, "kept", (lambda: None, None, None))
        if kept() is not mask or version is None or version != of_version:
            result = compute(mask, *others, is_readable=True)
            last.kept = weakref.ref(mask), version, result
        return result

    return of_mask


def from_first_key(key, value, mask):
    """Rotates the keys of each sample so that the first one that any query sees is at place 0.

    Attention is the same sum in another order. The tensors are returned themselves if every sample
    begins with a key that is seen, or if the mask has no dimension of the batch.

    Args:
        key: (batch, ..., keys, columns).
        value: (batch, ..., keys, columns).
        mask: (batch or 1, ..., queries or 1, keys), of as many dimensions as key: torch.bool, true
            for keys that are seen, or floating-point. A key of -inf or of the least finite number
            is not seen.

    Returns:
        key, value and mask.
    """
    if not isinstance(mask, torch.Tensor) or not 3 <= mask.dim() == key.dim():
        return key, value, mask
    if mask.shape[-1] != key.shape[-2] or mask.numel() == 0:
        return key, value, mask
    places = _places(mask)
    if places is None:
        return key, value, mask
    key, value = (torch.take_along_dim(x, places.mT, -2) for x in (key, value))
    return key, value, torch.take_along_dim(mask, places, -1)


@_once_a_mask
def _places(mask, *, is_readable):
    """The place that each key of the rotated mask had, or None if no key moves.

    Writes that PyTorch does not count, as of a CUDA graph, leave a rotation of other samples, in
    which attention is still correct.
    """
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    seen = seen.any(dim=tuple(range(1, mask.dim() - 1)), keepdim=True)
    first = seen.int().argmax(-1, keepdim=True)
    if is_readable and not first.any():
        return None
    keys = mask.shape[-1]
    return (torch.arange(keys, device=mask.device) + first) % keys


def in_sequences(attend, query, key, value, mask, ends_q, ends_k, max_q, max_k):
    """Attention of packed sequences by a padded batch, in which each one's keys begin at place 0.

    Args:
        attend: attend(query, key, value, mask) returns (sequences, max_q, heads, columns).
        query: (1, heads, tokens, columns).
        key: (1, heads, tokens of keys, columns).
        value: (1, heads, tokens of keys, columns).
        mask: (1, 1, tokens, tokens of keys), of one block for each sequence.
        ends_q: (sequences + 1,): where the sequences begin in query, and where the last one ends.
        ends_k: the same of key and value.
        max_q: the tokens of the longest sequence, or more.
        max_k: the same of keys.

    Returns:
        (1, tokens, heads, columns).
    """
    q = pad(query[0].transpose(0, 1), ends_q, max_q)
    k, v = (pad(x[0].transpose(0, 1), ends_k, max_k) for x in (key, value))
    out = attend(q, k, v, _blocks(mask, ends_q, ends_k, max_q, max_k))
    return unpad(out.transpose(1, 2), ends_q, query.shape[2])[None]


@_once_a_mask
def _blocks(mask, ends_q, ends_k, max_q, max_k, *, is_readable):
    """The blocks of a mask of packed sequences, (sequences, 1, max_q, max_k).

    Continuous batching makes a mask for each step.
    """
    rows, _ = row_of_place(ends_q, max_q, mask.shape[-2])
    keys, has_key = row_of_place(ends_k, max_k, mask.shape[-1])
    blocks = mask[0, 0][rows[:, :, None], keys[:, None]]
    unseen = False if mask.dtype == torch.bool else -torch.inf
    return blocks.masked_fill(~has_key[:, None], unseen)[:, None]
