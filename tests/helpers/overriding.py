"""Operands, functions and a count of products, for tests of torch_tiled.override."""

import contextlib

import torch
import torch.nn.functional as F
from helpers.calls import Calls

# PyTorch's operators that compute products.
THEIRS = (
    *("mm", "bmm", "mv", "dot", "matmul", "linear"),
    *("addmm", "addmm_", "addmv", "addmv_", "addbmm", "addbmm_", "baddbmm", "baddbmm_"),
)


class Products(Calls):
    """A record of operators that counts products."""

    def products(self):
        """Returns how many products PyTorch computed, and how many torch_tiled."""
        theirs = [name for name in self.names("aten") if name[6:].partition(".")[0] in THEIRS]
        return len(theirs), len(self.names())


@contextlib.contextmanager
def ours_alone():
    """Asserts that torch_tiled computes the products in this context, at least one."""
    with Products() as seen:
        yield
    theirs, ours = seen.products()
    assert theirs == 0 and ours > 0


def operands(*shapes, device="cpu", dtype=torch.float64, **options):
    return [torch.randn(shape, device=device, dtype=dtype, **options) for shape in shapes]


def mixed(x, w, b):
    """Several of the functions that torch_tiled.override takes over."""
    y = F.linear(x, w, b) @ w
    y = torch.addmm(y, y, w.mT @ w, alpha=0.5)
    return torch.einsum("ij,kj->ik", y, torch.bmm(y[None], y.mT[None])[0] @ y).relu()


@contextlib.contextmanager
def region(device, dtype):
    """torch.autocast, which refuses CUDA on a machine without a GPU; none if dtype is None."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, dtype is not None)
    torch.set_autocast_dtype(device, dtype or before[1])
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
