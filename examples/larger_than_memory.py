"""Computes the Gram matrix of a file that does not fit into the memory that a GPU may take.

    python examples/larger_than_memory.py
    python examples/larger_than_memory.py --rows 100000 --columns 16384 --max-device-bytes 4e9

The file holds the rows of a float32 matrix X. It is mapped into memory, and X X^T, the inner
products of all pairs of rows, goes to a second mapped file, by torch_tiled.stream.matmul: panels of
X stream through each GPU. On a CPU the same call computes blocks of the result.

The result G is checked by random projections (R. Freivalds, "Probabilistic machines can use less
running time", IFIP Congress 1977): G V is compared with X (X^T V), in float64, where the elements
of V are 1 or -1 at random. A row of G counts as wrong if a difference exceeds the bound that is
derived at `error_bound`; then the exit status is 1. A row with an element that is off by more than
twice the bound passes a projection with a probability of 1/2 at most, since the other sign of that
element in V would change the difference by more than four bounds.
"""

import argparse
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from shared import Parser, now, whole

import torch_tiled

BLOCK_BYTES = 1 << 26  # of X, that are in memory at a time while it is made and checked
CHUNK = 1024  # of K, in the chunked order
FALSE_ALARM = 1e-9  # the probability that a right result counts as wrong


def mapped(path: Path, rows: int, columns: int) -> torch.Tensor:
    """A float32 matrix whose elements are those of a file, which is made if it is not there."""
    x = torch.from_file(str(path), shared=True, size=rows * columns, dtype=torch.float32)
    return x.view(rows, columns)


