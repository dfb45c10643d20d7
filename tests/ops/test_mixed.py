"""Mixed operands: the bits of the float32 product of both operands in float32."""

import itertools

import pytest
import torch
from helpers.bad_calls import assert_raises, assert_still_multiplies
from helpers.operands import BATCHES, LOADS
from helpers.reference import ALGORITHMS, FLOATS_16BIT, NAMED, assert_same, takes
from helpers.thinning import pairwise
from torch.testing import assert_close

import torch_tiled

PRECISIONS = ("fp32", "ieee", "tf32")
either = pytest.mark.parametrize("narrow", FLOATS_16BIT, ids=str)
SIDES = ("a", "b")


def check(algorithm, actual, expected):
    """Asserts equal bits, or, if PyTorch computes the product, close ones."""
    if algorithm == "auto" and actual.device.type == "cpu":
        assert actual.dtype == expected.dtype
        assert_close(actual, expected)
    else:
        assert_same(actual, expected)


def mix(a, b, side, narrow):
    """The operands; the one on this side becomes a 16-bit one."""
    return (a.to(narrow), b) if side == "a" else (a, b.to(narrow))


def ways(algorithm, device):
    for precision in PRECISIONS:
        if takes(algorithm, torch.float32, device, precision):
            yield {"algorithm": algorithm, "precision": precision}


@pairwise
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@either
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("k", [1, 16, 70, 300, 1030])
def test_layouts(device, poisoned, algorithm, narrow, side, load, k):
    a, b = mix(torch.randn(33, k, device=device), torch.randn(k, 19, device=device), side, narrow)
    a, b = LOADS[load](a), LOADS[load](b)
    for options in ways(algorithm, device):
        expected = torch_tiled.matmul(a.float(), b.float(), **options)
        check(algorithm, torch_tiled.matmul(a, b, **options), expected)
        for dtype in (torch.float32, narrow):
            rounded = expected.to(dtype)
            check(algorithm, torch_tiled.matmul(a, b, out_dtype=dtype, **options), rounded)
            out = torch.empty(33, 38, device=device, dtype=dtype)[:, ::2]
            torch_tiled.matmul(a, b, out=out, **options)
            check(algorithm, out, rounded)


@pairwise
@pytest.mark.parametrize("algorithm", ["naive", "tiled", "simt", "fp16x3", "auto"])
@pytest.mark.parametrize("batch", [*BATCHES, "vectors", "shared", "empty"])
@pytest.mark.parametrize("side", SIDES)
@either
def test_batches(device, algorithm, batch, side, narrow):
    if batch == "vectors":
        a, b = torch.randn(150), torch.randn(150)
    elif batch == "shared":
        a, b = torch.randn(3, 2, 150), torch.randn(150, 7)
    elif batch == "empty":
        a, b = torch.randn(0, 2, 0), torch.randn(0, 7)
    else:
        a, b = BATCHES[batch](5, 150), BATCHES[batch](150, 7)
    a, b = mix(a.to(device), b.to(device), side, narrow)
    expected = torch_tiled.matmul(a.float(), b.float(), algorithm=algorithm)
    check(algorithm, torch_tiled.matmul(a, b, algorithm=algorithm), expected)


@pytest.mark.parametrize("algorithm", NAMED)
@either
@pytest.mark.parametrize("side", SIDES)
def test_values(device, algorithm, narrow, side):
    """Numbers of all bits, subnormal ones, Inf and NaN among them."""
    bits = torch.randint(-(2**15), 2**15, (2, 40, 160), dtype=torch.int16).view(narrow)
    finite = torch.where(bits[0].isfinite(), bits[0], 0)
    tiny = torch.where(bits[1].isfinite(), bits[1], 0) * torch.finfo(narrow).smallest_normal
    wide = torch.randn(160, 12, device=device)
    for x in (bits[0], finite, tiny.to(narrow)):
        x = x.to(device)
        a, b = (x, wide) if side == "a" else (wide.mT, x.mT)
        expected = torch_tiled.matmul(a.float(), b.float(), algorithm=algorithm)
        assert_same(torch_tiled.matmul(a, b, algorithm=algorithm), expected)


