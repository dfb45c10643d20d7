"""A product to measure, and a suite of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

LAYOUTS = ("NN", "NT", "TN", "TT")
IN_PRECISIONS = ("float32", "complex64")  # the dtypes for which the op reads `precision`


@dataclass(frozen=True)
class Way:
    """How a product is measured: its dtype, its precision, and the algorithm."""

    dtype: str = "float32"
    precision: str = "fp32"
    algorithm: str = "auto"


@dataclass(frozen=True)
class Shape:
    """One product: `batch` times (m, k) @ (k, n).

    The layout has a letter for each operand: N is stored row by row, T is stored transposed. So
    "NT" is the forward product of a linear layer, whose weight is stored (n, k).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NN"
    what: str = ""
    group: str = ""  # the shapes of a group have a mean of their own
    every_kernel: bool = False  # on CUDA all of torch_tiled.algorithms() run here, beside `auto`
    kernels: tuple[str, ...] = ()  # on CUDA these run here by name, beside `auto`
    energy: bool = False  # the product is long enough to count the energy it takes
    ways: tuple[Way, ...] = ()  # alone run here, where no dtype and no precision is asked for

    def stored(self, make: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Both operands in the shape's layout; `make` returns a tensor of the sizes it is given."""
        batch = (self.batch,) if self.batch > 1 else ()

        def operand(rows: int, columns: int, letter: str) -> torch.Tensor:
            if letter == "N":
                return make(*batch, rows, columns)
            return make(*batch, columns, rows).mT

        a, b = self.layout
        return operand(self.m, self.k, a), operand(self.k, self.n, b)

    @property
    def operands(self) -> int:
        """The elements of both operands."""
        return self.batch * (self.m + self.n) * self.k

    @property
    def elements(self) -> int:
        """The elements of the operands and of the result."""
        return self.operands + self.batch * self.m * self.n

    @property
    def flops(self) -> int:
        """The operations of a real product."""
        return 2 * self.batch * self.m * self.n * self.k

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """The shape that "MxNxK" or "BATCHxMxNxK" says. Raises ValueError for anything else."""
        *batch, m, n, k = (int(size) for size in text.split("x"))
        if len(batch) > 1 or not 1 <= min(*batch, m, n, k) <= max(*batch, m, n, k) < 2**63:
            raise ValueError(text)
        return cls(m, n, k, *batch)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.layout}"


@dataclass(frozen=True)
class Suite:
    description: str
    shapes: tuple[Shape, ...]
    variants: tuple[str, ...] = ("plain",)  # names in variants.py
    precisions: tuple[str, ...] = ("fp32",)  # of float32 and complex64, where none is asked for
    dtypes: tuple[str, ...] = ("float32",)  # where none is asked for
    copy: bool = False  # a copy of as many bytes is timed beside each product
    summary: bool = False  # the rows are printed as one short table, without means
