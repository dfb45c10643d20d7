"""The operators on tensors without data: FakeTensors of torch.compile and export, meta tensors.

A fake kernel checks its arguments and returns an empty tensor of the result's shape and dtype.
Sizes may be symbolic.
"""

import torch

from .checks import (
    check_attention,
    check_attention_packed,
    check_gemm_,
    check_grouped_mm,
    check_linear,
    check_matmul,
    check_matmul_out,
    check_prepare,
    check_prepared_linear,
    check_prepared_matmul,
)
from .namespace import NAMESPACE
from .row_checks import (
    check_row_norm,
    check_row_norm_backward,
    check_rows,
    check_softmax_backward,
)


def _empty_result(check):
    """The fake kernel of an operator, from a check that returns its result's shape and dtype."""

    def kernel(first, *others, **options):
        shape, dtype = check(first, *others, **options)
        return torch.empty(shape, dtype=dtype, device=first.device)

    return kernel


def _fake_prepare(b):
    hi_lo_bytes, scales = check_prepare(b)
    return (
        torch.empty(hi_lo_bytes, dtype=torch.uint8, device=b.device),
        torch.empty(scales, dtype=torch.float32, device=b.device),
    )


def _fake_attention(q, k, v, mask, causal_offset, scale):
    """The result has q's order of dimensions, as in csrc/binding/attention.cpp."""
    shape = check_attention(q, k, v, mask)
    order, strides = [0, 1, 2], q.stride()[:3]
    if all(stride != 0 for stride in strides):
        order.sort(key=lambda dim: -strides[dim])
    out = torch.empty_permuted(shape, [*order, 3], dtype=q.dtype, device=q.device)
    return out, *(q.new_empty(shape[:3], dtype=dtype) for dtype in (torch.float32, torch.int32))


def _fake_attention_packed(q, k, v, offsets_q, offsets_k, max_q, max_k, is_causal, scale):
    shape = check_attention_packed(q, k, v, offsets_q, offsets_k)
    rows, heads = shape[:2]
    return (
        q.new_empty(shape),
        q.new_empty(heads, rows),
        q.new_empty(heads, rows, dtype=torch.int32),
    )


def _fake_attention_backward(grad, q, k, v, *others):
    shapes = q.shape, k.shape, v.shape, (*q.shape[:3], k.shape[2])
    return _fake_gradients(q, shapes, others)


def _fake_attention_packed_backward(grad, q, k, v, *others):
    return _fake_gradients(q, (q.shape, k.shape, v.shape), others)


def _fake_row_norm(x, weight, bias, eps, centered):
    dtype, rows = check_row_norm(x, weight, bias, centered)
    mean = x.new_empty(rows if centered else (0,), dtype=dtype)
    return x.new_empty(x.shape), mean, x.new_empty(rows, dtype=dtype)


def _fake_row_norm_backward(grad, x, weight, mean, inverse, centered, *needs):
    dtype = check_row_norm_backward(grad, x, weight, mean, inverse, centered, needs)
    dtypes, shapes = (x.dtype, dtype, dtype), (x.shape, x.shape[-1:], x.shape[-1:])
    return tuple(
        x.new_empty(shape if needed else (0,), dtype=dtype)
        for needed, shape, dtype in zip(needs, shapes, dtypes, strict=True)
    )


def _fake_gradients(q, shapes, options):
    """A result of each shape; empty if the option that asks for it, of the last ones, is False."""
    needs = zip(shapes, options[-len(shapes) :], strict=True)
    return tuple(q.new_empty(shape if needed else (0,)) for shape, needed in needs)


def _fake_rows(op):
    """The fake kernel of an operator with a result for each element."""

    def kernel(x, _):
        check_rows(op, "x", x)
        return x.new_empty(x.shape)

    return kernel


def _fake_row_softmax_backward(grad, y, log):
    check_softmax_backward("tiled::_row_softmax_backward", grad, y)
    return y.new_empty(y.shape)


def _fake_row_reduction(op):
    """The fake kernel of an operator with one result for each row."""

    def kernel(x, *options):
        check_rows(op, "x", x)
        return x.new_empty(x.shape[:-1])

    return kernel


def _fake_gemm(c, a, b, **options):
    check_gemm_(c, a, b, **options)
    return torch.empty(c.shape, dtype=c.dtype, device=c.device)


def register(library):
    for name, kernel in (
        ("matmul", _empty_result(check_matmul)),
        ("matmul.out", check_matmul_out),
        ("matmul.prepared", _empty_result(check_prepared_matmul)),
        ("gemm_", check_gemm_),
        ("_gemm", _fake_gemm),
        ("linear", _empty_result(check_linear)),
        ("linear.prepared", _empty_result(check_prepared_linear)),
        ("grouped_mm", _empty_result(check_grouped_mm)),
        ("attention", _fake_attention),
        ("attention_packed", _fake_attention_packed),
        ("_attention_backward", _fake_attention_backward),
        ("_attention_packed_backward", _fake_attention_packed_backward),
        ("_row_norm", _fake_row_norm),
        ("_row_norm_backward", _fake_row_norm_backward),
        ("prepare", _fake_prepare),
        ("_row_softmax", _fake_rows("tiled::_row_softmax")),
        ("_row_softmax_backward", _fake_row_softmax_backward),
        ("_row_logsumexp", _fake_row_reduction("tiled::_row_logsumexp")),
        ("_row_sum", _fake_row_reduction("tiled::_row_sum")),
        ("_row_cumsum", _fake_rows("tiled::_row_cumsum")),
    ):
        torch.library.register_fake(f"{NAMESPACE}::{name}", kernel, lib=library)
