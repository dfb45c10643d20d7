"""Trains whole models as they are, and converted: the time of a step, and how far apart they end.

    python examples/models.py
    python examples/models.py gpt2 --steps 50

Both start from the same weights and see the same batches. "gpt2" is transformers' GPT-2, of its
small size on a GPU, on random tokens; "pinn" a network that learns a solution of Burgers' equation,
u_t + u u_x = 0.01 u_xx, from its residual alone, whose loss has second derivatives. PyTorch
multiplies in IEEE float32, without TF32.
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import torch_tiled

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def gpt2(on_gpu: bool) -> tuple[nn.Module, Loss, Callable[[], torch.Tensor]]:
    """The model, its loss on a batch, and what makes batches."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        sys.exit("This example needs transformers: pip install transformers")
    small = {} if on_gpu else {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}
    no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    no_ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(**small, **no_dropout, **no_ends, use_cache=False, loss_type="ForCausalLM")
    shape = (8, 512) if on_gpu else (2, 32)
    return (
        GPT2LMHeadModel(config),
        lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
        lambda: torch.randint(config.vocab_size, shape),
    )


def pinn(on_gpu: bool) -> tuple[nn.Module, Loss, Callable[[], torch.Tensor]]:
    """The same of points (t, x) in [0, 1] x [-1, 1]."""
    width, points = (1024, 16384) if on_gpu else (32, 64)
    sizes = [2, *[width] * 5, 1]
    layers = [layer for pair in zip(sizes, sizes[1:], strict=False) for layer in made(*pair)]

    def loss(model: nn.Module, where: torch.Tensor) -> torch.Tensor:
        where = where.requires_grad_()
        u = model(where)
        u_t, u_x = gradient(u, where).unbind(1)
        u_xx = gradient(u_x, where)[:, 1]
        start = where.detach() * torch.tensor([0.0, 1.0], device=where.device)
        initial = model(start) + torch.sin(torch.pi * start[:, 1:])
        return (u_t + u[:, 0] * u_x - 0.01 * u_xx).square().mean() + initial.square().mean()

    return (
        nn.Sequential(*layers[:-1]),
        loss,
        lambda: torch.rand(points, 2) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0]),
    )


def made(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(inputs, outputs), nn.Tanh()


def gradient(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), by, create_graph=True)[0]


MODELS = {"gpt2": gpt2, "pinn": pinn}


class Training:
    """A model in training, step by step."""

    def __init__(self, model: nn.Module, loss: Loss, batches: list[torch.Tensor]) -> None:
        self.model, self.loss, self.batches = model, loss, batches
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        batch = self.batches[len(self.losses)].clone()
        start = self._now()
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(self._now() - start)
        self.losses.append(loss.item())

    def milliseconds(self) -> float:
        """The median step, without the first ones, in which memory is found."""
        return 1000 * statistics.median(self.seconds[len(self.seconds) // 4 :])

    def weights(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def _now(self) -> float:
        if self.batches[0].is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for name in args.models:
        if name not in MODELS:
            parser.error(f"there is no model {name}; choose of {', '.join(MODELS)}")
    torch.set_float32_matmul_precision("highest")

    print(
        f"on {args.device}, {args.steps} steps each; the last losses, and the distance between the"
    )
    print("weights in the end, as a part of that from where they began")
    print("model     layers  ms with torch  ms converted  ratio      loss  converted    apart")
    for name in args.models or MODELS:
        torch.manual_seed(args.seed)
        model, loss, batch = MODELS[name](torch.device(args.device).type == "cuda")
        model = model.to(args.device)
        batches = [batch().to(args.device) for _ in range(args.steps)]
        converted = copy.deepcopy(model)
        layers = len(torch_tiled.convert(converted).changed)
        theirs, ours = (Training(each, loss, batches) for each in (model, converted))
        start = theirs.weights()
        for _ in range(args.steps):  # in turns, so that both have the same clocks
            theirs.step()
            ours.step()
        moved = (theirs.weights() - start).norm()
        apart = (ours.weights() - theirs.weights()).norm() / moved
        before, after = theirs.milliseconds(), ours.milliseconds()
        print(
            f"{name:8}  {layers:6}  {before:13.2f}  {after:12.2f}  {before / after:5.2f}"
            f"  {theirs.losses[-1]:8.5f}   {ours.losses[-1]:8.5f}  {apart:7.1e}"
        )


if __name__ == "__main__":
    main()
