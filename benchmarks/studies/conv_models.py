"""Times training steps of convolutional networks in float32, and measures their errors.

    python -m benchmarks.studies.conv_models
    python -m benchmarks.studies.conv_models --models unet --format contiguous

A step is the network's output and the gradients of a loss, by PyTorch with TF32 and without, and in
torch_tiled.override(). The optimizer is left out. Errors are of the output and of the gradient of
all weights, as the norm of the difference from float64 over the norm. cuDNN's benchmark mode is on.
The weights and the input are random; batch normalization uses the batch's statistics.
"""

import argparse
import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import torch_tiled
from benchmarks.gemm.check import full_precision_peer
from benchmarks.gemm.measure import raise_clocks, side_by_side
from benchmarks.studies.convolutions import FORMATS


class Bottleneck(nn.Module):
    """A block of ResNet-50: He et al., "Deep Residual Learning for Image Recognition", 2015."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut = nn.Sequential()
        if channels != out:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            layers.append(Bottleneck(channels, width, 2 if i == 0 and width > 64 else 1))
            channels = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers), torch.randn(32, 3, 224, 224)


def _twice(channels: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(8, width), nn.GELU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.GELU()),
    )


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", 2015, as surrogates of simulations have it: padded, and with
    group normalization.
    """

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        before = (channels, *widths[:-1])
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip(before, widths, strict=True))
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.up = nn.ModuleList(_twice(a + b, b) for a, b in pairs)
        self.head = nn.Conv2d(widths[0], channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.avg_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.head(x)


def unet() -> tuple[nn.Module, torch.Tensor]:
    return UNet(4, (64, 128, 256, 512, 1024)), torch.randn(4, 4, 256, 256)


class SpectralConv(nn.Module):
    """Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations", 2020."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, weight = self.modes, torch.view_as_complex(self.weight)
        spectrum = torch.fft.rfft2(x)
        y, columns = torch.zeros_like(spectrum), slice(1, n + 1)  # column 0 would be Hermitian
        for rows, part in ((slice(None, n), weight[0]), (slice(-n, None), weight[1])):
            y[:, :, rows, columns] = torch.einsum(
                "bixy,ioxy->boxy", spectrum[:, :, rows, columns], part
            )
        return torch.fft.irfft2(y, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, channels: int, width: int, modes: int) -> None:
        super().__init__()
        self.lift, self.head = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(4))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.head(x)


def fno() -> tuple[nn.Module, torch.Tensor]:
    return FNO(4, 128, 24), torch.randn(8, 4, 128, 128)


MODELS = {"resnet50": resnet50, "unet": unet, "fno": fno}


def _step(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the gradients of all weights as one vector."""
    y = model(x)
    grads = torch.autograd.grad(y.square().mean(), list(model.parameters()))
    return y.detach(), torch.cat([grad.flatten() for grad in grads])


def _by(statement: Callable, model: nn.Module) -> Callable:
    def step(x):
        with statement():
            return _step(model, x)

    return step


@contextlib.contextmanager
def _ours():
    with full_precision_peer("fp32"), torch_tiled.override():
        yield


def _rows(name: str, form: str) -> list[str]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model, x = (t.to("cuda").to(memory_format=FORMATS[form]) for t in (model, x))
    model.double()
    exact = _step(model, x.double())
    model.float()
    ways = {
        "PyTorch, TF32": lambda: full_precision_peer("tf32"),
        "PyTorch": lambda: full_precision_peer("fp32"),
        "ours": _ours,
    }
    steps = [_by(way, model) for way in ways.values()]
    errors = []
    for step in steps:
        found = step(x)
        errors.append(
            [((a - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]
        )
    del found, exact
    times = side_by_side([(step, [(x,)]) for step in steps], seconds=0.4, repeats=3)
    ieee = times[1].median
    return [
        f"| {name} | {form} | {way} | {us.median / 1e3:.1f} | {ieee / us.median:.2f} | "
        f"{of_y:.1e} | {of_w:.1e} |"
        for way, us, (of_y, of_w) in zip(ways, times, errors, strict=True)
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=[*FORMATS])
    options = parser.parse_args(arguments)
    raise_clocks(torch.device("cuda"))
    print("| network | format | computed by | ms a step | ratio | error of y | of gradients |")
    print("|---|---|---|---:|---:|---:|---:|")
    for name in options.models:
        for form in options.format:
            print(*_rows(name, form), sep="\n", flush=True)


if __name__ == "__main__":
    main()
