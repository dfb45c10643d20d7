"""Operands and results that are mapped from files, and what would end the process."""

import mmap
import os
import tempfile

import numpy as np
import pytest
import torch
from helpers.reference import assert_same
from helpers.streaming import sentence_of, stream

import torch_tiled
from torch_tiled.stream.host_memory import read_mappings

M, N, K = 60, 70, 1100
GRID = {"tile": (16, 24), "depth": 1024}


@pytest.fixture
def files(tmp_path):
    """Paths of a, b and c: a and b have numbers, and c zeros."""
    torch.manual_seed(0)
    paths = [tmp_path / name for name in "abc"]
    for path, shape in zip(paths, ((M, K), (K, N), (M, N)), strict=True):
        x = torch.zeros(shape) if path.name == "c" else torch.randn(shape)
        x.numpy().tofile(path)
    return paths


def mapped_by_torch(path, shape, *, shared=False):
    x = torch.from_file(str(path), shared=shared, size=shape[0] * shape[1], dtype=torch.float32)
    return x.view(shape)


@pytest.fixture(params=["torch", "numpy r+", "numpy r"])
def mapped(request):
    """A function that maps a matrix."""
    if request.param == "torch":
        return mapped_by_torch

    def by_numpy(path, shape):
        return numpy_tensor(path, shape, request.param.split()[1])

    return by_numpy


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def numpy_tensor(path, shape, mode):
    return torch.from_numpy(np.memmap(path, np.float32, mode, shape=shape))


def product(files):
    a, b = (torch.from_numpy(np.fromfile(path, np.float32)) for path in files[:2])
    return torch_tiled.matmul(a.view(M, K), b.view(K, N), algorithm="tiled")


def multiply(a, b, out=None, *, on_cpu=False):
    if not on_cpu:
        return stream(a, b, out=out, **GRID).result
    return torch_tiled.stream.matmul(a, b, out=out, devices="cpu", algorithm="tiled")


both_ways = pytest.mark.parametrize("on_cpu", [False, True], ids=["simulated", "cpu"])
quiet = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


@quiet
@both_ways
def test_operands_of_files(files, mapped, on_cpu):
    a, b = mapped(files[0], (M, K)), mapped(files[1], (K, N))
    assert_same(multiply(a, b, on_cpu=on_cpu), product(files))


@both_ways
@pytest.mark.parametrize("by", ["torch", "numpy"])
def test_a_result_in_a_file(files, by, on_cpu):
    if by == "torch":
        out = mapped_by_torch(files[2], (M, N), shared=True)
    else:
        out = numpy_tensor(files[2], (M, N), "r+")
    a, b = mapped_by_torch(files[0], (M, K)), mapped_by_torch(files[1], (K, N))
    assert multiply(a, b, out, on_cpu=on_cpu) is out
    on_disk = torch.from_numpy(np.fromfile(files[2], np.float32)).view(M, N)
    assert_same(on_disk, product(files))


def test_a_part_of_a_larger_file(tmp_path):
    """The result's columns lie between others, which stay."""
    path = tmp_path / "whole"
    np.full((2 * M, 2 * N), 7, np.float32).tofile(path)
    out = mapped_by_torch(path, (2 * M, 2 * N), shared=True)[5 : 5 + M, 9 : 9 + N]
    a, b = torch.randn(M, K), torch.randn(K, N)
    stream(a, b, out=out, **GRID)
    on_disk = torch.from_numpy(np.fromfile(path, np.float32)).view(2 * M, 2 * N)
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    assert_same(on_disk[5 : 5 + M, 9 : 9 + N], expected)
    assert (on_disk == 7).sum() == 4 * M * N - M * N


