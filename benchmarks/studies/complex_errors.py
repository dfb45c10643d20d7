"""The error of complex64 products against complex128, by K.

    python -m benchmarks.studies.complex_errors --k-max 4096
    python -m benchmarks.studies.complex_errors --json results.json --plot errors.svg
    python -m benchmarks.studies.complex_errors --redraw results.json --plot errors.svg

M and N are small, and K counts complex numbers. The vendor's product is cuBLAS on CUDA,
torch.matmul's on a CPU, where "fp32" is algorithm="fp16x3" and "ieee" algorithm="tiled", which
have a Hopper GPU's bits. "3M" multiplies three times by torch.matmul in float32, where the others
do so four times. The results have a row for each kind of operands, K and way to multiply. Its
figures are means over seeds:

    error         relative Frobenius error by modulus: |result - exact| / |exact|
    part_error    that of the real or the imaginary parts, each relative to such parts alone,
                  whichever is larger
    recomputed    of "fp32": the parts of elements that its guard flags, divided by all parts

The plot needs matplotlib.
"""

from functools import partial

import torch

import torch_tiled
from benchmarks.command import exit_with
from benchmarks.gemm.check import full_precision_peer, reference
from benchmarks.pages import plots
from benchmarks.pages.rows import select
from benchmarks.studies.errors import recomputed, run, study

LARGE = 2.0**12
STYLES = {  # of the ways to multiply; the vendor's is the first
    "ieee": {"color": plots.ORANGE, "marker": "^"},
    "fp32": {"color": plots.BLUE, "marker": "o"},
    "3M": {"color": plots.VERMILION, "marker": "v"},
}
VENDOR_STYLE = {"color": plots.BLACK, "marker": "s"}


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


def draw(results, path):
    """A panel for each kind of operands: the worse part's errors, and dashed those by modulus."""
    rows, header = results["rows"], results["header"]
    kinds = list(dict.fromkeys(row["operands"] for row in rows))
    ways = list(dict.fromkeys(row["product"] for row in rows))
    figure, grid = plots.subplots(2, 2, size=(9, 7.6))
    for kind, axes in zip(kinds, grid.flat, strict=True):
        for way in ways:
            found, style = select(rows, operands=kind, product=way), STYLES.get(way, VENDOR_STYLE)
            ks = [row["k"] for row in found]
            errors, of_parts = ([row[x] for row in found] for x in ("error", "part_error"))
            axes.plot(ks, of_parts, label=way, markersize=4, **style)
            axes.plot(ks, errors, color=style["color"], **plots.DASHED)
        axes.plot([], [], color="0.3", label="by modulus", **plots.DASHED)
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="K, of complex numbers")
        axes.set_ylabel("relative error of the worse part")
        axes.set_title(kind, fontsize="large")
    handles = grid.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(ways) + 1, fontsize="medium")
    figure.suptitle(
        f"complex64 products against complex128: {header['device']}, torch {header['torch']}, "
        f"M = N = {header['size']}, mean over {header['seeds']} seeds"
    )
    plots.save(figure, path)


def measure(args):
    with full_precision_peer("fp32"):
        return {"rows": study(OPERANDS, products(args.device), found_of, args)}


def main(argv=None):
    return run("benchmarks.studies.complex_errors", __doc__, argv, measure, draw)


if __name__ == "__main__":
    exit_with(main)
