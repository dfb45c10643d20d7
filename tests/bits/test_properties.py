"""Random products of any ranks, sizes, strides, dtypes and kernels, by hypothesis."""

import itertools
import math
import os

import pytest
import torch
from helpers.reference import (
    ALGORITHMS,
    REAL,
    accumulation_dtype,
    assert_within,
    bound,
    gemm_bound,
    linear_bound,
    product,
    takes,
)
from helpers.thinning import fewer

import torch_tiled

hypothesis = pytest.importorskip("hypothesis", reason="random problems need hypothesis")

from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZES = st.sampled_from([0, 1, 2, 3, 16, 17, 33, 65])
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def random_problems(max_examples):
    """Settings for random problems, of which pytest without --all tries a quarter. Each run draws
    new ones, except in continuous integration."""
    return settings(
        max_examples=fewer(max_examples, max_examples // 4),
        deadline=None,
        database=None,
        derandomize="CI" in os.environ,
        # The device is the same for all examples of a test.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@st.composite
def shapes(draw):
    """Shapes of a and b that torch.matmul takes, of ranks 1 to 5, with batches that broadcast."""
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3))
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


def random_values(draw, shape, dtype, device, integers=False):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    if integers:
        values = torch.randint(-15, 16, shape, generator=generator)
    else:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(device, dtype)


def draw_dtype(data, algorithm, device):
    taken = [dtype for dtype in REAL if takes(algorithm, dtype, device)]
    return data.draw(st.sampled_from(taken), label="dtype")


def draw_operands(data, algorithm, device, integers=False):
    dtype = draw_dtype(data, algorithm, device)
    operands = []
    for name, shape in zip("ab", data.draw(shapes(), label="shapes"), strict=True):
        lay = data.draw(layouts(shape))
        operands.append(lay(random_values(data.draw, shape, dtype, device, integers)))
        hypothesis.note(f"{name}: {shape}, strides {operands[-1].stride()}")
    return operands


def is_ours(algorithm, device):
    """`auto` on the CPU is PyTorch's own product, whose bits may depend on strides."""
    return algorithm != "auto" or device != "cpu"


