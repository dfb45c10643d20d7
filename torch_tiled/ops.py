"""The operators as Python functions: matmul, linear, gemm_, prepare, algorithms and explain."""

import json
import numbers

import torch

from ._op.call import call, entry_points
from ._op.checks import check_options
from ._op.derivatives import plain_linear, plain_matmul, plain_prepared_linear
from ._op.fast_path import is_plain
from ._op.inplace import (
    constant_factor,
    is_plain_gemm,
    is_plain_write,
    plain_gemm_,
    plain_matmul_out,
)
from ._op.namespace import operators
from .explanation import Explanation, explanation_of
from .prepared import Prepared

__all__ = ["Explanation", "algorithms", "explain", "gemm_", "linear", "matmul", "prepare"]

_matmul = entry_points(operators.matmul.default)
_matmul_out = entry_points(operators.matmul.out)
_gemm = entry_points(operators.gemm_.default)
_linear = entry_points(operators.linear.default)
_prepare = entry_points(operators.prepare.default)
_explain = entry_points(operators.explain.default)
_prepared_matmul = entry_points(operators.matmul.prepared)
_prepared_linear = entry_points(operators.linear.prepared)


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

    The dtypes are float32, float64, float16, bfloat16, complex64 and complex128. Products of
    float16 and bfloat16 are summed in float32. A complex product is a real one, of parts;
    conjugate views, such as b.mH, are read as they are stored.

    Args:
        a: (m, k), or (k,), or a batch (..., m, k), of any strides.
        b: (k, n), or (k,), or a batch (..., k, n), of a's dtype and on its device; or a and b are
            mixed: one is float16 or bfloat16 and the other float32, and the product is that of
            a.float() and b.float(), to the bit. The batch dimensions of a and b broadcast. Without
            out, b may be torch_tiled.prepare(b).
        algorithm: one of torch_tiled.algorithms(), or "auto", which picks by the problem.
        precision: how float32 and complex64 operands are multiplied; ignored for other dtypes.
            "fp32" uses tensor cores on Hopper GPUs, and is as accurate as an SGEMM that adds in
            sequence if many products make up a sum; "ieee" rounds every FMA as IEEE 754 does, in
            one order on every GPU; "tf32" may round a and b to TF32's 11 bits, which "auto" does on
            Hopper. On the CPU, "auto" is torch.matmul in every precision. docs/guide/numerics.md
            has the error bounds.
        out_dtype: torch.float32 for float16 or bfloat16 operands, to keep the float32 sums; for
            mixed operands the 16-bit dtype, to round them.
        out: a tensor of the result's shape that is written to. Its dtype is an operand's or, for
            float16 and bfloat16, torch.float32. It has no gradient, may not share memory with a or
            b, and is never resized.

    Returns:
        The product, contiguous, of out_dtype or the operands' dtype (of mixed ones float32); or
        out.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit, or an option is unknown. The text names
            the argument and the remedy.
        torch.OutOfMemoryError: there is no memory for the result; a and b are unchanged.

    Examples:
        >>> a, b = torch.randn(8, 64, 32), torch.randn(32, 16)
        >>> torch_tiled.matmul(a, b).shape
        torch.Size([8, 64, 16])
    """
    if out is not None:
        if out_dtype is not None and out_dtype != out.dtype:
            raise RuntimeError(
                f"tiled::matmul: out is {out.dtype} and out_dtype is {out_dtype}; pass an out of "
                f"{out_dtype}, or drop out_dtype, so that the result is rounded to {out.dtype}"
            )
        if isinstance(b, Prepared):
            raise RuntimeError(
                "tiled::matmul: out is not taken with a prepared b; pass b.tensor, the unprepared "
                "operand"
            )
        if algorithm == "auto" and precision == "fp32" and is_plain_write(out, a, b):
            plain_matmul_out(a, b, out)
            return out
        result = call(_matmul_out, a, b, out=out, algorithm=algorithm, precision=precision)
        return out if result is None else result  # that of a handler of __torch_function__
    if algorithm == "auto" and precision == "fp32" and out_dtype is None:
        if is_plain(a, b):
            return plain_matmul(a, b)
        if isinstance(b, Prepared):
            return call(_prepared_matmul, a, *_right_operand(b))
        return call(_matmul, a, b)
    options = {"algorithm": algorithm, "precision": precision}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    if isinstance(b, Prepared):
        return call(_prepared_matmul, a, *_right_operand(b), **options)
    return call(_matmul, a, b, **options)


def _right_operand(b):
    if b.transposed:
        raise RuntimeError(
            f"tiled::matmul: b is the transpose of a prepared operand, of shape {tuple(b.shape)}, "
            f"and is split along the wrong dimension; pass torch_tiled.prepare(b.tensor)"
        )
    return b.tensor, b.hi_lo, b.inverse_scales


def prepare(b: torch.Tensor) -> Prepared:
    """Splits b once, for many products `torch_tiled.matmul(a, torch_tiled.prepare(b))`.

    On Hopper GPUs a float32 product first splits both operands into hi and lo float16 parts. A
    prepared weight spares each product that work, with the same bits in the result. This function
    is for weights in the functional style; torch_tiled.freeze(model) is for layers.

    The result refers to b and does not copy it. b must not be written to: the hi and lo parts would
    be stale, and no product notices. If products do not split (other dtypes, other GPUs, K below
    128), the result is b alone. On the CPU, only algorithm="fp16x3" reads the hi and lo parts.

    A complex64 b is also rewritten as the real matrix that products read (docs/kernels/complex.md),
    for every K, GPU and kernel.

    A prepared operand has no derivative: while gradients are recorded, a product with a b that
    requires grad raises. The other operand gets the same gradient as from an unprepared product. In
    an autocast region the product is the unprepared one, in the region's dtype.

    Args:
        b: (k, n), of the dtypes of torch_tiled.matmul and of any strides.

    Returns:
        A torch_tiled.Prepared of b's shape. Its `.nbytes` is the memory that it takes beside b's
        own: about as much as b, and for a complex64 b twice, or four times if that is split.
        torch_tiled.linear takes a weight as `torch_tiled.prepare(weight.mT).mT`.

    Raises:
        RuntimeError: b is not a matrix, or has another dtype.
        torch.OutOfMemoryError: there is no memory for the hi and lo parts.

    Examples:
        >>> a, b = torch.randn(8, 64), torch.randn(64, 16)
        >>> prepared = torch_tiled.prepare(b)
        >>> torch.equal(torch_tiled.matmul(a, prepared), torch_tiled.matmul(a, b))
        True
    """
    return Prepared(b, *call(_prepare, b))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | Prepared,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    algorithm: str = "auto",
    precision: str = "fp32",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """activation(x @ weight.T + bias) in one launch.

    While gradients are recorded, an activation other than "none" and "relu" is a second launch: its
    gradient needs the product before the activation.

    Args:
        x: (..., in_features), with at least one dimension, of the dtypes of torch_tiled.matmul.
        weight: (out_features, in_features), on x's device and of its dtype, or mixed as in
            torch_tiled.matmul; or torch_tiled.prepare(weight.mT).mT.
        bias: (out_features,), on x's device and of the dtype of x, weight or the result; or None.
        activation: "none", "relu", "gelu", "gelu_tanh" (its tanh approximation), "tanh" or "silu";
            "none" alone for complex operands.
        algorithm: as for torch_tiled.matmul.
        precision: as for torch_tiled.matmul.
        out_dtype: as for torch_tiled.matmul. Bias and activation come before the rounding.

    Returns:
        (..., out_features), contiguous, of torch_tiled.matmul's dtype.

    Raises:
        RuntimeError: as torch_tiled.matmul does.
        torch.OutOfMemoryError: as torch_tiled.matmul does.

    Examples:
        >>> x, weight, bias = torch.randn(8, 32), torch.randn(16, 32), torch.randn(16)
        >>> torch_tiled.linear(x, weight, bias, activation="relu").shape
        torch.Size([8, 16])
    """
    is_default = (
        activation == "none" and algorithm == "auto" and precision == "fp32" and out_dtype is None
    )
    if isinstance(weight, Prepared):
        entry, plain, operands = _prepared_linear, plain_prepared_linear, (x, *_weight(weight))
    else:
        entry, plain, operands = _linear, plain_linear, (x, weight)
    given = operands if bias is None else (*operands, bias)
    if is_default:
        return plain(*operands, bias) if is_plain(*given) else call(entry, *given)
    options = {"activation": activation, "algorithm": algorithm, "precision": precision}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    return call(entry, *given, **options)


def _weight(weight):
    if not weight.transposed:
        raise RuntimeError(
            f"tiled::linear: weight was prepared as the right operand of matmul, of shape "
            f"{tuple(weight.shape)}, and is split along the wrong dimension; pass "
            f"torch_tiled.prepare(weight.mT).mT, made of the weight itself"
        )
    return weight.tensor, weight.hi_lo, weight.inverse_scales


def gemm_(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: complex = 1,
    beta: complex = 1,
    algorithm: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """c = alpha * a @ b + beta * c in place, as BLAS's GEMM.

    Args:
        c: (..., m, n), of the dtypes of torch_tiled.matmul and of any strides. With beta = 0 it is
            not read.
        a: (..., m, k), on c's device and of its dtype; or, if c is float32, a and b are
            torch_tiled.matmul's mixed operands, or float16 or bfloat16. With alpha = 0, a and b are
            not read.
        b: (..., k, n), as a. The batch dimensions of a and b broadcast to c's.
        alpha: a number that multiplies the product; it may be complex if c is.
        beta: a number, by which c is multiplied before the product is added; it may be complex if
            c is.
        algorithm: as for torch_tiled.matmul.
        precision: as for torch_tiled.matmul.

    Returns:
        c.

    Raises:
        RuntimeError: as torch_tiled.matmul does; also if a gradient or tangent would flow through
            the write, if elements of c share memory, or if c shares memory with a or b.
        torch.OutOfMemoryError: there is no memory for a workspace. c may then be written in part.

    Examples:
        >>> c, a, b = torch.ones(4, 8), torch.randn(4, 16), torch.randn(16, 8)
        >>> torch_tiled.gemm_(c, a, b, alpha=0.5, beta=0) is c
        True
    """
    if algorithm == "auto" and precision == "fp32" and is_plain_gemm(c, a, b, alpha, beta):
        plain_gemm_(c, a, b, alpha, beta)
        return c
    options = {"algorithm": algorithm, "precision": precision}
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, torch.Tensor):
            factor = constant_factor(name, factor)
        is_real = isinstance(factor, numbers.Real) or not isinstance(factor, numbers.Complex)
        if not is_real:  # schemas have no complex numbers
            options[name], options[f"{name}_imag"] = factor.real, factor.imag
        else:
            options[name] = factor
    result = call(_gemm, c, a, b, **options)
    return c if result is None else result  # that of a handler of __torch_function__


def algorithms() -> list[str]:
    """The names that `algorithm` takes, except "auto": kernels, and families behind
    their kernels.

    Returns:
        A list of strings, the same on every machine.

    Examples:
        >>> torch_tiled.algorithms()[:4]
        ['naive', 'tiled16', 'tiled32', 'tiled64']
    """
    return operators.algorithms()


def check_precision(function: str, precision: str) -> None:
    """Raises a RuntimeError of this function if there is no such precision."""
    check_options(function, precision=precision)


def explain(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    algorithm: str = "auto",
    precision: str = "fp32",
    compute_capability: int | None = None,
    sms: int | None = None,
) -> Explanation:
    """Explains which kernel torch_tiled.matmul(a, b) would run with these options, and why.

    An fp16x3 or tf32 product is computed, to report how many of its elements were flagged and
    recomputed. With `compute_capability` and `sms` nothing is computed: the plan is that of such a
    GPU, which need not be there, and a and b may be on the meta device.

    Args:
        a: as for torch_tiled.matmul.
        b: as for torch_tiled.matmul, but not a Prepared.
        algorithm: as for torch_tiled.matmul.
        precision: as for torch_tiled.matmul.
        compute_capability: that of a GPU, such as 90 for the 9.0 of an H200.
        sms: the number of its SMs, such as 132. Both or neither are given.

    Returns:
        An Explanation, which has a string for each fact, and `values` with the numbers.

    Raises:
        RuntimeError: as torch_tiled.matmul does; also if b is a Prepared, or if no GPU has this
            compute_capability and number of sms.

    Examples:
        >>> a, b = torch.randn(512, 256), torch.randn(256, 128)
        >>> torch_tiled.explain(a, b).algorithm
        'torch.matmul'
        >>> torch_tiled.explain(a, b, compute_capability=90, sms=132).algorithm
        'fp16x3_small'
    """
    if isinstance(b, Prepared):
        raise RuntimeError("tiled::explain: b is prepared; pass b.tensor, the unprepared operand")
    if compute_capability and sms == 0:  # the operator takes 0 for one that is not given
        raise RuntimeError("tiled::explain: sms is 0; it must be at least 1")
    if sms and compute_capability == 0:
        raise RuntimeError(
            "tiled::explain: compute_capability is 0; it must be at least 80 (for 8.0)"
        )
    if any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in (a, b)):
        if not (compute_capability or sms):
            raise RuntimeError(
                "tiled::explain: no kernel runs on the meta device; pass the compute_capability "
                "and sms of a GPU, such as 90 and 132"
            )
        # A plan reads no data, so this memory is never touched.
        a, b = (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu") for x in (a, b)
        )
    fields = call(
        _explain,
        a,
        b,
        algorithm=algorithm,
        precision=precision,
        compute_capability=0 if compute_capability is None else compute_capability,
        sms=0 if sms is None else sms,
    )
    return explanation_of(json.loads(fields))
