"""Writes the generated blocks of the README, from benchmarks/results/front_page.json."""

from benchmarks.pages.files import ResultsError
from benchmarks.pages.markdown import measured_on, table
from benchmarks.pages.rows import select

GIB = 1 << 30


def _row(measured: dict, **wanted) -> dict:
    """The one row of these values. Raises ResultsError if it is missing or says why it failed."""
    found = select(measured["rows"], **wanted)
    if len(found) != 1 or "failure" in found[0]:
        why = found[0]["failure"] if len(found) == 1 else f"there are {len(found)} such rows"
        raise ResultsError(f"the front page needs a row of {wanted}: {why}")
    return found[0]


def _all(measured: dict, kind: str) -> list[dict]:
    """The rows of a kind, one for each model."""
    models = [row.get("model") for row in select(measured["rows"], kind=kind)]
    return [_row(measured, kind=kind, model=model) for model in models]


def _ways(rows: list[dict]) -> str:
    """How models were converted, in results with attention as well."""
    text = "by `torch_tiled.convert(model)`"
    if "attention_share" not in rows[0]:
        return text
    shares = _each([100 * row["attention_share"] for row in rows], ".0f")
    return f"{text} and `torch_tiled.attention`, which takes {shares} % of it"


def _each(values: list, form: str) -> str:
    return ", ".join(format(value, form) for value in values)


def _product(row: dict) -> dict[str, str]:
    """A line of the table; the last column has the ratio of the errors if they differ."""
    ratio = row["error"] / row["peer_error"]
    error = "the same error" if 0.95 < ratio < 1.05 else f"{ratio:.2f} of the error"
    theirs, ours = (
        f"{row[f'{whose}tflops']:.3g} TFLOP/s, error {row[f'{whose}error']:.1e}"
        for whose in ("peer_", "")
    )
    gain = f"**{row['ratio']:.2f}x** the speed, {error}"
    return _line(f"a {row['dtype']} product, {_cube(row['size'])}", theirs, ours, gain)


def _line(what: str, theirs: str, ours: str, gain: str) -> dict[str, str]:
    return {"": what, "PyTorch": theirs, "torch_tiled": ours, "what you gain": gain}


def write_table(measured: dict) -> str:
    """What torch_tiled gives, beside PyTorch."""
    float32, bfloat16 = (
        _row(measured, kind="product", dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    trainings, streamed = _all(measured, "training"), _row(measured, kind="streamed")
    asked = [
        _row(measured, kind="prompts", dtype=dtype, way=way)
        for way in ("torch", "convert")
        for dtype in ("float32", "bfloat16")
    ]
    same, count = [row["same_prompts"] for row in asked], asked[0]["prompts"]
    share = streamed["in_core_seconds"] / streamed["seconds"]
    lines = [
        _product(float32),
        _line(
            f"a training step in float32: {', '.join(x['model'].split()[0] for x in trainings)}",
            f"{_each([row['peer_ms'] for row in trainings], '.1f')} ms",
            f"{_each([row['ms'] for row in trainings], '.1f')} ms",
            f"**{_each([row['ratio'] for row in trainings], '.2f')}x**, {_ways(trainings)}",
        ),
        *(
            _line(
                f"a prefill in float32: {row['model']}, {' x '.join(map(str, row['inputs'][0]))}",
                f"{row['peer_ms']:.1f} ms",
                f"{row['ms']:.1f} ms",
                f"**{row['ratio']:.2f}x**, {_ways([row])}",
            )
            for row in _all(measured, "prefill")
        ),
        _line(
            "prompts with the same logits alone and in a batch: float32, bfloat16",
            f"{same[0]} and {same[1]} of {count}",
            f"{same[2]} and {same[3]} of {count}",
            "the same bits, whatever else is in the batch",
        ),
        _product(bfloat16),
        _line(
            f"a float32 product, {_cube(streamed['size'])}: {streamed['bytes'] / GIB:g} GiB, "
            f"with {streamed['budget'] / GIB:g} GiB of the GPU",
            "does not fit",
            f"{streamed['tflops']:.3g} TFLOP/s",
            f"**{share:.2f}x** the speed within the GPU"
            + (", the same bits" if streamed["equal"] else ""),
        ),
    ]
    return table(4, lines)


def _cube(size: int) -> str:
    return f"{size} cubed"


def write_source(measured: dict) -> str:
    """Where and how the table was measured."""
    steps = ", ".join(
        f"{row['model']} on {' x '.join(map(str, row['inputs'][0]))}"
        for row in _all(measured, "training")
    )
    length = _row(measured, kind="prompts", dtype="float32", way="torch")["length"]
    return (
        f"{measured_on(measured['header'])} by "
        "[front_page.py](benchmarks/suites/front_page.py), with TF32 off. "
        "Errors are relative to float64. "
        f"A step is forward, backward and Adam: {steps}. A Llama of 12 layers answers prompts of "
        f"{length} tokens; tokens that it generates in float32 need "
        "[`torch_tiled.invariant()`](docs/guide/batch_invariance.md)."
    )


BLOCKS = {"table": write_table, "source": write_source}
