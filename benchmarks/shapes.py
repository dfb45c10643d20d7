"""The problems the benchmark measures, in suites by name."""

from dataclasses import dataclass


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
    ladder: bool = False  # on CUDA every rung runs here, not `auto` alone

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.layout}"


@dataclass(frozen=True)
class Suite:
    description: str
    shapes: tuple[Shape, ...]


LAYOUTS = ("NN", "NT", "TN", "TT")


def _square() -> tuple[Shape, ...]:
    sizes = (128, 256, 512, 1024, 2048, 4096, 8192)
    return tuple(Shape(size, size, size, ladder=size == 4096) for size in sizes)


def _ragged() -> tuple[Shape, ...]:
    return (
        Shape(127, 129, 131),
        Shape(255, 257, 253),
        Shape(1000, 1000, 1000),
        Shape(1023, 1025, 1027),
        Shape(2047, 2049, 2053),
        Shape(3001, 5003, 1009),
        Shape(4095, 4097, 4093),
        Shape(4097, 4097, 4097),
    )


def _skinny() -> tuple[Shape, ...]:
    few_rows = (1, 2, 4, 8, 16, 32, 64, 128)
    return (
        *(Shape(m, 4096, 4096, layout=layout) for m in few_rows for layout in ("NN", "NT")),
        *(Shape(m, 11008, 11008, layout="NT") for m in (1, 16, 128)),
        Shape(4, 768, 3072, layout="NT", what="router"),
        Shape(16, 256, 7168, layout="NT", what="router"),
        Shape(64, 256, 6144, layout="NT", what="router"),
        Shape(64, 64, 65536, what="long sum"),
        Shape(128, 128, 131072, what="long sum"),
        Shape(8192, 32, 8192, what="few columns"),
        Shape(4096, 4096, 64, what="short sum"),
    )


def _layer(what: str, tokens: int, fan_in: int, fan_out: int, weight: str) -> tuple[Shape, ...]:
    """The three products of a linear layer: forward, and both of its backward.

    `weight` is "T" where the weight is stored (fan_out, fan_in), as torch.nn.Linear does, and "N"
    where it is stored (fan_in, fan_out). The last product has the shape of the stored weight.
    """
    other = "N" if weight == "T" else "T"
    rows, columns = (fan_out, fan_in) if weight == "T" else (fan_in, fan_out)
    return (
        Shape(tokens, fan_out, fan_in, layout="N" + weight, what=f"{what}, forward"),
        Shape(tokens, fan_in, fan_out, layout="N" + other, what=f"{what}, input's gradient"),
        Shape(rows, columns, tokens, layout="TN", what=f"{what}, weight's gradient"),
    )


def _transformer() -> tuple[Shape, ...]:
    layers = (
        ("Llama-3-8B query, output", 2048, 4096, 4096, "T"),
        ("Llama-3-8B key, value", 2048, 4096, 1024, "T"),
        ("Llama-3-8B gate, up", 2048, 4096, 14336, "T"),
        ("Llama-3-8B down", 2048, 14336, 4096, "T"),
        ("Llama-3-8B logits", 2048, 4096, 128256, "T"),
        ("GPT-2 query, key, value", 1024, 768, 2304, "N"),
        ("GPT-2 output", 1024, 768, 768, "N"),
        ("GPT-2 up", 1024, 768, 3072, "N"),
        ("GPT-2 down", 1024, 3072, 768, "N"),
        ("GPT-2 logits", 1024, 768, 50257, "T"),
        ("BERT query, key, value, output", 4096, 768, 768, "T"),
        ("BERT up", 4096, 768, 3072, "T"),
        ("BERT down", 4096, 3072, 768, "T"),
    )
    return tuple(shape for layer in layers for shape in _layer(*layer))


def _batched() -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, batch=10_000) for size in (8, 16, 32, 64)),
        Shape(128, 128, 64, batch=384, layout="NT", what="BERT attention scores"),
        Shape(128, 64, 128, batch=384, what="BERT attention values"),
        Shape(2048, 2048, 128, batch=32, layout="NT", what="Llama-3-8B attention scores"),
        Shape(2048, 128, 2048, batch=32, what="Llama-3-8B attention values"),
    )


def _smoke() -> tuple[Shape, ...]:
    return (
        Shape(64, 64, 64),
        Shape(256, 256, 256),
        Shape(256, 256, 256, layout="NT"),
        Shape(256, 256, 256, layout="TN"),
        Shape(127, 129, 131, layout="TT"),
        Shape(1, 1024, 1024, layout="NT"),
        Shape(32, 32, 4096),
        Shape(24, 24, 24, batch=64),
        Shape(512, 512, 512),
    )


SUITES = {
    "smoke": Suite("every rung on small problems: minutes at most on two CPU cores", _smoke()),
    "square": Suite("m = n = k, from 128 to 8192; every rung at 4096", _square()),
    "ragged": Suite("odd sizes, which no tile divides", _ragged()),
    "skinny": Suite("few rows or columns, and sums long or short", _skinny()),
    "transformer": Suite(
        "the layers of Llama-3-8B, GPT-2 and BERT, forward and backward", _transformer()
    ),
    "batched": Suite("many small products, and attention's", _batched()),
}
