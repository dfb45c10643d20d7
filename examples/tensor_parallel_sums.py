"""Sums over tensor-parallel ranks by a tree: 1, 2, 4 and 8 ranks give the same bits.

    python examples/tensor_parallel_sums.py
    torchrun --standalone --nproc-per-node 4 examples/tensor_parallel_sums.py

A row-parallel layer divides K among ranks, and adds their results. A sum of the whole of each
rank's part has other bits for another number of ranks. By the tree, K has 8 equal parts, a part's
product has torch_tiled's order, and the results are added as ((0 + 1) + (2 + 3)) + ((4 + 5) +
(6 + 7)). A rank has a whole subtree: it adds that, and the rest is the same for all.

The table has the share of elements with the bits of one rank. Ranks are slices of K on one device
and, by torchrun, processes. On a CPU products name an algorithm, since `auto` is PyTorch's there.
"""

import os

import torch
import torch.distributed as dist
from shared import Parser, Table

import torch_tiled

PARTS = 8
RANKS = 1, 2, 4, 8
DTYPES = torch.float32, torch.bfloat16, torch.float16, torch.float64


def add_by_tree(sums: list[torch.Tensor]) -> torch.Tensor:
    """The sum of 1, 2, 4 or 8 tensors: neighbours are added, then their sums."""
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def multiply(
    x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x @ weight.mT."""
    algorithm = "auto" if x.is_cuda else "tiled"
    return torch_tiled.matmul(x, weight.mT, algorithm=algorithm, out_dtype=out_dtype)


def sum_of_rank(x: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """A rank's subtree, (M, N), from its slices of x, (M, K / ranks), and weight, (N, K / ranks).

    Sums of 16-bit floats stay in float32.
    """
    if ranks not in RANKS:
        raise ValueError(f"there are {ranks} ranks; a tree of {PARTS} parts is for 1, 2, 4 or 8")
    parts = PARTS // ranks
    if x.shape[-1] % parts:
        raise ValueError(
            f"a rank has {x.shape[-1]} columns of K and {parts} parts, which cannot be equal; "
            f"append columns of zeros to x and weight until K is a multiple of {PARTS}"
        )
    x, weight = (y.unflatten(-1, (parts, -1)).movedim(-2, 0) for y in (x, weight))
    out_dtype = torch.float32 if x.dtype.itemsize == 2 else None
    return add_by_tree(list(multiply(x, weight, out_dtype)))


def sum_of_slices(x: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """x @ weight.mT, (M, N), with ranks that are slices of K."""
    slices = zip(x.chunk(ranks, -1), weight.chunk(ranks, -1), strict=True)
    return add_by_tree([sum_of_rank(*own, ranks) for own in slices]).to(x.dtype)


def sum_of_processes(
    x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """The same in every process of a group, from its own slices of K."""
    ranks = dist.get_world_size(group)
    own = sum_of_rank(x, weight, ranks)
    sums = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(sums, own, group=group)
    return add_by_tree(sums).to(x.dtype)


def plain_sum(x: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """The sum of one product a rank, as an all-reduce has it."""
    slices = zip(x.chunk(ranks, -1), weight.chunk(ranks, -1), strict=True)
    return sum(multiply(*own) for own in slices)


def main(argv: list[str] | None = None) -> None:
    args = Parser(__doc__).parse_args(argv)
    processes = int(os.environ.get("WORLD_SIZE", "0"))
    device = torch.device(args.device)
    if processes:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    m, n, k = (512, 4096, 9280) if device.type == "cuda" else (16, 64, 1600)
    is_first = not processes or dist.get_rank() == 0
    table = Table("dtype 8s", "ranks 9s", "by a tree 9.4f", "plain 9.4f") if is_first else None
    for dtype in DTYPES:
        # The same numbers in every process.
        x, weight = (torch.randn(rows, k).to(device, dtype) for rows in (m, n))

        def share(ours: torch.Tensor, of_one_rank: torch.Tensor) -> float:
            return (ours == of_one_rank).float().mean().item()

        by_tree, plain = sum_of_slices(x, weight, 1), plain_sum(x, weight, 1)
        name = str(dtype).removeprefix("torch.")
        for ranks in RANKS if is_first else ():
            trees = share(sum_of_slices(x, weight, ranks), by_tree)
            table.add(name, f"{ranks} slices", trees, share(plain_sum(x, weight, ranks), plain))
        if processes:
            own_x, own_weight = (y.chunk(processes, -1)[dist.get_rank()] for y in (x, weight))
            own = multiply(own_x, own_weight)
            dist.all_reduce(own)
            trees = share(sum_of_processes(own_x, own_weight), by_tree)
            if is_first:
                table.add(name, f"{processes} processes", trees, share(own, plain))
    if processes:
        dist.barrier()  # gloo's threads are done with what they sent
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
