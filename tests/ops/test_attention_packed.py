"""The operator of packed sequences: shapes, transforms, offsets that are wrong, and errors."""

import functools

import pytest
import torch
from helpers.attention import operator, to
from helpers.bad_calls import assert_raises
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from torch.autograd import forward_ad
from torch.func import jvp, vmap
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from torch_tiled._op.attention_packed import mask_of_keys, pad, unpad
from torch_tiled._op.namespace import operators

packed = operators.attention_packed.default
ENDS = [0, 3, 3, 10]
KEY_ENDS = [0, 5, 9, 12]


def draw(device="cpu", heads=4, kv_heads=2, **options):
    """q, k and v of 12 rows, two of them of no sequence, and the operator's other arguments."""
    shapes = (12, heads, 8), (12, kv_heads, 8), (12, kv_heads, 6)
    tensors = [torch.randn(shape, device=device, **options) for shape in shapes]
    ends = (torch.tensor(x, device=device, dtype=torch.int32) for x in (ENDS, KEY_ENDS))
    return tensors, (*ends, 7, 5)


def padded(q, k, v, ends, key_ends, max_q, max_k, is_causal, scale):
    """The result by the operator of a padded batch."""
    of_k = key_ends, max_k
    mask = mask_of_keys(*of_k, k.shape[0])
    causal_offset = 0 if is_causal else None
    x, y, z = pad(q, ends, max_q), pad(k, *of_k), pad(v, *of_k)
    return unpad(operator(x, y, z, mask, causal_offset, scale)[0], ends, q.shape[0])


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_padded_batch_has_the_same_bits(is_causal, device):
    tensors, ends = draw(device)
    out, total, exponent = packed(*tensors, *ends, is_causal, 0.3)
    assert torch.equal(out, padded(*tensors, *ends, is_causal, 0.3))
    assert not out[10:].any() and not total[:, 10:].any()
    assert total.shape == exponent.shape == (4, 12)
    scores = (
        tensors[0][:1].transpose(0, 1)
        @ tensors[1][: 1 if is_causal else 5].permute(1, 2, 0)[[0, 0, 1, 1]]
    )
    expected = (scores.double() * 0.3).exp().sum(-1)[:, 0]
    assert_close(torch.ldexp(total[:, 0].double(), exponent[:, 0]), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(requires_grad, device):
    tensors, ends = draw(device, requires_grad=requires_grad)
    torch.library.opcheck(packed, (*tensors, *ends, True, 0.3))


def test_derivatives(device):
    tensors, ends = draw(device, requires_grad=True)

    def ours(*x):
        return packed(*x, *ends, True, 0.3)[0]

    def theirs(*x):
        return padded(*x, *ends, True, 0.3)

    gradients = [
        torch.autograd.grad(f(*tensors).sin().sum(), tensors, create_graph=True)
        for f in (ours, theirs)
    ]
    for x, y in zip(*gradients, strict=True):
        assert_close(x, y)
    second = (
        torch.autograd.grad(sum(x.square().sum() for x in each), tensors) for each in gradients
    )
    for x, y in zip(*second, strict=True):
        assert_close(x, y, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        tangents = [torch.randn_like(x) for x in tensors]
        primals = tuple(x.detach() for x in tensors)
        of_ours, of_theirs = (jvp(f, primals, tuple(tangents))[1] for f in (ours, theirs))
        assert_close(of_ours, of_theirs)
        with forward_ad.dual_level():
            q = forward_ad.make_dual(primals[0], tangents[0])
            one = forward_ad.unpack_dual(ours(q, *primals[1:])).tangent
        zeros = tuple(torch.zeros_like(x) for x in tangents[1:])
        assert_close(one, jvp(ours, primals, (tangents[0], *zeros))[1])


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, None, 2), (None, 0, None)], ids=str)
def test_vmap(dims, device):
    (q, k, v), ends = draw(device)
    tensors = [
        x if dim is None else torch.stack([x, 2 * x, x.flip(0)]).movedim(0, dim)
        for x, dim in zip((q, k, v), dims, strict=True)
    ]
    run = functools.partial(packed, is_causal=True, scale=0.3)
    found = vmap(lambda *x: run(*x, *ends), in_dims=dims)(*tensors)
    for i in range(3):
        one = [x if d is None else x.select(d, i) for x, d in zip(tensors, dims, strict=True)]
        for x, y in zip(found, run(*one, *ends), strict=True):
            assert torch.equal(x[i], y)


def test_vmap_over_offsets(device):
    tensors, (ends, key_ends, *most) = draw(device)
    both = torch.stack([ends, ends.new_tensor([1, 2, 9, 9])])

    def run(x):
        return packed(*tensors, x, key_ends, *most, False, 0.3)[0]

    assert torch.equal(vmap(run)(both), torch.stack([run(x) for x in both]))
    assert vmap(run)(both[:0]).shape == (0, 12, 4, 6)


def test_flops_and_meta_tensors():
    tensors, ends = draw()
    with FlopCounterMode(display=False) as counter:
        packed(*tensors, *ends, False, 0.3)
    assert counter.get_total_flops() == 2 * 3 * 7 * 4 * 5 * (8 + 6)
    on_meta = to("meta", *tensors, *ends[:2])
    out, total, exponent = packed(*on_meta, *ends[2:], False, 0.3)
    assert (out.shape, total.shape, exponent.dtype) == ((12, 4, 6), (4, 12), torch.int32)


