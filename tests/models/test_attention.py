"""torch.nn.MultiheadAttention and the Transformer layers, by torch_tiled.convert and override."""

import contextlib
import functools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS
from helpers.converting import as_converted, classes
from helpers.copies import COPIES
from helpers.needs import needs_hopper
from helpers.overriding import Products
from helpers.reference import SMALLEST, U, assert_within, gamma
from helpers.thinning import pairwise
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import torch_tiled
from torch_tiled import _routes, converted

EMBED, HEADS = 16, 4


@contextlib.contextmanager
def without_fast_path():
    """PyTorch's own modules compute by functions, as converted ones do."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def assert_as_before(result, expected):
    """Asserts that float64 results are close, and that the first of each has the same strides."""
    assert result[0].stride() == expected[0].stride()
    assert_close(result, expected)


def causal(n, device):
    return torch.nn.Transformer.generate_square_subsequent_mask(n, device=device)


# The masks of a call, for 5 queries, 7 or 5 keys and a batch of 2.
MASKS = {
    "none": lambda s, device: {},
    "padding": lambda s, device: {
        "key_padding_mask": torch.arange(s, device=device).expand(2, s)
        >= torch.tensor([[s - 2], [s]], device=device)
    },
    "float padding": lambda s, device: {
        "key_padding_mask": torch.randn(2, s, dtype=torch.float64, device=device)
    },
    "attention": lambda s, device: {
        "attn_mask": torch.ones(5, s, dtype=torch.bool, device=device).triu(2)
    },
    "attention of each head": lambda s, device: {
        "attn_mask": torch.randn(2 * HEADS, 5, s, dtype=torch.float64, device=device)
    },
    "both": lambda s, device: MASKS["padding"](s, device) | MASKS["attention"](s, device),
    "causal": lambda s, device: {
        "attn_mask": causal(5, device).double() if s == 5 else None,
        "is_causal": s == 5,
    },
}
WEIGHTS = {
    "none": {"need_weights": False},
    "mean": {},
    "each head": {"average_attn_weights": False},
}
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_k": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "kdim": {"kdim": 6, "vdim": 10},
    "vdim": {"vdim": 10, "add_bias_kv": True, "add_zero_attn": True, "bias": False},
    "dropout": {"dropout": 0.5},
}


@pairwise
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("attends", ["itself", "others", "three"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name, mask, weights, attends, batch_first, training, device):
    """Values and gradients, by convert and by override."""
    layer = torch.nn.MultiheadAttention(
        EMBED, HEADS, batch_first=batch_first, device=device, dtype=torch.float64, **OPTIONS[name]
    ).train(training)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    s = 5 if attends == "itself" else 7

    def tensor(length, size):
        shape = (2, length, size) if batch_first else (length, 2, size)
        return torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)

    query = key = value = tensor(5, EMBED)
    if attends != "itself" or layer.kdim != EMBED or layer.vdim != EMBED:
        key = value = tensor(s, layer.kdim)
    if attends == "three" or layer.vdim != layer.kdim:
        value = tensor(s, layer.vdim)
    leaves = list({id(x): x for x in (query, key, value, *layer.parameters())}.values())

    def run(contexts):
        torch.manual_seed(0)
        with contexts, sdpa_kernel(SDPBackend.MATH):
            output, shares = layer(query, key, value, **MASKS[mask](s, device), **WEIGHTS[weights])
        outputs = [output] if shares is None else [output, shares]
        loss = sum(each.square().sum() for each in outputs)
        return *outputs, *torch.autograd.grad(loss, leaves)

    expected = run(without_fast_path())
    with Products() as seen:
        assert_as_before(run(torch_tiled.override()), expected)
    assert seen.products()[1] > 0
    torch_tiled.convert(layer)
    with Products() as seen:
        assert_as_before(run(contextlib.nullcontext()), expected)
    names = [name for name in seen.names() if "matmul" not in name]
    assert len(names) >= (2 if query is key is value else 3)
    assert not [name for name in seen.names("aten") if "linear" in name or "addmm" in name]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("dim", [2, 3])
@torch.no_grad()
def test_the_fast_path_is_left(dim, need_weights, device):
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, batch_first=True, device=device).eval()
    x = torch.randn(2, 5, EMBED, device=device)[0 if dim == 2 else ...]
    with Products() as seen:
        layer(x, x, x)
    assert ("aten::_native_multi_head_attention" in seen.names("aten")) == (dim == 3)
    torch_tiled.convert(layer)
    for context in (contextlib.nullcontext(), torch_tiled.override()):
        with Products() as seen, context:
            layer(x, x, x, need_weights=need_weights)
        assert len(seen.names()) >= 2
        assert not [x for x in seen.names("aten") if "native" in x or "linear" in x]


# --- float32 -------------------------------------------------------------------------------------


def bound_of_product(a, ea, b, eb):
    """The error of float32's a @ b if a and b are off by ea and eb; all are float64."""
    k = a.shape[-1]
    size = (a.abs() + ea) @ (b.abs() + eb)
    lost = ea @ (b.abs() + eb) + a.abs() @ eb
    # fp16x3, the least exact of orders, counts as 32 roundings more than a sum in sequence.
    return lost + gamma(k + 32, U[torch.float32]) * size + k * SMALLEST[torch.float32]


