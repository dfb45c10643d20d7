"""The operators as Python functions."""

import types

import torch
from torch.compiler import is_dynamo_compiling

from . import autograd, errors, fake, plain, transforms, writing
from ._internals import BelowAutograd, call_without_python
from .autograd import differentiated, plain_linear, plain_matmul
from .errors import raise_if_out_of_memory
from .plain import is_plain
from .prepared import Prepared
from .sharding import register_if_needed

__all__ = ["Explanation", "algorithms", "explain", "gemm_", "linear", "matmul", "prepare"]

_library = torch.library.Library("tiled", "FRAGMENT")
for _module in (autograd, plain, writing, transforms, errors, fake):
    _module.register(_library)


def _ways_to_call(op):
    return op, call_without_python(op)


_matmul = _ways_to_call(torch.ops.tiled.matmul.default)
_matmul_out = _ways_to_call(torch.ops.tiled.matmul.out)
_gemm = _ways_to_call(torch.ops.tiled.gemm_.default)
_linear = _ways_to_call(torch.ops.tiled.linear.default)
_prepare = _ways_to_call(torch.ops.tiled.prepare.default)
_prepared_matmul = _ways_to_call(torch.ops.tiled.matmul.prepared)
_prepared_linear = _ways_to_call(torch.ops.tiled.linear.prepared)


def _call(ways, *tensors, **options):
    """Calls an operator, past its Autograd key where that would find nothing to do.

    The kernel at that key is Python, and finding out costs less than calling it. Likewise options
    that have their default values are better left out.
    """
    op, direct = ways
    try:
        if "out" not in options and is_plain(*tensors) and not differentiated(*tensors):
            with BelowAutograd():
                return direct(*tensors, **options)
        if not is_dynamo_compiling():
            register_if_needed()  # in inference mode nobody else does
        return op(*tensors, **options)
    except RuntimeError as error:
        raise_if_out_of_memory(error)
        raise


