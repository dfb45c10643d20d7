"""Reductions of rows of DTensors, in several processes, against plain tensors in one.

Every process runs each check, and a test reports the failures of one check.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from helpers.distributed import assert_passed, check, checks_in, mesh_of, random
from helpers.thinning import thinned
from torch.testing import assert_close

from torch_tiled.nn import functional as ours

if dist.is_available():
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)
SHAPE = (8, 4, 12)


def picked(logits):
    """Classes of logits that are the same in every process."""
    index = torch.arange(logits.shape[0] * logits.shape[1] * 3, device=logits.device)
    return (index * 5 % logits.shape[-1]).reshape(*logits.shape[:2], 3)


# Functions of the last dimension of SHAPE, and shapes of parameters.
FUNCTIONS = {
    "softmax": (functools.partial(ours.softmax, dim=-1),),
    "log_softmax": (functools.partial(ours.log_softmax, dim=-1),),
    "logsumexp": (functools.partial(ours.logsumexp, dim=-1),),
    "sum": (functools.partial(ours.sum, dim=-1),),
    "mean": (functools.partial(ours.mean, dim=-1, keepdim=True),),
    "cumsum": (functools.partial(ours.cumsum, dim=-1),),
    "layer_norm": (lambda x, *params: ours.layer_norm(x, (12,), *params), (12,), (12,)),
    "layer_norm, bare": (lambda x: ours.layer_norm(x, (12,)),),
    "rms_norm": (lambda x, weight: ours.rms_norm(x, (12,), weight), (12,)),
    "rms_norm, bare": (lambda x: ours.rms_norm(x, (12,)),),
    "layer_norm of two": (lambda x: ours.layer_norm(x, (4, 12)),),
    "sum of two": (functools.partial(ours.sum, dim=(0, -1)),),
    "sum of all": (ours.sum,),
    "group_norm": (lambda x, *params: ours.group_norm(x, 2, *params), (4,), (4,)),
}
# Dimensions before the rows, if they are not the first two.
WHOLE = {"layer_norm of two": (0,), "group_norm": (0,), "sum of two": (), "sum of all": ()}


def gradients(function, tensors, weights):
    result = function(*tensors)
    whole = result.full_tensor() if hasattr(result, "full_tensor") else result
    return result, torch.autograd.grad((whole * weights).sum(), tensors)


@check
def rows_have_the_bits_of_one_device():
    mesh = mesh_of()
    wheres = [Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")]
    for name, where in thinned([(name, where) for name in FUNCTIONS for where in wheres]):
        function, *shapes = FUNCTIONS[name]
        tensors = [x.requires_grad_() for x in random(SHAPE, *shapes, dtype=torch.float32)]
        weights = torch.randn_like(function(*tensors))
        expected, wanted = gradients(function, tensors, weights)
        x, *params = (x.detach() for x in tensors)
        if where == Partial("sum"):
            zeros = torch.zeros_like(x)
            spread = x if mesh.get_local_rank() == 0 else zeros
            x = torch.distributed.tensor.DTensor.from_local(spread, mesh, [where])
        else:
            x = distribute_tensor(x, mesh, [where])
        params = [distribute_tensor(param, mesh, [Replicate()]) for param in params]
        found, grads = gradients(function, [y.requires_grad_() for y in (x, *params)], weights)
        assert torch.equal(found.full_tensor(), expected), (name, where)
        for gradient, one in zip(grads, wanted, strict=True):
            if gradient.placements != (Partial("sum"),):
                assert_close(gradient.full_tensor(), one)


@check
def rows_that_stay_whole_stay_where_they_are():
    mesh = mesh_of()
    for name, (function, *shapes) in FUNCTIONS.items():
        x, *params = random(SHAPE, *shapes, dtype=torch.float32)
        expected = function(x, *params)
        params = [distribute_tensor(param, mesh, [Replicate()]) for param in params]
        for dim in WHOLE.get(name, (0, 1)):
            x_spread = distribute_tensor(x, mesh, [Shard(dim)])
            with CommDebugMode() as sent:
                found = function(x_spread, *params)
            assert sent.get_total_counts() == 0 and found.placements == (Shard(dim),), name
            assert torch.equal(found.full_tensor(), expected)


@check
def classes_that_are_picked():
    mesh = mesh_of()
    (logits,) = random(SHAPE, dtype=torch.float32)
    index = picked(logits)
    expected = ours.selective_log_softmax(logits, index)
    for where in (Replicate(), Shard(0), Shard(1), Shard(2)):
        spread = distribute_tensor(logits, mesh, [where]).requires_grad_()
        of_index = distribute_tensor(index, mesh, [Replicate() if where == Shard(2) else where])
        found = ours.selective_log_softmax(spread, of_index)
        assert torch.equal(found.full_tensor(), expected)
        (gradient,) = torch.autograd.grad(found.full_tensor().sum(), spread)
        plain = logits.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(ours.selective_log_softmax(plain, index).sum(), plain)
        assert torch.equal(gradient.full_tensor(), wanted)


@check
def losses():
    mesh = mesh_of()
    (logits,) = random((8, 12), dtype=torch.float32)
    target = torch.arange(8, device=logits.device) % 12
    target[3] = -100
    plain = logits.clone().requires_grad_()
    expected = ours.cross_entropy(plain, target, label_smoothing=0.1)
    (wanted,) = torch.autograd.grad(expected, plain)
    for where in (Replicate(), Shard(0), Shard(1)):
        spread = distribute_tensor(logits, mesh, [where]).requires_grad_()
        of_target = distribute_tensor(target, mesh, [Shard(0)])
        found = ours.cross_entropy(spread, of_target, label_smoothing=0.1)
        (gradient,) = torch.autograd.grad(found.full_tensor(), spread)
        assert torch.equal(found.full_tensor(), expected)
        assert torch.equal(gradient.full_tensor(), wanted)


@pytest.mark.parametrize("name", checks_in(globals()))
def test_in_processes(name, failures):
    assert_passed(name, failures)
