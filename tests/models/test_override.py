"""PyTorch's functions rerouted: torch_tiled.override."""

import contextlib
import itertools
import operator
import threading
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.calls import Calls
from helpers.reference import assert_within, halves_bound
from torch.backends import opt_einsum
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_tiled


class Seen(TorchDispatchMode):
    """The names of the operators that run, without their namespaces and overloads."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    def products(self):
        """Of PyTorch's and of ours, how many."""
        theirs = (
            "aten::mm",
            "aten::bmm",
            "aten::addmm",
            "aten::baddbmm",
            "aten::mv",
            "aten::addmv",
        )
        theirs += ("aten::linear", "aten::matmul", "aten::dot", "aten::addmm_", "aten::addmv_")
        theirs += ("aten::baddbmm_", "aten::addbmm", "aten::addbmm_")
        names = [name.partition(".")[0] for name in self.names]
        return sum(name in theirs for name in names), sum("tiled::" in name for name in names)


def operands(*shapes, device="cpu", dtype=torch.float64, **options):
    return [torch.randn(shape, device=device, dtype=dtype, **options) for shape in shapes]


CALLS = {
    "torch.matmul": (torch.matmul, (2, 3, 4), (4, 5)),
    "torch.linalg.matmul": (torch.linalg.matmul, (3, 4), (4, 5)),
    "Tensor.matmul": (torch.Tensor.matmul, (4,), (4, 5)),
    "@": (lambda a, b: a @ b, (3, 4), (4,)),
    "__rmatmul__": (lambda a, b: b.__rmatmul__(a), (3, 4), (4, 5)),
    "@=": (operator.imatmul, (4, 4), (4, 4)),
    "dot by matmul": (torch.matmul, (4,), (4,)),
    "torch.mm": (torch.mm, (3, 4), (4, 5)),
    "torch.mm by name": (lambda a, b: torch.mm(input=a, mat2=b), (3, 4), (4, 5)),
    "Tensor.mm": (torch.Tensor.mm, (3, 4), (4, 5)),
    "torch.bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "Tensor.bmm": (torch.Tensor.bmm, (2, 3, 4), (2, 4, 5)),
    "torch.mv": (torch.mv, (3, 4), (4,)),
    "Tensor.mv": (torch.Tensor.mv, (3, 4), (4,)),
    "torch.addmm": (torch.addmm, (5,), (3, 4), (4, 5)),
    "torch.addmm, scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        (3, 5),
        (3, 4),
        (4, 5),
    ),
    "Tensor.addmm by name": (lambda c, a, b: c.addmm(mat1=a, mat2=b), (3, 1), (3, 4), (4, 5)),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b, alpha=-1), (3, 5), (3, 4), (4, 5)),
    "torch.baddbmm": (torch.baddbmm, (1, 5), (2, 3, 4), (2, 4, 5)),
    "Tensor.baddbmm": (
        lambda c, a, b: c.baddbmm(a, b, beta=-1),
        (2, 3, 5),
        (2, 3, 4),
        (2, 4, 5),
    ),
    "baddbmm_": (lambda c, a, b: c.clone().baddbmm_(a, b), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=3), (3,), (3, 4), (4,)),
    "Tensor.addmv": (torch.Tensor.addmv, (3,), (3, 4), (4,)),
    "addmv_": (lambda c, a, b: c.clone().addmv_(a, b), (3,), (3, 4), (4,)),
    "torch.addbmm": (torch.addbmm, (5,), (2, 3, 4), (2, 4, 5)),
    "Tensor.addbmm": (
        lambda c, a, b: c.addbmm(batch1=a, batch2=b, alpha=2),
        (3, 5),
        (2, 3, 4),
        (2, 4, 5),
    ),
    "addbmm_": (lambda c, a, b: c.clone().addbmm_(a, b, beta=-1), (3, 5), (2, 3, 4), (2, 4, 5)),
    "torch.inner": (torch.inner, (3, 4), (5, 4)),
    "Tensor.inner": (torch.Tensor.inner, (4,), (2, 5, 4)),
    "F.linear": (F.linear, (2, 3, 4), (5, 4)),
    "F.linear with bias": (F.linear, (2, 3, 4), (5, 4), (5,)),
    "torch.nn.Linear": (
        lambda x, w, b: torch.func.functional_call(
            torch.nn.Linear(4, 5), {"weight": w, "bias": b}, x
        ),
        (3, 4),
        (5, 4),
        (5,),
    ),
    "torch.einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "torch.einsum of a list": (
        lambda *x: torch.einsum("ij,jk,kl", x),
        (3, 4),
        (4, 5),
        (5, 2),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_is_torch_tiled_s_and_so_are_its_gradients(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, requires_grad=True)
    expected = function(*tensors)
    wanted = torch.autograd.grad(expected.sum(), tensors)
    with Seen() as seen, torch_tiled.override(strict=True):
        result = function(*tensors)
    theirs, ours = seen.products()
    assert theirs == 0 and ours > 0
    assert result.dtype == expected.dtype
    assert_close(result, expected)
    with Seen() as seen:
        gradients = torch.autograd.grad(result.sum(), tensors)
    assert seen.products()[0] == 0
    assert_close(gradients, wanted)


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,kj->ki", (3, 4), (5, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij , ...jk", (2, 1, 3, 4), (6, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (4,), (4,)),
    ("i,i->i", (4,), (4,)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 6)),
    ("ab,ab->b", (3, 4), (3, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhqk,bhkd->bqhd", (2, 3, 4, 6), (2, 3, 6, 5)),
    ("ij,kl->jl", (3, 4), (5, 6)),
    ("i...,i...->...", (3, 2, 4), (3, 2, 4)),
    ("i...,i...->", (3, 2, 4), (3, 2, 4)),
    ("ij,jk->ik", (3, 0), (0, 5)),
    ("bij,jk->bik", (2, 3, 4), (1, 5)),
    ("...,...->...", (2, 3), (3,)),
    ("ab,b,a->", (3, 4), (4,), (3,)),
    ("Ab,bC", (3, 4), (4, 2)),
    ("ij,jk->k", (3, 1), (4, 5)),
]


@pytest.mark.parametrize("equation, shapes", [(x, y) for x, *y in EQUATIONS], ids=str)
def test_einsum(equation, shapes, device):
    tensors = operands(*shapes, device=device, requires_grad=True)
    expected = torch.einsum(equation, *tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch_tiled.override(strict=True):
            result = torch.einsum(equation, *tensors)
    assert_close(result, expected)
    gradients = [torch.autograd.grad(x.sum(), tensors) for x in (result, expected)]
    assert_close(*gradients)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (5, 6)]),
        ("ij,jk->iz", [(3, 4), (4, 6)]),
        ("ij,jk->ii", [(3, 4), (4, 6)]),
        ("ij,jk", [(3, 4, 5), (4, 6)]),
        ("ij", [(3, 4), (4, 6)]),
        ("i1,1k", [(3, 4), (4, 6)]),
        ("ii,ij->ij", [(3, 1), (3, 6)]),
    ],
    ids=str,
)
def test_einsum_s_errors_are_pytorch_s(equation, shapes):
    tensors = operands(*shapes)
    with pytest.raises(RuntimeError) as expected:
        torch.einsum(equation, *tensors)
    with torch_tiled.override(), pytest.raises(RuntimeError) as error:
        torch.einsum(equation, *tensors)
    assert str(error.value) == str(expected.value)


