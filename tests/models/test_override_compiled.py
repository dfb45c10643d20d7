"""torch_tiled.override under torch.compile, torch.export, checkpoints and transforms."""

import contextlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.overriding import mixed, operands, ours_alone
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import torch_tiled

UNSEEN = {
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "multi_head_attention_forward": lambda x: torch.nn.MultiheadAttention(4, 2)(x, x, x),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0], x[0].mT, x[0]]),
    "chain_matmul": lambda x: torch.chain_matmul(x[0], x[0].mT, x[0]),
    "matrix_power": lambda x: torch.linalg.matrix_power(x[0] @ x[0].mT, 3),
    "matrix_exp": lambda x: torch.matrix_exp(x[0] @ x[0].mT),
    "cov": lambda x: x[0].cov(),
    "tensordot": lambda x: torch.tensordot(x[0], x[0], dims=2),
    "lstm": lambda x: torch.nn.LSTM(4, 2)(x),
    "bilinear": lambda x: F.bilinear(x[0], x[0], x.new_ones(2, 4, 4)),
    "cdist": lambda x: torch.cdist(x, x),
    "conv1d": lambda x: F.conv1d(x, x),
    "dot": lambda x: torch.dot(x[0, 0], x[0, 0]),
    "vdot": lambda x: torch.vdot(x[0, 0], x[0, 0]),
    "vecdot": lambda x: torch.linalg.vecdot(x, x),
    "inner": lambda x: torch.inner(x[0, 0], x[0, 0]),
    "matmul": lambda x: x.long() @ x.long().mT,
    "mm": lambda x: torch.mm(x[0].int(), x[0].int().mT),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_strict_warns_of_what_is_left(name):
    (x,) = operands((2, 3, 4), dtype=torch.float32)
    with (
        torch_tiled.override(strict=True),
        pytest.warns(UserWarning, match=rf"PyTorch computes .*{name}"),
    ):
        UNSEEN[name](x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch_tiled.override():
            UNSEEN[name](x)


def leaves_to_pytorch(x):
    return x @ x, torch.tensordot(x, x, dims=1), F.linear(x, x), torch.dot(x[0], x[0])


@pytest.mark.parametrize("where", ["around", "inside"])
def test_strict_names_each_product_where_it_is(where):
    """In eager code a warning names the line, in compiled code it comes when it is traced."""
    torch.compiler.reset()
    x = torch.ones(3, 3, dtype=torch.int64)

    def inside(x):
        with torch_tiled.override(strict=True):
            return leaves_to_pytorch(x)

    function, statement = leaves_to_pytorch, torch_tiled.override(strict=True)
    if where == "inside":
        function, statement = inside, contextlib.nullcontext()
    names = ["torch.Tensor.matmul", "torch.functional.tensordot"]
    names += ["torch.nn.functional.linear", "torch.dot"]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for run, expected in ((function, names), (compiled, names), (compiled, [])):
        with warnings.catch_warnings(record=True) as record, statement:
            warnings.simplefilter("always")
            run(x)
        texts = [str(warning.message) for warning in record]
        assert [text.split("PyTorch computes ")[1].split(",")[0] for text in texts] == expected
        assert {warning.filename for warning in record} <= {__file__}
        if run is function:
            line = leaves_to_pytorch.__code__.co_firstlineno + 1
            assert {warning.lineno for warning in record} == {line}


@pytest.mark.parametrize("where", ["context_fn", "inside"])
def test_checkpointed(where, device):
    x, *others = operands((3, 4), (5, 4), (5,), device=device, requires_grad=True)
    (expected,) = torch.autograd.grad(mixed(x, *others).sum(), x)

    def inside(*tensors):
        with torch_tiled.override():
            return mixed(*tensors)

    def contexts():
        return torch_tiled.override(), torch_tiled.override()

    if where == "inside":
        y = checkpoint(inside, x, *others, use_reentrant=False)
    else:
        y = checkpoint(mixed, x, *others, use_reentrant=False, context_fn=contexts)
    with ours_alone():
        (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_close(gradient, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("where", ["around", "inside"])
def test_compiled(where, dynamic, device):
    torch.compiler.reset()  # a function is compiled eight times at most
    tensors = operands((3, 4), (5, 4), (5,), device=device, requires_grad=True)
    expected = mixed(*tensors)
    expected_gradients = torch.autograd.grad(expected.sum(), tensors)

    def inside(*tensors):
        with torch_tiled.override():
            return mixed(*tensors)

    graphs = []

    def record(graph, _):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    function, statement = (mixed, torch_tiled.override()) if where == "around" else (inside, None)
    compiled = torch.compile(function, backend=record, fullgraph=True, dynamic=dynamic)
    with statement or contextlib.nullcontext():
        result = compiled(*tensors)
    (names,) = graphs
    assert {"tiled.matmul.default", "tiled.linear.default"} <= names
    assert not any(name in str(names) for name in ("einsum", "addmm", "bmm"))
    assert_close(result, expected)
    assert_close(torch.autograd.grad(result.sum(), tensors), expected_gradients)
    if where == "around":  # and outside of the statement
        assert_close(compiled(*tensors), expected)
        assert len(graphs) == 2 and not any("tiled" in name for name in graphs[1])
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with statement or contextlib.nullcontext():
        result = compiled(*tensors)
    assert_close(torch.autograd.grad(result.sum(), tensors), expected_gradients)


def written(x, w):
    out = torch.addmm(x, x, w, alpha=2, out=torch.empty_like(x))
    out.addbmm_(x[None], w[None]).addmm_(torch.inner(x, w), w)
    return out[None].baddbmm_(x[None], w[None])[0]


@pytest.mark.parametrize("where", ["around", "inside"])
def test_compiled_to_write(where, device):
    torch.compiler.reset()

    def inside(*tensors):
        with torch_tiled.override():
            return written(*tensors)

    x, w = operands((3, 4), (4, 4), device=device)
    names = set()

    def record(graph, _):
        names.update(str(node.target) for node in graph.graph.nodes)
        return graph

    for backend in (record, "aot_eager"):
        function = written if where == "around" else inside
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        with torch_tiled.override() if where == "around" else contextlib.nullcontext():
            assert_close(compiled(x, w), written(x, w))
    assert "tiled.matmul.default" in names and not any("mm" in name for name in names)


def test_exported(device):
    tensors = operands((3, 4), (5, 4), (5,), device=device)

    class Mixed(torch.nn.Module):
        def forward(self, *tensors):
            return mixed(*tensors)

    with torch_tiled.override():
        program = torch.export.export(Mixed(), tuple(tensors))
    names = {str(node.target) for node in program.graph.nodes}
    assert {"tiled.matmul.default", "tiled.linear.default"} <= names
    assert not names & {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}
    assert_close(program.module()(*tensors), mixed(*tensors))


def test_transforms(device):
    a, b = operands((5, 3, 4), (4, 2), device=device)
    with torch_tiled.override():
        result = torch.func.vmap(torch.matmul, (0, None))(a, b)
        jacobian = torch.func.jacrev(torch.matmul)(a[0], b)
        _, tangent = torch.func.jvp(torch.matmul, (a[0], b), (a[1], b))
    assert_close(result, a @ b)
    assert_close(jacobian, torch.func.jacrev(torch.matmul)(a[0], b))
    assert_close(tangent, a[1] @ b + a[0] @ b)
