"""mma_unaligned on a GPU, with rows of any alignment: all tiles have the bits of mma_sync."""

import random

import pytest
import torch
from helpers.mma import check_epilogues, check_twin, each_16bit_dtype, with_any_pitch
from helpers.needs import has_132_sms, needs_hopper
from helpers.operands import LAYOUTS, in_layout

import torch_tiled


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("seed", range(40))
def test_rows_of_any_alignment(seed, dtype):
    choose = random.Random(seed)
    sizes = (1, 2, 7, 8, 9, 17, 31, 33, 63, 64, 65, 71, 127, 128, 129, 200, 257, 300, 1000)
    m, n = choose.choice(sizes), choose.choice(sizes)
    k = choose.choice((1, 2, 7, 8, 9, 63, 64, 65, 71, 127, 128, 129, 320, 513, 4097, 8193, 20000))
    batch = choose.choice((1, 1, 3))
    a, b = (with_any_pitch(batch, *sides, dtype, choose) for sides in ((m, k), (k, n)))
    for algorithm in ("mma_unaligned", "mma_tma", "auto"):
        check_twin(algorithm, a, b, times=3)


@needs_hopper
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
def test_every_tile(k_major, mn_major, m, n, k, layout, dtype):
    """The kernel reads the longer operand, A or B, without a copy. An H200's plan picks each of the
    tiles for its sizes, with one chunk of K and with several."""
    a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
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


@needs_hopper
@each_16bit_dtype
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 6137, 15731), (64, 2049, 14887), (8, 8191, 513)])
def test_auto_picks_it_for_few_rows_and_unaligned_operands(m, n, k, layout, dtype):
    a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
    assert torch_tiled.explain(a, b).algorithm == "mma_unaligned"
    check_twin("auto", a, b)


@needs_hopper
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