def matmul(
    a: torch.Tensor,
    b: torch.Tensor | Prepared,
    *,
    algorithm: str = "auto",
    precision: str = "fp32",
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The matrix product of two tensors, with the semantics of torch.matmul.

    Args:
        a: (m, k), or (k,), or a batch (..., m, k). Any strides; nothing is copied.
        b: (k, n), or (k,), or a batch (..., k, n), of a's dtype and on its device. The batch
            dimensions of a and b broadcast. Or torch_tiled.prepare(b), without out or out_dtype.
        algorithm: one of torch_tiled.algorithms(), or "auto", which picks by the problem.
        precision: how float32 operands are multiplied; ignored for other dtypes. "fp32" is as
            accurate as an SGEMM that adds in sequence, and uses tensor cores on GPUs of the Hopper
            generation; "ieee" rounds every multiply-add as IEEE 754 does, in one order on every
            GPU; "tf32" may round a and b to the 11 bits that TF32 has, as "auto" does on Hopper.
            On the CPU, "auto" is torch.matmul in each. docs/numerics.md has the bounds.
        out_dtype: torch.float32 for float16 or bfloat16 operands, to keep the float32 sums.
        out: a tensor of the result's shape to write to, dtype as for out_dtype. It has no
            gradient, may not share memory with a or b, and is never resized.

    Returns:
        The product, contiguous, or out.

    Raises:
        RuntimeError: shapes, dtypes or devices that don't fit, or an unknown option; the text says
            which and what to do.
        torch.OutOfMemoryError: there is no memory for the result; a and b are untouched.

    dtypes are float32, float64, float16 and bfloat16; the last two are summed in float32.

    Example::

        >>> a, b = torch.randn(8, 64, 32), torch.randn(32, 16)
        >>> torch_tiled.matmul(a, b).shape
        torch.Size([8, 64, 16])
    """
    if out is not None:
        if out_dtype is not None and out_dtype != out.dtype:
            raise RuntimeError(
                f"tiled::matmul: out is {out.dtype} and out_dtype is {out_dtype}; leave out_dtype "
                f"away, since out has a dtype"
            )
        _refuse_prepared(b, "out")
        _call(_matmul_out, a, b, out=out, algorithm=algorithm, precision=precision)
        return out
    if algorithm == "auto" and precision == "fp32" and out_dtype is None:
        if is_plain(a, b):
            return plain_matmul(a, b)
        if isinstance(b, Prepared):
            return _call(_prepared_matmul, a, *_right_operand(b))
        return _call(_matmul, a, b)
    options = {"algorithm": algorithm, "precision": precision}
    if isinstance(b, Prepared) and out_dtype is None:
        return _call(_prepared_matmul, a, *_right_operand(b), **options)
    _refuse_prepared(b, "out_dtype")
    return _call(_matmul, a, b, out_dtype=out_dtype, **options)


def _refuse_prepared(b, option):
    if isinstance(b, Prepared):
        raise RuntimeError(
            f"tiled::matmul: {option} is not taken with a prepared b; leave it away, or pass "
            f"b.tensor, which is b unprepared"
        )


def _right_operand(b):
    if b.transposed:
        raise RuntimeError(
            f"tiled::matmul: b is the transpose of what was prepared, of shape {tuple(b.shape)}, "
            f"and is not split along its rows; pass torch_tiled.prepare(b.tensor)"
        )
    return b.tensor, b.hi_lo, b.inverse_scales


def prepare(b: torch.Tensor) -> Prepared:
    """Splits b once, for many products `torch_tiled.matmul(a, torch_tiled.prepare(b))`.

    On GPUs of the Hopper generation a float32 product begins with splitting both operands in
    halves. That of a weight need not be done anew for each product; this is for weights in the
    functional style, and torch_tiled.freeze(model) for those of layers. The products' bits are
    those of the unprepared ones.

    b is kept, not copied, and must not be written to: what was split would go stale, unnoticed.
    Where there is nothing to split (other dtypes, other GPUs, K below 64), only b itself is kept.
    On the CPU the split is read by algorithm="fp16x3" alone.

    It has no derivative: a product with a b that requires grad is refused while gradients are
    recorded. Gradients to the other operand flow as they do unprepared. Under autocast the product
    is the unprepared one, in the region's dtype.

    Args:
        b: (k, n), float32, float64, float16 or bfloat16, of any strides.

    Returns:
        A torch_tiled.Prepared of b's shape. Its `.nbytes` says what memory it takes: about as much
        as b. torch_tiled.linear takes a weight as `torch_tiled.prepare(weight.mT).mT`.

    Raises:
        RuntimeError: b is no matrix, or of another dtype.
        torch.OutOfMemoryError: there is no memory for the halves.

    Example::

        >>> a, b = torch.randn(8, 64), torch.randn(64, 16)
        >>> prepared = torch_tiled.prepare(b)
        >>> torch.equal(torch_tiled.matmul(a, prepared), torch_tiled.matmul(a, b))
        True
    """
    return Prepared(b, *_call(_prepare, b))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | Prepared,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    algorithm: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """activation(x @ weight.T + bias) in one launch.

    Where a gradient needs the activation's argument (all but "none" and "relu" do), product and
    activation run one after the other instead.

    Args:
        x: (..., in_features), at least one dimension.
        weight: (out_features, in_features), of x's dtype and on its device; or
            torch_tiled.prepare(weight.mT).mT.
        bias: (out_features,) or None.
        activation: "none", "relu", "gelu", "gelu_tanh" (its tanh approximation), "tanh" or "silu".
        algorithm, precision: as for torch_tiled.matmul.

    Returns:
        (..., out_features), contiguous.

    Raises:
        RuntimeError, torch.OutOfMemoryError: as torch_tiled.matmul does.

    Example::

        >>> x, weight, bias = torch.randn(8, 32), torch.randn(16, 32), torch.randn(16)
        >>> torch_tiled.linear(x, weight, bias, activation="relu").shape
        torch.Size([8, 16])
    """
    if isinstance(weight, Prepared):
        operands = (x, *_weight(weight)) if bias is None else (x, *_weight(weight), bias)
        if activation == "none" and algorithm == "auto" and precision == "fp32":
            return _call(_prepared_linear, *operands)
        options = {"activation": activation, "algorithm": algorithm, "precision": precision}
        return _call(_prepared_linear, *operands, **options)
    operands = (x, weight) if bias is None else (x, weight, bias)
    if activation == "none" and algorithm == "auto" and precision == "fp32":
        if is_plain(*operands):
            return plain_linear(x, weight, bias)
        return _call(_linear, *operands)
    options = {"activation": activation, "algorithm": algorithm, "precision": precision}
    return _call(_linear, *operands, **options)


def _weight(weight):
    if not weight.transposed:
        raise RuntimeError(
            f"tiled::linear: weight was prepared as the right operand of matmul, of shape "
            f"{tuple(weight.shape)}, and is split along its rows; pass "
            f"torch_tiled.prepare(weight.mT).mT, made of the weight itself"
        )
    return weight.tensor, weight.hi_lo, weight.inverse_scales


def gemm_(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    algorithm: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """c = alpha * a @ b + beta * c in place, the verb of BLAS.

    Args:
        c: (..., m, n), written through its strides. With beta = 0 it is not read.
        a: (..., m, k), of c's dtype and on its device.
        b: (..., k, n), likewise. The batch dimensions of a and b broadcast to those of c.
        alpha, beta: numbers.
        algorithm, precision: as for torch_tiled.matmul.

    Returns:
        c.

    Raises:
        RuntimeError: as torch_tiled.matmul does; also if a gradient or tangent would have to flow
            through the write, if elements of c share memory, or if c shares memory with a or b.
        torch.OutOfMemoryError: there is no memory for a workspace.

    Example::

        >>> c, a, b = torch.ones(4, 8), torch.randn(4, 16), torch.randn(16, 8)
        >>> torch_tiled.gemm_(c, a, b, alpha=0.5, beta=0) is c
        True
    """
    _call(_gemm, c, a, b, alpha=alpha, beta=beta, algorithm=algorithm, precision=precision)
    return c


def algorithms() -> list[str]:
    """The names that `algorithm` takes beside "auto", slowest first.

    Example::

        >>> torch_tiled.algorithms()[:4]
        ['naive', 'tiled16', 'tiled32', 'tiled64']
    """
    return torch.ops.tiled.algorithms()


def check_precision(precision: str) -> None:
    """Raises what a float32 product in an unknown precision does; computes none."""
    matrix = torch.empty(1, 1, device="meta", dtype=torch.float32)
    fake.check_linear(matrix, matrix, precision=precision)


class Explanation(types.SimpleNamespace):
    """How a product would be computed: a field for each thing to know, a line for each in print."""

    def __str__(self):
        width = max(map(len, vars(self)), default=0)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in vars(self).items())


def explain(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    algorithm: str = "auto",
    precision: str = "fp32",
    compute_capability: int = 0,
    sms: int = 0,
) -> Explanation:
    """What torch_tiled.matmul(a, b) would do with these operands and options, and why.

    Products with a guard are computed, to tell how many elements were recomputed. With
    `compute_capability` and `sms` nothing is computed: the plan is that for such a GPU, which need
    not be there.

    Args:
        a, b, algorithm, precision: as for torch_tiled.matmul, but b is not a Prepared.
        compute_capability, sms: of a GPU, such as 90 and 132 for an H200 (compute capability 9.0,
            132 SMs).

    Returns:
        An Explanation, whose fields (strings; at least `algorithm`) can be printed or read.

    Raises:
        RuntimeError: as torch_tiled.matmul does.

    Example::

        >>> print(torch_tiled.explain(torch.randn(512, 256), torch.randn(256, 128)))
    """
    facts = torch.ops.tiled.explain(
        a,
        b,
        algorithm=algorithm,
        precision=precision,
        compute_capability=compute_capability,
        sms=sms,
    )
    return Explanation(**dict(zip(facts[::2], facts[1::2], strict=True)))
