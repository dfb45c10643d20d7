"""The two kinds of float32 products on tensor cores: fp16x3 and tf32."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from helpers import specification
from helpers.reference import assert_same

import torch_tiled

FP16X3_KERNELS = (
    "fp16x3_cluster",
    "fp16x3_small",
    "fp16x3_direct",
    "fp16x3_thin",
    "fp16x3_skinny",
    "fp16x3_fused",
    "fp16x3_wgmma",
)
TF32_KERNELS = ("tf32_tma", "tf32")


def assert_has_bits_of_wgmma(algorithm, a, b, like=None):
    """In C's own layout, or in that of `like`. C's memory is poisoned before."""
    expected = torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma")
    out = torch.full_like(expected if like is None else like, torch.nan)
    for _ in range(2):  # a race may show in one call only
        assert_same(torch_tiled.matmul(a, b, algorithm=algorithm, out=out), expected)


@dataclass(frozen=True)
class Kind:
    """`ways` are the options that select it, and with_flags(a, b) is its specification."""

    name: str  # the name of its order
    ways: dict
    with_flags: Callable
    multiply: Callable  # multiplies on a device, returns the product on the host
    compare: Callable  # asserts that the kernels of a GPU have the bits of the host's


def multiply_fp16x3(a, b, device):
    a, b = a.to(device), b.to(device)
    result = torch_tiled.matmul(a, b, **FP16X3.ways)
    if device == "cuda":
        for algorithm in ("auto", *FP16X3_KERNELS):
            assert_same(torch_tiled.matmul(a, b, algorithm=algorithm), result)
        # fp16x3_cluster copies K-major rows in bulk, and others by elements.
        k_major = a.contiguous(), b.mT.contiguous().mT
        mn_major = a.mT.contiguous().mT, b.contiguous()
        for operands in (k_major, mn_major):
            assert_same(torch_tiled.matmul(*operands, algorithm="fp16x3_cluster"), result)
    return result.cpu()


def compare_fp16x3(a, b):
    host = torch_tiled.matmul(a, b, **FP16X3.ways)
    for algorithm in FP16X3_KERNELS:
        cuda = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm=algorithm)
        assert_same(cuda.cpu(), host)


def multiply_tf32(a, b, device):
    """Writes into outputs full of NaN, so that an element that is not written shows."""
    a, b = a.to(device), b.to(device)
    result = torch_tiled.matmul(a, b, **TF32.ways)
    for algorithm in (*TF32_KERNELS, *(["auto"] if device == "cuda" else [])):
        out = torch.full_like(result, torch.nan)
        torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32", out=out)
        assert_same(out, result)
    return result.cpu()


def compare_tf32(a, b):
    host = torch_tiled.matmul(a, b, **TF32.ways)
    a, b = a.cuda(), b.cuda()
    for algorithm in (*TF32_KERNELS, "auto"):
        for _ in range(3):  # a race may show in one call only
            out = torch.full(host.shape, torch.nan, device="cuda")
            torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32", out=out)
            assert_same(out.cpu(), host)


FP16X3 = Kind(
    name="fp16x3",
    ways={"algorithm": "fp16x3"},
    with_flags=specification.fp16x3_with_flags,
    multiply=multiply_fp16x3,
    compare=compare_fp16x3,
)
TF32 = Kind(
    name="tf32",
    ways={"algorithm": "tf32", "precision": "tf32"},
    with_flags=specification.tf32_with_flags,
    multiply=multiply_tf32,
    compare=compare_tf32,
)

each_kind = pytest.mark.parametrize("kind", [FP16X3, TF32], ids=["fp16x3", "tf32"])
