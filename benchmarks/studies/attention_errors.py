"""Measures the error of attention against float64, beside that of two functions of PyTorch.

    python -m benchmarks.studies.attention_errors
    python -m benchmarks.studies.attention_errors --device cuda --queries 256

PyTorch's are scaled_dot_product_attention as it is, and with plain products and a softmax. The
table has relative Frobenius errors in units of 1e-7, means over seeds, and the shrinkage of
torch_tiled's result, <result - exact, exact> / <exact, exact>, in units of u = 2^-24.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_tiled.nn.functional import scaled_dot_product_attention

SIZES = ((1024, 64), (4096, 64), (1024, 128))  # keys and columns
SEEDS = 4


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


OPERANDS: dict[str, tuple[Callable, Callable]] = {  # what draws q and k, and v
    "normal": (normal, normal),
    "uniform(0, 1)": (lambda *shape: torch.rand(shape), lambda *shape: torch.rand(shape)),
    "lognormal": (lambda *s: 0.3 * torch.randn(s).exp(), lambda *s: torch.randn(s).exp()),
    "large logits": (lambda *shape: 4 * torch.randn(shape), normal),
    "equal keys": (lambda *s: torch.randn(*s[:-2], 1, s[-1]).expand(s), normal),
}


def operands(name: str, queries: int, keys: int, columns: int) -> list[torch.Tensor]:
    """q, k and v of two heads."""
    of_q_and_k, of_v = OPERANDS[name]
    shape = 1, 2, keys, columns
    return [of_q_and_k(1, 2, queries, columns), of_q_and_k(*shape), of_v(*shape)]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v.double()


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, v, algorithm="fp16x3")


def errors(name: str, queries: int, keys: int, columns: int, device: str) -> list[float]:
    """The errors of torch_tiled, of PyTorch's function and of its plain products; the shrinkage."""
    tensors = [x.to(device) for x in operands(name, queries, keys, columns)]
    wanted = exact(*tensors)
    differences = [f(*tensors) - wanted for f in (ours, F.scaled_dot_product_attention, plain)]
    shrinkage = (differences[0] * wanted).sum() / wanted.square().sum() * 2**24
    return [*(float(x.norm() / wanted.norm()) for x in differences), float(shrinkage)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--queries", type=int, default=64)
    options = parser.parse_args(arguments)
    print("| operands | keys | columns | `fp16x3` | PyTorch | its plain products | shrinkage |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in OPERANDS:
        for keys, columns in SIZES:
            found = []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                found.append(errors(name, options.queries, keys, columns, options.device))
            *means, shrinkage = map(statistics.mean, zip(*found, strict=True))
            cells = " | ".join(f"{1e7 * x:.1f}" for x in means)
            print(f"| {name} | {keys} | {columns} | {cells} | {shrinkage:.1f} u |")


if __name__ == "__main__":
    main()
