"""The reductions that torch_tiled.invariant runs in place of PyTorch's.

REDUCTIONS is a map as ROUTES. Its functions call those of torch_tiled.nn.functional, or are
composed of its sums.
"""

import math

import torch
import torch.nn.functional as F

from ._internals import in_modes
from ._op.gradient_flow import is_differentiated
from ._op.row_checks import DTYPES
from ._op.supported import SIXTEEN_BIT, is_supported
from ._routes import is_autocast, takes
from .nn import functional as ours

__all__ = ["INSIDE_REDUCTIONS", "REDUCTIONS"]

_sum, _mean = ours.sum, ours.mean


def _are_real(*tensors) -> bool:
    """Returns whether all are dense tensors of floating-point numbers, or None."""
    for x in tensors:
        if x is not None and not (is_supported(x) and x.dtype in DTYPES):
            return False
    return True


def _put(out, result):
    """Writes a result to out, if PyTorch does so without a cast, a warning or an error.

    Without out, the result is returned.
    """
    if out is None:
        return result
    if torch.is_grad_enabled() and (result.requires_grad or out.requires_grad):
        return None
    if not is_supported(out) or (out.dtype, out.device) != (result.dtype, result.device):
        return None
    if out.shape != result.shape:
        if out.numel() > 0:
            return None
        out.resize_(result.shape)
    return out.copy_(result)


_COMMON = {"dim", "keepdim"}


def _reducing(function, takes_complex=True):
    """A route to sum, mean, cumsum or logsumexp. PyTorch computes those of integers."""

    def reduce(products, input, *args, **options):
        if options.keys() <= _COMMON and is_supported(input) and not input.is_complex():
            return function(input, *args, **options)
        return reduce_any(input, *args, **options)

    def reduce_any(input, *args, out=None, **options):
        if "axis" in options:
            options["dim"] = options.pop("axis")
        if "keepdims" in options:
            options["keepdim"] = options.pop("keepdims")
        dtype = options.get("dtype")
        if dtype is not None and isinstance(input, torch.Tensor):
            input = input.to(dtype)
        if not is_supported(input):
            return None
        if not input.is_complex():
            return _put(out, function(input, *args, **options))
        if not takes_complex:
            return None
        options.pop("dtype", None)
        parts = (function(part, *args, **options) for part in (input.real, input.imag))
        return _put(out, torch.complex(*parts))

    return reduce


def _of_a_row(function):
    """A route to softmax or log_softmax."""

    def of_a_row(products, input, dim=None, dtype=None, *, _stacklevel=3, out=None, axis=None):
        dim = axis if dim is None else dim
        if dtype is not None and isinstance(input, torch.Tensor):
            input = input.to(dtype)
        if dim is None or not is_supported(input) or input.is_complex():
            return None
        result = function(input, dim, dtype)
        return result if out is None else _put(out, result)

    return of_a_row


def _logsumexp(products, input, *args, **options):
    if isinstance(input, torch.Tensor) and not (input.is_floating_point() or input.is_complex()):
        input = input.to(torch.get_default_dtype())
    return _reducing(ours.logsumexp, takes_complex=False)(products, input, *args, **options)


_cumsum = _reducing(ours.cumsum)


def _cumsum_(products, self, dim, *, dtype=None):
    result = _cumsum(products, self, dim, dtype=dtype)
    return None if result is None else self.copy_(result)


def _nansum(products, input, *args, **options):
    if not isinstance(input, torch.Tensor) or not _are_real(input):
        return None
    if is_autocast(input):
        return products.uncast(input.device.type, _nansum, products, input, *args, **options)
    return REDUCTIONS[torch.sum](products, input.masked_fill(input.isnan(), 0), *args, **options)


def _nanmean(products, input, dim=None, keepdim=False, *, dtype=None, out=None):
    if not isinstance(input, torch.Tensor) or not _are_real(input):
        return None
    total = _nansum(products, input, dim, keepdim, dtype=dtype)
    return _put(out, total / (~input.isnan()).sum(dim, keepdim))


def _trace(products, input):
    if not takes(input) or input.dim() != 2:
        return None
    if input.is_cpu and input.dtype in SIXTEEN_BIT and is_autocast(input):
        input = input.float()
    if input.is_cuda and is_autocast(input):
        return products.uncast("cuda", products.total, input.diagonal(), [0])
    return products.total(input.diagonal(), [0])


def _sum_to_size(products, self, *size):
    size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    lead = self.dim() - len(size)
    if not takes(self) or lead < 0:
        return None
    dims = [i for i, x in enumerate(self.shape) if i < lead or size[i - lead] == 1 != x]
    if any(x not in (1, y) for x, y in zip(size, self.shape[lead:], strict=True)):
        return None
    return products.total(self, dims).reshape(size) if dims else self.view(size)


# --- Norms ---------------------------------------------------------------------------------------


def _layer_norm(
    products, input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True
):
    if not _are_real(input, weight, bias):
        return None
    return ours.layer_norm(input, normalized_shape, weight, bias, eps)