def einsum_s_products(equation, *tensors):
    """torch.einsum by torch_tiled, checked, and the shapes of what it multiplies."""
    with Calls() as calls, torch_tiled.override(strict=True):
        result = torch.einsum(equation, *tensors)
    assert_close(result, torch.einsum(equation, *tensors))
    return [
        tuple(tuple(x.shape) for x in args)
        for name, args, _ in calls.calls
        if name == "tiled::matmul"
    ]


FROM_THE_LEFT = [((30, 4), (4, 50)), ((30, 50), (50, 3))]
FROM_THE_RIGHT = [((4, 50), (50, 3)), ((30, 4), (4, 3))]


@pytest.mark.skipif(not opt_einsum.is_available(), reason="no opt_einsum")
@pytest.mark.parametrize("strategy", ["auto", "greedy", "optimal"])
def test_einsum_in_the_order_of_opt_einsum(strategy, device):
    tensors = operands((30, 4), (4, 50), (50, 3), device=device)
    with opt_einsum.flags(enabled=True, strategy=strategy):
        assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_RIGHT
    with opt_einsum.flags(enabled=False):
        assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_LEFT


def test_einsum_in_any_order(monkeypatch):
    """Whatever path opt_einsum might find; it need not be installed for this."""

    def take(path):
        found = types.SimpleNamespace(contract_path=lambda *_, **__: (path, ""))
        module = types.SimpleNamespace(enabled=True, strategy="", get_opt_einsum=lambda: found)
        monkeypatch.setattr(torch_tiled.einsum, "opt_einsum", module)

    take([(1, 2), (0, 1)])
    tensors = operands((30, 4), (4, 50), (50, 3))
    assert einsum_s_products("ij,jk,kl", *tensors) == FROM_THE_RIGHT
    compiled = torch.compile(torch.einsum, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch_tiled.override(strict=True):
        assert_close(compiled("ij,jk,kl", *tensors), torch.einsum("ij,jk,kl", *tensors))
    tensors = operands((2, 3), (2, 3, 4), (4, 5), (2, 5, 6))
    for path in itertools.product(*(itertools.permutations(range(n), 2) for n in (4, 3, 2))):
        take(path)
        einsum_s_products("ab,abc,cd,ade->ae", *tensors)


op_db = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="PyTorch's OpInfo database needs expecttest",
).op_db
OPS = ("matmul", "__rmatmul__", "mm", "bmm", "mv", "inner", "addmm", "addbmm", "baddbmm", "addmv")
OPS += ("einsum", "nn.functional.linear", "linalg.multi_dot")
ROUNDED = (torch.float32, torch.float16, torch.bfloat16)  # so that orders of a sum differ