@quiet
@both_ways
def test_a_result_in_a_file_that_is_mapped_for_reading(files, on_cpu):
    """A write would end the process."""
    out = numpy_tensor(files[2], (M, N), "r")
    a, b = torch.randn(M, K), torch.randn(K, N)
    with pytest.raises(RuntimeError) as raised:
        torch_tiled.stream.matmul(a, b, out=out, devices="cpu" if on_cpu else None)
    assert str(raised.value) == (
        "torch_tiled.stream.matmul: out lies in memory that cannot be written: the file "
        f"{files[2]}; map the file for writing, as by torch.from_file(..., shared=True) or "
        'numpy.memmap(..., mode="r+")'
    )


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_file_that_was_cut(files, name):
    """An access beyond its end would end the process."""
    shapes = {"a": (M, K), "b": (K, N), "out": (M, N)}
    path = dict(zip(shapes, files, strict=True))[name]
    operands = {
        each: mapped_by_torch(path, shape, shared=True) if each == name else torch.randn(shape)
        for each, shape in shapes.items()
    }
    size = os.path.getsize(path)
    os.truncate(path, size - 4096)
    with pytest.raises(RuntimeError) as raised:
        torch_tiled.stream.matmul(**operands)
    assert str(raised.value) == (
        f"torch_tiled.stream.matmul: {name} reaches to byte {size} of the file {path}, which has "
        f"{size - 4096}; pass the part that the file has, or restore the file"
    )
    os.truncate(path, size)
    assert torch_tiled.stream.matmul(**operands) is operands["out"]


def test_the_part_that_a_cut_file_has(files):
    """A file is held to what the tensor reads of it, and no more."""
    a = mapped_by_torch(files[0], (M, K))
    os.truncate(files[0], 40 * K * 4)
    b = torch.randn(K, N)
    torch_tiled.stream.matmul(a[:40], b)
    torch_tiled.stream.matmul(a[:40, 5:], b[5:])
    with pytest.raises(RuntimeError, match="a reaches to byte"):
        torch_tiled.stream.matmul(a[:41], b)


def test_a_file_with_a_header(tmp_path):
    """An offset within the file counts, and numpy maps from the page before it."""
    path = tmp_path / "header"
    x = np.random.default_rng(0).standard_normal((M, K), np.float32)
    with path.open("wb") as file:
        file.write(b"x" * 10_001)
        file.write(x.tobytes())
    b = torch.randn(K, N)
    for mode in ("r+", "c"):
        mapped = np.memmap(path, np.uint8, mode, offset=10_001).view(np.float32).reshape(M, K)
        found = stream(torch.from_numpy(mapped), b, **GRID).result
        assert_same(found, torch_tiled.matmul(torch.from_numpy(x), b, algorithm="tiled"))
    os.truncate(path, 10_001 + 4 * M * K - 1)
    with pytest.raises(RuntimeError, match=f"a reaches to byte {10_001 + 4 * M * K} of"):
        torch_tiled.stream.matmul(torch.from_numpy(mapped), b)


@pytest.mark.parametrize("name", [b"a b  c", b"(deleted)", "ü".encode(), b"\xff\xfe", b"a\nb"])
def test_names_of_files(tmp_path, name):
    """Whatever the bytes of a name, and whether it still exists."""
    path = os.path.join(os.fsencode(tmp_path), name)
    a, b = torch.randn(M, K), torch.randn(K, N)
    a.numpy().tofile(os.fsdecode(path))
    mapped = torch.from_numpy(np.memmap(os.fsdecode(path), np.float32, "r+", shape=(M, K)))
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    assert_same(stream(mapped, b, **GRID).result, expected)
    os.remove(path)
    assert_same(stream(mapped, b, **GRID).result, expected)


@pytest.mark.parametrize("by", ["torch", "numpy"])
def test_a_result_in_a_private_copy_of_a_file(files, by):
    if by == "torch":
        out = mapped_by_torch(files[2], (M, N))
    else:
        out = numpy_tensor(files[2], (M, N), "c")
    a, b = torch.randn(M, K), torch.randn(K, N)
    assert sentence_of(torch_tiled.stream.matmul, a, b, out=out) == (
        f"out is a private copy of the file {files[2]}, which writes do not reach; map the file "
        'for writing, as by torch.from_file(..., shared=True) or numpy.memmap(..., mode="r+")'
    )


def mapped_privately(file):
    memory = mmap.mmap(file, 4 * M * N, flags=mmap.MAP_PRIVATE)
    return torch.frombuffer(memory, dtype=torch.float32).view(M, N)


