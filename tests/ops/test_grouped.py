"""Grouped products: bits of each group's product, layouts, sizes and errors."""

import itertools

import pytest
import torch
from helpers.bad_calls import assert_raises, assert_still_multiplies, unsupported_in_groups
from helpers.compiling import VIEWS
from helpers.needs import needs_cuda
from helpers.reference import FLOATS_16BIT, REAL, assert_within, bound, product
from helpers.strategies import random_problems
from helpers.thinning import pairwise
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled

KINDS = ("rows", "columns", "k", "batch")  # which side is cut
DTYPES = {  # of a, of b, and of the results
    **{str(x): (x, x, (None,)) for x in (torch.float32, torch.float64)},
    **{str(x): (x, x, (None, torch.float32)) for x in FLOATS_16BIT},
    "bfloat16 by float32": (torch.bfloat16, torch.float32, (None, torch.bfloat16)),
    "float32 by float16": (torch.float32, torch.float16, (None, torch.float16)),
}
GROUPS = {  # their sizes, and how many rows no group has
    "some": ([70, 1, 0, 129], 5),
    "one": ([33], 0),
    "equal": ([64] * 4, 0),
    "empty": ([0, 0], 40),
    "nothing": ([0, 0], 0),
    "none": ([], 9),
    "many": ([3, 0, 70, 1] * 10, 2),  # more than a block goes through by itself
}


def ends(sizes):
    return list(itertools.accumulate(sizes))


def offsets(sizes, device="cpu"):
    return torch.tensor(ends(sizes), dtype=torch.int32, device=device)


def shapes(kind, groups, length, m, n, k):
    return {
        "rows": ((length, k), (groups, k, n)),
        "columns": ((groups, m, k), (k, length)),
        "k": ((m, length), (length, n)),
        "batch": ((groups, m, k), (groups, k, n)),
    }[kind]


def part(x, dim, begin, end, group):
    return x[group] if x.dim() == 3 else x.narrow(dim, begin, end - begin)


def by_group(kind, a, b, sizes, bias=None, **options):
    """The product of each group by itself."""
    results, begin = [], 0
    for group, size in enumerate(sizes):
        end = begin + size
        row = bias if bias is None or bias.dim() == 1 else bias[group]
        cuts_k = kind == "k"
        x, y = part(a, int(cuts_k), begin, end, group), part(b, int(not cuts_k), begin, end, group)
        if row is None:
            results.append(torch_tiled.matmul(x, y, **options))
        else:
            results.append(torch_tiled.linear(x, y.mT, row, **options))
        begin = end
    return results


def check(kind, c, expected, sizes, exactly=True):
    """Asserts the bits of each group, and zeros in what no group has."""

    def assert_equal(found, wanted):
        if exactly:
            assert torch.equal(found, wanted)
        else:
            torch.testing.assert_close(found, wanted)

    assert c.is_contiguous()
    if kind in ("k", "batch"):
        assert len(c) == len(expected)
        for found, wanted in zip(c, expected, strict=True):
            assert_equal(found, wanted)
        return
    dim = 0 if kind == "rows" else 1
    *parts, rest = c.split([*sizes, c.shape[dim] - sum(sizes)], dim)
    assert not rest.any()
    for found, wanted in zip(parts, expected, strict=True):
        assert found.dtype == wanted.dtype
        assert_equal(found, wanted)


@pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("k", [0, 24, 150, 1030])
def test_groups_have_the_bits_of_products(device, poisoned, kind, dtypes, groups, view, k):
    sizes, rest = GROUPS[groups]
    *operands, outs = DTYPES[dtypes]
    a_shape, b_shape = shapes(kind, len(sizes), sum(sizes) + rest, 21, 40, k)
    a = VIEWS[view](*a_shape, device=device).to(operands[0])
    b = VIEWS[view](*b_shape, device=device).to(operands[1])
    offs = None if kind == "batch" else offsets(sizes, device)
    for out_dtype, precision in itertools.product(outs, ["fp32", "ieee"]):
        options = {"out_dtype": out_dtype, "precision": precision}
        c = torch_tiled.grouped_mm(a, b, offs=offs, **options)
        # On the CPU, PyTorch's order of a sum depends on shapes, strides and the CPU.
        exactly = device != "cpu"
        check(kind, c, by_group(kind, a, b, sizes, **options), sizes, exactly)