def poisoned_output(data, shape, dtype, device):
    """An output full of NaN, and the whole memory that it is a view of."""
    lay = data.draw(layouts(shape, may_share=False))
    out = lay(torch.full(shape, torch.nan, dtype=dtype, device=device))
    memory = torch.as_strided(out, (out.untyped_storage().nbytes() // out.itemsize,), (1,), 0)
    return out, memory


def assert_untouched_around(out, memory):
    """Asserts that all memory outside of `out` is NaN; overwrites `out`."""
    out.fill_(torch.nan)
    assert memory.isnan().all()


@every_algorithm
@random_problems(100)
@given(data=st.data())
def test_product(device, algorithm, data):
    a, b = draw_operands(data, algorithm, device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    assert c.is_contiguous() and c.dtype == a.dtype
    assert_within(c, product(a, b), bound(a, b, algorithm=algorithm))
    if is_ours(algorithm, device):
        a, b = a.contiguous(), b.contiguous()
        assert torch.equal(c, torch_tiled.matmul(a, b, algorithm=algorithm))


@every_algorithm
@random_problems(50)
@given(data=st.data())
def test_product_into_a_slice(device, algorithm, data):
    a, b = draw_operands(data, algorithm, device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    out, memory = poisoned_output(data, c.shape, c.dtype, device)
    assert torch_tiled.matmul(a, b, out=out, algorithm=algorithm) is out
    if is_ours(algorithm, device):
        assert torch.equal(out, c)
    else:
        assert_within(out, product(a, b), bound(a, b))
    assert_untouched_around(out, memory)


@every_algorithm
@random_problems(50)
@given(data=st.data())
def test_gemm(device, algorithm, data):
    a, b = draw_operands(data, algorithm, device)
    assume(a.dim() > 1 and b.dim() > 1)
    alpha, beta = (data.draw(st.sampled_from([0.0, 1.0, -0.75, 3.5])) for _ in range(2))
    more = data.draw(st.sampled_from([(), (2,)]))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*more, *batch, a.shape[-2], b.shape[-1])
    c, memory = poisoned_output(data, shape, a.dtype, device)
    if beta != 0:
        c.copy_(random_values(data.draw, shape, a.dtype, device))
    before = c.clone()
    torch_tiled.gemm_(c, a, b, alpha=alpha, beta=beta, algorithm=algorithm)
    exact = alpha * product(a, b) + (beta * before.double() if beta else 0)
    limit = gemm_bound(before, a, b, alpha, beta, algorithm=algorithm)
    assert_within(c, exact.expand(shape), limit.expand(shape))
    if is_ours(algorithm, device):
        twin = before.contiguous()
        torch_tiled.gemm_(twin, a, b, alpha=alpha, beta=beta, algorithm=algorithm)
        assert torch.equal(c, twin)
    assert_untouched_around(c, memory)


@every_algorithm
@random_problems(50)
@given(data=st.data())
def test_linear(device, algorithm, data):
    dtype = draw_dtype(data, algorithm, device)
    m, n, k = (data.draw(SIZES) for _ in range(3))
    x_shape = data.draw(st.sampled_from([(k,), (m, k), (3, m, k), (2, 1, m, k)]))

    def operand(shape):
        return data.draw(layouts(shape))(random_values(data.draw, shape, dtype, device))

    x, weight = operand(x_shape), operand((n, k))
    bias = operand((n,)) if data.draw(st.booleans()) else None
    exact = product(x, weight.mT) + (0 if bias is None else bias.double())
    limit = linear_bound(x, weight, bias, algorithm=algorithm)
    if not is_ours(algorithm, device):  # PyTorch may round the product before it adds the bias
        limit += bound(x, weight.mT)
    assert_within(torch_tiled.linear(x, weight, bias, algorithm=algorithm), exact, limit)


@every_algorithm
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_more_batch_dimensions_than_a_kernel_unravels(device, algorithm, dtype):
    """Ten dimensions in reverse order of memory, so that no two can be merged."""

    def reversed_in_memory(*shape):
        values = torch.randn(shape[::-1], device=device).to(dtype)
        return values.permute(*range(len(shape))[::-1])

    a = reversed_in_memory(*[2] * 8, 3, 5)
    b = reversed_in_memory(*[1, 2] * 4, 5, 4)
    out = reversed_in_memory(*[2] * 8, 3, 4)
    exact, limit = product(a, b), bound(a, b, algorithm=algorithm)
    assert_within(torch_tiled.matmul(a, b, algorithm=algorithm), exact, limit)
    assert_within(torch_tiled.matmul(a, b, out=out, algorithm=algorithm), exact, limit)


# --- overlap, against all bytes one by one -------------------------------------------------------


def draw_view(draw, memory, shape):
    """A view of memory with small strides, whose elements may coincide and rows interleave."""
    strides = [draw(st.integers(0, 12)) for _ in shape]
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    assume(reach < len(memory))
    return memory.as_strided(shape, strides, draw(st.integers(0, len(memory) - 1 - reach)))


def addresses(view):
    """The addresses of all bytes of all elements. The byte of two elements occurs twice."""
    for index in itertools.product(*map(range, view.shape)):
        start = view[index].data_ptr()
        yield from range(start, start + view.itemsize)


@random_problems(1000)
@given(data=st.data())
def test_output_is_refused_exactly_where_it_shares_bytes(device, data):
    dtype = data.draw(st.sampled_from(REAL))
    out_dtype = data.draw(st.sampled_from([dtype, accumulation_dtype(dtype)]))
    batch, m, n, k = (data.draw(st.integers(1, 3)) for _ in range(4))
    memory = random_values(data.draw, (512 // dtype.itemsize,), dtype, device, integers=True)
    before = memory.clone()
    a = draw_view(data.draw, memory, (batch, m, k))
    b = draw_view(data.draw, memory, (k, n))
    out = draw_view(data.draw, memory.view(out_dtype), (batch, m, n))
    written, a_bytes, b_bytes = list(addresses(out)), set(addresses(a)), set(addresses(b))
    if len(set(written)) < len(written):
        reason = "out has elements that share memory"
    elif not a_bytes.isdisjoint(written):
        reason = "out shares memory with a"
    elif not b_bytes.isdisjoint(written):
        reason = "out shares memory with b"
    else:
        reason = None
    hypothesis.event(str(reason))
    if reason is None:
        exact, kept = product(a, b), (a.clone(), b.clone())
        torch_tiled.matmul(a, b, out=out, algorithm="naive")
        assert torch.equal(out, exact.to(out_dtype))
        assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    else:
        with pytest.raises(RuntimeError, match=f"^tiled::matmul: {reason}"):
            torch_tiled.matmul(a, b, out=out, algorithm="naive")
        assert torch.equal(memory, before)
