"""Complex products to the bit: each part is one real sum with twice K, and a view changes no bit.

The real operands are those of csrc/core/complex.h, which helpers.reference.real_operands builds.
"""

import pytest
import torch
from helpers.complex_operands import COMPLEX, STORED, every_complex
from helpers.memory import no_more_memory
from helpers.needs import needs_cuda
from helpers.reference import NAMED, PARTS, assert_same, parts, real_operands, takes
from helpers.thinning import pairwise

import torch_tiled
from torch_tiled._op.registry import family

FAMILIES = ["naive", "tiled", "simt", "f64", "fp16x3", "tf32"]
# m, n, k: chunks of 1024 real products end at multiples of 512 complex numbers.
SIZES = [
    (1, 1, 1),
    (3, 5, 63),
    (5, 3, 64),
    (17, 33, 511),
    (33, 17, 513),
    (1, 40, 1100),
    (40, 1, 64),
]


def options_of(name):
    is_tf32 = family(name)[0].order == "tf32"
    return {"algorithm": name, "precision": "tf32" if is_tf32 else "fp32"}


def each_taken(names):
    """Each of these algorithms with each complex dtype that it takes."""
    cases = [(name, dtype) for name in names for dtype in COMPLEX]
    taken = [x for x in cases if takes(*x, precision=options_of(x[0])["precision"])]
    return pytest.mark.parametrize("name, dtype", taken)


def as_real_product(a, b, **options):
    """The product of a and b as the library computes that of their real operands."""
    return torch_tiled.matmul(*real_operands(a, b), **options).unflatten(-1, (-1, 2))


def skip_unless_taken(algorithm, dtype, device):
    precision = options_of(algorithm)["precision"]
    if not takes(algorithm, dtype, device, precision):
        pytest.skip("the algorithm does not take these")


@pytest.mark.parametrize("m, n, k", SIZES)
@each_taken(NAMED)
def test_parts_are_real_sums(device, name, dtype, m, n, k):
    skip_unless_taken(name, dtype, device)
    a, b = (
        torch.randn(m, k, dtype=dtype, device=device),
        torch.randn(k, n, dtype=dtype, device=device),
    )
    expected = as_real_product(a, b, **options_of(name))
    assert_same(parts(torch_tiled.matmul(a, b, **options_of(name))), expected)


@pairwise
@pytest.mark.parametrize("of_out", ["as it is", "conjugate", "negative", "both", "transpose"])
@pytest.mark.parametrize("of_b", STORED)
@pytest.mark.parametrize("of_a", STORED)
@each_taken(FAMILIES)
def test_a_view_changes_no_bit(device, poisoned, name, dtype, of_a, of_b, of_out):
    skip_unless_taken(name, dtype, device)
    a = torch.randn(2, 37, 130, dtype=dtype, device=device)
    b = torch.randn(2, 130, 41, dtype=dtype, device=device)
    expected = torch_tiled.matmul(a, b, **options_of(name))
    a, b = STORED[of_a](a), STORED[of_b](b)
    assert_same(torch_tiled.matmul(a, b, **options_of(name)), expected)
    out = STORED[of_out](torch.full_like(expected, torch.nan))
    torch_tiled.matmul(a, b, **options_of(name), out=out)
    assert_same(out, expected)


@every_complex
def test_a_product_of_views_copies_none(device, dtype):
    """Rows of a and of the result lie as they are; B' is 4 reals for each number of b."""
    if device != "cuda":
        pytest.skip("the CPU allocator keeps no statistics")
    a, b = (torch.randn(512, 512, dtype=dtype, device=device) for _ in range(2))
    for x, y in ((a, b), (a.conj(), b.mH), (torch._neg_view(a), b.mT)):
        torch_tiled.matmul(x, y, algorithm="tiled")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = torch_tiled.matmul(x, y, algorithm="tiled")
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert peak == result.nbytes + 2 * b.nbytes
        del result


@each_taken(FAMILIES)
def test_bits_depend_on_row_column_and_k_alone(device, name, dtype):
    skip_unless_taken(name, dtype, device)
    options = options_of(name)
    a = torch.randn(3, 70, 600, dtype=dtype, device=device)
    b = torch.randn(600, 90, dtype=dtype, device=device)
    whole = torch_tiled.matmul(a, b, **options)
    for rows, cols in (
        (slice(0, 1), slice(0, 90)),
        (slice(5, 40), slice(88, 89)),
        (slice(69, 70),) * 2,
    ):
        alone = torch_tiled.matmul(a[1, rows], b[:, cols], **options)
        assert torch.equal(alone, whole[1, rows, cols])


