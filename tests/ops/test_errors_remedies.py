"""The remedy that an error proposes loses nothing, or says what it loses."""

import re

import pytest
import torch
from helpers.reference import DTYPES

import torch_tiled

INTEGERS = [torch.int32, torch.int64, torch.uint32, torch.uint64]
NARROW = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float8_e4m3fn]


def message(call, *args, **options):
    with pytest.raises(RuntimeError) as error:
        call(*args, **options)
    return str(error.value)


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
    for call in (torch_tiled.matmul, torch_tiled.linear, lambda x, y: torch_tiled.gemm_(y, x, x)):
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
    prepared = torch_tiled.prepare(x)
    text = message(torch_tiled.matmul, x, prepared, out_dtype=torch.float32)
    assert text.endswith("pass b.tensor, the unprepared operand")


def test_parametrizations_are_kept():
    """remove_parametrizations() ends weight_norm or spectral_norm for good."""
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    assert "remove_parametrizations" not in torch_tiled.convert(layer).left[""]
    layer = torch.nn.Linear(2, 2)
    torch_tiled.convert(layer)
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
