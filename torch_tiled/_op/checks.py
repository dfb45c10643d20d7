"""The argument checks of the operators, and the result's shape and dtype.

Checks of dtypes and options are csrc's (binding/registry.h). Shapes and devices are checked here
as well as in csrc (binding/ops.cpp, core/product.cpp), with the same texts, since sizes may be
symbolic: a bad call fails alike on meta tensors, under torch.compile, under vmap and on a device,
as tests/ops/test_errors.py compares.
"""

import functools

import torch

from .._internals import (
    DispatchKey,
    DispatchKeySet,
    is_wrapped,
    redispatch_without_python,
    unwrapped,
)
from .layouts import check_are_dense
from .namespace import operators
from .registry import orders
from .supported import COMPLEX, is_hopper

_check_options = redispatch_without_python(operators._check_options.default)
_BELOW_MODES = DispatchKeySet(DispatchKey.CPU)  # which the modes of a trace do not see


def check_options(op, operands=(), **options):
    """Raises the RuntimeError of an operator for dtypes and options that it does not take.

    Args:
        op: the operator's name in texts.
        operands: the (name, dtype) of each operand.
        options: algorithm, precision, activation, out_dtype, and dtype_of_out, dtype_of_c or
            dtype_of_bias, as far as they are to be checked.
    """
    if "out_dtype" in options and options["out_dtype"] is None:
        del options["out_dtype"]
    options = ((name, str(value)) for name, value in options.items())  # not all come by a schema
    _check_texts(op, tuple((name, str(dtype)) for name, dtype in operands), tuple(options))


@functools.lru_cache(1024)  # of calls that raised nothing
def _check_texts(op, operands, options):
    names, dtypes = [x for x, _ in operands], [x for _, x in operands]
    _check_options(_BELOW_MODES, op, names, dtypes, **dict(options))


def _shape(tensor):
    return tuple(tensor.shape)


def _check(condition, sentence):
    """torch._check, which imports sympy, of a condition that may be symbolic."""
    if not isinstance(condition, bool):
        torch._check(condition, sentence)
    elif not condition:
        raise RuntimeError(sentence())


def _check_same_device(op, x_name, x, y_name, y):
    if x.device != y.device:
        raise RuntimeError(
            f"{op}: {x_name} is on {x.device} and {y_name} is on {y.device}; "
            f"move one of them so that both are on one device"
        )


def _check_operands(op, x_name, x, y_name, y, **options):
    """Checks the operands of a product, and returns their names and dtypes for check_options()."""
    _check_same_device(op, x_name, x, y_name, y)
    operands = (x_name, x.dtype), (y_name, y.dtype)
    check_options(op, operands, **options)
    return operands


