"""The mma kernels on a GPU: tiles, boxes, alignments and epilogues have the bits of mma_sync."""

import random

import pytest
import torch
from helpers.mma import check_epilogues, check_twin, each_16bit_dtype, with_any_pitch
from helpers.needs import has_132_sms, needs_hopper
from helpers.operands import LAYOUTS, in_layouts
from helpers.reference import ACTIVATIONS

import torch_tiled

pytestmark = needs_hopper

# Random problems: the algorithms that are compared, their number, what offsets, row pitches and
# batch strides are multiples of, the sides, the lengths of K, and the batches.
RANDOM = {
    "mma_direct": (
        ["mma_direct"],
        60,
        1,
        (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257),
        (1, 2, 7, 14, 15, 16, 17, 31, 64, 65, 127, 128, 129, 320, 513, 4097, 8192),
        (1, 1, 3, 50),
    ),
    "mma_unaligned": (
        ["mma_unaligned", "mma_tma", "auto"],
        40,
        1,
        (1, 2, 7, 8, 9, 17, 31, 33, 63, 64, 65, 71, 127, 128, 129, 200, 257, 300, 1000),
        (1, 2, 7, 8, 9, 63, 64, 65, 71, 127, 128, 129, 320, 513, 4097, 8193, 20000),
        (1, 1, 3),
    ),
    # A box of an MN-major operand may read past a row, which must not change C.
    "mma_tma": (
        ["mma_tma", "auto"],
        40,
        8,
        (16, 24, 40, 63, 64, 65, 71, 97, 128, 130, 200, 257, 300, 500, 760, 1000),
        (8, 16, 63, 64, 65, 72, 79, 80, 81, 128, 200, 1000, 3000, 4104, 8200, 10000),
        (1, 1, 3),
    ),
}


@each_16bit_dtype
@pytest.mark.parametrize(
    "kernel, seed", [(kernel, seed) for kernel, row in RANDOM.items() for seed in range(row[1])]
)
def test_operands_of_any_alignment(kernel, seed, dtype):
    algorithms, _, multiple, sides, lengths, batches = RANDOM[kernel]
    choose = random.Random(seed)
    m, n, k = choose.choice(sides), choose.choice(sides), choose.choice(lengths)
    batch = choose.choice(batches)
    a, b = (with_any_pitch(batch, *x, dtype, choose, multiple) for x in ((m, k), (k, n)))
    for algorithm in algorithms:
        check_twin(algorithm, a, b, times=3)
    check_twin(kernel, a, b, out_dtype=torch.float32)


