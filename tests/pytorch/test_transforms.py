"""The operators under torch.func's transforms and vmap, in every nesting, against torch.matmul."""

import functools
import itertools

import pytest
import torch
import torch.autograd.forward_ad as fwad
import torch.nn.functional as F
from helpers.chaining import batched, flat, in_dims, two_of_each
from helpers.compiling import BACKENDS
from helpers.reference import ACTIVATIONS
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import torch_tiled

randn = functools.partial(torch.randn, dtype=torch.float64)


def scalar(f):
    return lambda *args: f(*args).sin().sum()


def energy(f):
    return lambda *args: f(*args).abs().square().sum()


TRANSFORMS = {
    "grad": lambda f: grad(scalar(f), argnums=(0, 1)),
    "vjp": lambda f: lambda a, b: vjp(f, a, b)[1](f(a, b).cos()),
    "jvp": lambda f: lambda a, b: jvp(f, (a, b), (a.cos(), b.sin())),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(scalar(f), argnums=(0, 1)),
    "vmap": lambda f: lambda a, b: vmap(f)(*two_of_each(a, b)),
    "vmap a": lambda f: lambda a, b: vmap(f, (0, None))(*two_of_each(a), b),
    "vmap b": lambda f: lambda a, b: vmap(f, (None, 0))(a, *two_of_each(b)),
}
PAIRS = list(itertools.product(TRANSFORMS, repeat=2))
TRIPLES = [
    ("vmap", "jacrev", "jacfwd"),
    ("vmap", "jacfwd", "jacrev"),
    ("jacfwd", "vmap", "grad"),
    ("jvp", "jvp", "jvp"),
    ("jvp", "grad", "jvp"),
    ("grad", "jvp", "grad"),
    ("jacrev", "vmap a", "jvp"),
    ("vmap", "vmap b", "hessian"),
    ("grad", "grad", "grad"),
    ("hessian", "vmap", "vjp"),
]


def check_chain(chain, ours, theirs, a, b):
    for name in reversed(chain):
        ours, theirs = flat(TRANSFORMS[name](ours)), flat(TRANSFORMS[name](theirs))
    assert_close(ours(a, b), theirs(a, b))


RANKS = {
    "vector vector": ((3,), (3,)),
    "vector matrix": ((3,), (3, 2)),
    "matrix vector": ((2, 3), (3,)),
    "matrix matrix": ((2, 3), (3, 2)),
    "batch matrix": ((2, 1, 3), (3, 2)),
    "vector batch": ((3,), (2, 3, 1)),
    "batch batch": ((2, 1, 3), (1, 3, 2)),
}


@pytest.mark.parametrize("shapes", RANKS.values(), ids=RANKS)
def test_matmul_under_pairs(shapes, device):
    a, b = (randn(*shape, device=device) for shape in shapes)
    for chain in PAIRS:
        check_chain(chain, torch_tiled.matmul, torch.matmul, a, b)


@pytest.mark.parametrize("chain", TRIPLES, ids=" ".join)
def test_matmul_under_triples(chain, device):
    a, b = randn(2, 3, device=device), randn(3, 2, device=device)
    check_chain(chain, torch_tiled.matmul, torch.matmul, a, b)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_under_pairs(activation, device):
    x, weight, bias = (randn(*shape, device=device) for shape in ((2, 3), (2, 3), (2,)))

    def ours(x, weight):
        return torch_tiled.linear(x, weight, bias, activation=activation)

    def theirs(x, weight):
        return ACTIVATIONS[activation](F.linear(x, weight, bias))

    for chain in PAIRS:
        check_chain(chain, ours, theirs, x, weight)


def test_options_hold_under_transforms(device):
    a, b = randn(2, 3, device=device), randn(3, 2, device=device)

    def ours(a, b):
        return torch_tiled.matmul(a, b, algorithm="tiled16", precision="ieee")

    for chain in itertools.product(("vmap", "jacrev", "jvp"), repeat=2):
        check_chain(chain, ours, torch.matmul, a, b)


