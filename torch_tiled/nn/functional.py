"""Functions of torch.nn.functional by torch_tiled."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

from .._internals import autocast_active, dispatch_modes, is_jit_tracing, unwrapped
from .._op.attention_packed import mask_of_keys, pad, unpad
from .._op.call import call, entry_points
from .._op.namespace import operators
from .._op.supported import PLAIN_TYPES, is_hopper, is_supported, why_unsupported
from .convolutions import conv1d, conv2d, conv3d, explain_conv
from .losses import cross_entropy, nll_loss, selective_log_softmax
from .norms import group_norm, layer_norm, rms_norm
from .reductions import cumsum, log_softmax, logsumexp, mean, softmax, sum
from .transposed_convolutions import conv_transpose1d, conv_transpose2d, conv_transpose3d

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "cumsum",
    "explain_conv",
    "group_norm",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "mean",
    "nll_loss",
    "rms_norm",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_varlen",
    "selective_log_softmax",
    "softmax",
    "sum",
]

_attention = entry_points(operators.attention.default)
_attention_packed = entry_points(operators.attention_packed.default)
_NAME = "torch_tiled.nn.functional.scaled_dot_product_attention"
_VARLEN_NAME = f"{_NAME}_varlen"
_MOST_COLUMNS = 256  # of q, k and v on a GPU
_ALGORITHMS = {  # and the dtypes that they take
    "auto": (torch.float32, torch.bfloat16, torch.float16),
    "fp16x3": (torch.float32,),
    "mma": (torch.bfloat16, torch.float16),
}


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention by float16 products at float32's error, and
    of 16-bit tensors by one product each.

    The bits of a row depend on its query, on the keys and values that it sees and on their places
    alone: not on the batch, on other queries, or on masked keys after them, if the values of those
    are finite. In float32, errors are relative to the largest number of each row of query, key and
    value, and scores must be below 1.8e8 in magnitude, in others below 2.9e6: larger ones count as
    equal.

    Args:
        query: (..., heads, queries, columns), or without heads. Any strides; leading dimensions
            broadcast.
        key: (..., heads, keys, columns).
        value: (..., heads, keys, columns of the result).
        attn_mask: expands to (..., heads, queries, keys). A torch.bool one is true for keys that
            are seen; one of torch.float32 or of query's dtype is added to the scores, and keys of
            -inf are not seen. Or
            torch.nn.attention.bias.causal_upper_left or causal_lower_right. A query that sees no
            key gets zeros.
        dropout_p: 0. Others are refused.
        is_causal: query i sees keys 0 to i. Not beside a mask.
        scale: what products are multiplied by; by default columns ** -0.5.
        enable_gqa: query's heads may be a multiple of key's and value's. Neither is copied, unless
            key and value have different numbers of heads.
        algorithm: "auto", "fp16x3" or "mma". "auto" is fp16x3 for float32 tensors and mma for
            bfloat16 and float16 ones, of up to 256 columns on a Hopper GPU, outside of autocast
            regions. For other tensors, on a CPU and on other GPUs it is PyTorch's function. The
            others run on a CPU, too, with the same bits, and are refused for what they do not take.

    Returns:
        (..., heads, queries, columns of value), with the order of query's dimensions in memory.

    Raises:
        RuntimeError: dropout_p is not 0; a mask beside is_causal; no such algorithm; shapes, dtypes
            or devices that do not fit.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> q, k, v = (torch.randn(2, 4, 10, 8) for _ in range(3))
        >>> torch_tiled.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).shape
        torch.Size([2, 4, 10, 8])
    """
    if algorithm not in _ALGORITHMS:
        raise RuntimeError(
            f'{_NAME}: there is no algorithm "{algorithm}"; choose {" or ".join(_ALGORITHMS)}'
        )
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"{_NAME}: dropout_p is {dropout_p}; pass 0")
    if dropout_p != 0:
        raise RuntimeError(
            f"{_NAME}: dropout_p is {dropout_p}; pass 0, or call "
            f"torch.nn.functional.scaled_dot_product_attention, which has dropout"
        )
    dtypes = _ALGORITHMS["auto"]
    if algorithm == "auto" and not runs_on_gpu(query, key, value, attn_mask, dtypes):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return attention(query, key, value, attn_mask, is_causal, scale, enable_gqa, algorithm)


def runs_on_gpu(query, key, value, attn_mask=None, dtypes=_ALGORITHMS["fp16x3"]) -> bool:
    """Returns whether a GPU's kernel takes these tensors, and autocast does not cast them."""
    tensors = query, key, value
    if not all(isinstance(x, torch.Tensor) and x.is_cuda and is_supported(x) for x in tensors):
        return False
    if query.dtype not in dtypes or any(x.dtype != query.dtype or x.dim() < 2 for x in tensors):
        return False
    if any(x.shape[-1] == 0 or x.shape[-1] > _MOST_COLUMNS for x in tensors):
        return False
    if attn_mask is not None and not is_causal_bias(attn_mask):
        is_dense = attn_mask.is_cuda and attn_mask.layout is torch.strided
        if not is_dense or attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            return False
    return not torch.is_autocast_enabled("cuda") and is_hopper(query.device)


