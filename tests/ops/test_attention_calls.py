"""Calls of attention: PyTorch's shapes and masks, what auto leaves to PyTorch, and errors."""

import functools

import pytest
import torch
import torch.nn.functional as F
from helpers.attention import draw, exact, operator, ours, reference, to
from helpers.attention_bounds import attention_bound
from helpers.bad_calls import assert_raises
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401
from helpers.reference import assert_within
from helpers.samples import op_db
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled

(OP_INFO,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
auto = torch_tiled.nn.functional.scaled_dot_product_attention
close = functools.partial(assert_close, rtol=1e-5, atol=1e-5)


def samples(device, layout):
    """PyTorch's samples without dropout: q, k and v, and options. There are 11 or more."""
    count = 0
    for sample in OP_INFO.sample_inputs(device, torch.float32, requires_grad=False):
        if sample.kwargs.get("dropout_p", 0) == 0:
            sample = sample.noncontiguous() if layout == "noncontiguous" else sample
            yield (sample.input, *sample.args), dict(sample.kwargs)
            count += 1
    assert count > 10


each_layout = pytest.mark.parametrize("layout", ["contiguous", "noncontiguous"])


@each_layout
def test_the_samples_of_pytorch(device, layout):
    for tensors, options in samples(device, layout):
        expected = F.scaled_dot_product_attention(*tensors, **options)
        found = ours(*tensors, **options)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        batch = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))
        q, k, v = (x.expand(*batch, *x.shape[-2:])[(None,) * (2 - len(batch))] for x in tensors)
        causal = options.get("attn_mask"), 0 if options["is_causal"] else None
        wanted, weights = exact(q, k, v, *causal)
        limit = attention_bound(q, k, v, *causal, weights=weights)
        assert_within(found, wanted.reshape(found.shape), limit.reshape(found.shape))


@each_layout
def test_gradients_of_the_samples_of_pytorch(device, layout):
    """Also of an additive mask. Scores reach hundreds, and PyTorch's errors are as large."""
    for tensors, options in samples(device, layout):
        mask = options.pop("attn_mask", None)
        tensors = [x for x in (*tensors, mask) if x is not None]

        def gradients(function, dtype, tensors=tensors, options=options):
            leaves = [x.to(dtype).detach().requires_grad_() for x in tensors]
            return torch.autograd.grad(function(*leaves, **options).sin().sum(), leaves)

        expected = gradients(reference, torch.float64)
        results = gradients(ours, torch.float32), gradients(reference, torch.float32)
        for found, theirs, wanted in zip(*results, expected, strict=True):
            limit = 4 * (theirs - wanted).abs().max() + 1e-5 * wanted.abs().max()
            assert (found - wanted).abs().max() <= limit


