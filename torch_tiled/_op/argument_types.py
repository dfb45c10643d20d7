"""Refuses arguments of a wrong type in a sentence; PyTorch would print the schema."""

import re

import torch

from .namespace import NAMESPACE
from .supported import DTYPES

_EXPECTED = {
    "str": "a string",
    "float": "a number",
    "int": "an integer",
    "Optional[int]": "a torch.dtype",  # of out_dtype, the only one
}
_OF_SCHEMA = re.compile(
    NAMESPACE + r"::(\w+)\(\) Expected a value of type '(.+)' for argument '(\w+)' "
    r"but instead found type '(.+)'"
)


def check_are_tensors(op, names, tensors, options):
    """Raises a RuntimeError if a value is no tensor, nor stands for one as torch.fx.Proxy does.

    Args:
        op: the operator's name, such as "tiled::matmul".
        names: the names of its arguments, in order.
        tensors: the values of the first of them.
        options: the values of others; out is a tensor.
    """
    if len(tensors) > len(names):
        raise RuntimeError(
            f"{op}: it takes {len(names)} positional arguments, and {len(tensors)} were given; "
            f"pass options by name"
        ) from None
    given = zip(names, tensors, strict=False)
    pairs = [(name, x) for name, x in given if not (x is None and name in ("bias", "offs"))]
    if "out" in options:
        pairs.append(("out", options["out"]))
    for name, value in pairs:
        if not isinstance(value, torch.Tensor) and not hasattr(value, "__torch_function__"):
            given = [other for _, other in pairs if isinstance(other, torch.Tensor)]
            raise RuntimeError(f"{op}: {name} is {_described(name, value, given)}") from None


def _described(name, value, given):
    """Returns what a value is, and a remedy by which it fits to the tensors that are given."""
    if value is None:
        return "None; it must be a tensor"
    kind = type(value)
    if isinstance(value, (list, tuple, int, float)):
        if isinstance(value, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in value):
            tensor = f"torch.stack({name})"
        else:
            dtype = next((x.dtype for x in given if x.dtype in DTYPES), torch.float64)
            dtype = torch.int32 if name == "offs" else dtype
            tensor = f"torch.tensor({name}, dtype={dtype})"
        if name in ("c", "out"):  # they are written to
            remedy = f"make a tensor first, {name} = {tensor}, and pass that: it has the result"
        else:
            remedy = f"pass a tensor, such as {tensor}"
    elif kind.__module__ == "numpy":
        remedy = f"pass a tensor, such as torch.from_numpy({name})"
    elif kind.__name__ == "Prepared":
        remedy = f"pass {name}.tensor, the unprepared operand"
    else:
        remedy = "pass a tensor"
    return f"of type {kind.__name__}; {remedy}"


def check_is_module(function, model):
    """Raises a RuntimeError if a function such as "torch_tiled.convert" was given no module."""
    if not isinstance(model, torch.nn.Module):
        raise RuntimeError(
            f"{function}: model is of type {type(model).__name__}; pass a torch.nn.Module"
        )


def raise_if_of_wrong_type(error):
    """Raises a RuntimeError of one sentence if PyTorch refused the type of an option."""
    if (found := _OF_SCHEMA.search(str(error))) and found[2] in _EXPECTED:
        op, expected, name, kind = found.groups()
        if expected == "float" and kind in ("int", "Fraction"):  # others are taken
            raise RuntimeError(
                f"tiled::{op}: {name} is beyond the range of float64; pass a number between "
                f"-1.79e308 and 1.79e308"
            ) from None
        raise RuntimeError(
            f"tiled::{op}: {name} is of type {kind}; pass {_EXPECTED[expected]}"
        ) from None