def exact_attention(layer, x, mask):
    """Self-attention in float64, and the error that float32 may have in each of its steps.

    Every step is bounded to first order in its own roundings, by the magnitudes of its operands
    and what they are already off by.
    """
    u, weight, bias = U[torch.float32], layer.in_proj_weight.double(), layer.in_proj_bias.double()

    def projected(y, ey, weight, bias):
        none = torch.zeros_like(weight.mT)
        exact = y @ weight.mT + bias
        error = bound_of_product(y, ey, weight.mT, none)
        return exact, error + 2 * u * (exact.abs() + error + bias.abs())

    def heads(y):
        return y.unflatten(-1, (HEADS, -1)).transpose(-2, -3)

    qkv, error = projected(x, torch.zeros_like(x), weight, bias)
    (q, k, v), (eq, ek, ev) = (map(heads, y.chunk(3, -1)) for y in (qkv, error))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.mT * scale + mask
    # q and k are scaled by rounded numbers, the mask is added.
    es = bound_of_product(q, eq + 3 * u * q.abs(), k.mT, (ek + 3 * u * k.abs()).mT) * scale
    es = es + u * (scores.abs().where(scores.isfinite(), 0) + es)
    p = scores.softmax(-1)
    # exp(scores - max) is off by its argument's error and by its own rounding, as its sum is; a max
    # that is off changes no share.
    below = scores.amax(-1, keepdim=True) - scores
    argument = es + u * below.where(below.isfinite(), 0)
    relative = torch.expm1(argument + argument.amax(-1, keepdim=True))
    relative = relative + gamma(p.shape[-1] + 16, u)
    ep = p * relative + SMALLEST[torch.float32]
    o, eo = (y.transpose(-2, -3).flatten(-2) for y in (p @ v, bound_of_product(p, ep, v, ev)))
    out = layer.out_proj
    return projected(o, eo, out.weight.double(), out.bias.double())


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(5, 16), (9, 140)], ids=str)
@torch.no_grad()
def test_float32(sizes, masked, need_weights, device):
    n, embed = sizes
    layer = torch.nn.MultiheadAttention(embed, HEADS, batch_first=True, device=device).eval()
    torch.nn.init.normal_(layer.in_proj_bias), torch.nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(2, n, embed, device=device)
    mask = causal(n, device) if masked else None
    options = {"attn_mask": mask, "need_weights": need_weights}
    exact, limit = exact_attention(layer, x.double(), 0 if mask is None else mask.double())
    wide, wide_mask = x.double(), None if mask is None else mask.double()
    with without_fast_path():
        assert_close(exact, layer.double()(wide, wide, wide, attn_mask=wide_mask)[0])
    assert limit.mean() < exact.abs().mean() / 64
    layer.float()
    results = []
    with sdpa_kernel(SDPBackend.MATH):
        with without_fast_path():
            results.append(layer(x, x, x, **options)[0])
        with torch_tiled.override():
            results.append(layer(x, x, x, **options)[0])
        results.append(as_converted(layer)(x, x, x, **options)[0])
    for result in results:
        assert_within(result, exact, limit)


# --- the Transformer layers ----------------------------------------------------------------------


class OwnEncoder(torch.nn.TransformerEncoder):
    def forward(self, src, *args, **options):
        return super().forward(src, *args, **options) * self.scale

    scale = 2


