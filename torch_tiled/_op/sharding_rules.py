"""How DTensor divides the operators among devices.

A rule lists, for one dimension of a device mesh, placements of the operands and the placement of
the result that follows from them. DTensor combines the rules of all mesh dimensions and picks the
combination that communicates least. This module imports torch.distributed.tensor, so sharding.py
imports it late.
"""

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from .._internals import distinguish_by_options
from .checks import check_matmul_out
from .namespace import operators

# A product is linear in each operand, so an operand's pending sum or mean may be taken afterwards.
_PENDING = (Partial("sum"), Partial("avg"))


def _with_options(rules, options):
    """Rules in DTensor's format, with None for each positional argument that is no tensor."""
    return [([out], [*tensors, *[None] * len(options)]) for out, *tensors in rules]


def _rows_and_batch(a, b, batch):
    """Rules (result, a, b) that shard the result's rows, or a dimension of its batch."""
    if a.ndim > 1:
        yield Shard(len(batch)), Shard(a.ndim - 2), Replicate()
    for dim, size in enumerate(batch):
        placements = []
        for operand in (a, b):
            own = dim - len(batch) + operand.ndim - 2
            has = operand.ndim > 2 and own >= 0 and operand.shape[own] != 1
            placements.append(Shard(own) if has else Replicate())
        if size != 1:
            yield Shard(dim), *placements


def _products(a, b, batch):
    """All rules (result, a, b) of a @ b, with this batch in the result."""
    yield Replicate(), Replicate(), Replicate()
    yield from _rows_and_batch(a, b, batch)
    if b.ndim > 1:
        yield Shard(len(batch) + (a.ndim > 1)), Replicate(), Shard(b.ndim - 1)
    yield Partial("sum"), Shard(a.ndim - 1), Shard(max(b.ndim - 2, 0))
    for pending in _PENDING:
        yield pending, pending, Replicate()
        yield pending, Replicate(), pending


def _broadcast_batch(a, b):
    return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])


def _matmul(a, b, *options, **_):
    return _with_options(_products(a, b, _broadcast_batch(a, b)), options)


def _gemm(c, a, b, **_):
    """c stays in place: the result has its placement, so that beta * c can be added."""
    return [([], list(rule)) for rule in _products(a, b, c.shape[:-2])]


def _linear(x, weight, bias=None, *options, activation="none", **_):
    last = x.ndim - 1
    rules = [(Replicate(), Replicate(), Replicate(), Replicate())]
    rules += [(Shard(dim), Shard(dim), Replicate(), Replicate()) for dim in range(last)]
    rules.append((Shard(last), Replicate(), Shard(0), Shard(0)))
    if activation == "none":
        rules.append((Partial("sum"), Shard(last), Shard(1), Partial("sum")))
        for pending in _PENDING:
            rules.append((pending, pending, Replicate(), pending))
            rules.append((pending, Replicate(), pending, pending))
    if bias is None:
        rules = [rule[:3] for rule in rules]
    return _with_options(rules, options)


def _grouped_mm(a, b, offs=None, bias=None, *_, **__):
    """A side that offs cuts stays whole, since all groups must have the same ends everywhere."""
    cuts_a, cuts_b = a.ndim == 2, b.ndim == 2
    of_batch = int(cuts_a == cuts_b)  # the result's dimensions before its rows
    rules = [(Replicate(), Replicate(), Replicate(), Replicate())]  # result, a, b, bias
    if cuts_b or not cuts_a:  # rows
        rules.append((Shard(of_batch), Shard(a.ndim - 2), Replicate(), Replicate()))
    if cuts_a or not cuts_b:  # columns
        cols = Shard(b.ndim - 1)
        last = None if bias is None else Shard(bias.ndim - 1)
        rules.append((Shard(of_batch + 1), Replicate(), cols, last))
    if not (cuts_a and cuts_b):  # k
        rules.append((Partial("sum"), Shard(a.ndim - 1), Shard(b.ndim - 2), Partial("sum")))
    if not (cuts_a or cuts_b):
        of_groups = Shard(0) if bias is None or bias.ndim == 2 else Replicate()
        rules.append((Shard(0), Shard(0), Shard(0), of_groups))
    for pending in _PENDING:
        rules.append((pending, pending, Replicate(), pending))
        rules.append((pending, Replicate(), pending, pending))
    whole = None if offs is None else Replicate()
    return [
        ([out], [of_a, of_b, whole, None if bias is None else of_bias])
        for out, of_a, of_b, of_bias in rules
    ]


def _attention(q, k, v, mask, causal_offset, scale):
    """Batch, heads, and queries without a causal end, which depends on their places."""

    def mask_shard(dim):
        own = -1 if mask is None else dim - 4 + mask.ndim
        return Shard(own) if own >= 0 and mask.shape[own] != 1 else Replicate()

    def rule(of_q, of_kv, of_mask):
        tensors = [of_q, of_kv, of_kv, None if mask is None else of_mask]
        return [of_q] * 3, [*tensors, None, None]

    rules = [rule(Replicate(), Replicate(), Replicate()), rule(Shard(0), Shard(0), mask_shard(0))]
    kv_heads = k.shape[1]
    if kv_heads == q.shape[1] or kv_heads % q.mesh.size() == 0:  # groups of heads stay whole
        rules.append(rule(Shard(1), Shard(1), mask_shard(1)))
    elif kv_heads == 1:
        rules.append(rule(Shard(1), Replicate(), mask_shard(1)))
    if causal_offset is None:
        rules.append(rule(Shard(2), Replicate(), mask_shard(2)))
    return rules


