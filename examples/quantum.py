"""Simulates quantum circuits, and learns the pulses of a gate, by products of complex matrices.

    python examples/quantum.py
    python examples/quantum.py --qubits 24 --layers 40 --device cuda

Circuits: a state of 2^qubits amplitudes is multiplied by one gate after another. The qubits of a
gate are the columns of a matrix, each row of which is multiplied by the gate; where these qubits
are the first or the last of the state's axes, that matrix is a view. Two circuits run: layers of
random gates on neighbours, and the quantum Fourier transform of a basis state, whose amplitudes are
known in closed form.

Pulses: a chain of spins with fixed couplings is driven by fields that are constant in each slice of
time. Gradient descent finds fields whose evolution is the quantum Fourier transform (GRAPE).

Both are computed by torch.matmul in complex128 and in complex64, and by torch_tiled in complex64.
On a CPU torch_tiled multiplies by torch.matmul unless an algorithm is named, so one is named there.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from shared import Parser, Table, now, whole

import torch_tiled

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MOST_QUBITS = 30
ON_CPU = "naive"  # the algorithm there: gates are smaller than the tiles of others


@dataclass(frozen=True)
class Way:
    """A product, and the dtype in which a program computes by it."""

    name: str
    product: Product
    dtype: torch.dtype


def ways(device: str) -> list[Way]:
    algorithm = ON_CPU if torch.device(device).type == "cpu" else "auto"
    tiled = functools.partial(torch_tiled.matmul, algorithm=algorithm)
    return [
        Way("torch, complex128", torch.matmul, torch.complex128),
        Way("torch, complex64", torch.matmul, torch.complex64),
        Way("torch_tiled, complex64", tiled, torch.complex64),
    ]


# --- circuits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    qubits: tuple[int, ...]
    matrix: torch.Tensor  # (2^g, 2^g) for g qubits; the first one is the most significant bit


@dataclass(frozen=True)
class Circuit:
    """Gates on the basis state of the number `start`."""

    name: str
    qubits: int
    gates: list[Gate]
    start: int
    readout: Sequence[int]  # the qubits of the result, the most significant first
    exact: torch.Tensor | None = None  # the result, where it is known


def random_unitary(size: int) -> torch.Tensor:
    """A unitary matrix of Haar's measure."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.complex128))
    return q * r.diagonal().sgn()


def random_circuit(qubits: int, layers: int) -> Circuit:
    """Layers of random gates on neighbours, each layer's pairs one qubit beside the last one's."""
    gates = []
    for layer in range(layers):
        edges = [0, *range(2 - (layer % 2 == 1), qubits, 2), qubits]
        for first, end in zip(edges, edges[1:], strict=False):
            gates.append(Gate(tuple(range(first, end)), random_unitary(2 ** (end - first))))
    return Circuit("random", qubits, gates, 0, range(qubits))


def fourier_transform(qubits: int) -> Circuit:
    """The quantum Fourier transform of a basis state, by Hadamard gates and controlled phases."""
    hadamard = torch.tensor([[1, 1], [1, -1]], dtype=torch.complex128) / math.sqrt(2)
    gates = []
    for qubit in range(qubits):
        gates.append(Gate((qubit,), hadamard))
        for control in range(qubit + 1, qubits):
            phases = torch.tensor([0, 0, 0, math.pi / 2 ** (control - qubit)], dtype=torch.float64)
            gates.append(
                Gate((control, qubit), torch.polar(torch.ones_like(phases), phases).diag())
            )
    size = 2**qubits
    start = size * 2 // 3
    turns = torch.arange(size) * start % size  # exact integers
    amplitudes = torch.full((size,), size**-0.5, dtype=torch.float64)
    exact = torch.polar(amplitudes, turns.double() * (2 * math.pi / size))
    return Circuit("Fourier", qubits, gates, start, range(qubits)[::-1], exact)


