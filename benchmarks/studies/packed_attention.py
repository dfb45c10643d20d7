"""Times attention of packed sequences beside a padded batch and beside one sequence at a time.

    python -m benchmarks.studies.packed_attention

Rows are float32, of 16 heads of 64 columns, and sequences attend to themselves. The table has
milliseconds of the forward pass and of that and the backward pass, medians of interleaved calls:
torch_tiled's packed sequences, a padded batch with a mask of its keys by torch_tiled and by
PyTorch, padding and unpadding included, and PyTorch's function for each sequence.
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from torch_tiled._op.attention_packed import mask_of_keys, pad, unpad
from torch_tiled.nn.functional import scaled_dot_product_attention as ours
from torch_tiled.nn.functional import scaled_dot_product_attention_varlen as varlen

HEADS, COLUMNS = 16, 64
LENGTHS: dict[str, Callable[[], torch.Tensor]] = {  # of the sequences
    "64 of 1 to 512": lambda: torch.randint(1, 513, (64,)),
    "16 of 512": lambda: torch.full((16,), 512),
    "32, lognormal": lambda: (torch.randn(32).exp() * 200).long().clamp(8, 4096),
    "1 of 4096": lambda: torch.tensor([4096]),
    "256 of 16 to 64": lambda: torch.randint(16, 65, (256,)),
}


class Packed:
    """Sequences of these lengths, and the ways to compute their attention."""

    def __init__(self, lengths: torch.Tensor, device: str) -> None:
        self.ends = [0, *itertools.accumulate(lengths.tolist())]
        self.offsets = torch.tensor(self.ends, dtype=torch.int32, device=device)
        self.longest = int(lengths.max())
        self.tensors = torch.randn(3, self.ends[-1], HEADS, COLUMNS, device=device).unbind()

    def packed(self, *tensors: torch.Tensor) -> torch.Tensor:
        ends = self.offsets, self.offsets, self.longest, self.longest
        return varlen(*tensors, *ends, algorithm="fp16x3")

    def padded(self, attention: Callable, *tensors: torch.Tensor) -> torch.Tensor:
        rows = tensors[0].shape[0]
        mask = mask_of_keys(self.offsets, self.longest, rows)
        q, k, v = (pad(x, self.offsets, self.longest) for x in tensors)
        return unpad(attention(q, k, v, attn_mask=mask), self.offsets, rows)

    def one_by_one(self, *tensors: torch.Tensor) -> torch.Tensor:
        outs = []
        for start, end in itertools.pairwise(self.ends):
            q, k, v = (x[start:end].transpose(0, 1)[None] for x in tensors)
            outs.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
        return torch.cat(outs)

    def ways(self) -> dict[str, Callable]:
        return {
            "packed": self.packed,
            "padded": functools.partial(self.padded, functools.partial(ours, algorithm="fp16x3")),
            "PyTorch, padded": functools.partial(self.padded, F.scaled_dot_product_attention),
            "PyTorch, one by one": self.one_by_one,
        }


def step(way: Callable, *tensors: torch.Tensor) -> None:
    leaves = [x.detach().requires_grad_() for x in tensors]
    torch.autograd.grad(way(*leaves), leaves, tensors[0])


def milliseconds(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000)  # so that the host is ahead
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def medians(calls: dict[str, Callable], repeats: int, device: str) -> list[float]:
    for call in calls.values():
        call()
    rounds = [[milliseconds(f, device) for f in calls.values()] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    print("| sequences | tokens | pass | packed | padded | PyTorch, padded | one by one |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name, lengths in LENGTHS.items():
        case = Packed(lengths(), options.device)
        ways = case.ways()
        forward = {k: functools.partial(f, *case.tensors) for k, f in ways.items()}
        both = {k: functools.partial(step, f, *case.tensors) for k, f in ways.items()}
        for which, calls in (("forward", forward), ("both", both)):
            times = medians(calls, options.repeats, options.device)
            cells = " | ".join(f"{x:.3g}" for x in times)
            print(f"| {name} | {case.ends[-1]} | {which} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
