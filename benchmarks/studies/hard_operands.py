"""Operands with a structure, on which ways to multiply float32 matrices differ."""

import torch

from benchmarks.gemm.measure import Operands


def normal(n: int, random: dict) -> Operands:
    return torch.randn(n, n, **random), torch.randn(n, n, **random)


def outlier_channels(n: int, random: dict) -> Operands:
    """One column in 128 of a is 100 times as large, as in activations of language models."""
    a, b = normal(n, random)
    a[:, ::128] *= 100
    return a, b


def one_hot(n: int, random: dict) -> Operands:
    """Rows of an embedding are picked."""
    a, b = normal(n, random)
    picks = torch.randint(n, (n, 1), **random)
    return torch.zeros_like(a).scatter_(1, picks, 1), b


def permutation(n: int, random: dict) -> Operands:
    a, b = normal(n, random)
    return torch.zeros_like(a).scatter_(1, torch.randperm(n, **random)[:, None], 1), b


def opposed_scales(n: int, random: dict) -> Operands:
    """Columns of a are scaled by exp(5 N), and rows of b by its inverse."""
    a, b = normal(n, random)
    scale = (5 * torch.randn(n, **random)).exp()
    return a * scale, b / scale[:, None]


def cancelling(n: int, random: dict) -> Operands:
    """The second half of each sum is minus the first, but for a thousandth."""
    a, b = normal(n, random)
    half = n // 2
    a[:, half:] = -a[:, :half]
    b[half:] = b[:half] * (1 + 1e-3 * torch.randn(half, n, **random))
    return a, b


def relu(n: int, random: dict) -> Operands:
    a, b = normal(n, random)
    return a.relu(), b


def gradients(n: int, random: dict) -> Operands:
    """The gradient of a cross-entropy with peaked logits, by a weight."""
    logits, weight = normal(n, random)
    targets = torch.randint(n, (n, 1), **random)
    of_logits = (4 * logits).softmax(dim=1)
    of_logits.scatter_add_(1, targets, torch.full_like(of_logits[:, :1], -1))
    return of_logits / n, 0.02 * weight


def integers(n: int, random: dict) -> Operands:
    """Integers up to 4096, one for each column of b: float32 holds every product."""
    a, factors = (torch.randint(-4096, 4097, (n, n), **random).float() for _ in range(2))
    rows = torch.randint(n, (1, n), **random)
    return a, torch.zeros_like(a).scatter_(0, rows, factors)


def gram(n: int, random: dict) -> Operands:
    a, _ = normal(n, random)
    return a, a.mT


HARD = {
    "normal": normal,
    "outlier channels": outlier_channels,
    "ReLU": relu,
    "gradients of a cross-entropy": gradients,
    "cancelling rows": cancelling,
    "opposed scales": opposed_scales,
    "one-hot rows": one_hot,
    "a permutation": permutation,
    "integers above 2^11": integers,
    "a @ a.T": gram,
}


def hard_sets(kind: str, n: int, device: torch.device, count: int) -> list[Operands]:
    """Sets of operands of one kind, each drawn anew."""
    random = {"device": device, "generator": torch.Generator(device).manual_seed(1)}
    return [HARD[kind](n, random) for _ in range(count)]
