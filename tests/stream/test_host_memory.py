"""What is read of the mappings of this process."""

import mmap

import pytest
import torch

from torch_tiled.stream.host_memory import read_mappings


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
