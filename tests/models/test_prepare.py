"""prepare(), products of prepared operands, and bad calls of both."""

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
from helpers.reference import ACTIVATIONS, CHUNK, assert_same
from torch.autograd import forward_ad
from torch.func import grad
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


# --- bad calls -----------------------------------------------------------------------------------


NOT_MADE_OF = "which is not what torch_tiled.prepare makes of"


# Code with the operators and t, which makes tensors of 1; S and W are splits of (128, 5) and of a
# weight that was prepared as if it were the right operand.
SPLITS = {"S": (128, 5), "W": (500, 128)}
BAD_CALLS = {
    "prepare(t(128))": r"b is \(128,\); it must be a matrix \(k, n",
    "prepare(t(2, 128, 5))": r"b is \(2, 128, 5\); it must be a m",
    "prepare(t(128, 5).long())": r"b is torch.int64; supported are",
    "matmul.prepared(t(3, 129), t(128, 5), *S)": (
        r"a is \(3, 129\) and b is \(128, 5\); a's columns must equal b's rows"
    ),
    "matmul.prepared(t(3, 128), t(2, 128, 5), *S)": (
        r"b is \(2, 128, 5\); a prepared operand is one matrix"
    ),
    "matmul.prepared(t(3, 128), t(128, 50), *S)": (
        r"hi_lo is \(4096,\) torch.uint8 and inverse_scales is \(8,\) torch.float32, "
        rf"{NOT_MADE_OF} b, \(128, 50\) torch.float32; prepare it again"
    ),
    "matmul.prepared(t(3, 128), t(128, 5), S[0], t(0))": (
        rf"inverse_scales is \(0,\) torch.float32, {NOT_MADE_OF} b"
    ),
    "matmul.prepared(t(3, 128), t(128, 5), S[0].view(int8), S[1])": (
        rf"hi_lo is \(4096,\) torch.int8 .*{NOT_MADE_OF} b"
    ),
    "matmul.prepared(t(3, 128), t(128, 5), *(x.unsqueeze(0) for x in S))": (
        rf"hi_lo is \(1, 4096\) torch.uint8 and inverse_scales is \(1, 8\) .*{NOT_MADE_OF} b"
    ),
    "matmul.prepared(t(3, 128), t(128, 5), *(x.repeat_interleave(2)[::2] for x in S))": (
        rf"hi_lo is \(4096,\) torch.uint8 .*{NOT_MADE_OF} b"
    ),
    "matmul.prepared(t(3, 128).double(), t(128, 5).double(), *S)": (
        rf"{NOT_MADE_OF} b, \(128, 5\) torch.float64"
    ),
    "linear.prepared(t(3, 128), t(500, 128), *W)": (
        rf"{NOT_MADE_OF} weight, \(500, 128\) torch.float32"
    ),
    "linear.prepared(t(3, 128), t(128), *S)": r"weight must be \(out_features, in_features\)",
    "linear.prepared(t(3, 128), t(5, 128), *S, t(4))": r"bias must be \(out_features,\)",
    "linear.prepared(t(3, 128), t(5, 128), *S, activation='elu')": 'there is no activation "elu"',
    "matmul.prepared(t(3, 128), t(128, 5), *S, algorithm='fast')": 'there is no algorithm "fast"',
    "matmul.prepared(t(3, 128), t(128, 5), *S, precision='fp8')": 'there is no precision "fp8"',
    "matmul.prepared(t(3, 128), t(128, 5), *S, algorithm='tf32')": (
        'algorithm "tf32" rounds operands to 11 bits'
    ),
}


@pytest.mark.parametrize("code", BAD_CALLS)
def test_bad_calls_raise_the_same_sentence_on_meta_tensors(device, code):
    skip_without_presplit(device)
    texts = []
    for where in (device, "meta"):
        names = {"ops": ops, "int8": torch.int8}
        names["t"] = lambda *shape, where=where: torch.ones(shape, device=where)
        names |= {name: ops.prepare(names["t"](*shape)) for name, shape in SPLITS.items()}
        with pytest.raises(RuntimeError, match=BAD_CALLS[code]) as raised:
            eval(f"ops.{code}", names)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    assert texts[0].startswith("tiled::") and "\n" not in texts[0]


def test_a_misaligned_split(device):
    skip_without_presplit(device)
    b = torch.randn(128, 8, device=device)
    hi_lo, inverse_scales = ops.prepare(b)
    misaligned = torch.cat([hi_lo[:1], hi_lo])[1:]
    with pytest.raises(RuntimeError, match=r"hi_lo does not begin at a multiple of 16 bytes; pa"):
        ops.matmul.prepared(b.mT[:, :128], b, misaligned, inverse_scales)