def dtype_of_product(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of a product unless out_dtype says another: float32 for mixed operands."""
    return a if a == b else torch.float32


def _product_shape(op, a, b):
    """The shape of torch.matmul(a, b)."""

    def sentence(reason):
        return f"{op}: a is {_shape(a)} and b is {_shape(b)}; {reason}"

    if a.dim() == 0 or b.dim() == 0:
        reason = "both need at least one dimension (torch.mul multiplies by a scalar)"
        raise RuntimeError(sentence(reason))
    rows = b.shape[-2] if b.dim() > 1 else b.shape[0]
    _check(a.shape[-1] == rows, lambda: sentence("a's columns must equal b's rows"))
    a_batch, b_batch = a.shape[:-2], b.shape[:-2]
    batch = a_batch or b_batch
    if a_batch and b_batch:  # broadcast_shapes() imports sympy, too
        try:
            batch = torch.broadcast_shapes(a_batch, b_batch)
        except RuntimeError:
            reason = (
                f"their batch dimensions {tuple(a_batch)} and {tuple(b_batch)} do not broadcast"
            )
            raise RuntimeError(sentence(reason)) from None
    m = a.shape[-2:-1]
    n = b.shape[-1:] if b.dim() > 1 else ()
    return (*batch, *m, *n)


def _check_written(op, name, tensor):
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):  # nothing is written
        return
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if isinstance(stride, int) and stride == 0 and size > 1:
            raise RuntimeError(
                f"{op}: {name} has elements that share memory (shape {_shape(tensor)}, strides "
                f"{tuple(tensor.stride())}); pass a tensor whose elements lie apart, such as its "
                f"clone(), which then has the result"
            )


def check_matmul(a, b, *, algorithm="auto", precision="fp32", out_dtype=None):
    """Returns the result's shape and dtype."""
    op = "tiled::matmul"
    options = {"precision": precision, "out_dtype": out_dtype}
    operands = _check_operands(op, "a", a, "b", b, **options)
    shape = _product_shape(op, a, b)
    check_options(op, operands, algorithm=algorithm, precision=precision)
    return shape, out_dtype or dtype_of_product(a.dtype, b.dtype)


def check_matmul_out(a, b, out, *, algorithm="auto", precision="fp32"):
    op = "tiled::matmul"
    operands = _check_operands(op, "a", a, "b", b, precision=precision)
    _check_same_device(op, "out", out, "a", a)
    check_options(op, operands, dtype_of_out=out.dtype)
    shape = _product_shape(op, a, b)
    _check(
        out.shape == shape,
        lambda: (
            f"{op}: out is {_shape(out)} and the product is {shape}; "
            f"pass an out of that shape (it is never resized)"
        ),
    )
    _check_written(op, "out", out)
    check_options(op, operands, algorithm=algorithm, precision=precision)


def check_gemm_(
    c,
    a,
    b,
    *,
    alpha=1.0,
    beta=1.0,
    algorithm="auto",
    precision="fp32",
    alpha_imag=0.0,
    beta_imag=0.0,
):
    op = "tiled::gemm_"
    operands = _check_operands(op, "a", a, "b", b, precision=precision)
    _check_same_device(op, "c", c, "a", a)
    check_options(op, operands, dtype_of_c=c.dtype)
    if min(a.dim(), b.dim(), c.dim()) < 2:
        raise RuntimeError(
            f"{op}: c is {_shape(c)}, a is {_shape(a)} and b is {_shape(b)}; "
            f"each must be a matrix or a batch of matrices"
        )
    product = _product_shape(op, a, b)
    try:
        fits = c.shape[-2:] == product[-2:] and torch.broadcast_shapes(c.shape, product) == c.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"{op}: c is {_shape(c)} and the product is {product}; "
            f"c must have that shape, or more batch dimensions"
        )
    for name, imaginary in (("alpha", alpha_imag), ("beta", beta_imag)):
        if imaginary != 0 and c.dtype not in COMPLEX:
            raise RuntimeError(
                f"{op}: {name} has the imaginary part {imaginary:f} and c is {c.dtype}; pass a "
                f"real {name}, or complex tensors"
            )
    _check_written(op, "c", c)
    check_options(op, operands, algorithm=algorithm, precision=precision)


def check_linear(
    x,
    weight,
    bias=None,
    *,
    activation="none",
    algorithm="auto",
    precision="fp32",
    out_dtype=None,
):
    """Returns the result's shape and dtype."""
    op = "tiled::linear"
    check_options(op, precision=precision, activation=activation)
    operands = _check_operands(op, "x", x, "weight", weight, out_dtype=out_dtype)

    def sentence(reason):
        return f"{op}: x is {_shape(x)} and weight is {_shape(weight)}; {reason}"

    if weight.dim() != 2:
        raise RuntimeError(sentence("weight must be (out_features, in_features)"))
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(sentence("x's last dimension must equal weight's"))
    if bias is not None:
        _check_same_device(op, "bias", bias, "x", x)
        check_options(op, operands, out_dtype=out_dtype, dtype_of_bias=bias.dtype)
        if bias.dim() != 1 or bias.shape[0] != weight.shape[0]:
            raise RuntimeError(
                f"{op}: bias is {_shape(bias)} and weight is {_shape(weight)}; "
                f"bias must be (out_features,)"
            )
    options = {"activation": activation, "algorithm": algorithm, "precision": precision}
    check_options(op, operands, **options)
    dtype = out_dtype or dtype_of_product(x.dtype, weight.dtype)
    return (*x.shape[:-1], weight.shape[0]), dtype


def check_grouped_mm(a, b, offs=None, bias=None, *, out_dtype=None, precision="fp32"):
    """Returns the result's shape and dtype."""
    op = "tiled::grouped_mm"
    check_options(op, precision=precision)
    operands = _check_operands(op, "a", a, "b", b, out_dtype=out_dtype)
    groups, shape = _grouped_shape(op, a, b, offs)
    if bias is not None:
        _check_same_device(op, "bias", bias, "a", a)
        check_options(op, operands, out_dtype=out_dtype, dtype_of_bias=bias.dtype)
        if a.dim() == 3 and b.dim() == 2:
            raise RuntimeError(
                f"{op}: bias is {_shape(bias)} and b is cut by columns, of which groups have "
                f"different ones; add it to the result"
            )
        row, rows = shape[-1:], (groups, shape[-1])
        _check(
            bias.shape == (row if bias.dim() == 1 else rows),
            lambda: (
                f"{op}: bias is {_shape(bias)}; it must be {tuple(row)} for all groups, or {rows}"
            ),
        )
    return shape, out_dtype or dtype_of_product(a.dtype, b.dtype)


