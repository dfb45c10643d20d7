"""Results of no elements have any strides: nothing is written, so nothing can be written twice."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_tiled

EMPTY = [(0, 5), (3, 0), (0, 0), (2, 0, 5), (0, 3, 5), (2, 3, 0)]
STRIDES = {"zeros": lambda n: (0,) * n, "ones": lambda n: (1,) * n, "rows": lambda n: (0, 1, 1)[:n]}


@pytest.fixture(params=EMPTY, ids=str)
def shape(request):
    return request.param


@pytest.fixture(params=STRIDES.values(), ids=STRIDES)
def out(request, shape):
    return torch.ones(9).as_strided(shape, request.param(len(shape)))


@pytest.mark.parametrize("algorithm", ["auto", "tiled"])
def test_written(device, shape, out, algorithm):
    a, b = torch.ones(*shape[:-1], 4), torch.ones(4, shape[-1])
    moved = out.to(device).as_strided(shape, out.stride()) if device == "cuda" else out
    a, b = a.to(device), b.to(device)
    assert torch_tiled.matmul(a, b, out=moved, algorithm=algorithm) is moved
    assert torch_tiled.gemm_(moved, a, b, algorithm=algorithm) is moved


def test_streamed(shape, out):
    a, b = torch.ones(*shape[:-1], 4), torch.ones(4, shape[-1])
    assert torch_tiled.stream.matmul(a, b, out=out) is out
    assert torch_tiled.stream.linear(a, b.mT, torch.ones(shape[-1]), out=out) is out
    assert torch_tiled.stream.plan(a, b, out=out, max_device_bytes=2**20).bytes_out == 0


@pytest.mark.parametrize("mode", [None, FakeTensorMode()], ids=["meta", "fake"])
def test_without_data(shape, out, mode):
    def moved(x):
        meta = torch.empty_strided(x.shape, x.stride(), device="meta")
        return meta if mode is None else mode.from_tensor(x)

    a, b, out = map(moved, (torch.ones(*shape[:-1], 4), torch.ones(4, shape[-1]), out))
    assert torch_tiled.matmul(a, b, out=out) is out
    assert torch_tiled.gemm_(out, a, b) is out
