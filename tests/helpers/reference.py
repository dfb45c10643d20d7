"""The float64 product, and the error that every test and benchmark allows a kernel.

Nothing here is fitted. u = 2^-24 is half the spacing of fp32 at 1, so that each fp32 operation errs
by a factor of at most 1 + u. A sum in which a product meets at most r roundings is off by at most

    gamma(r) |A||B|,    gamma(r) = r u / (1 - r u)

elementwise (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), plus half the
smallest subnormal for every operation that underflows.

fp16x3 (csrc/core/order_fp16x3.h), in u |A||B|, where L is the length of a chunk of K and P that of
a promotion:

    each factor loses at most 2u of itself by its split      4
    lo times lo, left out: 2^-11 of each factor at most      4
    what wide rows and columns lose, by the flags' bound     1
    low: 2 L / 16 sums of the tensor core, each off by
        10u of at most 2 |A||B|, times 2^-11                 1.25
    low and total added                                      1
    what is given back for truncation                        1.375
    hi times hi, to a promotion: P / 16 such sums            10 P / 16
    promotions after the first                               L / P - 1
    chunks after the first                                   K / L - 1

If in each chunk the row or the column is coarse, its factors lose nothing and have no lo parts, low
has half as many sums of half the size, and nothing is given back: 4.3125 in place of 12.625.

A sum of the tensor core aligns 16 products with the accumulator, truncates all of them but the
largest at 2^-25 of it, which is 16 u / 2 at most, and then truncates the sum at 2^-23 of itself,
which is 2u: together 10u. The inverse scale is exact except where the result is subnormal. A
flagged element is recomputed in the chunked order. The bound of that order is all that is proven of
it, and yet tests hold it to the bound above. docs/guide/numerics.md has the derivation.

mma (csrc/core/order_mma.h) is min(K, 8192) / 16 such sums, each off by 10u of the accumulator, and
the additions of chunks after the first. A tensor core aligns by a subnormal factor as if it were
the smallest normal number and so truncates more beside it: in |A||B| such factors count as the
smallest normal number. A sum loses 2^-149 for the result and 2^-151 for each addend below the
smallest normal number of float32, which is less than the K 2^-149 in every bound.

tf32 (csrc/core/order_tf32.h) is such sums, of factors rounded to 11 bits, which loses at most
(1 + 2^-11)^2 - 1 of |A||B|. Wide rows and columns lose 2^-14 of it at most, by the flags' bound. A
flagged element is recomputed in the chunked order, whose bound is smaller up to K = 2^24 and larger
from 2^25 on.
"""

import math

import torch
import torch.nn.functional as F
from helpers.specification import CHUNK, MMA_CHUNK

import torch_tiled
from torch_tiled._op.registry import family, orders

U = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
SMALLEST = {
    torch.float64: 2.0**-1074,
    torch.float32: 2.0**-149,
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-133,
}
# The activations of linear, as PyTorch has them.
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": F.silu,
}
FLOATS_16BIT = (torch.float16, torch.bfloat16)
REAL = (torch.float32, torch.float64, *FLOATS_16BIT)
DTYPES = (*REAL, torch.complex64, torch.complex128)
NAMED = torch_tiled.algorithms()  # all but "auto"
ALGORITHMS = [*NAMED, "auto"]
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # of complex numbers
MIN_K = {name: x.min_k for name, x in orders().items() if x.min_k}  # shorter sums are chunked
TF32_LOSS = 2.0**-10 + 2.0**-22 + 2.0**-14  # of |A||B|, before anything is summed


def accumulation_dtype(dtype):
    """The dtype of the accumulator of products of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(x):
    """x in float64, or in complex128 if it is complex."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def product(a, b):
    """The product of a and b in float64 or complex128, by torch.matmul."""
    return wide(a) @ wide(b)


def real_operands(a, b):
    """Real operands whose product has the parts of a complex one: csrc/core/complex.h.

    A complex a (..., m, k) is (..., m, 2 k) as it lies, and b (..., k, n) becomes (..., 2 k, 2 n),
    in which x + iy is the rows (x, y) and (-y, x). Vectors have m or n of 1.
    """
    a = a.unsqueeze(0) if a.dim() == 1 else a
    b = b.unsqueeze(-1) if b.dim() == 1 else b
    b_rows = torch.stack((parts(b), parts(torch.complex(-b.imag, b.real))), -3)
    return parts(a).flatten(-2), b_rows.flatten(-2).flatten(-3, -2)


