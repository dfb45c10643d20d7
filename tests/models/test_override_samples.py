"""PyTorch's own samples and errors of the functions that torch_tiled.override takes over."""

import pytest
import torch
from helpers.reference import DTYPES, assert_within, rounded_bound
from helpers.samples import op_db, widened
from torch.testing import assert_close

import torch_tiled

OPS = ("matmul", "__rmatmul__", "mm", "bmm", "mv", "inner", "addmm", "addbmm", "baddbmm", "addmv")
OPS += ("einsum", "nn.functional.linear", "linalg.multi_dot")
# The order of a sum shows in these dtypes.
ROUNDED = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
@pytest.mark.parametrize("op", [x for x in op_db if x.name in OPS], ids=lambda x: x.formatted_name)
def test_pytorch_s_own_samples(op, dtype, device):
    if dtype not in op.supported_dtypes(device):
        pytest.skip("PyTorch does not multiply these")
    for variant in (op.op, op.method_variant, op.inplace_variant):
        if variant is None:
            continue
        for sample in op.sample_inputs(device, dtype):

            def run(sample, variant=variant):
                first = sample.input
                if variant is op.inplace_variant:
                    first = first.clone()
                return variant(first, *sample.args, **sample.kwargs)

            if variant is op.inplace_variant and sample.broadcasts_input:
                continue
            expected = run(sample)
            with torch_tiled.override():
                result = run(sample)
            assert result.shape == expected.shape and result.dtype == expected.dtype
            if dtype not in ROUNDED or torch.equal(result, expected):  # PyTorch computed it
                assert_close(result, expected)
            else:
                exact, size = run(widened(sample)), run(widened(sample, torch.abs))
                # There are two products at most; a sum is rounded with its product. A complex
                # product adds two real ones to each part.
                if dtype.is_complex:
                    limit = rounded_bound(exact, size, 2 * 64, 2, torch.float32).unsqueeze(-1)
                else:
                    limit = rounded_bound(exact, size, 64, 2, dtype)
                assert_within(result, exact, limit)


@pytest.mark.parametrize(
    "name", ["mm", "bmm", "mv", "matmul", "inner", "addmm", "addbmm", "baddbmm"]
)
def test_pytorch_s_own_errors(name, device):
    op = next(x for x in op_db if x.name == name)
    if op.error_inputs_func is None:
        pytest.skip("it has none")
    for error in op.error_inputs(device):
        sample = error.sample_input
        with torch_tiled.override(), pytest.raises(error.error_type):
            op(sample.input, *sample.args, **sample.kwargs)
