"""Writes the generated blocks of docs/guide/limits.md: the ratios to cuBLAS by kind of product."""

import itertools
from collections.abc import Callable, Iterable

from benchmarks import ROOT
from benchmarks.pages.markdown import figure, table
from benchmarks.pages.rows import mean, mean_and_spread, select, spread
from benchmarks.survey import regimes

PAGE = ROOT / "docs" / "guide" / "limits.md"
FEW_ROWS = 64  # suites of few rows of a large weight have up to so many


def auto(measured: dict, *suites: str, **wanted) -> list[dict]:
    """The plain rows of `auto` in these suites, or of the variant that is wanted."""
    wanted = {"algorithm": "auto", "variant": "plain"} | wanted
    return [row for row in select(measured["rows"], **wanted) if row["suite"] in suites]


def squares(rows: Iterable[dict]) -> list[dict]:
    return [row for row in rows if row["m"] == row["n"] == row["k"]]


def _by_size(rows: list[dict], *ranges: tuple[int, int]) -> dict[str, list[dict]]:
    """The squares of sizes from one to another."""
    return {f"{a} to {b}": [row for row in rows if a <= row["m"] <= b] for a, b in ranges}


def few_rows(rows: Iterable[dict], least: int, most: int) -> list[dict]:
    """The products of suite skinny with so many rows: of large weights, and of routers."""
    few = [row for row in rows if row["group"].startswith("m = ") or row["group"] == "router"]
    return [row for row in few if least <= row["m"] <= most]


def small_batches(rows: Iterable[dict], least: int, most: int) -> list[dict]:
    """The batches of products whose sides and K are in a range."""
    return [row for row in rows if all(least <= row[side] <= most for side in ("m", "n", "k"))]


def _ratios(lines: dict[str, list[dict]]) -> str:
    """A table with a line for each kind of product that was measured."""
    return table(
        1,
        [
            {"products": what, "measured": len(rows), "ratio": mean_and_spread(rows)}
            for what, rows in lines.items()
            if rows
        ],
    )


def _epilogues(measured: dict, suite: str, precision: str) -> dict[str, list[dict]]:
    """The squares of an epilogue suite, against cuBLAS with PyTorch's epilogue."""
    found = [
        auto(measured, suite, precision=precision, variant=x) for x in ("bias", "relu", "gelu")
    ]
    return {"4096, bias alone, with ReLU and with GELU": squares(itertools.chain(*found))}


def _float32(measured: dict, precision: str) -> dict[str, list[dict]]:
    """The kinds of float32 products that both precisions are measured on."""
    skinny = auto(measured, "skinny", precision=precision)
    batched = auto(measured, "batched", precision=precision)
    suite, odd = ("square", "ragged") if precision == "fp32" else ("ieee", "ieee")
    return {
        "squares, 128 to 16384": squares(auto(measured, suite, precision=precision)),
        "one row": few_rows(skinny, 1, 1),
        "2 to 32 rows": few_rows(skinny, 2, 32),
        "64 and 128 rows": few_rows(skinny, 64, 128),
        "long sums, or 32 columns": select(skinny, group="long K or few columns"),
        "cubes of 8 to 32 in a batch": small_batches(batched, 8, 32),
        "batches of 64 x 64 to 128 x 128, K from 64": small_batches(batched, 64, 128),
        "batches of 2048 x 2048 and 2048 x 128": [row for row in batched if row["m"] > 128],
        "odd sizes": [row for row in auto(measured, odd, precision=precision) if row["k"] % 2],
        **_epilogues(measured, "epilogue", precision),
    }


def write_float32(measured: dict) -> str:
    layers = auto(measured, "transformer")
    of_weights = select(layers, layout="TN")
    few_tiles = [row for row in of_weights if 768 in (row["m"], row["n"])]
    few_tiles = [row for row in few_tiles if max(row["m"], row["n"]) <= 3072]
    flagged = auto(measured, "guard", precision="fp32", variant="flagged")
    opposed, padded = (auto(measured, name, variant=name) for name in ("opposed", "padded"))
    ieee = _float32(measured, "ieee")
    fp32 = _float32(measured, "fp32") | {
        "layers of transformers": layers,
        "gradients of weights 768 wide: few tiles": few_tiles,
        "4096, every element recomputed": flagged,
        "a's columns and b's rows scaled against each other": opposed,
        "decayed weights, half of the rows zero": padded,
    }
    lines = []
    for what, rows in fp32.items():
        line = {"products": what}
        for name, found in (('`"fp32"`', rows), ('`"ieee"`', ieee.get(what, []))):
            line |= {(name, "measured"): len(found) or "-", name: mean_and_spread(found)}
        lines.append(line)
    return table(1, lines)


