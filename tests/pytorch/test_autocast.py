"""The operators inside autocast regions: dtypes and values are those of PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torch_tiled

REGIONS = [torch.bfloat16, torch.float16]
OPERANDS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", OPERANDS, ids=str)
@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_matmul(region, dtype, device):
    a, b = (
        torch.randn(4, 8, device=device, dtype=dtype),
        torch.randn(8, 2, device=device, dtype=dtype),
    )
    with torch.autocast(device, dtype=region):
        expected = torch.matmul(a, b)
        for op in (torch_tiled.matmul, torch.ops.tiled.matmul):
            assert_close(op(a, b), expected)
    assert expected.dtype == (dtype if dtype == torch.float64 else region)
    assert torch_tiled.matmul(a, b).dtype == dtype


@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_mixed_operands(region, device):
    a = torch.randn(4, 8, device=device, dtype=torch.float16)
    b = torch.randn(8, 2, device=device)
    with torch.autocast(device, dtype=region):
        assert_close(torch_tiled.matmul(a, b), torch.matmul(a, b))
        with pytest.raises(RuntimeError, match="pass both in one dtype"):
            torch_tiled.matmul(a, b.double())
    assert torch_tiled.matmul(a, b).dtype == torch.float32


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_linear(region, bias, device):
    x, weight = torch.randn(4, 8, device=device), torch.randn(2, 8, device=device)
    bias = torch.randn(2, device=device) if bias else None
    with torch.autocast(device, dtype=region):
        assert_close(torch_tiled.linear(x, weight, bias), F.linear(x, weight, bias))
        y = torch_tiled.linear(x, weight, bias, activation="relu")
        assert_close(y, F.linear(x, weight, bias).relu())


def test_out_dtype_keeps_the_sums(device):
    a, b = torch.randn(4, 8, device=device), torch.randn(8, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = torch_tiled.matmul(a, b, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    assert_close(out, a.bfloat16().float() @ b.bfloat16().float())


def test_gradients(device):
    inputs = [torch.randn(*s, device=device, requires_grad=True) for s in ((4, 8), (2, 8), (2,))]
    seed = torch.randn(4, 2, device=device).bfloat16()
    grads = []
    for f in (torch_tiled.linear, F.linear):
        with torch.autocast(device, dtype=torch.bfloat16):
            out = f(*inputs)
        grads.append(torch.autograd.grad(out, inputs, seed))
    assert [g.dtype for g in grads[0]] == [torch.float32] * 3
    assert_close(*grads)


def test_what_is_written_keeps_its_dtype(device):
    a, b = torch.randn(4, 8, device=device), torch.randn(8, 2, device=device)
    out, c = torch.empty(4, 2, device=device), torch.zeros(4, 2, device=device)
    expected = torch.empty_like(out)
    with torch.autocast(device, dtype=torch.bfloat16):
        torch.mm(a, b, out=expected)
        assert torch.addmm(c, a, b).dtype == torch.bfloat16
        torch_tiled.matmul(a, b, out=out)
        torch_tiled.gemm_(c, a, b)
    assert_close(out, expected)
    assert_close(c, expected)
    assert_close(expected, a @ b)


def test_regions_that_are_off(device):
    a, b = torch.randn(4, 8, device=device), torch.randn(8, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with torch.autocast(device, enabled=False):
            assert torch_tiled.matmul(a, b).dtype == torch.float32
        assert torch_tiled.matmul(a, b).dtype == torch.bfloat16


def test_under_transforms(device):
    a, b = torch.randn(3, 4, 8, device=device), torch.randn(8, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        ours = torch.func.vmap(torch_tiled.matmul, (0, None))(a, b)
        assert_close(ours, torch.func.vmap(torch.matmul, (0, None))(a, b))
        ours = torch.func.grad(lambda a: torch_tiled.matmul(a, b).float().sum())(a)
        assert_close(ours, torch.func.grad(lambda a: torch.matmul(a, b).float().sum())(a))
    assert ours.dtype == torch.float32


def test_compiled(device):
    a, b = torch.randn(4, 8, device=device), torch.randn(8, 2, device=device)

    def f(a, b):
        with torch.autocast(device, dtype=torch.bfloat16):
            return torch_tiled.matmul(a, b) * 2

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")(a, b)
    assert_close(compiled, f(a, b))
    assert compiled.dtype == torch.bfloat16
