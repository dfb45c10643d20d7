"""Random products that are written to lazy views, of operands with any strides and lazy bits.

torch.matmul of torch 2.13 writes the conjugate of the product to a conjugate view, if it copies an
operand first; eight of these calls would show it.
"""

import random

import pytest
import torch
from helpers.complex_operands import COMPLEX, VIEWS
from helpers.reference import assert_within, gemm_bound, product, wide

import torch_tiled

SIZES = 1, 1, 2, 3, 8, 9, 16, 17, 33
FORMS = (
    lambda d, m, n, k: ((m, k), (k, n)),
    lambda d, m, n, k: ((d, m, k), (d, k, n)),
    lambda d, m, n, k: ((d, m, k), (k, n)),
    lambda d, m, n, k: ((m, k), (d, k, n)),
    lambda d, m, n, k: ((2, 1, m, k), (d, k, n)),
)


def stored(rng, shape, dtype):
    """A random tensor: permuted, sliced, at an offset, with steps, or as it is."""
    order = rng.choice([rng.sample(range(len(shape)), len(shape)), range(len(shape))])
    step, pad = ([rng.choice(some) for _ in shape] for some in ((1, 1, 2), (0, 0, 2)))
    sizes = [shape[d] * step[d] + pad[d] for d in order]
    first = rng.choice([0, 0, 5])
    memory = torch.full((first + torch.Size(sizes).numel(),), torch.nan, dtype=dtype)
    tensor = memory[first:].view(sizes).permute([list(order).index(d) for d in range(len(shape))])
    cut = [slice(pad[d], None, step[d]) for d in range(len(shape))]
    return tensor[tuple(cut)].copy_(torch.randn(shape, dtype=dtype))


def operand(rng, shape, dtype):
    tensor = stored(rng, shape, dtype)
    if rng.random() < 0.3:
        dim = rng.randrange(len(shape))
        tensor = tensor.narrow(dim, 0, 1).expand(shape)
    return VIEWS[rng.choice(list(VIEWS))](tensor)


def values(x):
    return x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("dtype", [*COMPLEX, torch.float32], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_written_views(device, dtype, seed):
    rng = random.Random(seed)
    for call in range(60):
        a, b = (operand(rng, x, dtype) for x in rng.choice(FORMS)(*rng.choices(SIZES, k=4)))
        shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
        view = rng.choice(["plain", "neg", "conj", "conj", "conj", "both"])
        out = torch.randn(shape, dtype=dtype) if call % 3 else stored(rng, shape, dtype)
        out = VIEWS[view](out)
        a, b, out = (x.to(device) for x in (a, b, out))
        exact_a, exact_b, before = values(a), values(b), values(out)
        alpha, beta = (1, 0) if rng.random() < 0.7 else rng.choice([(1, 1), (-0.5, 3)])
        if (alpha, beta) == (1, 0):
            torch_tiled.matmul(a, b, out=out)
        else:
            torch_tiled.gemm_(out, a, b, alpha=alpha, beta=beta)
        exact = alpha * product(exact_a, exact_b) + beta * wide(before)
        limit = gemm_bound(before, exact_a, exact_b, alpha, beta)
        try:
            assert_within(values(out), exact, limit)
        except AssertionError as error:
            operands = f"{a.shape}, {a.stride()} @ {b.shape}, {b.stride()}"
            raise AssertionError(f"call {call}: {operands} to a {view} view: {error}") from error
