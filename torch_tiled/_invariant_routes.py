"""The functions that torch_tiled.invariant runs in place of PyTorch's: products and attention.

INVARIANT_ROUTES is a map as ROUTES. _invariant_reductions.py has those of sums, norms and losses.
"""

import functools
import itertools
import math

import torch
import torch.nn.functional as F

from . import ops
from ._internals import attention_by, autocast_active, torch_grouped_mm
from ._invariant_reductions import INSIDE_REDUCTIONS, REDUCTIONS
from ._key_places import from_first_key
from ._op.namespace import operators
from ._op.supported import DTYPES, SIXTEEN_BIT, is_hopper
from ._routes import ROUTES, Products, autocast, is_autocast, is_cast, takes
from .einsum import einsum
from .grouped import grouped_mm
from .nn.functional import attention, causal_offset_of, is_causal_bias, repeat_heads, softmax
from .nn.functional import sum as row_sum
from .pointwise import is_channels_last

__all__ = ["INSIDE", "INVARIANT_PRODUCTS", "INVARIANT_ROUTES"]

_MOST_COLUMNS = 256  # that the kernels of attention take


def _algorithm(dtype: torch.dtype, precision: str) -> str:
    """Returns the algorithm on a CPU with the bits of "auto" on a Hopper GPU."""
    if dtype in SIXTEEN_BIT:
        return "mma"
    if dtype in (torch.float64, torch.complex128) or precision == "ieee":
        return "tiled"
    return "tf32" if precision == "tf32" else "fp16x3"


class InvariantProducts(Products):
    """How the statement multiplies: by fixed orders, on a CPU too, and in autocast regions."""

    def __init__(self, precision: str) -> None:
        super().__init__(precision)
        self._on_cpu = {
            dtype: {"precision": precision, "algorithm": _algorithm(dtype, precision)}
            for dtype in DTYPES
        }

    def options(self, a, b):
        if not a.is_cpu:
            return self._options
        dtype = a.dtype if a.dtype is b.dtype else torch.float32  # mixed
        if autocast_active() and is_cast(dtype) and is_autocast(a):
            dtype = torch.get_autocast_dtype("cpu")
        return self._on_cpu[dtype]

    def uncast(self, device_type, function, *args, **options):
        with torch.autocast(device_type, enabled=False):
            return function(*args, **options)

    def total(self, x, dims):
        if x.is_complex():
            return torch.complex(row_sum(x.real, dims), row_sum(x.imag, dims))
        return row_sum(x, dims)


INVARIANT_PRODUCTS = {name: InvariantProducts(name) for name in ("fp32", "ieee", "tf32")}


# --- Products that override leaves to PyTorch ----------------------------------------------------


def _dot(products, input, other=None, *, tensor=None, out=None):
    other = tensor if other is None else other
    if not takes(input, other) or (input.dim(), other.dim()) != (1, 1):
        return None
    if is_autocast(input):  # on CUDA PyTorch casts both to the wider dtype, and not on a CPU
        wide = torch.promote_types(input.dtype, other.dtype)
        if input.is_cuda:
            input, other = input.to(wide), other.to(wide)
        return products.uncast(input.device.type, _dot, products, input, other, out=out)
    return ROUTES[torch.matmul](products, input, other, out=out)


def _vdot(products, input, other, *, out=None):
    return _dot(products, input.conj(), other, out=out)


def _vecdot(products, x, y, *, dim=-1, out=None):
    if out is not None or not takes(x, y):
        return None
    if is_autocast(x):
        tensors = autocast(x, y)
        return products.uncast(x.device.type, _vecdot, products, *tensors, dim=dim)
    return products.total(x.conj() * y, [dim]) if x.dtype == y.dtype else None


def _inner(products, input, other, *, out=None):
    if takes(input, other) and input.dim() == other.dim() == 1:
        return _dot(products, input, other, out=out)
    if out is None and takes(input, other) and min(input.dim(), other.dim()) == 0:
        return input * other
    return ROUTES[torch.inner](products, input, other, out=out)


