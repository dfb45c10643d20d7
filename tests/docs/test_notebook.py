"""The notebook of the course runs on the CPU, and is kept without its outputs."""

import os
import re
from pathlib import Path

import pytest

from torch_tiled._op import registry

nbformat = pytest.importorskip("nbformat", reason="the notebook runs by nbclient")
nbclient = pytest.importorskip("nbclient", reason="the notebook runs by nbclient")
pytest.importorskip("ipykernel", reason="the notebook runs in ipykernel")
pytest.importorskip("matplotlib", reason="the notebook has plots")

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOK = ROOT / "docs" / "course" / "course.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook) -> str:
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_is_valid_and_has_no_outputs(notebook):
    nbformat.validate(notebook)
    assert not [cell for cell in code(notebook) if cell.outputs or cell.execution_count]


def test_has_short_cells_and_links_that_lead_somewhere(notebook):
    assert max(cell.source.count("\n") for cell in code(notebook)) < 20
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)", cell.source):
                assert (NOTEBOOK.parent / link).is_file(), link


def test_runs(notebook, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
    }
    folder = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources=folder)
    client.execute(env=environment)
    text = printed(notebook)
    heads = [path.read_text() for path in ROOT.glob("csrc/kernels/basics/*.cu")]
    named = [re.match(r"// \d\d ([\w, ]+):", head)[1].split(", ") for head in heads]
    titles = set(sum(named, []))
    basics = {x.name for x in registry.kernels().values() if titles & {x.name, x.family}}
    assert basics >= {"naive", "tiled16", "tiled32", "tiled64"}
    for name in (*basics, "simt_tma", "fp16x3_wgmma", "mma_tma"):
        assert re.search(rf"^{name} .* off by \d", text, re.MULTILINE), name
    for k, bits in ((256, "equal"), (1024, "equal"), (1025, "not equal"), (4096, "not equal")):
        assert re.search(rf"^K = +{k}: .* naive is {bits}$", text, re.MULTILINE), k
    plots = [x for cell in code(notebook) for x in cell.outputs if "image/png" in x.get("data", {})]
    assert len(plots) == 3
