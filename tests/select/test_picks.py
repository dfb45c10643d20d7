"""Which kernel and which tile `auto` picks on an H200, for every shape of the committed results.

The plans need no GPU: explain() is asked for compute capability 9.0 and 132 SMs. picks.json holds
what was picked; a change to the cost model shows here as the products that it moves. To write the
picks anew, and to add the shapes of results:

    python tests/select/test_picks.py
    python tests/select/test_picks.py benchmarks/results/hopper.json
"""

import json
import sys
from pathlib import Path

import pytest
import torch

import torch_tiled

PICKS = Path(__file__).with_name("picks.json")
H200 = {"compute_capability": 90, "sms": 132}
# What a pick is of: a row's first fields.
SHAPE = ("dtype", "precision", "layout", "batch", "m", "n", "k")


def pick(dtype: str, precision: str, layout: str, batch: int, m: int, n: int, k: int) -> str:
    """The kernel, its tile, its blocks and its cycles to three digits, in words."""

    def operand(rows: int, columns: int, stored: str) -> torch.Tensor:
        size = (rows, columns) if stored == "N" else (columns, rows)
        one = (batch,) if batch > 1 else ()
        x = torch.empty(*one, *size, dtype=getattr(torch, dtype))  # memory that nobody touches
        return x if stored == "N" else x.mT

    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    plan = torch_tiled.explain(a, b, precision=precision, **H200)
    return f"{plan.algorithm} {plan.tile} {plan.blocks} {plan.values['cycles']:.3g}"


def shapes(results: dict) -> list[tuple]:
    """The shapes of a results file, each once."""
    header = results["header"]
    ours = {"dtype": header.get("dtype"), "precision": "fp32", "batch": 1}
    return list(dict.fromkeys(tuple((ours | row)[x] for x in SHAPE) for row in results["rows"]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_picks_are_those_on_record(dtype):
    """Where the cost model has changed on purpose, write the file anew, as the title says."""
    rows = [row for row in json.loads(PICKS.read_text()) if row[0] == dtype]
    assert len(rows) > 20
    moved = [(*shape, was, now) for *shape, was in rows if (now := pick(*shape)) != was]
    assert moved == []


def main(results: list[str]) -> None:
    every = [tuple(row[: len(SHAPE)]) for row in json.loads(PICKS.read_text())]
    every += [shape for path in results for shape in shapes(json.loads(Path(path).read_text()))]
    rows = [json.dumps([*shape, pick(*shape)]) for shape in dict.fromkeys(every)]
    PICKS.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
