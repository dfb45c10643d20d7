"""torch_tiled.override: which out= is written and which refused, as docs/guide/models.md says."""

import pytest
import torch

import torch_tiled

PRODUCTS = {
    "mm": [(4, 4), (4, 4)],
    "bmm": [(4, 4, 4), (4, 4, 4)],
    "mv": [(4, 4), (4,)],
    "matmul": [(4, 4, 4), (4, 4)],
}
SUMS = {
    "addmm": [(4, 4), (4, 4), (4, 4)],
    "baddbmm": [(4, 4, 4)] * 3,
    "addmv": [(4,), (4, 4), (4,)],
    "addbmm": [(4, 4), (4, 4, 4), (4, 4, 4)],
}
CALLS = PRODUCTS | SUMS
APART = {
    "contiguous": lambda shape: torch.empty(shape),
    "transposed": lambda shape: torch.empty(shape[::-1]).permute(*range(len(shape))[::-1]),
    "steps": lambda shape: torch.empty([2 * x for x in shape])[
        (slice(None, None, 2),) * len(shape)
    ],
    "negative view": lambda shape: torch._neg_view(torch.empty(shape)),
}
SHARED = {
    "expanded": lambda shape: torch.empty(()).expand(shape),
    "rows": lambda shape: torch.empty(1, *shape[1:]).expand(shape),
    "overlapping": lambda shape: torch.empty(99).as_strided(shape, [1] * len(shape)),
}


def call(name, tensors, out):
    with torch_tiled.override():
        return getattr(torch, name)(*tensors, out=out)


@pytest.fixture(params=CALLS)
def name(request):
    return request.param


@pytest.fixture
def tensors(name):
    return [torch.randint(-3, 4, shape).float() for shape in CALLS[name]]


@pytest.mark.parametrize("make", APART.values(), ids=APART)
def test_elements_apart(name, tensors, make):
    expected = getattr(torch, name)(*tensors)
    out = make(expected.shape)
    assert call(name, tensors, out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_elements_that_share_memory(name, tensors, make):
    out = make(getattr(torch, name)(*tensors).shape)
    if name in SUMS and make is SHARED["overlapping"] and out.dim() > 1:
        call(name, tensors, out)  # as PyTorch does, which leaves numbers of one element or another
    elif make is SHARED["overlapping"] and out.dim() == 1:
        assert call(name, tensors, out) is out  # a vector's elements lie apart
    else:
        with pytest.raises(RuntimeError, match="that share memory|single memory location"):
            call(name, tensors, out)


@pytest.mark.parametrize("which", [-2, -1])
def test_an_operand_as_out(name, tensors, which):
    expected = getattr(torch, name)(*tensors)
    out = tensors[which]
    if out.shape != expected.shape:
        return
    if name in PRODUCTS:
        with pytest.raises(RuntimeError, match=f"out shares memory with {'ab'[which]}"):
            call(name, tensors, out)
    else:
        assert torch.equal(call(name, tensors, out), expected)