def _tensordot(products, a, b, dims=2, out=None):
    if out is not None or not takes(a, b):
        return None
    if a.is_cuda and is_autocast(a):  # PyTorch casts to the widest dtype
        dtype = torch.promote_types(a.dtype, b.dtype)
        given = products, a.to(dtype), b.to(dtype), dims
        return products.uncast("cuda", _tensordot, *given)
    if isinstance(dims, torch.Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    of_a, of_b = ([dims[i]] if isinstance(dims[i], int) else [*dims[i]] for i in (0, 1))
    of_a, of_b = [i % a.dim() for i in of_a], [i % b.dim() for i in of_b]
    if [a.shape[i] for i in of_a] != [b.shape[i] for i in of_b]:
        return None
    rows = [i for i in range(a.dim()) if i not in of_a]
    cols = [i for i in range(b.dim()) if i not in of_b]
    if not rows and not cols:  # PyTorch casts nothing for it in autocast regions
        x, y = a.permute(of_a).reshape(-1), b.permute(of_b).reshape(-1)
        return products.uncast(a.device.type, _dot, products, x, y)
    shape = [a.shape[i] for i in rows], [b.shape[i] for i in cols]
    k = math.prod([a.shape[i] for i in of_a])
    x = a.permute(*rows, *of_a).reshape(math.prod(shape[0]), k)
    y = b.permute(*of_b, *cols).reshape(k, math.prod(shape[1]))
    return ops.matmul(x, y, **products.options(x, y)).reshape(shape[0] + shape[1])


def _einsum(products, equation, *operands):
    """torch.einsum from left to right: PyTorch's order of the products depends on the sizes."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    if not isinstance(equation, str) or not operands or not takes(*operands):
        return None
    if len(operands) == 1:  # times 1
        inputs, arrow, output = equation.partition("->")
        equation = f"{inputs},{arrow}{output}"
        operands = *operands, operands[0].new_ones(())

    def multiply(a, b):
        return ops.matmul(a, b, **products.options(a, b))

    options = {"multiply": multiply, "total": products.total, "from_left": True}
    if operands[0].is_cuda and is_autocast(operands[0]):  # PyTorch casts once, before all of it
        operands = autocast(*operands)
        return products.uncast("cuda", einsum, equation, *operands, **options)
    return einsum(equation, *operands, **options)


def _bilinear(products, input1, input2, weight, bias=None):
    if takes(input1, input2, weight) and is_autocast(input1):  # PyTorch casts to the widest dtype
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in (input1, input2, weight)))
        given = (x.to(dtype) for x in (input1, input2, weight))
        return products.uncast(input1.device.type, _bilinear, products, *given, bias)
    result = _einsum(products, "...i,oij,...j->...o", input1, weight, input2)
    return result if bias is None or result is None else result + bias.to(result.dtype)


def _grouped_mm(products, a, b=None, offs=None, bias=None, out_dtype=None, **named):
    """torch.nn.functional.grouped_mm. On a CPU each group is a product by a named algorithm."""
    b = named.pop("mat2", named.pop("mat_b", b))
    is_taken = not named and bias is None and takes(a, b) and a.dtype == b.dtype
    is_taken = is_taken and out_dtype in (None, a.dtype)
    if not is_taken or a.dtype not in (torch.float32, *SIXTEEN_BIT):
        return None
    if is_autocast(a):
        return products.uncast(a.device.type, _grouped_mm, products, a, b, offs)
    return _grouped(products, a, b, offs)


def _grouped(products, a, b, offs):
    if not a.is_cpu:
        precision = "ieee" if products.precision == "ieee" else "fp32"
        return grouped_mm(a, b, offs=offs, precision=precision)
    shape = grouped_mm(a.to("meta"), b.to("meta"), offs=None if offs is None else offs.to("meta"))
    if offs is None:
        return ops.matmul(a, b, **products.options(a, b))
    groups, begin = [], 0
    for i, end in enumerate(offs.tolist()):
        x = a[i] if a.dim() == 3 else a[begin:end] if b.dim() == 3 else a[:, begin:end]
        y = b[i] if b.dim() == 3 else b[:, begin:end] if a.dim() == 3 else b[begin:end]
        groups.append(ops.matmul(x, y, **products.options(x, y)))
        begin = end
    if a.dim() == b.dim():
        return torch.stack(groups)
    dim = 0 if b.dim() == 3 else 1
    left = shape.shape[dim] - begin
    rest = (left, shape.shape[1]) if dim == 0 else (shape.shape[0], left)
    return torch.cat([*groups, a.new_zeros(rest)], dim)


def _convolution(rank: int):
    """conv1d, conv2d or conv3d: windows of the input, which are copied, times the weight."""
    by_one = ROUTES[(F.conv1d, F.conv2d, F.conv3d)[rank - 1]]

    def conv(products, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        options = stride, padding, dilation, groups
        result = by_one(products, input, weight, bias, *options)
        given = (input, weight) if bias is None else (input, weight, bias)
        if result is not None or not takes(*given):
            return result
        x = input if input.dim() == rank + 2 else input[None]
        fits = (x.dim(), weight.dim()) == (rank + 2, rank + 2) and groups > 0
        if not fits or x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
            return None
        windows = _windows(x, weight.shape[2:], *(_each(y, rank) for y in options[:3]))
        if windows is None:
            return None
        batch, pixels = x.shape[0], windows.shape[2 : rank + 2]
        if groups == 1:
            rows = windows.movedim(1, rank + 1).flatten(rank + 1)
            y = ops.linear(rows, weight.flatten(1), bias, **products.options(rows, weight))
        else:
            rows = windows.unflatten(1, (groups, -1)).movedim(1, 0).movedim(2, rank + 2)
            rows = rows.reshape(groups, batch * math.prod(pixels), -1)
            cols = weight.reshape(groups, weight.shape[0] // groups, -1).mT
            # As in linear, the bias is added before the sum is rounded to 16 bits.
            rows, cols = autocast(rows, cols)
            wide = torch.float32 if rows.dtype in SIXTEEN_BIT else None
            y = ops.matmul(rows, cols, **products.options(rows, cols), out_dtype=wide)
            y = y.movedim(0, 1).reshape(batch, *pixels, weight.shape[0])
            y = (y if bias is None else y + bias.to(y.dtype)).to(rows.dtype)
        y = y.movedim(-1, 1)
        y = y if is_channels_last(x) else y.contiguous()
        return y if x is input else y[0]

    return conv


def _each(option, rank: int):
    """An option of a convolution for each dimension."""
    if isinstance(option, (str, int)):
        return option if isinstance(option, str) else (option,) * rank
    return tuple(option) * rank if len(option) == 1 else tuple(option)


def _windows(x, kernel, stride, padding, dilation):
    """(batch, channels, *pixels, *kernel), a view of padded x; or None if PyTorch refuses it."""
    spans = [d * (size - 1) + 1 for size, d in zip(kernel, dilation, strict=True)]
    if padding == "same":
        pads = [((span - 1) // 2, span // 2) for span in spans]
    else:
        pads = [(0, 0)] * len(kernel) if padding == "valid" else [(p, p) for p in padding]
    is_refused = padding == "same" and any(step != 1 for step in stride)
    sizes = [size + sum(pad) for size, pad in zip(x.shape[2:], pads, strict=True)]
    options = *stride, *kernel, *dilation
    if is_refused or min(options) < 1 or min(map(min, pads)) < 0 or min(x.shape[1:]) == 0:
        return None
    if any(size < span for size, span in zip(sizes, spans, strict=True)):
        return None
    x = F.pad(x, [*itertools.chain(*reversed(pads))])
    for i, (span, step) in enumerate(zip(spans, stride, strict=True)):
        x = x.unfold(2 + i, span, step)[..., :: dilation[i]]
    return x


# --- Attention -----------------------------------------------------------------------------------


def _attention(
    products,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
):
    """Attention by our kernels, or else composed of products and softmax."""
    if not takes(query, key, value) or query.is_complex():
        return None
    if is_autocast(query):
        tensors = autocast(query, key, value)
        options = {"scale": scale, "enable_gqa": enable_gqa}
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(tensors[0].dtype)
        given = products, *tensors, attn_mask, dropout_p, is_causal
        return products.uncast(query.device.type, _attention, *given, **options)
    if attn_mask is not None and not is_causal_bias(attn_mask):
        key, value, attn_mask = from_first_key(key, value, attn_mask)
    given = query, key, value, attn_mask
    if _is_by_kernel(products, *given) and dropout_p == 0:
        algorithm = "fp16x3" if query.dtype == torch.float32 else "mma"
        return attention(*given, is_causal, scale, enable_gqa, algorithm)
    if attn_mask is not None and is_causal:
        return None
    return _composed(products, *given, dropout_p, is_causal, scale, enable_gqa)


def _is_by_kernel(products, query, key, value, mask):
    """Returns whether a kernel computes this on a GPU, or its twin with the same bits on a CPU."""
    if products.precision == "ieee" and query.dtype == torch.float32:
        return False  # its products are split
    if query.is_cuda and not is_hopper(query.device):
        return False
    tensors = query, key, value
    if query.dtype not in (torch.float32, *SIXTEEN_BIT) or any(x.dim() < 2 for x in tensors):
        return False
    if mask is not None and not is_causal_bias(mask):
        if mask.layout is not torch.strided:
            return False
        if mask.dtype not in (torch.bool, torch.float32, query.dtype):
            return False
    return all(0 < x.shape[-1] <= _MOST_COLUMNS for x in tensors)


def _composed(products, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa):
    """Attention as PyTorch composes it, with weights of zeros for a query that sees no key."""
    if enable_gqa:
        key, value = repeat_heads(query.shape[-3], key, value, -3)
    wide = torch.float32 if query.dtype in SIXTEEN_BIT else None
    options = products.options(query, key)
    scores = ops.matmul(query, key.mT, **options, out_dtype=wide)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    offset = 0 if is_causal else None
    if mask is not None and is_causal_bias(mask):
        offset, mask = causal_offset_of(query, key, mask), None
    if offset is not None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril(offset)
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask
        sees_nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = softmax(scores.masked_fill(sees_nothing, 0), -1).masked_fill(sees_nothing, 0)
    else:
        weights = softmax(scores, -1)
    weights = F.dropout(weights.to(query.dtype), dropout_p, training=True)
    return ops.matmul(weights, value, **options)


# --- torch_tiled's own operators, which name no algorithm ----------------------------------------


def _named(op):
    """An operator of torch_tiled with "auto", which on a CPU would be torch.matmul."""
    skipped = 1 if op is operators.gemm_.default else 0  # gemm_'s c

    def call(products, *args, algorithm="auto", precision="fp32", **options):
        operands = args[skipped : skipped + 2]
        if algorithm != "auto" or not operands[0].is_cpu:
            return op(*args, algorithm=algorithm, precision=precision, **options)
        return op(*args, **INVARIANT_PRODUCTS[precision].options(*operands), **options)

    return call


def _grouped_operator(products, a, b, offs=None, bias=None, precision="fp32", **options):
    if not a.is_cpu:
        return operators.grouped_mm.default(a, b, offs, bias, precision=precision, **options)
    return (
        None if options or bias is not None else _grouped(INVARIANT_PRODUCTS[precision], a, b, offs)
    )


_TILED = (
    operators.matmul.default,
    operators.matmul.out,
    operators.linear.default,
    operators.matmul.prepared,
    operators.linear.prepared,
    operators.gemm_.default,
)

# PyTorch's transposed convolutions are not invariant where the library takes none.
_NOT_ALWAYS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
INVARIANT_ROUTES = {
    **{function: route for function, route in ROUTES.items() if function not in _NOT_ALWAYS},
    **REDUCTIONS,
    **{op: _named(op) for op in _TILED},
    torch.dot: _dot,
    torch.Tensor.dot: _dot,
    torch.vdot: _vdot,
    torch.Tensor.vdot: _vdot,
    torch.linalg.vecdot: _vecdot,
    torch.inner: _inner,
    torch.Tensor.inner: _inner,
    torch.tensordot: _tensordot,
    torch.einsum: _einsum,
    torch.bilinear: _bilinear,
    F.bilinear: _bilinear,
    F.grouped_mm: _grouped_mm,
    torch_grouped_mm: _grouped_mm,
    operators.grouped_mm.default: _grouped_operator,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.scaled_dot_product_attention: _attention,
}

# Python code of PyTorch, which runs in the statement once more, so that its calls are
# torch_tiled's.
INSIDE = {
    **INSIDE_REDUCTIONS,
    F.multi_head_attention_forward: attention_by(F.linear, F.scaled_dot_product_attention),
}
