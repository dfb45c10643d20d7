"""The repository for the package `kernels`, which tools/make_hub.py writes, and its namespace.

Each case runs in a process of its own, since a library is loaded once, and kernels changes classes.
"""

import json
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers.packaging import ROOT, output_of, run, without_cuda

import torch_tiled

PACKAGE = Path(torch_tiled.__file__).resolve().parent
VARIANT = f"torch-stable-abi211-cpu-{platform.machine()}-linux"

needs_kernels = pytest.mark.skipif(
    find_spec("kernels") is None, reason="kernels is not installed: pip install kernels"
)


@pytest.fixture
def variant(hub) -> Path:
    return hub[0] / "build" / VARIANT


def namespace_of(variant: Path) -> str:
    return json.loads((variant / "metadata.json").read_text())["id"]


# Imports a variant as kernels does.
IMPORT = """
import importlib.util, json, pathlib, sys, torch, torch_tiled
def load(variant):
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
variant = pathlib.Path(sys.argv[1])
"""


def in_a_process(variant: Path, code: str, cwd: Path, **environment) -> str:
    """What Python prints for the code, which sees the checkout's torch_tiled, too."""
    first = f"import sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    return output_of(sys.executable, "-c", first + code, variant, cwd=cwd, **environment)


def test_without_nvcc_there_is_a_cpu_variant_alone(hub):
    repository, log = hub
    assert [path.name for path in (repository / "build").iterdir()] == [VARIANT]
    assert "there is no CUDA variant, because the library was built without CUDA." in log
    assert f"wrote build/hub/torch_tiled/build/{VARIANT}." in log


def test_only_the_registering_files_are_compiled_anew(hub):
    assert "torch_tiled: 2 of " in hub[1]


def test_variant_has_the_package_and_its_description(variant, sdist):
    package = sdist / "torch_tiled"
    files = {path.relative_to(variant) for path in variant.rglob("*") if path.suffix != ".pyc"}
    sources = {path.relative_to(package) for path in package.rglob("*") if path.suffix != ".pyc"}
    only_here = {Path("_C.so"), Path("_C.json"), Path("metadata.json")}
    folders = {Path("__pycache__"), Path("_op/__pycache__")}
    assert files - folders == (sources - folders) | only_here
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata.pop("id").startswith("_torch_tiled_cpu_")
    assert metadata == {
        "name": "torch-tiled",
        "version": 1,
        "license": "BSD-3-Clause",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    assert json.loads((variant / "_C.json").read_text())["namespace"] == namespace_of(variant)


FAKE_SETUP = """
import json, os, pathlib, sys
package = pathlib.Path(sys.argv[-1]) / "torch_tiled"
package.mkdir(parents=True)
(package / "_C.so").write_text("library")
built = {"cuda": "13.0", "architectures": ["compute_80", "sm_80", "sm_90a"]}
built |= {"namespace": os.environ["TORCH_TILED_NAMESPACE"], "portable": os.environ["PORTABLE"]}
(package / "_C.json").write_text(json.dumps(built))
"""


def test_with_nvcc_there_are_two_variants(tmp_path):
    (tmp_path / "setup.py").write_text(FAKE_SETUP)
    shutil.copy(ROOT / "LICENSE", tmp_path)
    for folder in ("torch_tiled", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    output_of(sys.executable, "tools/make_hub.py", cwd=tmp_path, PORTABLE="1")
    folder = tmp_path / "build" / "hub" / "torch_tiled" / "build"
    cpu, cuda = folder / VARIANT, folder / VARIANT.replace("cpu", "cu130")
    assert {*folder.iterdir()} == {cpu, cuda}
    backends = [json.loads((each / "metadata.json").read_text())["backend"] for each in (cpu, cuda)]
    assert backends == [{"type": "cpu"}, {"type": "cuda", "archs": ["8.0+PTX", "8.0", "9.0a"]}]
    assert namespace_of(cpu).startswith("_torch_tiled_cpu_")
    assert namespace_of(cuda) == namespace_of(cpu).replace("cpu", "cuda")
    built = json.loads((cuda / "_C.json").read_text())
    assert (built["namespace"], built["portable"]) == (namespace_of(cuda), "1")


def test_two_namespaces_share_a_process(variant, tmp_path):
    code = """
import torch.utils._pytree as pytree
other = load(variant)
ours = torch_tiled._op.namespace.operators, other._op.namespace.operators
assert [x.matmul.default.name() for x in ours] == ["tiled::matmul", f"{other.__name__}::matmul"]
a, b = torch.randn(5, 70), torch.randn(70, 6)
for options in ({}, {"algorithm": "fp16x3"}, {"precision": "tf32", "algorithm": "tf32"}):
    products = [x.matmul(a, b, **options) for x in (torch_tiled, other)]
    assert torch.equal(*products)

# Error texts name the operators alike.
for mistake in (
    lambda x: x.matmul(a, a),
    lambda x: x.matmul(a, b, algorithm=3),
    lambda x: x.matmul(a, b, out_dtype="float32"),
    lambda x: x.linear(a.to_sparse(), b.mT),
    lambda x: x.matmul(a, None),
):
    texts = []
    for module in (torch_tiled, other):
        try:
            mistake(module)
        except RuntimeError as error:
            texts.append(str(error))
    assert len(texts) == 2 and texts[0] == texts[1] and texts[0].startswith("tiled::"), texts

# Each copy has its own pytree node, flop formulas, compiled calls and candidates of Inductor.
for module in (torch_tiled, other):
    prepared = module.prepare(b)
    assert type(prepared) is module.Prepared
    leaves, spec = pytree.tree_flatten(prepared)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    compiled = torch.compile(module.matmul, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, prepared), module.matmul(a, b))
    module.inductor.enable()
    module.inductor.disable()
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    torch_tiled.matmul(a, b), other.matmul(a, b)
assert counter.get_total_flops() == 2 * (2 * 5 * 70 * 6)

# A warning names the line outside of the copy.
import warnings
layer = torch.nn.Linear(4, 2)
other.convert(layer)
layer.requires_grad_(False)._apply(torch.Tensor.long)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    layer(torch.ones(4, dtype=torch.int64))
assert [each.filename for each in caught if "by torch" in str(each.message)] == ["<string>"]
"""
    in_a_process(variant, IMPORT + code, tmp_path)


def test_variant_of_links_loads(variant, tmp_path):
    """A cache of downloads keeps files in one folder, under their digests, and links to them."""
    folder, blobs = tmp_path / VARIANT, tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(variant.rglob("*"))):
        if path.is_file() and path.suffix != ".pyc":
            link = folder / path.relative_to(variant)
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, blobs / str(number))
            link.symlink_to(blobs / str(number))
    code = """
other = load(variant)
assert other.__name__ == other._op.namespace.NAMESPACE != "tiled"
from importlib import import_module
assert import_module(other.__name__ + ".info").info()["ok"]
"""
    in_a_process(folder, IMPORT + code, tmp_path)


