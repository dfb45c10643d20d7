"""Statements and tables of docs/guide/numerics.md, with operands beyond their limits.

The host's kernels have the bits of a Hopper GPU.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.reference import (
    TF32_LOSS,
    U,
    assert_same,
    assert_within,
    bound,
    gamma,
    gemm_bound,
    magnitude,
    parts,
    product,
    relative_error,
    roundings,
    wide,
)
from helpers.specification import CHUNK, MMA_CHUNK
from helpers.tensor_cores import FP16X3, TF32, each_guarded_kind

import torch_tiled

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/guide/numerics.md"
UNIT = U[torch.float32]


def ieee(a, b):
    return torch_tiled.matmul(a, b, algorithm="tiled", precision="ieee")


# --- powers of two -------------------------------------------------------------------------------


def with_wide_columns(k):
    """All sums are normal numbers, times 2^-125, too. One small number makes each column wide."""
    a, b = 1 + torch.rand(64, k), torch.randn(k, 64) * 2.0**20
    b[0] *= 2.0**-30
    return a, b


@each_guarded_kind
@pytest.mark.parametrize("k", [128, 1500])
def test_a_power_of_two_leaves_the_bits_where_scales_are_not_clamped(device, kind, k):
    """2^-113 is the least magnitude that a scale, 2^127 at most, brings to 2^14."""
    a, b = with_wide_columns(k)
    a[7, 0], b[0, 9] = 2.0**-30, 2.0**20  # element (7, 9) is flagged: all else meets zeros
    a[7, 1 : k // 2], b[k // 2 :, 9] = 0, 0
    b[1 : k // 2, 9] = 0
    assert kind.with_flags(a, b)[1].nonzero().tolist() == [[7, 9]]
    result = kind.multiply(a, b, device)
    for exponent in (-113, -60, 1, 70):
        power = 2.0**exponent
        assert_same(kind.multiply(power * a, b, device), power * result)
        assert_same(kind.multiply(-power * a, b, device), -power * result)


@each_guarded_kind
def test_a_power_of_two_may_change_bits_where_scales_are_clamped(device, kind):
    """Sums are 2^11 times smaller in scaled units then, and less than their columns' 64 small
    numbers ask for."""
    a, b = 1 + torch.rand(64, 128), torch.empty(128, 64)
    a[:, 0], b[0], b[1:64], b[64:] = 0, 2.0**20, 2.0**4 * (1 + torch.rand(63, 64)), 2.0**-10
    power = 2.0**-125
    result, scaled = kind.multiply(a, b, device), kind.multiply(power * a, b, device)
    _, before = kind.with_flags(a, b)
    _, after = kind.with_flags(power * a, b)
    assert not before.any() and after.any()
    assert scaled.abs().min() > torch.finfo(torch.float32).smallest_normal
    assert_same(scaled[~after], power * result[~after])
    assert_same(scaled[after], power * ieee(a, b)[after])
    assert (scaled != power * result).any()


# --- overflow ------------------------------------------------------------------------------------


def flagged_chunk(total, length):
    """A row and a column whose product is `total`, flagged since both are wide."""
    a, b = torch.zeros(1, length), torch.zeros(length, 1)
    a[0, 0] = b[1, 0] = 2.0**120  # each meets a zero
    a[0, 2], b[2, 0] = 2.0**63, total * 2.0**-63
    return a, b


def test_a_flagged_chunk_may_save_one_that_overflows_in_fp16x3(device):
    """The chunk's exact sum is 500 ulp beyond the largest number. FMAs in sequence drop each small
    product beside it, so that the chunked order stays finite."""
    a, b = torch.full((1, CHUNK), 2.0**64), torch.full((CHUNK, 1), 0.49 * 2.0**40)
    a[0, 0], b[0, 0] = 2.0**64 * (1 - 2.0**-24), 2.0**64
    assert product(a, b) > torch.finfo(torch.float32).max + bound(a, b, algorithm="fp16x3")
    assert FP16X3.multiply(a, b, device) == torch.inf
    assert_saved(FP16X3, device, (a, b), flagged_chunk(-(2.0**127), CHUNK))


def test_a_flagged_chunk_may_save_one_that_overflows_in_tf32(device):
    """A chunk of 8192 overflows. The chunked order adds it by eighths to what the flagged chunk
    left."""
    a, b = torch.full((1, MMA_CHUNK), 2.0**58), torch.full((MMA_CHUNK, 1), 1.25 * 2.0**57)
    assert product(a, b) == 1.25 * 2.0**128
    assert TF32.multiply(a, b, device) == torch.inf
    assert_saved(TF32, device, flagged_chunk(-(2.0**127), MMA_CHUNK), (a, b))


def assert_saved(kind, device, first, second):
    a, b = torch.cat([first[0], second[0]], 1), torch.cat([first[1], second[1]], 0)
    _, flagged = kind.with_flags(a, b)
    result = kind.multiply(a, b, device)
    assert flagged.all() and result.isfinite().all()
    assert_same(result, ieee(a, b))
    assert_within(result, product(a, b), bound(a, b, algorithm="tiled"))


@each_guarded_kind
def test_chunks_that_overflow_unflagged_leave_inf_or_what_ieee_has(device, kind):
    """Inf stays, unless it meets the other infinity. Then the element is recomputed, and mostly not
    finite."""
    length = {"fp16x3": CHUNK, "tf32": MMA_CHUNK}[kind.order]
    sums = torch.tensor([[4.0, 0, -1], [-4, 1, 0], [4, -4, 0], [-1.5, -1.5, 4]])
    a = sums.repeat_interleave(length, 1) * 2.0**64
    b = torch.full((3 * length, 1), 2.0**63 / length)  # 1 stands for a chunk's sum of 2^127
    result = kind.multiply(a, b, device)
    assert result[:2].flatten().tolist() == [torch.inf, -torch.inf]
    assert not result[2:].isfinite().any()
    assert_same(result[2:], ieee(a, b)[2:])


# --- alpha and beta ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
def test_alpha_and_beta_add_three_roundings_to_a_product(device, algorithm):
    """They are alpha's conversion to float32, the multiplication and the addition. With the
    product's own rounding they are off by 3.8 u."""
    a = torch.tensor([[float.fromhex("0x1.04a7f2p+0")]])
    b = torch.tensor([[float.fromhex("0x1.053062p+0")]])
    c = torch.tensor([[float.fromhex("0x1.d437e0p-11")]])
    alpha, beta = 1.0000230658738365, 1.0
    result = c.to(device, copy=True)
    ways = {"alpha": alpha, "beta": beta, "algorithm": algorithm}
    torch_tiled.gemm_(result, a.to(device), b.to(device), **ways)
    exact = alpha * product(a, b) + beta * c.double()
    size = alpha * magnitude(a, b) + beta * c.double()
    assert_within(result.cpu(), exact, gemm_bound(c, a, b, alpha, beta, algorithm=algorithm))
    assert (result.cpu() - exact).abs() > gamma(3.8, UNIT) * size


