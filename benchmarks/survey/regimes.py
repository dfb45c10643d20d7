"""What surveys found, by regime and by kernel."""

import math
import statistics
from collections.abc import Callable

from benchmarks.suites.shapes import IN_PRECISIONS

BELOW = (0.98, 0.95, 0.8)  # a product is called slower below the first

Rows = list[dict]


def long_single(low: int, high: int) -> Callable[[dict], bool]:
    return lambda row: (
        low <= min(row["m"], row["n"]) <= high
        and row["k"] >= 1024
        and row["batch"] == 1
        and row["peer_us"] < 50
    )


def short_batch(low: int, high: int) -> Callable[[dict], bool]:
    return lambda row: (
        low <= min(row["m"], row["n"]) <= high
        and 64 <= row["k"] < 1024
        and row["batch"] > 1
        and row["peer_us"] > 50
    )


# The regimes overlap. A side is the shorter one of C, and a time is torch's.
REGIMES: dict[str, Callable[[dict], bool]] = {
    "all": lambda row: True,
    "side of 1": lambda row: min(row["m"], row["n"]) == 1,
    "side 2-8, K 1024+, single, under 50 us": long_single(2, 8),
    "side 9-64, K 1024+, single, under 50 us": long_single(9, 64),
    "side 2-8, K 64-1023, batch, over 50 us": short_batch(2, 8),
    "side 9-64, K 64-1023, batch, over 50 us": short_batch(9, 64),
    "K below 64": lambda row: row["k"] < 64,
    "under 6 us": lambda row: row["peer_us"] < 6,
    "under 10 us": lambda row: row["peer_us"] < 10,
    "10 us or more": lambda row: row["peer_us"] >= 10,
    "over 100 us": lambda row: row["peer_us"] > 100,
    "M, N, K multiples of 4": lambda row: all(row[size] % 4 == 0 for size in "mnk"),
}


def regimes(rows: Rows) -> list[dict[str, str]]:
    """The lines of a table: for each regime the ratios of torch's time to ours."""
    return [
        {"regime": name, **summary([row["ratio"] for row in rows if holds(row)])}
        for name, holds in REGIMES.items()
    ]


def summary(ratios: list[float]) -> dict[str, str]:
    """The cells of some ratios: their count, their mean, shares and the least."""
    limits = {f"below {limit}": limit for limit in BELOW}
    if not ratios:
        return {"products": "0", **dict.fromkeys(["mean", *limits, "worst"], "-")}
    shares = {
        name: f"{sum(ratio < limit for ratio in ratios) / len(ratios):.0%}"
        for name, limit in limits.items()
    }
    mean = f"{statistics.geometric_mean(ratios):.2f}"
    return {"products": str(len(ratios)), "mean": mean, **shares, "worst": f"{min(ratios):.2f}"}


def timed(row: dict) -> dict[str, float]:
    """The time of the kernel that ran, and of those that were timed beside it."""
    return {kernel: us for kernel, _, us in row.get("beside", [])} | {row["kernel"]: row["us"]}


def over_best(rows: Rows) -> float:
    """The mean factor from the time of the fastest kernel to that of the one that ran."""
    return statistics.geometric_mean(row["us"] / min(timed(row).values()) for row in rows)


def without_each(rows: Rows) -> list[dict[str, str]]:
    """The lines of a table: for each kernel, what products would lose without it.

    Only products count that more than one kernel was timed on. A loss is the time of the fastest
    other kernel divided by that of the fastest one. Its geometric mean is over all products, and
    over those in which the kernel is the fastest.
    """
    times = [found for found in map(timed, rows) if len(found) > 1]
    logs: dict[str, list[float]] = {name: [] for found in times for name in found}
    for found in times:
        first, second = sorted(found, key=found.__getitem__)[:2]
        logs[first].append(math.log(found[second] / found[first]))
    means = {name: math.exp(math.fsum(each) / len(times)) for name, each in logs.items()}
    return [
        {
            "kernel": name,
            "fastest in": str(len(logs[name])),
            "all": f"{means[name]:.3f}",
            "those": f"{math.exp(statistics.fmean(logs[name])):.2f}" if logs[name] else "-",
        }
        for name in sorted(logs, key=means.__getitem__, reverse=True)
    ]


def kind(header: dict) -> str:
    """What products a survey is of, in Markdown."""
    name = header["dtype"]
    name += f', `"{header["precision"]}"`' if name in IN_PRECISIONS else ""
    return name + (", layers" if header["model"] else "")
