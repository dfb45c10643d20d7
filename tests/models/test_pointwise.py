"""Convolutions with a kernel of 1, by torch_tiled.override and torch_tiled.convert."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers.compiling import BACKENDS
from helpers.converting import as_converted, classes
from helpers.copies import COPIES
from helpers.overriding import Products, ours_alone
from helpers.reference import (
    assert_within,
    bound,
    linear_bound,
    product,
    rounded_bound,
    wide,
)
from helpers.thinning import pairwise
from torch._prims_common import suggest_memory_format
from torch.testing import assert_close

import torch_tiled
from torch_tiled import converted

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
LAYER = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


def formatted(x):
    return x.contiguous(memory_format=CHANNELS_LAST.get(x.dim() - 2, torch.contiguous_format))


def padded(x, *dims, fill=torch.nan):
    """A tensor with one more element at both ends of these dimensions."""
    shape = [size + 2 * (d in dims) for d, size in enumerate(x.shape)]
    return torch.full(shape, fill, dtype=x.dtype, device=x.device)


def cropped(x, *dims, into=lambda x: x):
    """x as a part of a larger tensor, which has NaN around it."""
    larger = into(padded(x, *dims))
    for d in dims:
        larger = larger.narrow(d, 1, x.shape[d])
    return larger.copy_(x)


# How an input lies in memory; the result has its memory format.
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": formatted,
    "channels transposed": lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
    "sizes reversed": lambda x: (
        x.permute(0, 1, *range(x.dim() - 1, 1, -1))
        .contiguous()
        .permute(0, 1, *range(x.dim() - 1, 1, -1))
    ),
    "sliced channels": lambda x: cropped(x, 1),
    "sliced channels, channels_last": lambda x: cropped(x, 1, into=formatted),
    "sliced rows": lambda x: cropped(x, 2),
    "sliced columns": lambda x: cropped(x, x.dim() - 1),
    "sliced columns, channels_last": lambda x: cropped(x, x.dim() - 1, into=formatted),
    "sliced everywhere": lambda x: cropped(x, *range(x.dim())),
    "one image for all": lambda x: x[:1].expand_as(x),
    "one pixel for all": lambda x: x[(..., *[slice(1)] * (x.dim() - 2))].expand_as(x),
    "one channel for all": lambda x: x[:, :1].expand_as(x),
}
SIZES = [
    (3, 5, 4, 6),
    (1, 5, 4, 6),
    (2, 5, 1, 6),
    (2, 5, 4, 1),
    (2, 5, 1, 1),
    (1, 5, 1, 1),
    (2, 1, 4, 6),
    (2, 130, 3, 7),
    (0, 5, 4, 6),
    (2, 5, 6),
    (2, 5, 1),
    (2, 5, 3, 4, 2),
    (2, 5, 3, 1, 2),
    (2, 5, 1, 1, 1),
]


def operands(shape, outputs=7, device="cpu", dtype=torch.float32):
    ones = (1,) * (len(shape) - 2)
    x = torch.randn(shape, device=device, dtype=dtype)
    weight = torch.randn((outputs, shape[1], *ones), device=device, dtype=dtype)
    return x, weight, torch.randn(outputs, device=device, dtype=dtype)


def rows(x):
    """(n, c, *sizes) as (pixels, c)."""
    return x.movedim(1, -1).reshape(x.shape[0] * math.prod(x.shape[2:]), x.shape[1])


def convolved(x, weight, bias=None, **options):
    """The convolution by torch_tiled alone."""
    with ours_alone() if x.is_cuda or x.numel() else Products(), torch_tiled.override(strict=True):
        return CONV[weight.dim() - 2](x, weight, bias, **options)


@pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_every_layout(shape, layout, dtype, device, poisoned):
    """The bits are the product's, without a copy of the input, and the format is the input's."""
    x, weight, bias = operands(shape, device=device, dtype=dtype)
    x = LAYOUTS[layout](x)
    matrix = weight.flatten(1)
    y, biased = convolved(x, weight), convolved(x, weight, bias)
    wanted = torch.empty((shape[0], 7, *shape[2:]), memory_format=suggest_memory_format(x))
    assert y.stride() == biased.stride() == wanted.stride()
    assert_within(rows(y), product(rows(x), matrix.mT), bound(rows(x), matrix.mT))
    is_row_by_row = suggest_memory_format(x) != torch.contiguous_format or set(shape[2:]) == {1}
    if device == "cuda":
        if is_row_by_row:
            expected = torch_tiled.matmul(rows(x), matrix.mT)
            assert torch.equal(rows(biased), torch_tiled.linear(rows(x), matrix, bias))
        else:
            expected = rows(torch_tiled.matmul(matrix, x.flatten(2)))
        assert torch.equal(rows(y), expected)
    if not is_row_by_row:
        assert torch.equal(rows(biased), rows(y) + bias)
    exact = product(rows(x), matrix.mT) + wide(bias)
    limit = linear_bound(rows(x), matrix, bias)
    if dtype in (torch.float16, torch.bfloat16) and not (is_row_by_row and device == "cuda"):
        # It is rounded before the bias is added, as by PyTorch's own linear of some strides.
        size = wide(rows(x)).abs() @ wide(matrix.mT).abs() + wide(bias).abs()
        limit = rounded_bound(exact, size, shape[1] + 1, 2, dtype)
    assert_within(rows(biased), exact, limit)


@pairwise
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_plain_calls(shape, layout, dtype, device, poisoned):
    """One operator computes on GPUs what several do if something observes them."""
    x, weight, bias = operands(shape, device=device, dtype=dtype)
    x = LAYOUTS[layout](x)
    matrix, expected = weight.flatten(1), [convolved(x, weight, b) for b in (None, bias)]
    with torch_tiled.override():
        for added, wanted in zip((None, bias), expected, strict=True):
            y = CONV[len(shape) - 2](x, weight, added)
            assert torch.equal(y, wanted) and y.stride() == wanted.stride()
    channels_last = suggest_memory_format(x) != torch.contiguous_format
    operator = torch.ops.tiled._plain_pointwise
    y = operator(x, weight, None, channels_last)
    assert y.stride() == expected[0].stride()
    assert_within(rows(y), product(rows(x), matrix.mT), bound(rows(x), matrix.mT))
    if channels_last or set(shape[2:]) == {1}:
        y = operator(x, weight, bias, channels_last)
        exact = product(rows(x), matrix.mT) + wide(bias)
        assert_within(rows(y), exact, linear_bound(rows(x), matrix, bias))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 5, 1, 1), (2, 5, 6)], ids=str)
def test_the_input_is_not_copied(shape, layout, device):
    x, weight, bias = operands(shape, device=device)
    x = LAYOUTS[layout](x)
    memory = x.untyped_storage().data_ptr()
    with Products() as seen, torch_tiled.override():
        CONV[weight.dim() - 2](x, weight, bias)
    ((_, tensors, _),) = [call for call in seen.calls if call[0].startswith("tiled::")]
    assert memory in [tensor.untyped_storage().data_ptr() for tensor in tensors]


@pytest.mark.parametrize("form", [lambda x: x, formatted])
@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4), (5, 2, 3, 4)], ids=str)
def test_one_image(shape, form, device):
    x, weight, bias = operands((1, *shape), device=device)
    x = form(x)[0]
    y = convolved(x, weight, bias)
    assert torch.equal(y, convolved(x.unsqueeze(0), weight, bias)[0]) and y.is_contiguous()


OPTIONS = [
    {"padding": "same"},
    {"padding": "valid"},
    {"padding": (0, 0), "stride": (1, 1), "dilation": (3, 2)},
    {"padding": [0], "stride": [1], "dilation": 2, "groups": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_that_change_nothing(options):
    x, weight, bias = operands((3, 5, 4, 6))
    assert torch.equal(convolved(x, weight, bias, **options), convolved(x, weight, bias))


def outcome(*args, **options):
    try:
        return F.conv2d(*args, **options)
    except (RuntimeError, TypeError) as error:
        return str(error)


LEFT = {
    "a kernel of 3": lambda x, w, b: ((x, torch.randn(7, 5, 3, 3), b), {}),
    "a kernel of 1 x 3": lambda x, w, b: ((x, torch.randn(7, 5, 1, 3), b), {}),
    "a stride": lambda x, w, b: ((x, w, b), {"stride": 2}),
    "a stride in one dimension": lambda x, w, b: ((x, w, b), {"stride": (1, 2)}),
    "padding": lambda x, w, b: ((x, w, b), {"padding": 1}),
    "padding in one dimension": lambda x, w, b: ((x, w, b), {"padding": (0, 1)}),
    "groups": lambda x, w, b: ((x, torch.randn(5, 1, 1, 1)), {"groups": 5}),
    "integers": lambda x, w, b: ((x.long(), w.long()), {}),
    # what PyTorch refuses
    "dtypes": lambda x, w, b: ((x, w.double(), b.double()), {}),
    "a bias of another size": lambda x, w, b: ((x, w, b[:1]), {}),
    "a bias of two dimensions": lambda x, w, b: ((x, w, b[None]), {}),
    "channels": lambda x, w, b: ((x[:, :4], w, b), {}),
    "too few dimensions": lambda x, w, b: ((x[0, 0], w, b), {}),
    "a kernel of three dimensions": lambda x, w, b: ((x, w[..., None], b), {}),
    "an empty image": lambda x, w, b: ((x[..., :0], w, b), {}),
    "no channels": lambda x, w, b: ((x[:, :0], w[:, :0], b), {}),
    "no outputs": lambda x, w, b: ((x, w[:0], b[:0]), {}),
    "no dilation": lambda x, w, b: ((x, w, b), {"dilation": 0}),
    "three strides": lambda x, w, b: ((x, w, b), {"stride": (1, 1, 1)}),
    "a word": lambda x, w, b: ((x, w, b), {"padding": "full"}),
    "no integer": lambda x, w, b: ((x, w, b), {"stride": 1.0}),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_pytorch_s(name):
    args, options = LEFT[name](*operands((3, 5, 4, 6)))
    expected = outcome(*args, **options)
    with Products() as seen, torch_tiled.override():
        found = outcome(*args, **options)
    assert seen.products()[1] == 0
    if isinstance(expected, str):
        assert found == expected
    else:
        assert torch.equal(found, expected)


# --- derivatives, autocast and transforms --------------------------------------------------------

FORMS = pytest.mark.parametrize("form", [lambda x: x, formatted], ids=["nchw", "channels_last"])


@FORMS
@pytest.mark.parametrize("shape", [(2, 3, 2, 4), (2, 3, 4), (3, 2, 1, 1), (2, 2, 2, 1, 2)], ids=str)
def test_first_and_second_derivatives(shape, form):
    x, weight, bias = (x.requires_grad_() for x in operands(shape, 3, dtype=torch.float64))

    def function(x, weight, bias):
        with torch_tiled.override():
            return CONV[len(shape) - 2](form(x), weight, bias)

    assert torch.autograd.gradcheck(function, (x, weight, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x, weight, bias))


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients(dtype, form, device):
    x, weight, bias = operands((3, 40, 6, 5), 33, device=device, dtype=dtype)
    x = form(x).requires_grad_()
    weight.requires_grad_(), bias.requires_grad_()
    y = convolved(x, weight, bias)
    grad = torch.randn_like(y)
    with Products() as seen:
        of_x, of_weight, of_bias = torch.autograd.grad(y, [x, weight, bias], grad)
    assert seen.products()[0] == 0
    assert of_x.stride() == x.stride() and of_weight.shape == weight.shape
    g, x, weight = rows(grad), rows(x).detach(), weight.detach().flatten(1)
    assert_within(rows(of_x), product(g, weight), bound(g, weight))
    assert_within(of_weight.flatten(1), product(g.mT, x), bound(g.mT, x))
    exact, size = g.double().sum(0), g.double().abs().sum(0)
    # PyTorch may sum an image at a time, and round each of these sums.
    assert_within(of_bias, exact, rounded_bound(exact, size, len(g), 4, dtype))


@FORMS
def test_autocast(form, device):
    x, weight, bias = operands((3, 5, 4, 6), device=device)
    x = form(x)
    with torch.autocast(device, torch.bfloat16):
        y = convolved(x, weight, bias)
        layer = as_converted(torch.nn.Conv2d(5, 7, 1, device=device))
        layer.weight, layer.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        assert torch.equal(layer(x), y)
    assert y.dtype == torch.bfloat16
    cast = [each.bfloat16() for each in (x, weight, bias)]
    assert torch.equal(y, convolved(*cast)) and y.stride() == convolved(*cast).stride()


@FORMS
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend, form, device, fresh_compiler):
    layer = as_converted(torch.nn.Conv2d(5, 7, 1, device=device, dtype=torch.float64))

    def step(x):
        return F.gelu(layer(x)).square().sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for shape in [(3, 5, 4, 6), (2, 5, 8, 3)]:
        x = form(torch.randn(shape, device=device, dtype=torch.float64)).requires_grad_()
        expected = torch.autograd.grad(step(x), [x, *layer.parameters()])
        assert_close(torch.autograd.grad(compiled(x), [x, *layer.parameters()]), expected)
    program = torch.export.export(layer, (x,))
    assert "tiled" in str(program.graph)
    assert torch.equal(program.module()(x), layer(x))
    sizes = {2: torch.export.Dim("height", min=2), 3: torch.export.Dim("width", min=2)}
    program = torch.export.export(layer, (x.detach(),), dynamic_shapes=(sizes,), strict=False)
    y = form(torch.randn(2, 5, 7, 9, device=device, dtype=torch.float64))
    assert torch.equal(program.module()(y), layer(y))
    with torch_tiled.override():
        found = torch.compile(F.conv2d, backend=backend, fullgraph=True)(x, layer.weight)
    assert_close(found, convolved(x, layer.weight))


@FORMS
@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 0, 0), (0, 0, 0), (1, None, None)])
def test_vmap(in_dims, form, device):
    shapes = [(2, 5, 4, 3), (7, 5, 1, 1), (7,)]
    x, weight, bias = (
        torch.randn(shape if dim is None else (6, *shape), device=device, dtype=torch.float64)
        for shape, dim in zip(shapes, in_dims, strict=True)
    )
    x = form(x.flatten(0, -4)).unflatten(0, x.shape[:-3])
    if in_dims[0]:
        x = x.movedim(0, in_dims[0])

    def function(x, weight, bias):
        return convolved(x, weight, bias)

    result = torch.func.vmap(function, in_dims)(x, weight, bias)
    for i in range(6):
        one = [
            each if dim is None else each.select(dim, i)
            for each, dim in zip((x, weight, bias), in_dims, strict=True)
        ]
        assert_close(result[i], F.conv2d(*one))


# --- convert -------------------------------------------------------------------------------------


def small_model(device="cpu"):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.Conv2d(8, 16, 1),
        torch.nn.GELU(),
        torch.nn.Conv2d(16, 8, 1, bias=False, padding="same", dilation=2, padding_mode="circular"),
    ).to(device)


@pytest.mark.parametrize("rank", LAYER)
def test_converted(rank, device):
    layer = LAYER[rank](5, 7, 1, device=device)
    x = torch.randn(2, 5, *(4, 3, 2)[:rank], device=device)
    exact = LAYER[rank].forward(layer.double(), x.double()).detach()
    layer.float()
    assert torch_tiled.convert(layer).changed == [""]
    assert type(layer) is getattr(converted, f"Conv{rank}d")
    with ours_alone():
        y = layer(x)
    matrix = layer.weight.detach().flatten(1)
    assert_within(rows(y.detach()), rows(exact), linear_bound(rows(x), matrix, layer.bias.detach()))
    assert torch.equal(y, convolved(x, layer.weight, layer.bias))
    torch_tiled.revert(layer)
    assert type(layer) is LAYER[rank]


def test_report_of_convolutions():
    model = small_model()
    model.extend(
        [
            torch.nn.Conv2d(8, 8, 1, stride=2),
            torch.nn.Conv2d(8, 8, 1, groups=4),
            torch.nn.Conv2d(8, 8, 1, padding=(0, 1)),
            torch.nn.LazyConv2d(8, 1),
        ]
    )
    report = torch_tiled.convert(model)
    assert report.changed == ["1", "3"]
    assert [row.shape for row in report.rows[:2]] == [(3, 8), (8, 16)]
    assert report.left == {
        "0": "PyTorch's kernels are as fast for 8 filters of 3 channels and 9 taps in a group.",
        "4": "its stride is (2, 2); one with only 1 is a product",
        "5": "its groups are 4; one is a product",
        "6": "its padding is (0, 1); one with only 0 is a product",
        "7": "it is lazy, without a weight yet; convert the model after its first call",
    }
    assert torch_tiled.convert(model[:7], strict=True).changed == ["1", "3"]


def test_nothing_else_changes(device):
    model = small_model(device).double().to(memory_format=torch.channels_last)
    called = []
    model[1].register_forward_hook(lambda *_: called.append("hook"))
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    kinds, state = classes(model), model.state_dict()
    x = torch.randn(2, 3, 5, 4, device=device, dtype=torch.float64)
    expected = model(x)
    torch_tiled.convert(model, precision="ieee")
    assert model[1].precision == "ieee"
    assert_close(model(x), expected)
    other = small_model(device).double()
    other.load_state_dict(model.state_dict())
    assert_close(other(x), expected)
    model.load_state_dict(state)
    torch_tiled.revert(model)
    assert classes(model) == kinds and called == ["hook"] * 2
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_converted(copied):
    model = as_converted(small_model())
    x = torch.randn(2, 3, 5, 4)
    other = copied(model)
    assert classes(other) == classes(model)
    assert torch.equal(other(x), model(x))


def test_what_pytorch_computes_is_told():
    layer = torch_tiled.converted.Conv2d(5, 7, 1)
    x = torch.randn(2, 5, 4, 3)
    layer.requires_grad_(False)._apply(lambda x: x.long())
    with pytest.warns(UserWarning, match=r"the model \(Conv2d\) computes by torch, since its we"):
        layer(x.long())
    layer._apply(lambda x: x.float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="to have 5 channels"):
            layer(x[:, :4])
    layer = torch_tiled.converted.Conv2d(5, 7, 3)
    assert torch.equal(layer(x), torch.nn.Conv2d.forward(layer, x))


def test_parametrized_since():
    layer = as_converted(torch.nn.Conv2d(5, 7, 1))
    x = torch.randn(2, 5, 4, 3)
    torch.nn.utils.parametrizations.weight_norm(layer)
    with ours_alone():
        y = layer(x)
    assert_close(y, F.conv2d(x, layer.weight, layer.bias))
    assert (
        "is parametrized"
        in torch_tiled.convert(
            torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(5, 7, 1))
        ).left[""]
    )
