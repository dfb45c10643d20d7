"""torch.distributed: DTensor, tensor-parallel plans, FSDP2 and DDP, in processes.

Each check runs in every process; a test is what one of them came to.
"""

import datetime
import io
import itertools
import os
import socket
import traceback

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

import torch_tiled

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)

CHECKS = {}
DEVICES = {"gloo": "cpu", "nccl": "cuda"}
WORLDS = {"gloo": 4, "nccl": 2}


def check(function):
    CHECKS[function.__name__] = function
    return function


def placements(rank):
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [Replicate(), Partial("sum"), Partial("avg"), *(Shard(dim) for dim in range(rank))]


def distribute(x, mesh, where):
    """x on a mesh, with a gradient. A partial one is made of parts that differ."""
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor

    if not any(isinstance(placement, Partial) for placement in where):
        return distribute_tensor(x, mesh, where).requires_grad_()
    (placement,) = where
    own = 1.0 + mesh.get_local_rank()
    total = mesh.size() * (mesh.size() + 1) / 2
    share = own / total * (mesh.size() if placement.reduce_op == "avg" else 1)
    return DTensor.from_local(x * share, mesh, where).requires_grad_()


def assert_equals_one_device(ours, theirs, tensors, mesh, wheres):
    """The result, and gradients, of DTensors against those of plain ones by PyTorch."""
    from torch.distributed.tensor import Partial

    spread = [distribute(x, mesh, where) for x, where in zip(tensors, wheres, strict=True)]
    plain = [x.clone().requires_grad_() for x in tensors]
    result, expected = ours(*spread), theirs(*plain)
    assert result.shape == expected.shape
    assert_close(result.full_tensor(), expected)
    gradients = torch.autograd.grad(result.full_tensor().square().sum(), spread)
    wanted = torch.autograd.grad(expected.square().sum(), plain)
    for gradient, one, where in zip(gradients, wanted, wheres, strict=True):
        if not any(isinstance(placement, Partial) for placement in where):
            assert_close(gradient.full_tensor(), one)


def device():
    return DEVICES[dist.get_backend()]


def random(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, device=device()) for shape in shapes]


