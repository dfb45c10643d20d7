"""Attention: operands, masks, the library's calls and PyTorch's in float64."""

import torch
import torch.nn.functional as F

import torch_tiled
from torch_tiled._op.namespace import operators

from .reference import assert_same

operator = operators.attention.default
INF, NAN = torch.inf, torch.nan

# A mask and a causal offset, of so many queries and keys.
MASKS = {
    "none": lambda s, t: (None, None),
    "causal": lambda s, t: (None, 0),
    "causal, lower right": lambda s, t: (None, t - s),
    "bool": lambda s, t: (torch.rand(s, t) > 0.5, None),
    "of keys": lambda s, t: (torch.rand(1, 1, 1, t) > 0.3, None),
    "float": lambda s, t: (torch.randn(2, 1, s, t), None),
    "float and causal": lambda s, t: (torch.randn(s, 1), 3),
    "nothing is seen": lambda s, t: (torch.zeros(s, t, dtype=torch.bool), None),
    "before the first key": lambda s, t: (None, -2),
}


def mask_of_many_values(keys):
    """A mask of nine queries: the largest and the smallest numbers, Inf and NaN."""
    mask = torch.zeros(9, keys)
    mask[0] = -INF
    mask[1] = torch.finfo(torch.float32).min
    mask[2, : keys - 30] = torch.finfo(torch.float32).min
    mask[3, :50] = -INF
    mask[4] = 1e7
    mask[5, 99] = INF
    mask[6, ::2] = 3e38
    mask[7] = -5e6
    mask[8, 4] = NAN
    return mask


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


def assert_bits(specification, device, q, k, v, mask=None, causal_offset=None, scale=None):
    """Asserts the specification's bits on the CPU, and the CPU's on a GPU."""
    options = causal_offset, q.shape[-1] ** -0.5 if scale is None else scale
    expected = (specification.attention if device == "cpu" else operator)(q, k, v, mask, *options)
    for found, wanted in zip(operator(*to(device, q, k, v, mask), *options), expected, strict=True):
        assert_same(found.cpu(), wanted)


def replace_elements(tensors, names, elements):
    """The tensors of these names with some elements replaced: q={(row, column): value}."""
    for name, x in zip(names, tensors, strict=True):
        for (row, column), value in elements.get(name, {}).items():
            x[0, 0, row, column] = value
    return tensors


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
