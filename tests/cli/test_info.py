"""`python -m torch_tiled info`: what it finds, what it prints, and how it ends."""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.needs import needs_cuda

import torch_tiled
from torch_tiled import __main__
from torch_tiled import info as module
from torch_tiled.info import as_table, info

PACKAGE = Path(torch_tiled.__file__).resolve().parent
ARCHITECTURES = ["compute_80", "sm_80", "sm_90a"]  # what setup.py compiles for
DTYPES = ["float32", "float64", "float16", "bfloat16", "complex64", "complex128"]
MIXED = [("float16", "float32"), ("bfloat16", "float32")]


def in_a_process(cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch_tiled", "info"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `python -m torch_tiled` in this process: (exit status, output)."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["torch_tiled", *arguments])
        try:
            status = __main__.main()
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def rows(table: str) -> dict[str, str]:
    """A table's second column by its first."""
    return {name: text.strip() for name, text in (x.split("  ", 1) for x in table.splitlines())}


@pytest.fixture
def copied(tmp_path) -> Path:
    """A folder with a copy of the package, which does not say what it was built with."""
    ignore = shutil.ignore_patterns("__pycache__", "_C.json")
    shutil.copytree(PACKAGE, tmp_path / "torch_tiled", ignore=ignore)
    return tmp_path


def record(folder: Path, **changed) -> dict:
    """Writes what setup.py writes, and returns it without the digest."""
    library = folder / "torch_tiled" / "_C.so"
    built = {"torch": "2.13.0+cpu", "cuda": "13.0", "architectures": ARCHITECTURES}
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    library.with_suffix(".json").write_text(json.dumps({**built, "sha256": digest, **changed}))
    return built


def test_versions_and_library():
    facts = info()
    assert facts["torch_tiled"] == torch_tiled.__version__
    assert facts["library"] in torch.ops.loaded_libraries
    assert facts["running"] == {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
    }
    assert facts["devices"][0] == {"device": "cpu", "name": platform.machine()}
    assert len(facts["devices"]) == 1 + torch.cuda.device_count()


def test_products_are_right(device):
    facts = info()
    products = [each for each in facts["products"] if each["device"].startswith(device)]
    grouped = [each for each in products if each["grouped"]]
    assert [(each["dtype"], each["out_dtype"], each["streamed"]) for each in grouped] == [
        (dtype, dtype, False) for dtype in ("float32", "bfloat16")
    ]
    assert {each["algorithm"] for each in grouped} == {"auto"}
    assert {each["error"] for each in grouped} == {None}
    products = [each for each in products if not each["grouped"]]
    kinds = [(each["dtype"], each["out_dtype"], each["streamed"]) for each in products]
    whole = [*((dtype, dtype, False) for dtype in DTYPES), *((*each, False) for each in MIXED)]
    assert kinds == [*whole, ("float32", "float32", True)]
    assert {each["algorithm"] for each in products} == {"tiled" if device == "cpu" else "auto"}
    assert {each["error"] for each in products} == {None}
    assert facts["ok"] is True


@needs_cuda
def test_a_gpu_is_listed_with_its_code():
    facts = info()
    first = facts["devices"][1]
    capability = torch.cuda.get_device_capability(0)
    assert first["device"] == "cuda:0"
    assert first["name"] == torch.cuda.get_device_name(0)
    assert first["capability"] == f"{capability[0]}.{capability[1]}"
    built = facts["built with"]
    code = module._code_for(capability, built["architectures"]) if built else "unknown"
    assert first["code"] == code


@pytest.mark.parametrize(
    "capability, code",
    [
        ((7, 5), "none"),
        ((8, 0), "sm_80"),
        ((8, 9), "sm_80"),
        ((9, 0), "sm_90a"),
        ((10, 0), "compute_80, by the driver"),
        ((12, 1), "compute_80, by the driver"),
    ],
)
def test_code_for_a_gpu(capability, code):
    assert module._code_for(capability, ARCHITECTURES) == code


