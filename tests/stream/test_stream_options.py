"""Bad options of torch_tiled.stream are sentences that name the values and the remedy."""

import numpy as np
import pytest
import torch
from helpers.needs import needs_cuda
from helpers.streaming import cases, sentence_of

import torch_tiled

X = torch.zeros(3, 4)
Y = torch.zeros(4, 5)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")

# A name, the options, and parts of the sentence.
BAD_OPTIONS = [
    ("algorithm", {"algorithm": "magic"}, ['no algorithm "magic"', "choose auto"]),
    ("algorithm of a type", {"algorithm": None}, ['no algorithm "None"', "choose auto"]),
    ("algorithm of a list", {"algorithm": ["auto"]}, ["no algorithm", "choose auto"]),
    ("precision", {"precision": "fp8"}, ['no precision "fp8"', "choose fp32, ieee or tf32"]),
    ("precision of a type", {"precision": 32}, ['no precision "32"', "choose fp32"]),
    ("mma", {"algorithm": "mma"}, ['"mma" takes float16 and bfloat16', "choose auto"]),
    ("f64", {"algorithm": "f64_mma"}, ['"f64_mma" takes float64', "choose auto"]),
    ("tf32", {"algorithm": "tf32"}, ["tf32", "choose auto, or precision tf32"]),
    ("ieee", {"algorithm": "fp16x3", "precision": "ieee"}, ["fp16x3", "ieee", "choose auto"]),
]
# Whatever devices are there, and with the remedy of each.
NOT_POSITIVE = [0, -1, -(2**40), np.int64(0), torch.tensor(-3)]
NO_NUMBERS = [
    True,
    np.True_,
    1.5,
    16e9,
    "16GiB",
    [1],
    np.ones(3),
    float("nan"),
    float("inf"),
    object,
]
NO_DEVICES = [
    *("gpu", "", "cuda:x", "cuda:-1", "cuda:1000", f"cuda:{2**40}", b"cuda", 1.5, object, True),
    *(-1, 200, 2**40, np.int64(-1), np.True_, np.zeros(2), {0}, {1.5}, {"cuda": 0}, iter("ab")),
    *([None], [["cuda"]], [0, -5], [0, 200], [False], [b"cuda"], ["cuda", ""], (0, None)),
]
BAD_DEVICES = [
    ("empty", [], "devices is empty; name a GPU, or pass None"),
    ("empty tuple", (), "devices is empty; name a GPU, or pass None"),
    ("cpu and cuda", ["cpu", "cuda:0"], "devices has cpu; each must be a CUDA device"),
    ("cuda and cpu", ["cuda:0", "cpu"], "devices has "),
    ("the CPU twice", ["cpu", "cpu"], "devices has cpu; each must be a CUDA device"),
    ("meta", "meta", "devices has meta; each must be a CUDA device, or the CPU alone"),
    ("other kinds", ["xpu"], "devices has xpu; each must be a CUDA device, or the CPU alone"),
    ("beyond those here", 127, "devices has cuda:127, which is not here; pass "),
    ("a device that wrapped", torch.device("cuda", 200), "devices has cuda:-56, which is not here"),
]
both_calls = pytest.mark.parametrize(
    "call", [torch_tiled.stream.matmul, torch_tiled.stream.plan], ids=["matmul", "plan"]
)


def in_one_line(value):
    return " ".join(repr(value).split())


@pytest.mark.parametrize("options, parts", cases(BAD_OPTIONS))
def test_bad_options(options, parts):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, **options)
    assert [part for part in parts if part not in text] == [], text
    plan = {"max_device_bytes": 1 << 30}
    assert sentence_of(torch_tiled.stream.plan, X, Y, **options, **plan) == text


@both_calls
@pytest.mark.parametrize("value", NOT_POSITIVE, ids=str)
def test_bytes_that_are_not_positive(value, call):
    text = sentence_of(call, X, Y, max_device_bytes=value)
    assert text == f"max_device_bytes is {int(value)}; it must be positive"


@both_calls
@pytest.mark.parametrize("value", NO_NUMBERS, ids=str)
def test_bytes_that_are_no_whole_number(value, call):
    assert sentence_of(call, X, Y, max_device_bytes=value) == (
        f"max_device_bytes is {in_one_line(value)}; pass a whole number of bytes, such as int(16e9)"
    )


@pytest.mark.parametrize("kind", [int, np.int32, np.uint64, torch.tensor])
def test_bytes_of_any_integer_type(kind):
    plan = torch_tiled.stream.plan(X, Y, devices="cpu", max_device_bytes=kind(1 << 30))
    assert plan == torch_tiled.stream.plan(X, Y, devices="cpu", max_device_bytes=1 << 30)


@both_calls
@pytest.mark.parametrize("devices, begin", cases(BAD_DEVICES))
def test_bad_devices(devices, begin, call):
    text = sentence_of(call, X, Y, devices=devices, max_device_bytes=1 << 30)
    assert text.startswith(begin)


@both_calls
@pytest.mark.parametrize("devices", NO_DEVICES)
def test_what_names_no_devices(devices, call):
    text = sentence_of(call, X, Y, devices=devices, max_device_bytes=1 << 30)
    begin = f"devices is {in_one_line(devices)}, which names no devices; "
    gpus = torch.cuda.device_count()
    remedy = f'pass "cpu", or one or a list of the {gpus} GPUs here, such as 0 or "cuda:0"'
    assert text == begin + (remedy if gpus else 'pass "cpu" or None, since there is no GPU here')


@no_gpu
@pytest.mark.parametrize(
    "devices", ["cuda", "cuda:0", ["cuda:0", "cuda:1"], 0, np.int64(0), [torch.device("cuda")]]
)
def test_devices_that_are_not_there(devices):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, devices=devices)
    assert text.startswith("devices has cuda") and "no GPU here" in text


@pytest.mark.parametrize("progress", ["x", "", 1, 0, np.True_, [], object()])
def test_progress_that_is_no_function(progress):
    text = sentence_of(torch_tiled.stream.matmul, X, Y, progress=progress)
    remedy = "pass True, False or a function of a Progress"
    assert text == f"progress is {in_one_line(progress)}; {remedy}"


@pytest.mark.parametrize("progress", [None, False, True, lambda progress: None, print, str])
def test_progress_that_is_taken(progress, capsys):
    torch_tiled.stream.matmul(X, Y, devices="cpu", progress=progress)


def test_a_call_within_a_call_has_its_own_name():
    def nested(progress):
        torch_tiled.stream.plan(X, Y, max_device_bytes=0)

    with pytest.raises(RuntimeError, match="^torch_tiled.stream.plan: max_device_bytes is 0"):
        torch_tiled.stream.matmul(X, Y, devices="cpu", progress=nested)


@needs_cuda
def test_a_device_that_is_named_twice():
    text = sentence_of(torch_tiled.stream.matmul, X, Y, devices=["cuda:0", "cuda:0"])
    assert text == "devices names a GPU twice: cuda:0, cuda:0"


@no_gpu
def test_a_plan_without_a_gpu_needs_bytes():
    text = sentence_of(torch_tiled.stream.plan, X, Y)
    assert text == "there is no GPU whose memory counts; pass max_device_bytes"


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_bar_without_stderr(is_closed, tmp_path, monkeypatch):
    """Processes without a console have none, and draw nothing."""
    file = open(tmp_path / "closed", "w") if is_closed else None
    if is_closed:
        file.close()
    monkeypatch.setattr("sys.stderr", file)
    x = torch.randn(5, 5)
    assert torch_tiled.stream.matmul(x, x, progress=True).shape == (5, 5)
