"""Convolutions of float32: bits, errors, derivatives, transforms, and what is refused."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import convolution_specification as specification
from helpers.needs import cpu_and_hopper, needs_hopper  # noqa: F401, a fixture
from helpers.reference import ACTIVATIONS, U, assert_same
from torch.testing import assert_close

import torch_tiled
from torch_tiled._op.namespace import operators

conv = operators._conv.default
transposed = operators._conv_transposed.default
filter_gradient = operators._conv_filter_gradient.default
TORCH = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
OURS = {
    1: torch_tiled.nn.functional.conv1d,
    2: torch_tiled.nn.functional.conv2d,
    3: torch_tiled.nn.functional.conv3d,
}
# images, channels, sizes, filters, taps, stride, padding, dilation
CASES = [
    (1, 128, (5, 6), 3, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 33, (7, 6), 17, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 3, (11, 9), 8, (5, 3), (2, 1), (2, 0), (1, 2)),
    (3, 8, (4, 5), 40, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 8, (5, 5), 3, (1, 1), (2, 2), (0, 0), (1, 1)),
    (1, 5, (6, 6), 7, (2, 2), (3, 3), (0, 0), (1, 1)),
    (1, 40, (5, 4), 9, (6, 5), (1, 1), (3, 2), (1, 1)),
    (2, 9, (12,), 5, (4,), (2,), (3,), (1,)),
    (2, 9, (1,), 5, (1,), (1,), (0,), (1,)),
    (1, 6, (4, 5, 3), 4, (2, 3, 2), (1, 2, 1), (1, 1, 0), (2, 1, 1)),
]


def draw(case, device="cpu", channels_last=False):
    images, channels, sizes, filters, taps, *geometry = case
    x, weight = torch.randn(images, channels, *sizes), torch.randn(filters, channels, *taps)
    if channels_last:
        x, weight = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, weight))
    return x.to(device), weight.to(device), geometry


def assert_near(y, expected, magnitude, k):
    """Errors are below the order's bound in magnitudes: tests/helpers/reference.py.

    An image's scale loses no more than a row's. Channels are padded, which makes K longer.
    """
    bound = (12.625 + 10 * 2 + 1024 / 16 + k / 1024) * U[torch.float32]
    assert y.isfinite().all()
    assert ((y.double() - expected).abs() <= bound * magnitude).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["normal", "wide", "coarse", "one small", "dark"])
def test_bits_are_the_specified_ones(device, case, kind):
    x, weight, geometry = draw(case)
    make(kind, x, weight)
    expected = specification.convolution(x, weight, *geometry)
    y = conv(x.to(device), weight.to(device), None, *geometry, 1, "none")
    assert_same(y.cpu(), expected)


# Several chunks, and chunks of several images.
LONG = [
    (1, 3, (70, 35), 5, (2, 3), (1, 1), (1, 1), (1, 1)),
    (19, 2, (31, 32), 3, (1, 2), (1, 1), (0, 1), (1, 1)),
]


@pytest.mark.parametrize("case", CASES + LONG)
@pytest.mark.parametrize("kind", ["normal", "wide", "coarse", "one small", "dark"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "other"])
def test_bits_of_the_gradient_of_filters(device, case, kind, layout):
    x, weight, geometry = draw(case)
    grad = torch.randn_like(TORCH[x.dim() - 2](x, weight, None, *geometry))
    make(kind, x, grad)
    expected = specification.filter_gradient(x, grad, weight.shape[2:], *geometry)
    if layout == "channels_last":
        x, grad = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, grad))
    elif layout == "other":
        x, grad = x.mT.contiguous().mT, grad.flip(0).mT.contiguous().mT.flip(0)
    dw = filter_gradient(x.to(device), grad.to(device), weight.shape[2:], *geometry, 1)
    assert_same(dw.cpu(), expected)


@pytest.mark.parametrize("kind", ["normal", "dark"])
def test_bits_of_spans_of_several_chunks(device, kind):
    x, grad = torch.randn(1, 2, 300, 230), torch.randn(1, 2, 300, 229)
    make(kind, x, grad)
    geometry = [1, 2], [1, 1], [0, 0], [1, 1]
    expected = specification.filter_gradient(x, grad, *geometry)
    assert_same(filter_gradient(x.to(device), grad.to(device), *geometry, 1).cpu(), expected)


@needs_hopper
@pytest.mark.parametrize("size", [(64, 60), (260, 256)])
def test_filters_do_not_depend_on_the_number_of_tiles(size):
    x = torch.randn(1, 192, *size, device="cuda")
    grad = torch.randn(1, 1536, *size, device="cuda")
    geometry = ([3, 3], [1, 1], [1, 1], [1, 1], 1)
    whole = filter_gradient(x, grad, *geometry)
    for filters in (slice(0, 128), slice(1400, 1464)):
        assert_same(filter_gradient(x, grad[:, filters], *geometry), whole[filters])


def make(kind, x, weight):
    """Changes operands in place."""
    if kind == "wide":
        x *= torch.exp(8 * torch.randn_like(x))
        weight *= torch.exp(4 * torch.randn_like(weight))
    elif kind == "coarse":
        x.sign_(), weight.mul_(4).round_()
    elif kind == "one small":
        x[:, :, 0] = 0
        x[0].view(-1)[-1] = 1e-9
    elif kind == "dark":
        x *= torch.where(torch.rand_like(x) < 0.5, 1e-9, 0)
        x[0].view(-1)[0] = 3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_errors_of_the_result_and_of_the_gradient(device, case, channels_last):
    x, weight, geometry = draw(case, device, channels_last)
    compute = TORCH[x.dim() - 2]
    y = conv(x, weight, None, *geometry, 1, "none")
    k = weight[0].numel() // weight.shape[1] * (weight.shape[1] + 31) // 32 * 32
    assert_near(
        y,
        compute(x.double(), weight.double(), None, *geometry),
        compute(x.double().abs(), weight.double().abs(), None, *geometry),
        k,
    )
    grad = torch.randn_like(y)
    wide = x.double().requires_grad_()
    expected, magnitude = (
        torch.autograd.grad(compute(wide, w, None, *geometry), wide, g)[0]
        for w, g in (
            (weight.double(), grad.double()),
            (weight.double().abs(), grad.double().abs()),
        )
    )
    dx = transposed(grad, weight, x.shape[2:], *geometry, 1)
    assert_near(dx, expected, magnitude, k)
    assert dx.shape == x.shape and dx.stride() == x.stride()
    filters = weight.double().requires_grad_()
    expected, magnitude = (
        torch.autograd.grad(compute(image, filters, None, *geometry), filters, g)[0]
        for image, g in ((x.double(), grad.double()), (x.double().abs(), grad.double().abs()))
    )
    dw = filter_gradient(x, grad, weight.shape[2:], *geometry, 1)
    assert_near(dw, expected, magnitude, grad[:, 0].numel())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation(device, activation):
    x, weight, geometry = draw(CASES[1], device)
    bias = torch.randn(2 * len(weight), device=device)[::2]
    y = conv(x, weight, bias, *geometry, 1, activation)
    sums = conv(x, weight, None, *geometry, 1, "none")
    assert_close(y, ACTIVATIONS[activation](sums + bias[:, None, None]))


def test_strides_of_any_kind(device):
    x, weight, geometry = draw(CASES[1], device)
    expected = conv(x, weight, None, *geometry, 1, "none")
    views = (
        x.mT.contiguous().mT,
        x.flip(0).contiguous().flip(0),
        torch.randn(2, 40, 9, 8, device=device)[:, 3:36, 1:8, ::1][..., :6].copy_(x),
        x.transpose(0, 1).contiguous().transpose(0, 1),
    )
    for view in views:
        assert_same(conv(view, weight, None, *geometry, 1, "none").contiguous(), expected)
    for view in (weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0), weight.mT.clone().mT):
        assert_same(conv(x, view, None, *geometry, 1, "none").contiguous(), expected)
    one = x[:1].expand(4, *x.shape[1:])
    assert_same(conv(one, weight, None, *geometry, 1, "none")[3], expected[0])


def test_an_image_does_not_depend_on_the_batch(device):
    x, weight, geometry = draw((5, 33, (7, 6), 70, (3, 3), (1, 1), (1, 1), (1, 1)), device)
    x[1] *= 1e20
    x[2, 0, 0, 0] = torch.inf
    y = conv(x, weight, None, *geometry, 1, "none")
    for i in range(5):
        alone = conv(x[i : i + 1], weight, None, *geometry, 1, "none")
        assert_same(alone[0], y[i])
        assert_same(conv(x[i : i + 1], weight[:3], None, *geometry, 1, "none")[0], y[i, :3])


def test_groups_are_convolutions(device):
    x, weight = torch.randn(2, 12, 5, 6, device=device), torch.randn(9, 4, 3, 3, device=device)
    bias = torch.randn(9, device=device)
    y = conv(x, weight, bias, [1, 1], [1, 1], [1, 1], 3, "relu")
    for i in range(3):
        part = conv(
            x[:, 4 * i : 4 * i + 4], weight[3 * i : 3 * i + 3], bias[3 * i : 3 * i + 3],
            [1, 1], [1, 1], [1, 1], 1, "relu",
        )  # fmt: skip
        assert_same(y[:, 3 * i : 3 * i + 3].contiguous(), part)
    grad = torch.randn_like(y)
    dx = transposed(grad, weight, [5, 6], [1, 1], [1, 1], [1, 1], 3)
    for i in range(3):
        part = transposed(
            grad[:, 3 * i : 3 * i + 3], weight[3 * i : 3 * i + 3], [5, 6], [1, 1], [1, 1], [1, 1], 1
        )
        assert_same(dx[:, 4 * i : 4 * i + 4].contiguous(), part)


def test_inf_and_nan_reach_their_windows_alone(device):
    x, weight, geometry = draw(CASES[1], device)
    x[0, 1, 2, 3], x[1, 4, 0, 0] = torch.nan, torch.inf
    y = conv(x, weight, None, *geometry, 1, "none")
    expected = F.conv2d(x.double(), weight.double(), None, *geometry).float()
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())


def test_sizes_of_zero(device):
    weight = torch.randn(4, 3, 2, 2, device=device)
    geometry = ([1, 1], [0, 0], [1, 1], 1)
    assert conv(weight.new_empty(0, 3, 5, 5), weight, None, *geometry, "none").shape == (0, 4, 4, 4)
    assert transposed(weight.new_empty(0, 4, 4, 4), weight, [5, 5], *geometry).shape == (0, 3, 5, 5)
    none = torch.full((2, 3, 5, 5), torch.nan, device=device)  # memory that is used again
    del none
    grad = transposed(weight.new_empty(2, 0, 4, 4), weight[:0], [5, 5], *geometry)
    assert torch.equal(grad, torch.zeros(2, 3, 5, 5, device=device))
    tall = weight.new_empty(2, 3, 0, 5, requires_grad=True)  # of padding alone
    padded = [1, 1], [2, 0], [1, 1], 1
    y = conv(tall, weight, None, *padded, "none")
    assert torch.equal(y, torch.zeros(2, 4, 3, 4, device=device))
    bias = torch.randn(4, device=device)
    y_of_bias = conv(tall, weight, bias, *padded, "relu").detach()
    assert torch.equal(y_of_bias, bias.relu()[:, None, None].expand(2, 4, 3, 4))
    assert torch.autograd.grad(y.sum(), tall)[0].shape == tall.shape


# --- derivatives and transforms ------------------------------------------------------------------


def functions(geometry, groups=1):
    """Ours and PyTorch's, of x, weight and bias."""

    def ours(x, weight, bias):
        return conv(x, weight, bias, *geometry, groups, "none")

    def torchs(x, weight, bias):
        return TORCH[x.dim() - 2](x, weight, bias, *geometry, groups)

    return ours, torchs