def _grouped_shape(op, a, b, offs):
    """The number of groups, and the shape of the result."""

    def sentence(reason):
        return f"{op}: a is {_shape(a)} and b is {_shape(b)}; {reason}"

    if not {a.dim(), b.dim()} <= {2, 3}:
        raise RuntimeError(sentence("each must have 2 or 3 dimensions"))
    _check(a.shape[-1] == b.shape[-2], lambda: sentence("a's columns must equal b's rows"))
    matrix = a.shape[-2], b.shape[-1]
    if a.dim() == b.dim() == 3:
        _check(a.shape[0] == b.shape[0], lambda: sentence("they must have as many matrices"))
        if offs is not None:
            raise RuntimeError(sentence("offs cuts a matrix, and both are batches; pass no offs"))
        return a.shape[0], (a.shape[0], *matrix)
    if offs is None:
        raise RuntimeError(sentence("pass offs, the end of each group"))
    _check_same_device(op, "offs", offs, "a", a)
    if offs.dtype != torch.int32:
        raise RuntimeError(
            f"{op}: offs is {offs.dtype}; it must be torch.int32, for example by .to(torch.int32)"
        )
    if offs.dim() != 1:
        raise RuntimeError(f"{op}: offs is {_shape(offs)}; it must be (groups,)")
    (groups,) = offs.shape
    if a.dim() != b.dim():
        _check(
            (a if a.dim() == 3 else b).shape[0] == groups,
            lambda: sentence(f"offs is {_shape(offs)}, and it must have an end for each matrix"),
        )
    length = matrix[0] if b.dim() == 3 else matrix[1] if a.dim() == 3 else a.shape[-1]
    if any(isinstance(x, int) and x > 2**31 - 1 for x in (length, groups)):
        raise RuntimeError(sentence(f"offs is {_shape(offs)}, and 32 bits count at most 2**31 - 1"))
    return groups, matrix if a.dim() != b.dim() else (groups, *matrix)


def check_segment_matmul(x, ptr, weight, bias, *, has_values):
    """Raises the error that grouped_mm has for these, in the words of segment_matmul.

    Args:
        has_values: whether ptr's may be read. Mapped by torch.vmap, ptr has several.
    """
    op = "torch_tiled.segment_matmul"
    check_are_dense(op, {"x": x, "ptr": ptr, "weight": weight, "bias": bias})
    rank_of_bias = 2 if bias is None else bias.dim()
    if (x.dim(), ptr.dim(), weight.dim(), rank_of_bias) != (2, 1, 3, 2) or (
        x.shape[1] != weight.shape[1]
        or ptr.shape[0] != weight.shape[0] + 1
        or (bias is not None and bias.shape != weight.shape[::2])
    ):
        names = "x", "ptr", "weight", "bias"
        given = zip(names, (x, ptr, weight, bias), strict=True)
        shapes = [f"{name} is {_shape(each)}" for name, each in given if each is not None]
        wanted = "(rows, k), (groups + 1,), (groups, k, n) and (groups, n)"
        raise RuntimeError(f"{op}: {', '.join(shapes)}; {', '.join(names)} must be {wanted}")
    operands = _check_operands(op, "x", x, "weight", weight)
    _check_same_device(op, "ptr", ptr, "x", x)
    if bias is not None:
        _check_same_device(op, "bias", bias, "x", x)
        check_options(op, operands, dtype_of_bias=bias.dtype)
    if has_values:
        _check_ptr(ptr, x.shape[0])


def _check_ptr(ptr, rows):
    """Raises an error of segment_matmul if ptr does not ascend from 0 on to at most these rows."""
    op = "torch_tiled.segment_matmul"
    wrong = torch.cat([ptr[:1] != 0, ptr.diff() < 0]) | (ptr > rows)
    if not unwrapped(wrong).any():
        return
    if is_wrapped(ptr):
        raise RuntimeError(f"{op}: each ptr must ascend from 0 on to at most {rows}, x's rows")
    i = int(wrong.nonzero()[0])
    must = f"at least {int(ptr[i - 1])}, the end of the group before, and at most {rows}, x's rows"
    raise RuntimeError(f"{op}: ptr[{i}] is {int(ptr[i])}; it must be {must if i else 0}")


