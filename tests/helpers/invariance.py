"""Modules and short names for tests of torch_tiled.invariance."""

from torch import nn

import torch_tiled


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


class Noisy(nn.Module):
    """Stands for an operator with other bits in a batch of another size."""

    def forward(self, x):
        return x.abs() * (1 + 2**-20 * (len(x) > 1))


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x.relu())


class Call(nn.Module):
    """A module of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def linear(columns=16, width=16):
    return torch_tiled.nn.Linear(columns, width, algorithm="tiled")


def named(report):
    return report.first and (report.first.module, report.first.operator)


def results(report):
    return {row.name: row.result for row in report.modules}