@pairwise
@pytest.mark.parametrize("kind", ["rows", "k", "batch"])
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("form", ["one", "each", "strided"])
@pytest.mark.parametrize("k", [0, 150])
def test_bias(device, poisoned, kind, dtypes, groups, form, k):
    sizes, rest = GROUPS[groups]
    *operands, outs = DTYPES[dtypes]
    a_shape, b_shape = shapes(kind, len(sizes), sum(sizes) + rest, 21, 40, k)
    a = torch.randn(a_shape, device=device).to(operands[0])
    b = torch.randn(b_shape, device=device).to(operands[1])
    offs = None if kind == "batch" else offsets(sizes, device)
    bias = {
        "one": lambda: torch.randn(40, device=device),
        "each": lambda: torch.randn(len(sizes), 40, device=device),
        "strided": lambda: torch.randn(40, len(sizes), device=device).mT,
    }[form]()
    for out_dtype, which in itertools.product(outs, ["a", "b", "out"]):
        out = out_dtype or torch.promote_types(*operands)
        added = bias.to({"a": operands[0], "b": operands[1], "out": out}[which])
        c = torch_tiled.grouped_mm(a, b, offs=offs, bias=added, out_dtype=out_dtype)
        assert c.dtype == out
        expected = by_group(kind, a, b, sizes, added, out_dtype=out_dtype)
        check(kind, c, expected, sizes, exactly=device != "cpu")


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_accuracy(device, kind, dtype):
    """The groups by PyTorch in float64."""
    sizes = [30, 0, 40]
    a, b = (torch.randn(x, device=device) for x in shapes(kind, 3, 70, 9, 12, 65))
    a, b = a.to(dtype), b.to(dtype)
    c = torch_tiled.grouped_mm(a, b, offs=offsets(sizes, device))
    begin = 0
    for group, size in enumerate(sizes):
        end, cuts_k = begin + size, int(kind == "k")
        x, y = part(a, cuts_k, begin, end, group), part(b, 1 - cuts_k, begin, end, group)
        found = part(c, int(kind == "columns"), begin, end, group)
        assert_within(found, product(x, y), bound(x, y))
        begin = end


@random_problems(300, 30)
@given(st.data())
def test_random_groups(device, data):
    draw = data.draw
    kind = draw(st.sampled_from(KINDS[:3]))
    dtype = draw(st.sampled_from(REAL))
    sizes = draw(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 300)), max_size=12))
    rest = draw(st.integers(0, 3))
    m, n, k = (draw(st.sampled_from([1, 2, 7, 8, 64, 130, 200])) for _ in range(3))
    a_shape, b_shape = shapes(kind, len(sizes), sum(sizes) + rest, m, n, k)
    views = [VIEWS[draw(st.sampled_from([*VIEWS]))] for _ in range(2)]
    a, b = (
        view(*shape, device=device).to(dtype)
        for view, shape in zip(views, (a_shape, b_shape), strict=True)
    )
    c = torch_tiled.grouped_mm(a, b, offs=offsets(sizes, device))
    check(kind, c, by_group(kind, a, b, sizes), sizes, exactly=device != "cpu")


def test_offsets_of_any_stride(device):
    a, b = torch.randn(9, 8, device=device), torch.randn(3, 8, 4, device=device)
    offs = offsets([2, 3, 4], device)
    expected = torch_tiled.grouped_mm(a, b, offs=offs)
    assert torch.equal(torch_tiled.grouped_mm(a, b, offs=offs.repeat_interleave(2)[::2]), expected)
    last = offs[2:].expand(3)
    c = torch_tiled.grouped_mm(a, b, offs=last)
    assert torch.equal(c, torch_tiled.matmul(a, b[0]))


def test_negated_views(device):
    z = torch.randn(9, 8, dtype=torch.complex64, device=device)
    b, bias = torch.randn(2, 8, 4, device=device), z.conj().imag[:2, :4]
    assert bias.is_neg()
    offs = offsets([4, 5], device)
    c = torch_tiled.grouped_mm(z.conj().imag, b.mT.mT, offs=offs, bias=bias)
    expected = torch_tiled.grouped_mm(-z.imag, b, offs=offs, bias=-z.imag[:2, :4])
    assert torch.equal(c, expected)


