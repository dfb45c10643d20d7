"""Arguments of a wrong type, such as a list in place of a tensor, and the remedies of errors."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.converting import as_converted
from helpers.needs import needs_cuda
from helpers.reference import DTYPES, FLOATS_16BIT

import torch_tiled

NUMBERS = {"list": [[1.0, 2.0], [3.0, 4.0]], "tuple": (1, 2), "int": 3, "float": 0.5}


def remedies(name, dtype=torch.float32):
    """A value of each type that is no tensor, and what is said of it as argument `name`."""
    yield None, f"{name} is None; it must be a tensor"
    values = [
        (kind, value, f"torch.tensor({name}, dtype={dtype})") for kind, value in NUMBERS.items()
    ]
    values += [("list", [torch.zeros(2), torch.ones(2)], f"torch.stack({name})")]
    for kind, value, made in values:
        if name in ("c", "out"):
            remedy = f"make a tensor first, {name} = {made}, and pass that: it has the result"
        else:
            remedy = f"pass a tensor, such as {made}"
        yield value, f"{name} is of type {kind}; {remedy}"
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
    "a converted layer": ("x", lambda t, value: as_converted(torch.nn.Linear(2, 2))(value)),
    "a strict one": ("x", lambda t, value: as_converted(torch.nn.Linear(2, 2), strict=True)(value)),
}
OPS = {"a": "linear", "prepare": "prepare", "explain": "explain"}


def message(call, *args, **options):
    with pytest.raises(RuntimeError) as error:
        call(*args, **options)
    return str(error.value)


@pytest.mark.parametrize("of", ["cpu", "meta", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor(name, of):
    argument, call = CALLS[name]
    first = name.split()[0]
    op = OPS.get(first, first)
    t = torch.zeros(2, 2, device=of)
    alone = first == "prepare"  # no other operand has a dtype
    for value, sentence in remedies(argument, torch.float64 if alone else torch.float32):
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


RANGE = "is beyond the range of float64; pass a number between -1.79e308 and 1.79e308"
OPTIONS = {
    "algorithm is of type int; pass a string": lambda t: torch_tiled.matmul(t, t, algorithm=3),
    "precision is of type NoneType; pass a string": lambda t: torch_tiled.matmul(
        t, t, precision=None
    ),
    "out_dtype is of type str; pass a torch.dtype": lambda t: torch_tiled.matmul(
        t, t, out_dtype="float32"
    ),
    "alpha is of type str; pass a number": lambda t: torch_tiled.gemm_(t, t, t, alpha="2"),
    f"alpha {RANGE}": lambda t: torch_tiled.gemm_(t, t, t, alpha=10**400),
    f"beta {RANGE}": lambda t: torch_tiled.gemm_(t, t, t, alpha=2, beta=Fraction(-(10**400))),
    "activation is of type list; pass a string": lambda t: torch_tiled.linear(
        t, t, activation=["relu"]
    ),
    "sms is of type str; pass an integer": lambda t: torch_tiled.explain(t, t, sms="1"),
    "sms is 0; it must be at least 1": lambda t: torch_tiled.explain(
        t, t, compute_capability=90, sms=0
    ),
    "compute_capability is 0; it must be at least 80 (for 8.0)": lambda t: torch_tiled.explain(
        t, t, compute_capability=0, sms=132
    ),
}


@pytest.mark.parametrize("sentence", OPTIONS)
def test_options(sentence, device):
    text = message(OPTIONS[sentence], torch.zeros(2, 2, device=device))
    assert text.partition(": ")[2] == sentence


def test_what_is_no_module():
    for function in (
        torch_tiled.convert,
        torch_tiled.revert,
        torch_tiled.freeze,
        torch_tiled.refreeze,
        torch_tiled.unfreeze,
        torch_tiled.frozen_bytes,
        lambda model: torch_tiled.enabled(model).__enter__(),
    ):
        name = getattr(function, "__name__", "").replace("<lambda>", "enabled")
        for value in (3, None, torch.zeros(2, 2), torch.nn.Linear):
            sentence = f"model is of type {type(value).__name__}; pass a torch.nn.Module"
            assert message(function, value) == f"torch_tiled.{name}: {sentence}"


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_patterns_that_are_no_strings(option):
    for value in (3, ["0", 3]):
        text = message(torch_tiled.convert, torch.nn.Linear(2, 2), **{option: value})
        expected = (
            f"torch_tiled.convert: {option} has a pattern of type int; pass a string, or several"
        )
        assert text == expected


@pytest.mark.parametrize("option", ["activation", "precision", "algorithm"])
def test_names_that_a_layer_is_made_with(option):
    """The sentence came from the first call of the layer, far from the mistake."""
    t = torch.zeros(3, 3)
    sentence = message(torch_tiled.linear, t, t, **{option: "selu"})
    assert message(torch_tiled.nn.Linear, 3, 3, **{option: "selu"}) == sentence


def test_a_prepared_operand_in_the_wrong_place(device):
    t = torch.zeros(64, 64, device=device)
    prepared = torch_tiled.prepare(t)
    sentence = "tiled::matmul: a is of type Prepared; pass a.tensor, the unprepared operand"
    assert message(torch_tiled.matmul, prepared, t) == sentence


@pytest.mark.parametrize("convert", [False, True])
def test_compiled_code(convert, fresh_compiler):
    """Dynamo may put words of its own around the sentence, and no schema."""
    layer = as_converted(torch.nn.Linear(2, 2))
    function = layer if convert else lambda x: torch_tiled.linear(x, torch.zeros(2, 2))
    sentence = r"x is of type list; pass a tensor, such as torch.tensor\(x, dtype=torch.float32\)"
    with pytest.raises(Exception, match=sentence) as error:
        torch.compile(function, backend="eager", fullgraph=True)([1.0])
    assert "Declaration" not in str(error.value)


def test_a_tracer_s_values_stand_for_tensors():
    """torch.fx traces a converted model by values that are no tensors."""
    model = as_converted(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()))
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


# --- the remedy that an error proposes loses nothing, or says what it loses ----------------------


INTEGERS = [torch.int32, torch.int64, torch.uint32, torch.uint64]
NARROW = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float8_e4m3fn]


@pytest.fixture(params=["cpu", "cuda", "meta"])
def where(request):
    """A device, or meta, whose sentences are written in Python."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.mark.parametrize("dtype", INTEGERS + NARROW, ids=str)