def test_transforms_inside_autograd(device):
    a, b = randn(2, 3, device=device), randn(3, 2, device=device)
    a.requires_grad_()
    b.requires_grad_()
    for name, transform in TRANSFORMS.items():
        grads = []
        for f in (torch_tiled.matmul, torch.matmul):
            loss = flat(transform(flat(f)))(a, b).cos().sum()
            grads.append(torch.autograd.grad(loss, (a, b), allow_unused=True))
        assert_close(*grads, msg=lambda text, name=name: f"{name}: {text}")


def test_no_grad_inside_a_transform(device):
    a, b = randn(2, 3, device=device), randn(3, 2, device=device)

    def f(matmul, a):
        with torch.no_grad():
            constant = matmul(a, b)
        return (matmul(a, b) * constant).sum()

    for order in (grad, lambda f: grad(lambda a: grad(f)(a).sum())):
        ours = order(lambda a: f(torch_tiled.matmul, a))(a)
        assert_close(ours, order(lambda a: f(torch.matmul, a))(a))


# --- vmap ----------------------------------------------------------------------------------------

SHAPES = {1: ((3,), (3,)), 2: ((2, 3), (3, 4)), 3: ((2, 2, 3), (2, 3, 4))}


every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
KINDS = [*((torch.float64, name) for name in ("none", "relu", "gelu")), (torch.complex128, "none")]


def check_vmap(ours, theirs, dims, tensors):
    """Compares results, and gradients by example."""
    every = tuple(range(len(tensors)))
    for transform in (lambda f: f, lambda f: grad(energy(f), argnums=every)):
        assert_close(*(vmap(transform(f), dims)(*tensors) for f in (ours, theirs)))


@every_dtype
@pytest.mark.parametrize("b_rank", SHAPES)
@pytest.mark.parametrize("a_rank", SHAPES)
def test_matmul_over_every_dimension(a_rank, b_rank, dtype, device):
    for dims in in_dims(a_rank, b_rank):
        a = randn(*batched(SHAPES[a_rank][0], dims[0]), device=device, dtype=dtype).conj()
        b = randn(*batched(SHAPES[b_rank][1], dims[1]), device=device, dtype=dtype)
        b = b._neg_view() if dtype.is_complex else b
        check_vmap(torch_tiled.matmul, torch.matmul, dims, (a, b))


