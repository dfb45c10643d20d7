"""The host's kernels have the same bits however many threads share the work."""

import pytest
import torch
from helpers.reference import NAMED, REAL, takes

import torch_tiled
from torch_tiled._op.registry import family


@pytest.fixture
def with_threads():
    """Calls a function with a number of threads, of which the tests have one otherwise."""
    before = torch.get_num_threads()

    def call(threads, f, *args, **options):
        torch.set_num_threads(threads)
        return f(*args, **options)

    yield call
    torch.set_num_threads(before)


def precision_of(name):
    return "tf32" if family(name)[0].order == "tf32" else "fp32"


@pytest.mark.parametrize(
    "name, dtype",
    [(x, d) for x in NAMED for d in REAL if takes(x, d, precision=precision_of(x))],
)
def test_products(with_threads, name, dtype):
    """Two batches of several tiles, with a row and a column that fp16x3 and tf32 recompute."""
    a, b = torch.randn(2, 150, 1100).to(dtype), torch.randn(2, 1100, 140).to(dtype)
    a[0, 7, 3], b[1, 5, 9] = torch.inf, torch.nan
    ways = {"algorithm": name, "precision": precision_of(name)}
    one, three = (with_threads(n, torch_tiled.matmul, a, b, **ways) for n in (1, 3))
    assert torch.equal(one.nan_to_num(), three.nan_to_num())
    assert torch.equal(one.isnan(), three.isnan())


@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("algorithm", ["naive", "tiled", "fp16x3"])
def test_epilogues(with_threads, algorithm, activation):
    x, weight, bias = torch.randn(150, 200), torch.randn(140, 200), torch.randn(140)
    ways = {"activation": activation, "algorithm": algorithm}
    one, three = (with_threads(n, torch_tiled.linear, x, weight, bias, **ways) for n in (1, 3))
    assert torch.equal(one, three)


def test_presplit_operands(with_threads):
    b = torch.randn(2085, 300)
    one, three = (with_threads(n, torch.ops.tiled.prepare, b) for n in (1, 3))
    assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True))