def is_causal_bias(mask) -> bool:
    """Returns whether this is a torch.nn.attention.bias.CausalBias, without importing that."""
    return type(mask).__name__ == "CausalBias" and hasattr(mask, "seq_len_q")


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    algorithm="auto",
):
    """scaled_dot_product_attention by the operator."""
    _check_operands(_NAME, query, key, value, algorithm)
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise RuntimeError(_sentence(query, key, value, "each must have at least 2 dimensions"))
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        given = type(attn_mask).__name__
        raise RuntimeError(f"{_NAME}: attn_mask is of type {given}; pass a tensor or None")
    if attn_mask is not None and is_causal:
        raise RuntimeError(f"{_NAME}: is_causal is True and attn_mask is given; pass one of them")
    causal_offset = 0 if is_causal else None
    if attn_mask is not None and is_causal_bias(attn_mask):
        causal_offset, attn_mask = causal_offset_of(query, key, attn_mask), None
    q, k, v, batch = _with_equal_batches(query, key, value, enable_gqa)
    mask = _fold_mask(attn_mask, (*batch, q.shape[2], k.shape[2]))
    if mask is not None and mask.dtype == q.dtype:
        mask = mask.float()
    scale = _scale_of(_NAME, scale, q.shape[3])
    out, _, _ = call(_attention, q, k, v, attn_mask=mask, causal_offset=causal_offset, scale=scale)
    return out if len(batch) == 2 else out.reshape(*batch, *out.shape[2:])


def _check_operands(function, query, key, value, algorithm):
    dtypes, any_autocast = _ALGORITHMS[algorithm], autocast_active()
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(f"{function}: {name} is of type {type(x).__name__}; pass a tensor")
        if not is_supported(x):
            reason = why_unsupported(x, name)
            raise RuntimeError(f"{function}: {reason}; pass a dense tensor of {dtypes[0]}")
        if any_autocast and not x.is_meta and torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            raise RuntimeError(
                f"{function}: autocast casts {name} to {dtype}, and algorithm {algorithm} takes "
                f"{dtypes[0]}; choose auto, or call it outside of the autocast region"
            )
        if algorithm != "auto" and x.dtype not in dtypes:
            names = " or ".join(map(str, dtypes))
            raise RuntimeError(
                f"{function}: {name} is {x.dtype}, and algorithm {algorithm} takes {names}; choose "
                f"auto, or cast it"
            )


def _scale_of(function, scale, columns):
    if scale is None:
        return 1 / math.sqrt(columns) if columns else 1.0
    if isinstance(scale, (str, complex)):
        raise RuntimeError(f"{function}: scale is of type {type(scale).__name__}; pass a number")
    return float(scale)


def _sentence(query, key, value, reason, function=_NAME):
    shapes = [tuple(x.shape) for x in (query, key, value)]
    return (
        f"{function}: query is {shapes[0]}, key is {shapes[1]} and value is {shapes[2]}; {reason}"
    )


def causal_offset_of(query, key, bias):
    """The last key that the first query sees."""
    queries, keys = query.shape[-2], key.shape[-2]
    if (bias.seq_len_q, bias.seq_len_kv) != (queries, keys):
        raise RuntimeError(
            f"{_NAME}: attn_mask is a CausalBias of {(bias.seq_len_q, bias.seq_len_kv)}, and there "
            f"are {queries} queries and {keys} keys; make it of these sizes"
        )
    return keys - queries if bias.variant.name == "LOWER_RIGHT" else 0


def _with_equal_batches(query, key, value, enable_gqa):
    """q, k and v of four dimensions; and the result's leading dimensions, heads included."""
    tensors = query, key, value
    ranks = [x.dim() for x in tensors]
    if ranks == [4, 4, 4]:
        batch, of_k, of_v = (x.shape[:2] for x in tensors)
        if of_k == of_v and (batch == of_k or (enable_gqa and batch[0] == of_k[0])):
            return query, key, value, batch
    if enable_gqa:
        if min(ranks) < 3:
            reason = "with enable_gqa each must have at least 3 dimensions"
            raise RuntimeError(_sentence(*tensors, reason))
        heads = query.shape[-3]
        if key.shape[-3] != value.shape[-3]:  # one of them is copied to the heads of both
            key, value = repeat_heads(heads, key, value, -3)
        shared = 3  # trailing dimensions that do not broadcast
    else:
        shared = 2
    leading = [x.shape[:-shared] for x in (query, key, value)]
    if leading[0] == leading[1] == leading[2]:
        batch = tuple(leading[0])
    else:
        try:
            batch = tuple(torch.broadcast_shapes(*leading))
        except RuntimeError:
            reason = "their leading dimensions do not broadcast; enable_gqa=True is for fewer heads"
            raise RuntimeError(_sentence(*tensors, reason)) from None

    def fold(x):
        if tuple(x.shape[:-shared]) != batch:
            x = x.expand(*batch, *x.shape[-shared:])
        if x.dim() > 4:
            return x.flatten(0, -4)
        return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]

    q, k, v = map(fold, (query, key, value))
    return q, k, v, (*batch, query.shape[-3]) if enable_gqa else batch


