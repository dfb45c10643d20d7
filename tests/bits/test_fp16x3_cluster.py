"""fp16x3_cluster on a GPU: every way of copying operands, batches, and any number of chunks."""

import pytest
import torch
from helpers.needs import needs_hopper
from helpers.operands import LAYOUTS, in_layout
from helpers.reference import assert_same

import torch_tiled

# Operands as fp16x3_cluster copies them: rows in bulk, elements along K, elements along rows, and
# rows of which only some begin at a multiple of 16 bytes.
COPIES = {
    "bulk": lambda x: x,
    "along K": lambda x: torch.cat([x[:, :1], x], 1)[:, 1:],
    "along rows": lambda x: x.mT.contiguous().mT,
    "along shifted rows": lambda x: torch.cat([x[:1], x]).mT.contiguous().mT[1:],
    "strided": lambda x: x.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
}


@needs_hopper
@pytest.mark.parametrize("copy_of_b", COPIES)
@pytest.mark.parametrize("copy_of_a", COPIES)
@pytest.mark.parametrize(
    "k", [128, 129, 191, 192, 196, 511, 1020, 1024, 1025, 3000, 8189, 8192, 17000]
)
def test_host_and_cluster_agree(k, copy_of_a, copy_of_b):
    """A wrong place of an element in shared memory, or a row that is split before it is there."""
    for i, m in enumerate([1, 2, 15, 16, 17, 31, 32, 33, 65, 129]):
        n = [129, 1, 33, 7, 8, 9, 257, 16, 31, 300][(3 * i + k // 4) % 10]
        scales = torch.exp(i * torch.randn(m, 1)) if i % 2 else 1
        a, b = torch.randn(m, k) * scales, torch.randn(n, k)
        a[m // 2, k // 2] = [0.0, 1e30, torch.inf, 1e-42, 1][i % 5]
        a, b = COPIES[copy_of_a](a.cuda()), COPIES[copy_of_b](b.cuda()).mT
        expected = torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma")
        if (copy_of_a, copy_of_b) == ("bulk", "bulk") and k < 17000:
            host = torch_tiled.matmul(a.cpu(), b.cpu(), algorithm="fp16x3")
            assert_same(expected.cpu(), host)
        for _ in range(3):  # a race may show in one call only
            assert_same(torch_tiled.matmul(a, b, algorithm="fp16x3_cluster"), expected)


@needs_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [128, 164, 445, 1023, 1880, 5570, 8200, 20001])
@pytest.mark.parametrize("m, n", [(1, 1), (1, 70), (7, 5), (33, 2), (9, 40), (50, 33)])
def test_batches_by_clusters(m, n, k, layout):
    """Where matrices are many, a block sums all chunks itself; else a cluster, eight at a time."""
    for batch in ((3,), (2, 1, 150)):
        a = in_layout(torch.randn(*batch, m, k, device="cuda"), layout[0])
        b = in_layout(torch.randn(batch[-1], k, n, device="cuda"), layout[1])
        expected = torch_tiled.matmul(a, b, algorithm="fp16x3_wgmma")
        out = torch.full_like(expected, torch.nan)
        assert_same(torch_tiled.matmul(a, b, algorithm="fp16x3_cluster", out=out), expected)
