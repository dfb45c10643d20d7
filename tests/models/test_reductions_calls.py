"""Calls of reductions of a fixed order: autocast regions, dtypes and errors, beside PyTorch's."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.needs import needs_cuda
from helpers.overriding import region as in_region
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_tiled.nn import functional as ours

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Calls of a library's functions, for x (3, 4) and parameters (4,) of another dtype.
CALLS = {
    "softmax": lambda f, x, w: f.softmax(x, -1),
    "softmax to float16": lambda f, x, w: f.softmax(x, -1, dtype=torch.float16),
    "log_softmax": lambda f, x, w: f.log_softmax(x, 0),
    "logsumexp": lambda f, x, w: f.logsumexp(x, -1),
    "sum": lambda f, x, w: f.sum(x),
    "sum of rows": lambda f, x, w: f.sum(x, -1),
    "sum to bfloat16": lambda f, x, w: f.sum(x, -1, dtype=torch.bfloat16),
    "mean": lambda f, x, w: f.mean(x),
    "mean of rows": lambda f, x, w: f.mean(x, (1,)),
    "cumsum": lambda f, x, w: f.cumsum(x, 0),
    "cumsum to float16": lambda f, x, w: f.cumsum(x, -1, dtype=torch.float16),
    "layer_norm": lambda f, x, w: f.layer_norm(x, (4,), w, w),
    "layer_norm, bare": lambda f, x, w: f.layer_norm(x, (4,)),
    "rms_norm": lambda f, x, w: f.rms_norm(x, (4,), w),
    "group_norm": lambda f, x, w: f.group_norm(x, 2, w, w),
    "group_norm, bare": lambda f, x, w: f.group_norm(x, 2),
    "nll_loss": lambda f, x, w: f.nll_loss(x, classes(x)),
    "nll_loss, weighted": lambda f, x, w: f.nll_loss(x, classes(x), w, reduction="sum"),
    "cross_entropy": lambda f, x, w: f.cross_entropy(x, classes(x)),
    "cross_entropy, weighted": lambda f, x, w: f.cross_entropy(x, classes(x), w),
    "cross_entropy, smoothed": lambda f, x, w: f.cross_entropy(x, classes(x), label_smoothing=0.1),
    "cross_entropy of probabilities": lambda f, x, w: f.cross_entropy(x, torch.ones_like(x), w),
}


class Theirs:
    """PyTorch's functions by their names."""

    def __getattr__(self, name):
        return getattr(torch, name, None) or getattr(F, name)


def classes(x):
    return torch.zeros(3, dtype=torch.long, device=x.device)


def outcomes(call, functions, device):
    """The dtypes of results; "error" if a parameter's dtype is refused, or "unknown"."""
    found = {}
    for dtype, other in itertools.product(DTYPES, DTYPES):
        x = torch.ones(3, 4, dtype=dtype, device=device)
        try:
            result = call(functions, x, torch.ones(4, dtype=other, device=device))
            found[dtype, other] = result.dtype
        except RuntimeError as error:
            # A PyTorch without CUDA does not copy FakeTensors of it.
            is_known = "not linked with support" not in str(error)
            found[dtype, other] = "error" if is_known else "unknown"
    return found


REGIONS = pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)


@REGIONS
@pytest.mark.parametrize("name", CALLS)
def test_dtypes_are_pytorch_s(device, name, dtype):
    with in_region(device, dtype):
        found, expected = (outcomes(CALLS[name], f, device) for f in (ours, Theirs()))
    if device == "cuda" and "norm" in name:  # PyTorch refuses float32 parameters of 16-bit tensors
        found = {key: "error" if expected[key] == "error" else x for key, x in found.items()}
    assert found == expected


@REGIONS
@pytest.mark.parametrize("name", CALLS)
def test_dtypes_are_pytorch_s_on_a_gpu_that_is_not_there(name, dtype):
    """FakeTensors have the dtypes of CUDA tensors, by PyTorch's own list."""
    with FakeTensorMode(), in_region("cuda", dtype):
        found, expected = (outcomes(CALLS[name], f, "cuda") for f in (ours, Theirs()))
    # PyTorch's fake kernels refuse no parameter.
    differ = {k: (x, expected[k]) for k, x in found.items() if x not in (expected[k], "unknown")}
    assert all(x == "error" and k[0] != k[1] for k, (x, _) in differ.items()), differ


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "group_norm", "cross_entropy, weighted"])
def test_autocast_casts_before_it_computes(device, name):
    x, weight = torch.randn(3, 4, device=device).bfloat16(), torch.rand(4, device=device)
    casts = device == "cuda" or "entropy" in name
    with in_region(device, torch.bfloat16):
        found = CALLS[name](ours, x, weight.bfloat16())
    weight = weight.bfloat16()
    wide = (x.float(), weight.float()) if casts else (x, weight)
    assert torch.equal(found, CALLS[name](ours, *wide))


def test_autocast_in_compiled_code(device, fresh_compiler):
    x, weight = torch.randn(3, 4, device=device).bfloat16(), torch.ones(4, device=device)

    def results(x, weight):
        with torch.autocast(device, torch.bfloat16):
            return [call(ours, x, weight.bfloat16()) for call in CALLS.values()]

    expected = results(x, weight)
    found = torch.compile(results, backend="aot_eager", fullgraph=True)(x, weight)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


# --- errors --------------------------------------------------------------------------------------

