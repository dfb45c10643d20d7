"""How products of torch.distributed's DTensors are divided among devices.

A rule lists, for one dimension of a device mesh, how the operands may lie and how the result then
does; DTensor combines them for all dimensions of the mesh and picks by what has to be sent.
"""

import sys

import torch

from ._internals import count_as_different_products
from .fake import check_matmul_out

_is_registered = False


def register_if_needed() -> None:
    """Registers the rules where DTensor has been imported, which takes too long to be done here."""
    global _is_registered
    if not _is_registered and "torch.distributed.tensor" in sys.modules:
        _is_registered = True
        _register()


def with_parts_in_front(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of the same (*batch, rows), permuted alike, so that DTensor can lay those end to end.

    It does so where none of these dimensions but the first is in parts, and the parts are of one
    size. Other dimensions are gathered.
    """
    if not _is_registered:
        return tensors
    from torch.distributed.tensor import DTensor, Replicate

    last = tensors[0].ndim - 1

    def parts(x):
        """Into how many parts each dimension is cut, of those that are laid end to end."""
        cut = {}
        for placement, size in zip(x.placements, x.device_mesh.shape, strict=True):
            if placement.is_shard() and placement.dim < last:
                cut[placement.dim] = cut.get(placement.dim, 1) * size
        return cut

    cuts = [parts(x) for x in tensors if isinstance(x, DTensor)]
    in_parts = {dim for cut in cuts for dim in cut}
    even = [
        dim for dim in in_parts if all(tensors[0].shape[dim] % cut.get(dim, 1) == 0 for cut in cuts)
    ]
    front = min(even, default=None)
    result = []
    for x in tensors:
        if isinstance(x, DTensor) and parts(x).keys() - {front}:
            placements = [
                Replicate() if p.is_shard() and p.dim < last and p.dim != front else p
                for p in x.placements
            ]
            x = x.redistribute(placements=placements)
        if front is not None:
            x = x.movedim(front, 0)
        if in_parts and isinstance(x, DTensor):
            # reshape() goes by the strides of the whole, and those of the parts may be others.
            x = x.clone(memory_format=torch.contiguous_format)
        result.append(x)
    return tuple(result)


def _register() -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    tiled = torch.ops.tiled
    # What is linear in an operand may be summed, or averaged, afterwards.
    pending = [Partial("sum"), Partial("avg")]

    def with_options(rules, options):
        """The rules, with None for each argument that is no tensor."""
        return [([out], [*tensors, *options]) for out, *tensors in rules]

    def rows_and_batch(a, b, batch):
        """Rules that leave the result in parts of its rows, or of its batch, of that shape."""
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

    def batch_of(a, b):
        return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])

    def products(a, b, batch):
        yield Replicate(), Replicate(), Replicate()
        yield from rows_and_batch(a, b, batch)
        if b.ndim > 1:
            yield Shard(len(batch) + (a.ndim > 1)), Replicate(), Shard(b.ndim - 1)
        yield Partial("sum"), Shard(a.ndim - 1), Shard(max(b.ndim - 2, 0))
        for sum_or_mean in pending:
            yield sum_or_mean, sum_or_mean, Replicate()
            yield sum_or_mean, Replicate(), sum_or_mean

    @register_sharding(tiled.matmul.default)
    def matmul(a, b, *options, **_):
        return with_options(products(a, b, batch_of(a, b)), [None] * len(options))

    count_as_different_products(tiled.matmul.default, "out_dtype")

    def matmul_out(_, op, types, args, kwargs):
        """The product, then sent to where out is, which stays there."""
        options = dict(kwargs)
        check_matmul_out(*args, **options)
        out = options.pop("out")
        out.copy_(tiled.matmul(*args, **options, out_dtype=out.dtype))

    # No rule: DTensor takes the placement of an out from what is returned, and nothing is.
    torch.library.register_torch_dispatch(tiled.matmul.out, DTensor, matmul_out)

    # What is written stays where it is, so c is in parts as its rule's result is: beta * c and
    # alpha * a @ b are in the same ones.
    @register_sharding(tiled.gemm_.default)
    def gemm_(c, a, b, **_):
        return [([], list(rule)) for rule in products(a, b, c.shape[:-2])]

    @register_sharding(tiled.linear.default)
    def linear(x, weight, bias=None, *options, activation="none", **_):
        last = x.ndim - 1
        rules = [(Replicate(), Replicate(), Replicate(), Replicate())]
        rules += [(Shard(dim), Shard(dim), Replicate(), Replicate()) for dim in range(last)]
        rules.append((Shard(last), Replicate(), Shard(0), Shard(0)))
        if activation == "none":
            rules.append((Partial("sum"), Shard(last), Shard(1), Partial("sum")))
            for sum_or_mean in pending:
                rules.append((sum_or_mean, sum_or_mean, Replicate(), sum_or_mean))
                rules.append((sum_or_mean, Replicate(), sum_or_mean, sum_or_mean))
        if bias is None:
            rules = [rule[:3] for rule in rules]
        return with_options(rules, [None] * len(options))

    count_as_different_products(tiled.linear.default, "activation")

    # A prepared operand is one piece.
    @register_sharding(tiled.matmul.prepared)
    def prepared_matmul(a, b, hi_lo, inverse_scales, *options, **_):
        whole = Replicate(), Replicate()
        rules = [(Replicate(), Replicate(), Replicate(), *whole)]
        rules += [(*rule, *whole) for rule in rows_and_batch(a, b, batch_of(a, b))]
        return with_options(rules, [None] * len(options))

    @register_sharding(tiled.linear.prepared)
    def prepared_linear(x, weight, hi_lo, inverse_scales, bias=None, *options, **_):
        whole = [Replicate()] * (3 if bias is None else 4)
        rules = [(Replicate(), Replicate(), *whole)]
        rules += [(Shard(dim), Shard(dim), *whole) for dim in range(x.ndim - 1)]
        return with_options(rules, [None] * len(options))

    @register_sharding(tiled.prepare.default)
    def prepare(b):
        return [([Replicate(), Replicate()], [Replicate()])]
