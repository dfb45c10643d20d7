"""Adaptors that let transforms of torch.func be chained."""

import torch
from torch.utils._pytree import tree_leaves


def flat(f):
    """f with its results concatenated to one vector, so that another transform can follow."""
    return lambda *args: torch.cat([leaf.reshape(-1) for leaf in tree_leaves(f(*args))])


def two_of_each(*args):
    """Each argument in a batch of two, for vmap."""
    return tuple(torch.stack([arg, arg.cos()]) for arg in args)