def test_code_without_ptx_is_for_its_own_generation():
    assert module._code_for((10, 0), ["sm_80", "sm_90a"]) == "none"
    assert module._code_for((9, 1), ["sm_90a", "compute_90a"]) == "none"
    assert module._code_for((8, 6), []) == "none"


def test_build_record_is_in_the_table(copied):
    built = record(copied)
    done = in_a_process(copied)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert table["library"] == f"{copied}/torch_tiled/_C.so"
    assert table["built with torch"] == built["torch"]
    assert table["built with CUDA"] == "13.0"
    assert table["built for GPUs"] == "compute_80, sm_80, sm_90a"
    assert module._built_with(copied / "torch_tiled" / "_C.so") == built


def table_of(folder: Path) -> dict[str, str]:
    """The table that the command prints for the library in that folder."""
    built = module._built_with(folder / "torch_tiled" / "_C.so")
    return rows(as_table(info() | {"built with": built}))


def test_built_without_cuda(copied):
    record(copied, cuda="none", architectures=[])
    table = table_of(copied)
    assert (table["built with CUDA"], table["built for GPUs"]) == ("none", "none")


@pytest.mark.parametrize("why", ["no record", "another library's record"])
def test_build_without_a_record_is_unknown(copied, why):
    if why == "another library's record":
        record(copied, sha256="0" * 64)
    table = table_of(copied)
    for name in ("built with torch", "built with CUDA", "built for GPUs"):
        assert table[name] == "unknown"


def test_table_and_json_have_the_same_facts(command):
    (status, table), (status_of_json, text) = command("info"), command("info", "--json")
    assert (status, status_of_json) == (0, 0), table + text
    facts = json.loads(text)
    assert facts == info()
    assert table == as_table(facts) + "\n"


def test_table_is_aligned():
    lines = as_table(info()).splitlines()
    width = lines[0].index(torch_tiled.__version__)
    for line in lines:
        assert line[width - 2 : width] == "  " and line[width] != " "


def test_a_wrong_product_is_printed_and_exits_with_1(monkeypatch, command):
    right = torch_tiled.matmul

    def wrong(a, b, **options):
        product = right(a, b, **options)
        if a.dtype in (torch.float64, torch.complex128):
            product[3, 5] *= 1 + 1e-11
            product[4, 6] = torch.nan
        return product

    monkeypatch.setattr(module, "matmul", wrong)
    status, output = command("info")
    assert status == 1
    table = rows(output)
    assert table["float32 on cpu"] == "tiled: ok"
    assert table["bfloat16 on cpu"] == "tiled: ok"
    for name in ("float64 on cpu", "complex128 on cpu"):
        assert table[name].startswith("tiled: 2 of 1551 elements are wrong: at (3, 5) is ")


def test_a_wrong_group_is_printed(monkeypatch, command):
    def in_one_group(a, b, offs):
        return a @ b[0]

    monkeypatch.setattr(module, "grouped_mm", in_one_group)
    status, output = command("info")
    assert status == 1
    table = rows(output)
    assert table["float32, grouped on cpu"].startswith(
        "auto: 1034 of 1551 elements are wrong: at (11,"
    )
    assert table["float32 on cpu"] == "tiled: ok"


def test_a_product_that_raises_is_printed_and_exits_with_1(monkeypatch, command):
    def refuse(*operands, **options):
        raise RuntimeError("tiled::matmul: no")

    monkeypatch.setattr(module, "matmul", refuse)
    monkeypatch.setattr(module.stream, "matmul", refuse)
    monkeypatch.setattr(module, "grouped_mm", refuse)
    status, output = command("info", "--json")
    assert status == 1
    facts = json.loads(output)
    assert facts["ok"] is False
    assert {each["error"] for each in facts["products"]} == {"tiled::matmul: no"}


def test_self_test_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    info()
    assert torch.equal(torch.get_rng_state(), before)


def test_unbuilt_package_says_why_and_exits_with_1(copied):
    (copied / "torch_tiled" / "_C.so").unlink()
    done = in_a_process(copied)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: torch_tiled is not built: {copied}/torch_tiled/_C.so")


def test_no_command_is_a_usage_error(command):
    status, output = command()
    assert status == 2
    assert "the following arguments are required: command" in output
