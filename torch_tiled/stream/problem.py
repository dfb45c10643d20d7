"""The arguments of a streamed product, checked, and what they mean."""

import dataclasses
import math

import torch

from .._internals import (
    dispatch_modes,
    forward_ad_active,
    has_tangent,
    is_jit_tracing,
    transforms_active,
)
from .._op.checks import check_linear, check_matmul, check_matmul_out
from .._op.namespace import operators
from ..prepared import Prepared
from .errors import fail, why_not_plain
from .host_memory import may_overlap, read_mappings, share_memory, why_not_mapped

__all__ = ["IDENTITY", "Epilogue", "Problem", "make_linear_problem", "make_problem"]


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """activation(sum + bias).

    Attributes:
        bias: (n,), contiguous and without lazy bits, of the operands' dtype; or None.
        activation: as for torch_tiled.linear.
    """

    bias: torch.Tensor | None = None
    activation: str = "none"

    @property
    def is_identity(self):
        """Whether the result is the sums, rounded."""
        return self.bias is None and self.activation == "none"

    def to(self, device):
        """Returns the Epilogue with its bias on another device."""
        return self if self.bias is None else Epilogue(self.bias.to(device), self.activation)

    def of(self, columns):
        """Returns the Epilogue of some columns of C: a slice, or a tensor of indices."""
        return self if self.bias is None else Epilogue(self.bias[columns], self.activation)

    def apply_(self, sums):
        """Finishes the sums of all of K, (m, n), in place, as a kernel does before it rounds."""
        if self.bias is not None:
            _parts(sums).add_(_parts(self.bias))
        if self.activation != "none":
            operators._activate_(sums, activation=self.activation)


IDENTITY = Epilogue()


def _parts(x):
    """Complex numbers as pairs, since PyTorch's sum of complex ones may make NaN of an Inf."""
    return torch.view_as_real(x) if x.is_complex() else x


