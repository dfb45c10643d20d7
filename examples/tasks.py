"""Ten models as people have them, and for each something to learn: what models.py trains.

Each has two sizes, one as it is used, which wants a GPU, and one that a CPU trains in seconds. The
six of transformers have random weights, and their data are drawn by a rule: nothing is downloaded.
Dropout is off everywhere: trainings that are to be compared would drop different numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

import torch_tiled

CLASSES = 4

# Of BERT and ViT on a CPU.
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}

Batch = tuple[torch.Tensor, ...]


@dataclass
class Task:
    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    batch: Callable[[], Batch]  # draws one, on the CPU
    learning_rate: float
    # Of a batch, from 0 to 1, where there is a right answer.
    accuracy: Callable[[nn.Module, Batch], torch.Tensor] | None = None
    # What else the converted model needs, beside torch_tiled.convert().
    prepare: Callable[[nn.Module], object] = lambda model: None
    has_experts: bool = False  # of transformers
    overrides: bool = False  # the converted model runs under torch_tiled.override()


def learning_rate(full: bool) -> float:
    return 1e-4 if full else 3e-3


def gpt2(full: bool) -> Task:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    ends = {"bos_token_id": None, "eos_token_id": None}  # the small vocabulary has none
    config = GPT2Config(**({} if full else small), **dropout, **ends, use_cache=False)
    return attending(language(GPT2LMHeadModel(config), full))


def llama(full: bool) -> Task:
    """Of 125 million parameters where it is full."""
    width, *sizes = (768, 12, 12, 4, 32000) if full else (64, 2, 2, 1, 100)
    model = llama_model(width, *sizes, intermediate_size=width * 8 // 3, use_cache=False)
    return attending(language(model, full))


def attend(model: nn.Module) -> None:
    """Attention of a model of transformers by torch_tiled, where it is float32 on a Hopper GPU."""
    torch_tiled.attention.register()
    model.set_attn_implementation("torch_tiled")


def attending(task: Task) -> Task:
    return replace(task, prepare=attend)


def llama_model(
    width: int, layers: int, heads: int, groups: int, vocabulary: int, **others
) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        **others,
    )
    return LlamaForCausalLM(config)


def language(model: nn.Module, full: bool) -> Task:
    """Some tokens are more frequent than others, by Zipf's law, as words are."""
    sentences, length = (8, 512) if full else (4, 32)
    frequencies = 1 / torch.arange(1.0, model.config.vocab_size + 1)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        (tokens,) = batch
        logits = model(tokens).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def batch() -> Batch:
        return (frequencies.expand(sentences, -1).multinomial(length, replacement=True),)

    return Task(model, loss, batch, learning_rate(full))


def experts(full: bool) -> Task:
    """A mixture of 32 experts; a token gets 4 of them."""
    from transformers import MixtralConfig, MixtralForCausalLM

    width, heads, count = (768, 12, 32) if full else (64, 2, 4)
    config = MixtralConfig(
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=8 if full else 2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        num_local_experts=count,
        num_experts_per_tok=count // 8 or 2,
        vocab_size=32000 if full else 100,
        use_cache=False,
    )

    def prepare(model: nn.Module) -> None:
        attend(model)
        torch_tiled.experts.register()
        model.set_experts_implementation("torch_tiled")

    task = language(MixtralForCausalLM(config), full)
    return replace(task, prepare=prepare, has_experts=True)


class Float32Head(nn.Module):
    """Words' logits in float32, of activations and weights in bfloat16."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=torch.bfloat16)
        self.body = nn.Linear(width, width, dtype=torch.bfloat16)
        self.mixes = False  # by products of bfloat16 operands that are not rounded

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, words = self.body(self.embed(tokens)).relu(), self.embed.weight
        wide = torch.promote_types(hidden.dtype, torch.float32)
        if self.mixes:
            return torch_tiled.linear(hidden, words, out_dtype=wide)
        return functional.linear(hidden.to(wide), words.to(wide))


def head(full: bool) -> Task:
    """The head of a language model alone: a loss in float32 over 16-bit activations."""
    sentences, length, vocabulary, width = (8, 512, 32000, 2048) if full else (4, 32, 100, 64)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        (tokens,) = batch
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def batch() -> Batch:
        return (torch.randint(vocabulary, (sentences, length)),)

    def prepare(model: nn.Module) -> None:
        model.mixes = True

    model = Float32Head(vocabulary, width)
    return Task(model, loss, batch, learning_rate(full), prepare=prepare)


class SpectralConvolution(nn.Module):
    """A matrix for each of the lowest frequencies, and one for each pixel."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = width, width, modes, modes, 2
        self.weight = nn.Parameter(torch.randn(shape) / width)  # real and imaginary parts
        self.pixels = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = self.modes
        spectrum = torch.fft.rfft2(x)
        weight = torch.view_as_complex(self.weight)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :modes, :modes], weight)
        rest = (0, spectrum.shape[3] - modes, 0, spectrum.shape[2] - modes)
        return torch.fft.irfft2(functional.pad(low, rest), s=x.shape[2:]) + self.pixels(x)


def fno(full: bool) -> Task:
    """A Fourier neural operator learns to solve the heat equation: to blur its input."""
    width, modes, size, count = (128, 32, 128, 16) if full else (8, 4, 16, 4)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 1)]
    for _ in range(4):
        layers += [SpectralConvolution(width, modes), nn.GELU()]
    model = nn.Sequential(*layers, nn.Conv2d(width, width, 1), nn.GELU(), nn.Conv2d(width, 1, 1))
    frequency = torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        before, after = batch
        return functional.mse_loss(model(before), after)

    def batch() -> Batch:
        before = torch.randn(count, 1, size, size)
        after = torch.fft.irfft2(torch.fft.rfft2(before) * torch.exp(-50 * frequency))
        return before, after

    return Task(model, loss, batch, learning_rate(full), overrides=True)