@pytest.mark.parametrize("x_shape", [(3,), (4, 3), (2, 4, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype, activation", KINDS, ids=str)
def test_linear_over_every_dimension(dtype, activation, x_shape, device):
    for dims in in_dims(len(x_shape), 2, 1):
        x, weight, bias = (
            randn(*batched(shape, dim), device=device, dtype=dtype)
            for shape, dim in zip((x_shape, (2, 3), (2,)), dims, strict=True)
        )
        check_vmap(
            lambda *ts: torch_tiled.linear(*ts, activation=activation),
            lambda *ts: ACTIVATIONS[activation](F.linear(*ts)),
            *(dims, (x, weight.conj(), bias)),
        )


def test_linear_without_bias_over_weights(device):
    x, weight = randn(4, 3, device=device), randn(5, 2, 3, device=device)
    ours = vmap(torch_tiled.linear, (None, 0))(x, weight)
    assert_close(ours, torch.einsum("rk,ink->irn", x, weight))


@pytest.mark.parametrize("dims", in_dims(2, 2), ids=str)
def test_matmul_under_nested_vmap(dims, device):
    a, b = randn(5, 5, 5, device=device), randn(5, 5, 5, device=device)
    for outer in in_dims(2, 2):
        ours = vmap(vmap(torch_tiled.matmul, dims), outer)
        theirs = vmap(vmap(torch.matmul, dims), outer)
        a_outer = a if outer[0] is None else randn(5, 5, 5, 5, device=device)
        b_outer = b if outer[1] is None else randn(5, 5, 5, 5, device=device)
        assert_close(ours(a_outer, b_outer), theirs(a_outer, b_outer))


def test_gemm_under_vmap(device):
    c, a, b = (randn(*shape, device=device) for shape in ((2, 4, 5), (5, 2, 3), (3, 4)))

    def f(c, a, b):
        torch_tiled.gemm_(c, a, b, alpha=0.5, beta=2)
        return c * 1

    expected = 2 * c + 0.5 * torch.einsum("imk,kn->mni", a, b)
    results = vmap(f, (2, 0, None), out_dims=2)(c, a, b)
    assert_close(results, expected)
    assert_close(c, expected)
    # Matrices broadcast over the batch dimensions of one example of c.
    c, a = randn(5, 6, 2, 4, device=device), randn(5, 2, 3, device=device)
    expected = c + a.unsqueeze(1) @ b
    assert_close(vmap(torch_tiled.gemm_, (0, 0, None))(c, a, b), expected)
    assert_close(c, expected)


@pytest.mark.parametrize("a_rank, b_rank", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)])
def test_out_under_vmap(a_rank, b_rank, device):
    def f(a, b, out):
        torch_tiled.matmul(a, b, out=out)
        return out * 1

    for dims in in_dims(a_rank, b_rank):
        a = randn(*batched(SHAPES[a_rank][0], dims[0]), device=device)
        b = randn(*batched(SHAPES[b_rank][1], dims[1]), device=device)
        expected = vmap(torch.matmul, dims)(a, b)
        out = torch.empty_like(expected)
        assert_close(vmap(f, (*dims, 0))(a, b, out), expected)
        assert_close(out, expected)
    a, b = (randn(*SHAPES[rank][i], device=device) for i, rank in enumerate((a_rank, b_rank)))
    out = torch.stack([torch.empty_like(a @ b)] * 5)
    vmap(f, (None, None, 0))(a, b, out)
    assert_close(out, torch.stack([a @ b] * 5))


def test_vmap_refuses_a_shared_output(device):
    c, a, b = (randn(*shape, device=device) for shape in ((2, 4), (5, 2, 3), (3, 4)))
    before = c.clone()
    with pytest.raises(RuntimeError, match=r"gemm_: under vmap .* c of shape \(2, 4\) is not"):
        vmap(lambda a: torch_tiled.gemm_(c, a, b))(a)
    with pytest.raises(RuntimeError, match=r"matmul: under vmap .* out of shape \(2, 4\) is not"):
        vmap(lambda a: torch_tiled.matmul(a, b, out=c))(a)
    assert_close(c, before)


def test_vmap_checks_the_shapes_of_one_example(device):
    five, matrix = randn(5, device=device), randn(5, 2, device=device)
    for f, args, text in (
        (torch_tiled.matmul, (five, five), r"a is \(\) and b is \(\); both need at least one"),
        (torch_tiled.matmul, (matrix, randn(5, 3, device=device)), r"a is \(2,\) and b is \(3,\)"),
        (torch_tiled.linear, (matrix, matrix), r"x is \(2,\) and weight is \(2,\); weight must"),
        (
            torch_tiled.linear,
            (matrix, randn(5, 3, 2, device=device), randn(5, 1, device=device)),
            r"bias is \(1,\) and weight is \(3, 2\)",
        ),
        (torch_tiled.gemm_, (matrix, matrix, matrix), r"c is \(2,\), a is \(2,\) and b is \(2,\)"),
    ):
        with pytest.raises(RuntimeError, match=text):
            vmap(f)(*args)


def test_writing_under_grad(device):
    a, b = randn(2, 3, device=device), randn(3, 4, device=device)

    def refused(a):
        return torch_tiled.gemm_(a.new_zeros(2, 4), a, b).sum()

    with pytest.raises(RuntimeError, match=r"has no derivative, but a of shape \(2, 3\) requires"):
        grad(refused)(a)
    with pytest.raises(RuntimeError, match=r"a of shape \(2, 3\) has a forward-mode tangent"):
        jvp(refused, (a,), (a,))

    def allowed(a):
        c = torch_tiled.gemm_(torch.zeros(2, 4, dtype=a.dtype, device=device), a.detach(), b)
        return (c * a.sum()).sum()

    assert_close(grad(allowed)(a), torch.full_like(a, (a @ b).sum().item()))


# --- complex numbers -----------------------------------------------------------------------------

complex_randn = functools.partial(torch.randn, dtype=torch.complex128)


def by_parts(f):
    """f as a function of real tensors: PyTorch has no Jacobians of complex ones."""

    def of_parts(*args):
        return torch.view_as_real(f(*map(torch.view_as_complex, args)).resolve_conj())

    return of_parts


def two_of(x):
    return torch.stack([x, 0.5j * x])


OF_COMPLEX = {
    "grad": lambda f: grad(energy(f), argnums=(0, 1)),
    "vjp": lambda f: lambda a, b: vjp(f, a, b)[1](1j * f(a, b)),
    "jvp": lambda f: lambda a, b: jvp(f, (a, b), (a.conj(), 1j * b)),
    "jacrev": lambda f: lambda a, b: jacrev(by_parts(f), (0, 1))(*map(torch.view_as_real, (a, b))),
    "vmap": lambda f: lambda a, b: vmap(f)(two_of(a), two_of(b)),
    "vmap a": lambda f: lambda a, b: vmap(f, (0, None))(two_of(a), b),
    "vmap b": lambda f: lambda a, b: vmap(f, (None, 0))(a, two_of(b)),
}
OUTER_OF_COMPLEX = ("vmap", "vmap a", "vmap b", "jvp")


def of_views(matmul):
    return lambda a, b: matmul(a.conj(), b.conj())


@pytest.mark.parametrize("views", [False, True], ids=["plain", "views"])
@pytest.mark.parametrize("ranks", [*itertools.product((1, 2, 3), repeat=2)], ids=str)
def test_complex_matmul_under_transforms(ranks, views, device):
    a = complex_randn(*SHAPES[ranks[0]][0], device=device)
    b = complex_randn(*SHAPES[ranks[1]][1], device=device)
    ours, theirs = (of_views(f) if views else f for f in (torch_tiled.matmul, torch.matmul))
    for name, transform in OF_COMPLEX.items():
        assert_close(transform(ours)(a, b), transform(theirs)(a, b))
        if name.startswith("vmap"):
            continue
        for outer in OUTER_OF_COMPLEX:
            nested = [OF_COMPLEX[outer](transform(f)) for f in (ours, theirs)]
            assert_close(nested[0](a, b), nested[1](a, b))


def test_hessian_by_real_parts(device):
    parts = [
        torch.randn(shape, device=device, dtype=torch.float64) for shape in ((2, 3, 2), (3, 2, 2))
    ]

    def loss(matmul):
        return lambda a, b: energy(matmul)(
            torch.view_as_complex(a), torch.view_as_complex(b).conj()
        )

    for transform in (hessian, lambda f, argnums: jacrev(jacfwd(f, argnums), argnums)):
        ours, theirs = (
            transform(loss(f), argnums=(0, 1)) for f in (torch_tiled.matmul, torch.matmul)
        )
        assert_close(ours(*parts), theirs(*parts))


def test_complex_gemm_under_vmap(device):
    """c is a conjugate outside of vmap, and its conjugate inside. PyTorch maps no other views."""
    shapes = (2, 4, 5), (5, 2, 3), (3, 4)
    memory, a, b = (complex_randn(*shape, device=device) for shape in shapes)
    c = memory.conj()

    def write(c, a, b):
        torch_tiled.gemm_(c.conj(), a.conj(), b, alpha=0.5 - 1j, beta=2j)
        return c * 1

    product = torch.einsum("imk,kn->mni", a.conj(), b)
    expected = (2j * c.conj() + (0.5 - 1j) * product).conj()
    assert_close(vmap(write, (2, 0, None), out_dims=2)(c, a, b), expected)
    assert_close(c, expected)
    assert_close(memory, expected.conj())


# --- no examples, such as an empty batch ---------------------------------------------------------


MATMUL_DIMS = [(0, 0), (0, None), (None, 0), (1, 0), (0, 2)]
LINEAR_DIMS = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, 0, 1)]
RANKS_OF_EXAMPLES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
]


