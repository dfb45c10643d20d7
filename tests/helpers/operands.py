"""Float32 operands of many kinds, layouts and batches, for products on tensor cores."""

import torch

LAYOUTS = ("NN", "NT", "TN", "TT")

# A matrix in the strides for which kernels load in different ways.
LOADS = {
    "along K": lambda x: x,
    "along K, shifted": lambda x: torch.cat([x[:, :1], x], 1)[:, 1:],
    "along rows": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
    "one row for all": lambda x: x[:1].expand_as(x),
}


def in_layout(x, letter):
    return x.mT.contiguous().mT if letter == "T" else x


def in_layouts(layout, a_shape, b_shape, dtype=torch.float32):
    """Random operands on a GPU."""
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in (a_shape, b_shape))
    return in_layout(a, layout[0]), in_layout(b, layout[1])


def pair_of(f):
    """Operands a and b that f makes of their shapes."""
    return lambda m, k, n: (f(m, k), f(k, n))


def opposed(deviation):
    """Column k of a is scaled by exp(deviation N(0, 1)), and row k of b by the inverse."""

    def operands(m, k, n):
        scale = torch.exp(deviation * torch.randn(k))
        return torch.randn(m, k) * scale, torch.randn(k, n) / scale[:, None]

    return operands


def alternating(m, k, n):
    """Sums that cancel except for their roundings."""
    signs = 1.0 - 2.0 * (torch.arange(k) % 2)
    return torch.rand(m, 1).expand(m, k) * (1 + torch.rand(k) * 2.0**-20), signs[:, None].repeat(
        1, n
    )