def own_part(batches):
    """This process's rows of each batch."""
    return batches.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def mesh_of(*shape):
    """A mesh of all processes, in one dimension or of that shape."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device(), shape or (dist.get_world_size(),))


@check
def matmul_of_dtensors():
    mesh = mesh_of()
    shapes = [((8, 4), (4, 12)), ((5, 6), (6, 7)), ((4,), (4, 8)), ((8, 4), (4,)), ((4,), (4,))]
    shapes += [((4, 3, 8), (8, 4)), ((4, 5, 8), (4, 8, 4)), ((2, 1, 4, 8), (4, 8, 4))]
    for a, b in shapes:
        for wheres in itertools.product(placements(len(a)), placements(len(b))):
            assert_equals_one_device(
                torch_tiled.matmul, torch.matmul, random(a, b), mesh, [[w] for w in wheres]
            )


@check
def matmul_on_a_mesh_of_two_dimensions():
    from torch.distributed.tensor import Replicate, Shard

    mesh = mesh_of(2, dist.get_world_size() // 2)
    every = [Replicate(), Shard(0), Shard(1)]
    for wheres in itertools.product(itertools.product(every, every), repeat=2):
        assert_equals_one_device(
            torch_tiled.matmul, torch.matmul, random((6, 8), (8, 4)), mesh, wheres
        )


@check
def linear_of_dtensors():
    mesh = mesh_of()
    for x, activation in [((8, 8), "none"), ((4, 3, 8), "none"), ((8, 8), "relu")]:
        act = torch.relu if activation == "relu" else torch.nn.Identity()
        for where_x, where_w in itertools.product(placements(len(x)), placements(2)):
            for where_bias in (None, *placements(1)):
                shapes = [x, (4, 8)] + ([] if where_bias is None else [(4,)])
                wheres = [[where_x], [where_w]] + ([] if where_bias is None else [[where_bias]])
                assert_equals_one_device(
                    lambda *tensors, activation=activation: torch_tiled.linear(
                        *tensors, activation=activation, precision="ieee"
                    ),
                    lambda *tensors, act=act: act(torch.nn.functional.linear(*tensors)),
                    random(*shapes),
                    mesh,
                    wheres,
                )


@check
def nothing_is_sent_where_nothing_need_be():
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

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
    """What is written first: it stays where it is, and is what PyTorch makes of plain tensors."""
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
    """DTensor turns no sum into a mean, and no mean into a sum."""
    from torch.distributed.tensor import Partial

    return [placement for placement in placements(rank) if placement != Partial("avg")]


@check
def gemm_of_dtensors():
    from torch.distributed.tensor import Partial, Replicate

    def ours(c, a, b):
        assert torch_tiled.gemm_(c, a, b, alpha=0.5, beta=-2) is c

    def theirs(c, a, b):
        return 0.5 * (a @ b) - 2 * c

    mesh = mesh_of()
    shapes = [((5, 7), (5, 6), (6, 7)), ((4, 8, 4), (8, 4), (1, 4, 4))]
    for each in shapes:
        for wheres in itertools.product(*(without_means(len(shape)) for shape in each)):
            assert_writes_in_place(ours, theirs, random(*each), mesh, [[w] for w in wheres])
    wheres = [Partial("avg")], [Partial("avg")], [Replicate()]
    assert_writes_in_place(ours, theirs, random(*shapes[0]), mesh, wheres)


@check
def matmul_into_dtensors():
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    def ours(out, a, b):
        assert torch_tiled.matmul(a, b, out=out) is out

    mesh = mesh_of()
    shapes = [((8, 12), (8, 4), (4, 12)), ((5,), (5, 6), (6,)), ((4, 4, 8), (4, 4, 8), (8, 8))]
    for out, a, b in shapes:
        for wheres in itertools.product(
            [Replicate(), *map(Shard, range(len(out)))], placements(len(a)), placements(len(b))
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
    from torch.distributed.tensor import Replicate, Shard

    mesh = mesh_of(2, dist.get_world_size() // 2)
    every = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2))
    for where, where_a in itertools.product(every, every):
        wheres = where, where_a, where_a[::-1]
        tensors = random((8, 4), (8, 6), (6, 4))
        assert_writes_in_place(torch_tiled.gemm_, lambda c, a, b: c + a @ b, tensors, mesh, wheres)


@check
def nothing_is_sent_to_write_where_nothing_need_be():
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

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
    from torch.distributed.tensor import Replicate, Shard

    def write(c, a, b):
        torch_tiled.gemm_(torch_tiled.matmul(a, b, out=c), a, b)

    compiled = torch.compile(write, backend="aot_eager", fullgraph=True)
    wheres = [Shard(0)], [Replicate()], [Shard(1)]
    tensors = random((8, 8), (8, 4), (4, 8))
    assert_writes_in_place(compiled, lambda c, a, b: 2 * (a @ b), tensors, mesh_of(), wheres)


@check
def results_have_the_dtype_that_was_asked_for():
    from torch.distributed.tensor import Shard

    mesh = mesh_of()
    a, b = random((8, 4), (4, 8), dtype=torch.bfloat16)
    spread = distribute(a, mesh, [Shard(0)]), distribute(b, mesh, [Shard(1)])
    for out_dtype in (None, torch.float32, None):
        result = torch_tiled.matmul(*spread, out_dtype=out_dtype)
        assert result.dtype == result.to_local().dtype == (out_dtype or torch.bfloat16)


@check
def prepared_operands():
    from torch.distributed.tensor import Replicate, Shard

    mesh = mesh_of()
    a, b = random((8, 70), (70, 4))
    with torch.no_grad():
        prepared = torch_tiled.prepare(distribute(b, mesh, [Replicate()]).detach())
        for where in (Replicate(), Shard(0), Shard(1)):
            result = torch_tiled.matmul(distribute(a, mesh, [where]), prepared)
            assert_close(result.full_tensor(), a @ b)


@check
def inference_mode():
    from torch.distributed.tensor import Shard, distribute_tensor

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
    from torch.distributed.tensor import Shard

    mesh = mesh_of()
    with torch_tiled.override(strict=True):
        assert_equals_one_device(
            torch.matmul, torch.matmul, random((8, 4), (4, 8)), mesh, [[Shard(1)], [Shard(0)]]
        )


# --- models --------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(Block(), Block()).to(device(), torch.float64)


def steps(model, batches, after_backward=lambda: None):
    """A few optimizer steps; the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        after_backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@check
def tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    (batches,) = random((3, 4, 8))
    expected, model = network(), network()
    losses = steps(expected, batches)
    torch_tiled.convert(model, strict=True)
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    parallelize_module(model, mesh_of(), plan)
    assert type(model[0].up) is torch_tiled.converted.Linear
    assert_close(steps(model, batches), losses)
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor()
        assert_close(full, expected.get_parameter(name))
    # And the other way about: a plan, then the conversion.
    model = network()
    parallelize_module(model, mesh_of(), plan)
    torch_tiled.convert(model, strict=True)
    assert_close(steps(model, batches), losses)
    torch_tiled.revert(model)
    assert type(model[0].up) is torch.nn.Linear


@check
def fully_sharded():
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    (batches,) = random((3, 8, 8))
    own = own_part(batches)
    expected, model = network(), network()
    steps(expected, batches)
    torch_tiled.convert(model, strict=True)
    mesh = mesh_of()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps(model, own)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    state = get_model_state_dict(model, options=options)
    other = network()
    other.load_state_dict(state)  # a checkpoint for one device, and for PyTorch's layers
    assert_close(dict(other.state_dict()), dict(expected.state_dict()))
    set_model_state_dict(model, network().state_dict(), options=options)  # and one from there
    assert_close(model(own[0]), network()(own[0]))


@check
def frozen_in_shards():
    """Writes to the shards of a frozen layer's weight count, whichever came first."""
    from torch.distributed.fsdp import fully_shard

    for frozen_first in (True, False):
        layers = [torch_tiled.nn.Linear(128, 128, algorithm="fp16x3") for _ in range(2)]
        model = torch.nn.Sequential(*layers).to(device()).eval()
        if frozen_first:
            torch_tiled.freeze(model)
        fully_shard(model, mesh=mesh_of())
        if not frozen_first:
            torch_tiled.freeze(model)
        (x,) = random((4, 128), dtype=torch.float32)
        with torch.no_grad():
            model(x)
            model.reshard()
            for parameter in model.parameters():
                parameter.mul_(2)
            written = model(x)
            torch_tiled.unfreeze(model)
            assert torch.equal(written, model(x))


@check
def data_parallel():
    from torch.nn.parallel import DistributedDataParallel

    (batches,) = random((3, 8, 8))
    own = own_part(batches)
    expected, model = network(), network()
    steps(expected, batches)
    torch_tiled.convert(model, strict=True)
    wrapped = DistributedDataParallel(model)
    steps(wrapped, own)
    assert_close(dict(model.state_dict()), dict(expected.state_dict()))
    file = io.BytesIO()
    torch.save(wrapped.module.state_dict(), file)
    file.seek(0)
    expected.load_state_dict(torch.load(file))
    torch_tiled.revert(model)
    assert_close(model(own[0]), expected(own[0]))


# --- the processes -------------------------------------------------------------------------------


def process(rank, backend, port, failures):
    # Without multicast, which not every machine's GPUs offer.
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    patience = datetime.timedelta(seconds=60)  # with processes that have failed
    dist.init_process_group(backend, rank=rank, world_size=WORLDS[backend], timeout=patience)
    for name, function in CHECKS.items():
        torch.manual_seed(0)
        try:
            function()
        except Exception:
            failures.append((name, rank, traceback.format_exc()))
        dist.barrier()
    dist.destroy_process_group()


def few_gpus():
    return torch.cuda.device_count() < WORLDS["nccl"] or not dist.is_nccl_available()


@pytest.fixture(
    scope="module",
    params=["gloo", pytest.param("nccl", marks=pytest.mark.skipif(few_gpus(), reason="one GPU"))],
)
def failures(request):
    backend = request.param
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        found = manager.list()
        torch.multiprocessing.spawn(process, (backend, port, found), nprocs=WORLDS[backend])
        return list(found)


@pytest.mark.parametrize("name", CHECKS)
def test_in_processes(name, failures):
    texts = [f"In process {rank}:\n{text}" for each, rank, text in failures if each == name]
    assert not texts, "\n".join(texts)