X = torch.ones(2, 3)
IMAGES = torch.ones(2, 4, 3)
TARGET = torch.tensor([0, 2])
BAD = {
    TypeError: {
        "softmax([1.0], 0)": "softmax: input is of type list; pass a",
        "logsumexp(X, None)": "logsumexp: dim is None; pass tuple",
        "layer_norm(X, 3)": (
            "layer_norm: normalized_shape is 3; pass a tuple of the sizes of the last dimensions"
        ),
        "nll_loss(X, [0, 1])": "target is of type list",
    },
    RuntimeError: {
        "sum(X.cfloat())": (
            r"sum: input is torch.complex64; it must be .*: pass torch.view_as_real\(input\), its"
        ),
        "mean(X.int())": (
            r"mean: input is torch.int32; it must be torch.float32, .*: pass input.double\(\)"
        ),
        "softmax(X.to_sparse(), -1)": r"_row_softmax: x is a sparse tensor .*; use x.to_dense\(\)",
        "mean(X, (0, -2))": r"mean: dim is \(0, -2\), which names a dimension twice",
        "rms_norm(X, (2,))": (
            r"rms_norm: normalized_shape is \(2,\) and input is \(2, 3\); pass the sizes of its "
            r"last"
        ),
        "layer_norm(X, ())": r"normalized_shape is \(\) and",
        "layer_norm(X, (3,), torch.ones(2))": (
            r"layer_norm: weight is \(2,\) and normalized_shape is \(3,\); they must be equal"
        ),
        "layer_norm(X, (3,), torch.ones(3).double())": (
            "weight is torch.float64 and x is torch.float32; weight must have x's dtype"
        ),
        "group_norm(IMAGES, 2, None, torch.ones(4).half())": (
            "group_norm: bias is torch.float16 and input is torch.float32; pass both in one dtype"
        ),
        "group_norm(IMAGES, 3)": (
            r"group_norm: num_groups is 3 and input is \(2, 4, 3\); it must be a divisor of the 4 "
            r"chan"
        ),
        "group_norm(IMAGES, 0)": "num_groups is 0",
        "group_norm(X[0], 3)": r"input is \(3,\); it must be",
        "group_norm(IMAGES, 2, torch.ones(2))": (
            r"weight is \(2,\) and input is \(2, 4, 3\); weight must be \(4,\), a number for each "
            r"ch"
        ),
        "cross_entropy(X, TARGET.int())": (
            r"cross_entropy: target is torch.int32; pass classes, target.long\(\)"
        ),
        "cross_entropy(X, X.long())": (
            r"target is torch.int64 in input's shape, \(2, 3\); pass probabilities, "
            r"target.to\(input"
        ),
        "cross_entropy(X, X, ignore_index=1)": (
            "ignore_index is 1 and target has probabilities, of which none is ignored; leave it out"
        ),
        "cross_entropy(X, TARGET, label_smoothing=2)": (
            "label_smoothing is 2; pass a number from 0 to 1"
        ),
        "nll_loss(X, TARGET, torch.ones(2))": (
            r"nll_loss: weight is \(2,\); it must be \(3,\), a number for each class"
        ),
        "nll_loss(X, TARGET, torch.ones(3).double())": (
            "weight is torch.float64 and input is torch.float32; pass both in one dtype"
        ),
        "cross_entropy(X, TARGET, torch.ones(3, requires_grad=True))": (
            r"weight requires grad, and it has no derivative; pass weight.detach\(\)"
        ),
        "selective_log_softmax(X, TARGET.int())": (
            r"selective_log_softmax: index is torch.int32; pass index.long\(\)"
        ),
        "selective_log_softmax(TARGET, TARGET)": "selective_log_softmax: logits is torch.int64",
    },
    IndexError: {
        "softmax(X, 2)": "softmax: dim is 2, and input has 2 dimensions; pass a dim from -2 to 1",
        "sum(X[0, 0], 1)": "dim is 1, and input has 0 dimensions; pass a dim from -1 to 0",
        "nll_loss(X, TARGET + 1)": "nll_loss: target has 3, and there are 3 classes; pass 0 to 2",
        "cross_entropy(X, TARGET - 1)": "cross_entropy: target has -1",
        "selective_log_softmax(X, TARGET + 1)": (
            "selective_log_softmax: index has 3, and there are 3 classes"
        ),
    },
    ValueError: {
        "group_norm(X[:1], 3)": (
            r"input is \(1, 3\) and num_groups is 3; a group must have more than one number"
        ),
        "nll_loss(IMAGES, TARGET)": (
            r"input is \(2, 4, 3\) and target is \(2,\); target must be \(2, 3\), input's shape "
            r"withou"
        ),
        "nll_loss(X, TARGET, reduction='max')": (
            'nll_loss: reduction is \'max\'; pass "none", "sum" or "mean"'
        ),
        "nll_loss(X[0, 0], TARGET[0])": r"input is \(\)",
        "selective_log_softmax(X, TARGET[:1])": (
            r"logits is \(2, 3\) and index is \(1,\); index must have the dimensions of logits but"
        ),
    },
}
CASES = [(kind, *each) for kind, calls in BAD.items() for each in calls.items()]


@pytest.mark.parametrize("kind, code, sentence", CASES)
def test_errors(kind, code, sentence):
    with pytest.raises(kind, match=sentence):
        eval(code, globals() | vars(ours))


@needs_cuda
def test_two_devices():
    with pytest.raises(RuntimeError, match="weight is on cpu and x is on cuda:0"):
        ours.layer_norm(X.cuda(), (3,), torch.ones(3))
