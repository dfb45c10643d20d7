"""Errors of segment_matmul, in the names of its arguments; test_grouped.py has its products."""

import pytest
import torch
from helpers.bad_calls import assert_raises, unsupported_in_groups
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_tiled

X, PTR, WEIGHT = torch.ones(9, 8), torch.tensor([0, 4, 9]), torch.ones(2, 8, 4)
INT64_OR_32 = "pass a tensor of torch.int64 or torch.int32"
MUST_BE = "x, ptr, weight, bias must be (rows, k), (groups + 1,), (groups, k, n) and (groups, n)"
BAD_SEGMENTS = {
    "X, [0, 4, 9], WEIGHT": f"ptr is of type list; {INT64_OR_32}",
    "X, torch.ones(3), WEIGHT": f"ptr is torch.float32; {INT64_OR_32}",
    "X, PTR, list(WEIGHT)": "weight is of type list; pass a tensor",
    "X, PTR, WEIGHT, 1": "bias is of type int; pass a tensor",
    "X, PTR[None], WEIGHT": f"x is (9, 8), ptr is (1, 3), weight is (2, 8, 4); {MUST_BE}",
    "X[:, 1:], PTR, WEIGHT": f"x is (9, 7), ptr is (3,), weight is (2, 8, 4); {MUST_BE}",
    "X, PTR[:2], WEIGHT": f"x is (9, 8), ptr is (2,), weight is (2, 8, 4); {MUST_BE}",
    "X, PTR, WEIGHT, torch.ones(4)": (
        f"x is (9, 8), ptr is (3,), weight is (2, 8, 4), bias is (4,); {MUST_BE}"
    ),
    "X, PTR, WEIGHT, torch.ones(3, 4)": (
        f"x is (9, 8), ptr is (3,), weight is (2, 8, 4), bias is (3, 4); {MUST_BE}"
    ),
    "X, PTR, WEIGHT.double()": (
        "x is torch.float32 and weight is torch.float64; pass both in one dtype, for example with "
        ".to(torch.float64), which has all values of both"
    ),
    "X.int(), PTR, WEIGHT.int()": f"x is {unsupported_in_groups(torch.int32)}",
    "X, PTR, WEIGHT.to(torch.complex64)": f"weight is {unsupported_in_groups(torch.complex64)}",
    "X, PTR, WEIGHT, torch.ones(2, 4).double()": (
        "bias is torch.float64 and x is torch.float32; pass both in one dtype, for example with "
        ".to(torch.float64), which has all values of both"
    ),
    "X.to_sparse(), PTR, WEIGHT": (
        "x is a sparse tensor (torch.sparse_coo, torch.float32), and only dense tensors are taken; "
        "use x.to_dense(), or torch.sparse.mm"
    ),
}


@pytest.mark.parametrize("where", ["device", "meta"])
@pytest.mark.parametrize("case", BAD_SEGMENTS)
def test_errors_of_segment_matmul(case, where, device):
    arguments, sentence = eval(case), BAD_SEGMENTS[case]
    on = "meta" if where == "meta" else device
    arguments = [x.to(on) if isinstance(x, torch.Tensor) else x for x in arguments]
    assert_raises(f"torch_tiled.segment_matmul: {sentence}", torch_tiled.segment_matmul, *arguments)


@pytest.mark.parametrize(
    "values, sentence",
    [
        ((1, 4, 9), "ptr[0] is 1; it must be 0"),
        ((-1, 4, 9), "ptr[0] is -1; it must be 0"),
        ((2**32, 4, 9), f"ptr[0] is {2**32}; it must be 0"),
        *(
            (
                (0, 4, last),
                f"ptr[2] is {last}; it must be at least 4, the end of the group before, "
                "and at most 9, x's rows",
            )
            for last in (3, 10, 2**33, 2**32 + 9)  # the last is not 9, by 32 bits
        ),
    ],
)
def test_bad_segments_on_the_cpu(values, sentence):
    ptr = torch.tensor(values)
    op = "torch_tiled.segment_matmul"
    assert_raises(f"{op}: {sentence}", torch_tiled.segment_matmul, X, ptr, WEIGHT)
    with torch_tiled.override():
        assert_raises(f"{op}: {sentence}", torch_tiled.segment_matmul, X, ptr, WEIGHT)
    each = torch.func.vmap(torch_tiled.segment_matmul, (0, None, None))
    assert_raises(f"{op}: {sentence}", each, X[None], ptr, WEIGHT)
    mapped = f"{op}: each ptr must ascend from 0 on to at most 9, x's rows"
    for dim in (0, 1):
        each = torch.func.vmap(torch_tiled.segment_matmul, (None, dim, None))
        assert_raises(mapped, each, X, torch.stack([PTR, ptr], dim), WEIGHT)


def test_segments_of_fake_tensors():
    with FakeTensorMode():
        arguments = torch.ones(9, 8), torch.ones(3, dtype=torch.int64), torch.ones(2, 8, 4)
    assert torch_tiled.segment_matmul(*arguments).shape == (9, 4)
    each = torch.func.vmap(torch_tiled.segment_matmul, (0, None, None))
    assert each(arguments[0][None], *arguments[1:]).shape == (1, 9, 4)


def test_segments_with_mapped_ptr():
    ptr = torch.tensor([[0, 4, 9], [0, 0, 2]])
    y = torch.func.vmap(torch_tiled.segment_matmul, (None, 0, None))(X, ptr, WEIGHT)
    expected = [torch_tiled.segment_matmul(X, each, WEIGHT) for each in ptr]
    assert torch.equal(y, torch.stack(expected))
