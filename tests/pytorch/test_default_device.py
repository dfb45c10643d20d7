"""Situation: torch.set_default_device made tensors of the library's own lie on another device.

The self-test of `python -m torch_tiled info` failed, and so did explain() of meta tensors.
"""

import pytest
import torch

import torch_tiled
from torch_tiled.info import info


@pytest.fixture(params=["meta", "cuda"])
def default(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.set_default_device(request.param)
    torch.set_default_dtype(torch.float64)
    yield request.param
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def test_the_self_test(default):
    assert info()["ok"]


def test_a_plan_of_meta_tensors(default):
    a = torch.empty(512, 512, device="meta", dtype=torch.float32)
    gpu = {"compute_capability": 90, "sms": 132}
    plan = torch_tiled.explain(a, a, **gpu)
    cpu = torch.zeros(512, 512, device="cpu", dtype=torch.float32)
    assert plan == torch_tiled.explain(cpu, cpu, **gpu)


def test_a_frozen_layer(default):
    layer = torch_tiled.nn.Linear(64, 64, device="cpu", dtype=torch.float32)
    torch_tiled.freeze(layer)
    other = torch_tiled.nn.Linear(64, 64, device="cpu", dtype=torch.float32)
    other.weight = torch.nn.Parameter(torch.zeros(64, device="cpu", dtype=torch.float32))
    torch_tiled.freeze(other)  # FSDP's shards, which may be vectors, are not split
    for each in (layer, other):
        found = {name: (x.dtype, x.device.type) for name, x in each.named_buffers()}
        assert found == {
            "_hi_lo": (torch.uint8, "cpu"),
            "_inverse_scales": (torch.float32, "cpu"),
        }
    x = torch.ones(2, 64, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(layer(x), torch_tiled.unfreeze(layer)(x))
