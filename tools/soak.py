"""Mixes products, layers, captures, threads, streams, contexts and failures for minutes, on a GPU.

    python tools/soak.py --minutes 5
    python tools/soak.py --minutes 1 --seed 7 --only product captured
    compute-sanitizer --report-api-errors no python tools/soak.py --minutes 1 --any-memory

One process does random actions in a random order. Every result is compared by its bits: with the
rows of the product that are computed alone, with a replay, or with the same call elsewhere. At the
end the memory of CUDA, the current context and the bits of some probes are those of the beginning.
compute-sanitizer keeps the Python frames that launched kernels, and with them their tensors: memory
is not compared with --any-memory. Prints a table of the actions, and exits with 1 where a result or
the state differs.
"""

import argparse
import functools
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

# For a package that is built in place and not installed.
sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.caller_state import caller_state

import torch_tiled

WAYS = (
    (torch.float32, {"precision": "fp32"}),
    (torch.float32, {"precision": "ieee"}),
    (torch.float32, {"precision": "tf32"}),
    (torch.bfloat16, {}),
    (torch.float16, {}),
    (torch.float64, {}),
)
MOST = 2**31  # FMAs of a product


class Mismatch(Exception):
    """A result, a version or the state is not what it should be."""


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Mismatch(what)


def side(choose: random.Random) -> int:
    """A side: often small, often a power of two or a neighbour of one."""
    kind = choose.random()
    if kind < 0.1:
        return choose.choice((0, 1, 1, 2))
    size = int(2 ** choose.uniform(1, 12))
    return size if kind < 0.7 else max(1, 2 ** (size.bit_length() - 1) + choose.choice((-1, 0, 1)))


