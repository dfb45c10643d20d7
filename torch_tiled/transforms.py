"""The operators under torch.vmap and autocast."""

import math

import torch

from ._internals import (
    DispatchKey,
    DispatchKeySet,
    ExcludeKeys,
    apply_vmap_rule,
    current_interpreter,
)
from .autograd import ACTIVATIONS, refuse_derivative_of_prepared
from .fake import (
    check_gemm_,
    check_linear,
    check_matmul,
    check_matmul_out,
    check_prepared_linear,
    check_prepared_matmul,
)

_matmul = torch.ops.tiled.matmul.default
_matmul_out = torch.ops.tiled.matmul.out
_gemm = torch.ops.tiled.gemm_.default
_linear = torch.ops.tiled.linear.default
_prepared_matmul = torch.ops.tiled.matmul.prepared
_prepared_linear = torch.ops.tiled.linear.prepared

# --- vmap ----------------------------------------------------------------------------------------
#
# A rule gets whole tensors and, for each, the dimension that is mapped over, or None. It moves that
# dimension to the front, where the operators take it for one more batch dimension.


def _rank(tensor, dim):
    """The rank of one example."""
    return tensor.dim() - (dim is not None)


def _front(tensor, dim):
    return tensor if dim is None else tensor.movedim(dim, 0)


def _fill(tensor, dim, rank):
    """Ones after the leading batch dimension, if there is one, so that examples have that rank."""
    if dim is None:
        return tensor
    ones = (1,) * (rank - _rank(tensor, dim))
    return tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:])


def _check_example(check, in_dims, *tensors, **options):
    """Refuses examples that would pass for something else with a batch dimension before them."""
    pairs = zip(tensors, in_dims, strict=True)
    check(*(t if dim is None else t.select(dim, 0) for t, dim in pairs), **options)


def _as_matrices(in_dims, a, b):
    """a and b as matrices whose batches broadcast, and the dimensions this adds to the product."""
    a_dim, b_dim = in_dims
    vector_a, vector_b = _rank(a, a_dim) == 1, _rank(b, b_dim) == 1
    a, b = _front(a, a_dim), _front(b, b_dim)
    a = a.unsqueeze(-2) if vector_a else a
    b = b.unsqueeze(-1) if vector_b else b
    rank = max(_rank(a, a_dim), _rank(b, b_dim))
    added = ([-2] if vector_a else []) + ([-1] if vector_b else [])
    return _fill(a, a_dim, rank), _fill(b, b_dim, rank), added


def _vmap_matmul(info, in_dims, a, b, **options):
    a_dim, b_dim = in_dims
    _check_example(check_matmul, in_dims, a, b, **options)
    if b_dim is None and b.dim() <= 2:
        return _matmul(_front(a, a_dim), b, **options), 0  # the batch is one more dimension of rows
    a, b, added = _as_matrices(in_dims, a, b)
    return _matmul(a, b, **options).squeeze(added), 0


def _vmap_matmul_out(info, in_dims, a, b, out, **options):
    a_dim, b_dim, out_dim = in_dims
    _refuse_shared_output("tiled::matmul", "out", out, out_dim)
    _check_example(check_matmul_out, in_dims, a, b, out, **options)
    if a_dim is None:
        a, a_dim = a.expand(info.batch_size, *a.shape), 0
    a, b, added = _as_matrices((a_dim, b_dim), a, b)
    out = _front(out, out_dim)
    for dim in reversed(added):
        out = out.unsqueeze(dim)
    _matmul_out(a, b, out=out, **options)
    return None, None


def _vmap_gemm(info, in_dims, c, a, b, **options):
    c_dim, a_dim, b_dim = in_dims
    _refuse_shared_output("tiled::gemm_", "c", c, c_dim)
    _check_example(check_gemm_, in_dims, c, a, b, **options)
    rank = _rank(c, c_dim)
    a, b = _fill(_front(a, a_dim), a_dim, rank), _fill(_front(b, b_dim), b_dim, rank)
    _gemm(_front(c, c_dim), a, b, **options)
    return None, None


def _refuse_shared_output(op, name, tensor, dim):
    if dim is None:
        raise RuntimeError(
            f"{op}: under vmap an operand is mapped over and {name} of shape "
            f"{tuple(tensor.shape)} is not, so every example would write to the same {name}; "
            f"map over {name} too, or call torch_tiled.matmul"
        )


