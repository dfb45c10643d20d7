"""DTensors as operands, in several processes, against plain tensors in one.

Every process runs each check, and a test reports the failures of one check.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from helpers.distributed import assert_passed, check, checks_in, mesh_of, random
from helpers.thinning import thinned
from torch.testing import assert_close

import torch_tiled

if dist.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)


def placements(rank):
    return [Replicate(), Partial("sum"), Partial("avg"), *(Shard(dim) for dim in range(rank))]


def distribute(x, mesh, where):
    """x on a mesh, requiring a gradient. The addends of a partial one differ."""
    if not any(isinstance(placement, Partial) for placement in where):
        return distribute_tensor(x, mesh, where).requires_grad_()
    (placement,) = where
    own = 1.0 + mesh.get_local_rank()
    total = mesh.size() * (mesh.size() + 1) / 2
    share = own / total * (mesh.size() if placement.reduce_op == "avg" else 1)
    return DTensor.from_local(x * share, mesh, where).requires_grad_()


def energy(x):
    return (x.abs() if x.is_complex() else x).square().sum()


def assert_equals_one_device(ours, theirs, tensors, mesh, wheres, **tolerance):
    """Compares result and gradients of DTensors with PyTorch's of plain tensors."""
    spread = [distribute(x, mesh, where) for x, where in zip(tensors, wheres, strict=True)]
    plain = [x.clone().requires_grad_() for x in tensors]
    result, expected = ours(*spread), theirs(*plain)
    assert result.shape == expected.shape
    assert_close(result.full_tensor(), expected, **tolerance)
    gradients = torch.autograd.grad(energy(result.full_tensor()), spread)
    wanted = torch.autograd.grad(energy(expected), plain)
    for gradient, one, where in zip(gradients, wanted, wheres, strict=True):
        if not any(isinstance(placement, Partial) for placement in where):
            assert_close(gradient.full_tensor().resolve_conj(), one, **tolerance)


@check
def matmul_of_dtensors():
    mesh = mesh_of()
    shapes = [((8, 4), (4, 12)), ((5, 6), (6, 7)), ((4,), (4, 8)), ((8, 4), (4,)), ((4,), (4,))]
    shapes += [((4, 3, 8), (8, 4)), ((4, 5, 8), (4, 8, 4)), ((2, 1, 4, 8), (4, 8, 4))]
    cases = [
        ((a, b), *wheres)
        for a, b in shapes
        for wheres in itertools.product(placements(len(a)), placements(len(b)))
    ]
    of_matrices = [case for case in cases if case[0] == shapes[0]]
    for operands, *wheres in dict.fromkeys([*of_matrices, *thinned(cases)]):
        assert_equals_one_device(
            torch_tiled.matmul, torch.matmul, random(*operands), mesh, [[w] for w in wheres]
        )


