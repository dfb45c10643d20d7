"""Bad calls of prepare() and of products of prepared operands."""

import pytest
import torch
from helpers.presplit import skip_without_presplit
from torch.autograd import forward_ad
from torch.func import grad

import torch_tiled

ops = torch.ops.tiled

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
    for options in ({"out": torch.empty_like(b)}, {"out_dtype": torch.float32}):
        with pytest.raises(RuntimeError, match=r"out(_dtype)? is not taken with a prepared b; "):
            torch_tiled.matmul(b, prepared, **options)


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