@needs_cuda
@each_taken(FAMILIES)
def test_the_cpu_has_the_bits_of_the_gpu(name, dtype):
    skip_unless_taken(name, dtype, "cuda")
    a, b = (
        torch.randn(2, 50, 700, dtype=dtype, device="cpu"),
        torch.randn(700, 60, dtype=dtype, device="cpu"),
    )
    a[0, 3, 4] *= 1e20  # flags elements, where elements are flagged
    for x, y in ((a, b), (a.conj(), b.conj())):
        on_gpu = torch_tiled.matmul(x.cuda(), y.cuda(), **options_of(name))
        assert_same(on_gpu.cpu(), torch_tiled.matmul(x, y, **options_of(name)))


SPECIAL = [0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.nan, 1e-40, 1e15]


@each_taken(FAMILIES)
def test_nan_and_inf_of_a_part(device, name, dtype):
    """Each part is the sum of two products, as in torch.matmul, whatever the numbers are."""
    skip_unless_taken(name, dtype, device)
    x = torch.tensor(SPECIAL, dtype=PARTS[dtype], device=device)
    a = torch.complex(*torch.meshgrid(x, x, indexing="ij")).reshape(-1, 1)
    b = a.mT
    re = a.real * b.real - a.imag * b.imag
    im = a.real * b.imag + a.imag * b.real
    result = parts(torch_tiled.matmul(a, b, **options_of(name)))
    for found, expected in ((result[..., 0], re), (result[..., 1], im)):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())


@pytest.mark.parametrize("where", [0, 1], ids=["re", "im"])
def test_a_nan_stays_in_its_sums(device, where):
    """A NaN in one element of b spoils its column; a column beside it keeps its bits."""
    a = torch.randn(20, 300, dtype=torch.complex64, device=device)
    b = torch.randn(300, 20, dtype=torch.complex64, device=device)
    clean = torch_tiled.matmul(a, b, algorithm="fp16x3")
    torch.view_as_real(b)[7, 3, where] = torch.nan
    result = torch_tiled.matmul(a, b, algorithm="fp16x3")
    assert parts(result)[:, 3].isnan().all()
    others = [j for j in range(20) if j != 3]
    assert torch.equal(result[:, others], clean[:, others])


def test_each_part_is_flagged_alone(device):
    """The imaginary sum of one element loses too much by its scale, and the real one does not."""
    k = 256
    a = torch.randn(20, k, dtype=torch.complex64, device=device)
    b = torch.randn(k, 20, dtype=torch.complex64, device=device)
    torch.view_as_real(a)[3, 5] = torch.tensor([2.0**40, 0.0], device=device)
    torch.view_as_real(b)[5] = torch.tensor([1.0, 0.0], device=device)  # no imaginary part
    result = parts(torch_tiled.matmul(a, b, algorithm="fp16x3"))
    chunked = parts(torch_tiled.matmul(a, b, algorithm="tiled"))
    assert torch.equal(result[3, :, 1], chunked[3, :, 1])
    explained = torch_tiled.explain(a, b, algorithm="fp16x3")
    assert explained.recomputed == "20 of 800 parts"


HOPPER = {"compute_capability": 90, "sms": 132}


@pytest.mark.parametrize("view", STORED)
@pytest.mark.parametrize("options", [{"algorithm": "tiled"}, HOPPER], ids=["tiled", "auto"])
def test_explain_tells_of_the_passes(view, options):
    """A is packed where its rows are not contiguous, B unless the kernel reads it as it lies."""
    a = STORED[view](torch.randn(512, 256, dtype=torch.complex64, device="cpu"))
    b = STORED[view](torch.randn(256, 128, dtype=torch.complex64, device="cpu"))
    plan = torch_tiled.explain(a, b, **options)
    packed = "in {} bytes, to which a pass writes it"
    has_rows = a.stride(1) == 1
    assert plan.a_is_read == ("as it lies" if has_rows else packed.format(a.nbytes))
    assert plan.b_is_read == (packed.format(2 * b.nbytes) if options != HOPPER else "as it lies")
    wide = torch.randn(256, 256, dtype=torch.complex128, device="cpu")
    plan = torch_tiled.explain(wide.mH, wide, **HOPPER)
    assert plan.a_is_read == plan.b_is_read == "as it lies"
    plan = torch_tiled.explain(wide.mH, wide, algorithm="f64_mma", **HOPPER)
    assert plan.a_is_read == packed.format(wide.nbytes) and plan.b_is_read == "as it lies"