def write_tf32(measured: dict) -> str:
    rows = auto(measured, "tf32_square", "tf32_kernels", precision="tf32")
    found = squares(rows)
    return _ratios(
        {
            **_by_size(found, (256, 512), (1024, 2048), (4096, 16384)),
            "4095 x 4097 x 4093": select(rows, group="odd sizes"),
        }
    )


def write_16bit(measured: dict) -> str:
    found = squares(auto(measured, "mma_square"))
    layers = auto(measured, "mma_transformer")
    odd = [row for row in layers if any(row[side] % 2 for side in ("m", "n", "k"))]
    long_k = auto(measured, "mma_long_k")
    unaligned = auto(measured, "mma_unaligned_rows")
    decoded = auto(measured, "mma_decode")
    copied = [row["copy_us"] / row["us"] for row in decoded if row["copy_us"] and row["m"] <= 16]
    told = _ratios(
        {
            **_by_size(found, (512, 1024), (2048, 4096), (8192, 16384)),
            "odd sizes": auto(measured, "mma_ragged", group="odd sizes"),
            "layers of transformers, no side odd": [row for row in layers if row not in odd],
            "the same, a side of 50257": odd,
            "1 to 64 rows of large weights": decoded,
            "gradients of weights from 256 x 1024 to 768 x 3072, K of 16384 to 65536": select(
                long_k, layout="TN"
            ),
            "64 x 64 x 1000000": select(long_k, group="little but K"),
            "sides that are multiples of 8, not of 64": [
                row for row in unaligned if row["m"] > FEW_ROWS
            ],
            "few rows, the large weight's not 16-byte aligned": [
                row for row in unaligned if row["m"] <= FEW_ROWS
            ],
            **_epilogues(measured, "mma_epilogue", "fp32"),
        }
    )
    if copied:
        told += (
            f"\n\n1 to 16 rows of large weights: {spread(copied)} of the "
            "rate of a copy of as many bytes."
        )
    return told


def write_energy(measured: dict) -> str:
    """GFLOP/s per watt of large products of 16-bit floats, over cuBLAS's."""
    rows = [row for row in auto(measured, "mma_square") if row["gflops_per_watt"]]
    if not rows:
        return "The energy of products was not measured."
    ratios = [row["gflops_per_watt"] / row["peer_gflops_per_watt"] for row in rows]
    return (
        f"Squares from {min(row['m'] for row in rows)} on have {spread(ratios)} of cuBLAS's "
        "GFLOP/s per watt."
    )


def write_random(surveys: dict[str, dict]) -> str:
    """The share of random products that are slower, and the mean of those with a side of 1."""
    lines = []
    by_survey = itertools.groupby(surveys.values(), lambda x: regimes.kind(x["header"]))
    for kind, found in by_survey:
        rows, gpus = [], set()
        for survey in found:
            rows += survey["rows"]
            gpus.add(survey["header"]["device"].removeprefix("NVIDIA ").split()[0])
        thin = [row["ratio"] for row in rows if min(row["m"], row["n"]) == 1]
        lines.append(
            {
                "random sizes of": kind,
                "products": len(rows),
                "slower": f"{sum(row['ratio'] < 1 for row in rows) / len(rows):.0%}",
                "mean with a side of 1": figure(mean(thin), ".2f"),
                "GPU": ", ".join(sorted(gpus)),
            }
        )
    return table(1, lines)


BLOCKS: dict[str, Callable[[dict], str]] = {
    "float32": write_float32,
    "tf32": write_tf32,
    "16bit": write_16bit,
    "energy": write_energy,
}
