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
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

import torch_tiled
from benchmarks.command import Parser, at_least, positive
from benchmarks.gemm.check import reference
from benchmarks.studies.attack_operands import ORDERS, names_of_starts, start, variants
from benchmarks.studies.attack_ratios import approximate_ratios, exact_ratio, flagged

KS = (64, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2048, 4096, 8193)
TEMPERATURE = 0.05  # by so much may a ratio fall in an early round
HALF_LIFE = 100  # the round in which it is half as much


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
    option("--seed", type=int, default=0, help="another one has other mutations")
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
    sys.exit(main())
