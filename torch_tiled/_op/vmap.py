"""The operators under torch.vmap: the kernels at FuncTorchBatched.

A rule gets whole tensors and, for each, the dimension that is mapped over, or None. It moves that
dimension to the front, and the operators take it for one more batch dimension.
"""

import math

import torch

from .._internals import apply_vmap_rule, current_interpreter
from .activations import ACTIVATIONS
from .checks import (
    check_attention,
    check_attention_packed,
    check_gemm_,
    check_grouped_mm,
    check_linear,
    check_matmul,
    check_matmul_out,
    check_prepared_linear,
    check_prepared_matmul,
    dtype_of_product,
)
from .namespace import NAMESPACE, operators

_matmul = operators.matmul.default
_matmul_out = operators.matmul.out
_gemm = operators.gemm_.default
_linear = operators.linear.default
_grouped_mm = operators.grouped_mm.default
_attention = operators.attention.default
_attention_packed = operators.attention_packed.default
_prepared_matmul = operators.matmul.prepared
_prepared_linear = operators.linear.prepared


def _rank(tensor, dim):
    """The rank of one example."""
    return tensor.dim() - (dim is not None)


def _to_front(tensor, dim):
    return tensor if dim is None else tensor.movedim(dim, 0)


def _pad_rank(tensor, dim, rank):
    """Inserts ones behind the mapped dimension, which is in front, so that examples have `rank`."""
    if dim is None:
        return tensor
    ones = (1,) * (rank - _rank(tensor, dim))
    return tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:])


def _check_example(check, info, in_dims, *tensors, **options):
    """Checks one example: a batch dimension in front might make bad shapes look good."""
    pairs = list(zip(tensors, in_dims, strict=True))
    if isinstance(info.batch_size, int) and info.batch_size == 0:
        examples = [_meta_example(tensor, dim) for tensor, dim in pairs]
    else:
        examples = [t if dim is None else t.select(dim, 0) for t, dim in pairs]
    return check(*examples, **options)


def _meta_example(tensor, dim):
    """A meta tensor in place of an example, if the mapped dimension has none."""
    if tensor is None:
        return None
    shape = list(tensor.shape)
    if dim is not None:
        del shape[dim]
    return tensor.new_empty(shape, device="meta")


def _as_matrices(in_dims, a, b):
    """a and b as matrices, their batches broadcast; and the dimensions that the product gains."""
    a_dim, b_dim = in_dims
    vector_a, vector_b = _rank(a, a_dim) == 1, _rank(b, b_dim) == 1
    a, b = _to_front(a, a_dim), _to_front(b, b_dim)
    a = a.unsqueeze(-2) if vector_a else a
    b = b.unsqueeze(-1) if vector_b else b
    rank = max(_rank(a, a_dim), _rank(b, b_dim))
    added = ([-2] if vector_a else []) + ([-1] if vector_b else [])
    return _pad_rank(a, a_dim, rank), _pad_rank(b, b_dim, rank), added


def _vmap_matmul(info, in_dims, a, b, **options):
    a_dim, b_dim = in_dims
    _check_example(check_matmul, info, in_dims, a, b, **options)
    if b_dim is None and b.dim() <= 2:  # the mapped dimension is one more dimension of rows
        return _matmul(_to_front(a, a_dim), b, **options), 0
    a, b, added = _as_matrices(in_dims, a, b)
    return _matmul(a, b, **options).squeeze(added), 0


def _vmap_matmul_out(info, in_dims, a, b, out, **options):
    a_dim, b_dim, out_dim = in_dims
    _refuse_shared_output("tiled::matmul", "out", out, out_dim)
    _check_example(check_matmul_out, info, in_dims, a, b, out, **options)
    if a_dim is None:
        a, a_dim = a.expand(info.batch_size, *a.shape), 0
    a, b, added = _as_matrices((a_dim, b_dim), a, b)
    out = _to_front(out, out_dim)
    for dim in reversed(added):
        out = out.unsqueeze(dim)
    _matmul_out(a, b, out=out, **options)
    return None, None


