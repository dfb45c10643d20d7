"""Searches for operands whose errors come closest to the promised bounds, or exceed them.

    python -m benchmarks.studies.attack_bounds --minutes 600
    python -m benchmarks.studies.attack_bounds --order fp16x3 --k 512 1024 --rounds 100 --seed 3

For each order of summation and K, simulated annealing begins at rows and columns that are meant to
err (attack_operands.py). A round mutates one pair of them, many times, and multiplies all mutated
rows by all mutated columns. The ratio of an element is its error over the elementwise bound of
docs/guide/numerics.md; a flagged element must have the bits of "ieee", and its ratio is 0, or
infinite. Candidates are compared by float64 products; what is reported was summed exactly. The
same seed and number of rounds give the same results. The exit status is 1 where a ratio exceeds 1.
"""

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from helpers import specification

import torch_tiled
from benchmarks.command import Parser, at_least, exit_with, positive
from benchmarks.gemm.check import reference
from benchmarks.studies.attack_operands import ORDERS, names_of_starts, start, variants

KS = (64, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2048, 4096, 8193)
TEMPERATURE = 0.05  # by so much may a ratio fall in an early round
HALF_LIFE = 100  # the round in which it is half as much
FINITE = 2.0**127  # a finite result is promised where |A||B| is less


# --- how close elements come to the bounds, and which are flagged --------------------------------

# Operands are rows of K numbers each, the rows of a and the columns of b. `products` is the
# library's product of them, and the product in the order of "ieee", whose bits flagged elements
# must have.


def promised(order, a, b, size):
    """The elementwise bound where the magnitudes of the products add up to `size`."""
    k = a.shape[1]
    lost = reference.TF32_LOSS * size if order.summed == "tf32" else 0.0
    roundings = reference.roundings(k, order.summed)
    if order.summed == "fp16x3":
        roundings = roundings - reference.COARSE * reference.is_coarse(a, b.mT)
    gamma = reference.gamma(roundings, reference.U[torch.float32])
    return lost + gamma * (size + lost) + k * reference.SMALLEST[torch.float32]


def flagged(order, a, b):
    """Which elements of the product of rows a and rows b the guard flags, by the specification."""
    flags = torch.zeros(len(a), len(b), dtype=torch.bool)
    if order.is_guarded:
        for first in range(0, a.shape[1], order.chunk):
            chunk = slice(first, first + order.chunk)
            of_chunk = flagged_in_chunk(order, a[:, chunk].numpy(), b[:, chunk].numpy(), a.shape[1])
            flags |= torch.from_numpy(of_chunk)
    return flags


def flagged_in_chunk(order, a, b, k):
    """Which sums of a chunk are flagged. Float64 products decide it except near the threshold,
    where those rows and columns are summed as specified."""
    (a_hi, a_lo, _, a_small), (b_hi, b_lo, _, b_small) = map(specification.split, (a, b))
    small = a_small[:, None] + b_small
    if not small.any():
        return small > 0
    if order.summed == "fp16x3":
        a_hi, b_hi = a_hi + a_lo * 2.0**-11, b_hi + b_lo * 2.0**-11
    sums, sizes = abs(a_hi @ b_hi.T), abs(a_hi) @ abs(b_hi).T
    roundings = reference.roundings(k, order.summed)
    slack = reference.gamma(roundings, reference.U[torch.float32]) * sizes + 2.0**-18 * small

    def are_flagged(scaled):
        return specification.small_numbers_cost_too_much(scaled, a, b.T, a_small, b_small)

    flags, doubtful = are_flagged(sums + slack), are_flagged((sums - slack).clip(min=0))
    doubtful &= ~flags
    if doubtful.any():
        rows, cols = doubtful.any(1), doubtful.any(0)
        flags[rows[:, None] & cols] = sums_as_specified(order, a[rows], b[cols].T, k)[1].flatten()
    return flags


def sums_as_specified(order, a, b, k):
    """A chunk's sums, and which of them are flagged."""
    if order.summed == "tf32":
        return specification.tf32_chunk(a, b)
    return specification.fp16x3_chunk(a, b, reference.promotion(k))


