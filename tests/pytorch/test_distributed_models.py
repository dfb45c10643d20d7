"""Tensor-parallel plans, FSDP2 and DDP of converted models, in several processes.

Every process runs each check, and a test reports the failures of one check.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from helpers.copies import saved
from helpers.distributed import assert_passed, check, checks_in, device, mesh_of, own_part, random
from helpers.presplit import splits_on_cpu
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import torch_tiled

if dist.is_available():
    from torch.distributed.checkpoint import state_dict as checkpoints
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DTensor, Shard, parallel

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)


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
    """The losses of a few optimizer steps."""
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
    (batches,) = random((3, 4, 8))
    expected, model = network(), network()
    losses = steps(expected, batches)
    torch_tiled.convert(model, strict=True)
    plan = {"*.up": parallel.ColwiseParallel(), "*.down": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh_of(), plan)
    assert type(model[0].up) is torch_tiled.converted.Linear
    assert_close(steps(model, batches), losses)
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor()
        assert_close(full, expected.get_parameter(name))
    # Now the plan comes first, and then the conversion.
    model = network()
    parallel.parallelize_module(model, mesh_of(), plan)
    torch_tiled.convert(model, strict=True)
    assert_close(steps(model, batches), losses)
    torch_tiled.revert(model)
    assert type(model[0].up) is torch.nn.Linear


@check
def fully_sharded():
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
    options = checkpoints.StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    state = checkpoints.get_model_state_dict(model, options=options)
    other = network()
    other.load_state_dict(state)  # a checkpoint for one device, and for PyTorch's layers
    assert_close(dict(other.state_dict()), dict(expected.state_dict()))
    checkpoints.set_model_state_dict(
        model, network().state_dict(), options=options
    )  # and one from there
    assert_close(model(own[0]), network()(own[0]))


class Attending(torch.nn.Module):
    """Causal attention of 8 heads that share 4 of keys, with named algorithms; no output layer."""

    def __init__(self):
        super().__init__()
        sizes = {"query": 64, "key": 32, "value": 32}
        for name, size in sizes.items():
            setattr(self, name, torch_tiled.nn.Linear(16, size, algorithm="tiled"))

    def forward(self, x):
        layers = self.query, self.key, self.value
        q, k, v = (layer(x).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in layers)
        function = torch_tiled.nn.functional.scaled_dot_product_attention
        y = function(q, k, v, is_causal=True, enable_gqa=True, algorithm="fp16x3")
        return y.transpose(1, 2).flatten(2)


def attending(x, grad):
    """A layer, its result for x, and the gradients of its parameters."""
    torch.manual_seed(4)
    model = Attending().to(device())
    result = model(x)
    return model, result.detach(), torch.autograd.grad(result, list(model.parameters()), grad)


@check
def attention_in_tensor_parallel():
    """Each process has some heads: rows of the weights, and columns of the result."""
    x, grad = random((2, 9, 16), (2, 9, 64), dtype=torch.float32)
    for is_local in (True, False):
        model, expected, gradients = attending(x, grad)
        plan = parallel.ColwiseParallel(use_local_output=is_local)
        parallel.parallelize_module(
            model, mesh_of(), dict.fromkeys(("query", "key", "value"), plan)
        )
        result = model(x)
        if is_local:
            result = DTensor.from_local(result, mesh_of(), [Shard(2)])
        assert result.placements == (Shard(2),)
        assert torch.equal(result.full_tensor(), expected)
        (result.full_tensor() * grad).sum().backward()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert parameter.grad.placements == (Shard(0),)
            assert_close(parameter.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-5)


@check
def attention_fully_sharded():
    x, grad = random((8, 9, 16), (8, 9, 64), dtype=torch.float32)
    model, expected, gradients = attending(x, grad)
    fully_shard(model, mesh=mesh_of())
    own = (each.chunk(dist.get_world_size())[dist.get_rank()] for each in (x, expected, grad))
    x, expected, grad = own
    result = model(x)
    assert torch.equal(result, expected)
    (result * grad).sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        mean = gradient / dist.get_world_size()
        assert_close(parameter.grad.full_tensor(), mean, rtol=1e-4, atol=1e-5)


@splits_on_cpu()
def check_frozen_layers(shard, write):
    """Writes to the shards of a frozen layer's weight count, whichever came first.

    Args:
        shard: shards a model and returns what serves it.
        write: write(served, model) doubles the model's parameters.
    """
    for frozen_first in (True, False):
        layers = [torch_tiled.nn.Linear(128, 128, algorithm="fp16x3") for _ in range(2)]
        model = torch.nn.Sequential(*layers).to(device()).eval()
        if frozen_first:
            torch_tiled.freeze(model)
        served = shard(model)
        if not frozen_first:
            torch_tiled.freeze(model)
        (x,) = random((4, 128), dtype=torch.float32)
        with torch.no_grad():
            served(x)
            write(served, model)
            written = served(x)
            torch_tiled.unfreeze(model)
            assert torch.equal(written, served(x))


def double(model):
    for parameter in model.parameters():
        parameter.mul_(2)


@check
def frozen_in_shards():
    def shard(model):
        fully_shard(model, mesh=mesh_of())
        return model

    def write(served, model):
        model.reshard()
        double(model)

    check_frozen_layers(shard, write)


@check
def frozen_in_flat_shards():
    """FullyShardedDataParallel keeps weights as vectors, and freeze() splits them when gathered."""

    def shard(model):
        return FullyShardedDataParallel(
            model, use_orig_params=True, device_id=torch.device(device())
        )

    def write(served, model):
        with FullyShardedDataParallel.summon_full_params(served):
            double(model)

    check_frozen_layers(shard, write)


def collectives(weight):
    """Every collective that writes to the weight, by name: some leave no version."""
    rank, world = dist.get_rank(), dist.get_world_size()
    full = torch.full_like(weight, rank + 2)
    return {
        "broadcast": lambda: dist.broadcast(weight, 0),
        "all_reduce": lambda: dist.all_reduce(weight),
        "recv": lambda: dist.recv(weight, 0) if rank == 1 else rank or dist.send(weight, 1),
        "irecv": lambda: (
            dist.irecv(weight, 0).wait() if rank == 1 else rank or dist.send(weight, 1)
        ),
        "reduce": lambda: dist.reduce(weight, 0),
        "scatter": lambda: dist.scatter(weight, [full] * world if rank == 0 else None, 0),
        "all_gather": lambda: dist.all_gather(
            [weight, *(torch.empty_like(weight) for _ in range(world - 1))], full
        ),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            weight, full.chunk(world)[rank].contiguous()
        ),
        "reduce_scatter": lambda: dist.reduce_scatter(weight, [full] * world),
        "all_to_all": lambda: dist.all_to_all_single(weight, full),
    }


def serve(layer, x):
    return torch_tiled.linear(x, layer.weight, layer.bias, algorithm=layer.algorithm)


@check
def collectives_into_a_frozen_weight():
    """refreeze() is the remedy for collectives; on the CPU every one of them counts at once."""
    (x,) = random((4, 128), dtype=torch.float32)
    for name in collectives(x):
        for splits in (False, True):
            torch.manual_seed(dist.get_rank())
            layer = torch_tiled.nn.Linear(128, 128, algorithm="fp16x3", device=device())
            torch_tiled.freeze(layer.requires_grad_(False))
            with splits_on_cpu() if splits else contextlib.nullcontext():
                torch_tiled.refreeze(layer)
                layer(x)
                collectives(layer.weight)[name]()
                if splits or device() == "cuda":
                    torch_tiled.refreeze(layer)
                assert torch.equal(layer(x), serve(layer, x)), name


@check
@splits_on_cpu()
def a_frozen_layer_in_data_parallel():
    """DistributedDataParallel writes the first process's weights to all others."""
    torch.manual_seed(dist.get_rank())
    (x,) = random((4, 128), dtype=torch.float32)
    layer = torch_tiled.freeze(torch_tiled.nn.Linear(128, 128, algorithm="fp16x3").to(device()))
    with torch.no_grad():
        layer(x)
        wrapped = DistributedDataParallel(layer)
        assert torch.equal(layer(x), serve(layer, x))
        assert torch.equal(wrapped(x), serve(layer, x))


@check
def data_parallel():
    (batches,) = random((3, 8, 8))
    own = own_part(batches)
    expected, model = network(), network()
    steps(expected, batches)
    torch_tiled.convert(model, strict=True)
    wrapped = DistributedDataParallel(model)
    steps(wrapped, own)
    assert_close(dict(model.state_dict()), dict(expected.state_dict()))
    expected.load_state_dict(saved(wrapped.module.state_dict(), weights_only=True))
    torch_tiled.revert(model)
    assert_close(model(own[0]), expected(own[0]))


@pytest.mark.parametrize("name", checks_in(globals()))
def test_in_processes(name, failures):
    assert_passed(name, failures)
