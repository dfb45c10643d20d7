"""Kernels that run if their name or their family's is given, and in no other kernel's place."""

import pytest
import torch

import torch_tiled
from torch_tiled._op.registry import family

H200 = {"compute_capability": 90, "sms": 132}
BY_NAME = {"course", *(x.name for x in family("course")), "tensor_core"}
SIZES = [(1, 1, 1), (16, 16, 16), (64, 64, 0), (129, 127, 65), (512, 512, 512), (4096, 4096, 4096)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def operands(m, n, k, dtype):
    return torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_auto_and_other_families_do_not_consider_them(size, dtype):
    made_for = {torch.float32: "simt", torch.float64: "f64", torch.bfloat16: "mma"}[dtype]
    for algorithm in ("auto", "naive", "tiled", made_for):
        text = str(torch_tiled.explain(*operands(*size, dtype), algorithm=algorithm, **H200))
        assert not any(name in text for name in BY_NAME), algorithm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_they_run_by_name_and_by_family(dtype):
    kernels = {x.name for x in family("course")}
    for size in SIZES:
        a, b = operands(*size, dtype)
        for name in kernels:
            assert torch_tiled.explain(a, b, algorithm=name, **H200).algorithm == name
        assert torch_tiled.explain(a, b, algorithm="course", **H200).algorithm in kernels


@pytest.mark.parametrize(
    "size, runs",
    [
        ((4096, 4096, 4096), True),
        ((128, 8, 8192), True),
        ((128, 8, 8200), False),  # two chunks
        ((128, 8, 0), False),
        ((128, 8, 65), False),  # rows of A that TMA cannot read
        ((128, 9, 64), False),  # and of B
    ],
)
def test_tensor_core_has_a_substitute_of_the_same_bits(size, runs):
    found = torch_tiled.explain(
        *operands(*size, torch.bfloat16), algorithm="tensor_core", **H200
    ).algorithm
    assert (found == "tensor_core") == runs
    assert runs or found in {x.name for x in family("mma")}
