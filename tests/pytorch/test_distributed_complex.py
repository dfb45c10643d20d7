"""Complex DTensors and their conjugates as operands, against plain tensors in one process."""

import itertools

import pytest
import torch
import torch.distributed as dist
from helpers.distributed import check, checks_in, mesh_of, random
from helpers.thinning import thinned
from torch.testing import assert_close

import torch_tiled

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)

VIEWS = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "adjoint": lambda x: x.mT.contiguous().mH,
    "negative": lambda x: -x.conj(),
}


def placements():
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate(), Shard(0), Shard(1)]


def distribute(x, where):
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, mesh_of(), [where]).requires_grad_()


def complex_random(*shapes):
    return random(*shapes, dtype=torch.complex128)


def assert_equals_one_device(ours, theirs, tensors, wheres):
    spread = [distribute(x, where) for x, where in zip(tensors, wheres, strict=True)]
    plain = [x.clone().requires_grad_() for x in tensors]
    result, expected = ours(*spread).full_tensor(), theirs(*plain)
    assert_close(result, expected)
    gradients = torch.autograd.grad(result.abs().square().sum(), spread)
    wanted = torch.autograd.grad(expected.abs().square().sum(), plain)
    assert_close([x.full_tensor().resolve_conj() for x in gradients], list(wanted))


@check
def complex_matmul():
    tensors = complex_random((8, 4), (4, 12))
    views = list(itertools.product(VIEWS.values(), repeat=2))
    cases = itertools.product(views, itertools.product(placements(), repeat=2))
    for (view_a, view_b), wheres in thinned(cases):

        def product(matmul, a, b, view_a=view_a, view_b=view_b):
            return matmul(view_a(a), view_b(b))

        def ours(a, b, product=product):
            return product(torch_tiled.matmul, a, b)

        def theirs(a, b, product=product):
            return product(torch.matmul, a, b)

        assert_equals_one_device(ours, theirs, tensors, wheres)


@check
def complex_linear():
    from torch.distributed.tensor import Replicate, Shard

    tensors = complex_random((8, 4), (12, 4), (12,))
    for *wheres, bias in itertools.product(placements(), placements(), (Replicate(), Shard(0))):
        assert_equals_one_device(
            lambda x, weight, bias: torch_tiled.linear(x.conj(), weight, bias.conj()),
            lambda x, weight, bias: torch.nn.functional.linear(x.conj(), weight, bias.conj()),
            tensors,
            [*wheres, bias],
        )


@check
def conjugates_that_are_written():
    c, a, b = complex_random((8, 12), (8, 4), (4, 12))
    product = a.conj() @ b
    for where, *wheres in thinned(itertools.product(placements(), repeat=3)):
        written, *operands = (
            distribute(x.clone(), where).detach()
            for x, where in zip((c, a, b), (where, *wheres), strict=True)
        )
        torch_tiled.gemm_(written.conj(), operands[0].conj(), operands[1], alpha=1 + 2j, beta=1j)
        assert_close(written.full_tensor(), ((1 + 2j) * product + 1j * c.conj()).conj())
        torch_tiled.matmul(operands[0].conj(), operands[1], out=written.conj())
        assert_close(written.full_tensor(), product.conj())


@check
def prepared_conjugates():
    from torch.distributed.tensor import Replicate

    a, b = complex_random((8, 70), (70, 4))
    with torch.no_grad():
        prepared = torch_tiled.prepare(distribute(b, Replicate()).detach().conj())
        for where in placements():
            result = torch_tiled.matmul(distribute(a, where).conj(), prepared)
            assert_close(result.full_tensor(), a.conj() @ b.conj())


@check
def nothing_is_sent_for_complex_shards():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

    a, b = complex_random((8, 4), (4, 8))
    spread = distribute(a, Shard(0)), distribute(b, Replicate())
    with CommDebugMode() as sent:
        result = torch_tiled.matmul(spread[0].conj(), spread[1])
    assert result.placements == (Shard(0),)
    assert sent.get_total_counts() == 0


@pytest.mark.parametrize("name", checks_in(globals()))
def test_in_processes(name, failures):
    texts = [f"In process {rank}:\n{text}" for each, rank, text in failures if each == name]
    assert not texts, "\n".join(texts)