@pytest.mark.parametrize("side", SIDES)
@either
@pytest.mark.parametrize("algorithm", ["fp16x3_wgmma", "fp16x3_fused", "fp16x3_skinny"])
def test_lo_parts(device, algorithm, narrow, side):
    """Tiles and chunks of K in which the 16-bit operand has lo parts, beside others."""
    a, b = torch.randn(3, 300, 2100), torch.randn(3, 2100, 200)
    for x in (a[0, 140], a[1, :, 1024:], b[1, :1024, 7], b[2]):
        x *= torch.exp2(-torch.randint(0, 24, x.shape))
        x[..., 0] = 2.0**15
    a, b = mix(a.to(device), b.to(device), side, narrow)
    expected = torch_tiled.matmul(a.float(), b.float(), algorithm=algorithm)
    assert_same(torch_tiled.matmul(a, b, algorithm=algorithm), expected)


IN_PLACE = ["fp16x3_cluster", "fp16x3_thin", "fp16x3_skinny", "fp16x3_fused", "fp16x3_wgmma"]
# m, n and k. Either operand is the long one; both K-major operands end with 16 bytes of a row.
FEW_ROWS = [
    *((1, 40, 1032), (5, 300, 2104), (33, 130, 1544), (300, 7, 2104), (150, 64, 512)),
    *((60, 320, 1032), (20, 24, 9224)),  # tiles of 64 rows, and clusters with two rounds of chunks
]


