"""The arguments of a streamed product, checked, and what they mean."""

import dataclasses
import math

import torch

from .._internals import forward_ad_active, has_tangent, transforms_active
from .._op.checks import check_matmul, check_matmul_out
from .._op.supported import PLAIN_TYPES
from .host_memory import may_overlap, read_mappings, share_memory, why_not_mapped

__all__ = ["Problem", "fail", "make_problem"]

NAME = "torch_tiled.stream.matmul"


def fail(sentence):
    """Raises the RuntimeError of a bad argument."""
    raise RuntimeError(f"{NAME}: {sentence}") from None


@dataclasses.dataclass(frozen=True)
class Problem:
    """A product of batches of matrices.

    Attributes:
        a: (*batch, m, k), on the CPU or a GPU.
        b: (*batch, k, n).
        out: (*batch, m, n), on the CPU; None for a plan.
        dtype: the operands'.
        precision, algorithm: as for torch_tiled.matmul.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor | None
    precision: str
    algorithm: str

    @property
    def dtype(self):
        return self.a.dtype

    @property
    def batch(self):
        return tuple(self.a.shape[:-2])

    @property
    def sizes(self):
        """(m, n, k)."""
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]


def make_problem(a, b, out, precision, algorithm, *, is_plan=False):
    """Returns (the problem, the result in the shape of torch.matmul).

    A plan takes operands on the meta device, too, and its result is there.

    Raises:
        RuntimeError: an argument cannot be taken; the sentence says why, and what to pass.
    """
    for name, x in (("a", a), ("b", b), ("out", out)):
        if x is not None or name != "out":
            _check_tensor(name, x, is_plan)
    shape, dtype = _check_product(a, b, out, precision, algorithm)
    if a.device.type == "cuda" and b.device.type == "cuda":
        fail(
            f"a is on {a.device} and b is on {b.device}; one of them must be on the CPU. Of "
            "operands on one GPU, torch_tiled.matmul is the product"
        )
    _check_memory(a, b, out)
    if out is None:
        # A plan's result has no memory of its own: it may be larger than there is.
        element = torch.empty((), dtype=dtype, device=a.device) if is_plan else None
        out = element.expand(shape) if is_plan else torch.empty(shape, dtype=dtype, device="cpu")
    a_matrices = a[None] if a.dim() == 1 else a
    b_matrices = b[:, None] if b.dim() == 1 else b
    c = out
    if b.dim() == 1:
        c = c[..., None]
    if a.dim() == 1:
        c = c.unsqueeze(-2)
    batch = tuple(c.shape[:-2])
    if batch and math.prod(b_matrices.shape[:-2]) == 1:
        a_matrices, c, batch = _rows_of_batch(a_matrices, c, batch)
    a_matrices = a_matrices.expand(*batch, *a_matrices.shape[-2:])
    b_matrices = b_matrices.reshape(b_matrices.shape[-2:]) if not batch else b_matrices
    b_matrices = b_matrices.expand(*batch, *b_matrices.shape[-2:])
    return Problem(a_matrices, b_matrices, c, precision, algorithm), out


def _rows_of_batch(a, c, batch):
    """Makes a batch that shares one B rows of A, if strides allow: (a, c, the batch left)."""
    rows = math.prod(batch) * a.shape[-2]
    try:
        return a.view(rows, a.shape[-1]), c.view(rows, c.shape[-1]), ()
    except RuntimeError:
        return a, c, batch


def _check_tensor(name, x, is_plan):
    if not isinstance(x, torch.Tensor):
        remedy = "torch.from_numpy makes one of an array, and of a numpy.memmap"
        fail(f"{name} is of type {type(x).__name__}; pass a tensor ({remedy})")
    if type(x) not in PLAIN_TYPES or x.layout is not torch.strided or x.is_nested:
        fail(f"{name} is a {type(x).__name__} of layout {x.layout}; pass a plain strided tensor")
    if x.is_quantized:
        fail(f"{name} is quantized ({x.dtype}); pass {name}.dequantize()")
    places = ["cpu"] + ["cuda"] * (name != "out") + ["meta"] * is_plan
    if x.device.type not in places:
        where = "on the CPU" if name == "out" else "on the CPU or a CUDA device"
        fail(f"{name} is on {x.device}; it must be {where}")
    if name == "out" and (x.is_conj() or x.is_neg()):
        fail("out is a conjugate or negative view; pass a tensor without these bits")
    _check_no_transform(name, x)
    if torch.is_grad_enabled() and x.requires_grad:
        fail(
            f"{name} requires a gradient, and a streamed product has none; pass {name}.detach(), "
            "or multiply by torch_tiled.matmul on a device that holds the operands"
        )


def _check_no_transform(name, x):
    if transforms_active():
        fail(
            "torch.vmap and the transforms of torch.func do not reach a streamed product; call it "
            "outside of them, or use torch_tiled.matmul"
        )
    if forward_ad_active() and has_tangent(x):
        fail(
            f"{name} has a forward-mode tangent, and a streamed product has none; pass the primal "
            "of torch.autograd.forward_ad.unpack_dual, or use torch_tiled.matmul"
        )


def _check_product(a, b, out, precision, algorithm):
    """Returns the result's shape and dtype."""
    meta = [None if x is None else _like(x) for x in (a, b, out)]
    options = {"algorithm": algorithm, "precision": precision}
    try:
        if out is not None:
            check_matmul_out(*meta, **options)
        return check_matmul(*meta[:2], **options)
    except RuntimeError as error:
        fail(str(error).removeprefix("tiled::matmul: "))


def _like(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _check_memory(a, b, out):
    if out is not None and may_overlap(out):
        fail(
            f"out has shape {tuple(out.shape)} and strides {out.stride()}, by which its elements "
            "may share memory; pass a tensor whose elements lie apart"
        )
    mappings = read_mappings([x for x in (a, b, out) if x is not None])
    for name, x in (("a", a), ("b", b)):
        if out is not None and share_memory(out, x, mappings):
            fail(f"out shares memory with {name}, which is read meanwhile; pass another tensor")
    for name, x in (("a", a), ("b", b), ("out", out)):
        if x is not None and (reason := why_not_mapped(x, mappings, written=name == "out")):
            fail(f"{name} {reason}")