def _vmap_gemm(info, in_dims, c, a, b, **options):
    c_dim, a_dim, b_dim = in_dims
    _refuse_shared_output("tiled::gemm_", "c", c, c_dim)
    _check_example(check_gemm_, info, in_dims, c, a, b, **options)
    rank = _rank(c, c_dim)
    a = _pad_rank(_to_front(a, a_dim), a_dim, rank)
    b = _pad_rank(_to_front(b, b_dim), b_dim, rank)
    _gemm(_to_front(c, c_dim), a, b, **options)
    return None, None


def _refuse_shared_output(op, name, tensor, dim):
    if dim is None:
        raise RuntimeError(
            f"{op}: under vmap an operand is mapped over and {name} of shape "
            f"{tuple(tensor.shape)} is not, so every example would write to the same {name}; "
            f"map over {name} too, or call torch_tiled.matmul"
        )


def _vmap_linear(info, in_dims, x, weight, bias=None, *, activation="none", **options):
    in_dims = (*in_dims, None)[:3]  # a call without bias has two
    x_dim, weight_dim, bias_dim = in_dims
    _check_example(check_linear, info, in_dims, x, weight, bias, activation=activation, **options)
    dtype = options.get("out_dtype") or dtype_of_product(x.dtype, weight.dtype)
    x, weight = _to_front(x, x_dim), _to_front(weight, weight_dim)
    if weight_dim is None and bias_dim is None:
        return _linear(x, weight, bias, activation=activation, **options), 0
    # No kernel takes a bias or weight for each example: product, bias and activation are separate.
    if x.dtype != weight.dtype:  # the product is float32, and rounded at the end
        options.pop("out_dtype", None)
    batch = x.shape[: x_dim is not None]
    rows = x.shape[len(batch) : -1]
    x = x.reshape(*batch, math.prod(rows), x.shape[-1])
    y = _matmul(x, weight.mT, **options)
    if bias is not None:
        y = y + _to_front(bias, bias_dim).unsqueeze(-2)
    y = y.reshape(info.batch_size, *rows, y.shape[-1])
    return (y if activation == "none" else ACTIVATIONS[activation](y)).to(dtype), 0


def _vmap_grouped_mm(info, in_dims, a, b, offs=None, bias=None, **options):
    in_dims = (*in_dims, None, None)[:4]
    a_dim, *other_dims = in_dims
    tensors = a, b, offs, bias
    shape, dtype = _check_example(check_grouped_mm, info, in_dims, *tensors, **options)
    count = info.batch_size
    if other_dims == [None] * 3 and (_rank(a, a_dim), b.dim()) == (2, 3):
        if count * shape[0] < 2**31:  # the examples' rows of a group are one group
            y = _grouped_mm(a.movedim(a_dim, 1).flatten(0, 1), b, offs * count, bias, **options)
            return y.reshape(shape[0], count, shape[1]), 1
    examples = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, in_dims, strict=True)]
        for i in range(count)
    ]
    if not examples:
        return a.new_empty((0, *shape), dtype=dtype), 0
    return torch.stack([_grouped_mm(*example, **options) for example in examples]), 0


def _vmap_attention(info, in_dims, q, k, v, mask, causal_offset, scale):
    dims, count = in_dims[:4], info.batch_size
    batch = _check_example(check_attention, info, dims, q, k, v, mask)[0]

    def fold(x, dim):
        """The examples' batches as one."""
        x = x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1)

    if mask is not None:
        mask = _pad_rank(_to_front(mask, dims[3]), dims[3], 4)
        if dims[3] is not None:
            mask = fold(mask.expand(count, batch, *mask.shape[2:]), 0)
        elif mask.dim() == 4 and mask.shape[0] != 1:
            mask = fold(mask, None)
    q, k, v = map(fold, (q, k, v), dims[:3])
    results = _attention(q, k, v, mask, causal_offset, scale)
    return tuple(x.unflatten(0, (count, batch)) for x in results), (0, 0, 0)


