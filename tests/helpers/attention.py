"""Attention: operands, masks, the library's calls and PyTorch's in float64."""

import torch
import torch.nn.functional as F

import torch_tiled
from torch_tiled._op.namespace import operators

operator = operators.attention.default


def ours(*args, **options):
    """The function by its kernel, on each device."""
    function = torch_tiled.nn.functional.scaled_dot_product_attention
    return function(*args, **options, algorithm="fp16x3")


def draw(batch, heads, kv_heads, queries, keys, columns, value_columns=None, **options):
    """q, k and v."""
    value_columns = columns if value_columns is None else value_columns
    return (
        torch.randn(batch, heads, queries, columns, **options),
        torch.randn(batch, kv_heads, keys, columns, **options),
        torch.randn(batch, kv_heads, keys, value_columns, **options),
    )


def to(device, *tensors):
    return [None if x is None else x.to(device) for x in tensors]


def exact(q, k, v, mask=None, causal_offset=None, scale=None):
    """Attention in float64, and its weights; zeros for a query that sees no key."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal_offset is not None:
        keys = torch.arange(k.shape[2], device=q.device)
        queries = torch.arange(q.shape[2], device=q.device)[:, None]
        scores = scores.masked_fill(keys > queries + causal_offset, -torch.inf)
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask.double()
    weights = torch.softmax(scores, -1).nan_to_num()
    return weights @ v, weights


def reference(q, k, v, mask=None, **options):
    """PyTorch's function by plain products, which every transform takes."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, mask, **options)
