"""A new kernel is a file and a row: a toy one is added to a copy of the sources, and runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]

KERNEL = """
// toy on the CPU: sums descending in K.

#include "core/context.h"
#include "core/epilogue.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiled {

Plan toy_plan(const Problem& p, int64_t) {
  return {.m = 1, .n = 1, .blocks = p.m * p.n, .cycles = 1e12};
}

namespace cpu {

bool launch_toy(const Problem& p, const Plan&, const Context& context) {
  context.parallel_for(p.m * p.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* a = static_cast<const float*>(p.a.data) + i / p.n * p.a.row_stride;
      const auto* b = static_cast<const float*>(p.b.data) + i % p.n * p.b.col_stride;
      float sum = 0;
      for (int64_t k = p.k; k-- > 0;) sum += a[k * p.a.col_stride] * b[k * p.b.row_stride];
      store<float>(p, 0, i / p.n, i % p.n, sum);
    }
  });
  return true;
}

}  // namespace cpu
}  // namespace tiled
"""
ROW = "KERNEL(toy, toy, toy, .order = Order::kPlain, .dtypes = Dtypes::kFloat32)\n"

USE = """
import torch, torch_tiled
from torch_tiled._op.registry import kernels
torch.manual_seed(0)
a, b = torch.randn(5, 300), torch.randn(300, 7)
assert "toy" in torch_tiled.algorithms()
assert torch_tiled.explain(a, b, algorithm="toy").algorithm == "toy"
row = kernels()["toy"]
assert (row.order, row.dtypes, row.max_k) == ("plain", (torch.float32, torch.complex64), None)
torch.save(torch_tiled.matmul(a, b, algorithm="toy"), "product.pt")
assert torch_tiled.matmul(a.to("meta"), b.to("meta"), algorithm="toy").shape == (5, 7)
"""


def run(*command, cwd, **environment):
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_kernel_is_a_file_and_a_row(tmp_path):
    for name in ("csrc", "torch_tiled"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "csrc/cpu/toy.cpp").write_text(KERNEL)
    with (tmp_path / "csrc/select/kernels.def").open("a") as rows:
        rows.write(ROW)
    build = (sys.executable, "setup.py", "--quiet", "build_ext", "--inplace")
    run(*build, cwd=tmp_path, TORCH_TILED_CUDA="0")
    run(sys.executable, "-c", USE, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    torch.manual_seed(0)
    a, b = torch.randn(5, 300), torch.randn(300, 7)
    expected = torch.zeros(5, 7)
    for k in reversed(range(300)):
        expected += a[:, k, None] * b[k]
    assert torch.equal(torch.load(tmp_path / "product.pt"), expected)
