"""mma, products of float16 and bfloat16 on tensor cores: their bits, and how far they may be off.

The host's rung computes on a model of the tensor core what a Hopper GPU does.
"""

import random

import pytest
import torch
from helpers.memory import no_more_memory
from helpers.needs import needs_hopper
from helpers.reference import ACTIVATIONS, U, assert_same, assert_within, bound, product
from helpers.specification import chained, fused_multiply_add, sum_in_chunks

import torch_tiled

RUNGS = ("mma_sync", "mma_unaligned", "mma_tma", "mma")
LAYOUTS = ("NN", "NT", "TN", "TT")

each_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_hopper)])
def device(request):
    return request.param


def multiply(a, b, device, **options):
    """The product on a device, back on the host; `auto` picks it on a GPU."""
    a, b = a.to(device), b.to(device)
    result = torch_tiled.matmul(a, b, algorithm="mma", **options)
    for algorithm in (*RUNGS, *(["auto"] if device == "cuda" else [])):
        assert_same(torch_tiled.matmul(a, b, algorithm=algorithm, **options), result)
    return result.cpu()


def check(a, b, device):
    """Holds both kinds of output to the specification, to the bit."""
    expected = chained(a, b)
    assert_same(multiply(a, b, device, out_dtype=torch.float32), expected)
    assert_same(multiply(a, b, device), expected.to(a.dtype))


# --- operands ------------------------------------------------------------------------------------


def both(f):
    """Operands of numbers that f makes of a shape and a dtype."""
    return lambda m, k, n, dtype: (f((m, k), dtype).to(dtype), f((k, n), dtype).to(dtype))


def patterns(shape, dtype):
    """Random bits: every exponent is as likely, NaN and Inf among them."""
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(dtype)


def finite_patterns(shape, dtype):
    x = patterns(shape, dtype)
    return torch.where(x.isfinite(), x, 1)


def spread(lowest, highest):
    """Numbers whose exponents are anything from the one to the other, for each dtype."""

    def numbers(shape, dtype):
        exponents = torch.randint(lowest[dtype], highest[dtype] + 1, shape)
        return torch.ldexp((2 * torch.rand(shape) - 1).double(), exponents)

    return numbers


def of_each(float16, bfloat16):
    return {torch.float16: float16, torch.bfloat16: bfloat16}


def zeros(shape, dtype):
    return torch.zeros(shape).copysign(torch.randn(shape))


def sparse(shape, dtype):
    return torch.where(torch.rand(shape) < 0.1, torch.randn(shape), zeros(shape, dtype))


def alternating(m, k, n, dtype):
    """Sums that cancel, but for what is cut."""
    signs = 1.0 - 2.0 * (torch.arange(k) % 2)
    a = torch.rand(m, 1) * (1 + torch.rand(k) * 2 * U[dtype])
    return a.to(dtype), signs[:, None].expand(k, n).to(dtype)


