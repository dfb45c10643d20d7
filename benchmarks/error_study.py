"""The error of float32 products against float64, by K.

    python benchmarks/error_study.py --k-max 4096
    python benchmarks/error_study.py --json benchmarks/results/errors_cpu.json
    python benchmarks/error_study.py --redraw benchmarks/results/errors_cpu.json --plot errors.svg

M and N are small. Each row has the mean over seeds of the relative Frobenius error; the mean
signed error of the elements, relative to each, in units of u = 2^-24; and the share of elements
that fp16x3's guard flags for recomputation. The vendor's product is cuBLAS on CUDA, torch.matmul's
on a CPU. The plot needs matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import machine
import plots
from check import full_precision_peer, reference
from helpers.specification import CHUNK, split
from rows import ResultsError, read

import torch_tiled

U = reference.U[torch.float32]
PROVEN = 32 * CHUNK  # a chunk as large as this is not flagged (core/order_fp16x3.h)
ALGORITHMS = {"naive": "a sum in sequence", "tiled": "ieee, in chunks", "fp16x3": "fp16x3"}


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


def guarded(a, b):
    """The share of elements that fp16x3 flags. (An element on the threshold may differ.)"""
    flagged = torch.zeros(len(a), b.shape[1], dtype=torch.bool)
    for start in range(0, a.shape[1], CHUNK):
        (a_hi, a_lo, _, a_wide), (b_hi, b_lo, _, b_wide) = (
            map(torch.from_numpy, split(x.numpy()))
            for x in (a[:, start : start + CHUNK], b[start : start + CHUNK].mT)
        )
        scaled = (a_hi + a_lo * 2.0**-11) @ (b_hi + b_lo * 2.0**-11).mT
        flagged |= (a_wide[:, None] | b_wide) & (scaled.abs() < PROVEN)
    return flagged.double().mean().item()


def products(vendor, device):
    """A function of two operands for each way to multiply them."""
    ways = {vendor: torch.matmul}
    for name in ALGORITHMS:
        if reference.takes(name, torch.float32, device):
            ways[name] = lambda a, b, name=name: torch_tiled.matmul(a, b, algorithm=name)
    return ways


def study(operands, k, ways, args):
    """The rows of one kind of operands and one K: one for each way to multiply."""
    rows = {
        way: {"operands": operands, "k": k, "product": way, "error": 0.0, "bias_u": 0.0}
        for way in ways
    }
    share = 0.0
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        a, b = OPERANDS[operands](args.size, k, args.size)
        if "fp16x3" in ways:
            share += guarded(a, b) / args.seeds
        a, b = a.to(args.device), b.to(args.device)
        exact = reference.product(a, b)
        for way, multiply in ways.items():
            result = multiply(a, b)
            rows[way]["error"] += reference.relative_error(result, exact) / args.seeds
            bias = ((result.double() - exact) / exact).mean().item() / U
            rows[way]["bias_u"] += bias / args.seeds
    for way, row in rows.items():
        if operands not in POSITIVE:
            del row["bias_u"]
        if way == "fp16x3":
            row["guarded"] = share
    return list(rows.values())


STYLES = [  # the ways differ in their markers, too
    {"color": plots.BLACK, "marker": "s"},
    {"color": plots.ORANGE, "marker": "^"},
    {"color": plots.GREEN, "marker": "D"},
    {"color": plots.BLUE, "marker": "o", "linewidth": 2},
]
GUARD_STYLES = [
    {"color": plots.BLUE, "marker": "o"},
    {"color": plots.VERMILION, "marker": "v"},
    {"color": plots.PURPLE, "marker": "X"},
    {"color": plots.BLACK, "marker": "s"},
    {"color": plots.GREEN, "marker": "D"},
]


def draw(results, path):
    """A panel for each kind of operands but the last, one for the bias, one for the guard.

    The last kind has no panel: every element of it is recomputed, so that fp16x3 errs as ieee does.
    """
    plt = plots.pyplot()
    rows, header = results["rows"], results["header"]
    ways = list(dict.fromkeys(row["product"] for row in rows))
    kinds = list(dict.fromkeys(row["operands"] for row in rows))

    def points(key, **wanted):
        """The Ks of the rows, and their values of `key`."""
        found = [r for r in rows if key in r and all(r[x] == y for x, y in wanted.items())]
        return tuple(r["k"] for r in found), tuple(r[key] for r in found)

    def draw_ways(axes, key, kind):
        for way, style in zip(ways, STYLES, strict=False):
            label = ALGORITHMS.get(way, way)
            axes.plot(*points(key, operands=kind, product=way), label=label, markersize=4, **style)

    figure, grid = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
    *grid, bias, guard = grid.flat
    for kind, axes in zip(kinds[:-1], grid, strict=True):
        draw_ways(axes, "error", kind)
        axes.set_yscale("log")
        axes.set_title(kind)
        axes.set_ylabel("relative Frobenius error")
    draw_ways(bias, "bias_u", "uniform(0, 1)")
    promised = reference.BIAS / U
    bias.axhspan(-promised, promised, color="0.92", zorder=0)
    bias.text(64, promised, "promised", va="bottom", color="0.4", fontsize="small")
    bias.set_ylim(-2 * promised, 2 * promised)  # a long sum in sequence leaves the range
    bias.set_title("bias on uniform(0, 1)")
    bias.set_ylabel("mean relative error, units of $2^{-24}$")

    shares = {}  # kinds whose shares are the same have one line
    for kind in kinds:
        share = points("guarded", operands=kind)
        if any(share):  # some GPUs have no fp16x3
            shares.setdefault(share, []).append(kind)
    for ((ks, values), same), style in zip(shares.items(), GUARD_STYLES, strict=False):
        percents = [100 * value for value in values]
        guard.plot(ks, percents, label="\n".join(same), markersize=4, **style)
    guard.set_ylim(-5, 105)
    guard.set_title("recomputed by fp16x3's guard")
    guard.set_ylabel("% of the elements")
    if shares:
        guard.legend(fontsize="small", loc="center left", bbox_to_anchor=(0, 0.6))

    for axes in (*grid, bias, guard):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("K")
        plots.add_grid(axes)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ways))
    figure.suptitle(
        f"float32 products against float64: {header['device']}, torch {header['torch']}, "
        f"M = N = {header['size']}, mean over {header['seeds']} seeds"
    )
    plots.save(figure, path)


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--device", choices=["cpu", "cuda"], help="by default cuda where there is a GPU")
    option("--k-max", type=int, default=131072, help="the largest K; the first is 64")
    option("--size", type=int, default=32, help="M and N")
    option("--seeds", type=int, default=reference.SEEDS, help="products to take the mean over")
    option("--json", type=Path, metavar="PATH", help="write the results there")
    option("--plot", type=Path, metavar="PATH", help="draw them there, as .svg or .png")
    option("--commit", help="the sources' commit for the results, where they have no .git")
    option("--redraw", type=Path, metavar="RESULTS", help="draw these instead, run nothing")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; leave --device out or say --device cpu.")
    if args.redraw and not args.plot:
        parser.error("--redraw needs --plot, the file to draw.")
    if args.k_max < 64:
        parser.error(f"--k-max is {args.k_max}; it must be at least 64.")
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return args


def main(argv=None):
    args = parse(argv)
    if args.redraw:
        try:
            draw(read(args.redraw), args.plot)
        except ResultsError as error:
            print(error)
            return 1
        return 0
    words = [__file__, *argv] if argv is not None else sys.argv
    command_line = machine.command_line(words, args.json, args.plot)
    header = machine.describe(torch.device(args.device), command_line, args.commit)
    header |= {"size": args.size, "seeds": args.seeds}
    ways = products("cuBLAS" if args.device == "cuda" else "torch.matmul", args.device)
    rows = []
    print(f"{'operands':27} {'K':>7}  " + "  ".join(f"{way:>12}" for way in ways) + "   guarded")
    with full_precision_peer("fp32"):
        for operands in OPERANDS:
            k = 64
            while k <= args.k_max:
                found = study(operands, k, ways, args)
                rows += found
                errors = "  ".join(f"{row['error']:12.3g}" for row in found)
                share = next((f"{r['guarded']:10.4f}" for r in found if "guarded" in r), "")
                print(f"{operands:27} {k:7}  {errors}{share}", flush=True)
                k *= 2
    results = {"header": header, "rows": rows}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.plot:
        draw(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