SHAPES = [  # of q, k and v without their last two dimensions
    [(), (), ()],
    [(3,), (3,), (3,)],
    [(1,), (3,), (3,)],
    [(2, 3), (2, 3), (2, 3)],
    [(2, 3), (1, 3), (2, 1)],
    [(3,), (2, 3), (1, 1)],
    [(7, 1, 2, 3), (2, 3), (1, 3)],
    [(0, 3), (0, 3), (0, 3)],
    [(2, 0), (2, 0), (2, 0)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("queries, keys", [(4, 5), (0, 5), (4, 0), (1, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_leading_dimensions(device, shapes, queries, keys, is_causal):
    sizes = (queries, 8), (keys, 8), (keys, 6)
    q, k, v = (torch.randn(*x, *y, device=device) for x, y in zip(shapes, sizes, strict=True))
    found = ours(q, k, v, is_causal=is_causal)
    if found.numel() == 0 or keys == 0:  # PyTorch does not broadcast then
        assert found.shape == (*torch.broadcast_shapes(*shapes), queries, 6)
        assert not found.any()
    else:
        close(found, F.scaled_dot_product_attention(q, k, v, is_causal=is_causal))


@pytest.mark.parametrize("k_heads, v_heads", [(6, 6), (3, 3), (1, 1), (3, 2), (1, 6)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_grouped_heads(device, k_heads, v_heads, batch):
    q = torch.randn(*batch, 6, 4, 8, device=device)
    k = torch.randn(*batch, k_heads, 5, 8, device=device)
    v = torch.randn(*batch, v_heads, 5, 3, device=device)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    close(ours(q, k, v, enable_gqa=True), expected)


MASKS = [(4, 5), (1, 5), (4, 1), (3, 4, 5), (3, 1, 1), (2, 1, 1, 5), (1, 1, 1, 1, 5), (5,)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("batch", [(2, 3), (2, 2, 3)])
def test_masks(device, shape, dtype, batch):
    _, k, v = to(device, *draw(2, 3, 3, 4, 5, 8))
    q = torch.randn(*batch, 4, 8, device=device)
    mask = torch.randn(shape, device=device)
    mask = mask > -0.5 if dtype == torch.bool else mask
    wide = mask if mask.dim() > 1 else mask[None]  # PyTorch refuses a mask of one dimension
    wide = wide.squeeze(0) if mask.dim() == 5 and len(batch) == 2 else wide
    wide = wide.expand(*wide.shape[:-1], 5).contiguous()  # and on a GPU one that is broadcast here
    close(ours(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, wide))


def test_a_query_that_sees_no_key_is_zeros(device):
    q, k, v = to(device, *draw(1, 2, 2, 4, 5, 8))
    mask = torch.ones(4, 5, dtype=torch.bool, device=device)
    mask[2] = False
    bias = torch.zeros(4, 5, device=device).masked_fill(~mask, -torch.inf)
    for given in (mask, bias):
        found = ours(q, k, v, given)
        assert not found[:, :, 2].any()
        close(found, F.scaled_dot_product_attention(q, k, v, given))


@pytest.mark.parametrize("queries, keys", [(4, 7), (7, 7), (7, 4)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_causal_biases(device, queries, keys):
    q, k, v = to(device, *draw(1, 2, 2, queries, keys, 8))
    for bias, offset in (
        (causal_upper_left(queries, keys), 0),
        (causal_lower_right(queries, keys), keys - queries),
    ):
        close(ours(q, k, v, bias), exact(q, k, v, None, offset)[0].float())
        assert auto(q, k, v, bias).shape == q.shape


@pytest.mark.parametrize("scale", [None, 0.3, 2, -1.5])
def test_scale(device, scale):
    q, k, v = to(device, *draw(1, 2, 2, 4, 5, 8))
    close(ours(q, k, v, scale=scale), F.scaled_dot_product_attention(q, k, v, scale=scale))


def test_auto_is_pytorch_s_on_a_cpu():
    q, k, v = draw(1, 2, 2, 9, 11, 8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        tensors = [x.to(dtype) for x in (q, k, v)]
        assert torch.equal(auto(*tensors), F.scaled_dot_product_attention(*tensors))


def test_auto_of_what_no_kernel_takes(device):
    """Other dtypes and head sizes are PyTorch's on a GPU, too."""
    for dtype, columns in ((torch.float64, 8), (torch.bfloat16, 264), (torch.float32, 264)):
        tensors = to(device, *draw(1, 2, 2, 9, 11, columns, dtype=dtype))
        assert torch.equal(auto(*tensors), F.scaled_dot_product_attention(*tensors))


@needs_hopper
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
def test_auto_and_override_on_hopper(mask):
    q, k, v = to("cuda", *draw(1, 2, 1, 9, 11, 64))
    bias = None if mask is None else torch.randn(9, 11, device="cuda")
    bias = bias > 0 if mask == torch.bool else bias
    expected = ours(q, k, v, bias, enable_gqa=True)
    assert torch.equal(auto(q, k, v, bias, enable_gqa=True), expected)
    call = functools.partial(F.scaled_dot_product_attention, enable_gqa=True)
    for precision in ("fp32", "tf32"):
        with torch_tiled.override(precision):
            assert torch.equal(call(q, k, v, bias), expected)
    theirs = call(q, k, v, bias)
    with torch_tiled.override("ieee"):
        assert torch.equal(call(q, k, v, bias), theirs)
    with torch_tiled.override():
        assert call(q, k, v, bias, dropout_p=0.9).shape == expected.shape
        wide = to("cuda", *draw(1, 2, 1, 9, 11, 264))
        assert torch.equal(call(*wide), auto(*wide, enable_gqa=True))


@needs_hopper
def test_columns_that_no_gpu_s_kernel_takes():
    q, k, v = to("cuda", *draw(1, 2, 2, 9, 11, 264))
    with pytest.raises(RuntimeError, match="on a GPU it takes up to 256 columns"):
        ours(q, k, v)


def test_override_leaves_a_cpu_to_pytorch():
    q, k, v = draw(1, 2, 2, 9, 11, 64)
    with torch_tiled.override():
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(9, 11))
    mask = torch.ones(9, 11, dtype=torch.bool).tril(2)
    assert torch.equal(found, F.scaled_dot_product_attention(q, k, v, mask))


def test_auto_in_autocast_regions(device):
    q, k, v = to(device, *draw(1, 2, 2, 9, 11, 8))
    with torch.autocast(device, torch.bfloat16):
        assert auto(q, k, v).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="autocast casts query to torch.bfloat16, and"):
            ours(q, k, v)


def test_flops():
    q, k, v = draw(2, 4, 2, 5, 7, 8, 6)
    with FlopCounterMode(display=False) as counter:
        ours(q, k, v, enable_gqa=True)
    assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 7 * (8 + 6)


NAME = "torch_tiled.nn.functional.scaled_dot_product_attention"


def x(*shape, **options):
    return torch.zeros(shape, **options)


BAD_CALLS = {
    'auto(q, q, q, algorithm="magic")': (
        'there is no algorithm "magic"; choose auto or fp16x3 or mma'
    ),
    "auto(q, q, q, dropout_p=0.1)": (
        "dropout_p is 0.1; pass 0, or call torch.nn.functional.scaled_dot_product_attention, which "
        "has dropout"
    ),
    "ours(q[0, 0, 0], q, q)": (
        "query is (8,), key is (1, 2, 4, 8) and value is (1, 2, 4, 8); each must have at least 2 "
        "dimensions"
    ),
    "ours(q, 1, q)": "key is of type int; pass a tensor",
    "ours(q, q, q, q[0, 0, :, :4], is_causal=True)": (
        "is_causal is True and attn_mask is given; pass one of them"
    ),
    "ours(q, x(1, 3, 4, 8), q)": (
        "query is (1, 2, 4, 8), key is (1, 3, 4, 8) and value is (1, 2, 4, 8); their leading "
        "dimensions do not broadcast; enable_gqa=True is for fewer heads"
    ),
    "ours(q[0, 0], q, q, enable_gqa=True)": (
        "query is (4, 8), key is (1, 2, 4, 8) and value is (1, 2, 4, 8); with enable_gqa each must "
        "have at least 3 dimensions"
    ),
    "ours(q, q, q, x(3, 1, 1, 4, 4))": (
        "attn_mask is (3, 1, 1, 4, 4); it must expand to (1, 2, 4, 4), which are leading "
        "dimensions, queries and keys"
    ),
    "ours(q, q, q, causal_lower_right(3, 4))": (
        "attn_mask is a CausalBias of (3, 4), and there are 4 queries and 4 keys; make it of these "
        "sizes"
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_calls(call):
    names = globals() | {"q": x(1, 2, 4, 8)}
    assert_raises(f"{NAME}: {BAD_CALLS[call]}", eval, call, names)


BAD_OPERANDS = {  # where query is (1, 4, 3, 8), key is (1, 2, 5, 8) and value is (1, 2, 5, 6)
    "k=k.double()": (
        "key is torch.float64; query, key and value must be torch.float32, torch.bfloat16 or "
        "torch.float16"
    ),
    "v=v.half()": (
        "value is torch.float16 and query is torch.float32; query, key and value must have one "
        "dtype"
    ),
    "v=v[0]": "{shapes}; each must have 4 dimensions: batch, heads, rows and columns",
    "k=x(2, 2, 5, 8)": "{shapes}; their batches must be equal",
    "v=x(1, 4, 5, 6)": "{shapes}; key and value must have as many heads",
    "q=x(1, 3, 3, 8)": "{shapes}; query's heads must be a multiple of key's",
    "k=k[:, :0], v=v[:, :0]": "{shapes}; query's heads must be a multiple of key's",
    "k=k[..., :7]": "{shapes}; query and key must have as many columns",
    "v=v[:, :, :4]": "{shapes}; key and value must have as many rows",
    "mask=x(3, 5).long()": "attn_mask is torch.int64; it must be torch.bool or torch.float32",
    "mask=x(3, 4)": "attn_mask is (3, 4); {expand}",
    "mask=x(1, 1, 1, 3, 5)": "attn_mask is (1, 1, 1, 3, 5); {expand}",
}
EXPAND = "it must expand to (1, 4, 3, 5), which are batch, heads, queries and keys"


@pytest.mark.parametrize("replaced", BAD_OPERANDS)
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_bad_operands(replaced, where):
    """On meta tensors as on a device."""
    given = {"q": x(1, 4, 3, 8), "k": x(1, 2, 5, 8), "v": x(1, 2, 5, 6), "mask": None}
    given |= eval(f"dict({replaced})", {"x": x, **given})
    q, k, v = (tuple(given[name].shape) for name in "qkv")
    shapes = f"query is {q}, key is {k} and value is {v}"
    sentence = BAD_OPERANDS[replaced].format(shapes=shapes, expand=EXPAND)
    tensors = to(where, *given.values())
    assert_raises(f"tiled::attention: {sentence}", operator, *tensors, None, 1.0)


def test_tensors_that_are_not_dense():
    q = x(1, 2, 4, 8)
    with pytest.raises(RuntimeError, match="key is a sparse tensor"):
        operator(q, q.to_sparse(), q, None, None, 1.0)


def test_devices():
    q = x(1, 2, 4, 8)
    with pytest.raises(
        RuntimeError, match="key and query must be on one device|key is on meta and query is"
    ):
        operator(q, q.to("meta"), q, None, None, 1.0)


def test_meta_tensors_and_no_columns():
    assert ours(*(torch.randn(2, 3, 5, 8, device="meta"),) * 3).shape == (2, 3, 5, 8)
    mean = ours(torch.zeros(1, 0), torch.zeros(2, 0), torch.tensor([[1.0], [3.0]]))
    assert mean.item() == 2


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"attn_mask": [1]}, "attn_mask is of type list; pass a tensor or None"),
        ({"scale": "x"}, "scale is of type str; pass a number"),
        ({"query": torch.eye(5).to_sparse()}, "its query is torch.sparse_coo; pass a dense tensor"),
    ],
)
def test_arguments_of_other_types(change, sentence):
    named = dict.fromkeys(("query", "key", "value"), torch.eye(5)) | change
    with pytest.raises(RuntimeError, match=sentence):
        ours(**named)
