"""Functions and counts for tests of torch_tiled.override."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    """Records the names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    def products(self):
        """How many products PyTorch computed, and how many torch_tiled."""
        theirs = (
            "aten::mm",
            "aten::bmm",
            "aten::addmm",
            "aten::baddbmm",
            "aten::mv",
            "aten::addmv",
        )
        theirs += ("aten::linear", "aten::matmul", "aten::dot", "aten::addmm_", "aten::addmv_")
        theirs += ("aten::baddbmm_", "aten::addbmm", "aten::addbmm_")
        names = [name.partition(".")[0] for name in self.names]
        return sum(name in theirs for name in names), sum("tiled::" in name for name in names)


def operands(*shapes, device="cpu", dtype=torch.float64, **options):
    return [torch.randn(shape, device=device, dtype=dtype, **options) for shape in shapes]


def mixed(x, w, b):
    """Several of the functions that torch_tiled.override takes over."""
    y = F.linear(x, w, b) @ w
    y = torch.addmm(y, y, w.mT @ w, alpha=0.5)
    return torch.einsum("ij,kj->ik", y, torch.bmm(y[None], y.mT[None])[0] @ y).relu()