# --- mma_direct ----------------------------------------------------------------------------------


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "m", "n", "k"),
    [
        ("16x16", 30, 50, 40),
        ("16x16", 31, 51, 300),
        ("32x32", 1044, 6178, 33),
        ("64x16", 60000, 1, 14),
        ("16x64", 1, 60000, 14),
    ],
)
def test_every_tile_of_direct(tile, m, n, k, layout, dtype):
    a, b = in_layouts(layout, (m, k), (k, n), dtype)
    assert torch_tiled.explain(a, b, algorithm="mma_direct").tile == tile or not has_132_sms()
    check_twin("mma_direct", a, b)
    old, bias = torch.randn(m, n, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
    check_epilogues(
        *("mma_direct", a, b.mT, bias), activations=("none", "gelu"), c=old, alpha=0.7, beta=-0.3
    )


@each_16bit_dtype
@pytest.mark.parametrize("k", [*range(1, 70), 8191, 8192])
def test_every_remainder_of_k_of_direct(k, dtype):
    """A wrong end of K would lose an element, or multiply the NaN that follows it."""
    for m, n in ((1, 70), (70, 2), (33, 40)):
        a = torch.full((m, k + 2), torch.nan, dtype=dtype, device="cuda")[:, :k]
        b = torch.full((n, k + 2), torch.nan, dtype=dtype, device="cuda")[:, :k].mT
        a.copy_(torch.randn(m, k)), b.copy_(torch.randn(k, n))
        check_twin("mma_direct", a, b)
        check_twin("mma_direct", a.mT.contiguous().mT, b.contiguous())


@each_16bit_dtype
def test_batches_of_any_rank(dtype):
    a = torch.randn(2, 1, 3, 1, 2, 5, 20, 22, device="cuda").to(dtype)
    b = torch.randn(3, 2, 1, 5, 22, 18, device="cuda").to(dtype)
    check_twin("mma_direct", a, b)
    check_twin("mma_direct", a[..., ::2, ::2], b[..., ::2, ::3])
    check_twin("mma_direct", a, b[0, 0, 0, 0].expand(2, 1, 3, 1, 2, 5, 22, 18))


@each_16bit_dtype
def test_offsets_past_two_to_the_31(dtype):
    a = torch.randn(2**27 + 33, 17, device="cuda", dtype=dtype)
    b = torch.randn(17, 3, device="cuda", dtype=dtype)
    out = torch_tiled.matmul(a, b, algorithm="mma_direct")
    for rows in (slice(0, 1000), slice(2**27 - 1000, 2**27 + 33)):
        assert torch.equal(out[rows], torch_tiled.matmul(a[rows], b, algorithm="mma_sync"))


# --- mma_tma -------------------------------------------------------------------------------------


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_or_columns(layout, dtype):
    """A product of few columns swaps A and B unless it has a bias. A short MN-major operand is
    copied to a K-major one unless K is short as well."""
    sizes = ((40, 3000), (4200, 1000), (8500, 1030), (30000, 200), (70, 20000), (8500, 520))
    for i, rows in enumerate([1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 70]):
        for columns, k in sizes[i % 2 :: 2]:
            a, b = in_layouts(layout, (rows, k), (k, columns), dtype)
            for x, y in ((a, b), (b.mT, a.mT), (a[:, 3:], b[3:]), (b.mT[:, 3:], a.mT[3:])):
                check_twin("mma_tma", x, y)
            bias = torch.randn(rows, device="cuda").to(dtype)
            check_epilogues("mma_tma", b.mT.expand(2, columns, k), a, bias)


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tile_of_tma(layout, dtype):
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
            a, b = in_layouts(layout, (m, k), (k, n), dtype)
            chosen = torch_tiled.explain(a, b, algorithm="mma_tma").tile
            assert tile in ("", chosen) or not has_132_sms(), (m, n, k)
            check_twin("mma_tma", a, b)
            check_twin("mma_tma", a, b, out_dtype=torch.float32)
            bias = torch.randn(n, device="cuda").to(dtype)
            check_epilogues("mma_tma", a, b.mT, bias, activations=("silu",))


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("missing", [0, 8, 33, 40, 72, 88])  # columns of the last tile
def test_tiles_of_two_boxes(missing, layout, dtype):
    """An H200's plan picks tiles of 96 columns, a box of 64 and a box of 32, if rows are aligned to
    128 bytes. If B is MN-major, every other tile begins with the box of 32."""
    for n in (7 * 96 - missing, 8 * 96 - missing):
        a, b = in_layouts(layout, (896, 128), (128, 768), dtype)
        a, b = a[:850, :72], b[:72, :n]
        bias = torch.randn(n, device="cuda").to(dtype)
        out = torch.full((850, n + 8), torch.nan, dtype=dtype, device="cuda")
        assert torch_tiled.explain(a, b, algorithm="mma_tma").tile == "64x96" or not has_132_sms()
        torch_tiled.matmul(a, b, algorithm="mma_tma", out=out[:, :n])
        assert torch.equal(out[:, :n], torch_tiled.matmul(a, b, algorithm="mma_sync"))
        assert out[:, n:].isnan().all()
        check_twin("mma_tma", a, b, out_dtype=torch.float32)
        check_epilogues("mma_tma", a, b.mT, bias, activations=("relu", "gelu"))


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [(1, 64, 72, 40000), (1, 300, 520, 24600), (3, 130, 201, 16400), (2, 3, 40, 100000)],
)
def test_split_k_of_tma(batch, m, n, k, layout, dtype):
    """Several blocks share K. Their partial sums, added in order, have the bits of one block."""
    a, b = in_layouts(layout, (batch, m, k), (batch, k, n), dtype)
    plan = torch_tiled.explain(a, b, algorithm="mma_tma")
    rows, cols = (int(each) for each in plan.tile.split("x"))
    assert int(plan.blocks) > -(-m // rows) * -(-n // cols) * batch
    for options in ({}, {"out_dtype": torch.float32}):
        check_twin("mma_tma", a, b, times=3, **options)
    c, bias = torch.randn(batch, m, n, device="cuda").to(dtype), b[0, 0].contiguous()
    check_epilogues("mma_tma", a, b[0].mT, bias, activations=("relu",))
    check_epilogues("mma_tma", a, b.mT, activations=(), c=c, alpha=0.7, beta=-0.3)


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


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("few", [1, 3, 8, 13, 16, 17, 24, 40, 56])
def test_rows_shorter_than_a_box(few, layout, dtype):
    """TMA reads on into the next rows of an MN-major operand as far as its memory goes, or the
    operand is copied first; and C is stored column by column."""
    for k in (65, 72, 200, 264, 456, 519, 1000):
        for m, n in ((few, 328), (328, few), (few, 201), (201, few)):
            a, b = in_layouts(layout, (m, k), (k, n), dtype)
            old = torch.randn(m, n, device="cuda").to(dtype)
            check_twin("mma_tma", a, b)
            check_twin("mma_tma", a, b, out_dtype=torch.float32)
            check_epilogues("mma_tma", a, b.mT, activations=("relu", "gelu"), c=old, beta=-0.3)


# --- mma_unaligned -------------------------------------------------------------------------------


@each_16bit_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("k_major", "mn_major", "m", "n", "k"),  # tiles if the longer operand lies so
    [
        ("32x64", "32x64", 4097, 30, 73),
        ("32x64", "32x64", 1051, 61, 8265),
        ("64x64", "64x64", 6001, 60, 8265),
        ("128x64", "128x64", 9001, 130, 73),
        ("128x64", "128x64", 9001, 61, 129),
        ("128x64", "128x64", 9001, 61, 8265),
        ("128x64", "128x64", 4097, 130, 73),
        ("64x128", "64x128", 2049, 266, 129),
        ("64x128", "64x128", 4101, 250, 8265),
        ("128x128", "128x128", 11007, 120, 8265),
        ("64x192", "64x192", 2049, 500, 129),
        ("64x192", "64x192", 4099, 380, 8265),
        ("64x256", "64x256", 4359, 209, 1001),
        ("64x256", "64x256", 6269, 255, 8265),
        ("128x256", "128x256", 11007, 250, 129),
        ("128x256", "128x256", 11007, 250, 8265),
    ],
)
def test_every_tile_of_unaligned(k_major, mn_major, m, n, k, layout, dtype):
    """The kernel reads the longer operand, A or B, without a copy. An H200's plan picks each of the
    tiles for its sizes, with one chunk of K and with several."""
    a, b = in_layouts(layout, (m, k), (k, n), dtype)
    tile = k_major if layout[0] == "N" else mn_major
    for x, y, name in ((a, b, tile), (b.mT, a.mT, "x".join(tile.split("x")[::-1]))):
        picked = torch_tiled.explain(x, y, algorithm="mma_unaligned").tile
        assert picked == name or not has_132_sms()
        memory = torch.full((len(x), y.shape[1] + 3), torch.nan, dtype=dtype, device="cuda")
        out = memory[:, : y.shape[1]]
        torch_tiled.matmul(x, y, algorithm="mma_unaligned", out=out)
        assert torch.equal(out, torch_tiled.matmul(x, y, algorithm="mma_sync"))
        assert memory[:, y.shape[1] :].isnan().all()
        old = torch.randn(len(x), y.shape[1], device="cuda").to(dtype)
        bias = torch.randn(y.shape[1], device="cuda").to(dtype)
        check_twin("mma_unaligned", x, y, out_dtype=torch.float32)
        options = {"activations": ("none", "relu", "gelu"), "alpha": 0.7, "beta": -0.3}
        check_epilogues("mma_unaligned", x, y.mT, bias, c=old, **options)


