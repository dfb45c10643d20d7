"""Measures what the README says first: six things, PyTorch and torch_tiled beside each other.

    python -m benchmarks.suites.front_page --json benchmarks/results/front_page.json
    python -m benchmarks.suites.front_page --small --device cpu

    product   float32 and bfloat16 squares: time and error, cuBLAS's as well
    training  a step (forward, backward, Adam) of GPT-2, BERT, ViT and Llama, as they are and
              converted, with attention by torch_tiled.attention, and its share of the step
    prefill   the same of a Llama's logits, without gradients
    prompts   prompts of a Llama: how many have the same bits alone and in a batch
    streamed  a float32 product within a budget of the GPU's memory, and the same one in core

PyTorch computes in IEEE float32, without TF32. Calls of both alternate. The models are those of
examples/tasks.py and have random weights. The file is written anew after each row; a row that
cannot be measured says why, and the exit status is then 1. --small is for a machine without a GPU.
"""

import argparse
import contextlib
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import torch_tiled
from benchmarks import ROOT
from benchmarks.command import DTYPES, Parser, Session, at_least, exit_with
from benchmarks.gemm import machine, variants
from benchmarks.gemm.check import full_precision_peer, judge
from benchmarks.gemm.measure import operand_sets, side_by_side
from benchmarks.pages import files
from benchmarks.stream.host_pool import HostPool
from benchmarks.stream.ways import (
    InCore,
    Problem,
    alternate,
    is_equal,
    release,
    streamed,
    text_of,
)
from benchmarks.suites.shapes import Shape

sys.path.append(str(ROOT / "examples"))  # the models are those of the examples

import models
import same_tokens
import tasks
from shared import now

Step = Callable[[], object]

MODELS = {"gpt2": "GPT-2 small", "bert": "BERT base", "vit": "ViT base", "llama": "Llama 125M"}
PROMPT_WAYS = ("torch", "convert", "invariant")
PROMPTS = 8