def ratios(order, a, b, products, flags, error, size):
    """Errors over bounds; 0 where nothing is promised, and infinite where a result is not finite or
    a flagged element has other bits than those of "ieee"."""
    result, ieee = products
    ratio = torch.where(result.isfinite(), error / promised(order, a, b, size), math.inf)
    same = result.view(torch.int32) == ieee.view(torch.int32)
    ratio = torch.where(flags, torch.where(same, 0.0, math.inf), ratio)
    return torch.where(size < FINITE, ratio, 0.0)


def magnitudes(order, x):
    """What errors are relative to: magnitudes in float64."""
    return reference.raised(x) if order.summed == "mma" else x.double().abs()


def approximate_ratios(order, a, b, products, flags):
    """The ratios of all elements of the product of rows a and rows b, by float64 products."""
    size = magnitudes(order, a) @ magnitudes(order, b).mT
    error = (products[0].double() - a.double() @ b.double().mT).abs()
    return ratios(order, a, b, products, flags, error, size)


def exact_ratio(order, a, b, products):
    """The ratio of one element. Products of float32 numbers are exact in float64, and math.fsum
    rounds once the sum of them and of the result."""
    addends = (a.double() * b.double()).flatten().tolist()
    result = products[0].double().item()
    error = abs(math.fsum([*addends, -result])) if math.isfinite(result) else math.inf
    size = math.fsum((magnitudes(order, a) * magnitudes(order, b)).flatten().tolist())
    error, size = (torch.full((1, 1), x, dtype=torch.float64) for x in (error, size))
    return ratios(order, a, b, products, flagged(order, a, b), error, size).item()


# --- the search ----------------------------------------------------------------------------------


@dataclass
class Trial:
    """One element: its row and column of K numbers, and what the library made of them."""

    order: str
    began: str
    a: torch.Tensor
    b: torch.Tensor
    result: torch.Tensor
    ratio: float


def multiply(order, a, b, device):
    """The library's product of rows a and rows b, and the same in the order of "ieee" where
    elements may be flagged."""
    a, b = a.to(device), b.to(device).mT
    result = torch_tiled.matmul(a, b, algorithm=order.algorithm, **order.options).cpu()
    if not order.is_guarded:
        return result, result
    return result, torch_tiled.matmul(a, b, algorithm="tiled", precision="ieee").cpu()


class Search:
    """Simulated annealing for one order and K, from every start at once."""

    def __init__(self, name, k, args):
        self.name, self.order, self.k = name, ORDERS[name], k
        self.size, self.device = args.size, args.device
        seed = (args.seed * 1_000_003 + k) * len(ORDERS) + list(ORDERS).index(name)
        self.generator = torch.Generator().manual_seed(seed)
        self.elements = self.flagged = self.rounds = 0
        self.pool = []
        for began in names_of_starts(self.order):
            a, b = start(began, self.order, k, self.generator)
            self.pool.append(Trial(name, began, a, b, torch.zeros(1, 1), -1.0))
            self.mutate(len(self.pool) - 1)
        self.worst = max(self.pool, key=lambda trial: trial.ratio)

    def round(self):
        """Mutates one of two trials of the pool, that of the larger ratio."""
        drawn = torch.randint(0, len(self.pool), (2,), generator=self.generator).tolist()
        self.mutate(max(drawn, key=lambda i: self.pool[i].ratio))
        self.rounds += 1
        self.worst = max([self.worst, *self.pool], key=lambda trial: trial.ratio)

    def mutate(self, i):
        """Puts the worst variant of a trial in its place, unless its ratio is too much lower."""
        old = self.pool[i]
        a, b = (variants(x, self.size, self.generator) for x in (old.a, old.b))
        products = multiply(self.order, a, b, self.device)
        flags = flagged(self.order, a, b)
        ratio = approximate_ratios(self.order, a, b, products, flags)
        self.elements += flags.numel()
        self.flagged += int(flags.sum())
        if old.ratio >= 0:
            ratio[0, 0] = -1.0  # the old trial itself
        row, col = divmod(ratio.argmax().item(), len(b))
        temperature = TEMPERATURE * HALF_LIFE / (HALF_LIFE + self.rounds)
        allowed = temperature * torch.rand((), generator=self.generator).item()
        if ratio[row, col] >= old.ratio - allowed:
            result = products[0][row : row + 1, col : col + 1].clone()
            found = a[row].clone(), b[col].clone(), result, ratio[row, col].item()
            self.pool[i] = Trial(self.name, old.began, *found)