def test_operator_of_torch_ops(device):
    a, b, offs = torch.randn(9, 8, device=device), torch.randn(2, 8, 4, device=device), [4, 5]
    offs = offsets(offs, device)
    c = torch.ops.tiled.grouped_mm(a, b, offs)
    assert torch.equal(c, torch_tiled.grouped_mm(a, b, offs=offs))
    c = torch.ops.tiled.grouped_mm(a, b, offs=offs, bias=b[0, 0], precision="ieee")
    assert torch.equal(c, torch_tiled.grouped_mm(a, b, offs=offs, bias=b[0, 0], precision="ieee"))


@pytest.mark.parametrize("kind", KINDS)
def test_flops(kind, device):
    a, b = (torch.randn(x, device=device) for x in shapes(kind, 2, 9, 3, 4, 8))
    with FlopCounterMode(display=False) as counter:
        torch_tiled.grouped_mm(a, b, offs=None if kind == "batch" else offsets([4, 5], device))
    m, n, k = {"rows": (9, 4, 8), "columns": (3, 9, 8), "k": (3, 4, 9), "batch": (6, 4, 8)}[kind]
    assert counter.get_total_flops() == 2 * m * n * k


# --- segment_matmul ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_segment_matmul(device, dtype, has_bias):
    x, weight = torch.randn(11, 8, device=device), torch.randn(3, 8, 4, device=device)
    bias = torch.randn(3, 4, device=device) if has_bias else None
    ptr = torch.tensor([0, 4, 4, 9], dtype=dtype, device=device)
    y = torch_tiled.segment_matmul(x, ptr, weight, bias)
    check("rows", y, by_group("rows", x, weight, [4, 0, 5], bias), [4, 0, 5])


# --- errors --------------------------------------------------------------------------------------


def f32(*shape):
    return torch.ones(shape)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


A, B = f32(6, 8), f32(2, 8, 4)
OFFS = i32(2, 6)
BAD = {
    "f32(8), B, OFFS": "a is (8,) and b is (2, 8, 4); each must have 2 or 3 dimensions",
    "A, f32(1, 2, 8, 4), OFFS": (
        "a is (6, 8) and b is (1, 2, 8, 4); each must have 2 or 3 dimensions"
    ),
    "A, B[:, :7], OFFS": "a is (6, 8) and b is (2, 7, 4); a's columns must equal b's rows",
    "A, B": "a is (6, 8) and b is (2, 8, 4); pass offs, the end of each group",
    "f32(2, 6, 8), B, OFFS": (
        "a is (2, 6, 8) and b is (2, 8, 4); offs cuts a matrix, and both are batches; pass no offs"
    ),
    "f32(3, 6, 8), B": "a is (3, 6, 8) and b is (2, 8, 4); they must have as many matrices",
    "A, B, OFFS.long()": (
        "offs is torch.int64; it must be torch.int32, for example by .to(torch.int32)"
    ),
    "A, B, OFFS[None]": "offs is (1, 2); it must be (groups,)",
    "A, B, i32(2, 4, 6)": (
        "a is (6, 8) and b is (2, 8, 4); offs is (3,), and it must have an end for each matrix"
    ),
    "B, f32(4, 6), i32(6)": (
        "a is (2, 8, 4) and b is (4, 6); offs is (1,), and it must have an end for each matrix"
    ),
    "f32(1, 8).expand(2 ** 31, 8), B, OFFS": (
        f"a is ({2**31}, 8) and b is (2, 8, 4); offs is (2,), and 32 bits count at most 2**31 - 1"
    ),
    "A, B, OFFS, f32(3)": "bias is (3,); it must be (4,) for all groups, or (2, 4)",
    "A, B, OFFS, f32(4, 2)": "bias is (4, 2); it must be (4,) for all groups, or (2, 4)",
    "B.mT, A.mT, OFFS, f32(6)": (
        "bias is (6,) and b is cut by columns, of which groups have different ones; add it to the "
        "result"
    ),
    "A, B, OFFS, f32(4).double()": (
        "bias is torch.float64 and a is torch.float32; pass both in one dtype, for example with "
        ".to(torch.float64), which has all values of both"
    ),
    "A, B.double(), OFFS": (
        "a is torch.float32 and b is torch.float64; pass both in one dtype, for example with "
        ".to(torch.float64), which has all values of both"
    ),
    "A.to(torch.complex64), B.to(torch.complex64), OFFS": (
        f"a is {unsupported_in_groups(torch.complex64)}"
    ),
    "A, B.to(torch.complex64), OFFS": f"b is {unsupported_in_groups(torch.complex64)}",
    "A.to(torch.complex32), B.to(torch.complex32), OFFS": (
        f"a is {unsupported_in_groups(torch.complex32)}"
    ),
    "A.int(), B.int(), OFFS": f"a is {unsupported_in_groups(torch.int32)}",
}