def encoder(
    device="cpu", dtype=torch.float64, layers=2, kind=torch.nn.TransformerEncoder, **options
):
    layer = torch.nn.TransformerEncoderLayer(
        EMBED, HEADS, 32, batch_first=True, device=device, dtype=dtype, **options
    )
    return kind(layer, layers, norm=torch.nn.LayerNorm(EMBED)).to(device, dtype)


def padding(device):
    return torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)


CALLS = {
    "plain": lambda model, x, device: model(x),
    "mask": lambda model, x, device: model(x, mask=causal(5, device).to(x.dtype), is_causal=True),
    "padding": lambda model, x, device: model(x, src_key_padding_mask=padding(device)),
}


ENCODERS = [torch.nn.TransformerEncoder, OwnEncoder]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_encoders(training, grad, call, kind, device):
    model = encoder(device, kind=kind, activation="gelu").train(training)
    x = torch.randn(2, 5, EMBED, device=device, dtype=torch.float64)

    def run():
        torch.manual_seed(0)
        with torch.set_grad_enabled(grad), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
            return CALLS[call](model, x, device)

    with without_fast_path():
        expected = run()
    fast = run() if device == "cpu" else expected  # CUDA's fast path is not for float64
    torch_tiled.convert(model, strict=True)
    with Products() as seen:
        result = run()
    assert not [
        name
        for name in seen.names("aten")
        if "linear" in name or "transformer" in name or "addmm" in name or "nested" in name
    ]
    assert len(seen.names()) == 2 * 4
    assert_as_before([result], [expected])
    rows = ~padding(device) if call == "padding" else slice(None)
    assert_close(result[rows], fast[rows])
    torch_tiled.revert(model)
    with contextlib.nullcontext() if device == "cpu" else without_fast_path():
        assert_close(run(), fast)


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_a_transformer(training, device):
    model = torch.nn.Transformer(
        EMBED, HEADS, 1, 2, 32, dropout=0.1, batch_first=True, device=device, dtype=torch.float64
    ).train(training)
    source, target = torch.randn(2, 2, 5, EMBED, device=device, dtype=torch.float64)

    def run():
        torch.manual_seed(0)
        mask = causal(5, device).double()
        return model(source, target, tgt_mask=mask, memory_key_padding_mask=padding(device))

    with without_fast_path():
        expected = run()
    with Products() as seen, torch_tiled.override():
        assert_as_before([run()], [expected])
    assert len(seen.names()) == 4 + 2 * (2 + 3 + 2)
    torch_tiled.convert(model, strict=True)
    with Products() as seen:
        assert_as_before([run()], [expected])
    assert len(seen.names()) == 4 + 2 * (2 + 3 + 2)


@pytest.mark.parametrize("kind", ENCODERS)
def test_report_of_encoders(kind):
    model = encoder(layers=1, kind=kind)
    kinds, before = classes(model), {n: dict(vars(m)) for n, m in model.named_modules()}
    dry = torch_tiled.convert(model, dry_run=True)
    assert classes(model) == kinds
    report = torch_tiled.convert(model)
    layers = ["self_attn", "linear1", "linear2"]
    names = ["", "layers.0", *(f"layers.0.{name}" for name in layers)]
    assert report.changed == dry.changed == names
    assert list(report.left) == ["layers.0.self_attn.out_proj"]
    assert report.rows[1].reason == "it calls its layers, without PyTorch's fast path"
    assert type(model) is converted.converted_class(kind)
    assert issubclass(type(model), (converted.Converted, kind))
    assert [row.kind for row in report.rows][:2] == [kind.__name__, "TransformerEncoderLayer"]
    assert type(model.layers[0].self_attn) is converted.MultiheadAttention
    assert torch_tiled.convert(model, precision="ieee").changed == names
    assert torch_tiled.revert(model).changed == names
    assert {n: dict(vars(m)) for n, m in model.named_modules()} == before
    assert classes(model) == kinds


def test_encoders_whose_layers_are_left():
    model = encoder(layers=2)
    report = torch_tiled.convert(model, include="layers.1.linear1")
    assert report.changed == ["", "layers.1", "layers.1.linear1"]
    assert report.left["layers.0"] == "no layer in it is converted"
    assert type(model.layers[0]) is torch.nn.TransformerEncoderLayer
    assert torch_tiled.revert(model).changed == report.changed
    report = torch_tiled.convert(model, lambda module, name: isinstance(module, torch.nn.LSTM))
    assert report.changed == []


