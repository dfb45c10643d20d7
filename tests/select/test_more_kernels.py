"""Kernels of a folder outside csrc: examples/hopper_kernel is built with the library and called."""

import os
import shutil
import sys

import pytest
from helpers.packaging import ROOT, python, run

FOLDER = ROOT / "examples" / "hopper_kernel"

USE = """
import torch, torch_tiled
a, b = torch.randn(70, 9000).bfloat16(), torch.randn(9000, 5).bfloat16()
by_name = torch_tiled.matmul(a, b, algorithm="wgmma_minimal")
assert torch.equal(by_name, torch_tiled.matmul(a, b, algorithm="mma"))
def plan(algorithm):
    return torch_tiled.explain(
        a, b, algorithm=algorithm, compute_capability=90, sms=132
    ).algorithm
assert plan("wgmma_minimal") == "wgmma_minimal" and plan("auto") != "wgmma_minimal"
a, b = torch.empty(70, 0).bfloat16(), torch.empty(0, 5).bfloat16()
assert plan("auto") != "wgmma_minimal"
if torch.cuda.is_available():
    on_gpu = torch_tiled.matmul(a.cuda(), b.cuda(), algorithm="wgmma_minimal")
    assert torch.equal(on_gpu.cpu(), by_name)
print("equal bits")
"""


def build(folder, target, **environment):
    command = ("setup.py", "--quiet", "build_ext", "--build-lib", target)
    return run(sys.executable, *command, TORCH_TILED_KERNELS=str(folder), **environment)


@pytest.mark.skipif(
    not (ROOT / "build/objects").exists()
    or not (shutil.which("nvcc") or os.environ.get("CUDA_HOME")),
    reason="needs nvcc, and the library's object files",
)
def test_the_example_is_built_with_the_library_and_has_the_bits_of_its_order(tmp_path):
    done = build(FOLDER, tmp_path)
    assert done.returncode == 0, done.stdout
    ignore = shutil.ignore_patterns("*.so", "*.json", "__pycache__")
    shutil.copytree(
        ROOT / "torch_tiled", tmp_path / "torch_tiled", ignore=ignore, dirs_exist_ok=True
    )
    assert python(USE, cwd=tmp_path, PYTHONPATH=str(tmp_path)) == "equal bits\n"


@pytest.mark.parametrize("cuda", ["auto", "0"])
def test_a_folder_without_kernels_is_refused(tmp_path, cuda):
    done = build(tmp_path if cuda == "auto" else FOLDER, tmp_path, TORCH_TILED_CUDA=cuda)
    assert done.returncode != 0
    assert "pass a folder with a kernels.def and .cu files, in a build with CUDA" in done.stdout