@pytest.mark.parametrize("where", ["device", "meta", "compiled"])
@pytest.mark.parametrize("case", BAD)
def test_errors(case, where, device, fresh_compiler):
    arguments, sentence = eval(case), BAD[case]
    on = "meta" if where == "meta" else device
    a, b, offs, bias = [
        # A long operand has one row.
        x if x is None else x.to(on) if x.numel() < 2**31 else x[:1].to(on).expand_as(x)
        for x in (*arguments, None, None)[:4]
    ]
    call = torch_tiled.grouped_mm
    if where == "compiled":

        def traced(a, b, *, offs, bias):
            return torch_tiled.grouped_mm(a, b, offs=offs, bias=bias)

        with pytest.raises(Exception) as raised:  # noqa: B017, PT011 (Dynamo's)
            torch.compile(traced, backend="aot_eager")(a, b, offs=offs, bias=bias)
        assert f"tiled::grouped_mm: {sentence}" in str(raised.value)
        return
    assert_raises(f"tiled::grouped_mm: {sentence}", call, a, b, offs=offs, bias=bias)
    if where == "device":
        assert_still_multiplies(device)


@pytest.mark.parametrize("where", ["device", "meta"])
def test_errors_of_options(where, device):
    a, b, offs = (x.to("meta" if where == "meta" else device) for x in (A, B, OFFS))
    for options, sentence in (
        ({"precision": "fp8"}, 'there is no precision "fp8"; choose fp32, ieee or tf32'),
        (
            {"out_dtype": torch.float16},
            "out_dtype is torch.float16 and the operands are torch.float32; it may be the "
            "operands' dtype or, for float16 and bfloat16, torch.float32",
        ),
    ):
        call = torch_tiled.grouped_mm
        assert_raises(f"tiled::grouped_mm: {sentence}", call, a, b, offs=offs, **options)


@pytest.mark.parametrize(
    "values, at, least",
    [((-1, 6), 0, 0), ((4, 2), 1, 4), ((2, 7), 1, 2), ((7, 7), 0, 0), ((3, -(2**31)), 1, 3)],
)
def test_bad_offsets_on_the_cpu(values, at, least):
    assert_raises(
        f"tiled::grouped_mm: offs[{at}] is {values[at]}; it must be at least {least}, the end of "
        f"the group before, and at most the length 6",
        torch_tiled.grouped_mm,
        A,
        B,
        offs=i32(*values),
    )


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("offs", [2, 6], "offs is of type list; pass a tensor, such as torch.tensor(offs, "),
        ("bias", 3, "bias is of type int; pass a tensor, such as torch.tensor(bias, "),
        ("a", None, "a is None; it must be a tensor"),
    ],
)
def test_what_is_no_tensor(name, value, text):
    given = {"a": A, "b": B, "offs": OFFS} | {name: value}
    with pytest.raises(RuntimeError) as raised:
        torch_tiled.grouped_mm(given.pop("a"), given.pop("b"), **given)
    assert str(raised.value).startswith(f"tiled::grouped_mm: {text}")


def test_out_of_memory(device):
    """Views of little memory that have a large product."""
    rows, cols = 2**31 - 1, 2**20
    one = torch.ones(1, device=device)
    assert_raises(
        f"tiled::grouped_mm: out of memory: the result ({rows}, {cols}) of torch.float32 needs "
        f"{4 * rows * cols} bytes on {one.device}",
        torch_tiled.grouped_mm,
        one.expand(rows, 1),
        one.expand(1, 1, cols),
        offs=torch.tensor([rows], dtype=torch.int32, device=device),
        kind=torch.OutOfMemoryError,
    )
    assert_still_multiplies(device)


def test_sparse_operands_are_refused():
    assert_raises(
        "tiled::grouped_mm: a is a sparse tensor (torch.sparse_coo, torch.float32), and only dense "
        "tensors are taken; use a.to_dense(), or torch.sparse.mm",
        torch_tiled.grouped_mm,
        A.to_sparse(),
        B,
        offs=OFFS,
    )