def operands(shapes, dims, device):
    """Tensors of these shapes, with a dimension of size 0 where one is mapped over."""
    pairs = zip(shapes, dims, strict=True)
    return [torch.randn(batched(shape, dim, 0), device=device) for shape, dim in pairs]


def assert_same_of_none(ours, theirs, dims, inputs):
    """Compares results, per-example gradients, tangents, and gradients through vmap."""
    assert_close(vmap(ours, dims)(*inputs), vmap(theirs, dims)(*inputs))

    def by_example(f):
        return grad(lambda *args: f(*args).sum(), tuple(range(len(inputs))))

    gradients = vmap(by_example(ours), dims)(*inputs)
    assert [g.shape[0] for g in gradients] == [0] * len(inputs)

    def tangents(f):
        return vmap(lambda *args: jvp(f, args, args), dims)(*inputs)

    assert_close(tangents(ours), tangents(theirs))
    recorded = [x.detach().requires_grad_() for x in inputs]

    def through(f):
        return torch.autograd.grad(vmap(f, dims)(*recorded).sum(), recorded)

    assert_close(through(ours), through(theirs))


@pytest.mark.parametrize("dims", MATMUL_DIMS, ids=str)
@pytest.mark.parametrize("shapes", RANKS_OF_EXAMPLES, ids=str)
def test_matmul_of_no_examples(shapes, dims, device):
    dims = tuple(d and min(d, len(s)) for d, s in zip(dims, shapes, strict=True))
    assert_same_of_none(torch_tiled.matmul, torch.matmul, dims, operands(shapes, dims, device))


