"""The bits of attention's gradients: the specification's on a CPU, and the CPU's on a GPU."""

import pytest
import torch
from helpers import attention_specification as specification
from helpers.attention import (
    INF,
    NAN,
    draw,
    mask_of_many_values,
    operator,
    ours,
    replace_elements,
    to,
)
from helpers.attention import MASKS as SHARED_MASKS
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import assert_same
from helpers.strategies import layouts, random_problems
from helpers.thinning import pairwise
from hypothesis import given
from hypothesis import strategies as st

from torch_tiled._op.namespace import operators

ALL = True, True, True, True


def backward(device, grad, q, k, v, mask, forward, offset, scale, needed=ALL):
    """The gradients of q, k and v; and that of the scores, if there is a float mask."""
    tensors = to(device, grad, q, k, v, mask, *forward)
    *needed, needs_scores = needed
    needs_scores = needs_scores and mask is not None and mask.dtype == torch.float32
    found = operators._attention_backward.default(*tensors, offset, scale, *needed, needs_scores)
    return found if needs_scores else found[:3]


def check(device, q, k, v, mask=None, offset=None, scale=None, grad=None):
    """Asserts the specification's bits on the CPU, and the CPU's on a GPU."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    grad = torch.randn(*q.shape[:3], v.shape[3]) if grad is None else grad
    forward = operator(q, k, v, mask, offset, scale)
    given = grad, q, k, v, mask
    if device == "cpu":
        expected = specification.gradients(*given, *forward, offset, scale)
    else:
        expected = backward("cpu", *given, forward, offset, scale)
    found = backward(device, *given, forward, offset, scale)
    for x, y in zip(found, expected, strict=False):
        assert_same(x.cpu(), y)
    return found


MASKS = SHARED_MASKS | {
    "bias of keys": lambda s, t: (torch.randn(t).where(torch.rand(t) < 0.8, -INF), None),
    "float, lower right": lambda s, t: (torch.randn(2, 2, s, t), t - s),
    "after the last query": lambda s, t: (None, -s),
}


@pairwise
@pytest.mark.parametrize("columns", [1, 16, 17, 64, 80, 128])
@pytest.mark.parametrize("value_columns", [1, 64, 72, 128])
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("queries", [1, 5, 64, 129])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_sizes(device, poisoned, columns, value_columns, keys, queries, mask, kv_heads):
    q, k, v = draw(2, 2, kv_heads, queries, keys, columns, value_columns)
    check(device, q, k, v, *MASKS[mask](queries, keys))


@pytest.mark.parametrize("columns, value_columns", [(130, 3), (33, 300), (0, 4), (5, 0)])
def test_columns_that_only_a_cpu_takes(columns, value_columns):
    check("cpu", *draw(1, 2, 1, 5, 70, columns, value_columns), scale=0.3)


def scaled(q=1.0, k=1.0, v=1.0, grad=1.0):
    """Normal operands times these numbers."""

    def make():
        *tensors, of_result = *draw(1, 2, 1, 70, 100, 16), torch.randn(1, 2, 70, 16)
        return [x * by for x, by in zip((*tensors, of_result), (q, k, v, grad), strict=True)]

    return make


def with_elements(**elements):
    """Normal operands with some elements replaced: q={(row, column): value}."""

    def make():
        return replace_elements(scaled()(), ("q", "k", "v", "grad"), elements)

    return make


def with_rows():
    """Rows of very different sizes, and rows of zeros."""
    tensors = scaled()()
    for x in tensors:
        x *= 10.0 ** torch.randint(-12, 12, (*x.shape[:3], 1))
        x[:, :, 5:70:7] = 0
    return tensors


VALUES = {
    "large logits": scaled(q=1e2, k=1e2),
    "logits without a fraction": scaled(q=1e15, k=1e15),
    "large values": scaled(v=1e15, grad=1e15),
    "products that overflow": scaled(v=1e20, grad=1e20),
    "small values": scaled(v=1e-20, grad=1e-20),
    "large gradients": scaled(grad=1e30),
    "large keys": scaled(k=1e25, q=1e-25),
    "large queries": scaled(k=1e-25, q=1e25),
    "subnormal": scaled(q=1e-40, k=1e-40, v=1e-42, grad=1e-39),
    "queries of zeros": scaled(q=0),
    "keys of zeros": scaled(k=0),
    "values of zeros": scaled(v=0),
    "gradients of zeros": scaled(grad=0),
    "rows of many sizes": with_rows,
    "NaN and Inf": with_elements(q={(2, 3): NAN}, v={(70, 3): NAN}),
    "Inf": with_elements(q={(3, 4): INF}, grad={(66, 4): -INF}),
    "a key of Inf": with_elements(k={(80, 0): INF}),
    "large elements": with_elements(q={(0, 0): 3e38}, k={(0, 1): 3e38}, grad={(0, 2): -3e38}),
}


@pairwise
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("scale", [None, -0.3, 0.0, 1e20])
@pytest.mark.parametrize("mask", ["none", "bool", "bias of keys"])
def test_values(device, values, scale, mask):
    q, k, v, grad = VALUES[values]()
    check(device, q, k, v, *MASKS[mask](70, 100), scale, grad)


def test_values_of_masks(device):
    mask = mask_of_many_values(100)
    check(device, *draw(1, 1, 1, 9, 100, 16), mask)


NEEDED = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 1, 1, 1), (0, 0, 0, 0)]


@pytest.mark.parametrize("needed", NEEDED)
@pytest.mark.parametrize("columns, keys", [(16, 130), (80, 130), (16, 60), (80, 60)])
def test_gradients_alone(device, poisoned, needed, columns, keys):
    q, k, v = draw(1, 4, 2, 60, keys, columns)
    given = torch.randn_like(q), q, k, v, torch.randn(60, keys)
    forward = operator(*given[1:], 0, 0.3)
    expected = backward(device, *given, forward, 0, 0.3)
    needed = [bool(x) for x in needed]
    alone = backward(device, *given, forward, 0, 0.3, needed)
    for x, y, need in zip(alone, expected, needed, strict=False):
        assert torch.equal(x, y) if need else x.shape == (0,)


@pytest.mark.parametrize("sizes", [(1, 2, 2, 0, 5, 8), (1, 2, 1, 4, 0, 8), (0, 2, 1, 4, 5, 8)])
def test_no_queries_or_keys(device, sizes):
    found = check(device, *draw(*sizes))
    assert not any(x.any() for x in found)


@st.composite
def problems(draw_one):
    """Shapes, layouts and a mask."""
    sizes = st.sampled_from([1, 2, 3, 17])
    batch, kv_heads, group = (draw_one(st.integers(1, 2)) for _ in range(3))
    queries, columns, value_columns = (draw_one(sizes) for _ in range(3))
    keys, heads = draw_one(st.sampled_from([1, 2, 17, 65])), kv_heads * group
    of_result = batch, heads, queries, value_columns
    shapes = (
        of_result,
        (batch, heads, queries, columns),
        (batch, kv_heads, keys, columns),
        (batch, kv_heads, keys, value_columns),
        tuple(x if draw_one(st.booleans()) else 1 for x in (batch, heads, queries, keys)),
        of_result,
    )
    kind = draw_one(st.sampled_from(["none", "bool", "float"]))
    offset = draw_one(st.none() | st.integers(-3, 70))
    return shapes, [draw_one(layouts(shape)) for shape in shapes], kind, offset


@given(problem=problems(), seed=st.integers(0, 2**20))
@random_problems(200, 40)
def test_layouts(device, problem, seed):
    """Any strides, with NaN between the elements, have the bits of contiguous tensors: the results
    and the gradients."""
    shapes, lays, kind, offset = problem
    torch.manual_seed(seed)
    *tensors, out = (lay(torch.randn(x)) for x, lay in zip(shapes, lays, strict=True))
    if kind == "none":
        tensors[4] = None
    elif kind == "bool":
        tensors[4] = tensors[4].new_zeros(shapes[4]).bernoulli_().bool().mT.contiguous().mT
    contiguous = [None if x is None else x.contiguous() for x in tensors]
    results = _, *sums = operator(*contiguous[1:], offset, 0.3)
    expected = *results, *backward("cpu", *contiguous, (out.contiguous(), *sums), offset, 0.3)
    results = operator(*to(device, *tensors[1:]), offset, 0.3)
    found = *results, *backward(device, *tensors, (out, *sums), offset, 0.3)  # out may be any
    for x, y in zip(found, expected, strict=True):
        assert_same(x.cpu(), y)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
def test_autograd_has_these_bits(device, options):
    inputs = [x.requires_grad_() for x in to(device, *draw(2, 4, 2, 70, 90, 48))]
    grad = torch.randn_like(inputs[0])
    found = torch.autograd.grad(ours(*inputs, enable_gqa=True, **options), inputs, grad)
    given = to("cpu", *(x.detach() for x in inputs)), None, 0 if options else None, 48**-0.5
    forward = operator(*given[0], *given[1:])
    expected = backward("cpu", grad, *given[0], given[1], forward, *given[2:])
    for x, y in zip(found, expected, strict=True):
        assert_same(x.cpu(), y)


@needs_hopper
@pytest.mark.parametrize("queries, keys", [(1, 5000), (300, 300), (1000, 500), (129, 2097)])
@pytest.mark.parametrize("offset", [None, 0])
@pytest.mark.parametrize("columns", [64, 128])
def test_large_on_a_gpu(queries, keys, offset, columns):
    check("cuda", *draw(1, 4, 2, queries, keys, columns), None, offset)