def _attention_packed(q, k, v, *_, **__):
    """Heads. All devices have the rows and the offsets of all sequences."""

    def rule(of_q, of_kv, of_sum):
        return [of_q, of_sum, of_sum], [of_q, of_kv, of_kv, *[Replicate()] * 2, *[None] * 4]

    rules = [rule(*[Replicate()] * 3)]
    kv_heads = k.shape[1]
    if kv_heads == q.shape[1] or kv_heads % q.mesh.size() == 0:  # groups of heads stay whole
        rules.append(rule(Shard(1), Shard(1), Shard(0)))
    elif kv_heads == 1:
        rules.append(rule(Shard(1), Replicate(), Shard(0)))
    return rules


# A prepared operand is replicated: its hi and lo parts cannot be sharded as its elements can.


def _prepared_matmul(a, b, hi_lo, inverse_scales, *options, **_):
    whole = Replicate(), Replicate()
    rules = [(Replicate(), Replicate(), Replicate(), *whole)]
    rules += [(*rule, *whole) for rule in _rows_and_batch(a, b, _broadcast_batch(a, b))]
    return _with_options(rules, options)


def _prepared_linear(x, weight, hi_lo, inverse_scales, bias=None, *options, **_):
    whole = [Replicate()] * (3 if bias is None else 4)
    rules = [(Replicate(), Replicate(), *whole)]
    rules += [(Shard(dim), Shard(dim), *whole) for dim in range(x.ndim - 1)]
    return _with_options(rules, options)


def _prepare(b):
    return [([Replicate(), Replicate()], [Replicate()])]


# Rows are gathered, or their sums would have another order; dimensions before them are sharded.
# Gradients of a norm's parameters are sums over rows, and pending.


def _rows(x, *others):
    """Rules of tensors that have the same rows, followed by options."""
    return [
        ([where], [where, *(where if hasattr(y, "ndim") else None for y in others)])
        for where in (Replicate(), *map(Shard, range(x.ndim - 1)))
    ]


def _row_norm(x, weight, bias, eps, centered):
    whole = [None if param is None else Replicate() for param in (weight, bias)]
    return [
        ([where, where if centered else Replicate(), where], [where, *whole, None, None])
        for where in (Replicate(), *map(Shard, range(x.ndim - 1)))
    ]


def _row_norm_backward(grad, x, weight, mean, inverse, centered, *needs):
    rules = []
    for where in (Replicate(), *map(Shard, range(x.ndim - 1))):
        of_params = where if where == Replicate() else Partial("sum")
        results = where if needs[0] else Replicate(), *[of_params] * 2
        of_mean = where if centered else Replicate()
        of_weight = None if weight is None else Replicate()
        tensors = where, where, of_weight, of_mean, where
        rules.append((list(results), [*tensors, None, *[None] * len(needs)]))
    return rules


def _channel_affine(x, weight, bias):
    """Samples, channels and places."""
    return [
        ([where], [where, *(None if param is None else of_params for param in (weight, bias))])
        for where, of_params in (
            (Replicate(), Replicate()),
            (Shard(0), Replicate()),
            (Shard(1), Shard(0)),
            (Shard(2), Replicate()),
        )
    ]


def _write_matmul_out(_, op, types, args, kwargs):
    """matmul.out of DTensors: a product, redistributed to the placement of out.

    A rule would not do: DTensor takes the placement of out from the returned tensor, and matmul.out
    returns none.
    """
    options = dict(kwargs)
    check_matmul_out(*args, **options)
    out = options.pop("out")
    out.copy_(operators.matmul(*args, **options, out_dtype=out.dtype))


def register():
    for op, rules in (
        (operators.matmul.default, _matmul),
        (operators.matmul.prepared, _prepared_matmul),
        (operators.gemm_.default, _gemm),
        (operators.linear.default, _linear),
        (operators.linear.prepared, _prepared_linear),
        (operators.grouped_mm.default, _grouped_mm),
        (operators.attention.default, _attention),
        (operators.attention_packed.default, _attention_packed),
        (operators.prepare.default, _prepare),
        (operators._row_softmax.default, _rows),
        (operators._row_softmax_backward.default, _rows),
        (operators._row_logsumexp.default, _rows),
        (operators._row_sum.default, _rows),
        (operators._row_cumsum.default, _rows),
        (operators._row_gather.default, _rows),
        (operators._row_scatter.default, _rows),
        (operators._row_norm.default, _row_norm),
        (operators._row_norm_backward.default, _row_norm_backward),
        (operators._channel_affine.default, _channel_affine),
    ):
        register_sharding(op)(rules)
    for op in (operators.matmul.default, operators.matmul.prepared, operators.grouped_mm.default):
        distinguish_by_options(op, "out_dtype")
    for op in (operators.linear.default, operators.linear.prepared):
        distinguish_by_options(op, "activation", "out_dtype")
    distinguish_by_options(operators._row_norm.default, first=3)
    distinguish_by_options(operators._row_norm_backward.default, first=5)
    torch.library.register_torch_dispatch(operators.matmul.out, DTensor, _write_matmul_out)
