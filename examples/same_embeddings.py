"""Embeds texts one by one and in batches by a BERT of random weights: are the bits the same?

    python examples/same_embeddings.py
    python examples/same_embeddings.py --texts 200 --dtype bfloat16
    python examples/same_embeddings.py --texts 1000 --graph

Texts are random tokens, and their lengths are uniform in 4 to 128. A batch is padded on the right
to its longest text; an embedding is the mean over a text's tokens, scaled to length 1, as
sentence-transformers computes it. Batches have the texts in random order, or sorted by length.
Each way is compared with its own embeddings of one text at a time, and all batches are timed. On a
CPU the model and the texts are few, since torch_tiled computes there as a GPU does, slowly.

The host bounds small batches. With --graph it replays a CUDA graph of the model, one for each size
of batch; texts are then all padded to 128 tokens, so both orders are the same work.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from shared import Parser, Table, now, whole
from torch import nn
from torch.nn import functional

import torch_tiled

SHORTEST, LONGEST = 4, 128
VOCABULARY = 30522
SIZES = (7, 32, 256)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WAYS: dict[str, Callable[[], AbstractContextManager]] = {
    "PyTorch": contextlib.nullcontext,
    "invariant()": torch_tiled.invariant,
}
# From the padded tokens of a batch to its last hidden states and its mask.
Compute = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def bert(layers: int, width: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 64, 1),
        intermediate_size=4 * width,
        max_position_embeddings=LONGEST,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def draw(count: int) -> list[torch.Tensor]:
    """The tokens of each text, in the host's memory."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,)).tolist()
    return [torch.randint(1, VOCABULARY, (length,)) for length in lengths]


def call(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden states of (texts, tokens), (texts, tokens, width), and the tokens' mask."""
    tokens = tokens.to(model.device)
    mask = (tokens != 0).long()
    return model(tokens, attention_mask=mask).last_hidden_state, mask


@torch.no_grad()
def capture(model: nn.Module, size: int) -> Compute:
    """call() of up to `size` texts, by a CUDA graph of `size` texts of LONGEST tokens.

    The results are in the graph's memory: the next replay overwrites them.
    """
    # Rows of one token, so that the calls before the capture have a mask, too.
    static = torch.zeros(size, LONGEST, dtype=torch.long, device=model.device)
    static[:, 0] = 1
    with torch.cuda.device(model.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call(model, static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            states, mask = call(model, static)

    def replay(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, length = tokens.shape
        padded = functional.pad(tokens, (0, LONGEST - length, 0, size - count))
        padded[count:, 0] = 1
        static.copy_(padded)
        graph.replay()
        return states[:count], mask[:count]

    return replay


def embed(compute: Compute, texts: list[torch.Tensor]) -> torch.Tensor:
    """The embeddings of a batch, (texts, width)."""
    states, mask = compute(nn.utils.rnn.pad_sequence(texts, batch_first=True))
    weights = mask[..., None].to(states.dtype)
    mean = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
    return functional.normalize(mean, p=2, dim=-1)


@torch.no_grad()
def encode(
    compute: Compute, texts: list[torch.Tensor], size: int, order: list[int]
) -> tuple[torch.Tensor, float]:
    """The embeddings of all texts, batched in this order, and how many texts a second."""
    warm = embed(compute, [texts[i] for i in order[:size]])
    start, parts = now(warm), []
    for begin in range(0, len(order), size):
        parts.append(embed(compute, [texts[i] for i in order[begin : begin + size]]))
    seconds = now(warm) - start
    found = torch.cat(parts)
    return found[torch.tensor(order).argsort().to(found.device)], len(texts) / seconds


def main(argv: list[str] | None = None) -> None:
    parser = Parser(__doc__)
    option = parser.add_argument
    option("--texts", type=whole, help="2000; 40 on a CPU")
    option("--layers", type=whole, help="12; 2 on a CPU")
    option("--width", type=whole, help="a multiple of 64: 768; 64 on a CPU")
    option("--dtype", choices=DTYPES, default="float32")
    option("--graph", action="store_true", help="replay a CUDA graph for each size of batch")
    args = parser.parse_args(argv)
    if args.graph and args.device == "cpu":
        sentence = "--graph needs a CUDA device, and --device is cpu"
        parser.error(f"{sentence}; leave --graph out or say --device cuda")
    count, layers, width = (40, 2, 64) if args.device == "cpu" else (2000, 12, 768)
    count, layers, width = args.texts or count, args.layers or layers, args.width or width
    try:
        model = bert(layers, width).to(args.device, DTYPES[args.dtype])
    except ModuleNotFoundError as error:
        sys.exit(f"This example needs {error.name}: pip install {error.name}")
    texts = draw(count)
    print(f"{count} texts of {SHORTEST} to {LONGEST} tokens by a BERT of {layers} layers of width")
    print(f"{width} in {args.dtype} on {args.device}; equal: to the bit, with a batch of 1\n")

    def prepare(size: int) -> Compute:
        return capture(model, size) if args.graph else functools.partial(call, model)

    shuffled = torch.randperm(len(texts)).tolist()
    orders = {
        "shuffled": shuffled,
        "by length": sorted(shuffled, key=lambda i: -len(texts[i])),
    }
    table = Table("way 11s", "batch 5d", "order 9s", "equal 7.1%", "texts/s 8.1f", bars=True)
    for way, statement in WAYS.items():
        with statement():
            alone, speed = encode(prepare(1), texts, 1, shuffled)
            table.add(way, 1, "any", 1, speed)
            for size in SIZES:
                compute = prepare(size)
                for name, order in orders.items():
                    found, speed = encode(compute, texts, size, order)
                    equal = (found == alone).all(dim=1).double().mean().item()
                    table.add(way, size, name, equal, speed)


if __name__ == "__main__":
    main()
