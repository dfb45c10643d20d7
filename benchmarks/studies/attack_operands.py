"""Rows and columns of K numbers that are meant to err as much as an order of summation lets them,
and the mutations by which attack_bounds.py looks for worse ones.

A start is a function of an order, K and a generator to a row and a column in float64. A mutation
is a function of rows (count, K) in the order's dtype and a generator to mutated rows.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import torch

from benchmarks.gemm.check import reference
from torch_tiled._op import registry

FP16_BITS = 11  # of a mantissa; hi and lo of a split have as many
TIE = 1 + 2.0**-11  # halfway between two float16 numbers: the split has hi = 1
LOSSY = 1 + 2.0**-11 - 3 * 2.0**-23  # hi = 1, and lo loses all that it can, in the same direction


@dataclass(frozen=True)
class Order:
    """An order of summation: its name in helpers.reference, and how the library is asked for it."""

    summed: str
    algorithm: str
    dtype: torch.dtype = torch.float32
    options: dict = field(default_factory=dict)

    @property
    def chunk(self) -> int:
        return registry.orders()[self.summed].chunk

    @property
    def is_guarded(self) -> bool:
        return registry.orders()[self.summed].is_guarded


FLOAT32_SUMS = {"out_dtype": torch.float32}
ORDERS = {
    "ieee": Order("chunked", "tiled", options={"precision": "ieee"}),
    "fp16x3": Order("fp16x3", "fp16x3"),
    "tf32": Order("tf32", "tf32", options={"precision": "tf32"}),
    "mma_fp16": Order("mma", "mma", torch.float16, FLOAT32_SUMS),
    "mma_bf16": Order("mma", "mma", torch.bfloat16, FLOAT32_SUMS),
}


def mantissa_bits(dtype):
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def random_integers(low, high, shape, generator):
    return torch.randint(low, high, shape, generator=generator)


def random_signs(k, generator):
    return 1.0 - 2.0 * random_integers(0, 2, (k,), generator)


# --- starts --------------------------------------------------------------------------------------


def lose_together(exponents, length):
    """Sets the exponents of products whose sum, for each so many, is lost beside 1."""
    for part in exponents.split(length):
        part[:] = -24 - math.ceil(math.log2(len(part)))


def lost_exponents(order, k, cuts_sums):
    """The exponents of products that are lost where they are added to a sum of 1.

    FMAs lose products of 2^-24, halfway to the next number. Tensor cores lose products just below
    2^-25; where `cuts_sums`, one in every 16 is four times as large, and their sum is truncated as
    well. Parts and chunks are lost as a whole.
    """
    exponents = torch.empty(k, dtype=torch.int64)
    lose_together(exponents, order.chunk)
    first = exponents[: order.chunk]
    if order.summed == "chunked":
        first[:] = -24
        return exponents
    if order.summed == "fp16x3":
        lose_together(first, reference.promotion(k))
        first = first[: reference.promotion(k)]
    first[:] = -25
    if cuts_sums:
        first[::16] = -23
        first[1:2] = -23
    return exponents


def lost(order, k, cuts_sums):
    """A row and a column whose products have these exponents, times 2^20."""
    exponents = lost_exponents(order, k, cuts_sums) + 20
    bits = min(FP16_BITS, mantissa_bits(order.dtype))
    below = 1.0 if order.summed == "chunked" else 1 - 2.0**-bits
    halved = exponents // 2
    return below * 2.0 ** halved.double(), below * 2.0 ** (exponents - halved).double()


def lost_beside(factor, order, k, generator):
    """One large product, of this factor with itself, beside which all others are lost."""
    a, b = lost(order, k, cuts_sums=True)
    a[0] = b[0] = factor * 2.0**10
    return a, b


def lost_upward(order, k, generator):
    """One large product beside which all others, negative, are lost, so that the result is too
    large. The split's losses go there, too, and so does what fp16x3 gives back."""
    a, b = lost(order, k, cuts_sums=False)
    a = -a
    a[0], b[0] = (1 + 2.0**-11 - 2.0**-23) * 2.0**10, (1 + 2.0**-11 + 3 * 2.0**-23) * 2.0**10
    if order.summed == "fp16x3":
        a[1], b[1] = 2.0**-1, 2.0**-2  # one unit in the last place, without which nothing is given
    return a, b


def at_the_guard(order, k, generator):
    """A sum of 32 for each of four small numbers, in scaled units, and nothing else that is large:
    the largest number of the row meets a zero, and those of the column meet the small ones, which
    lose as much as such numbers can."""
    is_split = order.summed == "fp16x3"
    a, b = lost_beside(LOSSY if is_split else TIE, order, k, generator)
    last = min(k, order.chunk)
    a[last - 5], b[last - 5] = 2.0**20, 0
    a[last - 4 : last] = 2.0**-19 - (3 * 2.0**-30 if is_split else 0)  # hi is 0
    b[last - 4 : last] = (2 - 2.0**-11 - 3 * 2.0**-23) * 2.0**21
    return a, b


def beside_a_coarse_row(order, k, generator):
    """A row of eight bits, and a column with one large number beside which all others are lost."""
    exponents = lost_exponents(order, k, cuts_sums=True) + 20
    a = torch.full((k,), 2 - 2.0**-7, dtype=torch.float64)
    b = (1 - 2.0**-FP16_BITS) * 2.0 ** exponents.double()
    b[0] = LOSSY * 2.0**20
    return a, b


def near_powers_of_two(ulps, order, k, generator):
    """Powers of two, off by so many units in the last place."""
    near = 1 + ulps * torch.finfo(order.dtype).eps
    a, b = (near * 2.0 ** random_integers(-3, 4, (k,), generator).double() for _ in range(2))
    return a, b


