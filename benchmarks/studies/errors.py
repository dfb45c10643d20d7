"""The error of float32 products against float64, by K.

    python -m benchmarks.studies.errors --k-max 4096
    python -m benchmarks.studies.errors --json benchmarks/results/errors_cpu.json

M and N are small. The vendor's product is cuBLAS on CUDA, torch.matmul's on a CPU. The results have
a row for each kind of operands, K and way to multiply. Its figures are means over seeds, those that
end in _u in units of u = 2^-24:

    error         relative Frobenius error: |result - exact| / |exact|
    shrinkage_u   <result - exact, exact> / <exact, exact>: the factor that all elements share is 1
                  plus this; it is negative where results are too small
    bias_u        of positive operands: the mean signed error of elements, relative to each
    guarded       of fp16x3: the share of elements that its guard flags for recomputation

Under "iteration" are rows of N products by one orthogonal matrix of 128 x 128, each of the result
before it, with the same error and shrinkage_u against N products in float64. There what each
product's errors have in common adds up: shrinkage grows as N does, and roundings that have nothing
in common as its square root. benchmarks.pages draws the results.
"""

from collections.abc import Callable

import torch

import torch_tiled
from benchmarks.command import Parser, at_least, exit_with
from benchmarks.gemm import machine
from benchmarks.gemm.check import full_precision_peer, reference
from benchmarks.pages import files

U = reference.U[torch.float32]
ALGORITHMS = ("naive", "tiled", "fp16x3")
LENGTHS = (10, 100, 1000)  # how many products by an orthogonal matrix
SIDE = reference.MIN_K["fp16x3"]  # of that matrix: shorter sums are in the chunked order


def normal(m, k, n):
    return torch.randn(m, k), torch.randn(k, n)


def uniform(m, k, n):
    return torch.rand(m, k), torch.rand(k, n)


def lognormal(m, k, n):
    return torch.exp(2 * torch.randn(m, k)), torch.exp(2 * torch.randn(k, n))


def opposed(spread):
    """Columns of a and rows of b are scaled against each other."""

    def operands(m, k, n):
        scale = torch.exp(spread * torch.randn(k))
        return torch.randn(m, k) * scale, torch.randn(k, n) / scale[:, None]

    return operands


OPERANDS = {
    "normal": normal,
    "uniform(0, 1)": uniform,
    "lognormal, sigma 2": lognormal,
    "scales opposed by exp(2 N)": opposed(2),
    "scales opposed by exp(5 N)": opposed(5),
}
POSITIVE = ("uniform(0, 1)", "lognormal, sigma 2")  # these have a bias to study


def recomputed(a, b, **options):
    """The share of elements that the guard flags, or of their parts; 0 if the sum has no guard."""
    parts = 2 if a.is_complex() else 1
    flagged = torch_tiled.explain(a, b, **options).values.get("recomputed", 0)
    return flagged / (parts * a.shape[0] * b.shape[1])


def figures(result, exact):
    """The error and the shrinkage_u of a result."""
    shrinkage = ((result.double() - exact) * exact).sum() / exact.square().sum()
    return {
        "error": reference.relative_error(result, exact),
        "shrinkage_u": shrinkage.item() / U,
    }


def add(row, found, seeds):
    """Adds a seed's share of the means in `row`."""
    for key, value in found.items():
        row[key] = row.get(key, 0.0) + value / seeds


def products(vendor, device):
    """A function of two operands for each way to multiply them."""
    ways = {vendor: torch.matmul}
    for name in ALGORITHMS:
        if reference.takes(name, torch.float32, device):
            ways[name] = lambda a, b, name=name: torch_tiled.matmul(a, b, algorithm=name)
    return ways


def study(kinds, ways, found_of, args):
    """The rows of every kind of operands, K and way to multiply, printed as they come.

    Args:
        kinds: functions of m, k and n to two operands.
        ways: functions of operands to their product.
        found_of: a function of a kind, operands, the exact product and a result of each way to the
            figures of each way.
    """
    every = []
    print(f"{'operands':28} {'K':>6}  " + "  ".join(f"{way:>12}" for way in ways))
    for kind, k in ((kind, 2**i) for kind in kinds for i in range(6, args.k_max.bit_length())):
        rows = {way: {"operands": kind, "k": k, "product": way} for way in ways}
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            a, b = (x.to(args.device) for x in kinds[kind](args.size, k, args.size))
            results = {way: multiply(a, b) for way, multiply in ways.items()}
            found = found_of(kind, a, b, reference.product(a, b), results)
            for way in ways:
                add(rows[way], found[way], args.seeds)
        every += rows.values()
        said = "  ".join(f"{row['error']:12.3g}" for row in rows.values())
        print(f"{kind:28} {k:6}  {said}", flush=True)
    return every


def found_of(kind, a, b, exact, results):
    found = {way: figures(result, exact) for way, result in results.items()}
    if kind in POSITIVE:
        for way, result in results.items():
            found[way]["bias_u"] = ((result.double() - exact) / exact).mean().item() / U
    if "fp16x3" in results:
        found["fp16x3"]["guarded"] = recomputed(a, b, algorithm="fp16x3")
    return found


def iterate(ways, args):
    """The rows of products by an orthogonal matrix: one for each way to multiply and each length.

    The matrix is rounded to float32 beforehand, so that only the products err.
    """
    rows = {
        (way, length): {"k": SIDE, "product": way, "multiplications": length}
        for way in ways
        for length in LENGTHS
    }
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        orthogonal = torch.linalg.qr(torch.randn(SIDE, SIDE, dtype=torch.float64)).Q.float()
        first, orthogonal = (x.to(args.device) for x in (torch.randn(args.size, SIDE), orthogonal))
        exact = dict(powers(first.double(), orthogonal.double(), torch.matmul))
        for way, multiply in ways.items():
            for length, result in powers(first, orthogonal, multiply):
                add(rows[way, length], figures(result, exact[length]), args.seeds)
    return list(rows.values())


def powers(x, matrix, multiply):
    """Yields each of LENGTHS, and x after so many products by the matrix."""
    for i in range(max(LENGTHS)):
        x = multiply(x, matrix)
        if i + 1 in LENGTHS:
            yield i + 1, x


def run(module: str, description: str, argv: list[str] | None, measure: Callable) -> int:
    """The command of a study: measures and writes."""
    parser = Parser(module, description)
    option = parser.add_argument
    option("--k-max", type=at_least(64), default=131072, help="the largest K; the first is 64")
    option("--size", type=at_least(1), default=32, help="M and N")
    seeds = "products to take the mean over"
    option("--seeds", type=at_least(1), default=reference.SEEDS, help=seeds)
    args = parser.parse_args(argv)
    files.write(args.json, {"header": machine.describe(args, "size", "seeds"), **measure(args)})
    return 0


def measure(args):
    """The rows of all operands, and those of repeated products."""
    ways = products("cuBLAS" if args.device == "cuda" else "torch.matmul", args.device)
    with full_precision_peer("fp32"):
        rows, iterated = study(OPERANDS, ways, found_of, args), iterate(ways, args)
    for length in LENGTHS:
        found = [row for row in iterated if row["multiplications"] == length]
        errors = "  ".join(f"{row['error']:12.3g}" for row in found)
        print(f"{f'{length} products, orthogonal':28} {SIDE:6}  {errors}")
    return {"rows": rows, "iteration": iterated}


def main(argv=None):
    return run("benchmarks.studies.errors", __doc__, argv, measure)


if __name__ == "__main__":
    exit_with(main)
