"""Calls everything that torch_tiled makes public once, and compares with PyTorch.

    python -P tools/smoke.py [FOLDER]

Where FOLDER is given, torch_tiled must have been imported from there. Products are by a kernel of
the ladder, since `auto` is torch.matmul itself on a CPU.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import torch_tiled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = {"algorithm": "tiled"}
tried: set[str] = set()


def tries(*names: str) -> Callable:
    """Says which public names a function tries, and calls it."""

    def call(function: Callable) -> Callable:
        function()
        tried.update(names)
        return function

    return call


def draw(*shape: int, **options) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, **options)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@tries("matmul", "linear", "gemm_", "algorithms")
def products() -> None:
    a, b, c = draw(5, 7), draw(7, 3), draw(5, 3)
    for algorithm in ("auto", "naive", "tiled"):
        close(torch_tiled.matmul(a, b, algorithm=algorithm), a @ b)
    close(torch_tiled.linear(a, b.mT, c[0], activation="relu", **KERNEL), torch.relu(a @ b + c[0]))
    close(torch_tiled.gemm_(c.clone(), a, b, alpha=2, beta=-1, **KERNEL), 2 * (a @ b) - c)
    assert {"naive", "tiled16", "fp16x3_wgmma"} <= set(torch_tiled.algorithms())


@tries("grouped_mm", "segment_matmul")
def groups() -> None:
    a, b = draw(9, 7), draw(2, 7, 3)
    ends = torch.tensor([0, 4, 9], device=DEVICE)
    expected = torch.cat([a[:4] @ b[0], a[4:] @ b[1]])
    close(torch_tiled.grouped_mm(a, b, offs=ends[1:].int()), expected)
    close(torch_tiled.segment_matmul(a, ends, b), expected)


@tries("attention", "experts")
def of_transformers() -> None:
    for module in (torch_tiled.attention, torch_tiled.experts):
        try:
            module.register()
        except ImportError as error:  # transformers is no dependency
            assert "transformers" in str(error)


@tries("explain", "numerics_version", "__version__")
def facts() -> None:
    assert torch_tiled.explain(draw(5, 7), draw(7, 3), **KERNEL).algorithm.startswith("tiled")
    assert torch_tiled.numerics_version >= 2 and torch_tiled.__version__


@tries("prepare", "Prepared")
def prepared() -> None:
    a, b = draw(5, 256), draw(256, 3)
    operand = torch_tiled.prepare(b)
    assert isinstance(operand, torch_tiled.Prepared)
    close(torch_tiled.matmul(a, operand), a @ b)


@tries("nn", "convert", "revert", "enabled", "freeze", "frozen_bytes", "refreeze", "unfreeze")
def models() -> None:
    layer = torch_tiled.nn.Linear(7, 3, activation="gelu", device=DEVICE)
    model = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Linear(300, 3)).to(DEVICE)
    x = draw(5, 7)
    expected = model(x)
    with torch_tiled.enabled(model) as report:
        assert len(report.changed) == 2
        close(model(x), expected)
    torch_tiled.convert(model)
    close(model(x), expected)
    model.eval()
    torch_tiled.freeze(model)
    with torch.no_grad():
        close(model(x), expected)
    assert torch_tiled.frozen_bytes(model) >= 0
    torch_tiled.refreeze(model)
    torch_tiled.unfreeze(model)
    torch_tiled.revert(model)
    assert type(model[0]) is torch.nn.Linear
    layer(x).sum().backward()
    assert layer.weight.grad is not None


@tries("nn")
def attention() -> None:
    q, k, v = draw(2, 3, 5, 8), draw(2, 3, 7, 8), draw(2, 3, 7, 8)
    expected = torch.softmax(q @ k.mT * 8**-0.5, -1) @ v
    function = torch_tiled.nn.functional.scaled_dot_product_attention
    close(function(q, k, v), expected)
    if DEVICE == "cpu" or torch.cuda.get_device_capability() == (9, 0):
        close(function(q, k, v, algorithm="fp16x3"), expected)
    packed = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    ends = [torch.tensor([0, n, 2 * n], device=DEVICE) for n in (5, 7)]
    function = torch_tiled.nn.functional.scaled_dot_product_attention_varlen
    close(function(*packed, *ends, 5, 7), expected.transpose(1, 2).flatten(0, 1))


@tries("nn")
def reductions() -> None:
    ours, theirs = torch_tiled.nn.functional, torch.nn.functional
    x, target, weight = draw(5, 6), torch.tensor([0, 5, 1, -100, 2], device=DEVICE), draw(6)
    for name in ("softmax", "log_softmax", "logsumexp", "sum", "mean", "cumsum"):
        close(getattr(ours, name)(x, 0), getattr(torch, name)(x, 0))
    close(ours.layer_norm(x, (6,), weight, weight), theirs.layer_norm(x, (6,), weight, weight))
    close(ours.rms_norm(x, (6,), weight), theirs.rms_norm(x, (6,), weight))
    close(ours.group_norm(x, 2, weight), theirs.group_norm(x, 2, weight))
    log_p = ours.log_softmax(x, -1)
    close(ours.cross_entropy(x, target), theirs.cross_entropy(x, target))
    close(ours.nll_loss(log_p, target), theirs.cross_entropy(x, target))
    assert torch.equal(ours.selective_log_softmax(x, target.abs() % 6)[2], log_p[2, 1])


@tries("layers")
def layers() -> None:
    layer = torch.nn.Linear(7, 3, device=DEVICE)
    x = draw(5, 7)
    for name in ("Linear", "LinearIEEE"):
        close(getattr(torch_tiled.layers, name).forward(layer, x), layer(x))


@tries("override", "inductor")
def modes() -> None:
    a, b = draw(5, 7), draw(7, 3)
    with torch_tiled.override():
        close(a @ b, a.double().matmul(b.double()).float())
    torch_tiled.inductor.enable()
    torch_tiled.inductor.disable()


@tries("invariant")
def invariant() -> None:
    a, b = draw(5, 200), draw(200, 3)
    with torch_tiled.invariant(strict=True):
        both = (a @ b).softmax(-1)
        assert torch.equal((a[1:2] @ b).softmax(-1), both[1:2])
    torch_tiled.invariant.enable()
    assert torch.equal(a[1:2].sum(1), a.sum(1)[1:2])
    torch_tiled.invariant.disable()


@tries("invariance")
def invariance() -> None:
    layer = torch_tiled.nn.Linear(7, 3, algorithm="tiled", device=DEVICE)
    assert torch_tiled.invariance(layer, draw(5, 7)).equal
    assert not torch_tiled.invariance(lambda x: x - x.mean(0), draw(5, 7)).equal


@tries("stream")
def streamed() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    close(torch_tiled.stream.matmul(a, b, algorithm="tiled"), a @ b)
    found = torch_tiled.stream.linear(a, b.mT, b[0], activation="relu", algorithm="tiled")
    close(found, torch.relu(a @ b + b[0]))
    plan = torch_tiled.stream.plan(a, b, devices="cpu", max_device_bytes=1 << 30)
    assert plan.bytes_out == 4 * 5 * 3


def main() -> None:
    if len(sys.argv) > 1:
        assert Path(torch_tiled.__file__).is_relative_to(sys.argv[1]), torch_tiled.__file__
    left = set(torch_tiled.__all__) - tried
    assert not left, f"these were not tried: {', '.join(sorted(left))}"
    print(f"{len(tried)} public names tried on {DEVICE}")


if __name__ == "__main__":
    main()
