"""The private names of PyTorch that torch_tiled uses, and the behaviour it expects of them."""

import ast
import re
from pathlib import Path

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiled
from torch_tiled import _internals

PUBLIC_ALL_THE_SAME = ("__version__", "_check")  # the latter is documented
SOURCES = sorted(Path(torch_tiled.__file__).parent.rglob("*.py"))


def test_every_name_is_there():
    for name in _internals.__all__:
        assert hasattr(_internals, name), name


def test_no_other_file_uses_private_names():
    """No import of, or attribute access through, a private name of torch outside _internals."""
    for path in SOURCES:
        if path.name == "_internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
                names = ast.unparse(node).split(".")
            else:
                continue
            private = [n for n in names if re.match("_[^_]", n) and n not in PUBLIC_ALL_THE_SAME]
            assert not private, f"{path.name}:{node.lineno} uses {'.'.join(names)}"


def test_forward_ad_active():
    assert not _internals.forward_ad_active()
    with forward_ad.dual_level():
        assert _internals.forward_ad_active()
    seen = []
    torch.func.jvp(
        lambda x: seen.append(_internals.forward_ad_active()) or x, *[(torch.ones(2),)] * 2
    )
    assert seen == [True]


def test_primal_of():
    assert _internals.primal_of(None) is None
    seen = []

    def function(x):
        primal = _internals.primal_of(x)
        seen.append(_internals.has_tangent(primal))
        return primal * x

    x = torch.full((2,), 3.0)
    tangent = torch.func.jvp(function, (x,), (torch.ones(2),))[1]
    assert tangent.tolist() == [3.0, 3.0] and seen == [False]  # half of that of x * x
    nested = torch.func.jvp(lambda x: torch.func.jvp(function, (x,), (x,))[1], (x,), (x,))[1]
    assert nested.tolist() == [18.0, 18.0]  # other levels keep theirs: x x, along x


def test_set_forward_ad_enabled():
    x = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with _internals.set_forward_ad_enabled(False):
            assert forward_ad.unpack_dual(dual * 2).tangent is None
            with _internals.set_forward_ad_enabled(True):
                assert forward_ad.unpack_dual(dual * 2).tangent is not None


def test_transforms_active():
    for transform in (torch.func.grad, torch.func.vmap, torch.func.jacfwd):
        seen = []

        def f(x, seen=seen):
            seen.append(_internals.transforms_active())
            return x.sum()

        transform(f)(torch.ones(2, 2))
        assert seen == [True]
    assert not _internals.transforms_active()


def test_autocast_active():
    assert not _internals.autocast_active()
    with torch.autocast("cpu"):
        assert _internals.autocast_active()
        with torch.autocast("cpu", enabled=False):
            assert not _internals.autocast_active()


def test_has_kernel():
    assert _internals.has_kernel("aten::layer_norm", "AutocastCUDA")
    assert not _internals.has_kernel("aten::layer_norm", "AutocastCPU")


def test_is_jit_tracing():
    seen = []
    torch.jit.trace(lambda x: seen.append(_internals.is_jit_tracing()) or x, torch.ones(2))
    assert seen[0] and not _internals.is_jit_tracing()


def test_modes():
    assert (_internals.dispatch_modes(), _internals.function_modes()) == (0, 0)
    with TorchDispatchMode():
        assert (_internals.dispatch_modes(), _internals.function_modes()) == (1, 0)
    with TorchFunctionMode():
        assert (_internals.dispatch_modes(), _internals.function_modes()) == (0, 1)


def test_below_autograd():
    x = torch.ones(2, requires_grad=True)
    version = x.detach()._version
    with _internals.BelowAutograd():
        assert not torch.ops.aten.mul.Tensor(x, x).requires_grad
        c = torch.zeros(2, 2)
        torch_tiled.gemm_(c, c + 1, c + 1)
    assert c._version > version  # writes are recorded further down
    assert (x * x).requires_grad


def test_keysets():
    keys = _internals.DispatchKeySet
    autograd = keys(_internals.DispatchKey.AutogradCPU)
    inplace = keys(_internals.DispatchKey.ADInplaceOrView)
    cpu = keys(_internals.DispatchKey.CPU)
    both = autograd | inplace | cpu
    assert (both & _internals.AFTER_AUTOGRAD) == (inplace | cpu)
    assert (both & _internals.AFTER_INPLACE) == cpu


def test_exclude_keys():
    a = torch.ones(2, 2)
    key = _internals.DispatchKeySet(_internals.DispatchKey.AutocastCPU)
    with torch.autocast("cpu"):
        assert (a @ a).dtype == torch.bfloat16
        with _internals.ExcludeKeys(key):
            assert (a @ a).dtype == torch.float32


