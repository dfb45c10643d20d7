"""Operands that are split once: prepare() and its products, freeze() and its layers."""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from calls import Calls
from needs import needs_cuda
from reference import ACTIVATIONS, CHUNK, takes
from test_compile import LAYOUTS, count_compilations
from test_transforms import both, flat
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled

ops = torch.ops.tiled

STEP, TILE = 32, 128  # csrc/packed.h

# (m, n, k): tiles of B's columns and steps and chunks of K that are full, ragged, more than one.
SIZES = [(1, 1, 64), (5, 7, 65), (9, 128, 1024), (3, 131, 1000), (2, 300, 2085)]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def splits(device):
    """Whether there are rungs there that multiply halves."""
    return takes("fp16x3", torch.float32, device)


def by_halves(device):
    """The rung that does: it reads what was split."""
    return "fp16x3" if splits(device) else "auto"


def randn(*shape, device, **options):
    return torch.randn(shape, device=device, **options)


def same_bits(x, y):
    return x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def assert_same_bits(x, y):
    assert x.shape == y.shape
    assert same_bits(x.contiguous(), y.contiguous())


def hard(k, n, device):
    """Columns of which each is hard in its way, if there are enough."""
    b = randn(k, n, device=device)
    columns = [
        lambda x: x * 0,
        lambda x: x * torch.nan,
        lambda x: torch.where(torch.arange(k, device=device) == k // 2, torch.inf, x),
        lambda x: x * 1e-42,  # subnormal
        lambda x: x * 1e38,
        lambda x: x * randn(k, device=device).mul(8).exp(),  # wide
        lambda x: torch.where(torch.arange(k, device=device) == k - 1, 1e30, x),
    ]
    for column, change in enumerate(columns[:n]):
        b[:, -column] = change(b[:, -column])
    return b


# --- what is made -------------------------------------------------------------------------------


def padded(size, multiple):
    return -(-size // multiple) * multiple


def unpack(hi_lo, inverse_scales, k, n):
    """hi, lo (padded n, padded k) and undo (chunks, padded n), as csrc/packed.h says they lie."""
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
def test_halves_hold_the_operand(device, poisoned, m, n, k):
    if not splits(device):
        pytest.skip("this GPU multiplies no halves")
    b = randn(k, n, device=device) * randn(n, device=device).mul(20).exp()
    hi, lo, inverse_scales = unpack(*ops.prepare(b), k, n)
    b = F.pad(b.mT.cpu(), (0, hi.shape[1] - k, 0, hi.shape[0] - n))
    for chunk, start in enumerate(range(0, k, CHUNK)):
        part = (slice(None), slice(start, start + CHUNK))
        scaled = b[part] / inverse_scales[chunk].abs().unsqueeze(1)
        assert ((scaled.abs().amax(1)[:n] >= 2**14) & (scaled.abs().amax(1)[:n] < 2**15)).all()
        assert torch.equal(hi[part], scaled.half().float())
        assert torch.equal(lo[part], ((scaled - hi[part]) * 2**11).half().float())
        nonzero = torch.where(scaled == 0, torch.inf, scaled.abs())
        assert torch.equal(inverse_scales[chunk] < 0, nonzero.amin(1) < 2**-13)
    assert not b[n:].any() and (inverse_scales[:, n:] == 1).all()


@needs_cuda
@pytest.mark.parametrize("m, n, k", SIZES)
def test_cpu_and_cuda_make_the_same(m, n, k):
    if not splits("cuda"):
        pytest.skip("this GPU multiplies no halves")
    b = hard(k, n, "cpu")
    for layout in (b, b.mT.contiguous().mT):
        for host, cuda in zip(ops.prepare(layout), ops.prepare(layout.cuda()), strict=True):
            assert_same_bits(cuda.cpu(), host)


def test_layouts_do_not_matter(device):
    b = hard(1100, 67, device)
    expected = ops.prepare(b)
    strided = torch.empty(3301, 135, device=device)[1::3, 1::2].copy_(b)
    askew = torch.empty(1100, 68, device=device)[:, 1:].copy_(b)
    for view in (b.mT.contiguous().mT, strided, askew):
        for tensor, other in zip(ops.prepare(view), expected, strict=True):
            assert_same_bits(tensor, other)
    row = b[:1].expand(1100, 67)
    for tensor, other in zip(ops.prepare(row), ops.prepare(row.contiguous()), strict=True):
        assert_same_bits(tensor, other)


@pytest.mark.parametrize(
    "shape, dtype",
    [((63, 5), torch.float32), ((64, 0), torch.float32), ((0, 5), torch.float32)]
    + [((64, 5), dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)],
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
    b = randn(100, 20, device=device)
    prepared = torch_tiled.prepare(b)
    assert prepared.tensor is b
    assert (prepared.shape, prepared.dtype, prepared.device) == (b.shape, b.dtype, b.device)
    assert prepared.mT.shape == (20, 100) and prepared.mT.mT.shape == b.shape
    expected = 24 * 128 * 4 + 24 * 4 if splits(device) else 0
    assert prepared.nbytes == prepared.mT.nbytes == expected
    assert repr(prepared) == (
        f"Prepared(shape=(100, 20), dtype=torch.float32, device={b.device}, nbytes={expected})"
    )
    leaves, spec = tree_flatten(prepared.mT)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert tree_unflatten(leaves, spec).transposed
    moved = tree_map(lambda leaf: leaf.cpu(), prepared)
    a = randn(3, 100, device="cpu")
    assert_same_bits(
        torch_tiled.matmul(a, moved, algorithm="fp16x3"),
        torch_tiled.matmul(a, b.cpu(), algorithm="fp16x3"),
    )


def test_prepared_can_be_saved(device):
    prepared = torch_tiled.prepare(randn(100, 20, device=device))
    file = io.BytesIO()
    torch.save(prepared, file)
    file.seek(0)
    for twin in (torch.load(file, weights_only=True), copy.deepcopy(prepared)):
        assert torch.equal(twin.tensor, prepared.tensor)
        assert torch.equal(twin.hi_lo, prepared.hi_lo) and torch.equal(twin.inverse_scales, prepared.inverse_scales)


# --- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
@pytest.mark.parametrize("m, n, k", SIZES)
def test_matmul_has_the_bits_of_the_unprepared(device, poisoned, m, n, k, algorithm):
    b = hard(k, n, device)
    for layout in (b, b.mT.contiguous().mT):
        prepared = torch_tiled.prepare(layout)
        for a in (randn(m, k, device=device), randn(k, device=device), hard(k, m, device).mT):
            product = torch_tiled.matmul(a, prepared, algorithm=algorithm)
            assert_same_bits(product, torch_tiled.matmul(a, layout, algorithm=algorithm))


def test_batches_have_the_bits_of_the_unprepared(device):
    prepared = torch_tiled.prepare(randn(100, 30, device=device))
    for a in (
        randn(4, 3, 100, device=device),
        randn(3, 4, 100, device=device).transpose(0, 1),  # rows that no stride unites
        randn(2, 1, 3, 200, device=device)[..., ::2].expand(2, 5, 3, 100),
        randn(4, 0, 100, device=device),
    ):
        for options in ({}, {"algorithm": by_halves(device)}, {"precision": "ieee"}):
            product = torch_tiled.matmul(a, prepared, **options)
            assert_same_bits(product, torch_tiled.matmul(a, prepared.tensor, **options))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_has_the_bits_of_the_unprepared(device, activation, bias):
    weight = hard(130, 70, device).mT
    bias = randn(70, device=device) if bias else None
    prepared = torch_tiled.prepare(weight.mT).mT
    for algorithm in ("auto", by_halves(device), "tiled"):
        options = {"activation": activation, "algorithm": algorithm}
        for x in (randn(130, device=device), randn(2, 9, 130, device=device)):
            y = torch_tiled.linear(x, prepared, bias, **options)
            assert_same_bits(y, torch_tiled.linear(x, weight, bias, **options))


def test_what_was_split_is_what_is_read(device):
    """Were b split again, its zeros would show."""
    if not splits(device):
        pytest.skip("this GPU multiplies no halves")
    # On a GPU a small product may read b itself, and split it in flight.
    m, n, k = (5, 30, 100) if device == "cpu" else (1024, 1024, 128)
    a, b, bias = (randn(*s, device=device) for s in ((m, k), (k, n), (n,)))
    hi_lo, inverse_scales = ops.prepare(b)
    for algorithm in ("fp16x3", *(["auto"] if device == "cuda" else [])):
        options = {"algorithm": algorithm}
        zeros = torch.zeros_like(b)
        product = ops.matmul.prepared(a, zeros, hi_lo, inverse_scales, **options)
        assert_same_bits(product, torch_tiled.matmul(a, b, **options))
        y = ops.linear.prepared(a, zeros.mT, hi_lo, inverse_scales, bias, **options)
        assert_same_bits(y, torch_tiled.linear(a, b.mT, bias, **options))


# --- bad calls ----------------------------------------------------------------------------------

NOT_MADE_OF = "which is not what torch_tiled.prepare makes of"


def prepared_parts(t, *shape):
    return ops.prepare(t(*shape))


def other_dtype(tensors):
    return tensors[0].view(torch.int8), tensors[1]


BAD_CALLS = {
    "prepare vector": (lambda t: ops.prepare(t(64)), r"b is \(64,\); it must be a matrix \(k, n\)"),
    "prepare batch": (lambda t: ops.prepare(t(2, 64, 5)), r"b is \(2, 64, 5\); it must be a mat"),
    "prepare dtype": (lambda t: ops.prepare(t(64, 5).long()), r"b is torch.int64; supported are"),
    "columns": (
        lambda t: ops.matmul.prepared(t(3, 65), t(64, 5), *prepared_parts(t, 64, 5)),
        r"a is \(3, 65\) and b is \(64, 5\); a's columns must equal b's rows",
    ),
    "batch": (
        lambda t: ops.matmul.prepared(t(3, 64), t(2, 64, 5), *prepared_parts(t, 64, 5)),
        r"b is \(2, 64, 5\); a prepared operand is one matrix",
    ),
    "of another": (
        lambda t: ops.matmul.prepared(t(3, 64), t(64, 50), *prepared_parts(t, 64, 5)),
        rf"hi_lo is \(2048,\) torch.uint8 and inverse_scales is \(8,\) torch.float32, {NOT_MADE_OF} b, "
        r"\(64, 50\) torch.float32; prepare it again",
    ),
    "half of it": (
        lambda t: ops.matmul.prepared(t(3, 64), t(64, 5), ops.prepare(t(64, 5))[0], t(0)),
        rf"inverse_scales is \(0,\) torch.float32, {NOT_MADE_OF} b",
    ),
    "dtype of halves": (
        lambda t: ops.matmul.prepared(t(3, 64), t(64, 5), *other_dtype(ops.prepare(t(64, 5)))),
        rf"hi_lo is \(2048,\) torch.int8 .*{NOT_MADE_OF} b",
    ),
    "rank of halves": (
        lambda t: ops.matmul.prepared(
            t(3, 64), t(64, 5), *(x.unsqueeze(0) for x in prepared_parts(t, 64, 5))
        ),
        rf"hi_lo is \(1, 2048\) torch.uint8 and inverse_scales is \(1, 8\) .*{NOT_MADE_OF} b",
    ),
    "strided halves": (
        lambda t: ops.matmul.prepared(
            t(3, 64), t(64, 5), *(x.repeat_interleave(2)[::2] for x in prepared_parts(t, 64, 5))
        ),
        rf"hi_lo is \(2048,\) torch.uint8 .*{NOT_MADE_OF} b",
    ),
    "dtype of b": (
        lambda t: ops.matmul.prepared(
            t(3, 64).double(), t(64, 5).double(), *prepared_parts(t, 64, 5)
        ),
        rf"{NOT_MADE_OF} b, \(64, 5\) torch.float64",
    ),
    "transposed weight": (
        lambda t: ops.linear.prepared(t(3, 64), t(500, 64), *prepared_parts(t, 500, 64)),
        rf"{NOT_MADE_OF} weight, \(500, 64\) torch.float32",
    ),
    "weight": (
        lambda t: ops.linear.prepared(t(3, 64), t(64), *prepared_parts(t, 64, 5)),
        r"weight must be \(out_features, in_features\)",
    ),
    "bias": (
        lambda t: ops.linear.prepared(t(3, 64), t(5, 64), *prepared_parts(t, 64, 5), t(4)),
        r"bias must be \(out_features,\)",
    ),
    "activation": (
        lambda t: ops.linear.prepared(
            t(3, 64), t(5, 64), *prepared_parts(t, 64, 5), activation="elu"
        ),
        'there is no activation "elu"',
    ),
    "algorithm": (
        lambda t: ops.matmul.prepared(
            t(3, 64), t(64, 5), *prepared_parts(t, 64, 5), algorithm="fast"
        ),
        'there is no algorithm "fast"',
    ),
    "precision": (
        lambda t: ops.matmul.prepared(
            t(3, 64), t(64, 5), *prepared_parts(t, 64, 5), precision="fp8"
        ),
        'there is no precision "fp8"',
    ),
    "tf32": (
        lambda t: ops.matmul.prepared(
            t(3, 64), t(64, 5), *prepared_parts(t, 64, 5), algorithm="tf32"
        ),
        'algorithm "tf32" rounds operands to 11 bits',
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_fail_alike(device, name):
    if not splits(device):
        pytest.skip("this GPU multiplies no halves")
    call, sentence = BAD_CALLS[name]
    texts = []
    for where in (device, "meta"):
        with pytest.raises(RuntimeError, match=sentence) as raised:
            call(lambda *shape, where=where: torch.ones(shape, device=where))
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    assert texts[0].startswith("tiled::") and "\n" not in texts[0]


def test_halves_that_lie_askew(device):
    if not splits(device):
        pytest.skip("this GPU multiplies no halves")
    b = randn(64, 8, device=device)
    hi_lo, inverse_scales = ops.prepare(b)
    askew = torch.cat([hi_lo[:1], hi_lo])[1:]
    with pytest.raises(RuntimeError, match=r"hi_lo does not begin at a multiple of 16 bytes; pa"):
        ops.matmul.prepared(b.mT[:, :64], b, askew, inverse_scales)


def test_operands_on_two_devices(device):
    b = randn(64, 8, device=device)
    meta = tuple(x.to("meta") for x in ops.prepare(b))
    for call in (
        lambda: ops.matmul.prepared(b.mT, b, *meta),
        lambda: ops.linear.prepared(b.mT, b.mT, *meta),
    ):
        with pytest.raises(RuntimeError, match="hi_lo is on meta and (b|weight) is on .*; move"):
            call()


def test_orientations_are_not_mixed_up(device):
    """Square operands would hide it."""
    b = randn(64, 64, device=device)
    prepared = torch_tiled.prepare(b)
    with pytest.raises(RuntimeError, match=r"tiled::matmul: b is the transpose of a prepared op"):
        torch_tiled.matmul(b, prepared.mT)
    with pytest.raises(RuntimeError, match=r"tiled::linear: weight was prepared as the right ope"):
        torch_tiled.linear(b, prepared)
    for options in ({"out": torch.empty_like(b)}, {"out_dtype": torch.float32}):
        with pytest.raises(RuntimeError, match=r"out(_dtype)? is not taken with a prepared b; "):
            torch_tiled.matmul(b, prepared, **options)


def test_only_dense_tensors_are_taken(device):
    b = torch.ones(64, 64, device=device)
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
    if not splits(device):
        pytest.skip("this GPU multiplies no halves")
    giant = torch.ones(1, 1, device=device).expand(2**30, 2**28)
    for api in (torch_tiled, ops):
        with pytest.raises(torch.OutOfMemoryError, match="the prepared operand .* needs 1152921"):
            api.prepare(giant)
    with pytest.raises(RuntimeError, match="more bytes than 63 bits can count"):
        ops.prepare(giant[:, :1].expand(2**30, 2**32))


# --- autograd and transforms --------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_the_unprepared(device, activation):
    options = {"algorithm": by_halves(device), "activation": activation}
    weight = randn(70, 100, device=device)
    prepared = torch_tiled.prepare(weight.mT).mT
    x = randn(2, 9, 100, device=device, requires_grad=True)
    bias = randn(70, device=device, requires_grad=True)
    results = []
    for operand in (prepared, weight):
        y = torch_tiled.linear(x, operand, bias, **options)
        first = torch.autograd.grad(y.sin().sum(), (x, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), (x, bias))
        results.append((y, *first, *second))
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours.detach(), theirs.detach())


@pytest.mark.parametrize("a_shape", [(100,), (9, 100), (2, 3, 100)], ids=str)
def test_gradients_of_matmul_are_those_of_the_unprepared(device, a_shape):
    b = randn(100, 30, device=device)
    a = randn(*a_shape, device=device, requires_grad=True)
    options = {"algorithm": by_halves(device)}
    grads = []
    for operand in (torch_tiled.prepare(b), b):
        loss = torch_tiled.matmul(a, operand, **options).sin().sum()
        grads += torch.autograd.grad(loss, a)
    assert_same_bits(*grads)


def test_backward_keeps_the_operand_and_nothing_else(device):
    b = randn(100, 30, device=device)
    prepared = torch_tiled.prepare(b)
    a = randn(9, 100, device=device, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = torch_tiled.matmul(a, prepared, algorithm="tiled16", precision="ieee")
    assert [t.data_ptr() for t in saved] == [b.data_ptr()]
    with Calls() as record:
        out.sum().backward()
    ((_, _, options),) = (call for call in record.calls if call[0] == "tiled::matmul")
    assert options == {"algorithm": "tiled16", "precision": "ieee"}


REFUSAL = "{}, and a prepared operand has no derivative; call torch_tiled.unfreeze"


def test_derivatives_of_what_was_prepared_are_refused(device):
    b = randn(100, 30, device=device, requires_grad=True)
    a = randn(9, 100, device=device)
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


TRANSFORMS = {
    "grad": lambda f: grad(lambda a: f(a).sin().sum()),
    "vjp": lambda f: lambda a: vjp(f, a)[1](f(a).cos()),
    "jvp": lambda f: lambda a: jvp(f, (a,), (a.cos(),)),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda a: f(a).sin().sum()),
    "vmap": lambda f: lambda a: vmap(f)(*both(a)),
    "vmap last": lambda f: lambda a: vmap(f, -1, -1)(torch.stack([a, a.cos()], -1)),
}


@pytest.mark.parametrize("activation", [None, "none", "relu", "gelu"])
@pytest.mark.parametrize("a_shape", [(65,), (2, 65)], ids=str)
def test_pairs_of_transforms(device, a_shape, activation):
    """jacrev and the like of long rows are large: one row of a is enough."""
    b, bias = randn(65, 2, device=device), randn(2, device=device)
    a = randn(*a_shape, device=device)
    options = {"algorithm": by_halves(device)}

    def f(operand):
        def g(part):  # of three elements, to keep Jacobians small
            x = torch.cat([part, a.reshape(-1)[part.numel() :]]).reshape(a_shape)
            if activation is None:
                return torch_tiled.matmul(x, operand, **options)
            return torch_tiled.linear(x, operand.mT, bias, activation=activation, **options)

        return g

    prepared = torch_tiled.prepare(b)
    for outer, inner in itertools.product(TRANSFORMS, repeat=2):
        ours, theirs = (
            flat(TRANSFORMS[outer](flat(TRANSFORMS[inner](flat(f(operand))))))
            for operand in (prepared, b)
        )
        start = a.reshape(-1)[:3]
        torch.testing.assert_close(ours(start), theirs(start), msg=f"{outer} of {inner}")


def test_vmap(device):
    b = randn(100, 30, device=device)
    prepared = torch_tiled.prepare(b)
    options = {"algorithm": by_halves(device)}
    for shape, dim in (((5, 100), 0), ((100, 5), 1), ((9, 5, 100), 1), ((2, 9, 100, 5), 3)):
        a = randn(*shape, device=device)
        with Calls() as record:
            ours = vmap(lambda a, p: torch_tiled.matmul(a, p, **options), (dim, None))(a, prepared)
        assert record.names() == ["tiled::matmul.prepared"]
        moved = a.movedim(dim, 0)
        assert_same_bits(ours, torch.stack([torch_tiled.matmul(x, b, **options) for x in moved]))
        with Calls() as record:
            y = vmap(lambda x: torch_tiled.linear(x, prepared.mT, **options), dim)(a)
        assert record.names() == ["tiled::linear.prepared"]
        assert_same_bits(y, ours)


def test_vmap_over_what_was_prepared(device):
    options = {"algorithm": by_halves(device)}
    bs, a, biases = (randn(*s, device=device) for s in ((3, 100, 30), (9, 100), (3, 30)))
    parts = [torch.stack(t) for t in zip(*(ops.prepare(b) for b in bs), strict=True)]

    def product(b, hi_lo, inverse_scales):
        return ops.matmul.prepared(a, b, hi_lo, inverse_scales, **options)

    expected = torch.stack([torch_tiled.matmul(a, b, **options) for b in bs])
    assert_same_bits(vmap(product)(bs, *parts), expected)

    def layer(b, hi_lo, inverse_scales, bias):
        return ops.linear.prepared(a, b.mT, hi_lo, inverse_scales, bias, activation="relu", **options)

    for dims in ((0, 0, 0, 0), (None, None, None, 0)):
        args = (bs, *parts, biases) if dims[0] == 0 else (bs[0], parts[0][0], parts[1][0], biases)
        expected = torch.stack(
            [
                torch_tiled.linear(
                    a, (bs[0] if dims[0] is None else bs[i]).mT, biases[i], activation="relu"
                )
                for i in range(3)
            ]
        )
        assert_close(vmap(layer, dims)(*args), expected)
    with pytest.raises(RuntimeError, match=r"tiled::prepare: under vmap b of shape \(3, 100, 30\)"):
        vmap(torch_tiled.prepare)(bs)


def test_autocast_computes_the_unprepared(device):
    a, b, bias = (randn(*s, device=device) for s in ((9, 100), (100, 30), (30,)))
    prepared = torch_tiled.prepare(b)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=dtype):
            product = torch_tiled.matmul(a, prepared)
            assert product.dtype == dtype
            assert_same_bits(product, torch_tiled.matmul(a, b))
            y = torch_tiled.linear(a, prepared.mT, bias, activation="relu")
            assert_same_bits(y, torch_tiled.linear(a, b.mT, bias, activation="relu"))
            x = a.clone().requires_grad_()
            torch_tiled.matmul(x, prepared).sum().backward()
            assert x.grad.dtype == torch.float32
            assert torch_tiled.prepare(b).nbytes == prepared.nbytes


# --- shapes without data, torch.compile, torch.export ------------------------------------------


@pytest.mark.parametrize("shape", [(64, 5), (63, 5), (1025, 130), (64, 0), (0, 5)], ids=str)
def test_meta(device, shape):
    b = randn(*shape, device=device)
    if splits(device):
        for real, meta in zip(ops.prepare(b), ops.prepare(b.to("meta")), strict=True):
            assert (meta.shape, meta.dtype, meta.stride()) == (real.shape, real.dtype, (1,))
    a = randn(2, 3, shape[0], device="meta")
    prepared = torch_tiled.prepare(b.to("meta"))
    assert torch_tiled.matmul(a, prepared).shape == (2, 3, shape[1])
    assert torch_tiled.linear(a, prepared.mT).shape == (2, 3, shape[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(device, layout):
    make = LAYOUTS[layout]
    b = make(65, 5, device=device)
    torch.library.opcheck(ops.prepare.default, (b,))
    hi_lo, inverse_scales = ops.prepare(b)
    bias = randn(5, device=device)
    for live in (False, True):
        for shape in ((3, 65), (2, 3, 65)):
            a = make(*shape, device=device).detach().requires_grad_(live)
            args = (b, hi_lo, inverse_scales)
            torch.library.opcheck(ops.matmul.prepared, (a, *args))
            args = (b.mT, hi_lo, inverse_scales, bias)
            torch.library.opcheck(ops.linear.prepared, (a, *args), {"activation": "gelu"})


def test_flops(device):
    a, b = randn(2, 9, 100, device=device), randn(100, 30, device=device)
    prepared = torch_tiled.prepare(b)
    for call in (
        lambda: torch_tiled.matmul(a, prepared),
        lambda: torch_tiled.linear(a, prepared.mT),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * 2 * 9 * 100 * 30


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device, backend, dynamic):
    options = {"algorithm": by_halves(device)}

    def f(a, prepared, weight):
        y = torch_tiled.matmul(a * 2, prepared, **options)
        return torch_tiled.linear(y + 1, weight, activation="relu", **options)

    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for k, n in ((100, 70), (1030, 90)):
        b, weight = randn(k, n, device=device), randn(40, n, device=device)
        prepared = torch_tiled.prepare(b), torch_tiled.prepare(weight.mT).mT
        a = randn(9, k, device=device, requires_grad=True)
        results = []
        for value in (compiled(a, *prepared), f(a, b, weight)):
            (a_grad,) = torch.autograd.grad(value, a, torch.ones_like(value))
            results.append((value.detach(), a_grad))
        for ours, theirs in zip(*results, strict=True):
            assert_same_bits(ours, theirs)


def test_dynamic_shapes_need_no_guards_of_ours(device):
    sizes = [(4, 66, 70), (7, 80, 90), (10, 300, 1200)]
    inputs = [
        (randn(m, k, device=device), torch_tiled.prepare(randn(k, n, device=device)))
        for m, n, k in sizes
    ]
    assert count_compilations(torch_tiled.matmul, inputs) == 1
    torch.compiler.reset()
    assert count_compilations(lambda a, p: torch_tiled.linear(a, p.mT), inputs) == 1


def test_prepare_when_compiled(device):
    compiled = torch.compile(torch_tiled.prepare, fullgraph=True, backend="aot_eager")
    b = randn(100, 30, device=device)
    for ours, theirs in zip(*map(tree_flatten, (compiled(b), torch_tiled.prepare(b))), strict=True):
        if isinstance(ours, list):
            for x, y in zip(ours, theirs, strict=True):
                assert_same_bits(x, y)


class Product(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, a, prepared):
        return torch_tiled.matmul(a, prepared, **self.options)


@pytest.mark.parametrize("strict", [False, True])
def test_export(device, strict, tmp_path):
    options = {"algorithm": by_halves(device)}
    b = randn(100, 30, device=device)
    args = (randn(9, 100, device=device), torch_tiled.prepare(b))
    program = torch.export.export(Product(**options), args, strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called == [ops.matmul.prepared]
    torch.export.save(program, tmp_path / "product.pt2")
    loaded = torch.export.load(tmp_path / "product.pt2")
    for p in (program, loaded, program.run_decompositions()):
        assert_same_bits(p.module()(*args), torch_tiled.matmul(args[0], b, **options))


# --- frozen layers ------------------------------------------------------------------------------


def make_model(device, **options):
    options = {"device": device, "algorithm": by_halves(device)} | options
    model = torch.nn.Sequential(
        torch_tiled.nn.Linear(100, 70, activation="gelu", **options),
        torch.nn.Linear(70, 80, device=device),
        torch_tiled.nn.Linear(80, 30, bias=False, **options),
    )
    return model.requires_grad_(False)


def assert_like_unfrozen(model, x):
    """Runs a frozen model first, so that what is stale shows."""
    ours = model(x)
    twin = torch_tiled.unfreeze(copy.deepcopy(model))
    assert_same_bits(ours, twin(x))


def launched(f, *args):
    with Calls() as record:
        f(*args)
    return record.names()


def test_freeze_and_unfreeze(device):
    model, x = make_model(device), randn(9, 100, device=device)
    expected = model(x)
    state = model.state_dict()
    assert torch_tiled.frozen_bytes(model) == 0
    assert torch_tiled.freeze(model) is model
    assert launched(model, x) == ["tiled::linear.prepared"] * 2
    assert_same_bits(model(x), expected)
    sizes = [ops.prepare(layer.weight.mT) for layer in model[::2]]
    assert torch_tiled.frozen_bytes(model) == sum(t.nbytes for pair in sizes for t in pair)
    assert list(model.state_dict()) == list(state)
    assert "frozen" in repr(model[0]) and "frozen" not in repr(model[1])
    assert torch_tiled.freeze(model) is model
    assert_same_bits(model(x), expected)
    for _ in range(2):
        assert torch_tiled.unfreeze(model) is model
        assert launched(model, x) == ["tiled::linear"] * 2
        assert torch_tiled.frozen_bytes(model) == 0
        assert not list(model.buffers()) and "frozen" not in repr(model)
        assert_same_bits(model(x), expected)


def test_nothing_is_split_again_without_need(device):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert launched(model, x) == ["tiled::linear.prepared"] * 2


WRITES = {
    "copy_": lambda layer: layer.weight.copy_(layer.weight * 2),
    "slice": lambda layer: layer.weight[3:5].zero_(),
    "detached": lambda layer: layer.weight.detach().mul_(3),
    "under inference_mode": torch.inference_mode()(lambda layer: layer.weight.mul_(2)),
    "data": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "another": lambda layer: setattr(
        layer, "weight", torch.nn.Parameter(layer.weight * 2, requires_grad=False)
    ),
    "strides": lambda layer: setattr(
        layer.weight, "data", (layer.weight.data * 2).mT.contiguous().mT
    ),
    "gemm_": lambda layer: torch_tiled.gemm_(
        layer.weight, torch.ones_like(layer.weight[:, :5]), torch.ones_like(layer.weight[:5])
    ),
    "reset_parameters": lambda layer: layer.reset_parameters(),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
    "load_state_dict assigned": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_noticed(device, write, inference):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    with torch.inference_mode(inference):
        before = model(x)
        with torch.no_grad():
            WRITES[write](model[0])
        model.requires_grad_(False)
        assert not same_bits(model(x), before)
        assert_like_unfrozen(model, x)
        assert launched(model, x) == ["tiled::linear.prepared"] * 2


def test_a_storage_that_follows_another_at_its_address_is_noticed(device):
    """Addresses and versions alone would be taken in."""
    layer = torch_tiled.freeze(make_model(device)[0])
    x = randn(9, 100, device=device)
    for i in range(10):
        layer.weight.data = torch.full((70, 100), float(i), device=device)
        assert_like_unfrozen(layer, x)
        layer.weight.data = torch.full((70, 100), -1.0, device=device)


def test_freezing_again_splits_again_in_place(device):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    memory = [buffer.data_ptr() for buffer in model.buffers()]
    model[0].weight.data.mul_(2)  # leaves no trace
    torch_tiled.freeze(model)
    assert_like_unfrozen(model, x)
    assert [buffer.data_ptr() for buffer in model.buffers()] == memory


@pytest.mark.usefixtures("collected")
@needs_cuda
def test_captured_graphs_read_what_is_split_again():
    model, x = torch_tiled.freeze(make_model("cuda")), randn(9, 100, device="cuda")
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(2):
        graph.replay()
        assert_same_bits(y, torch_tiled.unfreeze(copy.deepcopy(model))(x))
        model[0].weight.mul_(2)
        torch_tiled.freeze(model)


@pytest.mark.usefixtures("collected")
@needs_cuda
def test_capturing_after_a_write():
    """A split would be captured, and not done: the graph reads the weight, and splits nothing."""
    model, x = torch_tiled.freeze(make_model("cuda")), randn(9, 100, device="cuda")
    model(x)
    model[0].weight.mul_(2)
    torch_tiled.unfreeze(copy.deepcopy(model))(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(2):
        expected = torch_tiled.unfreeze(copy.deepcopy(model))(x)
        assert_same_bits(model(x), expected)
        graph.replay()
        assert_same_bits(y, expected)
        model[0].weight.mul_(2)


def test_inference_tensors(device):
    """A model made under inference_mode counts no writes; freezing again splits again."""
    with torch.inference_mode():
        model, x = make_model(device), randn(9, 100, device=device)
        expected = model(x)
        torch_tiled.freeze(model)
        assert_same_bits(model(x), expected)
        model[0].weight.mul_(2)
        torch_tiled.freeze(model)
        assert_like_unfrozen(model, x)
        expected = model(x)
    with torch.no_grad():
        assert_same_bits(model(x), expected)
        assert_same_bits(torch_tiled.freeze(model)(x), expected)


@pytest.mark.parametrize("training", [False, True])
def test_a_frozen_weight_has_no_gradient(device, training):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    model.requires_grad_().train(training)
    for compiled in (model, torch.compile(model, backend="eager")):
        for autocast in (False, True):
            with (
                torch.autocast(device, enabled=autocast),
                pytest.raises(RuntimeError, match="torch_tiled.unfreeze.model. to train"),
            ):
                compiled(x)
    with torch.no_grad():
        model(x)
    torch_tiled.unfreeze(model)(x).sum().backward()
    assert model[0].weight.grad is not None


def test_other_gradients_flow(device):
    model = make_model(device)
    model[0].bias.requires_grad_()
    model[1].requires_grad_()
    x = randn(9, 100, device=device, requires_grad=True)
    inputs = (x, model[0].bias, *model[1].parameters())
    grads = []
    for change in (torch_tiled.freeze, torch_tiled.unfreeze):
        loss = change(model)(x).sin().sum()
        grads.append(torch.autograd.grad(loss, inputs))
    for ours, theirs in zip(*grads, strict=True):
        assert_same_bits(ours, theirs)


def test_autocast_of_frozen_layers(device):
    model, x = make_model(device, algorithm="auto"), randn(9, 100, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = model(x)
        assert_same_bits(torch_tiled.freeze(model)(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(device, dtype):
    model = torch_tiled.freeze(make_model(device, algorithm="auto"))
    x = randn(9, 100, device=device)
    model.to(dtype)
    assert torch_tiled.frozen_bytes(model) == 0
    assert_like_unfrozen(model, x.to(dtype))
    model.float()
    assert (torch_tiled.frozen_bytes(model) > 0) == splits(device)
    assert_like_unfrozen(model, x)


def test_moving(device):
    model = torch_tiled.freeze(make_model("cpu", algorithm="auto")).to(device)
    assert {buffer.device.type for buffer in model.buffers()} == {device}
    assert_like_unfrozen(model, randn(9, 100, device=device))
    meta = torch_tiled.freeze(make_model("meta", algorithm="auto"))
    assert meta(torch.empty(9, 100, device="meta")).shape == (9, 30)
    meta.to_empty(device=device)
    for layer, other in zip(meta, model, strict=True):  # as load_state_dict, but unannounced
        for parameter, value in zip(layer.parameters(), other.parameters(), strict=True):
            parameter.copy_(value)
    x = randn(9, 100, device=device)
    assert_same_bits(meta(x), model(x))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies(device, duplicate):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    expected = model(x)
    model[0].weight.data.mul_(2)  # a copy knows nothing of what this one was split of
    twin = duplicate(model)
    if duplicate is not copy.copy:
        assert_like_unfrozen(twin, x)
        assert not same_bits(twin(x), expected)
        assert twin[0].weight is not model[0].weight
        assert launched(twin, x) == ["tiled::linear.prepared"] * 2
    torch_tiled.freeze(model)
    assert_like_unfrozen(model, x)


def test_state_dicts_go_both_ways(device):
    frozen, plain = torch_tiled.freeze(make_model(device)), make_model(device)
    x = randn(9, 100, device=device)
    plain.load_state_dict(frozen.state_dict())
    assert_same_bits(plain(x), frozen(x))
    plain[0].weight.mul_(2)
    frozen.load_state_dict(plain.state_dict())
    assert_same_bits(frozen(x), plain(x))


def recorder(backend):
    """What the graphs call that a backend is given, and that backend."""
    graphs = []

    def record(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    return graphs, record


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_frozen_layers_when_compiled(device, backend):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    graphs, record = recorder(backend)
    compiled = torch.compile(model, fullgraph=True, backend=record)
    assert_close(compiled(x), model(x))
    assert graphs[0].count(ops.linear.prepared) == 2
    # What is noticed in graphs, without a call outside of them.
    compiled.load_state_dict({name: value + 1 for name, value in compiled.state_dict().items()})
    assert_close(compiled(x), torch_tiled.unfreeze(copy.deepcopy(model))(x))
    model[0].weight.mul_(2)
    torch_tiled.freeze(model)
    assert_close(compiled(x), torch_tiled.unfreeze(copy.deepcopy(model))(x))
    assert len(graphs) == 1
    torch_tiled.unfreeze(model)
    assert_close(compiled(x), model(x))
    assert graphs[-1].count(ops.linear.default) == 2


def test_a_copy_that_was_never_called_reads_its_weight_when_compiled(device):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    model[0].weight.data.mul_(2)
    twin = copy.deepcopy(model)
    expected = torch_tiled.unfreeze(copy.deepcopy(model))(x)
    graphs, record = recorder("eager")
    compiled = torch.compile(twin, fullgraph=True, backend=record)
    assert_same_bits(compiled(x), expected)
    assert graphs[-1].count(ops.linear.default) == 2
    twin(x)
    assert_same_bits(compiled(x), expected)
    assert graphs[-1].count(ops.linear.prepared) == 2


def test_dynamic_shapes_of_frozen_layers(device):
    model = torch_tiled.freeze(make_model(device))
    inputs = [(randn(rows, 100, device=device),) for rows in (4, 7, 10)]
    assert count_compilations(model, inputs) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_frozen_layers_are_exported(device, strict, tmp_path):
    model, x = torch_tiled.freeze(make_model(device)), randn(9, 100, device=device)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(ops.linear.prepared) == 2
    assert list(program.state_dict) == list(model.state_dict())
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for rows in (2, 9):
        for p in (program, loaded, program.run_decompositions()):
            assert_close(p.module()(x[:rows]), model(x[:rows]))


@pytest.mark.parametrize("compile", [False, True])
def test_other_weights_by_functional_call(device, compile):
    """A frozen layer's split is that of its own weight."""
    layer = torch_tiled.freeze(make_model(device)[0])
    x, other = randn(9, 100, device=device), make_model(device)[0]
    weights = dict(other.named_parameters())

    def call(weights, x):
        return functional_call(layer, weights, (x,))

    f = torch.compile(call, fullgraph=True, backend="eager") if compile else call
    for _ in range(2):
        assert_same_bits(f(weights, x), other(x))
        assert_same_bits(layer(x), torch_tiled.unfreeze(copy.deepcopy(layer))(x))


def test_compiled_graphs_notice_whose_weight_was_split(device):
    layer, other = torch_tiled.freeze(make_model(device)[0]), make_model(device)[0]
    x = randn(9, 100, device=device)
    expected = torch_tiled.unfreeze(copy.deepcopy(layer))(x)
    graphs, record = recorder("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=record)
    assert_same_bits(compiled(x), expected)
    assert_same_bits(functional_call(layer, dict(other.named_parameters()), (x,)), other(x))
    assert_same_bits(compiled(x), expected)  # reads the weight, which the split is not of
    assert graphs == [[ops.linear.prepared], [ops.linear.default]]
    layer.weight = other.weight
    assert_same_bits(compiled(x), torch_tiled.unfreeze(copy.deepcopy(layer))(x))


def test_transforms_of_frozen_layers(device):
    layers = [torch_tiled.nn.Linear(100, 7, device=device) for _ in range(3)]
    x = randn(5, 100, device=device)
    expected = torch.stack([layer(x) for layer in layers]).detach()
    for layer in layers:
        torch_tiled.freeze(layer.requires_grad_(False))
    parameters, buffers = stack_module_state(layers)
    ensemble = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))
    assert_close(ensemble(parameters, buffers).detach(), expected)
    assert_close(vmap(layers[0])(x), expected[0])
    jacobian = vmap(jacrev(layers[0]))(x)
    assert_close(jacobian, layers[0].weight.expand(5, 7, 100))

    def loss(parameters, sample):
        return functional_call(layers[0], parameters, (sample,)).square().sum()

    own = dict(layers[0].named_parameters())
    ours = vmap(grad(loss), (None, 0))(own, x)
    torch_tiled.unfreeze(layers[0])
    assert_close(ours, vmap(grad(loss), (None, 0))(own, x))
