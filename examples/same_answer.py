"""Asks a Llama of random weights each prompt alone and in a batch of 8: are its answers the same?

    python examples/same_answer.py
    python examples/same_answer.py --dtype bfloat16 --tokens 32

PyTorch's products and attention may sum in another order for another number of rows, so that an
answer depends on what is asked beside it; torch_tiled's do not. Ways of three kinds are compared:
PyTorch; torch_tiled.convert, which leaves attention to PyTorch; and torch_tiled.override, which on
a Hopper GPU takes float32 attention, too. With "eager" attention is matrix products and a softmax,
as transformers writes it. With "means" the means of norms are products: PyTorch's mean may depend
on the number of rows.

On a CPU torch_tiled leaves all to PyTorch unless an algorithm is named, so convert and override
name one there. The model has 12 layers of width 2048 on a GPU, and 2 of width 128 on a CPU.
"""

import contextlib
import copy
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from shared import Parser, Table, now, whole
from tasks import llama_model
from torch import nn
from torch.overrides import TorchFunctionMode

import torch_tiled

PROMPTS = 8
TIMES = 5  # that a prefill is timed
ON_CPU = "tiled"  # the algorithm there: it takes every dtype and size
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def llama(full: bool) -> nn.Module:
    width, *sizes = (2048, 12, 16, 8, 32000) if full else (128, 2, 2, 1, 100)
    # Multiples of 32: PyTorch's silu on a CPU rounds elements in whole SIMD registers and those
    # that are left over in different ways.
    inner = width * 11 // 4
    no_end = {"eos_token_id": None}  # each answer has as many tokens
    return llama_model(width, *sizes, intermediate_size=inner, **no_end).eval()


class ByName(TorchFunctionMode):
    """Stands for torch_tiled.override on a CPU: names algorithms for products and attention."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return torch_tiled.linear(*args, **kwargs, algorithm=ON_CPU)
        if func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            return torch_tiled.matmul(*args, **kwargs, algorithm=ON_CPU)
        if func is nn.functional.scaled_dot_product_attention and args[0].dtype == torch.float32:
            attention = torch_tiled.nn.functional.scaled_dot_product_attention
            return attention(*args, **kwargs, algorithm="fp16x3")
        return func(*args, **kwargs)


class Means(TorchFunctionMode):
    """Makes a mean over the last dimension, as LlamaRMSNorm takes it, a product of torch_tiled."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not torch.Tensor.mean or args[1:] != (-1,) or kwargs != {"keepdim": True}:
            return func(*args, **kwargs)
        (x, _) = args
        weights = x.new_full((x.shape[-1], 1), 1 / x.shape[-1])
        algorithm = ON_CPU if x.is_cpu else "auto"
        return torch_tiled.matmul(x, weights, precision="ieee", algorithm=algorithm)


def converted(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    torch_tiled.convert(model)
    if next(model.parameters()).is_cpu:
        for layer in model.modules():
            if isinstance(layer, torch_tiled.nn.Linear):
                layer.algorithm = ON_CPU
    return model


def overriding(model: nn.Module) -> AbstractContextManager:
    return ByName() if next(model.parameters()).is_cpu else torch_tiled.override()


@contextlib.contextmanager
def overriding_means(model: nn.Module) -> Iterator[None]:
    with overriding(model), Means():
        yield


@dataclass(frozen=True)
class Way:
    name: str
    attention: str  # as transformers calls it
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model
    statement: Callable[[nn.Module], AbstractContextManager] = lambda _: contextlib.nullcontext()


WAYS = (
    Way("torch", "sdpa"),
    Way("convert", "sdpa", prepare=converted),
    Way("override", "sdpa", statement=overriding),
    Way("override, means", "sdpa", statement=overriding_means),
    Way("torch, eager", "eager"),
    Way("override, eager", "eager", statement=overriding),
    Way("override, eager, means", "eager", statement=overriding_means),
)


@dataclass(frozen=True)
class Answers:
    """How many prompts have the same bits alone as in the batch, and milliseconds."""

    prefill: int  # the same logits of all their tokens
    steps: int  # the same logits of each token that is generated
    tokens: int  # the same tokens
    alone_ms: float
    batch_ms: float


def prefill_ms(model: nn.Module, prompts: torch.Tensor) -> float:
    times = []
    for _ in range(1 + TIMES):
        start = now(prompts)
        model(prompts)
        times.append(now(prompts) - start)
    return statistics.median(times[1:]) * 1e3


def generate(model: nn.Module, prompts: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """The logits of the prompts, those of each token that is generated greedily, and the tokens."""
    mask = torch.ones_like(prompts)  # no padding
    done = model.generate(
        prompts,
        attention_mask=mask,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return model(prompts).logits, torch.stack(done.logits, dim=1), done.sequences


@torch.no_grad()
def ask(way: Way, model: nn.Module, prompts: torch.Tensor, tokens: int) -> Answers:
    model = way.prepare(model)
    model.set_attn_implementation(way.attention)
    same = torch.zeros(3, dtype=torch.int64)
    with way.statement(model):
        in_batch = generate(model, prompts, tokens)
        for i, prompt in enumerate(prompts.split(1)):
            alone = generate(model, prompt, tokens)
            pairs = zip(alone, in_batch, strict=True)
            same += torch.tensor([torch.equal(x[0], y[i]) for x, y in pairs])
        times = prefill_ms(model, prompts[:1]), prefill_ms(model, prompts)
    return Answers(*same.tolist(), *times)


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    option("--tokens", type=whole, default=8, help="to generate (default: %(default)s)")
    option("--prompt", type=whole, help="tokens of a prompt; 64, on a CPU 5")
    args = parser.parse_args(argv)
    full = args.device != "cpu"
    try:
        with torch.device(args.device):
            model = llama(full)
    except ModuleNotFoundError as error:
        sys.exit(f"This example needs {error.name}: pip install {error.name}")
    length = args.prompt or (64 if full else 5)
    shape = (PROMPTS, length)
    prompts = torch.randint(model.config.vocab_size, shape, device=args.device)

    print(
        f"on {args.device}, {PROMPTS} prompts of {length} tokens, each alone and in a batch of all"
    )
    if not full:
        print(f"On a CPU auto is torch.matmul itself: convert and override name {ON_CPU!r} here,")
        print("and fp16x3 for float32 attention.")
    print(f"\nlogits: those of {PROMPTS} prompts that are equal to the bit alone and in the batch,")
    print(f"in all tokens of the prompt, and in {args.tokens} tokens that are generated")
    counts = "prompt d", "generated d", "tokens d"
    table = Table("dtype 8s", "way 22s", *counts, "ms alone .2f", "in a batch .2f")
    for dtype in args.dtype:
        for way in WAYS:
            done = ask(way, model.to(DTYPES[dtype]), prompts, args.tokens)
            same = done.prefill, done.steps, done.tokens
            table.add(dtype, way.name, *same, done.alone_ms, done.batch_ms)


if __name__ == "__main__":
    main()
