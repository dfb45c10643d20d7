"""Random products of any ranks, sizes, strides, dtypes and kernels, by hypothesis."""

import itertools

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

import torch_tiled

hypothesis = pytest.importorskip("hypothesis", reason="random problems need hypothesis")

from helpers.strategies import SIZES, layouts, random_problems, shapes  # noqa: E402
from hypothesis import assume, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def every_algorithm_and(*counts):
    """Parametrizes a test by algorithm, each with so many random problems."""

    def decorate(test):
        return every_algorithm(random_problems(*counts)(given(data=st.data())(test)))

    return decorate


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


@every_algorithm_and(100, 25)
def test_product(device, algorithm, data):
    a, b = draw_operands(data, algorithm, device)
    c = torch_tiled.matmul(a, b, algorithm=algorithm)
    assert c.is_contiguous() and c.dtype == a.dtype
    assert_within(c, product(a, b), bound(a, b, algorithm=algorithm))
    if is_ours(algorithm, device):
        a, b = a.contiguous(), b.contiguous()
        assert torch.equal(c, torch_tiled.matmul(a, b, algorithm=algorithm))


@every_algorithm_and(50, 12)
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


@every_algorithm_and(50, 12)
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


@every_algorithm_and(50, 12)
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


@random_problems(1000, 250)
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
