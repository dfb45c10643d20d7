"""Trains one small network twice, on torch_tiled.nn.Linear and on torch.nn.Linear.

    python examples/digits.py
    python examples/digits.py --algorithm tiled

Both start from the same seed and see the same batches of scikit-learn's bundled digits (1797
images of 8x8). What differs is who multiplies, so the curves should lie on each other.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from shared import Parser, Table, whole
from torch import nn
from torch.nn import functional

import torch_tiled

TEST_IMAGES = 360


@dataclass
class Trained:
    losses: list[float]  # the mean of each epoch
    accuracy: float  # on the test images
    weights: torch.Tensor  # all parameters in a row


def load_digits(device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as rows of 64 numbers from 0 to 1, and their digits, shuffled."""
    try:
        from sklearn import datasets
    except ImportError:
        sys.exit("This example needs scikit-learn for its images: pip install scikit-learn")
    pixels, digits = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(pixels, dtype=torch.float32)[order] / 16
    return images.to(device), torch.tensor(digits)[order].to(device)


def make_network(linear: Callable[..., nn.Linear]) -> nn.Sequential:
    return nn.Sequential(linear(64, 128), nn.ReLU(), linear(128, 64), nn.ReLU(), linear(64, 10))


def train(linear: Callable[..., nn.Linear], args: argparse.Namespace) -> Trained:
    images, digits = load_digits(args.device, args.seed)
    test_images, test_digits = images[:TEST_IMAGES], digits[:TEST_IMAGES]
    images, digits = images[TEST_IMAGES:], digits[TEST_IMAGES:]

    torch.manual_seed(args.seed)  # of the first weights, and of the batches
    network = make_network(linear).to(args.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
    losses = []
    for _ in range(args.epochs):
        order = torch.randperm(len(digits)).to(args.device)
        total = 0.0
        for batch in order.split(args.batch_size):
            loss = functional.cross_entropy(network(images[batch]), digits[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / len(digits))

    with torch.no_grad():
        guesses = network(test_images).argmax(dim=1)
        weights = nn.utils.parameters_to_vector(network.parameters())
    return Trained(losses, (guesses == test_digits).double().mean().item(), weights)


def main() -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("--epochs", type=whole, default=30)
    option("--batch-size", type=whole, default=64)
    option("--lr", type=float, default=0.05)
    known = ["auto", *torch_tiled.algorithms()]
    on_cpu = "of torch_tiled; its choice on a CPU is PyTorch's own product (default: %(default)s)"
    option("--algorithm", default="auto", choices=known, metavar="NAME", help=on_cpu)
    args = parser.parse_args()

    ours = train(partial(torch_tiled.nn.Linear, algorithm=args.algorithm), args)
    theirs = train(nn.Linear, args)

    print(f"on {args.device}, {args.epochs} epochs of batches of {args.batch_size}")
    table = Table("epoch d", "loss with torch_tiled .6f", "loss with torch .6f")
    for epoch, losses in enumerate(zip(ours.losses, theirs.losses, strict=True), start=1):
        table.add(epoch, *losses)
    print(f"test accuracy: torch_tiled {ours.accuracy:.1%}, torch {theirs.accuracy:.1%}")
    apart = (ours.weights - theirs.weights).norm() / theirs.weights.norm()
    print(f"the weights end {apart:.1e} apart, relative to their norm")


if __name__ == "__main__":
    main()