@needs_cuda
def test_operands_on_two_devices():
    for moved in range(3):
        tensors = [A, B, OFFS]
        tensors[moved] = tensors[moved].cuda()
        with pytest.raises(RuntimeError, match="so that both are on one device"):
            torch_tiled.grouped_mm(tensors[0], tensors[1], offs=tensors[2])


# --- what only a GPU can do ----------------------------------------------------------------------


def clamped(values, length):
    """The groups' sizes if ends descend or are outside."""
    sizes, begin = [], 0
    for value in values:
        end = max(begin, min(max(value, 0), length))
        sizes.append(end - begin)
        begin = end
    return sizes


@needs_cuda
@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "ieee"])
@pytest.mark.parametrize("layout", ["row-major", "transposed", "misaligned"])
@pytest.mark.parametrize(("n", "k"), [(48, 128), (264, 200), (264, 512), (131, 2049), (520, 64)])
def test_groups_of_many_tiles(poisoned, kind, dtype, precision, layout, n, k):
    """Tiles that end inside, in each kernel: on an H200 K and N decide which one takes them."""
    sizes, rest = [1400, 0, 1, 129, 64, 1906], 37
    a_shape, b_shape = shapes(kind, len(sizes), sum(sizes) + rest, 264, n, k)

    def stored(shape):
        pad = int(layout == "misaligned")
        size = *shape[:-2], *(reversed(shape[-2:]) if layout == "transposed" else shape[-2:])
        x = torch.randn(*size[:-1], size[-1] + pad, dtype=dtype, device="cuda")[..., pad:]
        return x.mT if layout == "transposed" else x

    a, b = stored(a_shape), stored(b_shape)
    wide = a * torch.randint(-8, 8, a.shape, device="cuda").to(dtype).exp2()  # "fp32" flags some
    for each in (a, wide):
        c = torch_tiled.grouped_mm(each, b, offs=offsets(sizes, "cuda"), precision=precision)
        check(kind, c, by_group(kind, each, b, sizes, precision=precision), sizes)


@needs_cuda
@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize(
    "values", [(90, 20, 60), (-5, 10, 200), (300, 0, 70), (2**31 - 1, -(2**31), 50)], ids=str
)
def test_bad_offsets_on_a_gpu(poisoned, kind, dtype, values):
    """They raise nothing: groups end where the matrix does, and may be empty."""
    a, b = (torch.randn(x, device="cuda").to(dtype) for x in shapes(kind, 3, 100, 30, 40, 150))
    c = torch_tiled.grouped_mm(a, b, offs=torch.tensor(values, dtype=torch.int32, device="cuda"))
    sizes = clamped(values, 100)
    check(kind, c, by_group(kind, a, b, sizes), sizes)
    torch.cuda.synchronize()


@needs_cuda
@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_captured_graph_takes_other_offsets(kind, dtypes, has_bias, collected):
    if has_bias and kind == "columns":
        has_bias = False
    *operands, _ = DTYPES[dtypes]
    a, b = (
        torch.randn(shape, device="cuda").to(dtype)
        for shape, dtype in zip(shapes(kind, 3, 400, 30, 40, 200), operands, strict=True)
    )
    bias = torch.randn(3, 40, device="cuda").to(operands[0]) if has_bias else None
    offs = offsets([100, 0, 300], "cuda")
    torch_tiled.grouped_mm(a, b, offs=offs, bias=bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = torch_tiled.grouped_mm(a, b, offs=offs, bias=bias)
    for sizes in ([100, 0, 300], [0, 0, 0], [7, 300, 1], [1, 1, 398], [400, 0, 0]):
        offs.copy_(offsets(sizes))
        c.fill_(torch.nan)
        graph.replay()
        check(kind, c, by_group(kind, a, b, sizes, bias), sizes)


@needs_cuda
def test_nothing_waits_for_the_gpu():
    a, b = torch.randn(400, 200, device="cuda"), torch.randn(3, 200, 40, device="cuda")
    offs = offsets([100, 0, 300], "cuda")
    torch_tiled.grouped_mm(a, b, offs=offs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch_tiled.grouped_mm(a, b, offs=offs, bias=b[0, 0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
