"""Writes docs/guide/invariant_functions.md, the table of torch_tiled.invariant."""

from collections.abc import Iterable
from pathlib import Path

from torch_tiled._invariant_routes import INSIDE, INVARIANT_ROUTES
from torch_tiled._invariant_table import ATOMIC, IN_EVAL, KEPT, NOT_COVERED, row_of

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "invariant_functions.md"
MOST = 100  # names in a line
HEAD = """# Functions of PyTorch in `invariant`

A name stands for functions and methods of that name, and for their forms in place: `add` is
`torch.add`, `Tensor.add` and `Tensor.add_`. [The same answer every time](batch_invariance.md) says
what the statement promises. This page is written by `python -m tools.invariant_page`.

## Replaced

torch_tiled computes these. PyTorch computes them for integers, whose sums are exact, and for sparse
and nested tensors and subclasses, which `strict=True` refuses.

"""


def public(text: Iterable[str]) -> list[str]:
    return sorted(name for name in text if not name.startswith("_"))


def names(text: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in public(text))


def some(text: list[str]) -> str:
    """The names, or the first and the last of them if a line would have too many to read."""
    shown = public(text)
    if len(shown) <= MOST:
        return names(text)
    return f"{len(shown)} functions, from `{shown[0]}` to `{shown[-1]}`"


def replaced() -> set[str]:
    functions = (f for f in (*INVARIANT_ROUTES, *INSIDE) if not hasattr(f, "overloadpacket"))
    rows = {row_of(f.__name__) for f in functions}
    return rows | {"@"}


def page() -> str:
    lines = [HEAD + names(replaced()) + ".", "", "## Kept", ""]
    lines += ["PyTorch computes these, and a batch does not change the order of a sum.", ""]
    lines += ["| what | functions |", "|---|---|"]
    shown = {what: some(text.split()) for what, text in KEPT.items()}
    shown["attributes and the plumbing of tensors"] = "all"
    lines += [f"| {what} | {text} |" for what, text in shown.items()]
    lines += [
        "",
        f"`{IN_EVAL}` is kept in eval mode. {names(ATOMIC.split())} are kept on a CPU,",
        "and on a GPU after `torch.use_deterministic_algorithms(True)`. On a CPU `index_put` and",
        "`put` that accumulate need it, too, and on a GPU the gradients of `gather`,",
        "`index_select`, `embedding` and `interpolate`.",
        "[_invariant_table.py](../../torch_tiled/_invariant_table.py) has all names. A function",
        "that is in no table is not covered.",
        "",
        "## Not covered",
        "",
        "With `strict=True` these raise for floating-point tensors.",
        "",
        "| functions | instead |",
        "|---|---|",
    ]
    lines += [f"| {names(text.split())} | {what} |" for what, text in NOT_COVERED.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
