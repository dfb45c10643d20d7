"""Random products: those of sides of every size, and those of layers.

The products of a seed are one endless sequence, so a longer survey begins with the products of a
shorter one. They depend on neither dtype nor precision.
"""

import math
import random
from collections.abc import Iterator

import torch

from benchmarks.gemm.measure import Operands
from benchmarks.suites.shapes import LAYOUTS, Shape

MOST_FMAS = 6e10  # of a product
LEAST_FMAS = 1e5  # every limit on FMAs is at least this, which products of both kinds keep
MOST_ELEMENTS, MOST_MODEL_ELEMENTS = 2 * 10**8, 6 * 10**8  # a vocabulary's weight is large
LEAST_K = 8
DOUBLINGS = 13.5  # a side is 1 to 2 to this power
BATCHES = (1, 1, 1, 2, 8, 32, 96, 384)
ALIGNED = 128  # elements, at multiples of which operands begin

# The sides of layers are drawn from these.
MOST_ROWS = 16384
TOKENS = (16, 64, 77, 128, 197, 256, 512, 577, 1024, 2048, 4096)  # of a sequence
VOCABULARIES = (30522, 32000, 50257, 128256, 151936)
VOCABULARY_SHARE = 1 / 8  # of the layers: those that end in a vocabulary
HEADS = (64, 80, 128)
HEAD_BATCHES = (8, 12, 16, 32, 64, 96, 384)  # sequences times heads


def products(seed: int, most: float = MOST_FMAS, *, model: bool = False) -> Iterator[Shape]:
    """Yields the products of a seed that need at most `most` FMAs, without an end."""
    choose = random.Random(seed)
    draw = layer_product if model else any_product
    elements = MOST_MODEL_ELEMENTS if model else MOST_ELEMENTS
    while True:
        shape = draw(choose)
        if shape.k >= LEAST_K and shape.flops <= 2 * most and shape.elements <= elements:
            yield shape


def any_product(choose: random.Random) -> Shape:
    """A product of any sides, layout and batch."""
    m, n, k = (side(choose) for _ in range(3))
    return Shape(m, n, k, batch=choose.choice(BATCHES), layout=choose.choice(LAYOUTS))


def side(choose: random.Random) -> int:
    """A log-uniform number; some are divided by 8, and a third are multiples of 8."""
    size = round(2 ** choose.uniform(0, DOUBLINGS))
    return max(1, size // choose.choice((1, 1, 1, 8)) * choose.choice((1, 1, 8)))


def layer_product(choose: random.Random) -> Shape:
    """A product of a linear layer, of its gradients, or of attention."""
    kind = choose.choice(("forward", "input gradient", "weight gradient", "scores", "values"))
    if kind in ("scores", "values"):
        keys, head, batch = (choose.choice(sizes) for sizes in (TOKENS, HEADS, HEAD_BATCHES))
        queries = choose.choice((1, keys, keys))  # one query: a model that generates
        if kind == "scores":
            return Shape(queries, keys, head, batch=batch, layout="NT", what=kind)
        return Shape(queries, head, keys, batch=batch, layout="NN", what=kind)
    rows, width = rows_of_layer(choose), width_of_layer(choose)
    ends = choose.random() < VOCABULARY_SHARE
    outputs = choose.choice(VOCABULARIES) if ends else width_of_layer(choose)
    if kind == "forward":
        return Shape(rows, outputs, width, layout="NT", what=kind)
    if kind == "input gradient":
        return Shape(rows, width, outputs, layout="NN", what=kind)
    return Shape(outputs, width, rows, layout="TN", what=kind)


def rows_of_layer(choose: random.Random) -> int:
    """Sequences times tokens, or any number of packed tokens, or sequences with a token each."""
    packed = round(2 ** choose.uniform(0, 14))
    sequences = 2 ** choose.randrange(8)
    padded = min(MOST_ROWS, sequences * choose.choice(TOKENS))
    return choose.choice((packed, padded, sequences))


def width_of_layer(choose: random.Random) -> int:
    """A multiple of 64, or in a quarter of the layers one of 8."""
    step = choose.choice((8, 64, 64, 64))
    return max(step, round(2 ** choose.uniform(4, 14)) // step * step)


def pool(seed: int, most: float, model: bool, dtype: torch.dtype, device: torch.device):
    """Random normal numbers, as many as the operands of every product of `products` need."""
    numbers = min(MOST_MODEL_ELEMENTS if model else MOST_ELEMENTS, 2 * int(most)) + ALIGNED
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(numbers, dtype=dtype, device=device).normal_(generator=generator)


def views(numbers: torch.Tensor, shape: Shape) -> Operands:
    """Both operands as views of the pool, in the shape's layout and batch."""
    at = 0

    def take(*size: int) -> torch.Tensor:
        nonlocal at
        count = math.prod(size)
        piece = numbers[at : at + count].view(size)
        at += -(-count // ALIGNED) * ALIGNED
        return piece

    return shape.stored(take)
