"""The operators in torch.compile, torch.export and AOTInductor, and torch.library.opcheck."""

import sys

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS, VIEWS, count_compilations
from helpers.converting import as_converted
from helpers.packaging import run
from helpers.thinning import pairwise
from torch._inductor.utils import run_and_get_code
from torch.testing import assert_close

import torch_tiled

pytestmark = pytest.mark.usefixtures("fresh_compiler")
ops = torch.ops.tiled


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_opcheck_matmul(view, requires_grad, device):
    make = VIEWS[view]
    for a, b in (
        (make(3, 4, device=device), make(4, 5, device=device)),
        (make(2, 3, 4, device=device), make(4, 5, device=device)),
        (make(2, 3, 4, device=device), make(2, 4, 5, device=device)),
    ):
        torch.library.opcheck(ops.matmul.default, (a, b.requires_grad_(requires_grad)))
    if not requires_grad:
        half = make(3, 4, device=device).half()
        torch.library.opcheck(
            ops.matmul.default, (half, half.mT), {"out_dtype": torch.float32, "algorithm": "naive"}
        )
    if view != "expanded" or not requires_grad:
        a = make(3, 4, device=device).bfloat16().requires_grad_(requires_grad)
        b = make(4, 5, device=device).requires_grad_(requires_grad)
        for options in ({}, {"out_dtype": torch.bfloat16}):
            torch.library.opcheck(ops.matmul.default, (a, b), options)
            torch.library.opcheck(ops.linear.default, (a, b.mT), options)


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "expanded"])
def test_opcheck_writing(view, device):
    make = VIEWS[view]
    a, b = make(2, 3, 4, device=device), make(4, 5, device=device)
    c = make(2, 3, 5, device=device)
    torch.library.opcheck(ops.gemm_.default, (c, a, b), {"alpha": 0.5, "beta": 2.0})
    torch.library.opcheck(ops.matmul.out, (a, b), {"out": c})


@pairwise
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("view", VIEWS)
def test_opcheck_linear(view, activation, requires_grad, device):
    make = VIEWS[view]
    x, weight = make(2, 3, 4, device=device), make(5, 4, device=device)
    bias = torch.randn(5, device=device, requires_grad=requires_grad)
    weight.requires_grad_(requires_grad)
    for args in ((x, weight), (x, weight, bias)):
        torch.library.opcheck(ops.linear.default, args, {"activation": activation})


# --- torch.compile -------------------------------------------------------------------------------


def loss(x, weight, bias, c):
    """A bit of each operator, with something to fuse between them."""
    y = torch_tiled.linear(x.sin(), weight, bias, activation="gelu")
    z = torch_tiled.matmul(y.cos(), weight, algorithm="tiled16")
    with torch.no_grad():
        c = torch_tiled.gemm_(c.clone(), x, weight.mT, beta=2)
        d = torch_tiled.matmul(x, weight.mT, out=torch.empty_like(c))
    return (z * x).sum() + (y * (c + d)).sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(backend, dynamic, device):
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (4, 7):
        x, weight, bias, c = (
            torch.randn(
                *shape, device=device, dtype=torch.float64, requires_grad=shape != (rows, 5)
            )
            for shape in ((rows, 6), (5, 6), (5,), (rows, 5))
        )
        results = []
        for f in (compiled, loss):
            value = f(x, weight, bias, c)
            results.append((value, *torch.autograd.grad(value, (x, weight, bias))))
        assert_close(*results)


def test_dynamic_shapes_need_no_guards_of_ours(device):
    """One graph serves all sizes; only a broadcast, as in torch.matmul, is another."""
    sizes = [(4, 5, 6), (7, 8, 9), (10, 3, 12), (64, 65, 66)]
    matrices = [
        (torch.randn(m, k, device=device), torch.randn(k, n, device=device)) for m, n, k in sizes
    ]
    assert count_compilations(torch_tiled.matmul, matrices) == 1
    torch.compiler.reset()
    pairs = [(a.to(torch.complex128), b.to(torch.complex128)) for a, b in matrices]
    assert count_compilations(lambda a, b: torch_tiled.matmul(a.conj(), b), pairs) == 1
    torch.compiler.reset()
    batches = [
        (torch.randn(m, n, k, device=device), torch.randn(m, k, n, device=device))
        for m, n, k in sizes
    ]
    assert count_compilations(torch_tiled.matmul, batches) == 1
    torch.compiler.reset()
    layers = [
        (torch.randn(m, 2, k, device=device), torch.randn(n, k, device=device)) for m, n, k in sizes
    ]
    assert count_compilations(torch_tiled.linear, layers) == 1
    torch.compiler.reset()

    def gemm(a, b):
        return torch_tiled.gemm_(a.new_ones(a.shape[0], b.shape[1]), a, b)

    assert count_compilations(gemm, matrices) == 1


