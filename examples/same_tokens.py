"""Generates tokens with a Qwen3 of random weights: does an answer depend on the batch?

    python examples/same_tokens.py
    python examples/same_tokens.py --dtype bfloat16 --prompts 32 --tokens 64

Prompts of different lengths are asked one by one; in a batch, which transformers pads on the left;
in the batch reversed; and by transformers' continuous batching, in which prompts come and go. Each
way's tokens and their log-probabilities are compared to the bit with its own of one prompt at a
time. "training" is a forward pass with gradients and without a cache of the same tokens, padded on
the right, as of reinforcement learning.

tokens/s counts tokens that are generated, and of "training" those that are computed. On a CPU the
model is small, since torch_tiled computes there as a GPU does, slowly.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from shared import Parser, Table, now, whole
from torch import nn
from torch.nn import functional

import torch_tiled

SHORTEST = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WAYS: dict[str, Callable[[], AbstractContextManager]] = {
    "PyTorch": contextlib.nullcontext,
    "invariant()": torch_tiled.invariant,
}


def qwen3(layers: int, width: int, vocabulary: int) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads = max(width // 64, 2)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128 if width >= 1024 else 32,
        eos_token_id=None,  # each answer has as many tokens
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


@dataclass(frozen=True)
class Answers:
    tokens: torch.Tensor  # (prompts, tokens)
    log_probs: torch.Tensor  # of these tokens, by log_softmax, or the logarithms of a softmax
    per_second: float

    def equal(self, expected: torch.Tensor, tokens: torch.Tensor) -> tuple[int, int]:
        """How many tokens and log-probabilities are these."""
        return (self.tokens == tokens).sum().item(), (self.log_probs == expected).sum().item()


def selected(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, tokens[..., None]).squeeze(-1)


def padded(rows: list[torch.Tensor], side: str) -> dict[str, torch.Tensor]:
    pad = nn.utils.rnn.pad_sequence
    tokens = pad(rows, batch_first=True, padding_side=side)
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
    return {"input_ids": tokens, "attention_mask": mask}


def generate(model: nn.Module, prompts: list[torch.Tensor], count: int) -> tuple[torch.Tensor, ...]:
    """The tokens that follow each prompt, and their logits in float32."""
    given = padded(prompts, "left")
    options = {"max_new_tokens": count, "do_sample": False}
    done = model.generate(**given, **options, output_logits=True, return_dict_in_generate=True)
    return done.sequences[:, given["input_ids"].shape[1] :], torch.stack(done.logits, 1).float()


def answers(model, prompts, count, batches) -> tuple[Answers, torch.Tensor]:
    """Those of batches of prompts, and the logarithms of their probabilities."""
    start = now(prompts[0])
    found = [generate(model, [prompts[i] for i in batch], count) for batch in batches]
    seconds = now(prompts[0]) - start
    order = torch.tensor(sum(batches, [])).argsort().to(prompts[0].device)
    tokens, logits = (torch.cat(each)[order] for each in zip(*found, strict=True))
    log_probs = selected(logits.log_softmax(-1), tokens)
    logs = selected(functional.softmax(logits, -1), tokens).log()
    return Answers(tokens, log_probs, tokens.numel() / seconds), logs


def training(model: nn.Module, prompts: list[torch.Tensor], tokens: torch.Tensor) -> Answers:
    """The log-probabilities of tokens by a forward pass over prompts with their answers."""
    rows = [torch.cat(pair) for pair in zip(prompts, tokens, strict=True)]
    given = padded(rows, "right")
    start = now(tokens)
    with torch.enable_grad():
        logits = model.train()(**given, use_cache=False).logits.detach()
    seconds = now(tokens) - start
    model.eval()
    count = tokens.shape[1]
    ends = [len(prompt) - 1 for prompt in prompts]
    logits = torch.stack([row[end : end + count] for row, end in zip(logits, ends, strict=True)])
    log_probs = selected(logits.float().log_softmax(-1), tokens)
    return Answers(tokens, log_probs, sum(map(len, rows)) / seconds)


@contextlib.contextmanager
def other_threads_too(model: nn.Module) -> Iterator[None]:
    """Continuous batching computes in a thread of its own, which ends with it.

    It also packs prompts, whose limits transformers' "sdpa" leaves in a mask alone.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    caller, entered = threading.current_thread(), set()

    def enter(*_) -> None:
        thread = threading.current_thread()
        if thread not in (caller, *entered):
            entered.add(thread)
            torch_tiled.invariant.enable()

    sdpa, hook = ALL_ATTENTION_FUNCTIONS["sdpa"], model.register_forward_pre_hook(enter)
    torch_tiled.attention.register("sdpa")
    try:
        yield
    finally:
        hook.remove()
        ALL_ATTENTION_FUNCTIONS.register("sdpa", sdpa)


