"""Plans of products without elements, which no kernel computes."""

import itertools

import pytest
import torch
from helpers.reference import takes

import torch_tiled

GPUS = [{"compute_capability": 80, "sms": 108}, {"compute_capability": 90, "sms": 132}, {}]
KINDS = {
    torch.float32: [
        x for x in torch_tiled.algorithms() if takes(x, torch.float32, precision="tf32")
    ],
    torch.complex64: ["naive", "tiled", "simt", "fp16x3"],
    torch.float64: ["naive", "tiled", "f64"],
    torch.bfloat16: ["naive", "tiled", "mma"],
}


@pytest.mark.parametrize("gpu", GPUS, ids=str)
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_explain_answers_where_sides_are_zero(dtype, gpu):
    for m, n, k, batch in itertools.product((0, 5), (0, 5), (0, 7, 512, 4099), ((), (2,), (0,))):
        if m and n and k and 0 not in batch:
            continue
        a = torch.empty(*batch, m, k, dtype=dtype)
        b = torch.empty(*batch, k, n, dtype=dtype)
        for algorithm in ("auto", *KINDS[dtype]):
            try:
                found = torch_tiled.explain(a, b, algorithm=algorithm, **gpu)
            except RuntimeError as error:  # a kernel of another GPU, or for other shapes
                assert algorithm in str(error)
            else:
                assert found.algorithm


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_streamed_plans_answer_where_sides_are_zero(dtype):
    for m, n, k in itertools.product((0, 5), (0, 5), (0, 512, 4099)):
        a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
        plan = torch_tiled.stream.plan(a, b, devices="cpu", max_device_bytes=1 << 30)
        assert plan.shape == (1, m, n, k)
