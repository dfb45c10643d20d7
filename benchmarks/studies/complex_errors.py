"""The error of complex64 products against complex128, by K.

    python -m benchmarks.studies.complex_errors --k-max 4096
    python -m benchmarks.studies.complex_errors --json benchmarks/results/complex_errors_cpu.json

M and N are small, and K counts complex numbers. The vendor's product is cuBLAS on CUDA,
torch.matmul's on a CPU, where "fp32" is algorithm="fp16x3" and "ieee" algorithm="tiled", which
have a Hopper GPU's bits. "3M" multiplies three times by torch.matmul in float32, where the others
do so four times. The results have a row for each kind of operands, K and way to multiply. Its
figures are means over seeds:

    error         relative Frobenius error by modulus: |result - exact| / |exact|
    part_error    that of the real or the imaginary parts, each relative to such parts alone,
                  whichever is larger
    recomputed    of "fp32": the parts of elements that its guard flags, divided by all parts

benchmarks.pages draws the results.
"""

from functools import partial

import torch

import torch_tiled
from benchmarks.command import exit_with
from benchmarks.gemm.check import full_precision_peer, reference
from benchmarks.studies.errors import recomputed, run, study

LARGE = 2.0**12


def scaled(real, imaginary):
    """Operands with normal real and imaginary parts of these sizes."""

    def operands(m, k, n):
        return tuple(
            torch.complex(real * torch.randn(size), imaginary * torch.randn(size))
            for size in ((m, k), (k, n))
        )

    return operands


def opposed(m, k, n):
    """Columns of a and rows of b are scaled against each other."""
    a, b = scaled(1, 1)(m, k, n)
    scale = torch.exp(2 * torch.randn(k))
    return a * scale, b / scale[:, None]


OPERANDS = {
    "normal": scaled(1, 1),
    "imaginary parts of size 2^12": scaled(1, LARGE),
    "real parts of size 2^12": scaled(LARGE, 1),
    "scales opposed by exp(2 N)": opposed,
}


def three_products(a, b):
    """The 3M method: the product of the sums of parts, less the other two, is the imaginary part"""
    real, imaginary = a.real @ b.real, a.imag @ b.imag
    both = (a.real + a.imag) @ (b.real + b.imag)
    return torch.complex(real - imaginary, both - real - imaginary)


def ours(precision, device):
    """The options of our product, on a CPU those of a Hopper GPU's bits."""
    names = {"fp32": "fp16x3", "ieee": "tiled"}
    algorithm = names[precision] if device == "cpu" else "auto"
    return {"precision": precision, "algorithm": algorithm}


def products(device):
    """A function of two operands for each way to multiply them."""
    return {
        "cuBLAS" if device == "cuda" else "torch.matmul": torch.matmul,
        **{name: partial(torch_tiled.matmul, **ours(name, device)) for name in ("ieee", "fp32")},
        "3M": three_products,
    }


def figures(result, exact):
    """The errors of a result."""
    of_parts = (
        reference.relative_error(getattr(result, part), getattr(exact, part))
        for part in ("real", "imag")
    )
    error = reference.relative_error(result, exact)
    return {"error": error, "part_error": max(of_parts)}


def found_of(kind, a, b, exact, results):
    found = {way: figures(result, exact) for way, result in results.items()}
    found["fp32"]["recomputed"] = recomputed(a, b, **ours("fp32", a.device.type))
    return found


def measure(args):
    with full_precision_peer("fp32"):
        return {"rows": study(OPERANDS, products(args.device), found_of, args)}


def main(argv=None):
    return run("benchmarks.studies.complex_errors", __doc__, argv, measure)


if __name__ == "__main__":
    exit_with(main)
