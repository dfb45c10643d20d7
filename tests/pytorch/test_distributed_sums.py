"""Sums over tensor-parallel ranks that are processes have the bits of one rank."""

import pytest
import tensor_parallel_sums as sums
import torch
import torch.distributed as dist
from helpers.distributed import assert_passed, check, checks_in, random
from helpers.reference import assert_same

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"
)


@check
def sums_of_processes():
    world = dist.get_world_size()
    for ranks in (n for n in sums.RANKS if n <= world):
        group = dist.new_group(list(range(ranks)))
        for dtype in sums.DTYPES:
            x, weight = (y.to(dtype) for y in random((5, 1040), (24, 1040)))
            expected = sums.sum_of_slices(x, weight, 1)
            if dist.get_rank() < ranks:
                own = (y.chunk(ranks, -1)[dist.get_rank()] for y in (x, weight))
                assert_same(sums.sum_of_processes(*own, group), expected)


@check
def a_number_of_processes_without_a_tree():
    group = dist.new_group([0, 1, 2][: dist.get_world_size()])
    if dist.get_rank() < 3 <= dist.get_world_size():
        with pytest.raises(ValueError, match="there are 3 ranks; a tree of 8 parts is for 1, 2"):
            sums.sum_of_processes(torch.ones(2, 8), torch.ones(2, 8), group)


@pytest.mark.parametrize("name", checks_in(globals()))
def test_distributed(failures, name):
    assert_passed(name, failures)