def llama(args: argparse.Namespace) -> nn.Module:
    sizes = (128, 2, 2, 1, 100) if args.small else (2048, 12, 16, 8, 32000)
    no_end = {"eos_token_id": None, "pad_token_id": 0}  # each answer has as many tokens
    with torch.device(args.device):
        return tasks.llama_model(*sizes, intermediate_size=sizes[0] * 11 // 4, **no_end).eval()


def converted(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    torch_tiled.convert(model)
    return model


def product(args: argparse.Namespace, dtype: str) -> dict:
    """A square product of torch_tiled and of torch.matmul."""
    size, device = (64 if args.small else 4096), torch.device(args.device)
    sets = operand_sets(Shape(size, size, size), DTYPES[dtype], device)
    contest = variants.plain(sets)
    calls = [contest.ours, contest.peer]
    with full_precision_peer("fp32"):
        ours, peer = (partial(function, *sets[0]) for function, _ in calls)
        error, peer_error = judge(ours, peer, *sets[0], contest.truth)
        spreads = side_by_side(calls, seconds=args.seconds, repeats=args.repeats)
    us, peer_us = (spread.median for spread in spreads)
    return {
        "dtype": dtype,
        "size": size,
        "us": us,
        "peer_us": peer_us,
        "ratio": peer_us / us,
        "tflops": 2 * size**3 / us / 1e6,
        "peer_tflops": 2 * size**3 / peer_us / 1e6,
        "error": error,
        "peer_error": peer_error,
    }


def attention_share(args: argparse.Namespace, step: Step) -> float:
    """The part of a step's time on the device that torch_tiled's attention takes."""
    _, attention, whole = models.profiled(step, args.device != "cpu")
    return attention / whole


def training(args: argparse.Namespace, name: str) -> dict:
    """The median step of a model, as it is and converted."""
    torch.manual_seed(0)
    task = tasks.TASKS[name](full=not args.small)
    inputs = [list(each.shape) for each in task.batch()]
    done = models.compare(task, args.device, args.steps)
    ours, theirs = done.ours.milliseconds(), done.theirs.milliseconds()
    (batch,) = models.draw(task, 1, args.device)
    share = attention_share(args, partial(done.ours.step, batch))
    return {
        "model": MODELS[name],
        "inputs": inputs,
        "parameters": sum(each.numel() for each in done.ours.model.parameters()),
        "layers": done.layers,
        "steps": args.steps,
        "optimizer": "Adam",
        "ms": ours,
        "peer_ms": theirs,
        "ratio": theirs / ours,
        "attention_share": share,
        "loss": done.ours.losses[-1],
        "peer_loss": done.theirs.losses[-1],
    }


def milliseconds(calls: dict[str, Step], repeats: int, x: torch.Tensor) -> dict[str, float]:
    """The median time of each call, after a first one; they alternate, on the device of x."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + repeats):
        for name, call in calls.items():
            start = now(x)
            call()
            times[name].append(now(x) - start)
    return {name: statistics.median(each[1:]) * 1e3 for name, each in times.items()}


@torch.no_grad()
def prefill(args: argparse.Namespace) -> dict:
    """The median time of a Llama's logits, as it is and converted."""
    torch.manual_seed(0)
    shape = (2, 5) if args.small else (16, 512)
    theirs = llama(args)
    tokens = torch.randint(theirs.config.vocab_size, shape, device=args.device)
    ours = converted(theirs)
    tasks.attend(ours)
    calls = {"": partial(ours, tokens), "peer_": partial(theirs, tokens)}
    ms = {f"{name}ms": x for name, x in milliseconds(calls, args.steps, tokens).items()}
    return {
        "model": "Llama 697M",
        "inputs": [list(shape)],
        "parameters": sum(each.numel() for each in ours.parameters()),
        **ms,
        "ratio": ms["peer_ms"] / ms["ms"],
        "attention_share": attention_share(args, calls[""]),
    }


@torch.no_grad()
def prompts(args: argparse.Namespace, dtype: str) -> Iterator[dict]:
    """How many prompts keep their bits in a batch, by way."""
    torch.manual_seed(0)
    model = llama(args).to(same_tokens.DTYPES[dtype])
    length = 5 if args.small else 64
    asked = torch.randint(1, model.config.vocab_size, (PROMPTS, length), device=args.device)

    def answer(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The logits of the prompts and of each token that is generated, and the tokens."""
        tokens, logits = same_tokens.generate(model, list(rows), args.tokens)
        return model(rows).logits, logits, tokens

    for way in PROMPT_WAYS:
        asks = converted(model) if way == "convert" else model
        is_invariant = way == "invariant"
        with torch_tiled.invariant() if is_invariant else contextlib.nullcontext():
            together = answer(asks, asked)
            answers = [answer(asks, row) for row in asked.split(1)]
            alone = [torch.cat(each) for each in zip(*answers, strict=True)]
            calls = {"alone": partial(asks, asked[:1]), "batch": partial(asks, asked)}
            times = milliseconds(calls, args.repeats, asked)
        pairs = list(zip(alone, together, strict=True))
        prefill, steps, tokens = (sum(map(torch.equal, *pair)) for pair in pairs)
        yield {
            "dtype": dtype,
            "way": way,
            "prompts": PROMPTS,
            "length": length,
            "generated": args.tokens,
            "same_prompts": prefill,
            "same_generated": steps,
            "same_tokens": tokens,
            "alone_ms": times["alone"],
            "batch_ms": times["batch"],
        }


def in_budget(args: argparse.Namespace) -> dict:
    """A square product that streams within a budget, and the same one on the GPU as a whole."""
    size, budget = (256, 1 << 19) if args.small else (32768, 4 << 30)
    device = torch.device(args.device)
    release(device)
    pool = HostPool(4 * size**2)
    try:
        if device.type == "cuda":
            pool.pin()
        matrices = (pool.matrix(name, size, size, torch.float32) for name in ("a", "b", "c"))
        problem = Problem(*matrices, device, budget)
        problem.fill()
        problem.forget()
        whole = InCore(problem)
        calls = {"streamed": streamed(problem, [args.device]), "in_core": whole}
        times = alternate(calls, args.repeats, device, 2 * budget)
        for found in times.values():
            if found.failure:
                raise RuntimeError(found.failure)
        # On a CPU blocks are summed by torch.matmul, which promises no bits.
        equal = is_equal(problem.c, whole()) if device.type == "cuda" else None
    finally:
        pool.unpin()
    seconds, in_core = times["streamed"].median, times["in_core"].median
    return {
        "dtype": "float32",
        "size": size,
        "budget": budget,
        "bytes": 3 * 4 * size**2,
        "peak_bytes": times["streamed"].peak_bytes,
        "seconds": seconds,
        "in_core_seconds": in_core,
        "tflops": 2 * size**3 / seconds / 1e12,
        "in_core_tflops": 2 * size**3 / in_core / 1e12,
        "equal": equal,
    }


def jobs(args: argparse.Namespace) -> Iterator[tuple[dict, object]]:
    """What is measured, in its order: what a row is of, and a function that returns its fields."""
    for dtype in ("float32", "bfloat16"):
        yield {"kind": "product", "dtype": dtype}, partial(product, args, dtype)
    for name in MODELS:
        yield {"kind": "training", "model": MODELS[name]}, partial(training, args, name)
    yield {"kind": "prefill"}, partial(prefill, args)
    yield {"kind": "streamed"}, partial(in_budget, args)
    for dtype in same_tokens.DTYPES:
        yield {"kind": "prompts", "dtype": dtype}, partial(prompts, args, dtype)


def measured(what: dict, measure) -> list[dict]:
    """The rows of a job, or one that says why there are none."""
    try:
        found = measure()
        return [what | row for row in ([found] if isinstance(found, dict) else found)]
    except Exception as error:  # a row says what it was, and the run goes on
        return [what | {"failure": text_of(error)}]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.suites.front_page", __doc__)
    option, count = parser.add_argument, at_least(1)
    option("--small", action="store_true", help="sizes for a CPU, which say nothing of times")
    option("--seconds", type=float, default=3.0, help="for the timings of each product")
    option("--repeats", type=count, default=5, help="the fewest passes or calls of each")
    option("--steps", type=count, default=30, help="of each training")
    option("--tokens", type=count, default=16, help="that are generated for each prompt")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args, start = parse(argv), time.monotonic()
    results = {"header": machine.describe(args), "rows": []}
    torch.set_float32_matmul_precision("highest")
    with (
        Session(args, results["header"], partial(files.write, args.json, results)) as session,
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
    ):
        for what, measure in jobs(args):
            results["rows"] += measured(what, measure)
            release(session.device)
            session.save()
            print(f"{time.monotonic() - start:5.0f} s  {results['rows'][-1]}", flush=True)
    return session.status(any("failure" in row for row in results["rows"]))


if __name__ == "__main__":
    exit_with(main)