@pytest.mark.parametrize("sizes", [(0, 5, 6), (4, 0, 6), (4, 5, 0)], ids=str)
def test_explain_tells_of_no_pass_where_a_size_is_0(sizes):
    m, n, k = sizes
    for batch in ((), (3,)):
        a = torch.ones(*batch, k, m, dtype=torch.complex64).mT
        b = torch.ones(*batch, k, n, dtype=torch.complex64)
        for options in ({"algorithm": "tiled"}, HOPPER):
            plan = torch_tiled.explain(a, b, **options)
            assert plan.a_is_read == plan.b_is_read == "not at all"
    empty = torch.ones(0, 4, 4, dtype=torch.complex64)
    assert torch_tiled.explain(empty, empty, **HOPPER).b_is_read == "not at all"


@needs_cuda
@every_complex
@pytest.mark.parametrize("of_a", ["as it is", "transpose"])
@pytest.mark.parametrize("options", [{}, {"algorithm": "tiled"}], ids=["auto", "tiled"])
def test_less_memory_gives_the_same_bits(dtype, of_a, options):
    """Where there is no memory for all of B', parts of the problem are solved one after another."""
    if dtype == torch.complex128 and not options:
        pytest.skip("f64_mma reads b as it lies")
    a = STORED[of_a](torch.randn(3, 200, 2000, dtype=dtype, device="cuda"))
    b = torch.randn(2000, 700, dtype=dtype, device="cuda")
    expected = torch_tiled.matmul(a, b, **options)
    out = torch.full_like(expected, torch.nan)
    room = torch.empty(12 << 20, dtype=torch.uint8, device="cuda")
    assert room.nbytes < 2 * b.nbytes
    with no_more_memory():
        del room
        torch_tiled.matmul(a, b, out=out, **options)
    assert torch.equal(out, expected)


@needs_cuda
def test_more_memory_than_there_is():
    a, b = (torch.randn(64, 64, dtype=torch.complex64, device="cuda") for _ in range(2))
    out, before = torch.full_like(a, torch.nan), (a.clone(), b.clone())
    with (
        no_more_memory(),
        pytest.raises(torch.OutOfMemoryError, match="out of memory: the workspace"),
    ):
        torch_tiled.matmul(a, b, out=out, algorithm="tiled")
    assert torch.equal(a, before[0]) and torch.equal(b, before[1]) and out.isnan().all()


@needs_cuda
def test_more_than_2_to_the_31_elements(claim_memory):
    claim_memory(44 << 30)
    rows = 2**20 + 1
    a = torch.randn(rows, 1025, dtype=torch.complex64, device="cuda")
    b = torch.randn(1025, 1025, dtype=torch.complex64, device="cuda")
    result = torch_tiled.matmul(a, b)
    assert a.numel() * 2 > 2**31 and result.numel() * 2 > 2**31
    last = torch_tiled.matmul(a[-70:], b)
    assert torch.equal(result[-70:], last)
    del result
    wide = torch_tiled.matmul(b[:3], a.mT)  # B' has more than 2^32 reals
    assert torch.equal(wide[:, -70:], torch_tiled.matmul(b[:3], a[-70:].mT))


@pytest.mark.parametrize("algorithm", ["simt", "fp16x3", "naive"])
def test_sizes_of_which_two_are_too_many_to_count(algorithm):
    a, b = (torch.randn(*shape, dtype=torch.complex64, device="cpu") for shape in ((0, 1), (1, 1)))
    with pytest.raises(RuntimeError, match=r"n = 4611686018427387904, .* above 2\*\*60"):
        torch_tiled.matmul(a, b.expand(1, 2**62), algorithm=algorithm)
    wide, real = b.expand(1, 2**62), torch.ones(1, 1).expand(1, 2**62)
    for x, y in ((wide, wide.mT), (wide.mT, wide), (real, real.mT)):
        with pytest.raises(RuntimeError, match=r"none of them may be above 2\*\*60"):
            torch_tiled.explain(x, y, compute_capability=90, sms=132)