@check
def matmul_on_a_mesh_of_two_dimensions():
    mesh = mesh_of(2, dist.get_world_size() // 2)
    every = [Replicate(), Shard(0), Shard(1)]
    for where in thinned(itertools.product(every, repeat=4)):
        assert_equals_one_device(
            torch_tiled.matmul, torch.matmul, random((6, 8), (8, 4)), mesh, (where[:2], where[2:])
        )


@check
def linear_of_dtensors():
    mesh = mesh_of()
    cases = [
        ((x, activation), *wheres)
        for x, activation in [((8, 8), "none"), ((4, 3, 8), "none"), ((8, 8), "relu")]
        for wheres in itertools.product(placements(len(x)), placements(2), (None, *placements(1)))
    ]
    for (x, activation), *wheres in thinned(cases):
        act = torch.relu if activation == "relu" else torch.nn.Identity()
        count = 2 if wheres[2] is None else 3  # without a bias, or with one
        assert_equals_one_device(
            lambda *tensors, activation=activation: torch_tiled.linear(
                *tensors, activation=activation, precision="ieee"
            ),
            lambda *tensors, act=act: act(torch.nn.functional.linear(*tensors)),
            random(*[x, (4, 8), (4,)][:count]),
            mesh,
            [[where] for where in wheres[:count]],
        )


def each_group(a, b, *bias):
    """grouped_mm of groups that end at 3, 3 and 6, by masks."""
    if a.ndim == b.ndim == 3:
        return a @ b + (bias[0].unsqueeze(-2) if bias else 0)
    index = torch.arange(8, device=a.device)
    groups = [(index < 3), (index < 0), (index >= 3) & (index < 6)]
    if a.ndim == b.ndim == 2:
        products = [(a * group) @ b for group in groups]
        return torch.stack(products) + (bias[0].unsqueeze(-2) if bias else 0)
    if a.ndim == 3:
        return sum(a[i] @ (b * group) for i, group in enumerate(groups))
    added = bias[0].expand(3, -1) if bias else torch.zeros_like(b[:, 0])
    return sum(group[:, None] * (a @ b[i] + added[i]) for i, group in enumerate(groups))


@check
def grouped_mm_of_dtensors():
    mesh = mesh_of()
    shapes = [((8, 4), (3, 4, 8)), ((3, 8, 4), (4, 8)), ((4, 8), (8, 4)), ((3, 8, 4), (3, 4, 8))]
    cases = [
        ((a, b), *wheres)
        for a, b in shapes
        for wheres in itertools.product(
            placements(len(a)), placements(len(b)), (None, *placements(1), *placements(2))
        )
        if wheres[2] is None or len(a) <= len(b)
    ]
    offs = torch.tensor([3, 3, 6], dtype=torch.int32, device=mesh.device_type)
    offs = distribute_tensor(offs, mesh, [Replicate()])
    for (a, b), *wheres in thinned(cases):
        operands = [a, b]
        if wheres[2] is not None:
            operands.append((3, b[-1]) if wheres[2] in placements(2)[-1:] else (b[-1],))
        is_batch = len(a) == len(b) == 3

        def ours(a, b, *bias, offs=None if is_batch else offs):
            return torch_tiled.grouped_mm(a, b, offs=offs, bias=bias[0] if bias else None)

        assert_equals_one_device(
            ours,
            each_group,
            random(*operands),
            mesh,
            [[where] for where in wheres[: len(operands)]],
        )


@check
def attention_of_dtensors():
    mesh = mesh_of()
    wheres = [Replicate(), Shard(0), Shard(1), Shard(2)]
    cases = itertools.product(
        (8, 4, 1), (None, (8, 12), (2, 1, 8, 12)), (False, True), wheres, wheres
    )
    for kv_heads, bias, is_causal, of_q, of_kv in thinned(cases):
        if bias is not None and is_causal:
            continue
        shapes = (2, 8, 8, 4), (2, kv_heads, 12, 4), (2, kv_heads, 12, 6)
        tensors = random(*shapes, *([] if bias is None else [bias]), dtype=torch.float32)
        options = {"is_causal": is_causal, "enable_gqa": True}

        def ours(*x, options=options):
            function = torch_tiled.nn.functional.scaled_dot_product_attention
            return function(*x, **options, algorithm="fp16x3")

        def theirs(*x, options=options):
            return torch.nn.functional.scaled_dot_product_attention(*x, **options)

        spread = [[of_q], [of_kv], [of_kv], [Replicate()]][: len(tensors)]
        assert_equals_one_device(ours, theirs, tensors, mesh, spread, rtol=1e-4, atol=1e-4)


@check
def attention_of_shards_sends_nothing():
    mesh = mesh_of()
    q, k, v = random(*[(4, 8, 6, 4)] * 3, dtype=torch.float32)
    function = torch_tiled.nn.functional.scaled_dot_product_attention
    expected = function(q, k, v, is_causal=True, algorithm="fp16x3")
    for where in (Shard(0), Shard(1)):
        spread = [distribute(x, mesh, [where]) for x in (q, k, v)]
        with CommDebugMode() as sent:
            result = function(*spread, is_causal=True, algorithm="fp16x3")
        assert result.placements == (where,) and sent.get_total_counts() == 0
        assert torch.equal(result.full_tensor(), expected)


@check
def nothing_is_sent_where_nothing_need_be():
    mesh = mesh_of()
    a, b = random((8, 4), (4, 8))
    assert mesh.size() > 1
    expected = {
        (Shard(0), Replicate()): Shard(0),
        (Replicate(), Shard(1)): Shard(1),
        (Shard(1), Shard(0)): Partial("sum"),
        (Partial("sum"), Replicate()): Partial("sum"),
        (Replicate(), Partial("avg")): Partial("avg"),
    }
    for (where_a, where_b), where in expected.items():
        spread = distribute(a, mesh, [where_a]), distribute(b, mesh, [where_b])
        with CommDebugMode() as sent:
            result = torch_tiled.matmul(*spread)
        assert result.placements == (where,)
        assert sent.get_total_counts() == 0


def assert_writes_in_place(ours, theirs, tensors, mesh, wheres):
    """The first tensor is written in place, and equals PyTorch's result for plain tensors."""
    expected = theirs(*tensors)
    written, *operands = (
        distribute(x, mesh, where).detach() for x, where in zip(tensors, wheres, strict=True)
    )
    address = written.to_local().data_ptr()
    ours(written, *operands)
    assert written.placements == tuple(wheres[0])
    assert written.to_local().data_ptr() == address
    assert_close(written.full_tensor(), expected)


def without_means(rank):
    """The placements without Partial("avg"), which DTensor converts to no Partial("sum")."""
    return [placement for placement in placements(rank) if placement != Partial("avg")]


@check
def gemm_of_dtensors():
    def ours(c, a, b):
        assert torch_tiled.gemm_(c, a, b, alpha=0.5, beta=-2) is c

    def theirs(c, a, b):
        return 0.5 * (a @ b) - 2 * c

    mesh = mesh_of()
    shapes = [((5, 7), (5, 6), (6, 7)), ((4, 8, 4), (8, 4), (1, 4, 4))]
    for each in shapes:
        for wheres in thinned(itertools.product(*(without_means(len(shape)) for shape in each))):
            assert_writes_in_place(ours, theirs, random(*each), mesh, [[w] for w in wheres])
    wheres = [Partial("avg")], [Partial("avg")], [Replicate()]
    assert_writes_in_place(ours, theirs, random(*shapes[0]), mesh, wheres)


@check
def matmul_into_dtensors():
    def ours(out, a, b):
        assert torch_tiled.matmul(a, b, out=out) is out

    mesh = mesh_of()
    shapes = [((8, 12), (8, 4), (4, 12)), ((5,), (5, 6), (6,)), ((4, 4, 8), (4, 4, 8), (8, 8))]
    for out, a, b in shapes:
        wheres_of_out = [Replicate(), *map(Shard, range(len(out)))]
        for wheres in thinned(
            itertools.product(wheres_of_out, placements(len(a)), placements(len(b)))
        ):
            assert_writes_in_place(
                ours, lambda out, a, b: a @ b, random(out, a, b), mesh, [[w] for w in wheres]
            )
    wheres = [Partial("sum")], [Shard(1)], [Shard(0)]
    assert_writes_in_place(ours, lambda out, a, b: a @ b, random(*shapes[0]), mesh, wheres)
    a, b, out = (distribute_tensor(x, mesh) for x in random((8, 4), (4, 12), (2, 8, 12)))
    with pytest.raises(RuntimeError, match=r"out is \(2, 8, 12\) and the product is \(8, 12\)"):
        torch_tiled.matmul(a, b, out=out)


@check
def gemm_on_a_mesh_of_two_dimensions():
    mesh = mesh_of(2, dist.get_world_size() // 2)
    every = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2))
    for where, where_a in itertools.product(every, every):
        wheres = where, where_a, where_a[::-1]
        tensors = random((8, 4), (8, 6), (6, 4))
        assert_writes_in_place(torch_tiled.gemm_, lambda c, a, b: c + a @ b, tensors, mesh, wheres)


