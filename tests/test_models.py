"""Models as people have them, converted: what they compute, how they train, how they are kept."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import torch_tiled

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
STEPS = 10


def transformers():
    return pytest.importorskip("transformers")


def of_tokens(model, **more):
    tokens = torch.randint(50, (2, 9))
    return model, lambda m, x: m(input_ids=x, labels=x, **more).loss, tokens


def of_images(model):
    labels = torch.tensor([0, 1])

    def loss(m, x):
        return m(pixel_values=x, labels=labels.to(x.device)).loss

    return model, loss, torch.randn(2, 3, 32, 32)


def gpt2():
    config = transformers().GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16
    )
    return of_tokens(transformers().GPT2LMHeadModel(config))


def bert():
    config = transformers().BertConfig(
        **SIZES, intermediate_size=64, vocab_size=50, max_position_embeddings=16
    )
    return of_tokens(transformers().BertForMaskedLM(config))


def llama():
    config = transformers().LlamaConfig(
        **SIZES, num_key_value_heads=1, intermediate_size=64, vocab_size=50
    )
    return of_tokens(transformers().LlamaForCausalLM(config))


def vit():
    config = transformers().ViTConfig(**SIZES, intermediate_size=64, image_size=32, patch_size=8)
    return of_images(transformers().ViTForImageClassification(config))


def convnext():
    config = transformers().ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32, layer_scale_init_value=0.1
    )
    return of_images(transformers().ConvNextForImageClassification(config))


class MessagePassing(torch.nn.Module):
    """Each node adds what its neighbours send."""

    def __init__(self):
        super().__init__()
        self.message = torch.nn.Linear(8, 8)
        self.update = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.SiLU())
        self.readout = torch.nn.Linear(8, 1)

    def forward(self, nodes, edges):
        for _ in range(2):
            source, target = edges
            messages = self.message(nodes[source]).relu()
            received = torch.zeros_like(nodes).index_add(0, target, messages)
            nodes = self.update(torch.cat([nodes, received], dim=1))
        return self.readout(nodes)


def graph_net():
    edges = torch.randint(7, (2, 20))
    return (
        MessagePassing(),
        lambda m, x: m(x, edges.to(x.device)).square().mean(),
        torch.randn(7, 8),
    )


def mlp():
    layers = [torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))


def physics_by_autograd():
    """The residual of u'' = -u, by torch.autograd.grad twice."""

    def loss(model, x):
        x = x.requires_grad_()
        u = model(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + u).square().mean()

    return mlp(), loss, torch.linspace(0, 1, 11)[:, None]


def physics_by_func():
    """The same by torch.func."""

    def loss(model, x):
        def u(point):
            return model(point)[0]

        second = torch.func.vmap(torch.func.hessian(u))(x)[:, 0, 0]
        return (second + torch.func.vmap(u)(x)).square().mean()

    return mlp(), loss, torch.linspace(0, 1, 11)[:, None]


MODELS = [
    *(gpt2, bert, llama, vit, convnext),
    *(graph_net, physics_by_autograd, physics_by_func),
]


def made(make, device):
    model, loss, x = make()
    for dropout in model.modules():
        if isinstance(dropout, torch.nn.Dropout):
            dropout.p = 0.0
    x = x.to(device)
    return model.to(device, torch.float64), loss, x.double() if x.is_floating_point() else x


def train(model, loss, x):
    """The losses of some steps, and the gradients of the last."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients
    return losses, gradients


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_trains_alike(make, device):
    model, loss, x = made(make, device)
    other = copy.deepcopy(model)
    report = torch_tiled.convert(other, strict=True)
    assert report.changed
    assert_close(loss(other, x), loss(model, x))
    losses, gradients = train(model, loss, x)
    other_losses, other_gradients = train(other, loss, x)
    assert_close(other_losses, losses)
    assert_close(other_gradients, gradients)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_is_kept_and_loaded(make, device):
    model, loss, x = made(make, device)
    expected = loss(model, x)
    converted = copy.deepcopy(model)
    names = torch_tiled.convert(converted, strict=True).changed
    assert_close(dict(converted.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(converted, file)
    file.seek(0)
    copies = [
        copy.deepcopy(converted),
        pickle.loads(pickle.dumps(converted)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        assert torch_tiled.convert(other, dry_run=True, strict=True).changed == names
        assert_close(loss(other, x), expected)
        assert torch_tiled.revert(other).changed == names
        assert_close(loss(other, x), expected)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    converted.load_state_dict(model.state_dict())
    assert_close(loss(converted, x), loss(model, x))


@pytest.mark.parametrize("make", [gpt2, vit, graph_net], ids=lambda make: make.__name__)
def test_trains_alike_where_functions_are_rerouted(make, device):
    model, loss, x = made(make, device)
    other = copy.deepcopy(model)
    losses, gradients = train(model, loss, x)
    with torch_tiled.override():
        other_losses, other_gradients = train(other, loss, x)
    assert_close(other_losses, losses)
    assert_close(other_gradients, gradients)


@pytest.mark.parametrize("name", ["gpt2", "pinn"])
def test_the_example_trains_both(name, device):
    if name == "gpt2":
        transformers()
    example = Path(__file__).resolve().parent.parent / "examples" / "models.py"
    command = [sys.executable, example, name, "--steps", "4", "--device", device]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, row = done.stdout.splitlines()
    first, layers, theirs, ours, ratio, loss, other_loss, apart = row.split()
    assert first == name and int(layers) > 0
    assert float(ratio) == pytest.approx(float(theirs) / float(ours), rel=0.05)
    assert float(loss) == pytest.approx(float(other_loss), rel=1e-3)
    assert 0 <= float(apart) < 0.1
