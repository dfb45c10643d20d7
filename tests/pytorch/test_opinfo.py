"""The samples of PyTorch's OpInfo database for products, by torch_tiled's operators."""

import pytest
import torch
from helpers.reference import (
    ALGORITHMS,
    DTYPES,
    assert_within,
    bound,
    gemm_bound,
    linear_bound,
    product,
    wide,
)
from helpers.samples import op_db
from helpers.thinning import pairwise

import torch_tiled

PRODUCTS = ("matmul", "__rmatmul__", "mm", "bmm", "mv")
ADDED_PRODUCTS = ("addmm", "baddbmm")
LINEAR = "nn.functional.linear"


def every_case(*names):
    """Parametrizes a test by the operators of these names, and by dtype, algorithm and layout."""
    # The variant that is left out has other sizes only.
    ops = [op for op in op_db if op.name in names and op.variant_test_name != "triton_optimized"]
    assert {op.name for op in ops} == set(names)

    def decorate(test):
        parametrize = pytest.mark.parametrize
        test = parametrize("layout", ["contiguous", "noncontiguous"])(test)
        test = parametrize("algorithm", ALGORITHMS)(test)
        test = parametrize("dtype", DTYPES, ids=str)(test)
        return pairwise(parametrize("op", ops, ids=lambda op: op.formatted_name)(test))

    return decorate


def samples(op, device, dtype, layout):
    """Yields at least one pair of a sample and PyTorch's result."""
    assert dtype in op.supported_dtypes(device)
    found = list(op.sample_inputs(device, dtype, requires_grad=False))
    assert found
    for sample in found:
        expected = op(sample.input, *sample.args, **sample.kwargs)
        yield sample.noncontiguous() if layout == "noncontiguous" else sample, expected


def assert_like_torch(actual, expected, exact, limit, torch_limit):
    """`exact` is in float64 or complex128. The limits say how far from it the results may be."""
    assert actual.dtype == expected.dtype
    assert actual.device == expected.device
    assert actual.stride() == expected.contiguous().stride()
    assert_within(actual, exact, limit)
    assert_within(actual, wide(expected), limit + torch_limit)


@every_case(*PRODUCTS)
def test_product(device, op, dtype, algorithm, layout):
    for sample, expected in samples(op, device, dtype, layout):
        a, b = sample.input, sample.args[0]
        if op.name == "__rmatmul__":
            a, b = b, a
        actual = torch_tiled.matmul(a, b, algorithm=algorithm)
        limit, torch_limit = bound(a, b, algorithm=algorithm), bound(a, b)
        assert_like_torch(actual, expected, product(a, b), limit, torch_limit)


@every_case(*ADDED_PRODUCTS)
def test_added_product(device, op, dtype, algorithm, layout):
    for sample, expected in samples(op, device, dtype, layout):
        c = sample.input.expand(expected.shape)
        (a, b), scale = sample.args, (sample.kwargs["alpha"], sample.kwargs["beta"])
        exact = scale[0] * product(a, b) + scale[1] * wide(c)
        limit, torch_limit = (gemm_bound(c, a, b, *scale, algorithm=x) for x in (algorithm, "auto"))
        actual = c.clone(memory_format=torch.contiguous_format)
        torch_tiled.gemm_(actual, a, b, alpha=scale[0], beta=scale[1], algorithm=algorithm)
        assert_like_torch(actual, expected, exact, limit, torch_limit)


@every_case(LINEAR)
def test_linear(device, op, dtype, algorithm, layout):
    for sample, expected in samples(op, device, dtype, layout):
        x, weight, bias = sample.input, sample.args[0], (*sample.args[1:], None)[0]
        exact = product(x, weight.mT) + (0 if bias is None else wide(bias))
        actual = torch_tiled.linear(x, weight, bias, algorithm=algorithm)
        limit = linear_bound(x, weight, bias, algorithm=algorithm)
        # PyTorch may round the product before it adds the bias; `auto` on the CPU is PyTorch's.
        torch_limit = linear_bound(x, weight, bias) + bound(x, weight.mT)
        if algorithm == "auto" and device == "cpu":
            limit = torch_limit
        assert_like_torch(actual, expected, exact, limit, torch_limit)
