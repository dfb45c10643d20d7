"""simt_ring and simt_bulk: every tile, every way to read, ranges of K, and what ends a product.

Their sums are those of csrc/sum.h, so tiled64 is the reference, to the bit; other tests hold that
to float64.
"""

import pytest
import torch
from needs import needs_cuda, needs_hopper

import torch_tiled

# Problems for which each tile is picked on an H200 or H100, or K is cut: (m, n, k).
RING = {
    "128x64": (2100, 2900, 40),
    "64x64": (1000, 1024, 72),
    "64x32": (500, 500, 132),
    "32x32": (130, 120, 100),
    "16x128": (12, 9000, 100),
    "32x128": (25, 9000, 100),
}
BULK = {
    "256x128": (2048, 2048, 1036),
    "128x64": (1900, 2100, 100),
    "64x64": (700, 700, 700),
    "64x32": (500, 500, 132),
}
LAYOUTS = ("NN", "NT", "TN", "TT")
RUNGS = [
    pytest.param("simt_ring", marks=needs_cuda),
    pytest.param("simt_bulk", marks=needs_hopper),
]


def matrix(rows, cols, layout, device):
    if layout == "T":
        return torch.randn(cols, rows, device=device).mT
    return torch.randn(rows, cols, device=device)


def check(a, b, algorithm):
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    out = torch.full_like(expected, float("nan"))
    assert torch.equal(torch_tiled.matmul(a, b, algorithm=algorithm, out=out), expected)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "algorithm, tile",
    [*(("simt_ring", tile) for tile in RING), *(("simt_bulk", tile) for tile in BULK)],
)
def test_every_tile(algorithm, tile, layout):
    m, n, k = (RING if algorithm == "simt_ring" else BULK)[tile]
    a, b = matrix(m, k, layout[0], "cuda"), matrix(k, n, layout[1], "cuda")
    assert torch_tiled.explain(a, b, algorithm=algorithm).tile == tile
    check(a, b, algorithm)


@needs_cuda
@pytest.mark.parametrize("algorithm", ["simt_ring", "simt"])
@pytest.mark.parametrize("k", [*range(1, 70), 1023, 1024, 1025, 1031, 1032, 1033, 2049])
def test_every_rest_of_k(algorithm, k):
    check(torch.randn(70, k, device="cuda"), torch.randn(k, 90, device="cuda"), algorithm)


@needs_hopper
@pytest.mark.parametrize("rest", range(1, 33))
def test_a_block_goes_on_to_its_next_tile(rest):
    """Whatever is left of K in the last stage of the one before."""
    check(
        torch.randn(1900, 64 + rest, device="cuda"),
        torch.randn(64 + rest, 2100, device="cuda"),
        "simt_bulk",
    )


@needs_cuda
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m, n, k", [(5, 7, 70000), (64, 64, 5000), (1, 300, 4097), (300, 1, 4097)])
def test_ranges_of_k(m, n, k, layout):
    a, b = matrix(m, k, layout[0], "cuda"), matrix(k, n, layout[1], "cuda")
    explained = torch_tiled.explain(a, b, algorithm="simt_ring")
    rows, cols = map(int, explained.tile.split("x"))
    assert int(explained.blocks) > -(-m // rows) * -(-n // cols)
    check(a, b, "simt_ring")


@pytest.mark.parametrize("algorithm", RUNGS)
def test_views(algorithm):
    store = torch.randn(3, 5, 703, 1105, device="cuda")
    a = store[:, :1, 1:401, 3:603]  # misaligned, broadcast over 5
    for b in (
        store[:1, :, :600, 5:305],
        store[0, 0, 1:601, ::2],
        store[0, 0, ::1, 1:601].mT[:, ::2],
        store[0, 0, :1, :1].expand(600, 40),
        store[0, 0, :600, :1].expand(600, 50),
    ):
        check(a, b, algorithm)
        check(b.mT, a.mT, algorithm)


@pytest.mark.parametrize("algorithm", [*RUNGS, pytest.param("simt", marks=needs_cuda)])
def test_more_batch_dimensions_than_a_tensor_map_has(algorithm):
    """No copy can merge them: a rung that needs no map takes the product."""
    store = torch.randn(6, 6, 6, 6, 90, 100, device="cuda")
    a = store[::2, ::3, ::2, ::3]
    check(a, a.mT, algorithm)


@pytest.mark.parametrize("algorithm", RUNGS)
@pytest.mark.parametrize("n", [128, 131])
@pytest.mark.parametrize("k", [100, 5000])
def test_what_ends_a_product(algorithm, n, k):
    """By fours and by ones, from one range of K and from several: the bits of tiled64."""
    x, weight = torch.randn(90, k, device="cuda"), torch.randn(n, k, device="cuda")
    bias = torch.randn(2 * n, device="cuda")
    for activation in ("none", "relu", "gelu", "gelu_tanh", "tanh", "silu"):
        for each in (None, bias[:n], bias[::2]):
            calls = (
                torch_tiled.linear(
                    x, weight, each, activation=activation, algorithm=rung, precision="ieee"
                )
                for rung in ("tiled64", algorithm)
            )
            assert torch.equal(*calls)
    c = torch.randn(90, n, device="cuda")
    for out in (c, c.mT.contiguous().mT, torch.randn(90, n + 1, device="cuda")[:, 1:]):
        for alpha, beta in ((1, 1), (0.5, -2), (2, 0)):
            results = []
            for rung in ("tiled64", algorithm):
                results.append(out.clone(memory_format=torch.preserve_format))
                torch_tiled.gemm_(results[-1], x, weight.mT, alpha=alpha, beta=beta, algorithm=rung)
            assert torch.equal(*results)


@needs_hopper
def test_without_memory_for_copies_another_rung_computes():
    """A row read as many columns: a copy would take more memory than there is."""
    free = torch.cuda.mem_get_info()[0]
    n = int(free * 1.05) // (4 * 64) // 4 * 4
    row = torch.randn(64, 1, device="cuda")
    a = torch.randn(1, 64, device="cuda")
    wide = row.expand(64, n)
    result = torch_tiled.matmul(a, wide, algorithm="simt_bulk")
    first = torch_tiled.matmul(a, row, algorithm="tiled64")
    assert (result == first).all()


@needs_cuda
def test_capture(collected):
    a, b = torch.randn(130, 3000, device="cuda"), torch.randn(500, 3000, device="cuda").mT
    expected = torch_tiled.matmul(a, b, algorithm="tiled64")
    torch_tiled.matmul(a, b, algorithm="simt_ring")
    for algorithm in ("simt_ring", "simt"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch_tiled.matmul(a, b, algorithm=algorithm, precision="ieee")
        result.fill_(float("nan"))
        graph.replay()
        assert torch.equal(result, expected)
        del graph