class Own(torch.nn.TransformerEncoderLayer):
    pass


class OwnAttention(torch.nn.MultiheadAttention):
    pass


def test_subclasses_are_left():
    layer = Own(EMBED, HEADS, 32, batch_first=True)
    report = torch_tiled.convert(layer)
    assert "in eval(), without gradients, it reads its layers' weights" == report.left[""]
    assert "self_attn" in report.changed
    assert "OwnAttention, which may" in torch_tiled.convert(OwnAttention(EMBED, HEADS)).left[""]
    parametrized = torch.nn.MultiheadAttention(EMBED, HEADS)
    torch.nn.utils.parametrizations.orthogonal(parametrized, "in_proj_weight")
    assert "is parametrized" in torch_tiled.convert(parametrized).left[""]
    on_meta = torch.nn.MultiheadAttention(EMBED, HEADS, kdim=4, device="meta")
    assert "on the meta device" in torch_tiled.convert(on_meta).left[""]


@torch.no_grad()
def test_nested_tensors_are_pytorch_s():
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, batch_first=True).eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
        x = torch.nested.nested_tensor([torch.randn(n, EMBED) for n in (3, 5)])
        expected = layer(x, x, x, need_weights=False)[0]
        torch_tiled.convert(layer)
        with pytest.warns(UserWarning, match="MultiheadAttention. computes by torch, since its qu"):
            result = layer(x, x, x, need_weights=False)[0]
        torch_tiled.convert(layer, strict=True)
        with pytest.raises(RuntimeError, match="query is a nested tensor, which strict"):
            layer(x, x, x, need_weights=False)
    assert_close(result.unbind(), expected.unbind())


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_converted(copied, kind):
    model = as_converted(encoder(kind=kind))
    other = copied(model)
    assert classes(other) == classes(model)
    other.load_state_dict(encoder().state_dict())
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, EMBED, dtype=torch.float64)
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_autocast(device):
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, device=device)
    x = torch.randn(5, 2, EMBED, device=device)
    with torch.autocast(device, torch.bfloat16):
        expected = layer(x, x, x)
        with torch_tiled.override():
            overridden = layer(x, x, x)
        with Products() as seen:
            result = as_converted(layer)(x, x, x)
    assert [y.dtype for y in result] == [y.dtype for y in expected]
    assert len(seen.names()) == 2
    assert all(map(torch.equal, result, overridden))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_compiled(need_weights, backend, device, fresh_compiler):
    options = {"batch_first": True, "device": device, "dtype": torch.float64}
    plain = torch.nn.MultiheadAttention(EMBED, HEADS, **options)
    layer = as_converted(torch.nn.MultiheadAttention(EMBED, HEADS, **options))
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, EMBED, device=device, dtype=torch.float64, requires_grad=True)

    def ours(x):
        return layer(x, x, x, need_weights=need_weights)[0]

    def theirs(x):
        return plain(x, x, x, need_weights=need_weights)[0]

    def inside(x):
        with torch_tiled.override():
            return theirs(x)

    expected = theirs(x)
    wanted = torch.autograd.grad(expected.square().sum(), x)
    graphs = []

    def record(graph, _):
        graphs.append(str(graph.graph))
        return graph

    for function, statement in (
        (ours, contextlib.nullcontext()),
        (inside, contextlib.nullcontext()),
        (theirs, torch_tiled.override()),
    ):
        with statement:
            torch.compile(function, backend=record, fullgraph=True)(x)
            result = torch.compile(function, backend=backend, fullgraph=True)(x)
        assert graphs.pop().count("torch.ops.tiled.linear.default") == 2
        assert_close(result, expected)
        assert_close(torch.autograd.grad(result.square().sum(), x), wanted)
    program = torch.export.export(layer, (x, x, x))
    assert str(program.graph).count("tiled.linear") == 2
    assert_close(program.module()(x, x, x)[0], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_a_compiled_encoder(backend, device, fresh_compiler):
    model = as_converted(encoder(device)).eval()
    x = torch.randn(2, 5, EMBED, device=device, dtype=torch.float64)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    result = compiled(x, src_key_padding_mask=padding(device))
    assert_close(result, model(x, src_key_padding_mask=padding(device)))
    graphs = torch._dynamo.explain(model)(x).graphs
    assert "".join(str(each.graph) for each in graphs).count("tiled.linear.default") == 2 * 4


def test_a_forward_that_was_kept():
    layer = as_converted(torch.nn.MultiheadAttention(EMBED, HEADS))
    kept = layer.forward
    x = torch.randn(5, 2, EMBED)
    expected = layer(x, x, x)
    torch_tiled.revert(layer)
    assert_close(kept(x, x, x), expected)
    layer.forward = kept
    assert torch_tiled.convert(layer).changed == [""] and "forward" not in vars(layer)


class Tagged(torch.Tensor):
    """A tensor that says which functions it was given to."""

    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_sees_attention_whole():
    layer = torch.nn.MultiheadAttention(EMBED, HEADS)
    x = torch.randn(5, 2, EMBED)
    tagged = x.as_subclass(Tagged)
    with torch_tiled.override():
        result = layer(tagged, tagged, tagged)[0]
    assert F.multi_head_attention_forward in Tagged.seen
    assert_close(result.as_subclass(torch.Tensor), layer(x, x, x)[0])


# --- attention between the projections -----------------------------------------------------------


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_hopper)])
def attends(request, monkeypatch):
    """A device that has an attention of torch_tiled; a CPU has its kernel, as a GPU has."""
    if request.param == "cpu":
        monkeypatch.setattr(_routes, "runs_on_gpu", lambda *tensors: True)
    return request.param