@pytest.mark.parametrize("dims", LINEAR_DIMS, ids=str)
@pytest.mark.parametrize("x_shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_linear_of_no_examples(activation, x_shape, dims, device):
    ours = functools.partial(torch_tiled.linear, activation=activation)
    act = ACTIVATIONS[activation]
    inputs = operands([x_shape, (5, 4), (5,)], dims, device)
    assert_same_of_none(ours, lambda *args: act(F.linear(*args)), dims, inputs)


def test_writing_of_no_examples(device):
    c, a, b = (torch.randn(0, *shape, device=device) for shape in ((3, 5), (3, 4), (4, 5)))
    assert vmap(torch_tiled.gemm_)(c, a, b).shape == (0, 3, 5)
    assert vmap(lambda out, a, b: torch_tiled.matmul(a, b, out=out))(c, a, b).shape == (0, 3, 5)


def test_prepared_of_no_examples(device):
    prepared = torch_tiled.prepare(torch.randn(64, 5, device=device))
    x = torch.randn(0, 3, 64, device=device)
    assert vmap(lambda x: torch_tiled.matmul(x, prepared))(x).shape == (0, 3, 5)
    weight = torch_tiled.prepare(torch.randn(5, 64, device=device).mT).mT
    assert vmap(lambda x: torch_tiled.linear(x, weight))(x).shape == (0, 3, 5)


def frozen(layer):
    return torch_tiled.freeze(layer.requires_grad_(False))


def converted(layer):
    torch_tiled.convert(layer)
    return layer


@pytest.mark.parametrize("kind", ["layer", "converted", "frozen", "overridden"])
def test_layers_of_no_examples(kind, device):
    if kind in ("converted", "overridden"):
        layer = torch.nn.Linear(64, 5, device=device)
    else:
        layer = torch_tiled.nn.Linear(64, 5, activation="relu", device=device)
    layer = {"converted": converted, "frozen": frozen}.get(kind, lambda x: x)(layer)
    x = torch.randn(0, 3, 64, device=device)

    def run():
        assert vmap(layer)(x).shape == (0, 3, 5)
        if kind != "frozen":
            parameters = dict(layer.named_parameters())
            loss = lambda p, x: functional_call(layer, p, x).sum()  # noqa: E731
            by_example = vmap(grad(loss), (None, 0))(parameters, x)
            assert by_example["weight"].shape == (0, 5, 64)
            assert by_example["bias"].shape == (0, 5)

    if kind == "overridden":
        with torch_tiled.override():
            return run()
    return run()


@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian])
def test_jacobians_of_nothing(transform, device):
    """A Jacobian maps over a basis, which has no vector if there is no element."""
    w, x = torch.randn(4, 5, device=device), torch.randn(0, 4, device=device)
    ours = transform(lambda x: torch_tiled.matmul(x, w))(x)
    assert_close(ours, transform(lambda x: torch.matmul(x, w))(x))


