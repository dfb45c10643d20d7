"""Results and temporaries that no memory holds: a sentence, and a process that goes on."""

import pytest
import torch
from helpers.bad_calls import assert_raises, assert_still_multiplies, each_api
from helpers.needs import needs_cuda
from helpers.reference import takes

import torch_tiled


def expanded(device, rows, cols, dtype=torch.float32):
    """The operands of a (rows, cols) product, which themselves take no memory."""
    one = torch.ones(1, 1, dtype=dtype, device=device)
    return one.expand(rows, 1), one.expand(1, cols)


@each_api
@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
def test_result_of_more_bytes_than_can_be_counted(device, api, algorithm):
    a, b = expanded(device, 2**40, 2**40)
    shape = "(1099511627776, 1099511627776)"
    sentence = f"the result would be {shape}, more bytes than 63 bits can count"
    assert_raises(f"tiled::matmul: {sentence}", api.matmul, a, b, algorithm=algorithm)
    assert_raises(f"tiled::linear: {sentence}", api.linear, a, b.mT, algorithm=algorithm)
    assert_still_multiplies(device)


@each_api
@pytest.mark.parametrize("algorithm", [*torch_tiled.algorithms(), "auto"])
def test_out_of_memory(device, api, algorithm):
    for dtype, size in ((torch.float32, 2**60), (torch.bfloat16, 2**59)):
        if not takes(algorithm, dtype, device):
            continue
        a, b = expanded(device, 2**30, 2**28, dtype)
        sentence = (
            f"out of memory: the result (1073741824, 268435456) of {dtype} needs {size} bytes on "
            f"{a.device}"
        )
        for op, call, x, y in (("matmul", api.matmul, a, b), ("linear", api.linear, a, b.mT)):
            assert_raises(
                f"tiled::{op}: {sentence}",
                call,
                x,
                y,
                kind=torch.OutOfMemoryError,
                algorithm=algorithm,
            )
    assert a[0, 0] == 1 and b[0, 0] == 1
    assert_still_multiplies(device)


@each_api
@pytest.mark.parametrize("requires_grad", [False, True])
def test_out_of_memory_where_gradients_are_wanted_or_ruled_out(device, api, requires_grad):
    a, b = expanded(device, 2**30, 2**28)
    a.requires_grad_(requires_grad)
    needed = f"needs {2**60} bytes"
    with pytest.raises(torch.OutOfMemoryError, match=needed):
        api.matmul(a, b)
    with torch.inference_mode(), pytest.raises(torch.OutOfMemoryError, match=needed):
        torch_tiled.matmul(a, b)
    assert torch.equal(api.matmul(a[:8], b[:, :8]).detach(), b.new_ones(8, 8))


@needs_cuda
@pytest.mark.parametrize("algorithm", torch_tiled.algorithms())
def test_out_of_the_memory_that_a_gpu_has(algorithm):
    if not takes(algorithm, torch.float32, "cuda"):
        pytest.skip("the algorithm needs another GPU")
    rows = torch.cuda.get_device_properties("cuda").total_memory // 2**20 + 1
    a, b = expanded("cuda", rows, 2**18)  # rows of a mebibyte
    assert_raises(
        f"tiled::matmul: out of memory: the result ({rows}, 262144) of torch.float32 needs "
        f"{rows * 2**20} bytes on cuda:0",
        torch_tiled.matmul,
        a,
        b,
        kind=torch.OutOfMemoryError,
        algorithm=algorithm,
    )
    assert_still_multiplies("cuda")


HUGE = 1 << 44  # elements of a temporary that no memory holds


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the ABI of torch before 2.13 has no text")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temporaries_of_torch_on_a_cpu(dtype):
    """The error of PyTorch's own product was the source text of a macro, with a path."""
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
