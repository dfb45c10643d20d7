"""Sums over tensor-parallel ranks have the same bits on 1, 2, 4 and 8 ranks: slices of K here.

tests/pytorch/test_distributed_sums.py has ranks that are processes.
"""

import pytest
import tensor_parallel_sums as sums
import torch
from helpers.reference import assert_same, assert_within, rounded_bound
from helpers.thinning import each_value


@each_value
@pytest.mark.parametrize("k", [8, 104, 1024, 3080])
@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("dtype", sums.DTYPES)
def test_all_numbers_of_ranks_have_the_same_bits(device, dtype, rows, k):
    x, weight = (torch.randn(n, k, device=device).to(dtype) for n in (rows, 24))
    expected = sums.sum_of_slices(x, weight, 1)
    assert expected.dtype == dtype
    exact, size = x.double() @ weight.double().mT, x.double().abs() @ weight.double().mT.abs()
    assert_within(expected.double(), exact, rounded_bound(exact, size, k + 8, 2, dtype))
    for ranks in sums.RANKS:
        assert_same(sums.sum_of_slices(x, weight, ranks), expected)
        assert_same(sums.sum_of_slices(x[:1], weight, ranks), expected[:1])


def test_parts_are_added_by_the_tree(device):
    x, weight = torch.randn(3, 160, device=device), torch.randn(7, 160, device=device)
    p = [sums.multiply(*own) for own in zip(x.chunk(8, -1), weight.chunk(8, -1), strict=True)]
    expected = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
    assert_same(sums.sum_of_slices(x, weight, 4), expected)


@pytest.mark.parametrize(
    "k, ranks, sentence",
    [
        (24, 3, "there are 3 ranks; a tree of 8 parts is for 1, 2, 4 or 8"),
        (20, 2, "a rank has 10 columns of K and 4 parts, which cannot be equal; append columns"),
    ],
)
def test_errors(k, ranks, sentence):
    with pytest.raises(ValueError, match=sentence):
        sums.sum_of_slices(torch.ones(2, k), torch.ones(2, k), ranks)


def test_the_table_has_the_share_of_equal_elements(device, capsys):
    sums.main(["--device", device])
    _, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert len(lines) == len(sums.DTYPES) * len(sums.RANKS)
    assert all(float(line[3]) == 1 for line in lines)
    assert any(float(line[4]) < 1 for line in lines)
