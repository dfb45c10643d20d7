"""The statements of docs/guide/numerics.md on complex products.

The host's kernels have the bits of a Hopper GPU.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.needs import cpu_and_hopper  # noqa: F401
from helpers.reference import (
    U,
    assert_same,
    assert_within,
    bound,
    gamma,
    parts,
    product,
    relative_error,
    roundings,
    wide,
)
from helpers.tensor_cores import FP16X3, TF32, each_guarded_kind

import torch_tiled

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/guide/numerics.md"
STUDY = ROOT / "benchmarks/results/complex_errors_hopper.json"
UNIT = U[torch.float32]
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
    names = {"normal": "normal", "scales opposed by exp(2 N)": "scales opposed by exp(2 N)"}
    names |= {
        f"{part} parts times 2^12": f"{part} parts of size 2^12" for part in ("imaginary", "real")
    }
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