def test_another_namespace_than_the_library_s_is_an_import_error(variant, tmp_path):
    shutil.copytree(variant, tmp_path / "torch_tiled")
    library = tmp_path / "torch_tiled" / "_C.so"
    library.with_suffix(".json").write_text('{"namespace": "another"}')
    first = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport torch_tiled"
    done = run(sys.executable, "-c", first, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.strip().splitlines()[-1] == (
        f"ImportError: {library} has no operator another::matmul: it was built for another "
        f"namespace than the one in {library.with_suffix('.json')}. Build it again, which writes "
        "both files."
    )


def test_namespace_has_to_be_an_identifier(tmp_path):
    environment = without_cuda(tmp_path) | {"TORCH_TILED_NAMESPACE": "a-b"}
    command = ("setup.py", "build_ext", "--build-lib", tmp_path)
    done = run(sys.executable, *command, **environment)
    assert done.returncode != 0
    assert "error: TORCH_TILED_NAMESPACE is 'a-b'; pass an identifier." in done.stdout


# --- kernels -------------------------------------------------------------------------------------

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@needs_kernels
def test_kernels_loads_it(hub, tmp_path):
    code = """
import torch, torch_tiled
from pathlib import Path
from kernels import get_local_kernel
loaded = get_local_kernel(Path(sys.argv[1]), backend="cpu")
assert loaded.__name__.startswith("_torch_tiled_cpu_")
a, b = torch.randn(5, 70).half(), torch.randn(70, 6).half()
products = [x.matmul(a, b, algorithm="mma") for x in (torch_tiled, loaded)]
assert torch.equal(*products)
assert get_local_kernel(Path(sys.argv[1]), backend="cpu") is loaded
"""
    in_a_process(hub[0], code, tmp_path, HF_HOME=str(tmp_path), **OFFLINE)


@needs_kernels
@pytest.mark.skipif(
    torch.version.cuda is not None, reason="kernelize takes the variant of torch's CUDA alone"
)
@pytest.mark.parametrize("layer", ["Linear", "LinearIEEE", "LinearTF32"])
def test_kernelize_replaces_linear_layers(layer, hub, tmp_path):
    code = f"""
import copy, torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize
from kernels import replace_kernel_forward_from_hub, use_kernel_mapping
from torch.utils._python_dispatch import TorchDispatchMode

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
plain = copy.deepcopy(model)
replace_kernel_forward_from_hub(torch.nn.Linear, "Linear")
mapping = {{"Linear": {{"cpu": LocalLayerRepository(Path(sys.argv[1]), layer_name={layer!r})}}}}
with use_kernel_mapping(mapping):
    kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
name = get_local_kernel(Path(sys.argv[1])).__name__

class Record(TorchDispatchMode):
    names = []
    def __torch_dispatch__(self, op, types, args=(), options={{}}):
        self.names.append(op.name())
        return op(*args, **options)

x = torch.randn(5, 64)
with Record() as record:
    y = model(x)
    y.sum().backward()
plain(x).sum().backward()
ours = [each for each in record.names if each.startswith(name)]
assert ours == [name + "::linear"] * 2 + [name + "::matmul"] * 3, record.names
for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(found.grad, expected.grad)
assert model.state_dict().keys() == plain.state_dict().keys()

compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(x), y)
x = (9 * x).long()
first, same = (each[0].requires_grad_(False)._apply(torch.Tensor.long) for each in (model, plain))
assert torch.equal(first(x), same(x))  # PyTorch computes it
"""
    in_a_process(hub[0], code, tmp_path, HF_HOME=str(tmp_path), **OFFLINE)