def parts(x):
    """The parts of complex numbers, (..., 2)."""
    return torch.view_as_real(x.resolve_conj().resolve_neg())


def _by_parts(real, a, b):
    """A tensor (..., m, 2 n) for the parts of a complex product of a and b."""
    real = real.unflatten(-1, (-1, 2))
    real = real.squeeze(-2) if b.dim() == 1 else real
    return real.squeeze(-2 if b.dim() == 1 else -3) if a.dim() == 1 else real


def magnitude(a, b):
    """|A||B| in float64: what rounding errors are relative to."""
    return a.double().abs() @ b.double().abs()


def raised(x):
    """Magnitudes in float64, the subnormal ones raised to the smallest normal number."""
    smallest = torch.finfo(x.dtype).smallest_normal
    x = x.double().abs()
    return torch.where(x == 0, x, x.clamp(min=smallest))


def gamma(roundings, u):
    return roundings * u / (1 - roundings * u)


# Precision fp32 promises that the relative Frobenius error of many elements, in the mean over this
# many seeds, is at most naive's. A sum that a tensor core truncates and never promotes would not
# keep that: its error grows with K, and that of a plain sum with the root of K.
SEEDS = 8

# It promises as well that the mean signed relative error of sums of positive numbers is below this.
# A promotion of two k16 is truncated twice, and each time loses half a unit in the last place on
# average, at most u of the sum. Of 1.5 u, 0.95 u are given back (order_fp16x3.h). The bits
# truncated from the products lose less than what this leaves, since sums lie anywhere within their
# binade. Roundings to nearest add nothing.
BIAS = 0.75 * U[torch.float32]


def promotion(k):
    """The length of K that fp16x3 accumulates in the tensor core before it adds to the total."""
    return 16 if k < 512 else 32


def takes(algorithm, dtype, device="cpu", precision="fp32"):
    """Whether an algorithm takes such operands; tests/ops/test_errors.py has its errors if not."""
    kernels = family(algorithm)
    if not kernels:  # "auto", or None
        return True
    refused = {"fp16x3": precision == "ieee", "tf32": precision != "tf32"}
    if dtype not in kernels[0].dtypes or refused.get(kernels[0].order):
        return False
    return device == "cpu" or _is_hopper() or not all(x.needs_hopper for x in kernels)


def lengths(algorithm):
    """The shortest and the longest K of sums that an algorithm computes itself."""
    kernels = family(algorithm)
    least = max(orders()[kernels[0].order].min_k, min(x.min_k for x in kernels)) if kernels else 0
    return least, max((x.max_k or math.inf for x in kernels), default=math.inf)


def _is_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def order(algorithm, a, precision="fp32"):
    """The order in which a product by a is summed: "plain", "chunked", "fp16x3", "mma", "tf32", or
    "any" if PyTorch computes it."""
    k = a.shape[-1]
    if algorithm == "auto":
        if a.device.type == "cpu":
            return "any"
        ours = ("tf32", "fp16x3", "mma", "tiled")
        algorithm = next(x for x in ours if takes(x, a.dtype, a.device.type, precision))
    name = family(algorithm)[0].order
    return name if k >= orders()[name].min_k else "chunked"