def test_a_conversion_that_is_proposed_is_exact(dtype, where):
    x, y = torch.zeros(2, 2, dtype=dtype, device=where), torch.zeros(2, 2, device=where)
    text = message(torch_tiled.matmul, x, y)
    (proposed,) = re.findall(r"\.to\(torch\.(\w+)\)", text)
    wide = getattr(torch, proposed)
    if dtype in INTEGERS:
        largest = 2**53 if dtype.itemsize == 8 else torch.iinfo(dtype).max
        assert "exact for integers up to 2**53" in text
    elif dtype is torch.bool:
        largest = 1
    else:
        largest = (torch.iinfo if not dtype.is_floating_point else torch.finfo)(dtype).max
    assert torch.tensor(largest, dtype=torch.float64).to(wide).item() == largest


def test_complex_operands_of_half_precision(where):
    x = torch.zeros(2, 2, dtype=torch.complex32, device=where)
    y = torch.zeros(2, 2, device=where)
    for call in (
        lambda: torch_tiled.matmul(x, y),
        lambda: torch_tiled.matmul(y, x),
        lambda: torch_tiled.linear(y, y, x[0]),
        lambda: torch_tiled.gemm_(x, y, y),
        lambda: torch_tiled.prepare(x),
    ):
        text = message(call)
        assert "is torch.complex32; supported are" in text
        assert "convert it, for example with .to(torch.complex64)" in text


@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("y_dtype", DTYPES, ids=str)
def test_operands_of_two_dtypes(x_dtype, y_dtype, where):
    """The dtype that is proposed has all values of both, and is not one that rounds the other."""
    if x_dtype == y_dtype:
        pytest.skip("one dtype")
    x, y = (torch.zeros(2, 2, dtype=dtype, device=where) for dtype in (x_dtype, y_dtype))
    proposed = torch.promote_types(x_dtype, y_dtype)
    refusing = [torch_tiled.matmul, torch_tiled.linear, lambda x, y: torch_tiled.gemm_(y, x, x)]
    if torch.float32 in (x_dtype, y_dtype) and (x_dtype in FLOATS_16BIT or y_dtype in FLOATS_16BIT):
        assert [call(x, y).dtype for call in refusing[:2]] == [torch.float32] * 2
        refusing = refusing[2:] if x_dtype == torch.float32 else []
    for call in refusing:
        assert f"with .to({proposed}), which has all values of both" in message(call, x, y)


def test_written_tensors_that_are_copied(where):
    """The result is in the clone that was passed, and not in the tensor that it was made of."""
    if where == "meta":
        pytest.skip("meta tensors share no memory")
    memory = torch.zeros(16, device=where)
    a, b = memory[:4].view(2, 2), memory[4:8].view(2, 2)
    assert message(torch_tiled.matmul, a, b, out=a).endswith("shares memory with a; pass a.clone()")
    assert message(torch_tiled.gemm_, b, a, b).endswith("shares memory with b; pass b.clone()")
    twice = memory[8:9].expand(2, 2)
    text = message(torch_tiled.matmul, a, b, out=twice)
    assert text.endswith("such as its clone(), which then has the result")


def test_sums_that_would_be_rounded():
    x = torch.zeros(2, 2, dtype=torch.bfloat16)
    text = message(torch_tiled.matmul, x, x, out=x.clone(), out_dtype=torch.float32)
    assert "pass an out of torch.float32, or drop out_dtype, so that the result is rounded" in text


def test_parametrizations_are_kept():
    """remove_parametrizations() ends weight_norm or spectral_norm for good."""
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    assert "remove_parametrizations" not in torch_tiled.convert(layer).left[""]
    layer = as_converted(torch.nn.Linear(2, 2))
    torch.nn.utils.parametrizations.weight_norm(layer)
    text = message(torch_tiled.revert, layer)  # nothing else helps
    assert "remove_parametrizations" in text and "ends the parametrization for good" in text


def test_gradients_that_are_given_up():
    w = torch.zeros(64, 64, requires_grad=True)
    for call in (
        lambda: torch_tiled.gemm_(torch.zeros(64, 64), w, w),
        lambda: torch_tiled.matmul(w, torch_tiled.prepare(w)),
    ):
        assert "if no derivative is needed" in message(call)
