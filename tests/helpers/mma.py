"""Operands of 16-bit floats, and comparisons of the mma kernels with each other."""

import pytest
import torch
from helpers.reference import U

import torch_tiled

each_16bit_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def pair_of(f):
    """Operands a and b whose elements are f(shape, dtype)."""
    return lambda m, k, n, dtype: (f((m, k), dtype).to(dtype), f((k, n), dtype).to(dtype))


def patterns(shape, dtype):
    """Random bits: each exponent is equally likely, and NaN and Inf occur."""
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(dtype)


def finite_patterns(shape, dtype):
    x = patterns(shape, dtype)
    return torch.where(x.isfinite(), x, 1)


def exponents_between(lowest, highest):
    """Random numbers whose exponents are uniform between two bounds, which depend on the dtype."""

    def numbers(shape, dtype):
        exponents = torch.randint(lowest[dtype], highest[dtype] + 1, shape)
        return torch.ldexp((2 * torch.rand(shape) - 1).double(), exponents)

    return numbers


def by_dtype(float16, bfloat16):
    return {torch.float16: float16, torch.bfloat16: bfloat16}


def zeros(shape, dtype):
    return torch.zeros(shape).copysign(torch.randn(shape))


def sparse(shape, dtype):
    return torch.where(torch.rand(shape) < 0.1, torch.randn(shape), zeros(shape, dtype))


def alternating(m, k, n, dtype):
    """Sums that cancel except for what the tensor core truncates."""
    signs = 1.0 - 2.0 * (torch.arange(k) % 2)
    a = torch.rand(m, 1) * (1 + torch.rand(k) * 2 * U[dtype])
    return a.to(dtype), signs[:, None].expand(k, n).to(dtype)


def not_finite(m, k, n, dtype):
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    a[m // 2, 0] = torch.nan
    a[-1, -1] = torch.inf
    a[0, k // 2] = -torch.inf
    b[k // 2, n // 3] = -torch.inf
    b[-1, 0] = torch.inf
    b[-1, 1] = 0
    return a, b


FINITE = {
    "normal": pair_of(lambda shape, dtype: torch.randn(shape)),
    "uniform": pair_of(lambda shape, dtype: torch.rand(shape)),
    "lognormal": pair_of(lambda shape, dtype: torch.exp(2 * torch.randn(shape)).clamp(max=6e4)),
    "spread": pair_of(exponents_between(by_dtype(-24, -60), by_dtype(4, 60))),
    "subnormal": pair_of(exponents_between(by_dtype(-24, -133), by_dtype(-14, 0))),
    "tiny": pair_of(exponents_between(by_dtype(-24, -77), by_dtype(-12, -67))),
    "huge": pair_of(exponents_between(by_dtype(8, 30), by_dtype(15, 56))),
    "sparse": pair_of(sparse),
    "zeros": pair_of(zeros),
    "alternating": alternating,
}
OPERANDS = FINITE | {
    "wide": pair_of(exponents_between(by_dtype(-24, -130), by_dtype(15, 120))),
    "finite patterns": pair_of(finite_patterns),
    "overflow": pair_of(exponents_between(by_dtype(10, 61), by_dtype(15, 66))),
    "patterns": pair_of(patterns),
    "not finite": not_finite,
}


def check_twin(algorithm, a, b, *, times=1, **options):
    """Asserts that a kernel has the bits of mma_sync, in memory that was NaN."""
    expected = torch_tiled.matmul(a, b, algorithm="mma_sync", **options)
    for _ in range(times):  # a race may show in one call only
        out = torch.full_like(expected, torch.nan)
        torch_tiled.matmul(a, b, algorithm=algorithm, out=out, **options)
        assert torch.equal(out, expected)


def check_epilogues(algorithm, x, weight, bias=None, *, activations=("none",), c=None, **scales):
    """Asserts that a kernel's epilogues have the bits of mma_sync: those of linear with each
    activation, and of gemm_(c, x, weight.mT) if there is a c."""
    for activation in activations:
        options = {"bias": bias, "activation": activation}
        ours = torch_tiled.linear(x, weight, algorithm=algorithm, **options)
        assert torch.equal(ours, torch_tiled.linear(x, weight, algorithm="mma_sync", **options))
    if c is not None:
        twins = c.clone(), c.clone()
        for each, name in zip(twins, (algorithm, "mma_sync"), strict=True):
            torch_tiled.gemm_(each, x, weight.mT, algorithm=name, **scales)
        assert torch.equal(*twins)


def with_any_pitch(batch, rows, cols, dtype, choose, multiple=1):
    """A random operand in memory that is NaN elsewhere. Its offset, row pitch and batch stride are
    random multiples of `multiple` elements, and half of the operands are transposed."""
    transposed = choose.random() < 0.5
    height, width = (cols, rows) if transposed else (rows, cols)

    def padded(elements, by):
        return -(-(elements + choose.choice(by)) // multiple) * multiple

    pitch = padded(width, (0, 0, 1, 3, 5, 8, 24))
    matrix = padded(height * pitch, (0, 0, 1, 8))
    begin = padded(0, (0, 0, 1, 2, 3, 4, 7, 9, 64))
    size = (batch, height, width)
    memory = torch.full((begin + batch * matrix + 64,), torch.nan, dtype=dtype, device="cuda")
    operand = memory.as_strided(size, (matrix, pitch, 1), begin)
    operand.copy_(torch.randn(size, device="cuda"))
    return operand.mT if transposed else operand
