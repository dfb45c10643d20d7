"""The geometric means of a run's rows."""

from collections.abc import Iterable

from benchmarks.pages.rows import mean

MEAN_OF = ("suite", "group", "dtype", "precision", "algorithm", "variant")


def geometric_means(rows: Iterable[dict]) -> list[dict]:
    """For each suite and each group in it: the mean ratio to the peer, and to a copy."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        for group in dict.fromkeys(("", row["group"])):  # "" stands for the whole suite
            key = tuple((row | {"group": group})[name] for name in MEAN_OF)
            groups.setdefault(key, []).append(row)
    return [
        dict(zip(MEAN_OF, key, strict=True))
        | {
            "rows": len(group),
            "ratio": mean(row["ratio"] for row in group),
            "of_copy": mean(row["copy_us"] / row["us"] for row in group if row["copy_us"]),
        }
        for key, group in groups.items()
    ]


def asked(row: dict) -> str:
    """The algorithm that was asked for, and the variant if that is no plain product."""
    variant = row["variant"]
    return row["algorithm"] + ("" if variant == "plain" else f", {variant}")
