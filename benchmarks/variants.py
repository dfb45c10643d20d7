"""What is timed of a shape: its product as it is, and what else a suite asks for beside it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from check import Truth, reference
from measure import Call, Operands

import torch_tiled


@dataclass(frozen=True)
class Contest:
    """Ours and the peer, and by what both are judged: `truth` of the first of `operands`."""

    ours: Call
    peer: Call
    operands: list[Operands]
    truth: Truth
    peer_suffix: str = ""


def plain(sets: list[Operands], **ways) -> Contest:
    def truth(a, b):
        return reference.product(a, b), reference.bound(a, b, **ways)

    ours = partial(torch_tiled.matmul, **ways)
    return Contest((ours, sets), (torch.matmul, sets), sets, truth)


def prepared(sets: list[Operands], **ways) -> Contest:
    """b is split beforehand."""
    contest = plain(sets, **ways)
    split = [(a, torch_tiled.prepare(b)) for a, b in sets]
    return replace(contest, ours=(contest.ours[0], split))


def against_fp16(sets: list[Operands], **ways) -> Contest:
    """The peer multiplies as many float16 numbers: three such products are what fp16x3 does."""
    halves = [(a.half(), b.half()) for a, b in sets]
    return replace(plain(sets, **ways), peer=(torch.matmul, halves), peer_suffix=", float16")


def uniform(sets: list[Operands], **ways) -> Contest:
    return plain([(torch.rand_like(a), torch.rand_like(b)) for a, b in sets], **ways)


def bad_row(sets: list[Operands], **ways) -> Contest:
    """The last row of a is infinite."""
    sets = [(a.clone(), b) for a, b in sets]
    for a, _ in sets:
        a[..., -1, :] = torch.inf
    return plain(sets, **ways)


def flagged(sets: list[Operands], **ways) -> Contest:
    """fp16x3 computes each element again: huge elements of a, which meet zeros, hide the others."""
    sets = [(a.clone(), b.clone()) for a, b in sets]
    for a, b in sets:
        a[..., :: reference.CHUNK] = 2.0**40
        b[..., :: reference.CHUNK, :] = 0
    return plain(sets, **ways)


def linear(activation: str, sets: list[Operands], **ways) -> Contest:
    """activation(a @ b + bias): b is the transpose of a layer's weight."""
    bias = torch.randn_like(sets[0][1][..., 0, :])
    activate = reference.ACTIVATIONS[activation]

    def ours(a, b):
        return torch_tiled.linear(a, b.mT, bias, activation=activation, **ways)

    def peer(a, b):
        return activate(F.linear(a, b.mT, bias))

    def truth(a, b):
        exact = activate(reference.product(a, b) + bias.double())
        limit = reference.linear_bound(a, b.mT, bias, **ways)
        return exact, reference.activated_bound(exact, limit, a.dtype)

    return Contest((ours, sets), (peer, sets), sets, truth)


VARIANTS: dict[str, Callable[..., Contest]] = {
    "plain": plain,
    "prepared": prepared,
    "uniform": uniform,
    "bad row": bad_row,
    "flagged": flagged,
    "bias": partial(linear, "none"),
    "relu": partial(linear, "relu"),
    "gelu": partial(linear, "gelu"),
    "fp16 peer": against_fp16,
}