def test_operands_on_two_devices(device):
    b = torch.randn(128, 8, device=device)
    meta = tuple(x.to("meta") for x in ops.prepare(b))
    for call in (
        lambda: ops.matmul.prepared(b.mT, b, *meta),
        lambda: ops.linear.prepared(b.mT, b.mT, *meta),
    ):
        with pytest.raises(RuntimeError, match="hi_lo is on meta and (b|weight) is on .*; move"):
            call()


def test_orientations_are_not_mixed_up(device):
    """The shape of a square operand does not show that it is transposed."""
    b = torch.randn(128, 128, device=device)
    prepared = torch_tiled.prepare(b)
    with pytest.raises(RuntimeError, match=r"tiled::matmul: b is the transpose of a prepared op"):
        torch_tiled.matmul(b, prepared.mT)
    with pytest.raises(RuntimeError, match=r"tiled::linear: weight was prepared as the right ope"):
        torch_tiled.linear(b, prepared)
    with pytest.raises(RuntimeError, match="out is not taken with a prepared b; "):
        torch_tiled.matmul(b, prepared, out=torch.empty_like(b))


def test_out_dtype(device):
    b = torch.randn(128, 64, device=device)
    for narrow in (torch.float16, torch.bfloat16):
        a = torch.randn(32, 128, device=device).to(narrow)
        for x, y, dtype in ((a, b, narrow), (a, b, None), (a, b.to(narrow), torch.float32)):
            options = {"out_dtype": dtype, "algorithm": presplit_algorithm(device)}
            if y.dtype != torch.float32:
                options["algorithm"] = "auto"
            prepared = torch_tiled.prepare(y)
            result = torch_tiled.matmul(x, prepared, **options)
            assert_same(result, torch_tiled.matmul(x, y, **options))
            assert_same(torch_tiled.linear(x, prepared.mT, **options), result)


def test_only_dense_tensors_are_taken(device):
    b = torch.ones(128, 128, device=device)
    prepared = torch_tiled.prepare(b)
    for name, call in (
        ("matmul: a", lambda x: torch_tiled.matmul(x, prepared)),
        ("linear: x", lambda x: torch_tiled.linear(x, prepared.mT)),
        ("prepare: b", torch_tiled.prepare),
    ):
        for live in (False, True):
            with pytest.raises(RuntimeError, match=rf"tiled::{name} is a sparse tensor .*to_dense"):
                call(b.clone().requires_grad_(live).to_sparse())


def test_out_of_memory(device):
    skip_without_presplit(device)
    giant = torch.ones(1, 1, device=device).expand(2**30, 2**28)
    for api in (torch_tiled, ops):
        with pytest.raises(torch.OutOfMemoryError, match="the prepared operand .* needs 1152921"):
            api.prepare(giant)
    with pytest.raises(RuntimeError, match="more bytes than 63 bits can count"):
        ops.prepare(giant[:, :1].expand(2**30, 2**32))


REFUSAL = "{}, and a prepared operand has no derivative; call torch_tiled.unfreeze"


def test_derivatives_of_what_was_prepared_are_refused(device):
    b = torch.randn(140, 30, device=device, requires_grad=True)
    a = torch.randn(9, 140, device=device)
    prepared = torch_tiled.prepare(b)
    assert not prepared.inverse_scales.requires_grad
    calls = (
        lambda p: torch_tiled.matmul(a, p),
        lambda p: torch_tiled.matmul(a, p, algorithm="naive"),
        lambda p: torch_tiled.linear(a, p.mT, activation="gelu"),
        lambda p: ops.matmul.prepared(a, p.tensor, p.hi_lo, p.inverse_scales),
    )
    for call in calls:
        for autocast in (False, True):
            with (
                torch.autocast(device, enabled=autocast),
                pytest.raises(RuntimeError, match=REFUSAL.format("requires grad")),
            ):
                call(prepared)
        with torch.no_grad():
            call(prepared)
        with torch.inference_mode():
            call(prepared)
        call(torch_tiled.prepare(b.detach()))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(b.detach(), torch.ones_like(b))
        for call in calls:
            with pytest.raises(RuntimeError, match=REFUSAL.format("has a forward-mode tangent")):
                call(torch_tiled.prepare(dual))
    with pytest.raises(RuntimeError, match=REFUSAL.format("requires grad")):
        grad(lambda b: torch_tiled.matmul(a, torch_tiled.prepare(b)).sum())(b.detach())