def _vmap_attention_packed(info, in_dims, q, k, v, offsets_q, offsets_k, *options):
    dims, count = in_dims[:5], info.batch_size
    tensors = q, k, v, offsets_q, offsets_k
    rows, heads, columns = _check_example(check_attention_packed, info, dims, *tensors)
    if dims[3:] == (None, None):  # the examples' heads are one example's

        def fold(x, dim):
            x = x[:, None].expand(-1, count, -1, -1) if dim is None else x.movedim(dim, 1)
            return x.flatten(1, 2)

        folded = map(fold, (q, k, v), dims[:3])
        out, *others = _attention_packed(*folded, offsets_q, offsets_k, *options)
        others = (x.unflatten(0, (count, heads)) for x in others)
        return (out.unflatten(1, (count, heads)), *others), (1, 0, 0)
    examples = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=True)]
        for i in range(count)
    ]
    if not examples:
        empty = q.new_empty((0, heads, rows))
        return (q.new_empty((0, rows, heads, columns)), empty, empty.int()), (0, 0, 0)
    results = zip(*(_attention_packed(*x, *options) for x in examples), strict=True)
    return tuple(map(torch.stack, results)), (0, 0, 0)


# A prepared operand is one matrix. If each example has its own, the products are unprepared ones,
# with the same bits.


def _vmap_prepared_matmul(info, in_dims, a, b, hi_lo, inverse_scales, **options):
    a_dim, *prepared_dims = in_dims
    _check_example(check_prepared_matmul, info, in_dims, a, b, hi_lo, inverse_scales, **options)
    if any(dim is not None for dim in prepared_dims):
        return _vmap_matmul(info, (a_dim, prepared_dims[0]), a, b, **options)
    return _prepared_matmul(_to_front(a, a_dim), b, hi_lo, inverse_scales, **options), 0


def _vmap_prepared_linear(info, in_dims, x, weight, hi_lo, inverse_scales, bias=None, **options):
    in_dims = (*in_dims, None)[:5]  # a call without bias has four
    x_dim, *prepared_dims, bias_dim = in_dims
    prepared = weight, hi_lo, inverse_scales
    _check_example(check_prepared_linear, info, in_dims, x, *prepared, bias, **options)
    if any(dim is not None for dim in (*prepared_dims, bias_dim)):
        dims = (x_dim, prepared_dims[0], bias_dim)
        return _vmap_linear(info, dims, x, weight, bias, **options)
    return _prepared_linear(_to_front(x, x_dim), *prepared, bias, **options), 0


def _vmap_prepare(info, in_dims, b):
    raise RuntimeError(
        f"tiled::prepare: under vmap b of shape {tuple(b.shape)} is mapped over, and a prepared "
        f"operand is one matrix; prepare it outside of vmap, or call torch_tiled.matmul(a, b)"
    )


def _batched_matmul_out(keyset, a, b, *, out, **options):
    """The kernel that torch.library.register_vmap would register for matmul.out.

    register_vmap does not look for mapped tensors among keyword arguments.
    """

    def op(a, b, out, **options):
        _matmul_out(a, b, out=out, **options)

    return apply_vmap_rule(current_interpreter(), _vmap_matmul_out, op, a, b, out, **options)


def register(library):
    for name, rule in (
        ("matmul", _vmap_matmul),
        ("matmul.prepared", _vmap_prepared_matmul),
        ("gemm_", _vmap_gemm),
        ("linear", _vmap_linear),
        ("linear.prepared", _vmap_prepared_linear),
        ("grouped_mm", _vmap_grouped_mm),
        ("attention", _vmap_attention),
        ("attention_packed", _vmap_attention_packed),
        ("prepare", _vmap_prepare),
    ):
        torch.library.register_vmap(f"{NAMESPACE}::{name}", rule, lib=library)
    library.impl("matmul.out", _batched_matmul_out, "FuncTorchBatched", with_keyset=True)