def blocks(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The matrix in blocks of rows."""
    return iter(x.split(max(BLOCK_BYTES // (4 * x.shape[1]), 1)))


def fill(x: torch.Tensor) -> None:
    """Writes normal numbers, block by block."""
    for block in blocks(x):
        block.normal_()


def gamma(roundings: float, unit: float) -> float:
    """What `roundings` of relative error `unit` come to at most (Higham, section 3.1)."""
    return roundings * unit / (1 - roundings * unit)


def error_bound(norms: torch.Tensor, k: int, projections: int, chunked: bool) -> torch.Tensor:
    """How far elements of a row of G V and of X (X^T V) may be apart where G is right.

    docs/guide/numerics.md bounds the error of element (i, j) of G by gamma(r) (|X| |X|^T)_ij +
    K 2^-149, with r = K for sums in any order and r = min(K, L) + ceil(K / L) - 1 for those in
    chunks of L. By Cauchy and Schwarz (|X| |X|^T)_ij is at most |x_i| |x_j|, the product of the
    norms of two rows. An element of G V sums the errors of a row of G, each with a random sign that
    was drawn after G was computed. By Hoeffding's inequality such a sum exceeds c times the root of
    its sum of squares with a probability of 2 exp(-c^2 / 2) at most, and the root is at most
    gamma(r) |x_i| |X|. With this c any of the elements does so with a probability of FALSE_ALARM.
    The products of the check meet 2 rows + K roundings of float64, whose errors are bounded by
    |x_i| times the sum of all |x_j|, without regard to signs.

    Args:
        norms: (rows, 1), of the rows of X.
        k: the columns of X.
        projections: the columns of V.
        chunked: whether G was summed in the chunked order, or is within its bound.
    """
    rows = len(norms)
    r = min(k, CHUNK) + math.ceil(k / CHUNK) - 1 if chunked else k
    c = math.sqrt(2 * math.log(2 * rows * projections / FALSE_ALARM))
    of_gram = c * gamma(r, 2.0**-24) * norms * norms.norm()
    of_check = gamma(2 * (2 * rows + k), 2.0**-53) * norms * norms.sum()
    # The norms themselves are rounded, by far less than this.
    return 1.0001 * (of_gram + of_check) + rows * k * 2.0**-149


@dataclass(frozen=True)
class Check:
    """How a Gram matrix compares with the matrix that it is of."""

    worst: float  # the largest difference, divided by its bound; NaN if a number is
    rows: int  # those of G that are beyond it in a projection

    @property
    def passes(self) -> bool:
        return self.rows == 0


def check(gram: torch.Tensor, x: torch.Tensor, projections: int, chunked: bool) -> Check:
    """Freivalds' check. X is read twice and G once, block by block."""
    signs = torch.randint(2, (len(x), projections), dtype=torch.float64) * 2 - 1
    inner, first = signs.new_zeros(x.shape[1], projections), 0
    for block in blocks(x):
        inner += block.double().mT @ signs[first : first + len(block)]
        first += len(block)
    expected = torch.cat([block.double() @ inner for block in blocks(x)])
    norms = torch.cat([block.double().norm(dim=1, keepdim=True) for block in blocks(x)])
    projected = torch.cat([block.double() @ signs for block in blocks(gram)])
    bound = error_bound(norms, x.shape[1], projections, chunked)
    ratios = (projected - expected).abs() / bound
    is_right = (ratios <= 1).all(1)  # NaN is not
    return Check(ratios.max().item(), int((~is_right).sum()))


def show(x: torch.Tensor, gram: torch.Tensor, args: argparse.Namespace) -> Check:
    """Prints the plan, computes the matrix, and prints its time and how it compares."""
    options = {
        "out": gram,
        "devices": args.devices,
        "max_device_bytes": args.max_device_bytes,
        "precision": args.precision,
        "algorithm": args.algorithm,
    }
    on_cpu = args.devices == ["cpu"]
    print("the plan, if the file's pages are in memory" + ", on an H200" * on_cpu)
    print(torch_tiled.stream.plan(x, x.mT, **options))
    start = now(gram)
    torch_tiled.stream.matmul(x, x.mT, **options, progress=True)
    seconds = now(gram) - start
    rate = 2 * len(x) ** 2 * x.shape[1] / seconds
    print(f"\ntook {seconds:.2f} s on {', '.join(args.devices)}: {rate / 1e12:.3g} TFLOP/s")
    # On a CPU auto is torch.matmul, whose order is not known.
    chunked = not on_cpu or args.algorithm in ("fp16x3", "tiled", "simt")
    done = check(gram, x, args.projections, chunked)
    print(
        f"{args.projections} random projections: the largest difference is {done.worst:.2g} of its "
        f"bound, and {done.rows} of {len(gram)} rows are beyond it"
    )
    return done


def default_devices() -> list[str]:
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__, has_device=False)
    option = parser.add_argument
    option("--file", type=Path, help="of float32 rows; left out, of random numbers")
    option("--rows", type=whole, default=5000, help="of the random numbers")
    option("--columns", type=whole, default=1024)
    option("--folder", default=tempfile.gettempdir(), help="for the files made")
    option("--max-device-bytes", type=whole, default=16 << 20, help="of each GPU")
    option("--devices", nargs="+", default=default_devices())
    option("--precision", choices=("fp32", "ieee"), default="fp32")
    option("--algorithm", default="auto")
    option("--projections", type=whole, default=20)
    args = parser.parse_args(argv)
    if args.file is not None:
        if not args.file.is_file() or args.file.stat().st_size % (4 * args.columns):
            parser.error(
                f"--file is {args.file}; it must be a file of rows of {args.columns} floats"
            )
        args.rows = args.file.stat().st_size // (4 * args.columns)
    nbytes = 4 * args.rows * args.columns
    if nbytes <= args.max_device_bytes:
        parser.error(
            f"--max-device-bytes is {args.max_device_bytes}, in which the file of {nbytes} bytes "
            "fits; give fewer, or more rows"
        )
    if not Path(args.folder).is_dir():
        parser.error(f"--folder is {args.folder}, which is no folder")
    made = 4 * args.rows**2 + nbytes * (args.file is None)
    if made > (free := shutil.disk_usage(args.folder).free):
        parser.error(f"{made} bytes of files are made, and {args.folder} has {free}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        x = mapped(args.file or Path(folder) / "x", args.rows, args.columns)
        if args.file is None:
            fill(x)
        gram = mapped(Path(folder) / "gram", args.rows, args.rows)
        print(f"X has {args.rows} rows of {args.columns} float32, {nbytes / 2**20:.4g} MiB")
        try:
            done = show(x, gram, args)
        except RuntimeError as error:  # a sentence about the options
            sys.exit(str(error))
    if not done.passes:
        sys.exit("The result is wrong.")


if __name__ == "__main__":
    main()