@each_16bit_dtype
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 6137, 15731), (64, 2049, 14887), (8, 8191, 513)])
def test_auto_picks_it_for_few_rows_and_unaligned_operands(m, n, k, layout, dtype):
    a, b = in_layouts(layout, (m, k), (k, n), dtype)
    assert torch_tiled.explain(a, b).algorithm == "mma_unaligned"
    check_twin("auto", a, b)


@each_16bit_dtype
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("pitch", [1001, 1002, 1004, 1000, 1008, 1024])
def test_every_row_pitch(pitch, mn_major, dtype):
    """Row pitches that are multiples of different powers of two, since the rows that a warp reads
    together depend on them. The memory around the operand is NaN."""
    for start, n, k in ((1, 5, 999), (3, 61, 640), (7, 130, 960), (5, 250, 65)):
        sides = (k, 990) if mn_major else (990, k)
        width = min(sides[1], pitch - start)
        memory = torch.full((sides[0] * pitch + 8,), torch.nan, dtype=dtype, device="cuda")
        a = memory.as_strided((sides[0], width), (pitch, 1), start)
        a.copy_(torch.randn(a.shape, device="cuda"))
        a = a.mT if mn_major else a
        b = torch.randn(a.shape[1], n, device="cuda").to(dtype)
        assert torch_tiled.explain(a, b, algorithm="mma_unaligned").algorithm == "mma_unaligned"
        check_twin("mma_unaligned", a, b)
        assert not torch_tiled.matmul(a, b, algorithm="mma_unaligned").isnan().any()
