"""The example of quantum circuits and pulses, with few qubits and few steps."""

import math

import pytest
import quantum
import torch
from torch.testing import assert_close

ROUNDOFF = {dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.complex64, torch.complex128)}


def one_by_one(circuit):
    """The circuit's result by products with matrices of all qubits."""
    shape = (2,) * circuit.qubits
    state = torch.eye(2**circuit.qubits, dtype=torch.complex128)[circuit.start].view(shape)
    for gate in circuit.gates:
        count = len(gate.qubits)
        tensor = gate.matrix.view((2,) * 2 * count)
        state = torch.tensordot(tensor, state, (list(range(count, 2 * count)), gate.qubits))
        state = state.movedim(tuple(range(count)), gate.qubits)
    return state.permute(tuple(circuit.readout)).flatten()


@pytest.fixture(params=["random", "Fourier"])
def circuit(request):
    torch.manual_seed(0)
    if request.param == "random":
        return quantum.random_circuit(5, layers=5)
    return quantum.fourier_transform(5)


def test_circuits_have_one_result_in_every_way(circuit, device):
    exact = one_by_one(circuit)
    if circuit.exact is not None:
        assert_close(exact, circuit.exact)
    for way in quantum.ways(device):
        state = quantum.simulate(circuit, way.product, way.dtype, device)
        assert state.dtype == way.dtype and state.device.type == device
        found = quantum.accuracy(state, exact.to(device))
        # A gate of two qubits is four products, and moves a state by a few roundings of its norm.
        most = 8 * len(circuit.gates) * ROUNDOFF[way.dtype]
        assert found.infidelity < most**2
        assert abs(found.norm - 1) < most
        assert found.error < most * exact.abs().max().reciprocal()


def test_the_accuracy_is_that_of_states_but_for_a_phase():
    exact = torch.tensor([0.6, 0.8j], dtype=torch.complex128)
    rotated = quantum.accuracy(2j * exact, exact)
    assert rotated.infidelity < 1e-30 and math.isclose(rotated.norm, 2)
    other = quantum.accuracy(torch.tensor([1, 0], dtype=torch.complex64), exact)
    assert math.isclose(other.infidelity, 0.64) and math.isclose(other.error, 1)


def test_the_random_circuit_has_all_qubits_in_every_layer():
    for qubits in (1, 2, 5, 6):
        gates = quantum.random_circuit(qubits, layers=2).gates
        assert [qubit for gate in gates for qubit in gate.qubits] == 2 * list(range(qubits))
        for gate in gates:
            identity = torch.eye(2 ** len(gate.qubits), dtype=torch.complex128)
            assert_close(gate.matrix @ gate.matrix.mH, identity)


def test_the_evolution_is_that_of_matrix_exponentials(device):
    spins, slices = 2, 33
    chain = quantum.chain(spins).to(torch.complex128, device)
    fields = torch.rand(slices, 2 * spins, dtype=torch.float64, device=device)
    expected = torch.eye(2**spins, dtype=torch.complex128, device=device)
    norms = []
    for row in fields:
        driven = (row[:, None] * chain.controls).sum(0).view_as(chain.drift)
        exponent = (chain.drift + driven) * (-1j * quantum.TIME / slices)
        norms.append(torch.linalg.matrix_norm(exponent, 2).item())
        expected = torch.linalg.matrix_exp(exponent) @ expected
    # Each series leaves out its terms from the next one on, which a slice squares.
    terms, factor = quantum.TERMS + 1, 2**quantum.SQUARINGS
    left_out = (max(norms) / factor) ** terms / math.factorial(terms) * factor * math.e
    found = quantum.evolution(chain, fields, torch.matmul)
    assert torch.linalg.matrix_norm(found - expected, 2) < slices * left_out


def test_pulses_learn_the_same_in_every_way(device):
    torch.manual_seed(0)
    chain, start = quantum.chain(2), torch.randn(16, 4, dtype=torch.float64) / 2
    theirs, *others = [
        quantum.learn(chain, start, way, device, steps=30) for way in quantum.ways(device)
    ]
    assert len(theirs.losses) == 31
    assert 0 < theirs.losses[-1] < theirs.losses[0] / 10
    for learned in others:
        assert learned.fields.dtype == torch.float32
        assert_close(torch.tensor(learned.losses), torch.tensor(theirs.losses))


def test_the_products_are_torch_tiled_s():
    _, _, ours = quantum.ways("cpu")
    circuit = quantum.random_circuit(4, layers=2)
    chain, fields = quantum.chain(2).to(ours.dtype, "cpu"), torch.rand(4, 4, requires_grad=True)
    with torch.profiler.profile() as profiled:
        quantum.simulate(circuit, ours.product, ours.dtype, "cpu")
        quantum.infidelity(chain, fields, ours.product).backward()
    names = {event.key for event in profiled.key_averages()}
    assert "tiled::matmul" in names
    assert names.isdisjoint({"aten::mm", "aten::bmm", "aten::addmm"})


def test_the_example_prints_a_row_for_each_way(capsys, device):
    options = ["--qubits", "4", "--layers", "2", "--runs", "1", "--spins", "2", "--slices", "8"]
    quantum.main([*options, "--steps", "8", "--device", device])
    lines = capsys.readouterr().out.splitlines()
    assert ("algorithm naive on the CPU" in lines[0]) == (device == "cpu")
    names = [way.name for way in quantum.ways(device)]
    for name in names:
        random, fourier, pulses = [line.split(name) for line in lines if name in line]
        assert random[0].split() == ["random", "5"] and fourier[0].split() == ["Fourier", "10"]
        assert all(len(circuit[1].split()) == 4 for circuit in (random, fourier))
        numbers = [float(number) for row in (random, fourier, pulses) for number in row[1].split()]
        assert all(map(math.isfinite, numbers)) and len(numbers) == 14


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--qubits", "0"], "argument --qubits: '0' is no positive whole number"),
        (["--qubits", "70"], "--qubits is 70; it must be at most 30"),
        (["--device", "meta"], "it is meta; it must be cpu, cuda or cuda:<index>"),
    ],
)
def test_the_example_refuses_what_it_cannot_run(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as error:
        quantum.main(arguments)
    assert error.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_the_example_refuses_a_gpu_that_is_not_there(device, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as error:
        quantum.main(["--device", device])
    assert error.value.code == 2
    assert "torch sees no CUDA device; leave --device out" in capsys.readouterr().err