@check
def nothing_is_sent_to_write_where_nothing_need_be():
    mesh = mesh_of()
    for wheres in (
        (Shard(0), Shard(0), Replicate()),
        (Shard(1), Replicate(), Shard(1)),
        (Partial("sum"), Shard(1), Shard(0)),
        (Partial("sum"), Partial("sum"), Replicate()),
        (Partial("avg"), Replicate(), Partial("avg")),
    ):
        c, a, b = (
            distribute(x, mesh, [where]).detach()
            for x, where in zip(random((8, 8), (8, 4), (4, 8)), wheres, strict=True)
        )
        with CommDebugMode() as sent:
            torch_tiled.gemm_(c, a, b)
            torch_tiled.matmul(a, b, out=c)
        assert sent.get_total_counts() == 0


@check
def written_in_compiled_code():
    def write(c, a, b):
        torch_tiled.gemm_(torch_tiled.matmul(a, b, out=c), a, b)

    compiled = torch.compile(write, backend="aot_eager", fullgraph=True)
    wheres = [Shard(0)], [Replicate()], [Shard(1)]
    tensors = random((8, 8), (8, 4), (4, 8))
    assert_writes_in_place(compiled, lambda c, a, b: 2 * (a @ b), tensors, mesh_of(), wheres)


@check
def results_have_the_dtype_that_was_asked_for():
    mesh = mesh_of()
    a, b = random((8, 4), (4, 8), dtype=torch.bfloat16)
    spread = distribute(a, mesh, [Shard(0)]), distribute(b, mesh, [Shard(1)])
    for out_dtype in (None, torch.float32, None):
        result = torch_tiled.matmul(*spread, out_dtype=out_dtype)
        assert result.dtype == result.to_local().dtype == (out_dtype or torch.bfloat16)
        layer = torch_tiled.linear(spread[0], spread[1].mT, out_dtype=out_dtype)
        assert layer.dtype == layer.to_local().dtype == result.dtype
    wide = b.float()
    for where in (Replicate(), Shard(0), Shard(1)):
        operands = distribute(a, mesh, [Shard(1)]), distribute(wide, mesh, [where])
        for out_dtype in (None, torch.bfloat16):
            result = torch_tiled.matmul(*operands, out_dtype=out_dtype)
            assert result.dtype == result.to_local().dtype == (out_dtype or torch.float32)
            result.float().sum().backward()
            assert_close(result.full_tensor().float(), a.float() @ wide, rtol=0.02, atol=0.02)
        assert operands[0].grad is None or operands[0].grad.dtype == torch.bfloat16


