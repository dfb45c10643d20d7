"""What `import torch_tiled` imports, each case in a Python process of its own."""

import pytest
import torch
from helpers.packaging import python

HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.utils.flop_counter",  # imports triton, where that is installed
    "sympy",
    "triton",
)


def run(code):
    """What Python prints for the code, a line each."""
    return python(code).splitlines()


def test_the_import_adds_modules_of_torch_tiled_alone():
    """Somebody imports torch_tiled after torch, and waits for what it imports besides."""
    added = run(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import torch_tiled\n"
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    assert "torch_tiled" in added
    assert not set(HEAVY).intersection(added)
    if torch.__version__.startswith("2.13."):  # other versions may need more small ones
        assert [name for name in added if name.partition(".")[0] != "torch_tiled"] == []


USES = """
import sys, torch, torch_tiled
a = torch.randn(4, 64, requires_grad=True)
torch_tiled.matmul(a, a.mT, algorithm="tiled").sum().backward()
torch_tiled.linear(a, a, activation="relu").sum().backward()
torch_tiled.gemm_(torch.zeros(4, 4), a.detach(), a.detach().mT)
torch_tiled.prepare(a.detach().mT)
torch_tiled.explain(a, a.mT)
torch_tiled.stream.matmul(a.detach(), a.detach().mT, out=torch.zeros(4, 4), devices="cpu")
torch_tiled.stream.plan(a.detach(), a.detach().mT, devices="cpu", max_device_bytes=1 << 30)
model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch_tiled.nn.Linear(8, 2, activation="gelu"))
torch_tiled.convert(model)
model(a).sum().backward()
with torch.no_grad(), torch.autocast("cpu"):
    torch_tiled.freeze(model.eval())(a)
with torch_tiled.override():
    torch.einsum("ij,kj", a, a)
torch_tiled.revert(torch_tiled.unfreeze(model))
print(*sys.modules, sep="\\n")
"""


def test_products_outside_of_compiled_code_import_nothing_heavy_either():
    """The first product would otherwise take the time that the import no longer takes."""
    assert not set(HEAVY).intersection(run(USES))


COUNTERPARTS = "torch._dynamo, torch._inductor, torch.distributed.tensor, torch.utils.flop_counter"
EVERYTHING = """
import os, warnings
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
a, b = torch.randn(4, 64), torch.randn(64, 8)

# Dynamo takes a Prepared as an argument, and the reason of a converted layer as a constant.
compiled = torch.compile(torch_tiled.matmul, fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(a, torch_tiled.prepare(b)), torch_tiled.matmul(a, b))
double = torch.nn.Linear(64, 8).requires_grad_(False)
torch_tiled.convert(double)
double._apply(torch.Tensor.long)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.compile(double, fullgraph=True, backend="aot_eager")(a.long())
assert ["computes by torch" in str(each.message) for each in caught] == [True]
with torch_tiled.override(strict=True), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.compile(torch.matmul, fullgraph=True, backend="aot_eager")(a.long(), b.long())
assert any("PyTorch computes torch.matmul" in str(each.message) for each in caught)

# The flop counter has the formulas.
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    torch_tiled.matmul(a, b)
assert counter.get_total_flops() == 2 * 4 * 64 * 8

# DTensor has the rules.
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
for mode in (torch.no_grad(), torch.inference_mode()):
    with mode:
        sharded = torch_tiled.matmul(distribute_tensor(a, mesh, [Shard(0)]),
                                     distribute_tensor(b, mesh, [Shard(1)]))
        assert torch.allclose(sharded.full_tensor(), a @ b)
dist.destroy_process_group()

# Inductor takes the candidates.
torch_tiled.inductor.enable()
torch_tiled.inductor.disable()
print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
@pytest.mark.parametrize(
    "imports",
    [f"import torch, torch_tiled\nimport {COUNTERPARTS}", f"import {COUNTERPARTS}, torch_tiled"],
    ids=["imported later", "imported first"],
)
def test_what_is_imported_late_works_in_either_order(imports):
    """Dynamo, Inductor, DTensor and the flop counter are imported after torch_tiled, or before."""
    assert run(imports + EVERYTHING)[-1] == "done"
