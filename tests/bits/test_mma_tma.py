"""mma_tma on a GPU: all tiles, boxes and epilogues have the bits of mma_sync."""

import random

import pytest
import torch
from helpers.mma import check_epilogues, check_twin, each_16bit_dtype, with_any_pitch
from helpers.needs import has_132_sms, needs_hopper
from helpers.operands import LAYOUTS, in_layout
from helpers.reference import ACTIVATIONS

import torch_tiled


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_or_columns(layout, dtype):
    """A product of few columns swaps A and B unless it has a bias. A short MN-major operand is
    copied to a K-major one unless K is short as well."""
    sizes = ((40, 3000), (4200, 1000), (8500, 1030), (30000, 200), (70, 20000), (8500, 520))
    for i, rows in enumerate([1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 70]):
        for columns, k in sizes[i % 2 :: 2]:
            a = in_layout(torch.randn(rows, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, columns, device="cuda").to(dtype), layout[1])
            for x, y in ((a, b), (b.mT, a.mT), (a[:, 3:], b[3:]), (b.mT[:, 3:], a.mT[3:])):
                check_twin("mma_tma", x, y)
            bias = torch.randn(rows, device="cuda").to(dtype)
            check_epilogues("mma_tma", b.mT.expand(2, columns, k), a, bias)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tile(layout, dtype):
    """An H200's plan picks each tile for its sizes here, with one chunk of K and with several. The
    rows of the last sizes are not aligned to 128 bytes, and their tiles are those of clusters."""
    sizes = {
        "128x256": [(1673, 1747, 505), (1899, 1571, 8265)],
        "128x192": [(907, 2617, 505), (1025, 2323, 8265), (656, 3344, 504), (776, 2056, 8264)],
        "128x160": [(791, 2368, 505), (1827, 1045, 8265)],
        "128x128": [(1157, 1197, 505), (1216, 1157, 8265), (272, 3344, 504), (264, 3344, 8264)],
        "64x192": [(515, 1859, 505), (1825, 529, 8265)],
        "64x128": [(521, 1367, 505), (513, 1401, 8265), (264, 2192, 504), (272, 2056, 8264)],
        "64x96": [(525, 951, 505), (667, 769, 8265), (200, 2120, 72), (264, 1424, 8264)],
        "64x64": [(329, 1099, 505), (247, 793, 8265), (216, 1072, 72), (384, 1008, 8264)],
        "64x32": [(651, 139, 505), (199, 317, 8265), (416, 280, 72)],
        "64x16": [(1071, 63, 505), (355, 43, 8265), (544, 24, 8264), (104, 56, 8264)],
        "": [(64, 192, 505), (192, 64, 8265), (40, 88, 72)],  # a different tile for each layout
    }
    for tile, problems in sizes.items():
        for m, n, k in problems:
            a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
            chosen = torch_tiled.explain(a, b, algorithm="mma_tma").tile
            assert tile in ("", chosen) or not has_132_sms(), (m, n, k)
            check_twin("mma_tma", a, b)
            check_twin("mma_tma", a, b, out_dtype=torch.float32)
            bias = torch.randn(n, device="cuda").to(dtype)
            check_epilogues("mma_tma", a, b.mT, bias, activations=("silu",))


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("missing", [0, 8, 33, 40, 72, 88])  # columns of the last tile
def test_tiles_of_two_boxes(missing, layout, dtype):
    """An H200's plan picks tiles of 96 columns, a box of 64 and a box of 32, if rows are aligned to
    128 bytes. If B is MN-major, every other tile begins with the box of 32."""
    for n in (7 * 96 - missing, 8 * 96 - missing):
        a = in_layout(torch.randn(896, 128, device="cuda").to(dtype), layout[0])[:850, :72]
        b = in_layout(torch.randn(128, 768, device="cuda").to(dtype), layout[1])[:72, :n]
        bias = torch.randn(n, device="cuda").to(dtype)
        out = torch.full((850, n + 8), torch.nan, dtype=dtype, device="cuda")
        assert torch_tiled.explain(a, b, algorithm="mma_tma").tile == "64x96" or not has_132_sms()
        torch_tiled.matmul(a, b, algorithm="mma_tma", out=out[:, :n])
        assert torch.equal(out[:, :n], torch_tiled.matmul(a, b, algorithm="mma_sync"))
        assert out[:, n:].isnan().all()
        check_twin("mma_tma", a, b, out_dtype=torch.float32)
        check_epilogues("mma_tma", a, b.mT, bias, activations=("relu", "gelu"))


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [(1, 64, 72, 40000), (1, 300, 520, 24600), (3, 130, 201, 16400), (2, 3, 40, 100000)],
)
def test_split_k(batch, m, n, k, layout, dtype):
    """Several blocks share K. Their partial sums, added in order, have the bits of one block."""
    a = in_layout(torch.randn(batch, m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(batch, k, n, device="cuda").to(dtype), layout[1])
    plan = torch_tiled.explain(a, b, algorithm="mma_tma")
    rows, cols = (int(each) for each in plan.tile.split("x"))
    assert int(plan.blocks) > -(-m // rows) * -(-n // cols) * batch
    for options in ({}, {"out_dtype": torch.float32}):
        check_twin("mma_tma", a, b, times=3, **options)
    c, bias = torch.randn(batch, m, n, device="cuda").to(dtype), b[0, 0].contiguous()
    check_epilogues("mma_tma", a, b[0].mT, bias, activations=("relu",))
    check_epilogues("mma_tma", a, b.mT, activations=(), c=c, alpha=0.7, beta=-0.3)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize(("m", "n", "k"), [(4090, 4088, 300), (4091, 4085, 1000)])
def test_tma_stores_overlap_the_next_tile(m, n, k, dtype):
    """TMA stores C if its rows begin and end at multiples of 16 bytes, and clips the last boxes.
    Otherwise a box would overwrite what follows a row, and threads store C."""
    a = torch.randn(2, m, 1024, device="cuda").to(dtype)[..., :k]
    b = torch.randn(k, 4096, device="cuda").to(dtype)[:, :n]
    bias = b[0].contiguous()
    for batched in (a, a[0]):
        expected = torch_tiled.matmul(batched, b, algorithm="mma_sync")
        memory = torch.full((*expected.shape[:-1], 4096), torch.nan, dtype=dtype, device="cuda")
        for columns in (slice(0, n), slice(8, n + 8), slice(4, n + 4)):
            out = memory.fill_(torch.nan)[..., columns]
            tile = torch_tiled.explain(batched, b, algorithm="mma_tma").tile
            assert tile == "128x256" or not has_132_sms()
            torch_tiled.matmul(batched, b, algorithm="mma_tma", out=out)
            assert torch.equal(out, expected)
            out.fill_(torch.nan)
            assert memory.isnan().all()  # nothing beside it was written
    check_epilogues("mma_tma", a, b.mT, bias, activations=ACTIVATIONS)
    c = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
    check_epilogues("mma_tma", a[0], b.mT, activations=(), c=c, alpha=0.7, beta=0)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("seed", range(40))
def test_rows_not_aligned_to_128_bytes(seed, dtype):
    """TMA reads them. A box of an MN-major operand may read past a row, which must not change C."""
    choose = random.Random(seed)
    sizes = (16, 24, 40, 63, 64, 65, 71, 97, 128, 130, 200, 257, 300, 500, 760, 1000)
    m, n = choose.choice(sizes), choose.choice(sizes)
    k = choose.choice((8, 16, 63, 64, 65, 72, 79, 80, 81, 128, 200, 1000, 3000, 4104, 8200, 10000))
    batch = choose.choice((1, 1, 3))
    a, b = (with_any_pitch(batch, *sides, dtype, choose, multiple=8) for sides in ((m, k), (k, n)))
    for algorithm in ("mma_tma", "auto"):
        check_twin(algorithm, a, b, times=3)


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("few", [1, 3, 8, 13, 16, 17, 24, 40, 56])
def test_rows_shorter_than_a_box(few, layout, dtype):
    """TMA reads on into the next rows of an MN-major operand as far as its memory goes, or the
    operand is copied first; and C is stored column by column."""
    for k in (65, 72, 200, 264, 456, 519, 1000):
        for m, n in ((few, 328), (328, few), (few, 201), (201, few)):
            a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
            old = torch.randn(m, n, device="cuda").to(dtype)
            check_twin("mma_tma", a, b)
            check_twin("mma_tma", a, b, out_dtype=torch.float32)
            check_epilogues("mma_tma", a, b.mT, activations=("relu", "gelu"), c=old, beta=-0.3)
