"""Situation: None, a list or a NumPy array in place of a tensor raised what nobody can read.

It was an AttributeError about is_nested, or five lines with the operator's schema.
"""

import numpy as np
import pytest
import torch

import torch_tiled

NUMBERS = {
    "list": [[1.0, 2.0], [3.0, 4.0]],
    "tuple": (1, 2),
    "int": 3,
    "float": 0.5,
}


def remedies(name):
    """A value of each type that is no tensor, and what is said of it as argument `name`."""
    made = f"torch.tensor({name}, dtype=torch.float64)"
    yield None, f"{name} is None; it must be a tensor"
    for kind, value in NUMBERS.items():
        yield value, f"{name} is of type {kind}; pass a tensor, such as {made}"
    array = f"{name} is of type ndarray; pass a tensor, such as torch.from_numpy({name})"
    yield np.ones((2, 2), np.float32), array
    yield "x", f"{name} is of type str; pass a tensor"


CALLS = {
    "matmul a": ("a", lambda t, value: torch_tiled.matmul(value, t)),
    "matmul b": ("b", lambda t, value: torch_tiled.matmul(t, value)),
    "linear x": ("x", lambda t, value: torch_tiled.linear(value, t, t[0])),
    "linear weight": ("weight", lambda t, value: torch_tiled.linear(t, value, activation="relu")),
    "gemm_ c": ("c", lambda t, value: torch_tiled.gemm_(value, t, t)),
    "gemm_ b": ("b", lambda t, value: torch_tiled.gemm_(t, t, value)),
    "prepare": ("b", lambda t, value: torch_tiled.prepare(value)),
    "explain": ("a", lambda t, value: torch_tiled.explain(value, t)),
    "a layer": ("x", lambda t, value: torch_tiled.nn.Linear(2, 2)(value)),
    "a converted layer": ("x", lambda t, value: converted()(value)),
    "a strict one": ("x", lambda t, value: converted(strict=True)(value)),
}
OPS = {"a": "linear", "prepare": "prepare", "explain": "explain"}


def converted(**options):
    layer = torch.nn.Linear(2, 2)
    torch_tiled.convert(layer, **options)
    return layer


def message(call, *args, **options):
    with pytest.raises(RuntimeError) as error:
        call(*args, **options)
    return str(error.value)


@pytest.mark.parametrize("of", ["cpu", "meta"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor(name, of):
    argument, call = CALLS[name]
    first = name.split()[0]
    op = OPS.get(first, first)
    t = torch.zeros(2, 2, device=of)
    for value, sentence in remedies(argument):
        if of == "meta" and first == "explain":
            continue
        assert message(call, t, value) == f"tiled::{op}: {sentence}"


@pytest.mark.parametrize("argument", ["out", "bias"])
def test_what_may_be_left_out(argument, device):
    t = torch.zeros(2, 2, device=device)
    for value, sentence in remedies(argument):
        if value is None:
            continue
        if argument == "out":
            text = message(torch_tiled.matmul, t, t, out=value)
            assert text == f"tiled::matmul: {sentence}"
        else:
            assert message(torch_tiled.linear, t, t, value) == f"tiled::linear: {sentence}"


@pytest.mark.parametrize(
    "call, sentence",
    [
        (
            lambda t: torch_tiled.matmul(t, t, algorithm=3),
            "algorithm is of type int; pass a string",
        ),
        (
            lambda t: torch_tiled.matmul(t, t, precision=None),
            "precision is of type NoneType; pass a string",
        ),
        (
            lambda t: torch_tiled.matmul(t, t, out_dtype="float32"),
            "out_dtype is of type str; pass a torch.dtype",
        ),
        (lambda t: torch_tiled.gemm_(t, t, t, alpha="2"), "alpha is of type str; pass a number"),
        (
            lambda t: torch_tiled.linear(t, t, activation=["relu"]),
            "activation is of type list; pass a string",
        ),
        (lambda t: torch_tiled.explain(t, t, sms="1"), "sms is of type str; pass an integer"),
    ],
)
def test_options(call, sentence, device):
    text = message(call, torch.zeros(2, 2, device=device))
    assert text.partition(": ")[2] == sentence


def test_a_prepared_operand_in_the_wrong_place(device):
    t = torch.zeros(64, 64, device=device)
    prepared = torch_tiled.prepare(t)
    sentence = "tiled::matmul: a is of type Prepared; pass a.tensor, the unprepared operand"
    assert message(torch_tiled.matmul, prepared, t) == sentence


@pytest.mark.parametrize("convert", [False, True])
def test_compiled_code(convert, fresh_compiler):
    """Dynamo may put words of its own around the sentence, and no schema."""
    function = converted() if convert else lambda x: torch_tiled.linear(x, torch.zeros(2, 2))
    with pytest.raises(Exception, match="x is of type list; pass a tensor") as error:
        torch.compile(function, backend="eager", fullgraph=True)([1.0])
    assert "Declaration" not in str(error.value)


def test_a_tracer_s_values_stand_for_tensors():
    """torch.fx traces a converted model by values that are no tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    torch_tiled.convert(model)
    traced = torch.fx.symbolic_trace(model)
    assert torch.ops.tiled.linear.default in [node.target for node in traced.graph.nodes]
    x = torch.randn(2, 4)
    assert torch.equal(traced(x), model(x))


def test_override_leaves_them_to_pytorch():
    with torch_tiled.override():
        for call in (
            lambda: torch.matmul([1], [2]),
            lambda: torch.nn.functional.linear(None, None),
        ):
            with pytest.raises(TypeError):
                call()