def continuous(model: nn.Module, prompts: list[torch.Tensor], count: int) -> Answers:
    """Answers by continuous batching of at most so many tokens a step that prompts are cut."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = ContinuousBatchingConfig(
        return_logprobs=True,
        page_size=32,
        num_blocks=len(prompts) * -(-(max(map(len, prompts)) + count) // 32),
        max_batch_tokens=2 * max(map(len, prompts)),
        allow_block_sharing=False,
        use_cuda_graph=False,
        use_async_batching=False,
        auto_switch_to_flash=False,
    )
    options = GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    device, start = prompts[0].device, now(prompts[0])
    found = model.generate_batch(
        [prompt.tolist() for prompt in prompts],
        generation_config=options,
        continuous_batching_config=config,
        warmup=False,
    ).values()
    seconds = now(prompts[0]) - start
    for each in found:
        if each.error is not None:
            raise RuntimeError(each.error)
    tokens = torch.tensor([each.generated_tokens for each in found], device=device)
    log_probs = torch.tensor([each.logprobs for each in found], device=device)
    return Answers(tokens, log_probs, tokens.numel() / seconds)


@torch.no_grad()
def compare(
    model: nn.Module, prompts: list[torch.Tensor], count: int, way: str
) -> Iterator[tuple[str, int, int, float]]:
    """Each case, its equal tokens and log-probabilities, and its tokens a second."""
    numbers = list(range(len(prompts)))
    with WAYS[way]():
        generate(model, prompts, 2)  # loads the kernels
        alone, logs = answers(model, prompts, count, [[i] for i in numbers])
        expected = alone.log_probs, alone.tokens
        yield "one by one", *alone.equal(*expected), alone.per_second
        for name, order in (("a batch", numbers), ("the batch reversed", numbers[::-1])):
            found, _ = answers(model, prompts, count, [order])
            yield name, *found.equal(*expected), found.per_second
        with other_threads_too(model) if way == "invariant()" else contextlib.nullcontext():
            found = continuous(model, prompts, count)
        yield "continuous batching", *found.equal(logs, alone.tokens), found.per_second
        found = training(model, prompts, alone.tokens)
        yield "training", *found.equal(*expected), found.per_second


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    option("--prompts", type=whole, default=8)
    option("--longest", type=whole, default=128, help="the tokens of the longest prompt")
    option("--tokens", type=whole, help="that follow each prompt: 32; 4 on a CPU")
    option("--layers", type=whole, help="12; 2 on a CPU")
    option("--width", type=whole, help="a multiple of 64: 1024; 64 on a CPU")
    args = parser.parse_args(argv)
    on_cpu = args.device == "cpu"
    tokens, layers, width, vocabulary = (4, 2, 64, 128) if on_cpu else (32, 12, 1024, 32000)
    tokens, layers, width = args.tokens or tokens, args.layers or layers, args.width or width
    try:
        model = qwen3(layers, width, vocabulary).to(args.device)
    except ModuleNotFoundError as error:
        sys.exit(f"This example needs {error.name}: pip install {error.name}")
    model.set_attn_implementation("sdpa")
    lengths = torch.linspace(args.longest, SHORTEST, args.prompts).long().tolist()
    prompts = [torch.randint(1, vocabulary, (n,), device=args.device) for n in lengths]
    print(f"{args.prompts} prompts of {lengths[-1]} to {lengths[0]} tokens, and {tokens} that")
    print(
        f"follow each, by a Qwen3 of {layers} layers of width {width} on {args.device}; equal: of"
    )
    print(f"{args.prompts * tokens}, to the bit, with those of one prompt at a time\n")
    counts = "equal tokens 5d", "equal log-probabilities 5d", "tokens/s 8.1f"
    table = Table("dtype 8s", "way 11s", "prompts 19s", *counts, bars=True)
    for dtype in args.dtype:
        for way in WAYS:
            for row in compare(model.to(DTYPES[dtype]), prompts, tokens, way):
                table.add(dtype, way, *row)


if __name__ == "__main__":
    main()