def roundings(k, order):
    """The most roundings that one product meets on its way into a sum of k products.

    They are k in sequence or in any order. In chunks they are those of its chunk, and one for each
    chunk that follows. For tensor cores it is the number that loses as much as they do.
    """
    if order in ("mma", "tf32"):
        return _mma_roundings(k)
    chunk, chunks = min(k, CHUNK), max(1, -(-k // CHUNK))
    if order == "fp16x3":
        p = promotion(k)
        return 12.625 + 10 * p / 16 + (-(-chunk // p) - 1) + (chunks - 1)
    return chunk + chunks - 1 if order == "chunked" else k


COARSE = 12.625 - 4.3125  # what an element of fp16x3 loses less if it is_coarse()


def is_coarse(a, b):
    """Which elements of a product have a coarse row or a coarse column in each chunk of K: bfloat16
    numbers that are 0 or at least 2^7 when scaled."""
    coarse = torch.tensor(True, device=a.device)
    for start in range(0, a.shape[-1], CHUNK):
        chunk = slice(start, start + CHUNK)
        rows = _is_coarse_group(a[..., chunk])
        cols = _is_coarse_group(b[chunk] if b.dim() == 1 else b.mT[..., chunk])
        both_matrices = a.dim() > 1 and b.dim() > 1
        coarse = coarse & ((rows[..., None] | cols[..., None, :]) if both_matrices else rows | cols)
    return coarse


def _is_coarse_group(x):
    """Whether a group x (..., K) is coarse, or has nothing but zeros."""
    magnitude = x.double().abs()
    largest = magnitude.amax(-1, keepdim=True)
    scale = (15 - torch.frexp(largest).exponent).clamp(max=127)
    large = magnitude >= torch.exp2(7.0 - scale.double())
    return ((x == x.bfloat16()) & ((x == 0) | large)).all(-1)


def _mma_roundings(k, per_k16=10):
    chunks = max(1, -(-k // MMA_CHUNK))
    return per_k16 * -(-min(k, MMA_CHUNK) // 16) + chunks - 1


def _roundings(a, b, algorithm, precision="fp32"):
    """The roundings of a product of a and b: a number, or one for each element."""
    how = order(algorithm, a, precision)
    if how == "mma" and a.device.type == "cuda" and not _is_hopper():
        # Ampere and Ada add eight products twice, and truncate nine addends to 24 bits each time.
        return _mma_roundings(a.shape[-1], per_k16=22)
    most = roundings(a.shape[-1], how)
    return most - COARSE * is_coarse(a, b) if how == "fp16x3" else most


def _size(a, b, algorithm, precision="fp32"):
    """The magnitude that the errors of a product are relative to."""
    if order(algorithm, a, precision) == "mma":
        return raised(a) @ raised(b)
    return magnitude(a, b)


def _lost(a, b, algorithm, precision="fp32"):
    """The error of a product before anything is summed."""
    lost = TF32_LOSS if order(algorithm, a, precision) == "tf32" else 0.0
    return lost * magnitude(a, b)


def bound(a, b, *, precision="fp32", algorithm="auto", out_dtype=None):
    """The elementwise error allowed between a product of a and b and `product(a, b)`.

    `a` and `b` are of one dtype. The float64 product's own error is included, which matters for
    float64 operands. For complex operands it is that of each part, (..., m, n, 2).
    """
    assert precision in ("fp32", "ieee", "tf32"), precision
    if a.is_complex():
        options = {"precision": precision, "algorithm": algorithm}
        return _by_parts(bound(*real_operands(a, b), **options), a, b)
    k = a.shape[-1]
    acc = accumulation_dtype(a.dtype)
    r = _roundings(a, b, algorithm, precision)
    size, lost = (f(a, b, algorithm, precision) for f in (_size, _lost))
    return _bound(product(a, b), size, lost, r, k, acc, out_dtype or a.dtype)


def _bound(exact, size, lost, r, k, acc, out_dtype):
    error = lost + gamma(r, U[acc]) * (size + lost) + k * SMALLEST[acc]
    error = error + gamma(k, U[torch.float64]) * size
    if out_dtype != acc:  # one more rounding, to the result
        error = error + U[out_dtype] * (exact.abs() + error) + SMALLEST[out_dtype] / 2
    return error


def one_hot_bound(picked, order="fp16x3"):
    """The bound if a row with a single 1 picks an element, which loses by its split or rounding."""
    lost = {"fp16x3": 2 * U[torch.float32], "tf32": U[torch.float16]}[order]
    return lost * picked.double().abs()


def linear_bound(x, weight, bias, *, precision="fp32", algorithm="auto"):
    """The bound of x @ weight.T + bias, which has one more addend and one more rounding."""
    if x.is_complex():
        real_x, real_weight = real_operands(x, weight.mT)
        real_bias = None if bias is None else parts(bias).flatten()
        options = {"precision": precision, "algorithm": algorithm}
        return _by_parts(linear_bound(real_x, real_weight.mT, real_bias, **options), x, weight)
    exact = product(x, weight.mT)
    size, lost = (f(x, weight.mT, algorithm, precision) for f in (_size, _lost))
    k = x.shape[-1]
    if bias is not None:
        exact = exact + bias.double()
        size = size + bias.double().abs()
    r = _roundings(x, weight.mT, algorithm, precision) + 1
    return _bound(exact, size, lost, r, k + 1, accumulation_dtype(x.dtype), x.dtype)


# The steepest any activation gets: gelu's derivative reaches 1.13, silu's 1.10.
STEEPEST = 1.2


def activated_bound(exact, limit, dtype):
    """The bound of an activation's values `exact`, its arguments being within `limit`.

    Its own error is assert_close's tolerance for one elementwise function.
    """
    relative, absolute = torch.testing._comparison.default_tolerances(dtype)
    return STEEPEST * limit + exact.abs() * relative + absolute


def gemm_bound(c, a, b, alpha, beta, *, precision="fp32", algorithm="auto"):
    """The bound of alpha * a @ b + beta * c, with the roundings that alpha and beta add."""
    if c.is_complex():
        return _complex_gemm_bound(c, a, b, complex(alpha), complex(beta), precision, algorithm)
    exact = alpha * product(a, b) + (beta * c.double() if beta else 0)
    size, lost = (abs(alpha) * f(a, b, algorithm, precision) for f in (_size, _lost))
    size = size + (abs(beta) * c.double().abs() if beta else 0)
    k = a.shape[-1]
    # A product meets alpha's conversion to the accumulator's dtype, the multiplication by alpha and
    # the addition of beta * c. c meets beta's conversion and that addition.
    r = _roundings(a, b, algorithm, precision) + 3
    return _bound(exact, size, lost, r, k + 2, accumulation_dtype(a.dtype), c.dtype)


def _complex_gemm_bound(c, a, b, alpha, beta, precision, algorithm):
    """gemm_bound of each part: (x + iy)(u + iv) is xu - yv and xv + yu."""

    def times(factor, x):
        return abs(factor.real) * x + abs(factor.imag) * x.flip(-1)

    real = real_operands(a, b)
    size, lost = (_by_parts(f(*real, algorithm, precision), a, b) for f in (_size, _lost))
    size, lost = times(alpha, size), times(alpha, lost)
    exact = alpha * product(a, b)
    if beta:
        size, exact = size + times(beta, parts(c).double().abs()), exact + beta * wide(c)
    # There are two more additions than with real factors.
    r = _roundings(*real, algorithm, precision)
    if isinstance(r, torch.Tensor):  # both parts of a product meet in each part of the result
        r = _by_parts(r, a, b).amax(-1, keepdim=True)
    r = r + 5
    dtype = real[0].dtype
    return _bound(parts(exact), size, lost, r, real[0].shape[-1] + 4, dtype, dtype)


def rounded_bound(exact, size, k, roundings, dtype):
    """The bound of float32 sums of k terms, whose magnitudes add up to `size`, if the sums or their
    terms were rounded to `dtype` that many times."""
    in_float32 = max(k, _mma_roundings(k))
    error = gamma(in_float32, U[torch.float32]) * size + k * SMALLEST[torch.float32]
    return error + gamma(roundings, U[dtype]) * (size + error) + roundings * SMALLEST[dtype] / 2


def assert_same(actual, expected):
    """Asserts equal shapes and bits, signs of zeros included. Any NaN equals any other. Complex
    numbers are compared by parts."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if expected.is_complex():
        actual, expected = parts(actual), parts(expected)
    actual, expected = actual.resolve_neg(), expected.resolve_neg()
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    assert torch.equal(*(x.masked_fill(nan, 0).contiguous().view(bits) for x in (actual, expected)))


def assert_within(actual, exact, limit):
    """Asserts |actual - exact| <= limit everywhere, and no NaN; names the worst element.

    Complex numbers are compared by parts, which `limit` has as its last dimension.
    """
    if exact.is_complex():
        actual, exact = parts(actual), parts(exact)
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)}, not {tuple(exact.shape)}"
    if actual.numel() == 0:
        return
    error = (actual.double() - exact).abs()
    excess = torch.where(error <= limit, 0.0, torch.nan_to_num(error / limit, nan=torch.inf))
    if excess.any():
        flat = excess.argmax().item()
        where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), excess.shape))
        raise AssertionError(
            f"{int((excess > 0).sum())} of {excess.numel()} elements are out of bound; worst at "
            f"{where}: {actual.flatten()[flat].item()!r}, exact {exact.flatten()[flat].item()!r}, "
            f"allowed error {limit.expand_as(error).flatten()[flat].item():.3g}"
        )


def relative_error(actual, exact):
    """The relative Frobenius error, as a float."""
    return ((wide(actual) - exact).norm() / exact.norm()).item()
