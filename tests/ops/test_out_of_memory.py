"""Situation: PyTorch's own product ran out of memory for a temporary, and the error was the source
text of a macro with the path of a build."""

import pytest
import torch

import torch_tiled

HUGE = 1 << 44  # elements of a temporary that no memory holds


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the ABI of torch before 2.13 has no text")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temporaries_of_torch_on_a_cpu(dtype):
    a = torch.zeros(1, 1, dtype=dtype).expand(2, HUGE)
    c = torch.zeros(2, 2, dtype=dtype)
    calls = {
        "matmul": lambda: torch_tiled.matmul(a, a.mT),
        "linear": lambda: torch_tiled.linear(a, a),
        "gemm_": lambda: torch_tiled.gemm_(c, a, a.mT),
    }
    for name, call in calls.items():
        with pytest.raises(torch.OutOfMemoryError) as raised:
            call()
        assert str(raised.value).startswith(f"tiled::{name}: out of memory: ")
        assert "bytes" in str(raised.value)
        assert '.cpp", line' not in str(raised.value)
