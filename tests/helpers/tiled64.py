"""Kernels with tiled64 as their reference to the bit: operands, epilogues, captures, no memory."""

import torch
from helpers.memory import no_more_memory
from helpers.reference import ACTIVATIONS, assert_same

import torch_tiled


def matrix(shape, layout="N", *, pitch=0, aligned=False, dtype=torch.float32, device="cuda"):
    """A row-major or transposed matrix. `pitch` NaN follow each row, or as many as `aligned` rows
    of float32 need to begin at multiples of 16 bytes."""
    *batch, rows, cols = shape
    options = {"dtype": dtype, "device": device}
    if layout == "T":
        return matrix((*batch, cols, rows), pitch=pitch, aligned=aligned, **options).mT
    width = (cols // 4 + 2) * 4 if aligned else cols + pitch
    store = torch.full((*batch, rows, width), torch.nan, **options)
    return store[..., :cols].copy_(torch.randn(shape, **options))


def operands(problem, layouts, **options):
    """The operands of a problem (*batch, m, n, k)."""
    *batch, m, n, k = problem
    a = matrix((*batch, m, k), layouts[0], **options)
    return a, matrix((*batch, k, n), layouts[1], **options)


def check_epilogues(kernels, m, n, k, **options):
    """linear with every activation and gemm_ into outputs of several strides have its bits."""
    x, weight, bias = (torch.randn(shape, **options) for shape in ((m, k), (n, k), (2 * n,)))
    for activation in ACTIVATIONS:
        for each in (None, bias[:n], bias[::2]):
            ways = {"activation": activation, "precision": "ieee"}
            expected = torch_tiled.linear(x, weight, each, algorithm="tiled64", **ways)
            for name in kernels:
                result = torch_tiled.linear(x, weight, each, algorithm=name, **ways)
                assert torch.equal(result, expected), name
    c = torch.randn(m, n, **options)
    for out in (c, c.mT.contiguous().mT, torch.randn(m, n + 1, **options)[:, 1:]):
        for alpha, beta in ((1, 1), (0.5, -2), (2, 0)):
            results = []
            for name in ("tiled64", *kernels):
                results.append(out.clone(memory_format=torch.preserve_format))
                torch_tiled.gemm_(results[-1], x, weight.mT, alpha=alpha, beta=beta, algorithm=name)
            assert all(torch.equal(results[0], each) for each in results[1:])


def check_capture(a, b, **options):
    """A replayed graph has its bits."""
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    torch_tiled.matmul(a, b, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch_tiled.matmul(a, b, **options)
    result.fill_(torch.nan)
    graph.replay()
    assert torch.equal(result, expected)


def check_without_memory(algorithm, a, b, reference="tiled64"):
    """Where no workspace can be had, the product has the bits of the reference."""
    expected = torch_tiled.matmul(a, b, algorithm=reference)
    out = torch.full_like(expected, torch.nan)
    with no_more_memory():
        torch_tiled.matmul(a, b, algorithm=algorithm, out=out)
    assert_same(out, expected)
