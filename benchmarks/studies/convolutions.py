"""Times convolutions of float32 beside cuDNN's, with TF32 and without, and measures their errors.

    python -m benchmarks.studies.convolutions
    python -m benchmarks.studies.convolutions --layers 32x256x256x14x3 --format channels_last

A layer is images x channels x filters x pixels x taps, the last two along both sides; "/2" behind
it is a stride. cuDNN chooses its kernels by torch.backends.cudnn.benchmark. Calls are captured in
CUDA graphs with operands that rotate past L2, and are interleaved. The table has microseconds,
medians, cuDNN's time over ours without TF32 and with it, and largest errors over the mean
magnitude of the result in float64.
"""

import argparse
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.gemm.check import full_precision_peer
from benchmarks.gemm.measure import count_sets, raise_clocks, side_by_side
from torch_tiled._op.namespace import operators

# 3 x 3 of ResNets at 14 to 56 pixels and more channels; then U-Net's and strided ones.
LAYERS = (
    *("32x64x64x56x3", "32x128x128x28x3", "32x128x128x56x3", "32x256x256x14x3"),
    *("32x256x256x28x3", "32x512x512x7x3", "32x512x512x14x3", "32x512x512x28x3"),
    *("2x320x320x64x3", "2x640x640x32x3", "2x1280x1280x16x3", "8x128x128x128x3"),
    *("32x64x128x56x3/2", "32x128x256x28x3/2", "32x256x512x14x3/2"),
)
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
RESULTS = {"y": "forward", "dx": "gradient of the input", "dw": "gradient of the weight"}
SECONDS = 0.05  # for a row of the table


def _by_cudnn(function: Callable, allowed: bool) -> Callable:
    def call(*operands):
        with full_precision_peer("tf32" if allowed else "fp32"):
            return function(*operands)

    return call


def _parse(layer: str) -> tuple[int, ...]:
    sizes, _, stride = layer.partition("/")
    return *map(int, sizes.split("x")), int(stride or 1)


def _row(layer: str, form: str, result: str) -> tuple[float, float, str]:
    images, channels, filters, pixels, taps, stride = _parse(layer)
    strides, padding, one = [stride] * 2, [taps // 2] * 2, [1, 1]
    out = (pixels + 2 * padding[0] - taps) // stride + 1
    x_shape, y_shape = (images, channels, pixels, pixels), (images, filters, out, out)
    w_shape = (filters, channels, taps, taps)
    shapes = {"y": (x_shape, w_shape), "dx": (y_shape, w_shape), "dw": (x_shape, y_shape)}[result]

    def empty(shape):
        return torch.empty(shape, device="cuda").to(memory_format=FORMATS[form])

    def make():
        return tuple(empty(shape).normal_() for shape in shapes)

    def gradients(dy, x, w, *mask):
        options = None, strides, padding, one, False, [0, 0], 1, [*mask, False]
        return torch.ops.aten.convolution_backward(dy, x, w, *options)

    # PyTorch's function takes the tensor whose gradient it returns.
    like = empty({"y": (0,) * 4, "dx": x_shape, "dw": w_shape}[result])
    if result == "dx":

        def ours(dy, w):
            return operators._conv_transposed(dy, w, [pixels] * 2, strides, padding, one, 1)

        def theirs(dy, w):
            return gradients(dy, like.to(dy.dtype), w, True, False)[0]
    elif result == "dw":

        def ours(x, dy):
            return operators._conv_filter_gradient(x, dy, [taps] * 2, strides, padding, one, 1)

        def theirs(x, dy):
            return gradients(dy, x, like.to(dy.dtype), False, True)[1]
    else:

        def ours(x, w):
            return operators._conv(x, w, None, strides, padding, one, 1, "none")

        def theirs(x, w):
            return F.conv2d(x, w, None, strides, padding)

    bytes_each = 4 * sum(math.prod(shape) for shape in (x_shape, y_shape))
    sets = [make() for _ in range(count_sets(bytes_each, torch.device("cuda")))]
    exact = theirs(*(t.double() for t in sets[0]))

    def error(y):
        return ((y.double() - exact).abs().max() / exact.abs().mean()).item()

    functions = ours, _by_cudnn(theirs, False), _by_cudnn(theirs, True)
    errors = [error(function(*sets[0])) for function in functions]
    calls = [(function, sets) for function in functions]
    us = [each.median for each in side_by_side(calls, seconds=SECONDS, repeats=3)]
    flops = 2 * math.prod(y_shape) * channels * taps * taps
    cells = [f"{layer}", form, result, f"{flops / us[0] / 1e6:.0f}"]
    cells += [f"{t:.0f}" for t in us] + [f"{us[1] / us[0]:.2f}", f"{us[2] / us[0]:.2f}"]
    cells += [f"{e:.1e}" for e in errors]
    return us[1] / us[0], us[2] / us[0], "| " + " | ".join(cells) + " |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layers", nargs="+", default=LAYERS)
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=[*FORMATS])
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    raise_clocks(torch.device("cuda"))
    columns = "layer format result TFLOP/s ours cuDNN TF32 ratio of_TF32 error cuDNN's TF32's"
    print("| " + " | ".join(columns.split()) + " |")
    print("|---|---|---|" + "---:|" * 9)
    for result in RESULTS:
        ratios = []
        for layer in options.layers:
            for form in options.format:
                *ratio, row = _row(layer, form, result)
                ratios.append(ratio)
                print(row, flush=True)
        means = [
            math.exp(sum(map(math.log, each)) / len(ratios)) for each in zip(*ratios, strict=True)
        ]
        print(f"{RESULTS[result]}: mean ratio {means[0]:.2f}, of TF32 {means[1]:.2f}, least "
              f"{min(ratio for ratio, _ in ratios):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