def few_rows(sizes, layout, device, numbers="normal"):
    m, n, k = sizes
    a, b = torch.randn(2, m, k), torch.randn(2, n, k)
    for x in (a, b):
        if numbers == "wide":  # rows, and chunks of rows, that have lo parts in 16 bits
            rows = x[:, ::3, : k // 2]
            rows *= torch.exp2(-torch.randint(0, 24, rows.shape))
            x[:, ::3, 0] = 2.0**15
        elif numbers == "rising":  # scales that are found late
            x *= torch.exp2(torch.arange(k) * (12 / k))
        elif numbers == "flagged":
            x[:, 0, 5] = torch.inf
    a, b = a.to(device), b.to(device).mT
    a = a if layout[0] == "N" else a.mT.contiguous().mT
    return a, b if layout[1] == "T" else b.contiguous()


@pairwise
@pytest.mark.parametrize("algorithm", IN_PLACE)
@pytest.mark.parametrize("side", SIDES)
@either
@pytest.mark.parametrize("layout", ["NT", "NN", "TT"])
@pytest.mark.parametrize("sizes", FEW_ROWS, ids=str)
@pytest.mark.parametrize("numbers", ["normal", "wide", "rising", "flagged"])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_few_rows(device, poisoned, algorithm, side, narrow, layout, sizes, numbers, activation):
    a, b = mix(*few_rows(sizes, layout, device, numbers), side, narrow)
    options = {"algorithm": algorithm}
    expected = torch_tiled.matmul(a.float(), b.float(), **options)
    assert_same(torch_tiled.matmul(a, b, **options), expected)
    out = torch.full((2, sizes[0], 2 * sizes[1]), torch.nan, device=device)[..., ::2]
    assert_same(torch_tiled.matmul(a, b, out=out, **options), expected)
    bias = torch.randn(sizes[1], device=device)
    options["activation"] = activation
    expected = torch_tiled.linear(a[0].float(), b[0].mT.float(), bias, **options)
    assert_same(torch_tiled.linear(a[0], b[0].mT, bias, **options), expected)


@pytest.mark.parametrize("algorithm", IN_PLACE)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("sizes", FEW_ROWS, ids=str)
def test_few_rows_are_read_in_place(algorithm, side, sizes):
    a, b = mix(*few_rows(sizes, "NT", "cpu"), side, torch.bfloat16)
    options = {"algorithm": algorithm, "compute_capability": 90, "sms": 132}
    plan = torch_tiled.explain(a, b, **options)
    assert plan.algorithm == algorithm
    long = "a" if sizes[0] > sizes[1] else "b"
    in_place = (algorithm, side) != ("fp16x3_fused", long)
    assert (plan.a_is_read == plan.b_is_read == "as it lies") == in_place


@pairwise
@pytest.mark.parametrize("algorithm", ["naive", "tiled", "simt", "fp16x3", "auto"])
@pytest.mark.parametrize("side", SIDES)
@either
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("bias", [None, torch.float32, "narrow"], ids=str)
@pytest.mark.parametrize("prepared", [False, True])
def test_linear(device, algorithm, side, narrow, activation, bias, prepared):
    x, weight = torch.randn(2, 9, 200, device=device), torch.randn(17, 200, device=device)
    x, weight = mix(x, weight, side, narrow)
    bias = (
        None
        if bias is None
        else torch.randn(17, device=device).to(narrow if bias == "narrow" else bias)
    )
    wide_bias = None if bias is None else bias.float()
    options = {"algorithm": algorithm, "activation": activation}
    expected = torch_tiled.linear(x.float(), weight.float(), wide_bias, **options)
    given = torch_tiled.prepare(weight.mT).mT if prepared else weight
    for dtype in (None, torch.float32, narrow):
        y = torch_tiled.linear(x, given, bias, out_dtype=dtype, **options)
        check(algorithm, y, expected.to(dtype or torch.float32))


@pairwise
@pytest.mark.parametrize("algorithm", ["naive", "tiled", "mma", "auto"])
@pytest.mark.parametrize("dtype", FLOATS_16BIT, ids=str)
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("bias", [None, torch.float32, "narrow"], ids=str)
def test_linear_keeps_the_sums(device, algorithm, dtype, activation, bias):
    """The sums of 16-bit operands, and a bias of either dtype that is added to them."""
    x = torch.randn(9, 200, device=device).to(dtype)
    weight = torch.randn(17, 200, device=device).to(dtype)
    bias = (
        None
        if bias is None
        else torch.randn(17, device=device).to(dtype if bias == "narrow" else bias)
    )
    sums = torch_tiled.matmul(x, weight.mT, algorithm=algorithm, out_dtype=torch.float32)
    expected = sums if bias is None else sums + bias
    expected = expected.relu() if activation == "relu" else expected
    options = {"algorithm": algorithm, "activation": activation, "out_dtype": torch.float32}
    check(algorithm, torch_tiled.linear(x, weight, bias, **options), expected)


@pairwise
@pytest.mark.parametrize("algorithm", ["naive", "tiled", "simt", "fp16x3", "auto"])
@either
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("factors", [(1, 1), (1, 0), (-0.5, 2.25), (0, 3)])
def test_gemm(device, algorithm, narrow, side, factors):
    a, b = torch.randn(3, 9, 200, device=device), torch.randn(200, 17, device=device)
    a, b = mix(a, b, side, narrow)
    c = torch.randn(3, 9, 17, device=device)
    options = dict(zip(("alpha", "beta"), factors, strict=True), algorithm=algorithm)
    expected = torch_tiled.gemm_(c.clone(), a.float(), b.float(), **options)
    check(algorithm, torch_tiled.gemm_(c, a, b, **options), expected)
    if options["alpha"] == 0:
        torch_tiled.gemm_(c, a.fill_(torch.nan), b.fill_(torch.inf), **options)
        assert c.isfinite().all()


@pytest.mark.parametrize("algorithm", ["naive", "tiled", "mma", "auto"])
@pytest.mark.parametrize("dtype", FLOATS_16BIT, ids=str)
def test_gemm_adds_sums_of_16_bit_operands(device, algorithm, dtype):
    a, b = (torch.randn(s, device=device).to(dtype) for s in ((9, 200), (200, 17)))
    c = torch.randn(9, 17, device=device)
    sums = torch_tiled.matmul(a, b, algorithm=algorithm, out_dtype=torch.float32)
    check(algorithm, torch_tiled.gemm_(c.clone(), a, b, algorithm=algorithm), c + sums)


@pytest.mark.parametrize("side", SIDES)
def test_explain(side, device):
    a, b = mix(torch.randn(9, 300), torch.randn(300, 20), side, torch.bfloat16)
    options = {"compute_capability": 90, "sms": 132}
    for device in ("cpu", "meta"):
        plan = torch_tiled.explain(a.to(device), b.to(device), **options)
        assert plan.algorithm == torch_tiled.explain(a.float(), b.float(), **options).algorithm
        assert plan.dtype == f"{a.dtype} and {b.dtype}, precision fp32"
        count = {"a": 9 * 300, "b": 300 * 20}[side]
        texts = "as it lies", f"in {4 * count} bytes, to which a pass writes it"
        assert (plan.b_is_read, plan.a_is_read) == (texts if side == "a" else texts[::-1])
    computed = torch_tiled.explain(a, b, algorithm="fp16x3")
    assert computed.recomputed == f"0 of {9 * 20} elements"


@pytest.mark.parametrize("side", SIDES)
def test_explain_of_a_kernel_that_reads_16_bits(side):
    a, b = (torch.empty(4096, 4096, device="meta") for _ in SIDES)
    a, b = mix(a, b, side, torch.bfloat16)
    plan = torch_tiled.explain(a, b, compute_capability=90, sms=132)
    assert plan.algorithm == "fp16x3_wgmma"
    assert (plan.a_is_read, plan.b_is_read) == ("as it lies", "as it lies")


def test_operands_of_a_broadcast_batch_are_not_expanded():
    a = torch.ones(1, 1, 1, dtype=torch.half).expand(2**20, 2**20, 2)
    plan = torch_tiled.explain(a, torch.ones(2, 1), compute_capability=90, sms=132)
    assert plan.a_is_read == "in 4 bytes, to which a pass writes it"


def test_out_of_memory(device):
    """A view of little memory that has many elements."""
    size = 2**24
    a = torch.ones(2 * size, dtype=torch.half, device=device).as_strided((size, size), (1, 1))
    assert_raises(
        f"tiled::matmul: out of memory: the float32 copy ({size}, {size}) of torch.float32 needs "
        f"{4 * size * size} bytes on {a.device}",
        torch_tiled.matmul,
        a,
        torch.ones(size, 1, device=device),
        kind=torch.OutOfMemoryError,
    )
    assert_still_multiplies(device)


def test_memory_may_not_be_shared(device):
    out = torch.zeros(4, 4, device=device)
    narrow = out.view(torch.half)[:, :4]
    for call in (
        lambda: torch_tiled.matmul(narrow, torch.ones(4, 4, device=device), out=out),
        lambda: torch_tiled.gemm_(out, narrow, torch.ones(4, 4, device=device)),
    ):
        with pytest.raises(RuntimeError, match=r"shares memory with a; pass a.clone\(\)"):
            call()


def test_no_product_of_two_16_bit_dtypes():
    a, b = (torch.zeros(2, 2, dtype=dtype) for dtype in FLOATS_16BIT)
    for x, y in itertools.permutations((a, b)):
        with pytest.raises(RuntimeError, match=r"pass both in one dtype, .* \.to\(torch.float32\)"):
            torch_tiled.matmul(x, y)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.half)])
@pytest.mark.usefixtures("fresh_compiler")
def test_converted_layers_and_override_keep_pytorch_s_error(dtypes, compiled, device):
    x = torch.randn(4, 8, device=device, dtype=dtypes[0])
    layer = torch.nn.Linear(8, 3, device=device, dtype=dtypes[1])
    with pytest.raises(RuntimeError) as theirs:
        layer(x)
    torch_tiled.convert(layer)
    call = torch.compile(layer, backend="aot_eager") if compiled else layer
    error = Exception if compiled else RuntimeError
    with pytest.raises(error, match=None if compiled else str(theirs.value)):
        call(x)
    with torch.autocast(device, torch.bfloat16):
        assert call(x).dtype == torch.bfloat16
    torch_tiled.revert(layer)
    with torch_tiled.override(), pytest.raises(RuntimeError, match=str(theirs.value)):
        layer(x)