def doubled(sample, change=lambda x: x):
    """The sample in float64, with its tensors and scales changed."""
    wide = sample.transform(lambda x: change(x.double()) if isinstance(x, torch.Tensor) else x)
    for name, value in wide.kwargs.items():
        if isinstance(value, (int, float)):
            wide.kwargs[name] = change(torch.tensor(value)).item()
    return wide


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64],
    ids=str,
)
@pytest.mark.parametrize("op", [x for x in op_db if x.name in OPS], ids=lambda x: x.formatted_name)
def test_pytorch_s_own_samples(op, dtype, device):
    if dtype not in op.supported_dtypes(device):
        pytest.skip("PyTorch does not multiply these")
    for variant in (op.op, op.method_variant, op.inplace_variant):
        if variant is None:
            continue
        for sample in op.sample_inputs(device, dtype):

            def run(sample, variant=variant):
                first = sample.input
                if variant is op.inplace_variant:
                    first = first.clone()
                return variant(first, *sample.args, **sample.kwargs)

            if variant is op.inplace_variant and sample.broadcasts_input:
                continue
            expected = run(sample)
            with torch_tiled.override():
                result = run(sample)
            assert result.shape == expected.shape and result.dtype == expected.dtype
            if dtype not in ROUNDED or torch.equal(result, expected):  # or PyTorch's as before
                assert_close(result, expected)
            else:
                exact, size = run(doubled(sample)), run(doubled(sample, torch.abs))
                # Of two products at most, one after another; a sum is rounded with its product.
                assert_within(result, exact, halves_bound(exact, size, 64, 2, dtype))


@pytest.mark.parametrize(
    "name", ["mm", "bmm", "mv", "matmul", "inner", "addmm", "addbmm", "baddbmm"]
)
def test_pytorch_s_own_errors(name, device):
    op = next(x for x in op_db if x.name == name)
    if op.error_inputs_func is None:
        pytest.skip("it has none")
    for error in op.error_inputs(device):
        sample = error.sample_input
        with torch_tiled.override(), pytest.raises(error.error_type):
            op(sample.input, *sample.args, **sample.kwargs)


