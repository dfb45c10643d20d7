"""The calls that are timed on a shape: its plain product, and the variants that a suite names."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

import torch_tiled
from benchmarks.gemm.check import Truth, reference
from benchmarks.gemm.measure import Call, Operands, extra_bytes

SPLITS_BOTH = "fp16x3_wgmma"  # the kernel that a split b makes cheaper


@dataclass(frozen=True)
class Contest:
    """Our call and the peer's; `truth` of the first of `operands` is what both are judged by."""

    ours: Call
    peer: Call
    operands: list[Operands]
    truth: Truth
    peer_suffix: str = ""
    is_convolution: bool = False  # the peer is cuDNN, or PyTorch's conv2d on a CPU


def planned(contest: Contest, **ways) -> tuple[str, str | None]:
    """The kernel that our call runs, and its tile, as explain() says.

    explain() takes no prepared b. There `auto` runs either what explain() says of b itself, or the
    kernel whose cost a split b lowers; the memory that the call takes tells which.
    """
    a, b = contest.operands[0]
    plan = torch_tiled.explain(a, b, **ways)
    _, called_with = contest.ours[1][0]
    if isinstance(called_with, torch_tiled.Prepared) and plan.values.get("order") == "fp16x3":
        named = ways | {"algorithm": SPLITS_BOTH}
        by_name = partial(torch_tiled.matmul, **named), contest.ours[1]
        taken = extra_bytes(contest.ours)  # None on a CPU
        if taken is not None and taken == extra_bytes(by_name):
            plan = torch_tiled.explain(a, b, **named)
    return plan.algorithm, getattr(plan, "tile", None)  # torch.matmul has no tile to tell


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
    """The peer multiplies the operands as float16: fp16x3 does three such products."""
    rounded = [(a.half(), b.half()) for a, b in sets]
    return replace(plain(sets, **ways), peer=(torch.matmul, rounded), peer_suffix=", float16")


def uniform(sets: list[Operands], **ways) -> Contest:
    return plain([(torch.rand_like(a), torch.rand_like(b)) for a, b in sets], **ways)


def bad_row(sets: list[Operands], **ways) -> Contest:
    """The last row of a is infinite."""
    sets = [(a.clone(), b) for a, b in sets]
    for a, _ in sets:
        a[..., -1, :] = torch.inf
    return plain(sets, **ways)


def flagged(sets: list[Operands], **ways) -> Contest:
    """fp16x3 recomputes each element: huge elements of a, which meet zeros, hide the others."""
    sets = [(a.clone(), b.clone()) for a, b in sets]
    for a, b in sets:
        a[..., :: reference.CHUNK] = 2.0**40
        b[..., :: reference.CHUNK, :] = 0
    return plain(sets, **ways)


def conjugated(sets: list[Operands], **ways) -> Contest:
    """a is a lazy conjugate, and so a transposed one the adjoint of a matrix."""
    return plain([(a.conj(), b) for a, b in sets], **ways)


def opposed(sets: list[Operands], **ways) -> Contest:
    """Columns of a and rows of b are scaled against each other by exp(2 N(0, 1)), so that large
    elements of a meet small ones of b."""
    scaled = []
    for a, b in sets:
        scale = torch.exp(2 * torch.randn_like(a[..., :1, :]))
        scaled.append((a * scale, b / scale.mT))
    return plain(scaled, **ways)


def decayed(sets: list[Operands], **ways) -> Contest:
    """1 % of b, chosen at random, are small numbers of about 1e-8, as weights may decay to."""
    sets = [(a, torch.where(torch.rand_like(b) < 0.01, b * 1e-8, b)) for a, b in sets]
    return plain(sets, **ways)


def padded(sets: list[Operands], **ways) -> Contest:
    """The second half of a's rows are zero, and b is that of decayed()."""
    sets = [(a.clone(), b) for a, b in sets]
    for a, _ in sets:
        a[..., a.shape[-2] // 2 :, :] = 0
    return decayed(sets, **ways)


def pointwise(sets: list[Operands], **ways) -> Contest:
    """A batch of images by one weight, beside a convolution with a kernel of 1.

    In layout NN a is the weight and b has the images in NCHW; in NT a has them in channels_last and
    b is the weight. The convolution's result is viewed as the product's.
    """
    is_nchw = sets[0][1].stride(-1) == 1
    sets = [tuple(x if x.dim() == 3 else x.unsqueeze(0) for x in pair) for pair in sets]
    sets = [(a[:1].expand_as(a), b) if is_nchw else (a, b[:1].expand_as(b)) for a, b in sets]

    def peer(a, b):
        images, weight = (b, a[0]) if is_nchw else (a.mT, b[0].mT)
        side = math.isqrt(images.shape[-1])
        sides = (side, side) if side**2 == images.shape[-1] else (-1, 1)
        y = F.conv2d(images.unflatten(-1, sides), weight[:, :, None, None]).flatten(2)
        return y if is_nchw else y.mT

    return replace(plain(sets, **ways), peer=(peer, sets), is_convolution=True)


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
    "conjugated": conjugated,
    "opposed": opposed,
    "decayed": decayed,
    "padded": padded,
    "bias": partial(linear, "none"),
    "relu": partial(linear, "relu"),
    "gelu": partial(linear, "gelu"),
    "fp16 peer": against_fp16,
    "pointwise": pointwise,
}