def test_sizes_that_depend_on_data(device):
    """The number of rows is unknown until the graph runs."""

    def f(x, weight):
        rows = x[(x[:, 0] > 0).nonzero()[:, 0]]
        y = torch_tiled.linear(rows, weight, activation="relu")
        return y.sum() + torch_tiled.matmul(rows.unsqueeze(1), weight.mT).sum()

    weight = torch.randn(5, 6, device=device, dtype=torch.float64, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        for rows in (8, 12):
            x = torch.randn(rows, 6, device=device, dtype=torch.float64)
            results = [torch.autograd.grad(g(x, weight), weight) for g in (compiled, f)]
            assert_close(*results)


def test_writes_are_seen_by_the_caller_when_compiled(device):
    def f(c, a, b):
        torch_tiled.gemm_(c[1:], a, b)
        return c.sum()

    a, b = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device)
    expected = torch.zeros(4, 5, device=device)
    expected[1:] = a @ b
    for backend in BACKENDS:
        c = torch.zeros(4, 5, device=device)
        total = torch.compile(f, fullgraph=True, backend=backend)(c, a, b)
        assert_close(c, expected)
        assert_close(total, expected.sum())


def test_strided_inputs_are_not_copied_when_compiled(device):
    a = torch.randn(6, 5, device=device)
    b = torch.randn(6, 14, device=device)
    compiled = torch.compile(
        lambda a, b: torch_tiled.matmul(a.mT, b[:, 3::2]), fullgraph=True, backend="inductor"
    )
    out, (code,) = run_and_get_code(compiled, a, b)
    assert_close(out, a.mT @ b[:, 3::2])
    assert "torch.ops.tiled.matmul.default(reinterpret_tensor(" in code
    assert "(5, 6), (1, 5), 0)" in code and "(6, 6), (14, 2), 3)" in code
    assert "empty_strided" not in code.partition("def call(")[2]


def test_compile_under_no_grad_keeps_activations_fused(device):
    graphs = []

    def backend(graph, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def record(graph, inputs):
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=record)(graph, inputs)

    layer = torch_tiled.nn.Linear(4, 3, activation="gelu", device=device)
    x = torch.randn(2, 4, device=device)
    with torch.no_grad():
        out = torch.compile(layer, fullgraph=True, backend=backend)(x)
    assert_close(out, layer(x).detach())
    calls = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert calls == [ops.linear.default]


def test_checkpoint_when_compiled(device):
    x, weight = (
        torch.randn(4, 6, device=device),
        torch.randn(5, 6, device=device, requires_grad=True),
    )

    def f(x, weight):
        def g(x, w):
            return torch_tiled.linear(x, w, activation="silu").sum()

        return torch.utils.checkpoint.checkpoint(g, x, weight, use_reentrant=False)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(compiled(x, weight), weight)
    assert_close(ours, torch.autograd.grad(f(x, weight), weight))


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_compiled_autograd(op, device):
    """The backward pass of an eager forward, compiled."""
    x, weight = (torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2))

    def gradients():
        return torch.autograd.grad(getattr(torch_tiled, op)(x, weight).square().sum(), (x, weight))

    expected = gradients()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        found = gradients()
    assert_close(found, expected)


# --- operands that are clones of what is written -------------------------------------------------

# Inductor may drop the clone.
CLONED = {
    "gemm_, of a clone": lambda c, b: torch_tiled.gemm_(c, c.clone(), b),
    "gemm_, into a clone": lambda c, b: torch_tiled.gemm_((2 * c).clone(), 2 * c, b),
    "out=, of a clone": lambda c, b: torch_tiled.matmul(c.clone(), b, out=c),
}