def one_number(mantissa, order, k, generator):
    """The same number everywhere, or the largest below 2 that the dtype has."""
    number = mantissa or 2 - torch.finfo(order.dtype).eps
    return (torch.full((k,), number, dtype=torch.float64),) * 2


def cancelling(order, k, generator):
    """Each product is followed by its negative, nearly."""
    a = torch.rand(k, generator=generator, dtype=torch.float64) + 1
    a[1::2] = a[0 : k - 1 : 2]
    b = torch.ones(k, dtype=torch.float64)
    b[1::2] = -1 + 2.0**-7
    return a, b


def large_at_edges(order, k, generator):
    """Large numbers first and last in a promotion or a chunk, and small ones elsewhere."""
    a, b = (2.0**-7 * torch.rand(k, generator=generator, dtype=torch.float64) for _ in range(2))
    edges = 2 ** int(random_integers(4, 11, (), generator))
    a[::edges] = b[::edges] = LOSSY
    a[edges - 1 :: edges] = b[edges - 1 :: edges] = LOSSY
    return a, b


def subnormal(order, k, generator):
    """The smallest numbers, times numbers such that products are halfway between subnormal ones."""
    smallest = reference.SMALLEST[order.dtype]
    a = smallest * random_integers(1, 4, (k,), generator).double()
    return a, torch.full((k,), 0.5 if order.dtype == torch.float32 else 2.0**-7).double()


def clamped_scale(order, k, generator):
    """Magnitudes from about 2^-113, below which scales are clamped to 2^127, down to 2^-143."""
    tiny = torch.finfo(order.dtype).smallest_normal
    a = tiny * 2.0 ** random_integers(-16, 14, (k,), generator).double()
    return a * random_signs(k, generator), torch.full((k,), tiny**-0.5, dtype=torch.float64)


def drawn(sample, order, k, generator):
    return tuple(sample(k, generator=generator, dtype=torch.float64) for _ in range(2))


STARTS = {
    "lost beside 1": partial(lost_beside, 1.0),
    "lost beside a tie": partial(lost_beside, TIE),
    "lost beside a lossy split": partial(lost_beside, LOSSY),
    "lost upward": lost_upward,
    "at the guard": at_the_guard,
    "beside a coarse row": beside_a_coarse_row,
    "just above powers of two": partial(near_powers_of_two, 1),
    "just below powers of two": partial(near_powers_of_two, -0.5),
    "mantissas of ones": partial(one_number, None),
    "ties": partial(one_number, TIE),
    "lossy splits": partial(one_number, LOSSY),
    "cancelling": cancelling,
    "large at edges": large_at_edges,
    "subnormal": subnormal,
    "clamped scale": clamped_scale,
    "normal": partial(drawn, torch.randn),
    "uniform(0, 1)": partial(drawn, torch.rand),
}


def names_of_starts(order):
    return [name for name in STARTS if order.is_guarded or name != "at the guard"]


def start(name, order, k, generator):
    """The row and the column of a start in the order's dtype; zeros for what it cannot hold."""
    pair = (x.to(order.dtype) for x in STARTS[name](order, k, generator))
    return tuple(torch.where(x.isfinite(), x, 0) for x in pair)


# --- mutations -----------------------------------------------------------------------------------


def nudged(rows, generator):
    """A few units in the last place more or less."""
    bits = rows.view(torch.int16 if rows.element_size() == 2 else torch.int32)
    by = random_integers(-4, 5, rows.shape, generator)
    return (bits + by.to(bits.dtype)).view(rows.dtype)


def scaled(rows, generator):
    """A power of two for each row, times its numbers."""
    by = random_integers(-3, 4, (len(rows), 1), generator)
    return (rows.double() * 2.0 ** by.double()).to(rows.dtype)


def moved(rows, generator):
    """The numbers at other places of K."""
    return rows[:, torch.randperm(rows.shape[1], generator=generator)]


def with_mantissas(rows, generator):
    """One of the mantissas at which roundings are extreme, for each row."""
    eps = torch.finfo(rows.dtype).eps
    extreme = torch.tensor(
        [1, 1 + eps, 2 - eps, 2 - 2.0**-10, TIE, LOSSY, 1.5], dtype=torch.float64
    )
    chosen = extreme[random_integers(0, len(extreme), (len(rows), 1), generator)]
    exponents = torch.frexp(rows.double())[1] - 1
    magnitudes = (chosen * 2.0 ** exponents.double()).to(rows.dtype)
    return torch.where(rows == 0, rows, magnitudes.copysign(rows))


MUTATIONS = (
    nudged,
    scaled,
    lambda rows, _: -rows,
    moved,
    lambda rows, _: torch.zeros_like(rows),
    with_mantissas,
)


def places(count, k, generator):
    """Which numbers of each row to mutate: a share of a range of K, from one number to all."""
    length, share = (2.0 ** -(math.log2(k) * _rand((count, 1), generator)) for _ in range(2))
    length = (length * k).ceil()
    first = (_rand((count, 1), generator) * (k - length + 1)).floor()
    at = torch.arange(k)
    inside = (at >= first) & (at < first + length)
    return inside & ((_rand((count, k), generator) < share) | (at == first))


def _rand(shape, generator):
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def variants(row, count, generator):
    """A row as it is, followed by mutations of it, all finite."""
    rows = row.repeat(count, 1)
    mutated = rows.clone()
    for i, mutation in enumerate(MUTATIONS):
        each = slice(1 + i, None, len(MUTATIONS))
        mutated[each] = mutation(rows[each], generator)
    changed = places(count, len(row), generator) & mutated.isfinite()
    changed[0] = False
    return torch.where(changed, mutated, rows)