def repeat_heads(heads, key, value, dim):
    """key and value with each of their heads repeated, so that each has `heads`."""
    return [
        x.repeat_interleave(heads // x.shape[dim], dim)
        if x.shape[dim] and heads % x.shape[dim] == 0
        else x
        for x in (key, value)
    ]


def _fold_mask(mask, scores):
    """The mask of scores of these sizes with at most four dimensions."""
    if mask is None:
        return None
    while mask.dim() > 3 and mask.shape[0] == 1:
        mask = mask.squeeze(0)
    if mask.dim() <= 3 or (mask.dim() == 4 and len(scores) == 4):
        return mask
    try:
        return mask.expand(scores).flatten(0, -4)
    except RuntimeError:
        raise RuntimeError(
            f"{_NAME}: attn_mask is {tuple(mask.shape)}; it must expand to {tuple(scores)}, which "
            f"are leading dimensions, queries and keys"
        ) from None


def scaled_dot_product_attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """scaled_dot_product_attention of sequences that are packed one after another, without padding.

    Rows have the bits of their sequence's alone by "fp16x3" and by "mma". The kernels of "fp16x3"
    read cu_seqlens on their device, and nothing is padded or copied. Gradients of up to 128 columns
    have kernels of their own on a GPU. Other calls, and other derivatives, are computed of a padded
    batch of sequences x max_q queries and sequences x max_k keys with a mask. Nothing on a GPU is
    read on the host, so a CUDA graph may be replayed with other sequences.

    Args:
        query: (tokens, heads, columns).
        key: (tokens of keys, heads, columns).
        value: (tokens of keys, heads, columns of the result).
        cu_seqlens_q: (sequences + 1,), ascending, of torch.int32 or torch.int64 and on query's
            device: sequence i has the tokens from cu_seqlens_q[i] up to cu_seqlens_q[i + 1].
            torch.int64 is cast.
        cu_seqlens_k: the same of key and value.
        max_q: the tokens of the longest sequence, or more.
        max_k: the same of keys.
        is_causal: query i of a sequence sees its keys 0 to i.
        scale: as for scaled_dot_product_attention.
        enable_gqa: as for scaled_dot_product_attention.
        algorithm: as for scaled_dot_product_attention.

    Returns:
        (tokens, heads, columns of value), contiguous. Tokens of no sequence get zeros.

    Raises:
        RuntimeError: as scaled_dot_product_attention does; also for cu_seqlens of another dtype,
            shape or device and, on the CPU, ones that descend, run past the tokens or have a
            sequence longer than max_q or max_k. On a GPU, under a TorchDispatchMode and in a
            compiled or traced graph these raise nothing: offsets are clamped to the tokens, and
            keys from max_k on are not seen. Results of queries from max_q on, and of tokens that
            offsets descend over, are not defined.
        torch.OutOfMemoryError: as torch_tiled.matmul does. On a CPU PyTorch's RuntimeError if the
            unpacked sequences have no memory.

    Examples:
        >>> q, k, v = (torch.randn(9, 4, 8) for _ in range(3))
        >>> ends = torch.tensor([0, 4, 9])
        >>> function = torch_tiled.nn.functional.scaled_dot_product_attention_varlen
        >>> function(q, k, v, ends, ends, 5, 5, is_causal=True).shape
        torch.Size([9, 4, 8])
    """
    _check_varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    if algorithm not in _ALGORITHMS:
        raise RuntimeError(
            f'{_VARLEN_NAME}: there is no algorithm "{algorithm}"; choose '
            f"{' or '.join(_ALGORITHMS)}"
        )
    ends = cu_seqlens_q, cu_seqlens_k, max_q, max_k
    if algorithm != "auto":
        _check_operands(_VARLEN_NAME, query, key, value, algorithm)
    if algorithm == "mma" or (algorithm == "auto" and not runs_on_gpu(query, key, value)):
        return _padded_attention(query, key, value, *ends, is_causal, scale, enable_gqa, algorithm)
    q, k, v = _with_equal_heads(query, key, value, enable_gqa)
    offsets = (x.to(torch.int32) for x in ends[:2])
    options = {"max_q": max_q, "max_k": max_k, "is_causal": is_causal}
    scale = _scale_of(_VARLEN_NAME, scale, query.shape[2])
    return call(_attention_packed, q, k, v, *offsets, **options, scale=scale)[0]


def _padded_attention(
    query,
    key,
    value,
    cu_seqlens_q,
    cu_seqlens_k,
    max_q,
    max_k,
    is_causal,
    scale,
    enable_gqa,
    algorithm,
):
    """The same by scaled_dot_product_attention of a padded batch."""
    q = pad(query, cu_seqlens_q, max_q)
    k, v = (pad(x, cu_seqlens_k, max_k) for x in (key, value))
    are_the_same = cu_seqlens_q is cu_seqlens_k and query.shape[0] == key.shape[0]
    if is_causal and are_the_same and max_q == max_k:
        mask = None  # what is after a sequence's keys is after each of its queries
    else:
        mask = mask_of_keys(cu_seqlens_k, max_k, key.shape[0])
        if is_causal:
            mask, is_causal = mask & mask.new_ones(max_q, max_k).tril(), False
    out = scaled_dot_product_attention(
        q, k, v, mask, 0.0, is_causal, scale, enable_gqa, algorithm=algorithm
    )
    return unpad(out, cu_seqlens_q, query.shape[0])


def _with_equal_heads(query, key, value, enable_gqa):
    """query, key and value as the operator takes them: key and value have as many heads."""
    if enable_gqa:
        if key.shape[1] != value.shape[1]:  # one of them is copied to the heads of both
            key, value = repeat_heads(query.shape[1], key, value, 1)
        return query, key, value
    tensors = query, key, value
    try:
        (heads,) = torch.broadcast_shapes(*(x.shape[1:2] for x in tensors))
    except RuntimeError:
        reason = "their heads do not broadcast; enable_gqa=True is for fewer heads"
        raise RuntimeError(_sentence(*tensors, reason, _VARLEN_NAME)) from None
    return tuple(x.expand(-1, heads, -1) for x in tensors)


def _check_varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k):
    name = _VARLEN_NAME
    given = {"query": query, "key": key, "value": value}
    given |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for which, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(f"{name}: {which} is of type {type(x).__name__}; pass a tensor")
    for which, x in list(given.items())[:3]:
        if x.dim() != 3:
            raise RuntimeError(
                f"{name}: {which} is {tuple(x.shape)}; it must be (tokens, heads, columns)"
            )
    if key.shape[0] != value.shape[0]:
        raise RuntimeError(
            f"{name}: key is {tuple(key.shape)} and value is {tuple(value.shape)}; they must have "
            f"the same number of tokens"
        )
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise RuntimeError(
            f"{name}: cu_seqlens_q is {tuple(cu_seqlens_q.shape)} and cu_seqlens_k is "
            f"{tuple(cu_seqlens_k.shape)}; both must be (sequences + 1,)"
        )
    sides = ("q", cu_seqlens_q, query, max_q), ("k", cu_seqlens_k, key, max_k)
    for which, x, tokens, most in sides:
        _check_cu_seqlens(f"{name}: cu_seqlens_{which}", x, tokens)
        if isinstance(most, bool) or not isinstance(most, (int, torch.SymInt)) or most < 0:
            raise RuntimeError(f"{name}: max_{which} is {most!r}; pass an integer of 0 or more")
        reads = x.is_cpu and not (is_compiling() or is_jit_tracing() or dispatch_modes())
        if reads and type(x) in PLAIN_TYPES and unwrapped(x) is x:
            _check_ends(f"{name}: cu_seqlens_{which}", x.tolist(), tokens.shape[0], which, most)


def _check_cu_seqlens(name, cu_seqlens, tokens):
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name} is {cu_seqlens.dtype}; pass torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise RuntimeError(f"{name} is {tuple(cu_seqlens.shape)}; it must be (sequences + 1,)")
    if cu_seqlens.device != tokens.device:
        raise RuntimeError(
            f"{name} is on {cu_seqlens.device}, and its tokens are on {tokens.device}; move it "
            f"there"
        )


def _check_ends(name, ends, tokens, which, most):
    """Checks offsets that can be read."""
    if ends[0] < 0:
        raise RuntimeError(f"{name}[0] is {ends[0]}; it must be 0 or more")
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        if end < start:
            raise RuntimeError(f"{name}[{i + 1}] is {end}, after {start}; it must not descend")
        if end - start > most:
            raise RuntimeError(
                f"{name}: sequence {i} has {end - start} tokens, and max_{which} is {most}; pass "
                f"the length of the longest one"
            )
    if ends[-1] > tokens:
        raise RuntimeError(f"{name}[-1] is {ends[-1]}, and there are {tokens} tokens")
