"""torch_tiled.invariant: the bits of functions and models, the switch, and what is refused."""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from helpers.needs import needs_hopper
from helpers.small_models import small
from helpers.thinning import pairwise
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import get_overridable_functions
from torch.testing import assert_close

import torch_tiled
from torch_tiled import invariance, invariant
from torch_tiled._invariant_routes import INSIDE, INVARIANT_ROUTES
from torch_tiled._invariant_table import ATOMIC, IN_EVAL, advice, is_kept, row_of

REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def of(x, shape):
    """A parameter of the function under test, the same in each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(x)


def rms_norm_by_pow(x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


# Functions of a batch of vectors of 160 numbers.
ROWS = {
    "matmul": lambda x: x @ of(x, (160, 48)),
    "linear": lambda x: F.linear(x, of(x, (48, 160)), of(x, (48,))),
    "addmm": lambda x: torch.addmm(of(x, (48,)), x, of(x, (160, 48)), alpha=0.5),
    "mv": lambda x: x.mv(of(x, (160,))),
    "vecdot": lambda x: torch.linalg.vecdot(x, x.flip(1)),
    "tensordot": lambda x: torch.tensordot(x, of(x, (48, 160)), ([1], [1])),
    "einsum": lambda x: torch.einsum("bi,ij,kj->bk", x, of(x, (160, 9)), of(x, (7, 9))),
    "einsum of one": lambda x: torch.einsum("bi->b", x),
    "bilinear": lambda x: F.bilinear(x, x, of(x, (3, 160, 160)), of(x, (3,))),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=1),
    "softmin": lambda x: F.softmin(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "nansum": lambda x: torch.nansum(x, 1),
    "var": lambda x: x.var(1),
    "std_mean": lambda x: torch.stack(torch.std_mean(x, dim=1), 1),
    "norm": lambda x: x.norm(dim=1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "normalize": lambda x: F.normalize(x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1)),
    "layer_norm": lambda x: F.layer_norm(x, (160,), of(x, (160,)), of(x, (160,))),
    "rms_norm": lambda x: F.rms_norm(x, (160,), of(x, (160,))),
    "rms_norm by pow": lambda x: rms_norm_by_pow(x),
    "group_norm": lambda x: F.group_norm(x.unflatten(1, (8, 20)), 4),
    "instance_norm": lambda x: F.instance_norm(x.unflatten(1, (8, 20))),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.full((len(x),), 7, device=x.device), reduction="none"
    ),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.unflatten(1, (2, 5, 16))] * 3),
    "conv1d": lambda x: F.conv1d(x.unflatten(1, (8, 20)), of(x, (6, 8, 3)), padding=1),
    "conv2d of groups": lambda x: F.conv2d(
        x.unflatten(1, (8, 5, 4)), of(x, (6, 4, 2, 2)), of(x, (6,)), 2, 1, 1, 2
    ),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.unflatten(1, (8, 5, 4)), 1),
}


def assert_near(y, expected, dtype):
    """Asserts that an error is a small part of the largest element; others test errors."""
    assert y.shape == expected.shape and y.dtype == dtype
    limit = (8 if dtype.itemsize == 2 else 64) * torch.finfo(dtype).eps * expected.abs().max()
    assert_close(y.double(), expected, rtol=0, atol=limit.item())


@pairwise
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_its_bits_alone(name, dtype, device):
    """So does its gradient."""
    batch, function = torch.randn(37, 160, device=device).to(dtype), ROWS[name]

    def run(x):
        x = x.clone().requires_grad_()
        with invariant(strict=True):
            y = function(x)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        return y.detach(), grad

    expected = function(batch.double())
    y, grad = run(batch)
    assert_near(y, expected, dtype)
    for rows in (slice(0, 1), slice(5, 8), slice(20, 37)):
        some, some_grad = run(batch[rows])
        assert torch.equal(some, y[rows])
        assert torch.equal(some_grad, grad[rows])


@pytest.mark.parametrize("precision", ["fp32", "ieee", "tf32"])
@pytest.mark.parametrize("dtype", [*REAL, torch.complex64, torch.complex128], ids=str)
def test_products_on_a_cpu_have_the_bits_of_an_order(dtype, precision):
    x, w = torch.randn(5, 200).to(dtype), torch.randn(200, 7).to(dtype)
    is_16bit, is_single = dtype.itemsize == 2, dtype in (torch.float32, torch.complex64)
    named = "mma" if is_16bit else {"fp32": "fp16x3", "tf32": "tf32"}.get(precision, "tiled")
    algorithm = named if is_16bit or is_single else "tiled"
    options = {"algorithm": algorithm, "precision": precision}
    expected = torch_tiled.matmul(x, w, **options)
    with invariant(precision):
        assert torch.equal(x @ w, expected)
        assert torch.equal(torch_tiled.matmul(x, w, precision=precision), expected)
        assert torch.equal(torch_tiled.linear(x, w.mT, precision=precision), expected)
        assert torch.equal(torch.mm(x, w, out=torch.empty_like(expected)), expected)


def test_in_autocast_regions(device):
    """Also functions that PyTorch casts nothing for there."""
    x, w, v = torch.randn(4, 160), torch.randn(48, 160), torch.randn(160)
    x, w, v = (y.to(device) for y in (x, w, v))
    with torch.autocast(device, torch.bfloat16), invariant(strict=True):
        y, z = F.linear(x, w), x.mv(v)
        attended = F.scaled_dot_product_attention(*[x.unflatten(1, (10, 16))] * 3)
        assert y.dtype == attended.dtype == torch.bfloat16
        assert torch.equal(F.linear(x[1:2], w), y[1:2]) and torch.equal(x[1:2].mv(v), z[1:2])
        out = torch.empty(4, 48, device=device)
        assert torch.addmm(out, x, w.mT, beta=0, out=out).dtype == torch.float32
    with torch.autocast(device, torch.bfloat16):
        assert z.dtype == x.mv(v).dtype


def test_grouped_mm(device):
    a, b = torch.randn(10, 160, device=device), torch.randn(3, 160, 8, device=device)
    ends = torch.tensor([4, 4, 9], device=device, dtype=torch.int32)
    options = {"algorithm": "fp16x3"}
    with invariant(strict=True):
        results = F.grouped_mm(a, b, offs=ends), torch_tiled.grouped_mm(a, b, offs=ends)
        batches = F.grouped_mm(b.mT.contiguous(), b)
        columns = F.grouped_mm(b.mT.contiguous(), a.mT, offs=ends)
        along_k = F.grouped_mm(a.mT, a, offs=ends)
    for y in results:
        assert torch.equal(y[:4], torch_tiled.matmul(a[:4], b[0], **options))
        assert torch.equal(y[4:9], torch_tiled.matmul(a[4:9], b[2], **options))
        assert y.shape == (10, 8)
    assert torch.equal(batches[1], torch_tiled.matmul(b[1].mT, b[1], **options))
    assert torch.equal(columns[:, 4:9], torch_tiled.matmul(b[2].mT, a[4:9].mT, **options))
    assert along_k.shape == (3, 160, 160) and not along_k[1].any()


# --- Attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "ieee"])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_attention_with_padding(dtype, precision, device):
    """Keys that a mask hides on the right change no bits, if K is summed in one chunk."""
    q, k, v = (torch.randn(3, heads, 9, 16, device=device).to(dtype) for heads in (4, 2, 2))
    seen = torch.arange(9, device=device) < torch.tensor([[9], [5], [7]], device=device)
    with invariant(precision, strict=True):
        y = F.scaled_dot_product_attention(q, k, v, seen[:, None, None], enable_gqa=True)
        alone = F.scaled_dot_product_attention(
            q[1:2], k[1:2, :, :5], v[1:2, :, :5], enable_gqa=True
        )
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        given = q[:, :, 4:5], k[:, :, :5], v[:, :, :5]
        one = F.scaled_dot_product_attention(*given, enable_gqa=True)
    assert torch.equal(alone, y[1:2]) and torch.equal(one[:, :, 0], causal[:, :, 4])
    tensors = (x.double() for x in (q, k, v))
    expected = F.scaled_dot_product_attention(*tensors, seen[:, None, None], enable_gqa=True)
    assert_near(y, expected, dtype)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_attention_of_many_columns_and_biases(dtype, device):
    q, k, v = torch.randn(3, 2, 2, 5, 300, device=device).to(dtype)
    bias = torch.randn(5, 5, device=device).to(dtype)
    hidden = bias.masked_fill(torch.ones(5, 5, dtype=torch.bool, device=device).triu(0), -torch.inf)
    lower = causal_lower_right(5, 5)
    for mask in (bias, hidden, lower):
        with invariant(strict=True):
            y = F.scaled_dot_product_attention(q, k, v, mask, scale=0.1)
            alone = F.scaled_dot_product_attention(q[:1], k[:1], v[:1], mask, scale=0.1)
        assert torch.equal(alone, y[:1])
        dense = mask if mask is not lower else torch.ones_like(bias).tril().bool()
        wide = dense.double() if dense.is_floating_point() else dense
        expected = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), wide, scale=0.1)
        assert_near(y, expected, dtype)


def test_attention_with_dropout(device):
    q = torch.randn(2, 2, 50, 16, device=device)
    with invariant(strict=True):
        y = F.scaled_dot_product_attention(q, q, torch.ones_like(q), dropout_p=0.5)
    assert y.std() > 0.05
    assert_close(y.mean(), torch.ones((), device=device), rtol=0, atol=0.1)


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_attention_on_a_gpu_has_the_bits_of_a_cpu(dtype):
    q, k, v = torch.randn(3, 2, 2, 70, 64).to(dtype)
    with invariant(strict=True):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        on_gpu = F.scaled_dot_product_attention(q.cuda(), k.cuda(), v.cuda(), is_causal=True)
    assert torch.equal(on_gpu.cpu(), y)


@pytest.mark.parametrize("needs_weights", [True, False])
def test_modules_with_fast_paths(needs_weights, device):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval().to(device)
    x = torch.randn(5, 6, 32, device=device)
    hidden = torch.arange(6, device=device) >= torch.tensor(
        [[6], [4], [3], [6], [5]], device=device
    )
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=hidden)
        with invariant(strict=True):
            y = layer(x, src_key_padding_mask=hidden)
            for i in range(5):
                alone = layer(x[i : i + 1], src_key_padding_mask=hidden[i : i + 1])
                assert torch.equal(alone, y[i : i + 1])
            attended = layer.self_attn(x, x, x, need_weights=needs_weights)
            one = layer.self_attn(x[2:3], x[2:3], x[2:3], need_weights=needs_weights)
    assert_close(y, expected)
    assert torch.equal(one[0], attended[0][2:3])
    assert not needs_weights or torch.equal(one[1], attended[1][2:3])


# --- The statement and the switch ----------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    with pytest.raises(RuntimeError, match="nothing is enabled in this thread"):
        invariant.disable()
    assert torch.overrides._get_current_function_mode_stack() == []


def precision_of_products():
    x = torch.randn(3, 200)
    y = x @ x.mT
    for precision, algorithm in (("fp32", "fp16x3"), ("ieee", "tiled"), ("tf32", "tf32")):
        options = {"precision": precision, "algorithm": algorithm}
        if torch.equal(y, torch_tiled.matmul(x, x.mT, **options)):
            return precision
    return None


def test_statements_nest():
    assert precision_of_products() is None
    with invariant("ieee"):
        assert precision_of_products() == "ieee"
        with invariant():
            assert precision_of_products() == "fp32"
            with torch_tiled.override():
                assert precision_of_products() == "fp32"  # and the statement around it names it
                x = torch.randn(40, 300)
                assert torch.equal(x.sum(1)[:1], x[:1].sum(1))
        with pytest.raises(ZeroDivisionError), invariant("tf32"):
            assert precision_of_products() == "tf32"
            raise ZeroDivisionError
        assert precision_of_products() == "ieee"
    assert precision_of_products() is None


@pytest.mark.parametrize("statement", [torch_tiled.invariant, torch_tiled.override])
def test_decorators(statement):
    """Each call has a statement of its own, also in recursion and in compiled code."""

    @statement("ieee")
    def multiply(a, b, depth=2):
        """Multiplies."""
        return a @ b if depth == 0 else multiply(a, b, depth=depth - 1)

    a, b = torch.randn(5, 33), torch.randn(33, 7)
    with statement("ieee"):
        expected = a @ b
    assert multiply.__doc__ == "Multiplies." and torch.equal(multiply(a, b), expected)
    compiled = torch.compile(multiply, backend="eager", fullgraph=True)
    assert torch.equal(compiled(a, b, depth=0), expected)

    def generate():
        yield

    with pytest.raises(RuntimeError, match=f"{statement.__name__}: generate is a generator or a"):
        statement()(generate)


def test_many_strict_statements():
    x = torch.randn(3, 40)
    with contextlib.ExitStack() as statements:
        for _ in range(40):  # each asks for the tensors' dtypes
            statements.enter_context(invariant(strict=True))
        assert torch.equal(x.sum(1)[:1], x[:1].sum(1)) and x.relu().min() >= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prepared_and_frozen_operands(dtype, device):
    x, b = torch.randn(9, 70, device=device).to(dtype), torch.randn(70, 40, device=device).to(dtype)
    prepared = torch_tiled.prepare(b)
    layer = torch.nn.Sequential(torch.nn.Linear(70, 8)).to(device, dtype).eval()
    torch_tiled.convert(layer)
    torch_tiled.freeze(layer)
    with torch.no_grad(), invariant(strict=True):
        assert torch.equal(torch_tiled.matmul(x, prepared)[:1], torch_tiled.matmul(x[:1], prepared))
        assert torch.equal(layer(x)[:1], layer(x[:1]))
        assert torch_tiled.invariance(layer, x)


def test_a_count_has_a_gradient():
    x = torch.randn(5, requires_grad=True)
    with invariant():
        assert x.norm(0).requires_grad and x.norm(0) == 5


def test_the_switch():
    invariant.enable("ieee")
    assert precision_of_products() == "ieee"
    invariant.enable("tf32")
    assert precision_of_products() == "tf32"
    with invariant():
        assert precision_of_products() == "fp32"
    invariant.disable()
    assert precision_of_products() == "ieee"
    invariant.disable()
    assert precision_of_products() is None


def test_a_switch_in_a_statement_is_around_it():
    with invariant("tf32"):
        invariant.enable("ieee")
        assert precision_of_products() == "tf32"
    assert precision_of_products() == "ieee"
    with torch.device("cpu"), invariant():
        invariant.disable()
        assert precision_of_products() == "fp32"
    torch.set_default_device("cpu")
    invariant.enable()
    torch.set_default_device(None)
    assert precision_of_products() == "fp32"
    invariant.disable()


def test_a_statement_holds_for_its_thread():
    found = []

    def run():
        found.append(precision_of_products())
        invariant.enable("ieee")
        found.append(precision_of_products())
        invariant.disable()

    invariant.enable()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [None, "ieee"] and precision_of_products() == "fp32"
    invariant.disable()


def test_a_generator_keeps_its_statement_until_it_ends():
    def rows():
        with invariant():
            yield precision_of_products()
            yield precision_of_products()

    assert list(rows()) == ["fp32", "fp32"]
    assert precision_of_products() is None


def test_unknown_precisions_are_refused():
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        invariant("exact")
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        invariant.enable("exact")


def test_gradients_after_the_invariant(strict=True):
    x, w = torch.randn(4, 200, requires_grad=True), torch.randn(9, 200, requires_grad=True)
    with invariant():
        y = F.linear(x, w).softmax(-1)
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    with invariant():
        alone = F.linear(x[2:3], w).softmax(-1)
    (one,) = torch.autograd.grad(alone.square().sum(), x)
    assert torch.equal(one[2:3], grad[2:3])


# --- What is refused -----------------------------------------------------------------------------


REFUSED = {
    "torch.linalg.svd": (lambda x: torch.linalg.svd(x), "for one matrix at a time"),
    "torch.lstm": (lambda x: nn.LSTM(6, 3)(x), "write the cell with"),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), "call eval()"),
    "torch.Tensor.prod": (lambda x: x.prod(1), "sum"),
    "torch.Tensor.index_put": (
        lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
        "use_deterministic_algorithms",
    ),
    "torch.linalg.matrix_norm": (lambda x: torch.linalg.matrix_norm(x), "vector_norm"),
    "torch.linalg.norm": (lambda x: torch.linalg.norm(x, "nuc"), "operands or options"),
    "torch.Tensor.sum": (lambda x: x.to_sparse().sum(), "operands or options"),
    "torch.fft.fft": (lambda x: torch.fft.fft(x), "one sample at a time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_strict_refuses(name):
    function, remedy = REFUSED[name]
    x = torch.randn(4, 6)
    with invariant():
        function(x)
    if name == "torch.Tensor.sum":
        x = x.to_sparse()
        function = torch.Tensor.sum
    with invariant(strict=True), pytest.raises(RuntimeError) as error:
        function(x)
    assert str(error.value).startswith("torch_tiled.invariant: ") and name in str(error.value)
    assert remedy in str(error.value) and "or drop strict=True" in str(error.value)


def test_strict_takes_what_is_exact():
    x = torch.randn(4, 6)
    with invariant(strict=True):
        torch.ones(3, 3, dtype=torch.int64) @ torch.ones(3, 3, dtype=torch.int64)
        torch.arange(5).prod()
        nn.BatchNorm1d(6).eval()(x)
        x.index_put((torch.tensor([0]),), x[:1])
        x.index_add(0, torch.tensor([0, 0]), x[:2])
        nn.utils.rnn.pad_sequence([x, x[:2]])
        F.max_pool1d(x[None], 2)
    parameter = nn.Parameter(x)
    optimizer = torch.optim.AdamW([parameter])
    with invariant(strict=True):
        parameter.square().sum().backward()
        optimizer.step()
        torch.autograd.grad(parameter.sum(), parameter)
    with (
        torch_tiled.invariant(strict=True),
        pytest.raises(RuntimeError, match="in torch_tiled's ta"),
    ):
        torch.ops.mylib_of_a_test.identity(x)


@pytest.fixture(autouse=True, scope="module")
def unknown_operator():
    library = torch.library.Library("mylib_of_a_test", "DEF")
    library.define("identity(Tensor x) -> Tensor")
    library.impl("identity", lambda x: x.clone(), "CPU")
    yield
    library._destroy()


def test_every_function_of_pytorch_has_a_row():
    """A function of a new torch is not covered until it has one."""
    replaced = {row_of(f.__name__) for f in (*INVARIANT_ROUTES, *INSIDE) if hasattr(f, "__name__")}
    names = {
        row_of(f.__name__) for functions in get_overridable_functions().values() for f in functions
    }
    known = replaced | {IN_EVAL} | set(ATOMIC.split())
    left = {x for x in names if x not in known and not is_kept(x) and advice(x) is None}
    assert left <= {"linear_cross_entropy"}
    assert not [x for x in known if is_kept(x) and advice(x) is not None]


# --- Models --------------------------------------------------------------------------------------


def lookup(name, device, dtype):
    task = small(name, device)
    batch = (x.to(dtype) if x.is_floating_point() else x for x in task.batch())
    return task.model.eval().to(dtype), batch


def assert_invariant(model, inputs, **options):
    with torch.no_grad(), invariant(strict=True):
        report = invariance(model, inputs, **options)
    assert report.equal and report.first is None, str(report)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bert", torch.float32), ("bert", torch.bfloat16), ("vit", torch.float32)],
    ids=str,
)
def test_classifiers(name, dtype, device):
    model, (inputs, _) = lookup(name, device, dtype)
    assert_invariant(model, inputs[:3])


def test_a_padded_batch_has_the_bits_of_each_sequence(device):
    model, (tokens, _) = lookup("bert", device, torch.float32)
    lengths = [32, 7, 19, 1]
    mask = torch.arange(32, device=device) < torch.tensor(lengths, device=device)[:, None]
    with torch.no_grad(), invariant(strict=True):
        hidden = model.bert(tokens[:4], mask.long()).last_hidden_state
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        for i, length in enumerate(lengths):
            alone = model.bert(tokens[i : i + 1, :length]).last_hidden_state
            assert torch.equal(alone[0], hidden[i, :length])
            assert torch.equal(alone.sum(1)[0] / mask[i].sum(), pooled[i])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_language_models(name, device):
    model, (tokens,) = lookup(name, device, torch.float32)
    assert_invariant(model, tokens[:3, :12])


def test_a_graph_model(device):
    """A node has the same bits whatever other graphs are in the batch."""
    model, (nodes, edges, _) = lookup("graph", device, torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad(), invariant(strict=True):
            alone = model(nodes, edges)
            both = model(
                torch.cat([nodes, nodes.flip(0)]), torch.cat([edges, edges + len(nodes)], 1)
            )
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(both[: len(nodes)], alone)


def test_batch_norm_in_training_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(32))
    with torch.no_grad(), invariant():
        report = invariance(model, torch.randn(6, 32, 4))
    assert not report.equal and report.first.operator.endswith("batch_norm")
    assert "call eval()" in report.first.advice
