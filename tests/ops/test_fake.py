"""Meta tensors, bad calls, flop counts, and kinds of tensors that no kernel takes."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import torch_tiled

ops = torch.ops.tiled


def shapes_and_strides(*tensors):
    return [(t.shape, t.stride(), t.dtype) for t in tensors]


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((0, 2, 3), (3, 4)),
    ],
    ids=str,
)
def test_meta_matmul(a_shape, b_shape, device):
    b = torch.randn(b_shape, device=device)
    plain = torch.randn(a_shape, device=device)
    for a in (plain, plain.mT.contiguous().mT if plain.dim() > 1 else plain):
        real = torch_tiled.matmul(a, b)
        meta = torch_tiled.matmul(a.to("meta"), b.to("meta"))
        assert meta.device.type == "meta"
        assert shapes_and_strides(meta) == shapes_and_strides(real)
        assert real.is_contiguous()


def test_meta_of_the_others(device):
    x, weight = torch.randn(2, 5, 3, device=device), torch.randn(4, 3, device=device)
    real = torch_tiled.linear(x.mT.contiguous().mT, weight, activation="gelu")
    meta = torch_tiled.linear(x.to("meta"), weight.to("meta"), activation="gelu")
    assert shapes_and_strides(meta) == shapes_and_strides(real)
    half = torch.empty(2, 3, device="meta", dtype=torch.float16)
    assert torch_tiled.matmul(half, half.mT, out_dtype=torch.float32).dtype == torch.float32
    c = torch.empty(2, 2, device="meta")
    a = torch.empty(2, 3, device="meta")
    assert torch_tiled.gemm_(c, a, a.mT) is c
    assert torch_tiled.matmul(a, a.mT, out=c) is c


def f32(*shape):
    return torch.ones(shape)


BAD_CALLS = {
    "columns": lambda: (ops.matmul, (f32(3, 4), f32(5, 6)), {}),
    "vector": lambda: (ops.matmul, (f32(3), f32(4)), {}),
    "scalar a": lambda: (ops.matmul, (f32(), f32(4)), {}),
    "scalar b": lambda: (ops.matmul, (f32(3), f32()), {}),
    "batch": lambda: (ops.matmul, (f32(2, 3, 4), f32(3, 4, 5)), {}),
    "batches": lambda: (ops.matmul, (f32(7, 2, 3, 4), f32(2, 2, 4, 5)), {}),
    "mixed dtypes": lambda: (ops.matmul, (f32(3, 4), f32(4, 5).double()), {}),
    "integers": lambda: (ops.matmul, (f32(3, 4).long(), f32(4, 5).long()), {}),
    "integer b": lambda: (ops.matmul, (f32(3, 4), f32(4, 5).int()), {}),
    "bool": lambda: (ops.matmul, (f32(3, 4).bool(), f32(4, 5)), {}),
    "complex32": lambda: (ops.matmul, (f32(3, 4).chalf(), f32(4, 5).chalf()), {}),
    "complex activation": lambda: (
        ops.linear,
        (f32(3, 4).cfloat(), f32(5, 4).cfloat()),
        {"activation": "relu"},
    ),
    "imaginary alpha": lambda: (
        ops.gemm_,
        (f32(3, 5), f32(3, 4), f32(4, 5)),
        {"alpha_imag": 0.5},
    ),
    "float8": lambda: (ops.matmul, (f32(3, 4).to(torch.float8_e5m2), f32(4, 5)), {}),
    "algorithm": lambda: (ops.matmul, (f32(3, 4), f32(4, 5)), {"algorithm": "fast"}),
    "precision": lambda: (ops.matmul, (f32(3, 4), f32(4, 5)), {"precision": "fp8"}),
    "tf32": lambda: (ops.matmul, (f32(3, 4), f32(4, 5)), {"algorithm": "tf32"}),
    "tf32 of float16": lambda: (
        ops.matmul,
        (f32(3, 4).half(), f32(4, 5).half()),
        {"precision": "tf32", "algorithm": "tf32"},
    ),
    "tf32 in precision ieee": lambda: (
        ops.linear,
        (f32(3, 4), f32(5, 4)),
        {"precision": "ieee", "algorithm": "tf32_tma"},
    ),
    "out_dtype": lambda: (ops.matmul, (f32(3, 4), f32(4, 5)), {"out_dtype": torch.float64}),
    "out_dtype of float16": lambda: (
        ops.matmul,
        (f32(3, 4).half(), f32(4, 5).half()),
        {"out_dtype": torch.bfloat16},
    ),
    "out columns": lambda: (ops.matmul.out, (f32(3, 4), f32(5, 6)), {"out": f32(3, 6)}),
    "out shape": lambda: (ops.matmul.out, (f32(3, 4), f32(4, 5)), {"out": f32(5, 3)}),
    "out rank": lambda: (ops.matmul.out, (f32(3, 4), f32(4)), {"out": f32(3, 1)}),
    "out of another dtype": lambda: (
        ops.matmul.out,
        (f32(3, 4), f32(4, 5)),
        {"out": f32(3, 5).double()},
    ),
    "out expanded": lambda: (
        ops.matmul.out,
        (f32(3, 4), f32(4, 5)),
        {"out": f32(3, 1).expand(3, 5)},
    ),
    "out algorithm": lambda: (
        ops.matmul.out,
        (f32(3, 4), f32(4, 5)),
        {"out": f32(3, 5), "algorithm": "fast"},
    ),
    "gemm_ vector": lambda: (ops.gemm_, (f32(3), f32(3, 4), f32(4)), {}),
    "gemm_ columns": lambda: (ops.gemm_, (f32(3, 5), f32(3, 4), f32(3, 5)), {}),
    "gemm_ c": lambda: (ops.gemm_, (f32(3, 6), f32(3, 4), f32(4, 5)), {}),
    "gemm_ c broadcast": lambda: (ops.gemm_, (f32(1, 5), f32(3, 4), f32(4, 5)), {}),
    "gemm_ product broadcast": lambda: (ops.gemm_, (f32(3, 5), f32(1, 4), f32(4, 5)), {}),
    "gemm_ batch": lambda: (ops.gemm_, (f32(3, 5), f32(2, 3, 4), f32(4, 5)), {}),
    "gemm_ dtype": lambda: (ops.gemm_, (f32(3, 5).double(), f32(3, 4), f32(4, 5)), {}),
    "gemm_ expanded": lambda: (
        ops.gemm_,
        (f32(5).expand(3, 5), f32(3, 4), f32(4, 5)),
        {},
    ),
    "gemm_ precision": lambda: (
        ops.gemm_,
        (f32(3, 5), f32(3, 4), f32(4, 5)),
        {"precision": ""},
    ),
    "linear x": lambda: (ops.linear, (f32(3, 4), f32(5, 6)), {}),
    "linear scalar": lambda: (ops.linear, (f32(), f32(5, 6)), {}),
    "linear weight": lambda: (ops.linear, (f32(3, 4), f32(4)), {}),
    "linear weights": lambda: (ops.linear, (f32(3, 4), f32(2, 5, 4)), {}),
    "linear bias": lambda: (ops.linear, (f32(3, 4), f32(5, 4), f32(4)), {}),
    "linear bias rank": lambda: (ops.linear, (f32(3, 4), f32(5, 4), f32(1, 5)), {}),
    "linear bias dtype": lambda: (ops.linear, (f32(3, 4), f32(5, 4), f32(5).half()), {}),
    "linear weight dtype": lambda: (ops.linear, (f32(3, 4), f32(5, 4).half(), f32(5)), {}),
    "linear activation": lambda: (ops.linear, (f32(3, 4), f32(5, 4)), {"activation": "elu"}),
    "linear algorithm": lambda: (ops.linear, (f32(3, 4), f32(5, 4)), {"algorithm": "Tiled"}),
}


def to(device, value):
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.to(device)
    return moved if 0 not in value.stride() else moved.as_strided(value.shape, value.stride())


def error_of(device, name):
    op, args, kwargs = BAD_CALLS[name]()
    kwargs = {key: to(device, value) for key, value in kwargs.items()}
    with pytest.raises(RuntimeError) as caught:
        op(*(to(device, arg) for arg in args), **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_raise_the_same_sentence_on_meta_tensors(name, device):
    text = error_of(device, name)
    assert text.startswith("tiled::")
    assert "\n" not in text
    assert error_of("meta", name) == text


def test_bad_calls_raise_the_same_sentence_when_compiled():
    """Dynamo of torch 2.14 shows the repr of the sentence, with a backslash at its apostrophe."""
    a, b = f32(3, 4), f32(5, 6)
    compiled = torch.compile(torch_tiled.matmul, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"a is \(3, 4\) and b is \(5, 6\); a\\?'s columns must"):
        compiled(a, b)


def test_meta_tensors_are_not_mixed_with_others(device):
    real, meta = f32(2, 2).to(device), f32(2, 2).to("meta")
    for a, b in ((real, meta), (meta, real)):
        text = rf"a is on {a.device} and b is on {b.device}; move one of them"
        with pytest.raises(RuntimeError, match=text):
            torch_tiled.matmul(a, b)
    with pytest.raises(RuntimeError, match="x is on .* and weight is on .*; move one of them"):
        torch_tiled.linear(real, meta)
    with pytest.raises(RuntimeError, match="bias is on meta and x is on .*; move one of them"):
        torch_tiled.linear(real, real, meta[0])
    with pytest.raises(RuntimeError, match="out is on meta and a is on .*; move one of them"):
        torch_tiled.matmul(real, real, out=meta)
    with pytest.raises(RuntimeError, match="c is on .* and a is on meta; move one of them"):
        torch_tiled.gemm_(real, meta, meta)


def test_out_and_out_dtype_disagree():
    with pytest.raises(RuntimeError, match="out is torch.float32 and out_dtype is torch.float64"):
        torch_tiled.matmul(f32(2, 2), f32(2, 2), out=f32(2, 2), out_dtype=torch.float64)


# --- flops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a_shape, b_shape, flops",
    [
        ((3,), (3,), 2 * 3),
        ((3,), (3, 4), 2 * 3 * 4),
        ((2, 3), (3,), 2 * 2 * 3),
        ((2, 3), (3, 4), 2 * 2 * 3 * 4),
        ((5, 1, 2, 3), (6, 3, 4), 2 * 5 * 6 * 2 * 3 * 4),
        ((0, 3), (3, 4), 0),
    ],
    ids=str,
)
def test_flops_of_matmul(a_shape, b_shape, flops, device):
    a, b = torch.randn(a_shape, device=device), torch.randn(b_shape, device=device)
    out = torch.empty_like(a @ b)
    with FlopCounterMode(display=False) as counter:
        torch_tiled.matmul(a, b)
    assert counter.get_total_flops() == flops
    with FlopCounterMode(display=False) as counter:
        torch_tiled.matmul(a, b, out=out)
    assert counter.get_total_flops() == flops


def test_flops_of_the_others(device):
    x, weight, c = (torch.randn(s, device=device) for s in ((2, 5, 3), (4, 3), (2, 5, 4)))
    with FlopCounterMode(display=False) as counter:
        torch_tiled.linear(x, weight)
    assert counter.get_total_flops() == 2 * 2 * 5 * 3 * 4
    with FlopCounterMode(display=False) as counter:
        torch_tiled.gemm_(c, x, weight.mT)
    assert counter.get_total_flops() == 2 * 2 * 5 * 3 * 4


def test_flops_of_training_are_those_of_torch(device):
    x = torch.randn(6, 3, device=device, requires_grad=True)
    weight = torch.randn(4, 3, device=device, requires_grad=True)
    totals = []
    for f in (torch_tiled.linear, torch.nn.functional.linear):
        with FlopCounterMode(display=False) as counter:
            f(x, weight).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] == 3 * 2 * 6 * 3 * 4


# --- inputs that no kernel takes -----------------------------------------------------------------


def dense(device, requires_grad=False):
    return torch.ones(2, 2, device=device, requires_grad=requires_grad)


REFUSED = {
    "sparse": (lambda t: t.to_sparse(), "sparse tensor", "to_dense"),
    "csr": (lambda t: t.to_sparse_csr(), "sparse tensor", "to_dense"),
    "nested": (lambda t: torch.nested.as_nested_tensor([t, t]), "nested tensor", "unbind"),
    "jagged": (
        lambda t: torch.nested.as_nested_tensor([t, t], layout=torch.jagged),
        "nested tensor",
        "unbind",
    ),
    "quantized": (
        lambda t: torch.quantize_per_tensor(t.detach(), 0.1, 0, torch.qint8),
        "quantized tensor",
        "dequantize",
    ),
    "mkldnn": (lambda t: t.detach().to_mkldnn(), "mkldnn tensor", "to_dense"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", REFUSED)
def test_only_dense_tensors_are_taken(kind, requires_grad, device):
    if device == "cuda" and kind in ("mkldnn", "quantized"):
        pytest.skip("mkldnn tensors and this quantization are of the CPU")
    make, what, remedy = REFUSED[kind]
    bad = make(dense(device, requires_grad))
    good = dense(device, requires_grad)
    c = dense(device)
    for name, call in (
        ("tiled::matmul: a", lambda: torch_tiled.matmul(bad, good)),
        ("tiled::matmul: b", lambda: torch_tiled.matmul(good, bad)),
        ("tiled::matmul: a", lambda: ops.matmul(bad, bad)),
        ("tiled::linear: x", lambda: torch_tiled.linear(bad, good)),
        ("tiled::linear: weight", lambda: torch_tiled.linear(good, bad, activation="gelu")),
    ):
        with pytest.raises(RuntimeError, match=f"{name} is a {what} .*{remedy}"):
            call()
    with torch.no_grad():
        for call in (
            lambda: torch_tiled.gemm_(c, bad, good),
            lambda: torch_tiled.matmul(bad, good, out=c),
        ):
            with pytest.raises(RuntimeError, match=f"a is a {what} .*{remedy}"):
                call()
    assert_close(c, dense(device))