def bert(full: bool) -> Task:
    """A sentence's class is which of the first tokens it has most of."""
    from transformers import BertConfig, BertForSequenceClassification

    small = {**SMALL, "vocab_size": 100}
    dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = BertConfig(
        **({} if full else small), **dropout, num_labels=CLASSES, pad_token_id=None, use_cache=False
    )
    sentences, length = (16, 256) if full else (16, 32)

    def batch() -> Batch:
        classes = torch.randint(CLASSES, (sentences,))
        tokens = torch.randint(config.vocab_size, (sentences, length))
        return torch.where(torch.rand(tokens.shape) < 0.2, classes[:, None], tokens), classes

    return attending(classification(BertForSequenceClassification(config), batch, full))


def vit(full: bool) -> Task:
    from transformers import ViTConfig, ViTForImageClassification

    small = {**SMALL, "image_size": 32, "patch_size": 8}
    config = ViTConfig(**({} if full else small), num_labels=CLASSES)
    return attending(images(ViTForImageClassification(config), full))


def convnext(full: bool) -> Task:
    """ConvNeXt-tiny where it is full."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    small = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32}
    # So few steps would not lift the blocks above the 1e-6 that they usually begin at.
    config = ConvNextConfig(
        **({} if full else small), num_labels=CLASSES, layer_scale_init_value=0.1
    )
    return images(ConvNextForImageClassification(config), full)


def images(model: nn.Module, full: bool) -> Task:
    """Stripes in noise, whose class is the direction in which they run."""
    count, size = (32, 224) if full else (16, 32)
    places = torch.arange(size) * (2 * torch.pi / 8)

    def batch() -> Batch:
        classes = torch.randint(CLASSES, (count,))
        angles = (classes * (torch.pi / CLASSES))[:, None]
        across, down = angles.cos() * places, angles.sin() * places
        phases = 2 * torch.pi * torch.rand(count, 1, 1)
        stripes = (down[:, :, None] + across[:, None, :] + phases).cos()
        return stripes[:, None] + torch.randn(count, 3, size, size), classes

    return classification(model, batch, full)


class MessagePassing(nn.Module):
    """Each node adds what its neighbours send, three times over."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.readout = nn.Linear(width, CLASSES)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        nodes = self.encode(nodes)
        for _ in range(3):
            messages = self.message(torch.cat([nodes[source], nodes[target]], dim=1)).relu()
            received = torch.zeros_like(nodes).index_add(0, target, messages)
            nodes = nodes + self.update(torch.cat([nodes, received], dim=1))
        return self.readout(nodes)


def graph(full: bool) -> Task:
    """Nodes of clusters: each says little of its class, and four of five neighbours share it."""
    width, features = (512, 32) if full else (32, 8)
    nodes, edges = (20000, 100000) if full else (200, 1000)
    means = torch.randn(CLASSES, features) / features**0.5

    def batch() -> Batch:
        classes = torch.arange(nodes) % CLASSES
        source = torch.randint(nodes, (edges,))
        alike = (source + CLASSES * torch.randint(nodes // CLASSES, (edges,))) % nodes
        target = torch.where(torch.rand(edges) < 0.8, alike, torch.randint(nodes, (edges,)))
        seen = means[classes] + torch.randn(nodes, features)
        return seen, torch.stack([source, target]), classes

    return classification(MessagePassing(features, width), batch, full)


def classification(model: nn.Module, batch: Callable[[], Batch], full: bool) -> Task:
    """Of batches that end with their classes."""

    def logits(model: nn.Module, inputs: Batch) -> torch.Tensor:
        outputs = model(*inputs)
        return outputs if isinstance(outputs, torch.Tensor) else outputs.logits

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        *inputs, classes = batch
        return functional.cross_entropy(logits(model, inputs), classes)

    def accuracy(model: nn.Module, batch: Batch) -> torch.Tensor:
        *inputs, classes = batch
        return (logits(model, inputs).argmax(dim=1) == classes).double().mean()

    return Task(model, loss, batch, learning_rate(full), accuracy)


def pinn(full: bool) -> Task:
    """A solution of Burgers' equation, u_t + u u_x = 0.01 u_xx, from its residual alone.

    Batches are points (t, x) in [0, 1] x [-1, 1]. The loss has second derivatives.
    """
    width, points = (1024, 16384) if full else (32, 64)
    sizes = [2, *[width] * 5, 1]
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]

    def gradient(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(of.sum(), by, create_graph=True)[0]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        where = batch[0].detach().requires_grad_()
        u = model(where)
        u_t, u_x = gradient(u, where).unbind(1)
        u_xx = gradient(u_x, where)[:, 1]
        start = where.detach() * torch.tensor([0.0, 1.0], device=where.device)
        initial = model(start) + torch.sin(torch.pi * start[:, 1:])
        return (u_t + u[:, 0] * u_x - 0.01 * u_xx).square().mean() + initial.square().mean()

    def batch() -> Batch:
        return (torch.rand(points, 2) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0]),)

    return Task(nn.Sequential(*layers[:-1]), loss, batch, learning_rate(full))


TASKS = {
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "experts": experts,
    "head": head,
    "vit": vit,
    "convnext": convnext,
    "fno": fno,
    "graph": graph,
    "pinn": pinn,
}