def test_single_level_function():
    class Double(_internals.SingleLevelFunction):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(None)

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors == (None,)
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_gradients_asked_for():
    asked = []

    class Product(_internals.SingleLevelFunction):
        @staticmethod
        def forward(x, y, z):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:2])

        @staticmethod
        def backward(ctx, grad):
            asked.append(tuple(_internals.gradients_asked_for(ctx, ctx.needs_input_grad)))
            x, y = ctx.saved_tensors
            return grad * y, grad * x, None

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    inner = x * 1

    def run(first, second, *inputs):
        out = Product.apply(first, second, None).sum()
        if inputs:
            return torch.autograd.grad(out, inputs)
        return out.backward()

    run(inner, y)
    run(x.detach(), y)
    run(x * 1, y, y)  # a leaf
    run(x * 1, y, x)  # beyond a node
    run(x * 1, y, x, y)
    Product.apply(x * 1, y, None).sum().backward(inputs=[y])
    both, second = (True, True, False), (False, True, False)
    assert asked == [both, second, second, (True, False, False), both, second]


def test_direct_call_keeps_torch_function():
    """Subclasses are seen by the callable inside an OpOverload too."""
    called = []

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            called.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    a = torch.ones(2, 2).as_subclass(Sub)
    op = torch.ops.tiled.matmul.default
    assert isinstance(_internals.call_without_python(op)(a, a), Sub)
    assert isinstance(torch_tiled.matmul(a, a), Sub)
    assert called == [op, op]


def test_version_of():
    x = torch.ones(2)
    before = _internals.version_of(x)
    alias = x.detach()
    x.add_(1)
    assert _internals.version_of(x) == _internals.version_of(alias) == before + 1
    with torch.inference_mode():
        x.add_(1)
        assert _internals.version_of(x) == before + 2
        assert _internals.version_of(torch.ones(2)) is None


def test_assume_constant_result():
    """Dynamo runs the function while it traces, and does not look into it."""
    ran = []

    def constant(x):
        ran.append(x)
        print(x)  # what Dynamo would not put in a graph
        return 3

    @torch.compile(fullgraph=True, backend="eager")
    def f(x):
        return x * constant("three")

    assert _internals.assume_constant_result(constant) is constant
    assert [f(torch.ones(1)).item(), f(torch.ones(1)).item()] == [3, 3]
    assert ran == ["three"]


def test_is_wrapped():
    x = torch.ones(2)
    for transform in (torch.func.vmap, torch.func.grad):
        seen = []
        transform(lambda y, seen=seen: seen.extend(map(_internals.is_wrapped, (x, y))) or y.sum())(
            x
        )
        assert seen == [False, True]


def test_unwrapped():
    x = torch.arange(6).view(2, 3)
    seen = []
    torch.func.vmap(torch.func.vmap(lambda y: seen.append(_internals.unwrapped(y)) or y))(x)
    assert torch.equal(seen[0], x)
    assert _internals.unwrapped(x) is x


def test_negative_view():
    x = torch.randn(3)
    negative = _internals.negative_view(x)
    assert negative.is_neg() and negative.data_ptr() == x.data_ptr()
    assert torch.equal(negative, -x)


def test_pytree_nodes():
    class Node:
        def __init__(self, leaf):
            self.leaf = leaf

    _internals.register_pytree_node(
        Node,
        lambda node: ([node.leaf], None),
        lambda leaves, _: Node(*leaves),
        serialized_type_name="tests.Node",
        flatten_with_keys_fn=lambda node: ([(_internals.GetAttrKey("leaf"), node.leaf)], None),
    )
    x = torch.ones(3, 2)
    assert torch.func.vmap(lambda node: node.leaf.sum())(Node(x)).tolist() == [2, 2, 2]


def test_function_modes_are_put_and_taken_anywhere():
    outer, first, second = (torch.overrides.TorchFunctionMode() for _ in range(3))
    with torch.device("cpu"), outer:
        _internals.insert_function_mode(first, [])
        _internals.insert_function_mode(second, [first])
        stack = torch.overrides._get_current_function_mode_stack()
        assert stack[1:] == [first, second, outer]
        _internals.remove_function_mode(first)
        _internals.remove_function_mode(second)
        assert torch.overrides._get_current_function_mode_stack()[1:] == [outer]
    assert _internals.function_modes() == 0


def test_in_modes():
    same = _internals.in_modes(torch.nn.functional.softmin)
    assert same.__code__ is torch.nn.functional.softmin.__code__
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        same(torch.ones(3), dim=0)
    assert torch.Tensor.softmax in seen and torch.nn.functional.softmin not in seen