def not_finite(m, k, n, dtype):
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    a[m // 2, 0] = torch.nan
    a[-1, -1] = torch.inf
    a[0, k // 2] = -torch.inf
    b[k // 2, n // 3] = -torch.inf
    b[-1, 0] = torch.inf
    b[-1, 1] = 0
    return a, b


FINITE = {
    "normal": both(lambda shape, dtype: torch.randn(shape)),
    "uniform": both(lambda shape, dtype: torch.rand(shape)),
    "lognormal": both(lambda shape, dtype: torch.exp(2 * torch.randn(shape)).clamp(max=6e4)),
    "spread": both(spread(of_each(-24, -60), of_each(4, 60))),
    "subnormal": both(spread(of_each(-24, -133), of_each(-14, 0))),
    "tiny": both(spread(of_each(-24, -77), of_each(-12, -67))),
    "huge": both(spread(of_each(8, 30), of_each(15, 56))),
    "sparse": both(sparse),
    "zeros": both(zeros),
    "alternating": alternating,
}
OPERANDS = FINITE | {
    "wide": both(spread(of_each(-24, -130), of_each(15, 120))),
    "finite patterns": both(finite_patterns),
    "overflow": both(spread(of_each(10, 61), of_each(15, 66))),
    "patterns": both(patterns),
    "not finite": not_finite,
}


# --- bits ----------------------------------------------------------------------------------------


@each_half
@pytest.mark.parametrize("k", [1, 7, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("name", OPERANDS)
def test_bits_are_as_specified(device, name, k, dtype):
    check(*OPERANDS[name](7, k, 6, dtype), device)


@each_half
@pytest.mark.parametrize("k", [8191, 8192, 8193, 16400])
def test_bits_of_chunks_are_as_specified(device, k, dtype):
    for name in ("normal", "uniform", "wide"):
        check(*OPERANDS[name](3, k, 4, dtype), device)


@each_half
@pytest.mark.parametrize("k", [0, 1, 17, 8193])
def test_a_sum_of_nothing_is_positive_zero(device, k, dtype):
    a, b = torch.full((3, k), -0.0, dtype=dtype), torch.ones(k, 4, dtype=dtype)
    check(a, b, device)
    assert not multiply(a, b, device).signbit().any()


@each_half
def test_inf_and_nan_are_as_in_ieee(device, dtype):
    """In an element of which a factor is one of them; others do not know."""
    for k in (3, 40, 8200):
        a, b = not_finite(20, k, 30, dtype)
        rows, cols = a.isfinite().all(1), b.isfinite().all(0)
        finite = rows[:, None] & cols
        c = multiply(a, b, device)
        assert_same(c[finite], multiply(a[rows], b[:, cols], device).flatten())
        assert_same(c[~finite], sum_in_chunks(a.float(), b.float()).to(dtype)[~finite])
        assert not c[~finite].isfinite().any()


@each_half
def test_signs_of_inf_and_what_meets_it(device, dtype):
    inf, nan = torch.inf, torch.nan
    a = torch.tensor([[inf, 1, 1], [-inf, 1, 1], [inf, -inf, 1], [inf, nan, 0]], dtype=dtype)
    b = torch.tensor([[1, -1, 0, inf], [1, 1, 1, 1], [1, 1, 1, -inf]], dtype=dtype)
    expected = torch.tensor(
        [[inf, -inf, nan, nan], [-inf, inf, nan, -inf], [nan, -inf, nan, nan], [nan] * 4]
    )
    assert_same(multiply(a, b, device), expected.to(dtype))
    late = torch.nn.functional.pad(a, (8200, 0)), torch.nn.functional.pad(b, (0, 0, 8200, 0))
    assert_same(multiply(*late, device), expected.to(dtype))


def test_sums_leave_the_range_of_float32(device):
    """Beyond the largest number they are Inf, and below the smallest normal one they are cut."""
    a = torch.tensor([[2.0**64, 2.0**64], [2.0**64, -(2.0**64)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**63, 2.0**64], [2.0**63, 2.0**64]], dtype=torch.bfloat16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert c.tolist() == [[torch.inf, torch.inf], [0, 0]]
    a = torch.tensor([[2.0**-75], [-(2.0**-75)]], dtype=torch.bfloat16)
    b = torch.tensor([[2.0**-75, 2.0**-74, 1.5 * 2.0**-74, 1.75 * 2.0**-73]], dtype=torch.bfloat16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert_same(c, 2.0**-149 * torch.tensor([[0.0, 1, 1, 3], [0.0, -1, -1, -3]]))


def in_layout(x, letter):
    return x.mT.contiguous().mT if letter == "T" else x


@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [64, 67, 203])
def test_slices_of_a_product_are_products_of_slices(device, layout, k, dtype):
    a, b = torch.randn(300, k).to(dtype), torch.randn(k, 140).to(dtype)
    a[200, 3] = torch.inf
    expected = chained(a, b)
    a, b = in_layout(a, layout[0]).to(device), in_layout(b, layout[1]).to(device)
    wide = {"out_dtype": torch.float32}
    assert_same(multiply(a, b, device, **wide), expected)
    for m in (1, 2, 7, 16, 33, 64, 65, 128, 200):
        rows = slice(m // 2, m // 2 + m)
        assert_same(multiply(a[rows], b, device, **wide), expected[rows])
    for n in (1, 8, 15, 64, 129):
        assert_same(multiply(a[10:20], b[:, :n], device, **wide), expected[10:20, :n])
    assert_same(multiply(a[::7], b[:, 1::3], device, **wide), expected[::7, 1::3])


@each_half
def test_views_and_batches(device, dtype):
    a, b = torch.randn(3, 20, 152).to(dtype), torch.randn(3, 152, 30).to(dtype)
    each = torch.stack([torch.stack([chained(x, y) for y in b]) for x in a]).to(dtype)
    a, b = a.to(device), b.to(device)
    turn = torch.arange(3)
    assert_same(multiply(a, b, device), each[turn, turn])
    assert_same(multiply(a, b[1], device), each[:, 1])
    assert_same(multiply(a[2], b, device), each[2])
    assert_same(multiply(a[:, None], b, device), each)
    assert_same(multiply(a[0, 4], b[1, :, 5], device), each[0, 1, 4, 5])
    for view in (a[0, :1].expand(20, 152), a[0, :, :1].expand(20, 152)):
        assert_same(multiply(view, b[1], device), multiply(view.contiguous(), b[1], device))
    memory = torch.full((41, 460), torch.nan, dtype=dtype, device=device)
    assert_same(multiply(memory[1::2, 3:459:3].copy_(a[0]), b[0], device), each[0, 0])


@each_half
@pytest.mark.parametrize("algorithm", RUNGS)
@pytest.mark.parametrize("alpha, beta", [(1, 1), (0.7, 0), (3.7, -0.1), (0, 2)])
def test_gemm_finishes_the_same_sum(device, dtype, algorithm, alpha, beta):
    a, b, c = (torch.randn(*shape).to(dtype) for shape in ((33, 200), (200, 24), (33, 24)))
    expected = torch.tensor(alpha) * chained(a, b)
    if beta:
        expected = fused_multiply_add(torch.tensor(beta), c.float(), expected)
    options = {"alpha": alpha, "beta": beta, "algorithm": algorithm}
    torch_tiled.gemm_(c := c.to(device), a.to(device), b.to(device), **options)
    assert_same(c.cpu(), expected.to(dtype))


@each_half
@pytest.mark.parametrize("algorithm", RUNGS)
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_linear_finishes_the_same_sum(device, dtype, algorithm, activation):
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((33, 200), (24, 200), (24,)))
    expected = ACTIVATIONS[activation](chained(x, weight.mT) + bias.float())
    operands = (each.to(device) for each in (x, weight, bias))
    y = torch_tiled.linear(*operands, activation=activation, algorithm=algorithm)
    assert_same(y.cpu(), expected.to(dtype))


@each_half
def test_precision_is_not_for_halves(device, dtype):
    a, b = torch.randn(20, 100).to(dtype), torch.randn(100, 30).to(dtype)
    assert_same(multiply(a, b, device, precision="ieee"), multiply(a, b, device))


# --- what is told --------------------------------------------------------------------------------


@each_half
@pytest.mark.parametrize("k, chains", [(0, "1 chain"), (8192, "1 chain"), (8193, "2 chains")])
def test_explain_says_the_order(device, k, chains, dtype):
    a = torch.ones(3, k, dtype=dtype, device=device)
    for name in ["mma", "auto"] if device == "cuda" else ["mma"]:
        order = torch_tiled.explain(a, a.mT, algorithm=name).order
        assert order == f"{chains} of at most 8192 in K on tensor cores, added in order"


@pytest.mark.parametrize(
    "view",
    [
        lambda new, k, n: new(k, n),
        lambda new, k, n: new(n, k).mT,
        lambda new, k, n: new(k, n + 8)[:, 8:],
        lambda new, k, n: new(k, n + 4)[:, 4:],
        lambda new, k, n: new(n + 3, k + 3).mT[3:, 3:],
        lambda new, k, n: new(2 * k, 2 * n)[::2, ::2],
        lambda new, k, n: new(1, n).expand(k, n),
        lambda new, k, n: new(k, 1).expand(k, n),
    ],
)
@each_half
def test_any_view_is_taken(device, view, dtype):
    """Also what no tensor map can read: lines that begin anywhere, elements that are apart."""
    a = torch.randn(40, 603, dtype=dtype, device=device)
    b = view(lambda *shape: torch.randn(shape, dtype=dtype, device=device), 603, 201)
    for x, y in ((a, b), (b.mT, a.mT), (a.expand(2, 40, 603), b)):
        assert torch_tiled.explain(x, y, algorithm="mma_tma").algorithm == "mma_tma"
        out = torch.full((*x.shape[:-1], y.shape[-1]), torch.nan, dtype=dtype, device=device)
        torch_tiled.matmul(x, y, algorithm="mma_tma", out=out)
        assert torch.equal(out, torch_tiled.matmul(x, y, algorithm="mma_sync"))


# --- accuracy ------------------------------------------------------------------------------------


@each_half
@pytest.mark.parametrize("k", [1, 16, 17, 100, 1024, 8200])
@pytest.mark.parametrize("name", FINITE)
def test_elementwise_bound(device, name, k, dtype):
    a, b = FINITE[name](12, k, 10, dtype)
    result = multiply(a, b, device, out_dtype=torch.float32)
    assert_within(result, product(a, b), bound(a, b, algorithm="mma", out_dtype=torch.float32))


@each_half
def test_bound_is_below_that_of_a_plain_sum(dtype):
    for k in (16, 64, 1024, 8192, 8193, 100_000):
        a, b = torch.ones(1, k, dtype=dtype), torch.ones(k, 1, dtype=dtype)
        wide = {"out_dtype": torch.float32}
        assert bound(a, b, algorithm="mma", **wide) < bound(a, b, algorithm="naive", **wide)


def test_subnormal_factors_count_as_the_smallest_normal_number(device):
    """In what is cut beside them: 2^-25 is less than 2^-25 of 2^-14 2^15."""
    a = torch.tensor([[2.0**-24, 2.0**-14]], dtype=torch.float16)
    b = torch.tensor([[2.0**15], [2.0**-11]], dtype=torch.float16)
    c = multiply(a, b, device, out_dtype=torch.float32)
    assert c.item() == 2.0**-9
    assert_within(c, product(a, b), bound(a, b, algorithm="mma", out_dtype=torch.float32))


@each_half
@pytest.mark.parametrize("k", [64, 100, 1024, 8200])
def test_integers_are_exact(device, k, dtype):
    """Where |A||B| stays within 2^24: then nothing is ever cut."""
    largest = min(2**8, int((2**24 // k) ** 0.5))
    a, b = (torch.randint(-largest, largest + 1, shape).to(dtype) for shape in ((30, k), (k, 40)))
    a[0], a[1], b[:, 0] = largest, -largest, largest
    wide = multiply(a, b, device, out_dtype=torch.float32)
    assert torch.equal(wide.double(), product(a, b))


# --- the host against a GPU ----------------------------------------------------------------------


def compare(a, b, **options):
    host = torch_tiled.matmul(a, b, algorithm="mma", **options)
    for algorithm in (*RUNGS, "auto"):
        for _ in range(3):  # a race would show as a difference that moves
            cuda = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm=algorithm, **options)
            assert_same(cuda.cpu(), host)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 8, 15, 16, 31, 32, 33, 63, 64, 65, 72, 127, 128, 200, 1000])
def test_host_and_gpu_agree(k, layout, dtype):
    sizes = [1, 2, 7, 8, 9, 16, 31, 64, 65, 127, 128, 129, 136, 255, 256, 257]
    for i, m in enumerate(sizes):
        n = sizes[(5 * i + k) % len(sizes)]
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        compare(in_layout(a, layout[0]), in_layout(b, layout[1]), out_dtype=torch.float32)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERANDS)
def test_host_and_gpu_agree_on_hard_input(name, layout, dtype):
    for m, k, n in ((150, 1096, 136), (3, 300, 140), (140, 64, 5), (130, 8208, 8)):
        a, b = OPERANDS[name](m, k, n, dtype)
        compare(in_layout(a, layout[0]), in_layout(b, layout[1]), out_dtype=torch.float32)


@needs_hopper
@each_half
def test_host_and_gpu_agree_on_many_tiles(dtype):
    def randn(*shape):
        return torch.randn(shape).to(dtype)

    compare(randn(1000, 1096), randn(1096, 1032))
    compare(randn(5, 130, 200), randn(5, 200, 152))
    compare(randn(5, 130, 200), randn(200, 152))
    compare(randn(5, 130, 200), randn(5, 152, 200).mT)
    compare(randn(2, 3, 40, 2048), randn(2, 1, 48, 2048).mT)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_or_columns(layout, dtype):
    """Few columns of very many rows are computed as few rows of the transpose, but for a bias; what
    is short across K is copied to lines along it, unless K is short, too."""
    sizes = ((40, 3000), (4200, 1000), (8500, 1030), (30000, 200), (70, 20000), (8500, 520))
    for i, rows in enumerate([1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 70]):
        for columns, k in sizes[i % 2 :: 2]:
            a = in_layout(torch.randn(rows, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, columns, device="cuda").to(dtype), layout[1])
            for x, y in ((a, b), (b.mT, a.mT), (a[:, 3:], b[3:]), (b.mT[:, 3:], a.mT[3:])):
                out = torch.full((len(x), y.shape[1]), torch.nan, dtype=dtype, device="cuda")
                torch_tiled.matmul(x, y, algorithm="mma_tma", out=out)
                assert torch.equal(out, torch_tiled.matmul(x, y, algorithm="mma_sync"))
            bias = torch.randn(rows, device="cuda").to(dtype)
            x = b.mT.expand(2, columns, k)
            assert torch.equal(
                torch_tiled.linear(x, a, bias=bias, algorithm="mma_tma"),
                torch_tiled.linear(x, a, bias=bias, algorithm="mma_sync"),
            )


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bulk_with_any_tile(layout, dtype):
    """On an H200, whose plan picks another for each of these sizes; sums of several chunks, too. Of
    the last sizes lines begin within those of L2, and tiles are pairs'."""
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
        "": [(64, 192, 505), (192, 64, 8265), (40, 88, 72)],  # another for each layout
    }
    is_h200 = torch.cuda.get_device_properties().multi_processor_count == 132
    for tile, problems in sizes.items():
        for m, n, k in problems:
            a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
            chosen = torch_tiled.explain(a, b, algorithm="mma_tma").tile
            assert tile in ("", chosen) or not is_h200, (m, n, k)
            out = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
            torch_tiled.matmul(a, b, algorithm="mma_tma", out=out)
            assert torch.equal(out, torch_tiled.matmul(a, b, algorithm="mma_sync"))
            single = torch.full((m, n), torch.nan, device="cuda")
            torch_tiled.matmul(a, b, algorithm="mma_tma", out=single, out_dtype=torch.float32)
            assert torch.equal(
                single, torch_tiled.matmul(a, b, algorithm="mma_sync", out_dtype=torch.float32)
            )
            bias = torch.randn(n, device="cuda").to(dtype)
            assert torch.equal(
                torch_tiled.linear(a, b.mT, bias, activation="silu", algorithm="mma_tma"),
                torch_tiled.linear(a, b.mT, bias, activation="silu", algorithm="mma_sync"),
            )


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cut", [0, 8, 33, 40, 72, 88])  # of the last tile
def test_tiles_of_a_wide_box_and_a_narrow_one(cut, layout, dtype):
    """On an H200, of 96 columns, if lines begin where L2's do: where columns are neighbours, each
    tile begins with the other box."""
    is_h200 = torch.cuda.get_device_properties().multi_processor_count == 132
    for n in (7 * 96 - cut, 8 * 96 - cut):
        a = in_layout(torch.randn(896, 128, device="cuda").to(dtype), layout[0])[:850, :72]
        b = in_layout(torch.randn(128, 768, device="cuda").to(dtype), layout[1])[:72, :n]
        bias = torch.randn(n, device="cuda").to(dtype)
        out = torch.full((850, n + 8), torch.nan, dtype=dtype, device="cuda")
        single = torch.full((850, n), torch.nan, device="cuda")
        assert torch_tiled.explain(a, b, algorithm="mma_tma").tile == "64x96" or not is_h200
        torch_tiled.matmul(a, b, algorithm="mma_tma", out=out[:, :n])
        torch_tiled.matmul(a, b, algorithm="mma_tma", out=single, out_dtype=torch.float32)
        assert torch.equal(out[:, :n], torch_tiled.matmul(a, b, algorithm="mma_sync"))
        assert out[:, n:].isnan().all()
        assert torch.equal(
            single, torch_tiled.matmul(a, b, algorithm="mma_sync", out_dtype=torch.float32)
        )
        for activation in ("relu", "gelu"):
            assert torch.equal(
                torch_tiled.linear(a, b.mT, bias, activation=activation, algorithm="mma_tma"),
                torch_tiled.linear(a, b.mT, bias, activation=activation, algorithm="mma_sync"),
            )


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [(1, 64, 72, 40000), (1, 300, 520, 24600), (3, 130, 201, 16400), (2, 3, 40, 100000)],
)
def test_chunks_of_few_tiles_by_several_blocks(batch, m, n, k, layout, dtype):
    a = in_layout(torch.randn(batch, m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(batch, k, n, device="cuda").to(dtype), layout[1])
    plan = torch_tiled.explain(a, b, algorithm="mma_tma")
    rows, cols = (int(each) for each in plan.tile.split("x"))
    assert int(plan.blocks) > -(-m // rows) * -(-n // cols) * batch
    for options in ({}, {"out_dtype": torch.float32}):
        expected = torch_tiled.matmul(a, b, algorithm="mma_sync", **options)
        for _ in range(3):  # a race would show as a difference that moves
            out = torch.full_like(expected, torch.nan)
            torch_tiled.matmul(a, b, algorithm="mma_tma", out=out, **options)
            assert torch.equal(out, expected)
    c, bias = torch.randn(batch, m, n, device="cuda").to(dtype), b[0, 0].contiguous()
    ends = [
        (
            torch_tiled.linear(a, b[0].mT, bias, activation="relu", algorithm=algorithm),
            torch_tiled.gemm_(c.clone(), a, b, alpha=0.7, beta=-0.3, algorithm=algorithm),
        )
        for algorithm in ("mma_tma", "mma_sync")
    ]
    for bulk, ring in zip(*ends, strict=True):
        assert torch.equal(bulk, ring)


@needs_hopper
@each_half
@pytest.mark.parametrize(("m", "n", "k"), [(4090, 4088, 300), (4091, 4085, 1000)])
def test_tiles_that_leave_while_the_next_is_multiplied(m, n, k, dtype):
    """By boxes, of which the last are cut off, where rows of C begin and end at multiples of 16
    bytes; elsewhere the copy engine would write what follows a row."""
    a = torch.randn(2, m, 1024, device="cuda").to(dtype)[..., :k]
    b = torch.randn(k, 4096, device="cuda").to(dtype)[:, :n]
    bias = b[0].contiguous()
    for batched in (a, a[0]):
        expected = torch_tiled.matmul(batched, b, algorithm="mma_sync")
        memory = torch.full((*expected.shape[:-1], 4096), torch.nan, dtype=dtype, device="cuda")
        for columns in (slice(0, n), slice(8, n + 8), slice(4, n + 4)):
            out = memory.fill_(torch.nan)[..., columns]
            assert torch_tiled.explain(batched, b, algorithm="mma_tma").tile == "128x256"
            torch_tiled.matmul(batched, b, algorithm="mma_tma", out=out)
            assert torch.equal(out, expected)
            out.fill_(torch.nan)
            assert memory.isnan().all()  # nothing beside it was written
    for activation in ACTIVATIONS:
        options = {"bias": bias, "activation": activation}
        assert torch.equal(
            torch_tiled.linear(a, b.mT, algorithm="mma_tma", **options),
            torch_tiled.linear(a, b.mT, algorithm="mma_sync", **options),
        )
    scaled = [torch.full((m, n), torch.nan, dtype=dtype, device="cuda") for _ in range(2)]
    for c, algorithm in zip(scaled, ("mma_tma", "mma_sync"), strict=True):
        torch_tiled.gemm_(c, a[0], b, alpha=0.7, beta=0, algorithm=algorithm)
    assert torch.equal(*scaled)


@needs_hopper
@pytest.mark.parametrize(
    ("algorithm", "m", "n", "k", "step"),
    [
        ("mma_tma", 4000, 4096, 8200, 1),
        ("mma_tma", 300, 4096, 100, 2),
        ("mma_tma", 30, 40, 40000, 1),
        ("mma_unaligned", 300, 4099, 101, 2),
        ("mma_unaligned", 30, 41, 40001, 1),
    ],
)
def test_without_memory_another_rung_computes(algorithm, m, n, k, step):
    """Memory for the first chunk's sums, for copies of operands that no tensor map can read, or for
    the sums of all chunks, where one block computes them all then."""
    a = torch.randn(m, k * step, dtype=torch.float16, device="cuda")[:, ::step]
    b = torch.randn(k, n, dtype=torch.float16, device="cuda")
    assert torch_tiled.explain(a, b, algorithm=algorithm).algorithm == algorithm
    expected = torch_tiled.matmul(a, b, algorithm="mma_sync")
    out = torch.full_like(expected, torch.nan)
    with no_more_memory():
        torch_tiled.matmul(a, b, algorithm=algorithm, out=out)
    assert_same(out, expected)


def anywhere(batch, rows, cols, dtype, choose, multiple=1):
    """A random operand in memory that is NaN elsewhere, its lines at any element, or at such that
    are a multiple."""
    turned = choose.random() < 0.5
    lines, line = (cols, rows) if turned else (rows, cols)

    def further(elements, by):
        return -(-(elements + choose.choice(by)) // multiple) * multiple

    pitch = further(line, (0, 0, 1, 3, 5, 8, 24))
    matrix = further(lines * pitch, (0, 0, 1, 8))
    begin = further(0, (0, 0, 1, 2, 3, 4, 7, 9, 64))
    size = (batch, lines, line)
    memory = torch.full((begin + batch * matrix + 64,), torch.nan, dtype=dtype, device="cuda")
    operand = memory.as_strided(size, (matrix, pitch, 1), begin)
    operand.copy_(torch.randn(size, device="cuda"))
    return operand.mT if turned else operand


@needs_hopper
@each_half
@pytest.mark.parametrize("seed", range(40))
def test_lines_that_begin_anywhere(seed, dtype):
    choose = random.Random(seed)
    sizes = (1, 2, 7, 8, 9, 17, 31, 33, 63, 64, 65, 71, 127, 128, 129, 200, 257, 300, 1000)
    m, n = choose.choice(sizes), choose.choice(sizes)
    k = choose.choice((1, 2, 7, 8, 9, 63, 64, 65, 71, 127, 128, 129, 320, 513, 4097, 8193, 20000))
    batch = choose.choice((1, 1, 3))
    a, b = (anywhere(batch, *sides, dtype, choose) for sides in ((m, k), (k, n)))
    expected = torch_tiled.matmul(a, b, algorithm="mma_sync")
    for algorithm in ("mma_unaligned", "mma_tma", "auto"):
        for _ in range(3):  # a race would show as a difference that moves
            out = torch.full_like(expected, torch.nan)
            torch_tiled.matmul(a, b, algorithm=algorithm, out=out)
            assert torch.equal(out, expected)


@needs_hopper
@each_half
@pytest.mark.parametrize("seed", range(40))
def test_lines_that_begin_within_those_of_l2(seed, dtype):
    """The copy engine reads them, of lines across K what follows, too, which may not tell."""
    choose = random.Random(seed)
    sizes = (16, 24, 40, 63, 64, 65, 71, 97, 128, 130, 200, 257, 300, 500, 760, 1000)
    m, n = choose.choice(sizes), choose.choice(sizes)
    k = choose.choice((8, 16, 63, 64, 65, 72, 79, 80, 81, 128, 200, 1000, 3000, 4104, 8200, 10000))
    batch = choose.choice((1, 1, 3))
    a, b = (anywhere(batch, *sides, dtype, choose, multiple=8) for sides in ((m, k), (k, n)))
    expected = torch_tiled.matmul(a, b, algorithm="mma_sync")
    for algorithm in ("mma_tma", "auto"):
        for _ in range(3):
            out = torch.full_like(expected, torch.nan)
            torch_tiled.matmul(a, b, algorithm=algorithm, out=out)
            assert torch.equal(out, expected)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("few", [1, 3, 8, 13, 16, 17, 24, 40, 56])
def test_lines_shorter_than_a_box(few, layout, dtype):
    """Of what lies across K the copy engine reads on into the next lines, as far as memory goes, or
    they are copied; and C is stored column by column."""
    for k in (65, 72, 200, 264, 456, 519, 1000):
        for m, n in ((few, 328), (328, few), (few, 201), (201, few)):
            a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
            b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
            old = torch.randn(m, n, device="cuda").to(dtype)
            for options in ({}, {"out_dtype": torch.float32}):
                expected = torch_tiled.matmul(a, b, algorithm="mma_sync", **options)
                out = torch.full_like(expected, torch.nan)
                torch_tiled.matmul(a, b, algorithm="mma_tma", out=out, **options)
                assert torch.equal(out, expected)
            ends = [
                (
                    torch_tiled.linear(a, b.mT, activation="relu", algorithm=algorithm),
                    torch_tiled.linear(a, b.mT, activation="gelu", algorithm=algorithm),
                    torch_tiled.gemm_(old.clone(), a, b, beta=-0.3, algorithm=algorithm),
                )
                for algorithm in ("mma_tma", "mma_sync")
            ]
            for bulk, ring in zip(*ends, strict=True):
                assert torch.equal(bulk, ring)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("along", "across", "m", "n", "k"),  # tiles, if lines of the longer operand lie so to K
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
        ("64x64", "32x128", 1501, 250, 8265),
        ("128x128", "128x128", 11007, 120, 8265),
        ("64x192", "64x192", 2049, 500, 129),
        ("64x192", "64x192", 4099, 380, 8265),
        ("64x256", "64x256", 4359, 209, 1001),
        ("64x256", "64x256", 6269, 255, 8265),
        ("128x256", "128x256", 11007, 250, 129),
        ("128x256", "128x256", 11007, 250, 8265),
    ],
)
def test_shift_with_any_tile(along, across, m, n, k, layout, dtype):
    """The longer operand is read as it lies, whichever that is; tiles are what an H200's plan
    picks; sums of several chunks, too."""
    is_h200 = torch.cuda.get_device_properties().multi_processor_count == 132
    a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
    tile = along if layout[0] == "N" else across
    for x, y, name in ((a, b, tile), (b.mT, a.mT, "x".join(tile.split("x")[::-1]))):
        assert torch_tiled.explain(x, y, algorithm="mma_unaligned").tile == name or not is_h200
        memory = torch.full((len(x), y.shape[1] + 3), torch.nan, dtype=dtype, device="cuda")
        out = memory[:, : y.shape[1]]
        torch_tiled.matmul(x, y, algorithm="mma_unaligned", out=out)
        assert torch.equal(out, torch_tiled.matmul(x, y, algorithm="mma_sync"))
        assert memory[:, y.shape[1] :].isnan().all()
        old = torch.randn(len(x), y.shape[1], device="cuda").to(dtype)
        bias = torch.randn(y.shape[1], device="cuda").to(dtype)
        ends = [
            (
                torch_tiled.matmul(x, y, out_dtype=torch.float32, algorithm=algorithm),
                torch_tiled.linear(x, y.mT, bias, algorithm=algorithm),
                torch_tiled.linear(x, y.mT, bias, activation="relu", algorithm=algorithm),
                torch_tiled.linear(x, y.mT, bias, activation="gelu", algorithm=algorithm),
                torch_tiled.gemm_(old.clone(), x, y, alpha=0.7, beta=-0.3, algorithm=algorithm),
            )
            for algorithm in ("mma_unaligned", "mma_sync")
        ]
        for shift, ring in zip(*ends, strict=True):
            assert torch.equal(shift, ring)


@needs_hopper
@each_half
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 6137, 15731), (64, 2049, 14887), (8, 8191, 513)])
def test_few_rows_of_lines_that_begin_anywhere_are_read_as_they_lie(m, n, k, layout, dtype):
    a = in_layout(torch.randn(m, k, device="cuda").to(dtype), layout[0])
    b = in_layout(torch.randn(k, n, device="cuda").to(dtype), layout[1])
    assert torch_tiled.explain(a, b).algorithm == "mma_unaligned"
    expected = torch_tiled.matmul(a, b, algorithm="mma_sync")
    out = torch.full_like(expected, torch.nan)
    torch_tiled.matmul(a, b, out=out)
    assert torch.equal(out, expected)


@needs_hopper
@each_half
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("pitch", [1001, 1002, 1004, 1000, 1008, 1024])
def test_shift_reads_lines_of_any_distance(pitch, across, dtype):
    """From one line to the next as many bytes as have other powers of two, so that rows that a warp
    reads at once are other ones; NaN around them."""
    for start, n, k in ((1, 5, 999), (3, 61, 640), (7, 130, 960), (5, 250, 65)):
        sides = (k, 990) if across else (990, k)
        width = min(sides[1], pitch - start)
        memory = torch.full((sides[0] * pitch + 8,), torch.nan, dtype=dtype, device="cuda")
        a = memory.as_strided((sides[0], width), (pitch, 1), start)
        a.copy_(torch.randn(a.shape, device="cuda"))
        a = a.mT if across else a
        b = torch.randn(a.shape[1], n, device="cuda").to(dtype)
        assert torch_tiled.explain(a, b, algorithm="mma_unaligned").algorithm == "mma_unaligned"
        expected = torch_tiled.matmul(a, b, algorithm="mma_sync")
        out = torch.full_like(expected, torch.nan)
        torch_tiled.matmul(a, b, algorithm="mma_unaligned", out=out)
        assert torch.equal(out, expected) and not expected.isnan().any()