@pytest.mark.parametrize("rows", [(0, 5), (5, 0), (0, 0)])
def test_no_rows(rows, device):
    q, k = (torch.randn(n, 2, 8, device=device) for n in rows)
    ends = torch.zeros(3, device=device, dtype=torch.int32)
    out, total, _ = packed(q, k, k, ends, ends, 4, 4, True, 0.3)
    assert out.shape == q.shape and not out.any() and not total.any()


WRONG = {
    "descending": [0, 700, 400, 900],
    "past the end": [0, 400, 2000, 2001],
    "far past": [0, 400, 2**31 - 1, 2**31 - 1],
    "negative": [-(2**31), 400, 600, 900],
    "all": [900, -(2**31), 2**31 - 1, 0],
}


@needs_hopper
@pytest.mark.parametrize("most", [5, 64, 900])
@pytest.mark.parametrize("columns", [64, 136])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_offsets_write_nothing_outside(name, columns, most):
    ends = torch.tensor(WRONG[name], device="cuda", dtype=torch.int32)
    tensors = torch.randn(3, 900, 2, columns, device="cuda").unbind()
    before = [x.clone() for x in tensors]
    around = [torch.full((900, 2, columns), 7.0, device="cuda") for _ in range(5)]
    del around[1::2]  # memory for the result
    for is_causal in (False, True):
        out, *_ = packed(*tensors, ends, ends, most, most, is_causal, 0.3)
        torch.cuda.synchronize()
        assert out.shape == tensors[0].shape
    assert all(map(torch.equal, tensors, before))
    assert all((x == 7).all() for x in around)


@needs_hopper
@pytest.mark.parametrize("columns", [64, 128, 200])
@pytest.mark.parametrize("most", ["few queries", "few keys", "many"])
def test_the_bits_of_the_host(columns, most):
    ends, key_ends = {
        "few queries": ([0, 1, 3, 40], [0, 300, 300, 550]),
        "few keys": ([0, 150, 151, 290], [0, 60, 61, 180]),
        "many": ([0, 150, 150, 290], [0, 10, 100, 300]),
    }[most]
    q = torch.randn(ends[-1] + 2, 2, columns)
    k, v = torch.randn(2, key_ends[-1] + 2, 1, columns)
    q[-2:] = k[-2:] = v[-2:] = torch.nan
    offsets = [torch.tensor(x, dtype=torch.int32) for x in (ends, key_ends)]
    longest = [int(x.diff().max()) for x in offsets]
    for is_causal in (False, True):
        host = packed(q, k, v, *offsets, *longest, is_causal, 0.1)
        gpu = packed(*to("cuda", q, k, v, *offsets), *longest, is_causal, 0.1)
        for x, y in zip(host, gpu, strict=True):
            assert torch.equal(x, y.cpu())


def x(*shape, **options):
    return torch.zeros(shape, **options)


BAD_OPERANDS = {  # where query is (9, 4, 8), key is (9, 2, 8) and value is (9, 2, 6)
    "v=v.double()": "value is torch.float64; query, key and value must be torch.float32",
    "v=v[0]": "{shapes}; each must have 3 dimensions: rows, heads and columns",
    "v=v[:, :1]": "{shapes}; key and value must have as many heads",
    "q=q[:, :3]": "{shapes}; query's heads must be a multiple of key's",
    "k=k[..., :7]": "{shapes}; query and key must have as many columns",
    "v=v[:8]": "{shapes}; key and value must have as many rows",
    "ends_k=x(3).long()": "offsets_k is torch.int64; it must be torch.int32",
    "ends_k=x(2).int()": "offsets_q is (3,) and offsets_k is (2,); {ends}",
    "ends_q=x(0).int()": "offsets_q is (0,) and offsets_q is (0,); {ends}",
}
SEQUENCES = "both must be (sequences + 1,)"


@pytest.mark.parametrize("replaced", BAD_OPERANDS)
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_bad_operands(replaced, where):
    """On meta tensors as on a device."""
    given = {"q": x(9, 4, 8), "k": x(9, 2, 8), "v": x(9, 2, 6)}
    given |= {"ends_q": x(3).int(), "ends_k": x(3).int()}
    given |= eval(f"dict({replaced})", {"x": x, **given})
    q, k, v = (tuple(given[name].shape) for name in "qkv")
    shapes = f"query is {q}, key is {k} and value is {v}"
    sentence = BAD_OPERANDS[replaced].format(shapes=shapes, ends=SEQUENCES)
    tensors = to(where, *given.values())
    assert_raises(f"tiled::attention_packed: {sentence}", packed, *tensors, 5, 5, False, 1.0)


def test_bad_options():
    tensors, (ends, key_ends, *_) = draw()
    sentence = "tiled::attention_packed: max_q is -1 and max_k is 5; both must be 0 or more"
    assert_raises(sentence, packed, *tensors, ends, key_ends, -1, 5, False, 1.0)
