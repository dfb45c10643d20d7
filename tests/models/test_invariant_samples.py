"""PyTorch's own samples of the functions that torch_tiled.invariant takes over."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.overriding import region
from helpers.reference import assert_within, rounded_bound
from helpers.samples import op_db, widened
from helpers.thinning import fewer, pairwise
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from torch_tiled import invariant
from torch_tiled._invariant_reductions import _LOSSES
from torch_tiled._invariant_routes import INSIDE, INVARIANT_ROUTES

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64]
REPLACED = {*INVARIANT_ROUTES, *INSIDE, torch.Tensor.norm}
OPS = [op for op in op_db if {op.op, op.method_variant, op.inplace_variant} & REPLACED]
# Sums of products, of which the magnitudes bound the error.
PRODUCTS = {F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, torch.tensordot, torch.inner}
PRODUCTS |= {torch.mm, torch.bmm, torch.mv, torch.matmul, torch.dot, torch.vdot, torch.addmm}
PRODUCTS |= {
    torch.addbmm,
    torch.baddbmm,
    torch.addmv,
    torch.linalg.vecdot,
    torch.Tensor.__rmatmul__,
}


def tensors_of(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def assert_is_sum_of_terms(loss, found, sample):
    """Asserts that a loss is the sum of PyTorch's terms, but for at most 30 roundings of each."""
    terms = loss(sample.input, *sample.args, **{**sample.kwargs, "reduction": "none"})
    rows = terms.shape[0] if terms.dim() else 1
    counts = {"sum": 1, "batchmean": rows, "mean": terms.numel()}
    count = counts[sample.kwargs.get("reduction", "mean")]
    exact = terms.double().sum() / count
    u = torch.finfo(torch.float64 if terms.dtype == torch.float64 else torch.float32).eps
    limit = 31 * u * terms.double().abs().sum() / count
    limit = limit + torch.finfo(found.dtype).eps * (exact.abs() + limit)
    assert_within(found.double(), exact, limit)


def assert_is_rounded(op, found, expected, exact, run, sample):
    """Asserts that a result is as near to float64's as PyTorch's tests allow."""
    if not (expected.is_floating_point() or expected.is_complex()):
        assert torch.equal(found, expected)
    elif op.op in PRODUCTS:
        size = run(widened(sample, torch.abs))
        if expected.is_complex():
            limit = rounded_bound(exact, size, 2 * 512, 2, torch.float32).unsqueeze(-1)
        else:
            limit = rounded_bound(exact, size, 512, 2, expected.dtype)
        assert_within(found, exact, limit)
    elif op.op in _LOSSES and sample.kwargs.get("reduction") != "none":
        assert_is_sum_of_terms(op.op, found, sample)
    else:
        # Sixteen-bit terms are rounded, too, so that small results of large ones err by more.
        sizes = [x.abs().max().item() for x in (exact, sample.input) if x.numel()]
        largest = max(sizes, default=0)
        limits = {"rtol": 0.016, "atol": 4 * torch.finfo(found.dtype).eps * largest}
        options = limits if found.dtype == torch.bfloat16 and math.isfinite(largest) else {}
        wide = exact if options else exact.to(found.dtype)
        assert_close(found.to(wide.dtype), wide, equal_nan=True, **options)


@pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS, ids=lambda x: x.formatted_name)
def test_pytorch_s_own_samples(op, dtype, device):
    if dtype not in op.supported_dtypes(device):
        pytest.skip("PyTorch does not compute these")
    samples = [*op.sample_inputs(device, dtype)]
    for sample in samples[:: 1 + len(samples) // fewer(len(samples) + 1, 12)]:
        if op.op is F.rms_norm and sample.kwargs.get("eps") is None:  # by default the dtype's
            sample.kwargs["eps"] = 1e-6
        for variant in {op.op, op.method_variant} - {None}:

            def run(sample, variant=variant):
                return variant(sample.input, *sample.args, **sample.kwargs)

            expected, exact = run(sample), run(widened(sample))
            with invariant():
                result = run(sample)
            results = map(tensors_of, (result, expected, exact))
            for found, wanted, wide in zip(*results, strict=True):
                assert found.shape == wanted.shape and found.dtype == wanted.dtype
                assert_is_rounded(op, found, wanted, wide, run, sample)


@pytest.mark.parametrize("op", OPS, ids=lambda x: x.formatted_name)
def test_pytorch_s_own_errors(op, device):
    if op.error_inputs_func is None:
        pytest.skip("it has none")
    for error in op.error_inputs(device):
        sample = error.sample_input
        with invariant(), pytest.raises((error.error_type, RuntimeError, IndexError, TypeError)):
            op(sample.input, *sample.args, **sample.kwargs)


OUT = {
    "sum": (torch.sum, (1,)),
    "mean": (torch.mean, (1,)),
    "softmax": (torch.softmax, (1,)),
    "log_softmax": (torch.log_softmax, (1,)),
    "logsumexp": (torch.logsumexp, (1,)),
    "var": (torch.var, (1,)),
    "norm": (torch.norm, (2, 1)),
    "vector_norm": (torch.linalg.vector_norm, (2, 1)),
    "nansum": (torch.nansum, (1,)),
    "cumsum": (torch.cumsum, (1,)),
}


@pytest.mark.parametrize("name", OUT)
def test_out(name, device):
    function, args = OUT[name]
    x = torch.randn(4, 300, device=device)
    with invariant(strict=True):
        expected = function(x, *args)
        for out in (torch.empty_like(expected), x.new_empty(0)):
            assert function(x, *args, out=out) is out
            assert torch.equal(out, expected)
    if "softmax" not in name:  # which PyTorch takes, without a gradient
        with pytest.raises(RuntimeError, match="automatic differentiation"), invariant():
            function(x.requires_grad_(), *args, out=torch.empty_like(expected))


def test_other_names_of_arguments(device):
    x = torch.randn(4, 300, device=device)
    with invariant(strict=True):
        expected = x.sum(1, keepdim=True)
        assert torch.equal(torch.sum(x, axis=1, keepdims=True), expected)
        assert torch.equal(torch.sum(input=x, dim=1, keepdim=True), expected)
        assert torch.equal(torch.softmax(input=x, dim=1), x.softmax(1))
        assert torch.equal(x.half().softmax(1, torch.float32), x.half().float().softmax(1))
        assert x.long().sum(1, dtype=torch.float32).dtype == torch.float32
        assert torch.equal(x.clone().cumsum_(1), x.cumsum(1))
        assert torch.equal(torch.sum(torch.complex(x, x), 1).real, x.sum(1))
        assert x.sum() == x.flatten().sum(0) and x.sum(()).shape == ()


@pytest.mark.parametrize("function", [torch.std, torch.norm, F.normalize], ids=lambda f: f.__name__)
def test_lengths_of_zero_have_pytorch_s_gradients(function, device):
    grads = []
    for context in (torch.enable_grad(), invariant(strict=True)):
        x = torch.zeros(3, 5, device=device, dtype=torch.float64, requires_grad=True)
        with context:
            y = function(x, dim=1)
        grads += torch.autograd.grad(y.sum(), x)
    assert_close(*grads)


# --- Autocast regions ----------------------------------------------------------------------------

AUTOCAST = {
    "norm": lambda x: x.norm(dim=1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "normalize": lambda x: F.normalize(x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.float()),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x),
    "std": lambda x: x.std(1),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(1),
    "trace": lambda x: x[0].trace(),
    "sum_to_size": lambda x: x.sum_to_size(1, 8, 32),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 1),
    "instance_norm": lambda x: F.instance_norm(x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="batchmean"),
    "dot": lambda x: torch.dot(x[0, 0], x[0, 0]),
    "vdot": lambda x: torch.vdot(x[0, 0], x[0, 0]),
    "vecdot": lambda x: torch.linalg.vecdot(x, x),
    "inner": lambda x: torch.inner(x[0, 0], x[0, 0]),
    "tensordot": lambda x: torch.tensordot(x, x, ([1, 2], [1, 2])),
    "tensordot of all": lambda x: torch.tensordot(x, x, 3),
    "bilinear": lambda x: F.bilinear(x, x, x.new_ones(2, 32, 32)),
    "conv1d": lambda x: F.conv1d(x, x.new_ones(4, 8, 3)),
    "triplet": lambda x: F.triplet_margin_with_distance_loss(x, x, x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", "a fake cuda"])
@pytest.mark.parametrize("name", AUTOCAST)
def test_dtypes_in_autocast_regions_are_pytorch_s(name, device, dtype):
    """FakeTensors have the dtypes of CUDA tensors, by PyTorch's own list."""
    function, is_fake = AUTOCAST[name], device != "cpu"
    device = device.split()[-1]
    with FakeTensorMode() if is_fake else contextlib.nullcontext(), region(device, torch.bfloat16):
        x = torch.ones(4, 8, 32, dtype=dtype, device=device)
        try:
            expected = function(x).dtype
            with invariant():
                found = function(x).dtype
        except RuntimeError as error:
            if "not linked with support for cuda" in str(error):
                pytest.skip("this build of PyTorch copies no FakeTensor of CUDA")
            raise
        assert found == expected