def _rms_norm(products, input, normalized_shape, weight=None, eps=None):
    if not _are_real(input, weight):
        return None
    return ours.rms_norm(input, normalized_shape, weight, eps)


def _group_norm(products, input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    if not _are_real(input, weight, bias):
        return None
    return ours.group_norm(input, num_groups, weight, bias, eps)


def _instance_norm(
    products,
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    """Each channel is a group. With running statistics for input's own there is no sum."""
    given = running_mean, running_var, weight, bias
    if not use_input_stats and running_mean is not None:
        return F.instance_norm(input, *given, use_input_stats, momentum, eps)
    is_taken = running_mean is None and running_var is None and _are_real(input, weight, bias)
    if not is_taken or input.dim() < 3 or math.prod(input.shape[2:]) < 2:
        return None
    given = input, input.shape[1], weight, bias, eps
    if is_autocast(input):  # PyTorch casts group_norm there, and not this
        return products.uncast(input.device.type, ours.group_norm, *given)
    return ours.group_norm(*given)


# --- Variances and lengths -----------------------------------------------------------------------


def _root(x):
    """The square root, with a gradient of 0 at 0, which is PyTorch's for lengths."""
    if not is_differentiated(x):
        return x.sqrt()
    is_zero = x == 0
    return x.masked_fill(is_zero, 1).sqrt().masked_fill(is_zero, 0)


def _moments(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """The variance and the mean, with the arguments of torch.var_mean."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    dims = range(input.dim()) if dim is None or dim == () or dim == [] else dim
    dims = [dims] if isinstance(dims, int) else list(dims)
    if input.is_complex():
        options = {"keepdim": keepdim, "correction": correction}
        parts = [_moments(x, dims, **options) for x in (input.real, input.imag)]
        return parts[0][0] + parts[1][0], torch.complex(parts[0][1], parts[1][1])
    x = input.float() if input.dtype in SIXTEEN_BIT else input
    mean = _mean(x, dims, True)
    size = math.prod([x.shape[i] for i in dims]) if x.dim() else 1
    total = _sum((x - mean).square(), dims, keepdim) / max(0, size - correction)
    mean = mean if keepdim else mean.reshape(total.shape)
    return total.to(input.dtype), mean.to(input.dtype)


def _of_moments(results):
    """A route to var, std, var_mean or std_mean: results(variance, mean)."""

    def of_moments(products, input, *args, out=None, **options):
        if not is_supported(input):
            return None
        if "axis" in options:
            options["dim"] = options.pop("axis")
        result = results(*_moments(input, *args, **options))
        return result if out is None else _put(out, result)

    return of_moments


_var, _std = _of_moments(lambda var, mean: var), _of_moments(lambda var, mean: _root(var))
_var_mean = _of_moments(lambda var, mean: (var, mean))
_std_mean = _of_moments(lambda var, mean: (_root(var), mean))


def _vector_norm(products, x, ord=2, dim=None, keepdim=False, *, dtype=None, out=None):
    if not is_supported(x) or ord not in (0, 1, 2, math.inf, -math.inf):
        return None
    if ord == 0:  # a count, which is exact
        return torch.linalg.vector_norm(x, 0, dim, keepdim, dtype=dtype, out=out)
    if dtype is None and x.is_cuda and x.dtype in SIXTEEN_BIT and is_autocast(x):
        dtype = torch.float32
    x = x if dtype is None else x.to(dtype)
    result_dtype = x.dtype
    if x.is_complex():
        x = x.abs()
        result_dtype = x.dtype
    x = x.float() if x.dtype in SIXTEEN_BIT else x
    dims = list(range(x.dim())) if dim is None else dim
    if ord in (math.inf, -math.inf):
        result = (torch.amax if ord > 0 else torch.amin)(x.abs(), dims, keepdim)
    elif ord == 1:
        result = _sum(x.abs(), dims, keepdim)
    else:
        result = _root(_sum(x.square(), dims, keepdim))
    return _put(out, result.to(result_dtype))


def _linalg_norm(products, A, ord=None, dim=None, keepdim=False, *, out=None, dtype=None):
    dims = A.dim() if dim is None else 1 if isinstance(dim, int) else len(dim)
    if ord is None or dims == 1 or (ord == "fro" and dims == 2):
        ord = 2 if ord in (None, "fro") else ord
        return _vector_norm(products, A, ord, dim, keepdim, dtype=dtype, out=out)
    return None


def _norm(products, input, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    ord = 2 if p in (None, "fro") else p
    if not isinstance(input, torch.Tensor) or isinstance(ord, str):
        return None
    return _vector_norm(products, input, ord, dim, keepdim, dtype=dtype, out=out)


def _cosine_similarity(products, x1, x2, dim=1, eps=1e-8):
    if not _are_real(x1, x2):
        return None
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    x1, x2 = torch.broadcast_tensors(x1.to(dtype), x2.to(dtype))
    x1, x2 = (x / _vector_norm(products, x, 2, dim, True).clamp_min(eps) for x in (x1, x2))
    return _sum(x1 * x2, dim)


def _pairwise_distance(products, x1, x2, p=2.0, eps=1e-6, keepdim=False):
    if not _are_real(x1, x2):
        return None
    return _vector_norm(products, x1 - x2 + eps, p, -1, keepdim)


def _adaptive_avg_pool(rank):
    """adaptive_avg_pool1d, 2d or 3d to one pixel, which is a mean. Others read a window a pixel."""

    def pool(products, input, output_size):
        sizes = [output_size] * rank if isinstance(output_size, int) else [*output_size]
        if sizes != [1] * rank or not _are_real(input):
            return None
        if input.dim() not in (rank + 1, rank + 2) or 0 in input.shape[1:]:
            return None
        return _mean(input, tuple(range(-rank, 0)), True)

    return pool


# --- Losses --------------------------------------------------------------------------------------


def _of_classes(function):
    """A route to nll_loss or cross_entropy."""

    def loss(
        products,
        input,
        target,
        weight=None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        *args,
        **options,
    ):
        if (size_average, reduce) != (None, None) or not _are_real(input, weight):
            return None
        return function(input, target, weight, None, ignore_index, None, *args, **options)

    return loss


def _loss(function, most=2):
    """A route to a loss of each element, which are summed here.

    Args:
        most: so many arguments may have no name, since none of them is size_average.
    """

    def loss(products, *args, size_average=None, reduce=None, reduction="mean", **options):
        if (size_average, reduce) != (None, None) or len(args) > most or not _are_real(args[0]):
            return None
        if reduction not in ("none", "sum", "mean", "batchmean"):
            return None
        each = function(*args, reduction="none", **options)
        if reduction == "none":
            return each
        if reduction == "batchmean":
            return _sum(each) / each.shape[0]
        return _sum(each) if reduction == "sum" else _mean(each)

    return loss


_LOSSES = {
    F.mse_loss: 2,
    F.l1_loss: 2,
    F.smooth_l1_loss: 2,
    F.huber_loss: 2,
    F.kl_div: 2,
    F.binary_cross_entropy: 3,
    F.binary_cross_entropy_with_logits: 3,
    F.poisson_nll_loss: 4,
    F.hinge_embedding_loss: 3,
    F.soft_margin_loss: 2,
    F.margin_ranking_loss: 4,
}
_softmax = _of_a_row(ours.softmax)
_log_softmax = _of_a_row(ours.log_softmax)
_total, _average = _reducing(ours.sum), _reducing(ours.mean)

REDUCTIONS = {
    **{function: _loss(function, most) for function, most in _LOSSES.items()},
    **dict.fromkeys(
        (torch.softmax, torch.Tensor.softmax, F.softmax, torch.special.softmax), _softmax
    ),
    **dict.fromkeys(
        (torch.log_softmax, torch.Tensor.log_softmax, F.log_softmax, torch.special.log_softmax),
        _log_softmax,
    ),
    **dict.fromkeys((torch.logsumexp, torch.Tensor.logsumexp, torch.special.logsumexp), _logsumexp),
    **dict.fromkeys((torch.sum, torch.Tensor.sum), _total),
    **dict.fromkeys((torch.mean, torch.Tensor.mean), _average),
    **dict.fromkeys((torch.cumsum, torch.Tensor.cumsum), _cumsum),
    torch.Tensor.cumsum_: _cumsum_,
    **dict.fromkeys((torch.nansum, torch.Tensor.nansum), _nansum),
    **dict.fromkeys((torch.nanmean, torch.Tensor.nanmean), _nanmean),
    **dict.fromkeys((torch.trace, torch.Tensor.trace), _trace),
    torch.Tensor.sum_to_size: _sum_to_size,
    **dict.fromkeys((torch.layer_norm, F.layer_norm), _layer_norm),
    **dict.fromkeys((torch.rms_norm, F.rms_norm), _rms_norm),
    **dict.fromkeys((torch.group_norm, F.group_norm), _group_norm),
    F.instance_norm: _instance_norm,
    **dict.fromkeys((torch.var, torch.Tensor.var), _var),
    **dict.fromkeys((torch.std, torch.Tensor.std), _std),
    torch.var_mean: _var_mean,
    torch.std_mean: _std_mean,
    torch.linalg.vector_norm: _vector_norm,
    torch.linalg.norm: _linalg_norm,
    torch.norm: _norm,
    F.cosine_similarity: _cosine_similarity,
    F.pairwise_distance: _pairwise_distance,
    F.adaptive_avg_pool1d: _adaptive_avg_pool(1),
    F.adaptive_avg_pool2d: _adaptive_avg_pool(2),
    F.adaptive_avg_pool3d: _adaptive_avg_pool(3),
    F.nll_loss: _of_classes(ours.nll_loss),
    F.cross_entropy: _of_classes(ours.cross_entropy),
}

INSIDE_REDUCTIONS = {
    function: in_modes(function)
    for function in (
        F.normalize,
        F.softmin,
        F.gumbel_softmax,
        F.gaussian_nll_loss,
        F.multilabel_soft_margin_loss,
        F.triplet_margin_with_distance_loss,
    )
}