def attentions(seen):
    return seen.names().count("tiled::attention")


def as_float32(options):
    return {
        name: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }


@pytest.mark.parametrize("keys", [5, 7])
@pytest.mark.parametrize("mask", MASKS)
def test_its_attention(mask, keys, attends):
    """Values and gradients are PyTorch's; a call that returns weights has products as before."""
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, batch_first=True, device=attends)
    query = torch.randn(2, 5, EMBED, device=attends, requires_grad=True)
    key = query if keys == 5 else torch.randn(2, keys, EMBED, device=attends)
    options = as_float32(MASKS[mask](keys, attends))
    leaves = [query, *layer.parameters()]

    def run(context, need_weights=False):
        with context as seen:
            output, _ = layer(query, key, key, need_weights=need_weights, **options)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)], seen

    close = functools.partial(assert_close, rtol=1e-4, atol=1e-4)
    with sdpa_kernel(SDPBackend.MATH):
        expected, _ = run(without_fast_path())
    with torch_tiled.override():
        overridden, seen = run(Products())
    assert attentions(seen) == 1 and overridden[0].stride() == expected[0].stride()
    close(overridden, expected)
    torch_tiled.convert(layer)
    found, seen = run(Products())
    assert attentions(seen) == 1 and torch.equal(found[0], overridden[0])
    close(found, expected)
    found, seen = run(Products(), need_weights=True)
    assert attentions(seen) == 0
    close(found, expected)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "ieee"])
@pytest.mark.parametrize("dropout", [0, 0.5])
@torch.no_grad()
def test_whose_attention(precision, dropout, attends):
    x = torch.randn(2, 5, EMBED, device=attends)
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, dropout, device=attends)
    count = 1 if precision != "ieee" and dropout == 0 else 0
    with Products() as seen, torch_tiled.override(precision):
        layer(x, x, x, need_weights=False)
    assert attentions(seen) == count
    torch_tiled.convert(layer, precision=precision)
    with Products() as seen:
        layer(x, x, x, need_weights=False)
    assert attentions(seen) == count


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_attention_of_an_encoder(call, training, attends, fresh_compiler):
    model = encoder(attends, torch.float32, dropout=0).train(training)
    x = torch.randn(2, 5, EMBED, device=attends)
    with without_fast_path(), sdpa_kernel(SDPBackend.MATH):
        expected = CALLS[call](model, x, attends)
    torch_tiled.convert(model)
    with Products() as seen:
        found = CALLS[call](model, x, attends)
    assert attentions(seen) == 2
    assert_close(found, expected, rtol=1e-4, atol=1e-4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(CALLS[call](compiled, x, attends), found)
