"""Tensors with elements and no memory, as FSDP leaves parameters, are refused in a sentence."""

import pytest
import torch
from helpers.presplit import skip_without_presplit

import torch_tiled

REFUSED = r"\((40, 256|256, 48|48, 256|40, 48|48,)\) has no memory: its storage was freed"


def freed(*shape, device):
    x = torch.randn(*shape, device=device)
    x.untyped_storage().resize_(0)
    return x


CALLS = {  # of a, b, c and bias
    "matmul": lambda a, b, c, bias, **way: torch_tiled.matmul(a, b, **way),
    "out": lambda a, b, c, bias, **way: torch_tiled.matmul(a, b, out=c, **way),
    "linear": lambda a, w, c, bias, **way: torch_tiled.linear(a, w, bias, **way),
    "gemm_": lambda a, b, c, bias, **way: torch_tiled.gemm_(c, a, b, **way),
    "beta = 0": lambda a, b, c, bias, **way: torch_tiled.gemm_(c, a, b, beta=0, **way),
    "prepare": lambda a, b, c, bias, **way: torch_tiled.prepare(b),
}
GIVEN = {
    "matmul": "ab",
    "out": "abc",
    "linear": ["a", "b", "bias"],
    "gemm_": "abc",
    "beta = 0": "abc",
    "prepare": "b",
}


@pytest.mark.parametrize("algorithm", ["auto", "tiled"])
@pytest.mark.parametrize("name, gone", [(name, each) for name in GIVEN for each in GIVEN[name]])
def test_refused(name, gone, algorithm, device):
    shapes = {"a": (40, 256), "b": (256, 48), "c": (40, 48), "bias": (48,)}
    if name == "linear":
        shapes["b"] = 48, 256  # the weight
    given = {each: torch.randn(*shape, device=device) for each, shape in shapes.items()}
    given[gone] = freed(*shapes[gone], device=device)
    # By "auto" a CPU adds the bias by PyTorch, which has a text of its own.
    text = "" if (gone, algorithm, device) == ("bias", "auto", "cpu") else REFUSED
    with pytest.raises(RuntimeError, match=text) as raised:
        CALLS[name](*given.values(), algorithm=algorithm)
    assert not isinstance(raised.value, torch.OutOfMemoryError)


def test_prepared_parts(device):
    a, b = torch.randn(40, 256, device=device), torch.randn(256, 48, device=device)
    skip_without_presplit(device)
    for name in ("hi_lo", "inverse_scales"):
        broken = torch_tiled.prepare(b)
        getattr(broken, name).untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="has no memory: its storage was freed"):
            torch_tiled.matmul(a, broken, algorithm="fp16x3")


def test_nothing_to_read_needs_no_memory(device):
    a, b = torch.empty(0, 256, device=device), torch.empty(256, 0, device=device)
    assert torch_tiled.matmul(a, torch.randn(256, 3, device=device)).shape == (0, 3)
    assert torch_tiled.matmul(torch.randn(3, 256, device=device), b).shape == (3, 0)
