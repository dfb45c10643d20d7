"""The kinds of products on tensor cores, with their specifications: fp16x3, tf32 and mma."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from helpers import mma, operands, specification
from helpers.reference import assert_same
from helpers.thinning import thinned

import torch_tiled
from torch_tiled._op.registry import kernels

FP16X3_KERNELS = tuple(x.name for x in kernels().values() if x.order == "fp16x3")


def assert_has_bits_of_wgmma(algorithm, a, b, like=None):
    """In C's own layout, or in that of `like`. C's memory is poisoned before."""
    expected = torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma")
    out = torch.full_like(expected if like is None else like, torch.nan)
    for _ in range(2):  # a race may show in one call only
        assert_same(torch_tiled.matmul(a, b, algorithm=algorithm, out=out), expected)


def with_flagged_elements(with_flags, m, k, n):
    """Normal numbers with small ones and an Inf beside them, which flag some elements."""
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[m // 2, ::2], b[1::2, n // 2 :] = 0, 0
    a[m // 2, 4] = 1e-12
    a[-1, -1] = torch.inf
    assert 0 < with_flags(a, b)[1].sum() < m * n
    return a, b


def with_an_inf(dtype, m, k, n):
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    a[-1, -1] = torch.inf
    return a, b


@dataclass(frozen=True, eq=False)
class Kind:
    """Products of a dtype in an order.

    Attributes:
        specified: the specification, a function of a and b with a float32 result.
        operands: functions of m, k and n by name.
        with_last_row_infinite: such a function; some elements are flagged, where any can be.
        with_flags: the sums before anything is recomputed, and which elements are flagged.
    """

    order: str
    dtype: torch.dtype
    specified: Callable
    operands: dict
    with_last_row_infinite: Callable
    with_flags: Callable | None = None

    @property
    def name(self):
        return self.order if self.dtype == torch.float32 else str(self.dtype)[6:]

    @property
    def ways(self):
        """The options that select it."""
        return {"algorithm": self.order} | ({"precision": "tf32"} if self.order == "tf32" else {})

    @property
    def algorithms(self):
        """The kernels of the order, and the name for the fastest of them."""
        return (*(x.name for x in kernels().values() if x.order == self.order), self.order)

    def randn(self, *shape):
        return torch.randn(shape).to(self.dtype)

    def multiply(self, a, b, device, **options):
        """Multiplies on a device, and returns the product in float32 on the host. On a GPU it
        asserts that all kernels and `auto` have the same bits, in memory that was NaN."""
        options = {"out_dtype": torch.float32} | options
        a, b = a.to(device), b.to(device)
        result = torch_tiled.matmul(a, b, **self.ways | options)
        if device == "cuda":
            for algorithm in (*self.algorithms, "auto"):
                self._assert_has_bits(result, algorithm, a, b, options)
            if self.order == "fp16x3" and a.dim() > 1 and b.dim() > 1:
                # fp16x3_cluster copies K-major rows in bulk, and others by elements.
                for x, y in (
                    (a.contiguous(), operands.in_layout(b, "T")),
                    (operands.in_layout(a, "T"), b.contiguous()),
                ):
                    self._assert_has_bits(result, "fp16x3_cluster", x, y, options)
        return result.cpu()

    def check(self, a, b, device):
        """Asserts the bits of the specification, in float32 and in the operands' dtype."""
        expected = self.specified(a, b)
        for dtype in dict.fromkeys((torch.float32, self.dtype)):
            assert_same(self.multiply(a, b, device, out_dtype=dtype), expected.to(dtype))

    def compare(self, a, b):
        """Asserts that the kernels of a GPU have the bits of the host's."""
        host = torch_tiled.matmul(a, b, **self.ways, out_dtype=torch.float32).cuda()
        for algorithm in (*self.algorithms, "auto"):
            for _ in range(3):  # a race may show in one call only
                self._assert_has_bits(host, algorithm, a.cuda(), b.cuda(), {})

    def _assert_has_bits(self, expected, algorithm, a, b, options):
        out = torch.full_like(expected, torch.nan)
        ways = self.ways | options | {"algorithm": algorithm}
        assert_same(torch_tiled.matmul(a, b, out=out, **ways), expected)


def _of_float32(order, specified, with_flags):
    return Kind(
        order,
        torch.float32,
        specified,
        operands.OVERFLOWING | {"not finite": operands.non_finite},
        functools.partial(with_flagged_elements, with_flags),
        with_flags,
    )


FP16X3 = _of_float32("fp16x3", specification.fp16x3_product, specification.fp16x3_with_flags)
TF32 = _of_float32("tf32", specification.tf32_product, specification.tf32_with_flags)
MMA = tuple(
    Kind(
        "mma",
        dtype,
        specification.mma_product,
        {name: functools.partial(make, dtype=dtype) for name, make in mma.OPERANDS.items()},
        functools.partial(with_an_inf, dtype),
    )
    for dtype in (torch.float16, torch.bfloat16)
)


def for_kinds(names, *, pairwise=False, **values):
    """Parametrizes a test by `kind` and by others, which have values of their own for each order.
    With `pairwise`, pytest without --all leaves out as many as helpers.thinning.pairwise does."""
    rows = []
    for order, of_order in values.items():
        each = [x if "," in names else (x,) for x in of_order]
        kinds = [kind for kind in (FP16X3, TF32, *MMA) if kind.order == order]
        found = [(kind, *x) for kind in kinds for x in each]
        rows += thinned(found) if pairwise else found
    ids = ["-".join((kind.name, *map(str, rest))) for kind, *rest in rows]
    return pytest.mark.parametrize(f"kind, {names}", rows, ids=ids)


each_kind = pytest.mark.parametrize("kind", [FP16X3, TF32, *MMA], ids=lambda kind: kind.name)
each_guarded_kind = pytest.mark.parametrize("kind", [FP16X3, TF32], ids=["fp16x3", "tf32"])
