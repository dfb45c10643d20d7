"""Meta tensors, errors when compiled, and flop counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled


def shapes_and_strides(*tensors):
    return [(t.shape, t.stride(), t.dtype) for t in tensors]


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((0, 2, 3), (3, 4)),
    ],
    ids=str,
)
def test_meta_matmul(a_shape, b_shape, device):
    b = torch.randn(b_shape, device=device)
    plain = torch.randn(a_shape, device=device)
    for a in (plain, plain.mT.contiguous().mT if plain.dim() > 1 else plain):
        real = torch_tiled.matmul(a, b)
        meta = torch_tiled.matmul(a.to("meta"), b.to("meta"))
        assert meta.device.type == "meta"
        assert shapes_and_strides(meta) == shapes_and_strides(real)
        assert real.is_contiguous()


def test_meta_of_the_others(device):
    x, weight = torch.randn(2, 5, 3, device=device), torch.randn(4, 3, device=device)
    real = torch_tiled.linear(x.mT.contiguous().mT, weight, activation="gelu")
    meta = torch_tiled.linear(x.to("meta"), weight.to("meta"), activation="gelu")
    assert shapes_and_strides(meta) == shapes_and_strides(real)
    half = torch.empty(2, 3, device="meta", dtype=torch.float16)
    assert torch_tiled.matmul(half, half.mT, out_dtype=torch.float32).dtype == torch.float32
    wide = torch.empty(3, 4, device="meta")
    assert torch_tiled.matmul(half, wide).dtype == torch.float32
    for dtype in (torch.float16, torch.float32):
        options = {"out_dtype": dtype}
        assert torch_tiled.matmul(half, wide, **options).dtype == dtype
        assert torch_tiled.linear(half, wide.mT, wide[0].to(dtype), **options).dtype == dtype
    c = torch.empty(2, 2, device="meta")
    assert torch_tiled.gemm_(c, half, half.mT) is c
    a = torch.empty(2, 3, device="meta")
    assert torch_tiled.gemm_(c, a, a.mT) is c
    assert torch_tiled.matmul(a, a.mT, out=c) is c


def f32(*shape):
    return torch.ones(shape)


def test_bad_calls_raise_the_same_sentence_when_compiled():
    """Dynamo of torch 2.14 shows the repr of the sentence, with a backslash at its apostrophe."""
    a, b = f32(3, 4), f32(5, 6)
    compiled = torch.compile(torch_tiled.matmul, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"a is \(3, 4\) and b is \(5, 6\); a\\?'s columns must"):
        compiled(a, b)


def test_out_and_out_dtype_disagree():
    with pytest.raises(RuntimeError, match="out is torch.float32 and out_dtype is torch.float64"):
        torch_tiled.matmul(f32(2, 2), f32(2, 2), out=f32(2, 2), out_dtype=torch.float64)


@pytest.mark.parametrize(
    "a_shape, b_shape, flops",
    [
        ((3,), (3,), 2 * 3),
        ((3,), (3, 4), 2 * 3 * 4),
        ((2, 3), (3,), 2 * 2 * 3),
        ((2, 3), (3, 4), 2 * 2 * 3 * 4),
        ((5, 1, 2, 3), (6, 3, 4), 2 * 5 * 6 * 2 * 3 * 4),
        ((0, 3), (3, 4), 0),
    ],
    ids=str,
)
def test_flops_of_matmul(a_shape, b_shape, flops, device):
    a, b = torch.randn(a_shape, device=device), torch.randn(b_shape, device=device)
    out = torch.empty_like(a @ b)
    with FlopCounterMode(display=False) as counter:
        torch_tiled.matmul(a, b)
    assert counter.get_total_flops() == flops
    with FlopCounterMode(display=False) as counter:
        torch_tiled.matmul(a, b, out=out)
    assert counter.get_total_flops() == flops


def test_flops_of_the_others(device):
    x, weight, c = (torch.randn(s, device=device) for s in ((2, 5, 3), (4, 3), (2, 5, 4)))
    with FlopCounterMode(display=False) as counter:
        torch_tiled.linear(x, weight)
    assert counter.get_total_flops() == 2 * 2 * 5 * 3 * 4
    with FlopCounterMode(display=False) as counter:
        torch_tiled.gemm_(c, x, weight.mT)
    assert counter.get_total_flops() == 2 * 2 * 5 * 3 * 4


def test_flops_of_training_are_those_of_torch(device):
    x = torch.randn(6, 3, device=device, requires_grad=True)
    weight = torch.randn(4, 3, device=device, requires_grad=True)
    totals = []
    for f in (torch_tiled.linear, torch.nn.functional.linear):
        with FlopCounterMode(display=False) as counter:
            f(x, weight).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] == 3 * 2 * 6 * 3 * 4