def of_a_deleted_file():
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * M * N)
        return mapped_privately(file.fileno())


MEMORY = {
    "anonymous": lambda: mapped_privately(-1),
    "zero": lambda: mapped_privately(os.open("/dev/zero", os.O_RDWR)),
    "shared": lambda: torch.empty(M, N).share_memory_(),
    "deleted": of_a_deleted_file,
}


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
def test_results_in_memory_of_no_file(memory):
    """Private memory is refused only where writes would be lost."""
    out, a, b = memory(), torch.randn(M, K), torch.randn(K, N)
    stream(a, b, out=out, **GRID)
    assert_same(out, torch_tiled.matmul(a, b, algorithm="tiled"))


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="reads files of safetensors")
    a, b = torch.randn(M, K), torch.randn(K, N)
    safetensors.save_file({"a": a, "b": b}, tmp_path / "x.safetensors")
    found = safetensors.load_file(tmp_path / "x.safetensors")
    expected = torch_tiled.matmul(a, b, algorithm="tiled")
    assert_same(stream(found["a"], found["b"], **GRID).result, expected)


def test_an_operand_s_file_that_is_mapped_again(tmp_path):
    """The addresses of two maps differ, and the file is one."""

    def mapped(path, shared=True):
        x = torch.from_file(str(path), shared=shared, size=64 * 64, dtype=torch.float32)
        return x.view(64, 64)

    a, again, other = (mapped(tmp_path / name) for name in ("a", "a", "b"))
    for x in (a, mapped(tmp_path / "a", shared=False)):
        with pytest.raises(RuntimeError, match="out may share memory with a"):
            torch_tiled.stream.matmul(x, torch.eye(64), out=again, devices="cpu")
    with pytest.raises(RuntimeError, match="out may share memory with b"):
        torch_tiled.stream.matmul(torch.eye(64), a, out=again, devices="cpu")
    a.fill_(2)
    torch_tiled.stream.matmul(a, torch.eye(64), out=other, devices="cpu", algorithm="tiled")
    assert torch.equal(other, a)


def test_hard_links_are_one_file(tmp_path):
    a = torch.from_file(str(tmp_path / "a"), shared=True, size=64 * 64, dtype=torch.float32)
    os.link(tmp_path / "a", tmp_path / "again")
    again = torch.from_file(str(tmp_path / "again"), shared=True, size=64 * 64)
    with pytest.raises(RuntimeError, match="out may share memory with a"):
        torch_tiled.stream.matmul(a.view(64, 64), torch.eye(64), out=again.view(64, 64))


def test_a_file_whose_name_has_a_newline_is_too_short(tmp_path):
    path = tmp_path / "a\nb"
    a = torch.from_file(str(path), shared=True, size=600 * 500, dtype=torch.float32).view(600, 500)
    os.truncate(path, 5000)
    with pytest.raises(RuntimeError, match="a reaches to byte 1200000 of the file"):
        torch_tiled.stream.matmul(a, torch.randn(500, 40), devices="cpu")


def test_the_mappings_of_tensors_alone(tmp_path):
    """Thousands of others would take tens of milliseconds of each product."""
    if not read_mappings([torch.zeros(1)]):
        pytest.skip("this system does not tell what is mapped")
    path = tmp_path / "some \r name.bin"
    x = torch.from_file(str(path), shared=True, size=5000, dtype=torch.float32)
    with path.open("r+b") as file:
        others = [mmap.mmap(file.fileno(), 4096) for _ in range(50)]
    y = torch.zeros(70_000)
    for tensors in ([x], [x, y], [y, x[100:200], x]):
        found = read_mappings(tensors)
        assert len(found) <= 2 * len(tensors)
        for tensor in tensors:
            address = tensor.data_ptr()
            (path_of,) = (path for first, end, *_, path in found if first <= address < end)
            assert (path_of == str(path)) == (tensor is not y)
    assert read_mappings([]) == read_mappings([torch.zeros(0), torch.zeros(3, device="meta")]) == []
    for other in others:
        other.close()