@pytest.mark.parametrize("name", CLONED)
def test_a_clone_that_is_dropped_is_refused_and_never_wrong(name):
    """Inductor drops the clone of `gemm_(c, c.clone(), b)`, which ran before it was compiled."""
    write = CLONED[name]
    c, b = torch.randn(2, 8, 8)
    expected = write(c.clone(), b)
    try:
        result = torch.compile(write, fullgraph=True)(c.clone(), b)
    except RuntimeError as error:
        assert "shares memory with a; pass a.clone()" in str(error)
    else:
        assert_close(result, expected)


def test_a_product_that_is_added_in_place_needs_no_clone():
    """It is what docs/guide/compile.md advises for `gemm_(c, c.clone(), b)`."""
    c, b = torch.randn(2, 8, 8)
    compiled = torch.compile(lambda c, b: c.add_(torch_tiled.matmul(c, b)), fullgraph=True)
    assert_close(compiled(c.clone(), b), c + c @ b)


def test_functionalize_takes_no_product_that_writes():
    """torch.func.functionalize refuses operators outside of ATen that write to an argument."""
    c, b = torch.randn(2, 8, 8)
    for write in (
        lambda c, b: torch_tiled.gemm_(c, b, b),
        lambda c, b: torch_tiled.matmul(b, b, out=c),
    ):
        with pytest.raises(RuntimeError, match="custom .* operator whose output has alias"):
            torch.func.functionalize(write)(c.clone(), b)
    for product in (torch_tiled.matmul, torch_tiled.linear):
        assert_close(torch.func.functionalize(product)(c, b), product(c, b))


# --- torch.export and AOTInductor ----------------------------------------------------------------


class Model(torch.nn.Module):
    """Two layers, of which the first has an activation of real numbers, and a product."""

    def __init__(self, dtype):
        super().__init__()
        activation = "none" if dtype.is_complex else "gelu"
        self.first = torch_tiled.nn.Linear(6, 5, activation=activation, dtype=dtype)
        self.second = torch_tiled.nn.Linear(5, 6, bias=False, dtype=dtype)

    def forward(self, x):
        y = self.second(self.first(x.conj()))
        return torch_tiled.matmul(y, x.mH)

    def expected(self, x):
        y = F.linear(x.conj(), self.first.weight, self.first.bias)
        y = y if x.is_complex() else F.gelu(y)
        return F.linear(y, self.second.weight) @ x.mH


def export(device, strict, dtype=torch.float64):
    model = Model(dtype).to(device)
    rows = torch.export.Dim("rows", min=2, max=1024)
    x = torch.randn(4, 6, device=device, dtype=dtype)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    return model, program


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, dtype, device, tmp_path):
    model, program = export(device, strict, dtype)
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert {ops.matmul.default, ops.linear.default} <= called
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    lowered = program.run_decompositions()
    for rows in (2, 9):
        x = torch.randn(rows, 6, device=device, dtype=dtype)
        for p in (program, loaded, lowered):
            assert_close(p.module()(x), model.expected(x))


RUN_PACKAGE = """
import sys, torch, torch_tiled
package, data = sys.argv[1:]
x, expected = torch.load(data)
torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), expected)
print("equal")
"""


def run_package(program, x, expected, folder):
    """Packages a program and runs it in a fresh process."""
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(folder / "model.pt2")
    )
    torch.save((x, expected), folder / "data.pt")
    return run(sys.executable, "-c", RUN_PACKAGE, package, folder / "data.pt")


def check_package(model, program, x, folder):
    done = run_package(program, x, model(x), folder)
    if done.returncode < 0:  # a signal: is it ours, or does PyTorch fail by itself?
        plain = torch.nn.Linear(6, 5).to(x.device, x.dtype)
        program = torch.export.export(plain, (x,))
        if run_package(program, x, plain(x), folder).returncode < 0:
            pytest.skip("AOTInductor packages of PyTorch's own products crash here")
    assert done.stdout.endswith("equal\n"), done.stdout


@torch.no_grad()
def test_aoti_package(device, tmp_path):
    model, program = export(device, strict=False)
    x = torch.randn(9, 6, device=device, dtype=torch.float64)
    check_package(model.expected, program, x, tmp_path)


@torch.no_grad()
def test_aoti_package_of_a_converted_model(device, tmp_path):
    layers = torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3, bias=False)
    model = as_converted(torch.nn.Sequential(*layers).to(device))
    rows = torch.export.Dim("rows", min=2, max=100)
    x = torch.randn(4, 6, device=device)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(ops.linear.default) == 2
    check_package(model, program, torch.randn(9, 6, device=device), tmp_path)