# --- attention (csrc/binding/attention.cpp) ------------------------------------------------------


def check_attention(q, k, v, mask=None):
    """Returns the shape of the result."""
    op = "tiled::attention"
    sentence = _check_dtypes(op, q, k, v, (torch.float32, torch.bfloat16, torch.float16))
    if not q.dim() == k.dim() == v.dim() == 4:
        raise RuntimeError(sentence("each must have 4 dimensions: batch, heads, rows and columns"))
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    same_batch = k.shape[0] == batch and v.shape[0] == batch
    _check(same_batch, lambda: sentence("their batches must be equal"))
    _check_heads(q, k, v, 2, sentence)
    if mask is not None:
        _check_mask(op, mask, q, (batch, heads, queries, keys))
    return batch, heads, queries, v.shape[3]


def _check_dtypes(op, q, k, v, dtypes):
    """Checks dtypes and devices, and returns a function that makes a sentence of a reason."""
    for name, x in (("query", q), ("key", k), ("value", v)):
        _check_same_device(op, name, x, "query", q)
        if x.dtype not in dtypes:
            *others, last = map(str, dtypes)
            names = f"{', '.join(others)} or {last}" if others else last
            raise RuntimeError(f"{op}: {name} is {x.dtype}; query, key and value must be {names}")
        if x.dtype != q.dtype:
            raise RuntimeError(
                f"{op}: {name} is {x.dtype} and query is {q.dtype}; query, key and value must have "
                f"one dtype"
            )
    shapes = f"query is {_shape(q)}, key is {_shape(k)} and value is {_shape(v)}"
    return lambda why: f"{op}: {shapes}; {why}"


def _check_heads(q, k, v, rows, sentence):
    """Checks heads, dimension 1; columns, the last one; and rows, the dimension of that number."""
    heads, kv_heads = q.shape[1], k.shape[1]
    _check(v.shape[1] == kv_heads, lambda: sentence("key and value must have as many heads"))
    is_multiple = heads == 0 if kv_heads == 0 else heads % kv_heads == 0
    _check(is_multiple, lambda: sentence("query's heads must be a multiple of key's"))
    same_columns = k.shape[-1] == q.shape[-1]
    _check(same_columns, lambda: sentence("query and key must have as many columns"))
    same_rows = v.shape[rows] == k.shape[rows]
    _check(same_rows, lambda: sentence("key and value must have as many rows"))


def check_attention_packed(q, k, v, offsets_q, offsets_k):
    """Returns the shape of the result."""
    op = "tiled::attention_packed"
    sentence = _check_dtypes(op, q, k, v, (torch.float32,))
    if not q.dim() == k.dim() == v.dim() == 3:
        raise RuntimeError(sentence("each must have 3 dimensions: rows, heads and columns"))
    _check_heads(q, k, v, 0, sentence)
    for name, x in (("offsets_q", offsets_q), ("offsets_k", offsets_k)):
        _check_same_device(op, name, x, "query", q)
        if x.dtype != torch.int32:
            raise RuntimeError(f"{op}: {name} is {x.dtype}; it must be torch.int32")
        if x.dim() != 1 or x.shape != offsets_q.shape or x.shape[0] == 0:
            raise RuntimeError(
                f"{op}: offsets_q is {_shape(offsets_q)} and {name} is {_shape(x)}; both must be "
                f"(sequences + 1,)"
            )
    return *q.shape[:2], v.shape[2]


def _check_mask(op, mask, q, scores):
    _check_same_device(op, "attn_mask", mask, "query", q)
    if mask.dtype not in (torch.bool, torch.float32):
        raise RuntimeError(
            f"{op}: attn_mask is {mask.dtype}; it must be torch.bool or torch.float32"
        )
    sizes = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() > 4 or any(size != wanted and size != 1 for size, wanted in sizes):
        raise RuntimeError(
            f"{op}: attn_mask is {_shape(mask)}; it must expand to {scores}, which are batch, "
            f"heads, queries and keys"
        )


