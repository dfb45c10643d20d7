"""Random problems by hypothesis: settings, shapes and layouts."""

import math
import os

import torch
from helpers.thinning import fewer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SIZES = st.sampled_from([0, 1, 2, 3, 16, 17, 33, 65])


def random_problems(all_of_them, by_default):
    """Settings for so many random problems, fewer unless pytest is called with --all. Each run
    draws new ones, except in continuous integration."""
    return settings(
        max_examples=fewer(all_of_them, by_default),
        deadline=None,
        database=None,
        derandomize="CI" in os.environ,
        # The device is the same for all examples of a test.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@st.composite
def shapes(draw, k=None, most_batches=3):
    """Shapes of a and b that torch.matmul takes, with batches that broadcast."""
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES) if k is None else k
    batch = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=most_batches))
    matrices = []
    for matrix in ((m, k), (k, n)):
        own = batch[draw(st.integers(0, len(batch))) :]
        own = [1 if draw(st.integers(0, 3)) == 0 else size for size in own]
        matrices.append((*own, *matrix))
    a, b = matrices
    if len(a) == 2 and draw(st.integers(0, 4)) == 0:
        a = (k,)
    if len(b) == 2 and draw(st.integers(0, 4)) == 0:
        b = (k,)
    return a, b


@st.composite
def layouts(draw, shape, may_share=True):
    """A function that stores values of that shape in a random layout, with NaN between them.

    Dimensions are in any order, strided by 1 to 3 elements, and have gaps around them; the offset
    may be misaligned. With may_share some dimensions have stride 0.
    """
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, 3])] * rank))
    before = draw(st.tuples(*[st.sampled_from([0, 0, 1, 3])] * rank))
    offset = draw(st.sampled_from([0, 0, 1, 2, 3]))
    chance = st.integers(0, 4) if may_share else st.just(1)
    shared = draw(st.tuples(*[chance.map(lambda x: x == 0)] * rank))

    def lay(values):
        values = values[tuple(slice(0, 1) if s else slice(None) for s in shared)]
        sizes = [b + n * s for b, n, s in zip(before, values.shape, steps, strict=True)]
        memory = values.new_full((offset + math.prod(sizes),), torch.nan)
        whole = memory[offset:].view([sizes[d] for d in order])
        whole = whole.permute([order.index(d) for d in range(rank)])
        slices = zip(before, steps, strict=True)
        view = whole[tuple(slice(b, None, s) for b, s in slices)]
        view.copy_(values)
        return view.expand(shape)

    return lay