def operand(choose: random.Random, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """A random matrix in a random layout: row- or column-major, padded, shifted."""
    transposed = choose.random() < 0.5
    shift, pad = choose.choice((0, 0, 1, 3)), choose.choice((0, 0, 5))
    height, width = (cols, rows) if transposed else (rows, cols)
    memory = torch.randn(shift + height * (width + pad), device="cuda").to(dtype)
    x = memory[shift:].as_strided((height, width), (width + pad, 1), shift)
    return x.mT if transposed else x


def problem(choose: random.Random):
    """Two operands, and options of their product."""
    dtype, ways = choose.choice(WAYS)
    while True:
        m, n, k = side(choose), side(choose), side(choose)
        if m * n * k < MOST:
            return operand(choose, m, k, dtype), operand(choose, k, n, dtype), ways


def product(choose: random.Random) -> None:
    """A product is the same where some of its rows are computed alone, and writes no operand."""
    a, b, ways = problem(choose)
    versions = a._version, b._version
    whole = torch_tiled.matmul(a, b, **ways)
    first = choose.randrange(len(a) + 1)
    rows = slice(first, first + choose.choice((1, 3, 64)))
    need(torch.equal(whole[rows], torch_tiled.matmul(a[rows], b, **ways)), f"rows {rows}")
    need((a._version, b._version) == versions, "an operand has another version")


def captured(choose: random.Random) -> None:
    """A replayed graph has the bits of a call."""
    a, b, ways = problem(choose)
    torch_tiled.matmul(a, b, **ways)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch_tiled.matmul(a, b, **ways)
    a.normal_()
    graph.replay()
    need(torch.equal(result, torch_tiled.matmul(a, b, **ways)), "a replay")


def trained(choose: random.Random) -> None:
    """A training step of a layer, twice from the same weights, frozen in between."""
    width, height, rows = (max(1, side(choose)) for _ in range(3))
    activation = choose.choice(("none", "relu", "gelu", "silu"))
    layer = torch_tiled.nn.Linear(width, height, activation=activation, device="cuda")
    x = torch.randn(rows, width, device="cuda", requires_grad=True)
    results = []
    for _ in range(2):
        layer.zero_grad()
        x.grad = None
        y = layer(x)
        y.square().sum().backward()
        results.append((y.detach(), x.grad, layer.weight.grad.clone()))
        with torch.no_grad():
            plain = layer(x)  # not y: where gradients are recorded an activation is PyTorch's
            need(torch.equal(torch_tiled.freeze(layer)(x), plain), "a frozen layer")
        torch_tiled.unfreeze(layer)
    need(all(map(torch.equal, *results)), "a training step")


def in_threads(choose: random.Random) -> None:
    """Threads on streams of their own get the bits that one thread gets."""
    problems = [problem(choose) for _ in range(3)]
    expected = [torch_tiled.matmul(a, b, **ways) for a, b, ways in problems]
    torch.cuda.synchronize()
    wrong = []

    def work(order: list[int]) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in order:
                a, b, ways = problems[i]
                if not torch.equal(torch_tiled.matmul(a, b, **ways), expected[i]):
                    wrong.append(i)
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(order,)) for order in ([0, 1, 2], [2, 0, 1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    need(not wrong, f"a thread's product {wrong}")


def in_green_context(choose: random.Random) -> None:
    """A context with a part of the SMs stays current, and changes no bit."""
    a, b, ways = problem(choose)
    expected = torch_tiled.matmul(a, b, **ways)
    torch.cuda.synchronize()
    green = green_context(choose.choice((8, 16, 64)))
    green.set_context()
    result = torch_tiled.matmul(a, b, **ways)
    torch.cuda.synchronize()
    green.pop_context()  # raises where another context is current
    need(torch.equal(result, expected), "a product in a green context")


@functools.cache
def green_context(sms: int):
    from torch.cuda.green_contexts import GreenContext

    return GreenContext.create(num_sms=sms, device_id=torch.cuda.current_device())


def out_of_memory(choose: random.Random) -> None:
    """A product that has no room raises, and the next one is right."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(max(0, free - 2**30), dtype=torch.uint8, device="cuda")
    a = torch.randn(1, 1, device="cuda").expand(2**15, 1)
    try:
        torch_tiled.matmul(a, a.mT)  # 4 GiB
    except torch.OutOfMemoryError:
        pass
    else:
        raise Mismatch("4 GiB in 1 GiB of free memory")
    finally:
        del taken
        torch.cuda.empty_cache()
    product(choose)


def refused(choose: random.Random) -> None:
    """A call with shapes that do not match raises a sentence and leaves no CUDA error."""
    a, b, ways = problem(choose)
    try:
        torch_tiled.matmul(a, torch.cat([b, b[:1]]) if len(b) else b.new_empty(1, 1), **ways)
    except RuntimeError as error:
        need("torch_tiled" in str(error) or "tiled::" in str(error), f"the message {error}")
    else:
        raise Mismatch("shapes that do not match")
    torch.cuda.synchronize()


ACTIONS: dict[str, tuple[Callable[[random.Random], None], float]] = {  # and how often, relatively
    "product": (product, 60),
    "captured": (captured, 8),
    "trained": (trained, 12),
    "in_threads": (in_threads, 8),
    "in_green_context": (in_green_context, 6),
    "out_of_memory": (out_of_memory, 0.05),  # takes half a second
    "refused": (refused, 5),
}


def probes() -> list[torch.Tensor]:
    """Products of fixed operands, one of each way."""
    generator = torch.Generator("cuda").manual_seed(0)
    results = []
    for dtype, ways in WAYS:
        a, b = (
            torch.randn(s, device="cuda", generator=generator) for s in ((65, 2100), (2100, 33))
        )
        results.append(torch_tiled.matmul(a.to(dtype), b.to(dtype), **ways))
    return results


def settled_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def state_without_generators() -> dict:
    return {key: value for key, value in caller_state().items() if "generator" not in key}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=ACTIONS, default=list(ACTIONS))
    parser.add_argument("--any-memory", action="store_true", help="do not compare memory")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("The soak test needs a GPU, and torch.cuda.is_available() is False.")
    choose = random.Random(args.seed)
    torch.manual_seed(args.seed)
    expected = probes()
    names, weights = args.only, [ACTIONS[name][1] for name in args.only]
    done: Counter[str] = Counter()
    state, memory = state_without_generators(), settled_bytes()
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        [name] = choose.choices(names, weights)
        try:
            ACTIONS[name][0](choose)
        except Exception as error:
            sys.exit(f"soak: action {sum(done.values())} of seed {args.seed}, {name}: {error!r}")
        done[name] += 1
    left = settled_bytes() - memory
    table = Table("action", "times", "what it shows", box=None)
    for name in names:
        table.add_row(name, str(done[name]), ACTIONS[name][0].__doc__)
    Console(width=120).print(table)
    if left != 0 and not args.any_memory:
        sys.exit(f"soak: {left} bytes of CUDA's memory are still allocated.")
    if state_without_generators() != state:
        sys.exit("soak: a setting, device, stream or context is not what it was.")
    if not all(map(torch.equal, probes(), expected)):
        sys.exit("soak: a probe has other bits than at the beginning.")
    compared = "state and bits" if args.any_memory else "memory, state and bits"
    print(f"soak: {compared} are those of the beginning.")


if __name__ == "__main__":
    main()
