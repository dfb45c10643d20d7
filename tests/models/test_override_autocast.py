"""override() in autocast regions has PyTorch's dtypes, which are others on each device.

On the CPU it casts neither mv nor outer products of einsum, on CUDA not inner.
"""

import contextlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import torch_tiled
from torch_tiled._routes import ROUTES

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
# Operands of each function that override() takes over, or an equation and operands.
ADDMM = [[(5,), (3, 4), (4, 5)], [(3, 5), (3, 4), (4, 5)]]
ADDMV = [[(3,), (3, 4), (4,)], [(1,), (3, 4), (4,)]]
BADDBMM = [[(2, 3, 5), (2, 3, 4), (2, 4, 5)]]
ADDBMM = [[(3, 5), (2, 3, 4), (2, 4, 5)]]
MATMUL = [[(3, 4), (4, 5)], [(2, 3, 4), (4, 5)], [(3, 4), (4,)], [(4,), (4, 5)], [(4,), (4,)]]
INNER = [[(3, 4), (5, 4)], [(4,), (5, 4)], [(4,), (4,)], [(2, 3, 4), (5, 4)], [(3, 1), (5, 1)]]
LINEAR = [
    [(3, 4), (5, 4)],
    [(2, 3, 4), (5, 4), (5,)],
    [(4,), (5, 4), (5,)],
    [(3, 4), (5, 4), (3, 1)],
]
EINSUM = [
    ["ij,jk->ik", (3, 4), (4, 5)],
    ["ij,jk->ik", (3, 1), (1, 5)],  # sums of one element
    ["ij,jk->ik", (3, 1), (4, 5)],
    ["i,i->", (1,), (1,)],
    ["i,j->ij", (3,), (4,)],  # an outer product
    ["ij,ij->ij", (3, 4), (3, 4)],
    ["ij,ij->", (3, 4), (3, 4)],
    ["ij,k->i", (3, 4), (5,)],  # sums, and no product
    ["ij,ik->i", (3, 4), (3, 5)],
    ["bij,bjk->bik", (2, 3, 4), (2, 4, 5)],
    ["ij,jk,kl->il", (3, 4), (4, 5), (5, 6)],
    ["ij,jk,l->ikl", (3, 4), (4, 5), (6,)],
]
OPERANDS = {
    "matmul": MATMUL,
    "linalg_matmul": MATMUL,
    "__matmul__": MATMUL,
    "__rmatmul__": [[b, a] for a, b in MATMUL],
    "mm": [[(3, 4), (4, 5)]],
    "bmm": [[(2, 3, 4), (2, 4, 5)]],
    "mv": [[(3, 4), (4,)]],
    "addmm": ADDMM,
    "addmm_": ADDMM[1:],
    "addmv": ADDMV,
    "addmv_": ADDMV[:1],
    "baddbmm": BADDBMM,
    "baddbmm_": BADDBMM,
    "addbmm": ADDBMM,
    "addbmm_": ADDBMM,
    "inner": INNER,
    "linear": LINEAR,
    "einsum": EINSUM,
}


@contextlib.contextmanager
def autocast(device, dtype):
    """torch.autocast, which refuses CUDA on a machine without a GPU."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


def outcomes(function, device, **options):
    """The result's dtype for operands of all dtypes, or "error"."""
    found = {}
    for operands in OPERANDS[function.__name__]:
        equation = [x for x in operands if isinstance(x, str)]
        shapes = operands[len(equation) :]
        for dtypes in itertools.product(DTYPES, repeat=len(shapes)):
            tensors = [
                torch.ones(shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            try:
                result = function(*equation, *tensors, **options).dtype
            except (RuntimeError, ValueError):  # NotImplementedError is a RuntimeError
                result = "error"
            found[(*equation, *shapes, *dtypes)] = result
    return found


def differences(function, device, region, **options):
    with autocast(device, region):
        expected = outcomes(function, device, **options)
        with torch_tiled.override():
            found = outcomes(function, device, **options)
    return {call: (found[call], expected[call]) for call in found if found[call] != expected[call]}


REGIONS = pytest.mark.parametrize("region", [torch.bfloat16, torch.float16], ids=str)


@REGIONS
@pytest.mark.parametrize("function", ROUTES, ids=torch.overrides.resolve_name)
def test_dtypes_are_pytorch_s(function, region, device):
    assert differences(function, device, region) == {}


@REGIONS
@pytest.mark.parametrize("function", ROUTES, ids=torch.overrides.resolve_name)
def test_dtypes_are_pytorch_s_on_a_gpu_that_is_not_there(function, region):
    """FakeTensors have the dtypes of CUDA tensors, by PyTorch's own list."""
    with FakeTensorMode():
        assert differences(function, "cuda", region) == {}


@REGIONS
@pytest.mark.parametrize("function", [torch.mm, torch.bmm], ids=torch.overrides.resolve_name)
def test_dtypes_with_out_dtype(function, region, device):
    """PyTorch does not cast then, and on the CPU it knows no out_dtype."""
    assert differences(function, device, region, out_dtype=torch.float32) == {}


def test_products_that_are_not_cast_have_their_precision():
    a, b = torch.randn(3, 4), torch.randn(4)
    with torch.autocast("cpu", torch.bfloat16), torch_tiled.override():
        assert_close(torch.mv(a, b), torch.mv(a, b.double().float()))
        assert torch.equal(torch.einsum("i,j->ij", b, b), b[:, None] * b)
        assert_close(torch.einsum("ij,j->i", a, b), torch.matmul(a, b))


@REGIONS
def test_compiled_code_has_the_same(region, device, fresh_compiler):
    a, b = torch.randn(3, 4, device=device), torch.randn(4, device=device)

    def products(a, b):
        with torch.autocast(device, region):
            results = torch.mv(a, b), torch.addmv(a[:, 0], a, b), torch.inner(a, a), a @ b
            return *results, torch.einsum("i,j->ij", b, b), torch.einsum("ij,k->i", a, b)

    expected = [x.dtype for x in products(a, b)]
    with torch_tiled.override():
        compiled = torch.compile(products, backend="aot_eager", fullgraph=True)
        assert [x.dtype for x in compiled(a, b)] == expected
