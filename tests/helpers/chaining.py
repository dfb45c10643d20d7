"""Adaptors that let transforms of torch.func be chained, and dimensions to map over."""

import itertools

import torch
from torch.utils._pytree import tree_leaves


def flat(f):
    """f with its results concatenated to one vector, so that another transform can follow."""
    return lambda *args: torch.cat([leaf.reshape(-1) for leaf in tree_leaves(f(*args))])


def two_of_each(*args):
    """Each argument in a batch of two, for vmap."""
    return tuple(torch.stack([arg, arg.cos()]) for arg in args)


def in_dims(*ranks):
    """The in_dims of vmap for operands of these ranks: every dimension of each, or none of it."""
    choices = itertools.product(*([None, *range(rank + 1)] for rank in ranks))
    return [dims for dims in choices if any(dim is not None for dim in dims)]


def batched(shape, dim, size=5):
    """The shape of a batch of tensors of this shape, whose examples are along `dim`, if any."""
    return shape if dim is None else (*shape[:dim], size, *shape[dim:])