def _vmap_linear(info, in_dims, x, weight, bias=None, *, activation="none", **options):
    in_dims = (*in_dims, None)[:3]  # bias may have been left out
    x_dim, weight_dim, bias_dim = in_dims
    _check_example(check_linear, in_dims, x, weight, bias, activation=activation, **options)
    x, weight = _front(x, x_dim), _front(weight, weight_dim)
    if weight_dim is None and bias_dim is None:
        return _linear(x, weight, bias, activation=activation, **options), 0
    # No launch fuses a bias or weight of each example: product, bias, activation.
    batch = x.shape[: x_dim is not None]
    rows = x.shape[len(batch) : -1]
    x = x.reshape(*batch, math.prod(rows), x.shape[-1])
    y = _matmul(x, weight.mT, **options)
    if bias is not None:
        y = y + _front(bias, bias_dim).unsqueeze(-2)
    y = y.reshape(info.batch_size, *rows, y.shape[-1])
    return y if activation == "none" else ACTIVATIONS[activation](y), 0


# What was prepared is one matrix: where each example has its own, they are multiplied unprepared,
# to the same bits.


def _vmap_prepared_matmul(info, in_dims, a, b, hi_lo, inverse_scales, **options):
    a_dim, *prepared_dims = in_dims
    _check_example(check_prepared_matmul, in_dims, a, b, hi_lo, inverse_scales, **options)
    if any(dim is not None for dim in prepared_dims):
        return _vmap_matmul(info, (a_dim, prepared_dims[0]), a, b, **options)
    return _prepared_matmul(_front(a, a_dim), b, hi_lo, inverse_scales, **options), 0


def _vmap_prepared_linear(info, in_dims, x, weight, hi_lo, inverse_scales, bias=None, **options):
    in_dims = (*in_dims, None)[:5]  # bias may have been left out
    x_dim, *prepared_dims, bias_dim = in_dims
    _check_example(check_prepared_linear, in_dims, x, weight, hi_lo, inverse_scales, bias, **options)
    if any(dim is not None for dim in (*prepared_dims, bias_dim)):
        dims = (x_dim, prepared_dims[0], bias_dim)
        return _vmap_linear(info, dims, x, weight, bias, **options)
    return _prepared_linear(_front(x, x_dim), weight, hi_lo, inverse_scales, bias, **options), 0


def _vmap_prepare(info, in_dims, b):
    raise RuntimeError(
        f"tiled::prepare: under vmap b of shape {tuple(b.shape)} is mapped over, and what is "
        f"prepared is one matrix; prepare it outside of vmap, or call torch_tiled.matmul(a, b)"
    )


def _batched_matmul_out(keyset, a, b, *, out, **options):
    """What register_vmap would register, if it took tensors that are keyword arguments."""

    def op(a, b, out, **options):
        _matmul_out(a, b, out=out, **options)

    return apply_vmap_rule(current_interpreter(), _vmap_matmul_out, op, a, b, out, **options)


# --- autocast ------------------------------------------------------------------------------------


def _autocast(op, device, key):
    """Casts operands as torch.matmul's are cast: float64 stays as it is."""
    excluded = DispatchKeySet(key)

    def kernel(*tensors, **options):
        dtype = torch.get_autocast_dtype(device)

        def cast(tensor):
            if tensor is None or tensor.device.type != device or not tensor.is_floating_point():
                return tensor
            return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

        with ExcludeKeys(excluded):
            return op(*map(cast, tensors), **options)

    return kernel


def _autocast_prepared(op, name, plain):
    """A cast operand is another than the one that was split: the product is the unprepared one."""

    def kernel(x, prepared, hi_lo, inverse_scales, *bias, **options):
        refuse_derivative_of_prepared(op, name, prepared)
        return plain(x, prepared, *bias, **options)

    return kernel


def register(library):
    for name, rule in (
        ("matmul", _vmap_matmul),
        ("matmul.prepared", _vmap_prepared_matmul),
        ("gemm_", _vmap_gemm),
        ("linear", _vmap_linear),
        ("linear.prepared", _vmap_prepared_linear),
        ("prepare", _vmap_prepare),
    ):
        torch.library.register_vmap(f"tiled::{name}", rule, lib=library)
    library.impl("matmul.out", _batched_matmul_out, "FuncTorchBatched", with_keyset=True)
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        excluded = getattr(DispatchKey, key)
        matmul, linear = (_autocast(op, device, excluded) for op in (_matmul, _linear))
        library.impl("matmul", matmul, key)
        library.impl("linear", linear, key)
        library.impl("matmul.prepared", _autocast_prepared("tiled::matmul", "b", matmul), key)
        library.impl("linear.prepared", _autocast_prepared("tiled::linear", "weight", linear), key)
