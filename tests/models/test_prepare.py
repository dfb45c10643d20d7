"""prepare() and products of prepared operands."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers.copies import saved
from helpers.needs import needs_cuda
from helpers.presplit import (
    assert_same_bits,
    hard_columns,
    presplit_algorithm,
    skip_without_presplit,
    takes_presplit,
)
from helpers.reference import ACTIVATIONS, CHUNK
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import torch_tiled

ops = torch.ops.tiled

STEP, TILE = 32, 128  # csrc/core/presplit.h

# (m, n, k) with full, partial and several tiles of B's columns, steps of K and chunks of K.
SIZES = [(1, 1, 128), (5, 7, 129), (9, 128, 1024), (3, 131, 1000), (2, 300, 2085)]


def padded(size, multiple):
    return -(-size // multiple) * multiple


def unpack(hi_lo, inverse_scales, k, n):
    """hi, lo (padded n, padded k) and inverse scales (chunks, padded n), as stored by
    csrc/core/presplit.h."""
    rows, depth = padded(n, 8), padded(k, STEP)
    hi_lo = hi_lo.cpu().view(torch.float16)
    hi, lo = torch.empty(rows, depth), torch.empty(rows, depth)
    for start in range(0, rows, TILE):
        stop = min(start + TILE, rows)
        tile = hi_lo[start * depth * 2 : stop * depth * 2]
        tile = tile.reshape(depth // STEP, 2, stop - start, STEP // 8, 8)
        row = torch.arange(stop - start).unsqueeze(1)
        tile = tile[:, :, row, torch.arange(4) ^ (row // 2 % 4)]  # the swizzle is its own inverse
        hi[start:stop], lo[start:stop] = tile.permute(1, 2, 0, 3, 4).reshape(2, -1, depth).float()
    return hi, lo, inverse_scales.cpu().reshape(-1, rows)


@pytest.mark.parametrize("m, n, k", SIZES)
def test_hi_and_lo_hold_the_operand(device, poisoned, m, n, k):
    skip_without_presplit(device)
    b = torch.randn(k, n, device=device) * torch.randn(n, device=device).mul(20).exp()
    b[:, ::3] = torch.exp2(torch.randint(10, (k, len(b[0, ::3])), device=device))
    b[:, 1::6] = b[:, 1::6].sign()
    hi, lo, inverse_scales = unpack(*ops.prepare(b), k, n)
    b = F.pad(b.mT.cpu(), (0, hi.shape[1] - k, 0, hi.shape[0] - n))
    for chunk, start in enumerate(range(0, k, CHUNK)):
        part = (slice(None), slice(start, start + CHUNK))
        bits = inverse_scales[chunk].view(torch.int32)
        inverse, small_numbers = (bits & 0x7FFF8000).view(torch.float32), bits & 0x3FFF
        scaled = b[part] / torch.where(inverse == 0, 1, inverse).unsqueeze(1)
        assert ((scaled.abs().amax(1)[:n] >= 2**14) & (scaled.abs().amax(1)[:n] < 2**15)).all()
        assert torch.equal(hi[part], scaled.half().float())
        assert torch.equal(lo[part], ((scaled - hi[part]) * 2**11).half().float())
        is_small = (scaled != 0) & (scaled.abs() < 2**-13)
        assert torch.equal(small_numbers, is_small.sum(1, dtype=torch.int32))
        is_coarse = (b[part] == b[part].bfloat16()) & ((scaled == 0) | (scaled.abs() >= 2**7))
        is_coarse = is_coarse.all(1) & b[part].any(1)
        assert torch.equal(bits & 0x4000 != 0, is_coarse)
        assert torch.equal(inverse_scales[chunk] < 0, is_coarse | (small_numbers > 0))
    assert not b[n:].any() and (inverse_scales[:, n:] == 0).all()


@needs_cuda
@pytest.mark.parametrize("m, n, k", SIZES)
def test_cpu_and_cuda_make_the_same(m, n, k):
    skip_without_presplit("cuda")
    b = hard_columns(k, n, "cpu")
    for layout in (b, b.mT.contiguous().mT):
        for host, cuda in zip(ops.prepare(layout), ops.prepare(layout.cuda()), strict=True):
            assert_same_bits(cuda.cpu(), host)


def test_layouts_do_not_matter(device):
    b = hard_columns(1100, 67, device)
    expected = ops.prepare(b)
    strided = torch.empty(3301, 135, device=device)[1::3, 1::2].copy_(b)
    misaligned = torch.empty(1100, 68, device=device)[:, 1:].copy_(b)
    for view in (b.mT.contiguous().mT, strided, misaligned):
        for tensor, other in zip(ops.prepare(view), expected, strict=True):
            assert_same_bits(tensor, other)
    row = b[:1].expand(1100, 67)
    for tensor, other in zip(ops.prepare(row), ops.prepare(row.contiguous()), strict=True):
        assert_same_bits(tensor, other)


@pytest.mark.parametrize(
    "shape, dtype",
    [((127, 5), torch.float32), ((128, 0), torch.float32), ((0, 5), torch.float32)]
    + [((128, 5), dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)],
    ids=str,
)
def test_nothing_to_split(device, shape, dtype):
    b = torch.randn(shape, device=device).to(dtype)
    prepared = torch_tiled.prepare(b)
    assert prepared.nbytes == 0
    a = torch.randn(3, shape[0], device=device).to(dtype)
    for algorithm in ("auto", "tiled"):
        product = torch_tiled.matmul(a, prepared, algorithm=algorithm)
        assert_same_bits(product, torch_tiled.matmul(a, b, algorithm=algorithm))


def test_prepared_stands_for_its_tensor(device):
    b = torch.randn(140, 20, device=device)
    prepared = torch_tiled.prepare(b)
    assert prepared.tensor is b
    assert (prepared.shape, prepared.dtype, prepared.device) == (b.shape, b.dtype, b.device)
    assert prepared.mT.shape == (20, 140) and prepared.mT.mT.shape == b.shape
    expected = 24 * 160 * 4 + 24 * 4 if takes_presplit(device) else 0
    assert prepared.nbytes == prepared.mT.nbytes == expected
    assert repr(prepared) == (
        f"Prepared(shape=(140, 20), dtype=torch.float32, device={b.device}, nbytes={expected})"
    )
    leaves, spec = tree_flatten(prepared.mT)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert tree_unflatten(leaves, spec).transposed
    moved = tree_map(lambda leaf: leaf.cpu(), prepared)
    a = torch.randn(3, 140, device="cpu")
    assert_same_bits(
        torch_tiled.matmul(a, moved, algorithm="fp16x3"),
        torch_tiled.matmul(a, b.cpu(), algorithm="fp16x3"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_prepared_has_a_conjugate_without_a_copy(dtype, device):
    b = torch.randn(140, 20, device=device, dtype=dtype)
    prepared = torch_tiled.prepare(b)
    a = torch.randn(3, 140, device=device, dtype=dtype)
    for algorithm in ("auto", "tiled"):
        expected = torch_tiled.matmul(a, b.conj(), algorithm=algorithm)
        for operand in (prepared.conj(), prepared.mH.mT, prepared.mT.mH):
            assert operand.tensor.data_ptr() == b.data_ptr()
            product = torch_tiled.matmul(a, operand, algorithm=algorithm)
            assert torch.equal(product, expected)
        expected = torch_tiled.linear(a, b.mH, algorithm=algorithm)
        for weight in (prepared.mH, prepared.mT.conj()):
            assert weight.transposed and weight.shape == (20, 140)
            assert torch.equal(torch_tiled.linear(a, weight, algorithm=algorithm), expected)


def test_a_prepared_complex64_operand_says_how_its_conjugate_is_prepared(device):
    """Its real matrix has the signs of imaginary parts."""
    b = torch.randn(140, 20, device=device, dtype=torch.complex64)
    prepared = torch_tiled.prepare(b)
    remedy = r"pass torch_tiled.prepare\(b.conj\(\)\)"
    for conjugate, transpose in (
        (lambda: prepared.conj(), ""),
        (lambda: prepared.mT.mH, ""),
        (lambda: prepared.mH, r"\.mT"),
        (lambda: prepared.mT.conj(), r"\.mT"),
    ):
        with pytest.raises(AttributeError, match=f"of a complex64 operand .*{remedy}{transpose}$"):
            conjugate()


def test_prepared_can_be_saved(device):
    prepared = torch_tiled.prepare(torch.randn(140, 20, device=device))
    for twin in (saved(prepared, weights_only=True), copy.deepcopy(prepared)):
        assert torch.equal(twin.tensor, prepared.tensor)
        assert torch.equal(twin.hi_lo, prepared.hi_lo) and torch.equal(
            twin.inverse_scales, prepared.inverse_scales
        )


@pytest.mark.parametrize("transposed", [False, True])
def test_prepared_of_another_version_is_split_again(device, transposed):
    prepared = torch_tiled.prepare(hard_columns(140, 20, device))
    state = {"tensor": prepared.tensor}  # version 1 saved no version
    if transposed:
        state = {"tensor": prepared.tensor.mT, "transposed": True}
    twin = torch_tiled.Prepared.__new__(torch_tiled.Prepared)
    twin.__setstate__(state)
    assert torch.equal(twin.hi_lo, prepared.hi_lo) and twin.transposed is transposed
    assert torch.equal(twin.inverse_scales, prepared.inverse_scales)


@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
@pytest.mark.parametrize("m, n, k", SIZES)
def test_matmul_has_the_bits_of_the_unprepared(device, poisoned, m, n, k, algorithm):
    b = hard_columns(k, n, device)
    for layout in (b, b.mT.contiguous().mT):
        prepared = torch_tiled.prepare(layout)
        for a in (
            torch.randn(m, k, device=device),
            torch.randn(k, device=device),
            hard_columns(k, m, device).mT,
        ):
            product = torch_tiled.matmul(a, prepared, algorithm=algorithm)
            assert_same_bits(product, torch_tiled.matmul(a, layout, algorithm=algorithm))


def test_batches_have_the_bits_of_the_unprepared(device):
    prepared = torch_tiled.prepare(torch.randn(140, 30, device=device))
    for a in (
        torch.randn(4, 3, 140, device=device),
        torch.randn(3, 4, 140, device=device).transpose(0, 1),  # rows that cannot be merged
        torch.randn(2, 1, 3, 280, device=device)[..., ::2].expand(2, 5, 3, 140),
        torch.randn(4, 0, 140, device=device),
    ):
        for options in ({}, {"algorithm": presplit_algorithm(device)}, {"precision": "ieee"}):
            product = torch_tiled.matmul(a, prepared, **options)
            assert_same_bits(product, torch_tiled.matmul(a, prepared.tensor, **options))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_has_the_bits_of_the_unprepared(device, activation, bias):
    weight = hard_columns(130, 70, device).mT
    bias = torch.randn(70, device=device) if bias else None
    prepared = torch_tiled.prepare(weight.mT).mT
    for algorithm in ("auto", presplit_algorithm(device), "tiled"):
        options = {"activation": activation, "algorithm": algorithm}
        for x in (torch.randn(130, device=device), torch.randn(2, 9, 130, device=device)):
            y = torch_tiled.linear(x, prepared, bias, **options)
            assert_same_bits(y, torch_tiled.linear(x, weight, bias, **options))


def test_the_split_is_read_and_not_the_operand(device):
    """b itself is zeros here, which would show if it were read."""
    skip_without_presplit(device)
    # On a GPU a small product may read b itself, which fp16x3_fused splits.
    m, n, k = (5, 30, 140) if device == "cpu" else (2048, 2048, 128)
    a, b, bias = (torch.randn(*s, device=device) for s in ((m, k), (k, n), (n,)))
    hi_lo, inverse_scales = ops.prepare(b)
    for algorithm in ("fp16x3", *(["auto"] if device == "cuda" else [])):
        options = {"algorithm": algorithm}
        zeros = torch.zeros_like(b)
        product = ops.matmul.prepared(a, zeros, hi_lo, inverse_scales, **options)
        assert_same_bits(product, torch_tiled.matmul(a, b, **options))
        y = ops.linear.prepared(a, zeros.mT, hi_lo, inverse_scales, bias, **options)
        assert_same_bits(y, torch_tiled.linear(a, b.mT, bias, **options))