def operands(case, device="cpu"):
    x, weight, geometry = draw(case, device)
    bias = torch.randn(len(weight), device=device)
    return [t.requires_grad_() for t in (x, weight, bias)], geometry


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[5], CASES[7], CASES[9]])
def test_first_and_second_derivatives(device, case):
    given, geometry = operands(case, device)
    found = []
    for function, wide in zip(functions(geometry), (False, True), strict=True):
        inputs = [t.detach().double().requires_grad_() if wide else t for t in given]
        torch.manual_seed(1)
        y = function(*inputs)
        grad = torch.randn(y.shape, device=device).to(y.dtype).requires_grad_()
        first = torch.autograd.grad(y, inputs, grad, create_graph=True)
        total = sum((g * torch.randn(g.shape, device=device).to(g.dtype)).sum() for g in first)
        second = torch.autograd.grad(total, [*inputs[:2], grad])
        found.append([*first, *second])
    for ours, torchs in zip(*found, strict=True):
        assert_close(ours.double(), torchs, atol=2e-4, rtol=2e-4)


def test_forward_derivatives(device):
    given, geometry = operands(CASES[1], device)
    given = [t.detach() for t in given]
    tangents = [torch.randn_like(t) for t in given]
    ours, torchs = functions(geometry)
    for which in itertools.product((False, True), repeat=3):
        if not any(which):
            continue
        of = [t if has else torch.zeros_like(t) for t, has in zip(tangents, which, strict=True)]
        _, found = torch.func.jvp(ours, tuple(given), tuple(of))
        _, expected = torch.func.jvp(
            torchs, tuple(t.double() for t in given), tuple(t.double() for t in of)
        )
        assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "mapped", [m for m in itertools.product((0, None), repeat=3) if any(x == 0 for x in m)]
)
def test_vmap(device, mapped):
    (x, weight, bias), geometry = operands(CASES[2], device)
    given = [
        torch.stack([t.detach(), 2 * t.detach()]) if dim == 0 else t.detach()
        for t, dim in zip((x, weight, bias), mapped, strict=True)
    ]
    ours, _ = functions(geometry)
    y = torch.vmap(ours, mapped)(*given)
    for i in range(2):
        one = ours(*(t[i] if dim == 0 else t for t, dim in zip(given, mapped, strict=True)))
        assert_same(y[i].contiguous(), one)

    def loss(x, weight, bias):
        return ours(x, weight, bias).square().sum()

    grads = torch.vmap(torch.func.grad(loss, (0, 1, 2)), mapped)(*given)
    for i in range(2):
        one = torch.func.grad(loss, (0, 1, 2))(
            *(t[i] if dim == 0 else t for t, dim in zip(given, mapped, strict=True))
        )
        for found, expected in zip(grads, one, strict=True):
            assert_close(found[i], expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("channels_last", [False, True])
def test_operators_pass_opcheck(channels_last):
    x, weight, geometry = draw(CASES[1], channels_last=channels_last)
    bias = torch.randn(len(weight))
    for needs in (False, True):
        given = [t.detach().requires_grad_(needs) for t in (x, weight, bias)]
        # PyTorch's gradient of filters has errors of its own.
        near = {"atol": 1e-3, "rtol": 1e-3}
        torch.library.opcheck(conv, (*given, *geometry, 1, "none"), **near)
        y = conv(*given, *geometry, 1, "none").detach().requires_grad_(needs)
        torch.library.opcheck(transposed, (y, given[1], list(x.shape[2:]), *geometry, 1), **near)


def test_compiled_with_sizes_that_change(device):
    (x, weight, bias), geometry = operands(CASES[1], device)

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def function(x, weight, bias):
        return OURS[2](x, weight, bias, *geometry, algorithm="fp16x3", activation="gelu") * 2

    for images, height in ((2, 7), (3, 9)):
        x = torch.randn(images, 33, height, 6, device=device, requires_grad=True)
        y = function(x, weight, bias)
        (grad,) = torch.autograd.grad(y.sum(), x)
        expected = 2 * F.gelu(conv(x, weight, bias, *geometry, 1, "none"))
        assert_close(y, expected)
        assert_close(grad, torch.autograd.grad(expected.sum(), x)[0], atol=1e-4, rtol=1e-4)


# --- the functions -------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, "valid", "same"])
@pytest.mark.parametrize("taps", [2, 3])
def test_functions_take_what_pytorchs_take(rank, padding, taps):
    weight, x = torch.randn(4, 3, *(taps,) * rank), torch.randn(2, 3, *(6,) * rank)
    for input, dilation in itertools.product((x, x[:1], x[0]), (1, 2)):
        found = OURS[rank](input, weight, None, 1, padding, dilation, algorithm="fp16x3")
        assert_close(found, TORCH[rank](input, weight, None, 1, padding, dilation))
        given = input, weight, None, 1, padding, dilation
        assert torch_tiled.nn.functional.explain_conv(*given)["algorithm"] == "torch"


def test_auto_is_pytorchs_on_a_cpu():
    x, weight = torch.randn(2, 64, 6, 6), torch.randn(64, 64, 3, 3)
    y = torch_tiled.nn.functional.conv2d(x, weight, padding=1, activation="relu")
    assert_same(y, F.conv2d(x, weight, padding=1).relu())


@needs_hopper
def test_auto_and_the_flag_of_tf32():
    x = torch.randn(2, 64, 16, 16, device="cuda", requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    y = torch_tiled.nn.functional.conv2d(x, weight, padding=1)
    assert_same(y, conv(x, weight, None, [1, 1], [1, 1], [1, 1], 1, "none"))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        grads = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
        assert torch.backends.cudnn.allow_tf32
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    of_wide = F.conv2d(*wide, padding=1)
    for found, expected in zip(
        grads, torch.autograd.grad(of_wide, wide, torch.ones_like(of_wide)), strict=True
    ):
        assert_close(found.double(), expected, atol=1e-3, rtol=1e-5)
    small = torch.randn(2, 8, 16, 16, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    assert_same(torch_tiled.nn.functional.conv2d(*small), F.conv2d(*small))


def test_explain_says_why():
    explain = torch_tiled.nn.functional.explain_conv
    x = torch.empty(8, 64, 56, 56, device="meta")
    large = explain(x, torch.empty(64, 64, 3, 3), padding=1)
    assert large["algorithm"] == "fp16x3"
    assert large["workspace_bytes"] > 4 * x.numel() and large["workspace_bytes_of_gradient"] > 0
    short = explain(torch.empty(2, 64, 32), torch.empty(64, 64, 6))  # 384 terms
    assert short["algorithm"] == "torch" and short["workspace_bytes"] == 0
    assert "float64" in explain(x.double(), torch.empty(64, 64, 3, 3))["reason"]
    with pytest.raises(RuntimeError, match="groups is 0"):
        explain(x, torch.empty(64, 64, 3, 3), groups=0)
    with pytest.raises(RuntimeError, match="3 to 5 dimensions"):
        explain(x[0, 0], torch.empty(64, 64))
    small = explain(x, torch.empty(8, 64, 3, 3), padding=1)
    assert small["algorithm"] == "torch" and "8 filters" in small["reason"]
    one = explain(x, torch.empty(64, 64, 1, 1))
    assert one["algorithm"] == "torch" and "one tap" in one["reason"]
    far = explain(
        torch.empty(1, 64, 600, 600, device="meta"), torch.empty(64, 64, 3, 3), dilation=99
    )
    assert far["algorithm"] == "torch" and "TMA" in far["reason"]


@pytest.mark.parametrize(
    "change, text",
    [
        ({"x": (2, 33, 7)}, "3 to 5 dimensions"),
        ({"weight": (17, 32, 3, 3)}, "times weight's channels"),
        ({"x": (2, 33, 1, 1), "padding": [0, 0]}, "a filter reaches over 3"),
        ({"stride": [0, 1]}, r"stride is \(0, 1\)"),
        ({"padding": [1]}, r"padding is \(1"),
        ({"padding": [1, 2**62]}, r"below 2\*\*31"),
        ({"dilation": [1, -1]}, "dilation is"),
        ({"groups": 2}, "groups is 2"),
        ({"bias": (16,)}, r"bias must be \(filters,\)"),
        ({"dtype": torch.float64}, "must be torch.float32"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_errors_are_sentences(change, text, device):
    shapes = {"x": (2, 33, 7, 6), "weight": (17, 33, 3, 3), "bias": (17,)}
    shapes.update({name: shape for name, shape in change.items() if name in shapes})
    dtype = change.get("dtype", torch.float32)
    x, weight, bias = (torch.ones(s, dtype=dtype, device=device) for s in shapes.values())
    options = [change.get(n, [v, v]) for n, v in (("stride", 1), ("padding", 1), ("dilation", 1))]
    with pytest.raises(RuntimeError, match=text):
        conv(x, weight, bias, *options, change.get("groups", 1), "none")


def test_errors_of_names():
    x, weight = torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3)
    with pytest.raises(RuntimeError, match="no algorithm"):
        torch_tiled.nn.functional.conv2d(x, weight, algorithm="cudnn")
    with pytest.raises(RuntimeError, match="no activation"):
        torch_tiled.nn.functional.conv2d(x, weight, activation="elu")
    with pytest.raises(RuntimeError, match="same"):
        torch_tiled.nn.functional.conv2d(x, weight, stride=2, padding="same", algorithm="fp16x3")
    with pytest.raises(RuntimeError, match="dimensions"):
        torch_tiled.nn.functional.conv2d(x[0, 0], weight, algorithm="fp16x3")
    with pytest.raises(RuntimeError, match="input is of type NoneType"):
        torch_tiled.nn.functional.conv2d(None, weight, algorithm="fp16x3")
    with pytest.raises(RuntimeError, match=r"pass input.float\(\)"):
        torch_tiled.nn.functional.conv2d(x.double(), weight, algorithm="fp16x3")
    with pytest.raises(RuntimeError, match="stride is 'two'"):
        torch_tiled.nn.functional.conv2d(x, weight, stride="two", algorithm="fp16x3")
    with pytest.raises(RuntimeError, match="no activation"):
        torch_tiled.nn.functional.conv2d(x, weight, activation=["relu"])
    taken = torch_tiled.nn.functional.conv2d(x, weight, stride=torch.tensor(2), algorithm="fp16x3")
    assert_close(taken, F.conv2d(x, weight, stride=2))


# --- models --------------------------------------------------------------------------------------


def small_network(mode="zeros"):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1),
        torch.nn.Conv2d(64, 64, 3, padding=1, padding_mode=mode),
        torch.nn.Conv2d(64, 96, 3, stride=2, padding="valid"),
        torch.nn.Conv2d(96, 96, 3, groups=96),
        torch.nn.Conv2d(96, 64, 1),
    )


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_converted_layers(device, mode):
    model = small_network(mode).to(device)
    x = torch.randn(2, 3, 12, 12, device=device)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected, of_one = model(x), model(x[0])
        report = torch_tiled.convert(model)
        assert report.changed == ["1", "2", "4"]
        assert "3 channels" in report.left["0"] and "96 taps" not in report.left["3"]
        assert_close(model(x), expected)
        assert_close(model(x[0]), of_one)
        assert torch_tiled.convert(small_network(mode), precision="ieee").changed == ["4"]
        torch_tiled.revert(model)
        with torch_tiled.override():
            assert_close(model(x), expected)


@needs_hopper
def test_layers_are_ours_on_hopper():
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular").cuda()
    x = torch.randn(2, 64, 9, 8, device="cuda")
    padded = F.pad(x, (1, 1, 1, 1), mode="circular")
    expected = conv(padded, layer.weight, layer.bias, [1, 1], [0, 0], [1, 1], 1, "none")
    with torch_tiled.override():
        assert_same(layer(x), expected)
    with torch_tiled.override(), torch.autocast("cuda", torch.float16):
        assert layer(x).dtype == torch.float16
    torch_tiled.convert(layer)
    assert_same(layer(x), expected)
    compiled = torch.compile(layer, fullgraph=True)
    assert_same(compiled(x), expected)
    exported = torch.export.export(layer, (x,)).module()
    assert_same(exported(x), expected)


# --- transposed ----------------------------------------------------------------------------------

TRANSPOSED = {
    "1d": ((2, 9, 7), (9, 5, 4), {"stride": 2, "padding": 1, "output_padding": 1}),
    "2d": ((2, 12, 5, 6), (12, 4, 3, 3), {"stride": (2, 3), "groups": 3, "dilation": 2}),
    "2 x 2": ((3, 33, 4, 5), (33, 8, 2, 2), {"stride": 2}),
    "3d": ((1, 6, 3, 4, 3), (6, 4, 2, 3, 2), {"padding": (0, 1, 1)}),
    "without images": ((6, 4, 4), (6, 4, 3, 3), {"stride": 2, "output_padding": (1, 0)}),
}
TRANSPOSED_OURS = [
    getattr(torch_tiled.nn.functional, f"conv_transpose{rank}d") for rank in (1, 2, 3)
]


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_functions(device, case):
    x_shape, w_shape, options = TRANSPOSED[case]
    rank = len(w_shape) - 2
    ours, theirs = TRANSPOSED_OURS[rank - 1], getattr(F, f"conv_transpose{rank}d")
    filters = w_shape[1] * options.get("groups", 1)
    given = [
        torch.randn(shape, device=device, requires_grad=True)
        for shape in (x_shape, w_shape, (filters,))
    ]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y, expected = ours(*given, **options, algorithm="fp16x3"), theirs(*given, **options)
        assert_close(y, expected)
        grad = torch.randn_like(y)
        assert_close(
            torch.autograd.grad(y, given, grad),
            torch.autograd.grad(expected, given, grad),
            rtol=1e-4,
            atol=1e-4,
        )
        assert_close(ours(*given, **options), expected)
        with torch_tiled.override():
            assert_close(theirs(*given, **options), expected)


def test_errors_of_transposed_functions():
    ours = TRANSPOSED_OURS[1]
    x, weight = torch.randn(2, 6, 4, 4), torch.randn(6, 4, 3, 3)
    with pytest.raises(RuntimeError, match="output_padding is .2, 2. and stride is .2, 2."):
        ours(x, weight, stride=2, output_padding=2, algorithm="fp16x3")
    with pytest.raises(RuntimeError, match=r"bias is \(3,\).*bias must be \(4,\)"):
        ours(x, weight, torch.randn(3), algorithm="fp16x3")
    with pytest.raises(RuntimeError, match='no algorithm "fast"'):
        ours(x, weight, algorithm="fast")
    with pytest.raises(RuntimeError, match="must have 4 dimensions"):
        ours(x, weight[0], algorithm="fp16x3")


def test_auto_of_transposed_functions_decides_by_the_layer():
    from torch_tiled.nn.transposed_convolutions import why_torch_transposed

    def why(shape, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        given = stride, padding, output_padding, groups, dilation
        return why_torch_transposed(2, shape, *given)

    assert why((128, 64, 4, 4), stride=2, padding=1) is None
    assert why((128, 64, 3, 3)) is None
    assert "one tap" in why((128, 64, 2, 2), stride=2)
    assert "as fast" in why((32, 64, 4, 4), stride=2)
    assert "output_padding" in why((128, 64, 4, 4), stride=2, output_padding=2, dilation=3)
    assert "TMA" in why((128, 64, 4, 4), dilation=50)


@needs_hopper
def test_transposed_layers_are_ours_on_hopper():
    layer = torch.nn.ConvTranspose2d(128, 64, 4, 2, 1).cuda()
    x = torch.randn(2, 128, 9, 8, device="cuda")
    sums = transposed(x, layer.weight, [18, 16], [2, 2], [1, 1], [1, 1], 1)
    with torch_tiled.override(strict=True):
        assert_same(layer(x), sums + layer.bias[:, None, None])