# --- the statement -------------------------------------------------------------------------------


def product_names():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    with Seen() as seen:
        a @ b
    return seen.names


def test_nothing_is_left_behind():
    with pytest.raises(ZeroDivisionError), torch_tiled.override():
        assert any("tiled::" in name for name in product_names())
        raise ZeroDivisionError
    assert not any("tiled::" in name for name in product_names())
    again = torch_tiled.override()
    for _ in range(2):
        with again:
            assert any("tiled::" in name for name in product_names())


def test_the_innermost_counts():
    a, b = operands((3, 100), (100, 5), dtype=torch.float32)
    called = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "tiled::" in func.name():
                called.append((kwargs or {}).get("precision", "fp32"))
            return func(*args, **(kwargs or {}))

    outer, inner = torch_tiled.override(precision="ieee"), torch_tiled.override()
    with Spy(), outer:
        a @ b
        with inner:
            a @ b
        a @ b
    assert called == ["ieee", "fp32", "ieee"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(RuntimeError, match='no precision "exact"'):
        torch_tiled.override(precision="exact")


def test_making_one_computes_nothing():
    with Seen() as seen:
        torch_tiled.override(precision="ieee")
        torch_tiled.convert(torch.nn.ReLU())
    assert seen.products() == (0, 0)


def test_it_is_its_thread_s_own():
    names = []
    with torch_tiled.override():
        thread = threading.Thread(target=lambda: names.extend(product_names()))
        thread.start()
        thread.join()
    assert names and not any("tiled::" in name for name in names)


def test_an_input_that_does_not_count_has_a_gradient():
    c, a, b = operands((3, 5), (3, 4), (4, 5), requires_grad=True)
    with torch_tiled.override():
        result = torch.addmm(c * torch.inf, a, b, beta=0)
    assert_close(result, a @ b)
    with torch.no_grad(), Seen() as seen, torch_tiled.override():
        assert_close(torch.addmm(c * torch.inf, a, b, beta=0), result)
    assert seen.products()[0] == 0


def test_complex_scales_are_refused_as_by_pytorch():
    c, a, b = operands((3, 5), (3, 4), (4, 5))
    with torch_tiled.override(), pytest.raises(RuntimeError):
        torch.addmm(c, a, b, alpha=1j)


@pytest.mark.parametrize("name", ["torch.matmul", "torch.mm", "torch.bmm", "torch.mv"])
def test_out(name, device):
    function, *shapes = CALLS[name]
    a, b = operands(*shapes, device=device)
    out = torch.full_like(a @ b, torch.nan)
    with Seen() as seen, torch_tiled.override(strict=True):
        assert function(a, b, out=out) is out
    theirs, ours = seen.products()
    assert theirs == 0 and ours > 0
    assert_close(out, a @ b)
    empty = torch.empty(0, device=device, dtype=a.dtype)
    with torch_tiled.override():
        function(a, b, out=empty)  # which PyTorch resizes
    assert_close(empty, a @ b)


def test_out_dtype():
    a, b = operands((3, 4), (4, 5), dtype=torch.bfloat16)
    with torch_tiled.override(strict=True):
        result = torch.mm(a, b, out_dtype=torch.float32)
        assert torch.equal(result, torch.mm(a, b, torch.float32))
    assert torch.equal(result, torch_tiled.matmul(a, b, out_dtype=torch.float32))


SUMS = {
    "addmm": [(3, 5), (3, 4), (4, 5)],
    "addbmm": [(3, 5), (2, 3, 4), (2, 4, 5)],
    "baddbmm": [(2, 3, 5), (2, 3, 4), (2, 4, 5)],
    "addmv": [(3,), (3, 4), (4,)],
}


@pytest.mark.parametrize("name", SUMS)
def test_out_of_sums(name, device):
    function, (c, a, b) = getattr(torch, name), operands(*SUMS[name], device=device)
    expected = function(c, a, b, beta=0.5, alpha=2)
    strided = c.movedim(0, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 0)
    for out in (strided, c):
        with Seen() as seen, torch_tiled.override(strict=True):
            assert function(c, a, b, beta=0.5, alpha=2, out=out) is out
        theirs, ours = seen.products()
        assert theirs == 0 and ours > 0
        assert_close(out, expected)


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_pytorch_writes(name, device):
    function, method = getattr(torch, name), getattr(torch.Tensor, name + "_")
    c, a, b = operands(*SUMS[name], device=device, dtype=torch.float32)
    expected = function(c, a, b)
    with torch.autocast(device, torch.bfloat16), torch_tiled.override():  # which has no part in it
        assert torch.equal(function(c, a, b, out=torch.empty_like(c)), expected)
        assert torch.equal(method(c.clone(), a, b), expected)
    with torch_tiled.override():
        assert torch.equal(function(c, a, b, out=c.new_empty(0)), expected)  # resized
    weight = a.clone().requires_grad_()
    for operand, out in ((a, torch.empty_like(c, dtype=torch.float64)), (weight, c.clone())):
        errors = []
        for statement in (contextlib.nullcontext(), torch_tiled.override()):
            with statement, pytest.raises(RuntimeError) as error:
                function(c, operand, b, out=out)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def test_sums_written_as_they_once_were():
    c, a, b = operands((3, 5), (3, 4), (4, 5))
    with torch_tiled.override():
        assert_close(torch.addmm(0.5, c, 2, a, b), 0.5 * c + 2 * (a @ b))
        assert_close(c.clone().addmm_(0.5, a, b), 0.5 * c + a @ b)


@pytest.mark.parametrize(
    "name", ["torch.matmul", "torch.addmm", "F.linear with bias", "torch.einsum"]
)
def test_autocast(name, device):
    function, *shapes = CALLS[name]
    tensors = operands(*shapes, device=device, dtype=torch.float32)
    with torch.autocast(device, torch.bfloat16):
        expected = function(*tensors)
        with Seen() as seen, torch_tiled.override():
            result = function(*tensors)
    assert seen.products()[0] == 0
    assert result.dtype == expected.dtype == torch.bfloat16
    rounded = [x.bfloat16().double() for x in tensors]
    exact, size = function(*rounded), function(*(x.abs() for x in rounded))
    assert_within(result, exact, halves_bound(exact, size, 8, 1, torch.bfloat16))


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
    "mm": lambda x: torch.mm(x[0].to(torch.complex64), x[0].to(torch.complex64).mT),
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
    """Outside of compiled code, by its line; in it, where it is traced."""
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
    for run, told in ((function, names), (compiled, names), (compiled, [])):
        with warnings.catch_warnings(record=True) as record, statement:
            warnings.simplefilter("always")
            run(x)
        texts = [str(warning.message) for warning in record]
        assert [text.split("PyTorch computes ")[1].split(",")[0] for text in texts] == told
        assert {warning.filename for warning in record} <= {__file__}
        if run is function:
            line = leaves_to_pytorch.__code__.co_firstlineno + 1
            assert {warning.lineno for warning in record} == {line}


@pytest.mark.parametrize("where", ["context_fn", "inside"])
def test_checkpointed(where, device):
    """What a backward pass computes again is rerouted, too."""
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
    with Seen() as seen:
        (gradient,) = torch.autograd.grad(y.sum(), x)
    theirs, ours = seen.products()
    assert theirs == 0 and ours > 0
    assert_close(gradient, expected)


# --- compiled ------------------------------------------------------------------------------------


def mixed(x, w, b):
    y = F.linear(x, w, b) @ w
    y = torch.addmm(y, y, w.mT @ w, alpha=0.5)
    return torch.einsum("ij,kj->ik", y, torch.bmm(y[None], y.mT[None])[0] @ y).relu()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("where", ["around", "inside"])
def test_compiled(where, dynamic, device):
    torch.compiler.reset()  # each function is compiled but so often
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
    if where == "around":  # and outside of the statement again
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