def test_nested_of_no_examples(device):
    for lead in ((2, 0), (0, 2), (0, 0)):
        a, b = (torch.randn(*lead, *shape, device=device) for shape in ((3, 4), (4, 5)))
        assert vmap(vmap(torch_tiled.matmul))(a, b).shape == (*lead, 3, 5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_of_no_examples(backend, device, fresh_compiler):
    f = torch.compile(vmap(torch_tiled.matmul), fullgraph=True, dynamic=True, backend=backend)
    for n in (3, 0, 2):
        a, b = (torch.randn(n, *shape, device=device) for shape in ((3, 4), (4, 5)))
        assert_close(f(a, b), torch.matmul(a, b))


def test_shapes_are_checked_still(device):
    """A bad shape in an empty batch is an error, as in PyTorch, and needs no memory to be found."""
    a, b = torch.empty(0, 2**22, 2**22, device=device), torch.empty(0, 5, 6, device=device)
    with pytest.raises(RuntimeError, match=r"a is \(4194304, 4194304\) and b is \(5, 6\)"):
        vmap(torch_tiled.matmul)(a, b)


# --- compiled and exported graphs, which enter a level of forward AD without telling Python ------


X, B, W = torch.randn(3, 3), torch.randn(3, 3), torch.randn(4, 3)


def product(multiply):
    """A product and a second term, so that a lost tangent shows as a wrong value."""
    return lambda x: multiply(x) + x.sum()


MULTIPLY = {
    "matmul": (lambda x: torch_tiled.matmul(x, B), lambda x: torch.matmul(x, B)),
    "linear": (
        lambda x: torch_tiled.linear(x, W, activation="tanh"),
        lambda x: torch.tanh(torch.nn.functional.linear(x, W)),
    ),
}


def dual(f):
    def tangent(x):
        with fwad.dual_level():
            return fwad.unpack_dual(f(fwad.make_dual(x, x * 2))).tangent

    return tangent


DERIVATIVES = {
    "jvp": lambda f: lambda x: jvp(f, (x,), (x * 2,))[1],
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda x: f(x).square().sum()),
    "vmap of jvp": lambda f: (
        lambda x: vmap(lambda t: jvp(f, (x,), (t,))[1])(torch.stack([x, x * 2]))
    ),
    "grad of jvp": lambda f: grad(lambda x: jvp(f, (x,), (x * 2,))[1].square().sum()),
    "jvp of grad": lambda f: lambda x: jvp(grad(lambda x: f(x).square().sum()), (x,), (x * 2,))[1],
    "dual_level": dual,
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("multiply", MULTIPLY)
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_compiled_tangents(derivative, multiply, backend):
    ours, torchs = (DERIVATIVES[derivative](product(f)) for f in MULTIPLY[multiply])
    expected = torchs(X)
    torch.testing.assert_close(ours(X), expected)
    torch.testing.assert_close(torch.compile(ours, backend=backend)(X), expected)


def exported(f):
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    return torch.export.export(Module(), (X,), strict=False).module()


def test_exported_tangents():
    ours, torchs = (DERIVATIVES["jvp"](product(f)) for f in MULTIPLY["matmul"])
    try:
        exported(torchs)
    except AssertionError as error:
        pytest.skip(f"torch {torch.__version__} exports no jvp of torch.matmul: {error}")
    torch.testing.assert_close(exported(ours)(X), torchs(X))


def test_compiled_tangents_of_converted_layers():
    layer = torch.nn.Linear(3, 4)
    f = lambda x: jvp(lambda x: layer(x) + x.sum(), (x,), (x * 2,))[1]  # noqa: E731
    expected = f(X)
    torch_tiled.convert(layer)
    torch.testing.assert_close(torch.compile(f, backend="aot_eager")(X), expected)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_compiled_gradients_of_examples(dtype, dynamic, device):
    a, b = (torch.randn(3, *shape, device=device, dtype=dtype) for shape in ((4, 5), (5, 6)))

    def f(matmul, a, b):
        def value(a, b):
            y = matmul(a.conj(), b)
            return y.abs().square().sum() if dtype.is_complex else y.sin().sum()

        jacobian = None if dtype.is_complex else jacrev(value)(a, b)  # PyTorch has real ones alone
        return vmap(grad(value, argnums=(0, 1)))(a, b), jacobian

    compiled = torch.compile(
        lambda a, b: f(torch_tiled.matmul, a, b),
        fullgraph=True,
        dynamic=dynamic,
        backend="aot_eager",
    )
    torch.testing.assert_close(compiled(a, b), f(torch.matmul, a, b))