def single_huge(m, k, n):
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[m // 2, k // 3] = 1e30
    b[k // 2, n // 3] = -1e25
    return a, b


def distances(rows, cols):
    return (torch.linspace(0, 9, rows)[:, None] - torch.linspace(0, 9, cols)).abs()


def finite_patterns(*shape):
    """Random bits except for those of NaN and Inf."""
    bits = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)
    exponents = bits & 0x7F800000
    return torch.where(exponents == 0x7F800000, bits ^ 0x40000000, bits).view(torch.float32)


def zero_rows(m, k, n):
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[::3] = 0
    a[1, : k // 2] = -0.0
    b[:, ::2] = 0
    return a, b


def sparse(*shape):
    return torch.where(torch.rand(shape) < 0.1, torch.randn(shape), 0)


def autoregressive(rows, cols):
    apart = torch.arange(rows)[:, None] * (cols / rows) - torch.arange(cols)
    return 0.9 ** apart.abs()


def in_binades(count):
    """Numbers of eight bits in as many binades. The first and the last binade are not empty."""

    def row(k):
        exponents = torch.randint(count, (k,))
        exponents[0], exponents[-1] = 0, count - 1
        return torch.ldexp(1 + torch.randint(128, (k,)) / 128, exponents)

    return row


def signs(k):
    return 1.0 - 2.0 * torch.randint(2, (k,))


def with_one_finer(x):
    """One number with a ninth bit."""
    x[-2] = 1 + 2.0**-8
    return x


# Rows of few bits, most of which are coarse (csrc/core/order_fp16x3.h), and rows that are nearly.
FEW_BITS = {
    "signs": signs,
    "mask": lambda k: 1.0 * torch.randint(2, (k,)),
    "dropout": lambda k: torch.randint(2, (k,)) * 1.109375,
    "one-hot": lambda k: (torch.arange(k) == torch.randint(k, ())).float(),
    "int8": lambda k: torch.randint(-127, 128, (k,)).float(),
    "eight binades": in_binades(8),
    "nine binades": in_binades(9),
    "one finer number": lambda k: with_one_finer(signs(k)),
    "bfloat16": lambda k: torch.randn(k).bfloat16().float(),
    "wide": lambda k: signs(k) * torch.where(torch.rand(k) < 0.1, 2.0**-30, 1),
    "in every other chunk": lambda k: torch.where(
        torch.arange(k) // 1024 % 2 == 0, signs(k), torch.randn(k)
    ),
    "zeros and the last one": lambda k: (torch.arange(k) == k - 1).float(),
    "zeros": torch.zeros,
}
# The least magnitude that is brought to 2^7, the next smaller one, and a large one.
FEW_BITS_SCALED = FEW_BITS | {f"2^{e}": lambda k, e=e: signs(k) * 2.0**e for e in (-120, -121, 60)}


def rows_of(kinds, rows, k):
    """Rows of these kinds in turn, from a random one on."""
    first = torch.randint(len(kinds), ()).item()
    makes = list(kinds.values())
    return torch.stack([makes[(first + i) % len(makes)](k) for i in range(rows)])


def few_bits(m, k, n):
    """Coarse groups beside each other, and beside groups of 24 bits."""
    a, b = rows_of(FEW_BITS_SCALED, m, k), rows_of(FEW_BITS, n, k)
    a[3::4], b[::2] = torch.randn(len(a[3::4]), k), torch.randn(len(b[::2]), k)
    return a, b.mT


OPERANDS = {
    "normal": pair_of(torch.randn),
    "uniform": pair_of(torch.rand),
    "lognormal": pair_of(lambda *shape: torch.exp(2 * torch.randn(shape))),
    "columns scaled": lambda m, k, n: (
        torch.randn(m, k) * torch.exp(torch.randn(k)),
        torch.randn(k, n) * torch.exp(2 * torch.randn(n)),
    ),
    "opposed by 2": opposed(2),
    "opposed by 5": opposed(5),
    "alternating": alternating,
    "single huge": single_huge,
    "covariances": pair_of(autoregressive),
    "Gaussian kernel": pair_of(lambda *shape: torch.exp(-(distances(*shape) ** 2))),
    "softmax": lambda m, k, n: (torch.softmax(4 * torch.randn(m, k), 1), torch.randn(k, n)),
    "zero rows": zero_rows,
    "sparse": pair_of(sparse),
    "subnormal": lambda m, k, n: (1e-41 * torch.randn(m, k), 1e3 * torch.randn(k, n)),
    "smallest": lambda m, k, n: (torch.full((m, k), 1e-45), torch.randn(k, n)),
    "tiny": pair_of(lambda *shape: 1e-20 * torch.randn(shape)),
    "huge": lambda m, k, n: (1e35 * torch.randn(m, k), torch.randn(k, n)),
    "huge times tiny": lambda m, k, n: (1e38 * torch.rand(m, k), 1e-38 * torch.randn(k, n)),
    "few bits": few_bits,
    "patterns": lambda m, k, n: (finite_patterns(m, k), finite_patterns(k, n)),
}
OVERFLOWING = OPERANDS | {"overflow": pair_of(lambda *shape: 3e19 * torch.randn(shape))}
BOUNDED = [name for name in OPERANDS if name != "patterns"]  # "patterns" overflows


def non_finite(m, k, n):
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[m // 2, 0] = torch.nan
    a[-1, -1] = torch.inf
    b[k // 2, n // 3] = -torch.inf
    b[-1, 0] = torch.inf
    return a, b


def permuted(*sizes, order):
    """A tensor of these sizes, stored with its batch dimensions in another order."""
    batch = len(order)
    stored = torch.randn(*(sizes[d] for d in order), *sizes[batch:])
    return stored.permute(*(order.index(d) for d in range(batch)), batch, batch + 1)


BATCHES = {
    "permuted": lambda *w: permuted(2, 3, *w, order=(1, 0)),
    "broadcast": lambda *w: torch.randn(2, 1, *w).expand(2, 3, *w),
    "three": lambda *w: permuted(2, 3, 2, *w, order=(2, 1, 0)),
    "four": lambda *w: permuted(2, 2, 2, 2, *w, order=(3, 2, 1, 0)),
    "columns of a wider one": lambda k, n: torch.randn(2, 3, k, n + 4)[..., 4:],
}


MIXED = {  # the dtypes of two operands, of their product, and of a bias
    "16-bit rows": (torch.bfloat16, torch.float32, torch.float32, torch.bfloat16),
    "16-bit columns": (torch.float32, torch.float16, torch.float32, torch.float32),
    "rounded": (torch.float32, torch.bfloat16, torch.bfloat16, torch.float32),
    "sums kept": (torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16),
    "sums kept, wide bias": (torch.float16, torch.float16, torch.float32, torch.float32),
}
