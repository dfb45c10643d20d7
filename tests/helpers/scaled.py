"""The two kinds of float32 products by halves that are scaled and guarded: fp16x3 and tf32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from helpers import specification
from helpers.reference import assert_same

import torch_tiled

FP16X3_RUNGS = ("fp16x3_cluster", "fp16x3_small", "fp16x3_skinny", "fp16x3_fused", "fp16x3_wgmma")
TF32_RUNGS = ("tf32_tma", "tf32")


@dataclass(frozen=True)
class Kind:
    """`ways` are the options that ask for it, and or_mark(a, b) its specification."""

    name: str  # of its order
    ways: dict
    or_mark: Callable
    multiply: Callable  # the product on a device, back on the host; `auto` picks it on a GPU
    compare: Callable  # holds a GPU's rungs to the host's


def multiply_fp16x3(a, b, device):
    a, b = a.to(device), b.to(device)
    result = torch_tiled.matmul(a, b, **FP16X3.ways)
    if device == "cuda":
        for algorithm in ("auto", *FP16X3_RUNGS):
            assert_same(torch_tiled.matmul(a, b, algorithm=algorithm), result)
        lines = a.contiguous(), b.mT.contiguous().mT
        assert_same(torch_tiled.matmul(*lines, algorithm="fp16x3_cluster"), result)
    return result.cpu()


def compare_fp16x3(a, b):
    host = torch_tiled.matmul(a, b, **FP16X3.ways)
    for algorithm in FP16X3_RUNGS:
        cuda = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm=algorithm)
        assert_same(cuda.cpu(), host)


def multiply_tf32(a, b, device):
    """Over memory of NaN."""
    a, b = a.to(device), b.to(device)
    result = torch_tiled.matmul(a, b, **TF32.ways)
    for algorithm in (*TF32_RUNGS, *(["auto"] if device == "cuda" else [])):
        out = torch.full_like(result, torch.nan)
        torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32", out=out)
        assert_same(out, result)
    return result.cpu()


def compare_tf32(a, b):
    host = torch_tiled.matmul(a, b, **TF32.ways)
    a, b = a.cuda(), b.cuda()
    for algorithm in (*TF32_RUNGS, "auto"):
        for _ in range(3):  # a race would show as a difference that moves
            out = torch.full(host.shape, torch.nan, device="cuda")
            torch_tiled.matmul(a, b, algorithm=algorithm, precision="tf32", out=out)
            assert_same(out.cpu(), host)


FP16X3 = Kind(
    name="fp16x3",
    ways={"algorithm": "fp16x3"},
    or_mark=specification.fp16x3_or_mark,
    multiply=multiply_fp16x3,
    compare=compare_fp16x3,
)
TF32 = Kind(
    name="tf32",
    ways={"algorithm": "tf32", "precision": "tf32"},
    or_mark=specification.tf32_or_mark,
    multiply=multiply_tf32,
    compare=compare_tf32,
)