@dataclasses.dataclass(frozen=True)
class Problem:
    """A product of batches of matrices.

    Attributes:
        a: (*batch, m, k), on the CPU or a GPU.
        b: (*batch, k, n).
        out: (*batch, m, n), on the CPU; of a plan, without memory.
        dtype: the operands'.
        precision, algorithm: as for torch_tiled.matmul.
        has_out: whether the caller gave `out`.
        epilogue: what follows the sums.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    precision: str
    algorithm: str
    has_out: bool
    epilogue: Epilogue

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

    @property
    def is_empty(self):
        """Whether no products are needed: without an element, or with zeros alone."""
        has_zeros = self.a.shape[-1] == 0 and self.epilogue.is_identity
        return self.out.numel() == 0 or has_zeros


def make_problem(a, b, out, precision, algorithm, *, is_plan=False):
    """Returns (the problem, the result in the shape of torch.matmul).

    A plan takes operands on the meta device, too, and its result is there.

    Raises:
        RuntimeError: an argument cannot be taken; the sentence says why, and what to pass.
    """
    options = {"algorithm": algorithm, "precision": precision}
    operands = {"a": a, "b": b}
    kind = _checked("matmul", _check_matmul, operands, out, options, is_plan)
    return _lay_out(a, b, out, kind, IDENTITY, options, is_plan)


def make_linear_problem(x, weight, bias, activation, out, precision, algorithm):
    """Returns (the problem of x @ weight.mT with an epilogue, the result of linear's shape).

    Raises:
        RuntimeError: as make_problem does.
    """
    if isinstance(weight, Prepared):
        fail(
            f"weight of shape {tuple(weight.shape)} is prepared for products within a GPU; pass "
            "weight.tensor, whose panels are split as they stream"
        )
    options = {"algorithm": algorithm, "precision": precision}
    operands = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    chosen = options | {"activation": activation}
    kind = _checked("linear", _check_linear, operands, out, chosen)
    if bias is not None:  # kernels need a pass over complex sums for any other bias
        bias = bias.to("cpu").resolve_conj().resolve_neg().contiguous()
    return _lay_out(x, weight.mT, out, kind, Epilogue(bias, activation), options)


def _lay_out(a, b, out, kind, epilogue, options, is_plan=False):
    """Returns (the problem, the result): matrices, or batches of one shape."""
    has_out = out is not None
    # The result of a plan counts as pinned memory if both operands do.
    device = "meta" if {a.device.type, b.device.type} == {"meta"} else "cpu"
    out = _allocate(*kind, device, is_plan) if out is None else out
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
    return Problem(a_matrices, b_matrices, c, **options, has_out=has_out, epilogue=epilogue), out


def _allocate(shape, dtype, device, is_plan):
    """Returns the result; a plan's has no memory of its own, since it may be larger than there is.

    Raises:
        torch.OutOfMemoryError: the host has no memory for it.
    """
    if math.prod(shape) >= 1 << 63:
        fail(
            f"the result would be {tuple(shape)}, more elements than a tensor can have; multiply "
            "parts of the operands"
        )
    if is_plan:
        return torch.empty((), dtype=dtype, device=device).expand(shape)
    try:
        return torch.empty(shape, dtype=dtype, device="cpu")
    except RuntimeError:
        nbytes = math.prod(shape) * dtype.itemsize
        raise torch.OutOfMemoryError(
            f"torch_tiled.stream: the result {tuple(shape)} of {dtype} needs {nbytes} bytes of the "
            "host's memory; pass an out that maps a file"
        ) from None


def _rows_of_batch(a, c, batch):
    """Makes a batch that shares one B rows of A, if strides allow: (a, c, the batch left)."""
    rows = math.prod(batch) * a.shape[-2]
    try:
        return a.view(rows, a.shape[-1]), c.view(rows, c.shape[-1]), ()
    except RuntimeError:
        return a, c, batch


def _checked(function, check, operands, out, options, is_plan=False):
    """Returns the result's shape and dtype.

    Args:
        function: the one of torch_tiled that computes the same within a GPU.
        check: a function of the operands and out on the meta device, and of the options.
        operands: those that are given, by name.
    """
    tensors = operands if out is None else operands | {"out": out}
    for name, x in tensors.items():
        _check_tensor(name, x, is_plan, function)
    try:
        kind = check(**{name: _like(x) for name, x in tensors.items()}, **options)
    except RuntimeError as error:
        fail(str(error).removeprefix(f"tiled::{function}: ").removeprefix("tiled::matmul: "))
    one, other = list(operands)[:2]
    if operands[one].device.type == operands[other].device.type == "cuda":
        fail(
            f"{one} is on {operands[one].device} and {other} is on {operands[other].device}; one "
            f"of them must be on the CPU. torch_tiled.{function} takes operands of one GPU"
        )
    _check_memory(operands, out)
    return kind


def _check_tensor(name, x, is_plan, function):
    if not isinstance(x, torch.Tensor):
        remedy = "torch.from_numpy makes one of an array, and of a numpy.memmap"
        fail(f"{name} is of type {type(x).__name__}; pass a tensor ({remedy})")
    if reason := why_not_plain(name, x):
        fail(f"{name} {reason}")
    places = ["cpu"] + ["cuda"] * (name != "out") + ["meta"] * is_plan
    if x.device.type not in places:
        where = "on the CPU" if name == "out" else "on the CPU or a CUDA device"
        fail(f"{name} is on {x.device}; it must be {where}")
    if name == "out" and (x.is_conj() or x.is_neg()):
        fail("out is a conjugate or negative view; pass a tensor without these bits")
    _check_no_transform(name, x, function)
    if torch.is_grad_enabled() and x.requires_grad:
        fail(
            f"{name} requires a gradient, and a streamed product has none; pass {name}.detach(), "
            f"or call torch_tiled.{function} on a device that holds the operands"
        )


def _check_no_transform(name, x, function):
    if dispatch_modes() or is_jit_tracing():
        fail(
            "torch.jit.trace or a torch dispatch mode (such as make_fx, FakeTensorMode or "
            "FlopCounterMode) is active and does not see a streamed product, which other threads "
            f"compute; call it outside of that, or use torch_tiled.{function}"
        )
    if transforms_active():
        fail(
            "torch.vmap and the transforms of torch.func do not reach a streamed product; call it "
            f"outside of them, or use torch_tiled.{function}"
        )
    if forward_ad_active() and has_tangent(x):
        fail(
            f"{name} has a forward-mode tangent, and a streamed product has none; pass the primal "
            f"of torch.autograd.forward_ad.unpack_dual, or use torch_tiled.{function}"
        )


def _check_matmul(a, b, out=None, **options):
    if out is not None:
        check_matmul_out(a, b, out, **options)
    kind = check_matmul(a, b, **options)
    _refuse_mixed(a=a, b=b)
    return kind


def _check_linear(x, weight, bias=None, out=None, *, activation, **options):
    kind = check_linear(x, weight, bias, activation=activation, **options)
    _refuse_mixed(x=x, weight=weight)
    if out is not None and out.dtype != x.dtype:
        fail(f"out is {out.dtype} and x is {x.dtype}; pass an out of x's dtype")
    if out is not None:
        check_matmul_out(x, weight.mT, out, **options)
    return kind


def _refuse_mixed(**operands):
    (x_name, x), (y_name, y) = operands.items()
    if x.dtype != y.dtype:
        fail(
            f"{x_name} is {x.dtype} and {y_name} is {y.dtype}; a streamed product takes one dtype, "
            "so pass both in float32, for example with .to(torch.float32)"
        )


def _like(x):
    kind = {"dtype": x.dtype, "device": "meta"}
    if x.numel() == 0:  # of any strides, since nothing is read or written
        return torch.empty(x.shape, **kind)
    return torch.empty_strided(x.shape, x.stride(), **kind)


def _check_memory(operands, out):
    if out is not None and may_overlap(out):
        fail(
            f"out has shape {tuple(out.shape)} and strides {out.stride()}, by which its elements "
            "may share memory; pass a tensor whose elements lie apart"
        )
    mappings = read_mappings([*operands.values(), *([] if out is None else [out])])
    for name, x in operands.items():
        if out is not None and share_memory(out, x, mappings):
            fail(
                f"out may share memory with {name}, which is read meanwhile: their elements have "
                "addresses in one range, or places in one part of a file; pass another tensor"
            )
    for name, x in (*operands.items(), ("out", out)):
        if x is not None and (reason := why_not_mapped(x, mappings, written=name == "out")):
            fail(f"{name} {reason}")
