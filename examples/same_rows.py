"""Rows of a table, energies and forces of molecules, and a training run: do batches change them?

    python examples/same_rows.py
    python examples/same_rows.py --rows 200

    table      a transformer over a row's columns
    molecules  an interatomic potential: sums over an atom's neighbours, a network, and a sum over
               the atoms. Molecules are padded to the largest one of a batch. Forces are gradients
               by the distances between atoms, summed over neighbours
    training   a network whose gradients are computed for each row and summed in the order of the
               rows: it learns the same, whatever micro-batches the rows came in. Gradients that
               are added micro-batch by micro-batch are other sums in another order

Weights and data are random, in float32. Each is compared to the bit with its own of one row at a
time; of training, with the weights after micro-batches of one row.
"""

import contextlib
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from shared import Parser, Table, now, whole
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import torch_tiled

SIZES = (7, 64, 1024)
STEPS = 3
WAYS: dict[str, Callable[[], AbstractContextManager]] = {
    "PyTorch": contextlib.nullcontext,
    "invariant()": torch_tiled.invariant,
}


class Tabular(nn.Module):
    """A number for each row of (rows, columns): attention among the columns."""

    def __init__(self, columns: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.scale = nn.Parameter(torch.randn(columns, width))
        self.shift = nn.Parameter(torch.randn(columns, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = rows[..., None] * self.scale + self.shift  # (rows, columns, width)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        mixed = functional.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)))
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        x = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x.mean(dim=1)))


class Potential(nn.Module):
    """The energy of each molecule, (molecules, 1), from (molecules, atoms, neighbours, 3)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.atom = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, offsets: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """pairs is 1 for the neighbours that there are, and else 0."""
        distances = (offsets.square().sum(dim=-1) + 1e-2).sqrt()
        messages = self.pair(torch.stack((distances, 1 / distances), dim=-1))
        features = (messages * pairs[..., None]).sum(dim=2)  # over the neighbours
        atoms = pairs.amax(dim=2)
        return (self.atom(features).squeeze(-1) * atoms).sum(dim=1, keepdim=True)

    def with_forces(self, molecules: list[torch.Tensor]) -> list[torch.Tensor]:
        """The energy and the forces of each molecule, in one row of numbers."""
        places = nn.utils.rnn.pad_sequence(molecules, batch_first=True)
        counts = torch.tensor([len(each) for each in molecules], device=places.device)
        there = torch.arange(places.shape[1], device=places.device) < counts[:, None]
        same = torch.eye(places.shape[1], dtype=torch.bool, device=places.device)
        pairs = (there[:, :, None] & there[:, None] & ~same).to(places.dtype)
        with torch.enable_grad():
            offsets = (places[:, None] - places[:, :, None]).requires_grad_()
            energies = self(offsets, pairs)
            # Every energy has a graph of its own: the gradient of their sum is that of each.
            (by_offset,) = torch.autograd.grad(energies, offsets, torch.ones_like(energies))
        forces = by_offset.sum(dim=2) - by_offset.sum(dim=1)
        rows = zip(energies.detach(), forces, counts.tolist(), strict=True)
        return [torch.cat((energy, force[:count].flatten())) for energy, force, count in rows]


def batched(compute: Callable, samples, size: int, order: list[int]) -> list[torch.Tensor]:
    """The results of all samples, which are computed in this order and in batches of this size."""
    found = {}
    for begin in range(0, len(order), size):
        batch = order[begin : begin + size]
        found |= zip(batch, compute([samples[i] for i in batch]), strict=True)
    return [found[i] for i in range(len(order))]


def learn(model: nn.Module, rows: torch.Tensor, size: int, order: list[int]) -> torch.Tensor:
    """The weights after a few steps, with gradients of rows that are computed in this order."""
    model = copy.deepcopy(model)
    targets = rows.sin().sum(dim=1, keepdim=True)

    def loss(weights: dict, row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (row[None],)).sub(target).square().sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        weights = {name: each.detach() for name, each in model.named_parameters()}

        def gradients(batch: list, weights: dict = weights) -> torch.Tensor:
            found = vmap(grad(loss), (None, 0, 0))(
                weights, *map(torch.stack, zip(*batch, strict=True))
            )
            return torch.cat([each.flatten(1) for each in found.values()], dim=1)

        pairs = list(zip(rows, targets, strict=True))
        of_rows = torch.stack(batched(gradients, pairs, size, order))
        flat = of_rows.mean(dim=0)  # in the order of the rows
        for each, part in zip(
            model.parameters(), flat.split([x.numel() for x in weights.values()]), strict=True
        ):
            each.grad = part.view_as(each)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=whole, help="and molecules: 1000; 40 on a CPU")
    args = parser.parse_args(argv)
    rows = args.rows or (40 if args.device == "cpu" else 1000)
    with torch.device(args.device):
        table = torch.randn(rows, 20)
        molecules = [3 * torch.randn(n, 3) for n in torch.randint(3, 25, (rows,)).tolist()]
        tabular, potential = Tabular(20), Potential()
        network = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1))
    models = {
        "table": (lambda rows: tabular(torch.stack(rows)), list(table)),
        "molecules": (potential.with_forces, molecules),
    }
    shuffled = torch.randperm(rows).tolist()
    alone = range(rows)
    print(f"{rows} rows and molecules on {args.device}\n")
    columns = "model 9s", "way 11s", "batch 5d", "equal 7.1%", "rows/s 9.1f"
    printed = Table(*columns, bars=True)
    for name, (compute, samples) in models.items():
        for way, statement in WAYS.items():
            with statement(), torch.no_grad():
                expected = batched(compute, samples, 1, list(alone))
                for size in SIZES:
                    compute(samples[:size])  # loads the kernels
                    start = now(table)
                    found = batched(compute, samples, size, shuffled)
                    speed = rows / (now(table) - start)
                    pairs = zip(expected, found, strict=True)
                    equal = sum(torch.equal(*pair) for pair in pairs) / rows
                    printed.add(name, way, size, equal, speed)
    few = table[: min(256, rows)]
    order = torch.randperm(len(few)).tolist()
    for way, statement in WAYS.items():
        with statement():
            expected = learn(network, few, 1, order)
            for size in SIZES:
                start = now(table)
                found = learn(network, few, size, order[::-1])
                speed = STEPS * len(few) / (now(table) - start)
                equal = (found == expected).double().mean().item()
                printed.add("training", way, size, equal, speed)


if __name__ == "__main__":
    main()