@check
def prepared_operands():
    mesh = mesh_of()
    a, b = random((8, 70), (70, 4))
    with torch.no_grad():
        prepared = torch_tiled.prepare(distribute(b, mesh, [Replicate()]).detach())
        for where in (Replicate(), Shard(0), Shard(1)):
            result = torch_tiled.matmul(distribute(a, mesh, [where]), prepared)
            assert_close(result.full_tensor(), a @ b)


@check
def inference_mode():
    mesh = mesh_of()
    a, b = random((8, 4), (4, 8))
    with torch.inference_mode():
        spread = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
        assert_close(torch_tiled.matmul(*spread).full_tensor(), a @ b)
        out = distribute_tensor(torch.zeros(8, 8).to(a), mesh, [Shard(0)])
        torch_tiled.gemm_(torch_tiled.matmul(*spread, out=out), *spread)
        assert_close(out.full_tensor(), 2 * (a @ b))


@check
def override_of_dtensors():
    mesh = mesh_of()
    with torch_tiled.override(strict=True):
        assert_equals_one_device(
            torch.matmul, torch.matmul, random((8, 4), (4, 8)), mesh, [[Shard(1)], [Shard(0)]]
        )


# --- complex numbers -----------------------------------------------------------------------------

VIEWS = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "adjoint": lambda x: x.mT.contiguous().mH,
    "negative": lambda x: -x.conj(),
}


def complex_random(*shapes):
    return random(*shapes, dtype=torch.complex128)


def whole_or_shards():
    return [[Replicate()], [Shard(0)], [Shard(1)]]


@check
def complex_matmul():
    mesh, tensors = mesh_of(), complex_random((8, 4), (4, 12))
    views = itertools.product(VIEWS.values(), repeat=2)
    cases = itertools.product(views, itertools.product(whole_or_shards(), repeat=2))
    for (view_a, view_b), wheres in thinned([(x, tuple(map(tuple, y))) for x, y in cases]):
        ours, theirs = (
            lambda a, b, f=f, x=view_a, y=view_b: f(x(a), y(b))
            for f in (torch_tiled.matmul, torch.matmul)
        )
        assert_equals_one_device(ours, theirs, tensors, mesh, wheres)


@check
def complex_linear():
    mesh, tensors = mesh_of(), complex_random((8, 4), (12, 4), (12,))
    for wheres in itertools.product(whole_or_shards(), whole_or_shards(), whole_or_shards()[:2]):
        assert_equals_one_device(
            lambda x, weight, bias: torch_tiled.linear(x.conj(), weight, bias.conj()),
            lambda x, weight, bias: torch.nn.functional.linear(x.conj(), weight, bias.conj()),
            *(tensors, mesh, wheres),
        )


@check
def conjugates_that_are_written():
    mesh, tensors = mesh_of(), complex_random((8, 12), (8, 4), (4, 12))
    c, a, b = tensors
    product = a.conj() @ b
    for wheres in thinned(itertools.product(map(tuple, whole_or_shards()), repeat=3)):
        written, a, b = (
            distribute(x.clone(), mesh, where).detach()
            for x, where in zip(tensors, wheres, strict=True)
        )
        torch_tiled.gemm_(written.conj(), a.conj(), b, alpha=1 + 2j, beta=1j)
        assert_close(written.full_tensor(), ((1 + 2j) * product + 1j * c.conj()).conj())
        torch_tiled.matmul(a.conj(), b, out=written.conj())
        assert_close(written.full_tensor(), product.conj())


@check
def prepared_conjugates():
    mesh, (a, b) = mesh_of(), complex_random((8, 70), (70, 4))
    with torch.no_grad():
        prepared = torch_tiled.prepare(distribute(b, mesh, [Replicate()]).detach().conj())
        for where in whole_or_shards():
            result = torch_tiled.matmul(distribute(a, mesh, where).conj(), prepared)
            assert_close(result.full_tensor(), a.conj() @ b.conj())


@check
def nothing_is_sent_for_complex_shards():
    mesh, (a, b) = mesh_of(), complex_random((8, 4), (4, 8))
    spread = distribute(a, mesh, [Shard(0)]), distribute(b, mesh, [Replicate()])
    with CommDebugMode() as sent:
        result = torch_tiled.matmul(spread[0].conj(), spread[1])
    assert result.placements == (Shard(0),)
    assert sent.get_total_counts() == 0


@pytest.mark.parametrize("name", checks_in(globals()))
def test_in_processes(name, failures):
    assert_passed(name, failures)