def settled(search, device):
    """The worst trial of a search with its exact ratio, by the result that the search saw."""
    trial = search.worst
    a, b = trial.a[None], trial.b[None]
    _, ieee = multiply(search.order, a, b, device)
    return replace(trial, ratio=exact_ratio(search.order, a, b, (trial.result, ieee)))


def search_all(searches, args):
    """Rounds of every search, as many as asked for or until the time is over; says once a minute
    how far it is."""
    began, said = time.monotonic(), 0
    while args.rounds is None or searches[0].rounds < args.rounds:
        minutes = (time.monotonic() - began) / 60
        if args.rounds is None and minutes >= args.minutes:
            return
        if minutes >= said + 1:
            said = int(minutes)
            worst = max((search.worst for search in searches), key=lambda trial: trial.ratio)
            told = f"{worst.ratio:.4f}, {worst.order} at K = {len(worst.a)}"
            print(f"{said} min, round {searches[0].rounds}: worst ratio {told}", flush=True)
        for search in searches:
            search.round()


def print_searches(searches, trials):
    print(f"{'order':9} {'K':>6} {'elements':>10} {'flagged':>8} {'ratio':>7}  began as")
    for search, trial in zip(searches, trials, strict=True):
        counts = f"{search.k:6} {search.elements:10} {search.flagged / search.elements:8.1%}"
        print(f"{search.name:9} {counts} {trial.ratio:7.4f}  {trial.began}")


def fault(trial):
    """What is wrong with a trial whose ratio exceeds 1."""
    if trial.ratio < math.inf:
        return f"error / bound is {trial.ratio:.6g}"
    if trial.result.isfinite():
        return 'the element is flagged, and has not the bits of "ieee"'
    return "a finite result is promised"


def status(trials):
    """The exit status; prints a sentence for each trial whose ratio exceeds 1."""
    wrong = [trial for trial in trials if trial.ratio > 1]
    for trial in wrong:
        what = f"A promise of {trial.order} is broken at K = {len(trial.a)}"
        print(f"{what}: the result is {trial.result.item()!r}, and {fault(trial)}.")
    return 1 if wrong else 0


def parse(argv):
    parser = Parser("benchmarks.studies.attack_bounds", __doc__, writes=False)
    option = parser.add_argument
    option("--order", nargs="+", choices=ORDERS, default=list(ORDERS), help="by default all")
    option("--k", nargs="+", type=at_least(1), default=list(KS), help=f"by default {KS}")
    option("--size", type=at_least(2), default=32, help="the rows and columns of a round")
    option("--seed", type=at_least(0), default=0, help="another one has other mutations")
    option("--minutes", type=positive, default=10, help="the search ends after these")
    option("--rounds", type=at_least(0), help="so many rounds instead, whatever time they take")
    args, refuse = parser.parse_args(argv), parser.error
    if args.order != ["ieee"] and not reference.takes("fp16x3_wgmma", torch.float32, args.device):
        refuse("the bounds of tensor cores are Hopper's; say --device cpu or --order ieee.")
    args.cases = [(o, k) for o in args.order for k in args.k if k >= reference.MIN_K.get(o, 1)]
    if not args.cases:
        least = min(reference.MIN_K[name] for name in args.order)
        refuse(f"--k has no sum of {least} or more, and shorter ones are in the order of ieee.")
    return args


@contextmanager
def one_thread():
    """Products of a round are too small for threads, which would take longer to meet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def main(argv=None):
    args = parse(argv)
    searches = [Search(name, k, args) for name, k in args.cases]
    try:
        search_all(searches, args)
    except KeyboardInterrupt:
        print("Interrupted: this is what was found before.")
    trials = [settled(search, args.device) for search in searches]
    print_searches(searches, trials)
    return status(trials)


if __name__ == "__main__":
    exit_with(main)