def simulate(circuit: Circuit, product: Product, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The state after the circuit. A gate takes its qubits' axes, and leaves them last."""
    shape = (2,) * circuit.qubits
    matrices = [gate.matrix.to(device, dtype) for gate in circuit.gates]
    state = torch.zeros(2**circuit.qubits, dtype=dtype, device=device)
    state[circuit.start] = 1
    order = list(range(circuit.qubits))  # the qubit of each axis
    for gate, matrix in zip(circuit.gates, matrices, strict=True):
        axes = [order.index(qubit) for qubit in gate.qubits]
        moved = state.view(shape).movedim(axes, list(range(-len(axes), 0)))
        state = product(moved.reshape(-1, len(matrix)), matrix.mT)
        order = [qubit for qubit in order if qubit not in gate.qubits] + list(gate.qubits)
    axes = [order.index(qubit) for qubit in circuit.readout]
    return state.view(shape).permute(axes).reshape(-1)


@dataclass(frozen=True)
class Accuracy:
    infidelity: float  # 1 - |<exact|state>|^2, of states that are normalized
    error: float  # the greatest of an amplitude, divided by the greatest amplitude
    norm: float


def accuracy(state: torch.Tensor, exact: torch.Tensor) -> Accuracy:
    state = state.to(exact)
    norm, direction = state.norm(), exact / exact.norm()
    # The part of the state beside the exact one keeps the digits that 1 - fidelity would lose.
    beside = state - torch.vdot(direction, state) * direction
    error = (state - exact).abs().max() / exact.abs().max()
    return Accuracy((beside.norm() / norm).square().item(), error.item(), norm.item())


def show_circuits(circuits: list[Circuit], device: str, runs: int) -> None:
    print(f"{circuits[0].qubits} qubits: circuits")
    errors = "1 - fidelity .1e", "error 8.1e", "norm - 1 .1e"
    table = Table("circuit s", "gates d", "product 22s", "ms a gate .3f", *errors)
    for circuit in circuits:
        exact = None if circuit.exact is None else circuit.exact.to(device)
        for way in ways(device):
            run = functools.partial(simulate, circuit, way.product, way.dtype, device)
            state = run()  # warms up, too
            exact = state if exact is None else exact  # that of the first way, in complex128
            found = accuracy(state, exact)
            seconds = []
            for _ in range(runs):
                start = now(state)
                run()
                seconds.append(now(state) - start)
            gates = len(circuit.gates)
            ms = statistics.median(seconds) / gates * 1e3
            errors = found.infidelity, found.error, found.norm - 1
            table.add(circuit.name, gates, way.name, ms, *errors)


# --- pulses --------------------------------------------------------------------------------------

TERMS, SQUARINGS = 8, 3  # of the exponential of a matrix
TIME = 12.0  # in which the spins evolve, in units of 1 / coupling


def on(spins: int, operators: dict[int, torch.Tensor]) -> torch.Tensor:
    """The tensor product of operators on some spins and of the identity on others."""
    factors = [operators.get(spin, torch.eye(2, dtype=torch.complex128)) for spin in range(spins)]
    return functools.reduce(torch.kron, factors)


@dataclass(frozen=True)
class Chain:
    """Spins with couplings of neighbours, each of which is driven along x and y."""

    drift: torch.Tensor  # (d, d)
    controls: torch.Tensor  # (2 * spins, d * d)
    target: torch.Tensor  # (d, d): the gate to learn

    def to(self, dtype: torch.dtype, device: str) -> "Chain":
        matrices = self.drift, self.controls, self.target
        return Chain(*(x.to(device, dtype) for x in matrices))


def chain(spins: int) -> Chain:
    x = torch.tensor([[0, 1], [1, 0]], dtype=torch.complex128)
    y = torch.tensor([[0, -1j], [1j, 0]], dtype=torch.complex128)
    z = torch.tensor([[1, 0], [0, -1]], dtype=torch.complex128)
    drift = sum((on(spins, {i: z, i + 1: z}) for i in range(spins - 1)), on(spins, {}) * 0)
    controls = torch.stack(
        [on(spins, {i: axis}).flatten() for i in range(spins) for axis in (x, y)]
    )
    rows = torch.arange(2**spins, dtype=torch.float64)
    phases = rows[:, None] * rows * (2 * math.pi / 2**spins)
    return Chain(drift, controls, torch.polar(torch.full_like(phases, 2 ** (-spins / 2)), phases))


def exponential(x: torch.Tensor, product: Product) -> torch.Tensor:
    """exp(x) of matrices whose norms are about 1 or less: Taylor's series, then squarings."""
    x = x / 2**SQUARINGS
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    result = identity + x / TERMS
    for term in range(TERMS - 1, 0, -1):
        result = identity + product(x, result) / term
    for _ in range(SQUARINGS):
        result = product(result, result)
    return result


def evolution(chain: Chain, fields: torch.Tensor, product: Product) -> torch.Tensor:
    """The unitary matrix of all slices of time. Fields are (slices, 2 * spins)."""
    driven = product(fields.to(chain.controls.dtype), chain.controls)
    hamiltonians = chain.drift + driven.unflatten(-1, chain.drift.shape)
    steps = exponential(hamiltonians * (-1j * TIME / len(fields)), product)
    while len(steps) > 1:  # neighbours in time at once, the later one on the left
        pairs = product(steps[1::2], steps[: len(steps) // 2 * 2 : 2])
        steps = torch.cat([pairs, steps[len(steps) // 2 * 2 :]])
    return steps[0]


def infidelity(chain: Chain, fields: torch.Tensor, product: Product) -> torch.Tensor:
    """1 - |tr(target^H U)|^2 / d^2, which is 0 where U is the target but for a phase."""
    overlap = product(chain.target.mH, evolution(chain, fields, product)).diagonal().sum()
    return 1 - (overlap.abs() / len(chain.target)).square()


@dataclass(frozen=True)
class Learned:
    losses: list[float]  # before each step, and after the last one
    fields: torch.Tensor
    seconds: float


def learn(chain: Chain, start: torch.Tensor, way: Way, device: str, steps: int) -> Learned:
    """Follows gradients from the fields `start`."""
    chain = chain.to(way.dtype, device)
    fields = start.clone().to(device, way.dtype.to_real()).requires_grad_()
    optimizer = torch.optim.Adam([fields], lr=0.05)
    losses = []
    began = now(fields)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = infidelity(chain, fields, way.product)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    seconds = now(fields) - began
    fields = fields.detach()
    losses.append(infidelity(chain, fields, way.product))
    return Learned(torch.stack(losses).tolist(), fields, seconds)


def show_pulses(spins: int, slices: int, device: str, steps: int) -> None:
    spin_chain = chain(spins)
    start = torch.randn(slices, 2 * spins, dtype=torch.float64) / 2
    exact = spin_chain.to(torch.complex128, device)
    print(f"\n{spins} spins: pulses of {slices} slices, {steps} steps, for the Fourier transform")
    marks = sorted({0, steps // 4, steps // 2, steps})
    losses = [f"loss at {step} 13.2e" for step in marks]
    table = Table("product 22s", "ms a step .2f", *losses, "in complex128 .2e")
    for way in ways(device):
        learn(spin_chain, start, way, device, 1)  # warms up
        done = learn(spin_chain, start, way, device, steps)
        # The last column has the fields that were learned, judged in the same way for all.
        judged = infidelity(exact, done.fields.double(), torch.matmul).item()
        ms = done.seconds / steps * 1e3
        table.add(way.name, ms, *(done.losses[step] for step in marks), judged)


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("--qubits", type=whole, default=20, help="of the circuits")
    option("--layers", type=whole, default=10, help="of the random circuit")
    option("--runs", type=whole, default=3, help="of each circuit that are timed")
    option("--spins", type=whole, default=3, help="that learn a gate")
    option("--slices", type=whole, default=64, help="of time, of a pulse")
    option("--steps", type=whole, default=200, help="of gradient descent")
    args = parser.parse_args(argv)
    if args.qubits > MOST_QUBITS:
        parser.error(
            f"--qubits is {args.qubits}; it must be at most {MOST_QUBITS}, whose states take 16 GiB"
        )
    if args.slices < (least := 4 * args.spins):  # Taylor's series would not converge
        parser.error(f"--slices is {args.slices}; {args.spins} spins need at least {least}")
    circuits = [random_circuit(args.qubits, args.layers), fourier_transform(args.qubits)]
    if args.device == "cpu":
        print(f"torch_tiled multiplies by its algorithm {ON_CPU} on the CPU, where auto is torch's")
    show_circuits(circuits, args.device, args.runs)
    show_pulses(args.spins, args.slices, args.device, args.steps)


if __name__ == "__main__":
    main()