# --- flagged elements of tf32 --------------------------------------------------------------------


def tf32_bound(k):
    """That of elements which are not flagged, relative to |A||B|."""
    return TF32_LOSS + gamma(roundings(k, "tf32"), UNIT) * (1 + TF32_LOSS)


def chunked_bound(k):
    return gamma(roundings(k, "chunked"), UNIT)


def test_the_chunked_bound_exceeds_that_of_tf32_where_k_is_very_long():
    for k in (64, 1024, 8192, 2**17, 2**20):
        assert 8 * chunked_bound(k) < tf32_bound(k)
    assert chunked_bound(2**24) < tf32_bound(2**24)
    assert chunked_bound(2**25) > tf32_bound(2**25)


def test_a_flagged_element_may_err_by_more_than_the_bound_of_tf32():
    """Every chunk after the first adds slightly less than half an ulp, which is rounded away."""
    k, small = 2**25, 0.999 * UNIT
    a, b = torch.zeros(1, k), torch.ones(k, 1)
    a[0, CHUNK::CHUNK] = small
    a[0, 0], b[0, 0] = 2.0**30, 0  # makes the row wide and the sum small beside it
    a[0, 2] = 1
    facts = torch_tiled.explain(a, b, **TF32.ways)
    assert facts.recomputed == "1 of 1 elements"
    exact = 1 + (k // CHUNK - 1) * a[0, CHUNK].item()
    error = exact - torch_tiled.matmul(a, b, **TF32.ways).item()
    assert tf32_bound(k) * exact < error <= chunked_bound(k) * exact


# --- particular structures -----------------------------------------------------------------------


def identity(m, k, n):
    return torch.eye(k)[:m], torch.randn(k, n)


def permutation(m, k, n):
    return torch.eye(k)[torch.randperm(k)[:m]], torch.randn(k, n)


def diagonal(m, k, n):
    return torch.diag(torch.randn(k))[:m], torch.randn(k, n)


def interpolation(m, k, n):
    """Rows of two neighbours, w and 1 - w."""
    left, w = torch.randint(k - 1, (m, 1)), torch.rand(m, 1)
    a = torch.zeros(m, k).scatter_(1, left, 1 - w).scatter_(1, left + 1, w)
    return a, torch.randn(k, n)


def softmax(m, k, n):
    return torch.softmax(16 * torch.randn(m, k), 1), torch.randn(k, n)


def lognormal(m, k, n):
    return torch.exp(5 * torch.randn(m, k)), torch.exp(5 * torch.randn(k, n))


def gram(m, k, n):
    a = torch.randn(m, k)
    return a, a[:n].mT


def half_of_the_rows_zero(m, k, n):
    a = torch.randn(m, k)
    a[m // 2 :] = 0
    return a, torch.randn(k, n)


def half_of_k_zero(m, k, n):
    a, b = torch.randn(m, k), torch.randn(k, n)
    a[:, k // 2 :], b[k // 2 :] = 0, 0
    return a, b


# The names are those in the page's table.
STRUCTURES = {
    "rows of the identity": identity,
    "rows of a diagonal matrix": diagonal,
    "interpolation": interpolation,
    "peaked softmax": softmax,
    "lognormal, sigma 5": lognormal,
    "Gram matrix": gram,
    "half of a's rows are 0": half_of_the_rows_zero,
    "half of K is 0 in both": half_of_k_zero,
}
K, SEEDS, SIZE = 1024, 32, 32  # K; products; M and N


def measured(name):
    """Means over seeds: the relative Frobenius errors of `"ieee"` and of fp16x3, in units of 1e-7,
    and the percentage of elements that fp16x3 flags."""
    theirs = ours = flagged = 0.0
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        a, b = STRUCTURES[name](SIZE, K, SIZE)
        exact = product(a, b)
        theirs += 1e7 * relative_error(ieee(a, b), exact) / SEEDS
        ours += 1e7 * relative_error(torch_tiled.matmul(a, b, algorithm="fp16x3"), exact) / SEEDS
        recomputed = torch_tiled.explain(a, b, algorithm="fp16x3").recomputed
        flagged += 100 * int(recomputed.split()[0]) / SIZE**2 / SEEDS
    return theirs, ours, flagged


def rows_of_the_page():
    """The numbers of each structure: two errors and a percentage."""
    section = re.search(r"^### Particular structures$(.*?)^#", PAGE.read_text(), re.M | re.S)[1]
    rows = re.findall(r"^\| ([^|`]+) \|((?: [\d.]+(?: %)? \|)+)$", section, re.M)
    return {name: [float(x) for x in re.findall(r"[\d.]+", cells)] for name, cells in rows}


def test_the_page_has_all_structures():
    rows = rows_of_the_page()
    assert rows.keys() == STRUCTURES.keys()
    assert {len(row) for row in rows.values()} == {3}


@pytest.mark.parametrize("name", STRUCTURES)
def test_errors_are_those_on_the_page(name):
    """The bits are specified, so errors move only where torch draws or exponentiates otherwise. Few
    large elements make up the error of lognormal operands, and so it moves most."""
    expected = rows_of_the_page()[name]
    margin = 0.5 if name == "lognormal, sigma 5" else 0.1
    assert measured(name) == pytest.approx(tuple(expected), rel=margin, abs=0.05)


@pytest.mark.parametrize("k", [256, 1024])
def test_sums_of_one_product_lose_what_the_split_does(device, k):
    """The split loses 2 u of each factor, and lo times lo 4 u. The 1 of an identity loses nothing;
    for others one rounding and the truncation of `low` follow."""
    for structure, largest in ((identity, 2), (permutation, 2), (diagonal, 9.1)):
        a, b = structure(60, k, 50)
        exact = product(a, b)
        error = (FP16X3.multiply(a, b, device) - exact).abs()
        assert 0.5 * largest * UNIT < (error / exact.abs()).max() <= largest * UNIT
        assert_same(ieee(a.to(device), b.to(device)).cpu(), exact.float())


@pytest.mark.parametrize("k", [128, 1024])
def test_gram_matrices_are_not_symmetric(device, k):
    a = torch.randn(150, k)
    result = FP16X3.multiply(a, a.mT, device)
    unequal = (result != result.mT).double().mean()
    assert 0 < unequal < 0.005
    assert_within(result.mT, product(a, a.mT), bound(a, a.mT, algorithm="fp16x3"))
    other = ieee(a.to(device), a.mT.to(device))
    assert_same(other, other.mT)


def test_zeros_lose_and_flag_nothing(device):
    """From K = 512 on all promotions have one length, so zeros at the end of K change no bit."""
    a, b = torch.randn(40, 512), torch.randn(512, 50)
    result = FP16X3.multiply(a, b, device)
    longer = torch.nn.functional.pad(a, (0, 600)), torch.nn.functional.pad(b, (0, 0, 0, 600))
    assert_same(FP16X3.multiply(*longer, device), result)
    a[20:] = 0
    b[3, 7] *= 1e-8
    _, flagged = FP16X3.with_flags(a, b)
    assert not flagged.any()
    after = FP16X3.multiply(a, b, device)
    assert not after[20:].any()
    assert_same(after[:20, :7], result[:20, :7])


# --- complex numbers -----------------------------------------------------------------------------


STUDY = ROOT / "benchmarks/results/complex_errors_hopper.json"
ORDERS = {"tiled": "chunked", "fp16x3": "fp16x3"}
each_algorithm = pytest.mark.parametrize("algorithm", ORDERS)


def multiply(a, b, device, algorithm):
    return torch_tiled.matmul(a.to(device), b.to(device), algorithm=algorithm).cpu()


def normal(m, k, n):
    return torch.randn(m, k, dtype=torch.complex64), torch.randn(k, n, dtype=torch.complex64)


def bound_in_modulus(a, b, order):
    """That of the page, without what underflows."""
    moduli = wide(a).abs() @ wide(b).abs()
    return 2**0.5 * gamma(roundings(2 * a.shape[1], order), UNIT) * moduli


@each_algorithm
@pytest.mark.parametrize("k", [64, 255, 512, 513, 1100])
def test_each_part_and_the_modulus_are_within_their_bounds(device, algorithm, k):
    a, b = normal(20, k, 30)
    a.real[3:9] *= 2.0**-12
    b.imag[:, 5:] *= 2.0**12
    result, exact = multiply(a, b, device, algorithm), product(a, b)
    limit = bound(a, b, algorithm=algorithm)
    assert_within(result, exact, limit)
    in_modulus = bound_in_modulus(a, b, ORDERS[algorithm])
    assert ((result - exact).abs() <= in_modulus).all()
    assert (limit.square().sum(-1).sqrt() <= 1.001 * in_modulus + 1e-30).all()


def test_the_bounds_of_parts_reach_that_in_modulus():
    """Where all parts have one magnitude. Without the root of 2 it holds for real numbers."""
    a = torch.complex(*(torch.randint(2, (2, 6, 700)) * 2.0 - 1))
    b = torch.complex(*(torch.randint(2, (2, 700, 5)) * 2.0 - 1))

    def ratio(a, b):
        limit = bound(a, b, algorithm="tiled").square().sum(-1).sqrt()
        return limit / bound_in_modulus(a, b, "chunked")

    torch.testing.assert_close(ratio(a, b), torch.ones(6, 5).double(), rtol=1e-4, atol=0)
    for x in (a.real + 0j, 1j * a.imag):
        single = torch.full((6, 5), 0.5**0.5).double()
        torch.testing.assert_close(ratio(x, b), single, rtol=1e-4, atol=0)


@each_algorithm
@pytest.mark.parametrize("large", ["real", "imag"])
def test_four_products_keep_the_part_that_three_lose(algorithm, large):
    a, b = normal(16, 600, 16)
    for x in (a, b):
        getattr(x, large).mul_(2.0**12)
    real, imaginary = a.real @ b.real, a.imag @ b.imag
    three = (a.real + a.imag) @ (b.real + b.imag) - real - imaginary
    by_three = torch.complex(real - imaginary, three)
    ours, exact = multiply(a, b, "cpu", algorithm), product(a, b)
    assert_within(ours, exact, bound(a, b, algorithm=algorithm))
    assert relative_error(ours.imag, exact.imag) < 1e-6 and relative_error(by_three, exact) < 1e-6
    assert relative_error(three, exact.imag) > 2.0**10 * relative_error(ours.imag, exact.imag)


def test_the_table_has_the_errors_of_the_study():
    names = {"normal": "normal", "imaginary parts times 2^12": "imaginary parts of size 2^12"}
    section = re.search(r"^## Complex numbers$(.*?)^## ", PAGE.read_text(), re.M | re.S)[1]
    found = re.findall(r"^\| ([^|\n]*)\| (\d+) \|((?: [\d.]+ \|){5})$", section, re.M)
    assert len(found) == 2 * len(names)
    study, kind = json.loads(STUDY.read_text()), None
    for name, k, cells in found:
        kind = names[name.strip()] if name.strip() else kind
        of_way = {
            row["product"]: row
            for row in study["rows"]
            if row["operands"] == kind and row["k"] == int(k)
        }
        errors = [of_way[x]["part_error"] for x in ("ieee", "fp32", "cuBLAS", "3M")]
        errors.append(of_way["3M"]["error"])
        shown = [float(cell) for cell in cells.split("|")[:-1]]
        assert shown == pytest.approx([1e7 * error for error in errors], abs=0.51, rel=0)
        assert shown[:3] == pytest.approx([1e7 * error for error in errors[:3]], abs=0.0051)


@each_algorithm
def test_a_gram_matrix_is_hermitian_within_its_bound(device, algorithm):
    a = torch.randn(300, 20, dtype=torch.complex64)
    result = multiply(a.mH, a, device, algorithm)
    assert (result.diagonal().imag != 0).any()
    limit = bound(a.mH, a, algorithm=algorithm)
    assert_within(result, product(a.mH, a), limit)
    assert_within(result.mH, product(a.mH, a), limit.transpose(0, 1))
    if algorithm == "tiled":
        assert_same(result.mT.real, result.real)


@each_algorithm
@pytest.mark.parametrize("k", [1, 70, 600])
def test_an_infinite_part_meets_zeros(device, algorithm, k):
    a, b = torch.ones(3, k).to(torch.complex64), torch.full((k, 2), 2.0).to(torch.complex64)
    a[0, 0] = complex(torch.inf, 0)
    result = parts(multiply(a, b, device, algorithm))
    assert (result[0, :, 0] == torch.inf).all() and result[0, :, 1].isnan().all()
    assert torch.equal(result[1:], torch.tensor([2.0 * k, 0]).expand(2, 2, 2))


@each_guarded_kind
def test_one_part_may_be_recomputed_and_the_other_not(device, kind):
    """Huge real parts of a meet zeros in the rows of b for the real part, and numbers in those for
    the imaginary part."""
    a, b = normal(9, 70, 8)
    a.real[:, 0], b.real[0] = 2.0**40, 0
    result = parts(torch_tiled.matmul(a.to(device), b.to(device), **kind.ways).cpu())
    ieee = parts(multiply(a, b, "cpu", "tiled"))
    assert_same(result[..., 0], ieee[..., 0])
    assert not torch.equal(result[..., 1], ieee[..., 1])


@pytest.mark.parametrize("ways", [{"algorithm": "tiled"}, FP16X3.ways, TF32.ways], ids=str)
@pytest.mark.parametrize("k", [40, 700])
def test_conjugates_and_negations_change_no_bit(device, ways, k):
    a, b = (x.to(device) for x in normal(9, k, 8))

    def result(a, b):
        return parts(torch_tiled.matmul(a, b, **ways)).cpu()

    def copied(x):
        return x.resolve_conj().resolve_neg()

    views = (lambda x: x, torch.conj, torch._neg_view, lambda x: torch._neg_view(x.conj()))
    for left in views:
        for right in views:
            x, y = left(a), right(b)
            assert_same(result(x, y), result(copied(x), copied(y)))
    plain, both = result(a, b), result(a.conj(), b.conj())
    assert_same(both[..., 0], plain[..., 0])
    assert_same(both[..., 1], -plain[..., 1])