def check_options_of_linear(activation, algorithm, precision, dtype):
    """Raises the RuntimeError of linear for an option that it takes with no operands of a dtype.

    A dtype of None is one of real numbers.
    """
    op = "tiled::linear"
    check_options(op, precision=precision, activation=activation, algorithm=algorithm)
    if dtype == torch.complex32:
        raise RuntimeError(f"{op}: dtype is {dtype}, which has no products; choose torch.complex64")
    if dtype in COMPLEX:
        check_options(op, (("dtype", dtype),), activation=activation)


# --- prepared operands (csrc/core/presplit.h) ----------------------------------------------------


def _is_split(b):
    """Returns whether prepare() splits b into hi and lo parts.

    It does so if fp16x3 products can be computed: on the CPU and on Hopper GPUs. Meta tensors,
    and FakeTensors on a GPU that is not there, count as split.
    """
    k = b.shape[0] * (2 if b.dtype in COMPLEX else 1)
    if b.dtype not in (torch.float32, torch.complex64) or k < orders()["fp16x3"].min_k:
        return False
    if b.device.type != "cuda" or not torch.cuda.is_available():
        return True
    return is_hopper(b.device)


def _presplit_sizes(k, n):
    """The bytes of the hi and lo parts and the number of inverse scales of a real operand."""
    columns, chunk = (n + 7) // 8 * 8, orders()["fp16x3"].chunk
    return columns * ((k + 31) // 32 * 32) * 4, columns * ((k + chunk - 1) // chunk)


def prepared_sizes(dtype, k, n, *, is_split):
    """The sizes of hi_lo and inverse_scales for a (k, n) operand, which may be symbolic.

    hi_lo has the hi and lo parts, if it is split. For a complex64 operand the real one of twice its
    sides follows, with columns that begin at multiples of 16 bytes.
    """
    if dtype != torch.complex64:
        return _presplit_sizes(k, n) if is_split else (0, 0)
    hi_lo, scales = _presplit_sizes(2 * k, 2 * n) if is_split else (0, 0)
    return hi_lo + 2 * n * ((k + 1) // 2 * 2) * dtype.itemsize, scales


def check_prepare(b):
    """Returns the sizes of the results hi_lo and inverse_scales."""
    op = "tiled::prepare"
    check_options(op, (("b", b.dtype),))
    if b.dim() != 2:
        raise RuntimeError(f"{op}: b is {_shape(b)}; it must be a matrix (k, n)")
    return prepared_sizes(b.dtype, *b.shape, is_split=_is_split(b))


def _check_prepared(op, name, b, k, n, hi_lo, inverse_scales):
    _check_same_device(op, "hi_lo", hi_lo, name, b)
    _check_same_device(op, "inverse_scales", inverse_scales, name, b)
    if b.dim() != 2:
        raise RuntimeError(f"{op}: {name} is {_shape(b)}; a prepared operand is one matrix")
    if hi_lo.numel() == 0 and inverse_scales.numel() == 0:
        return
    is_split = inverse_scales.numel() != 0
    hi_lo_bytes, scales = prepared_sizes(b.dtype, k, n, is_split=is_split)
    fits = b.dtype in (torch.float32, torch.complex64) or not is_split
    for tensor, dtype, size in (
        (hi_lo, torch.uint8, hi_lo_bytes),
        (inverse_scales, torch.float32, scales),
    ):
        fits = fits and tensor.dtype == dtype and tensor.shape == (size,)
        fits = fits and tensor.is_contiguous()
    if not fits:
        given, scales_given, made_of = (
            f"{_shape(tensor)} {tensor.dtype}" for tensor in (hi_lo, inverse_scales, b)
        )
        raise RuntimeError(
            f"{op}: hi_lo is {given} and inverse_scales is {scales_given}, which is not what "
            f"torch_tiled.prepare makes of {name}, {made_of}; prepare it again"
        )


def check_prepared_matmul(a, b, hi_lo, inverse_scales, **options):
    """Returns the result's shape and dtype."""
    result = check_matmul(a, b, **options)
    _check_prepared("tiled::matmul", "b", b, b.shape[0], b.shape[-1], hi_lo, inverse_scales)
    return result


def check_prepared_linear(x, weight, hi_lo, inverse_scales, bias=None, **options):
    """Returns the result's shape and dtype."""
    result = check_linear(x, weight, bias, **options)
    n, k = weight.shape
    _check_prepared("tiled::linear", "weight", weight, k, n, hi_lo, inverse_scales)
    return result
