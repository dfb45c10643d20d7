"""The checks of reductions of rows (csrc/binding/rows.cpp and norms.cpp) for tensors without data.

Sizes may be symbolic.
"""

import torch

from .checks import _check, _check_same_device, _shape

_16BIT = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_rows(op, name, x):
    if x.dtype not in DTYPES:
        *others, last = map(str, DTYPES)
        raise RuntimeError(f"{op}: {name} is {x.dtype}; it must be {', '.join(others)} or {last}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: {name} is (); it must have a dimension")


def check_softmax_backward(op, grad, y):
    _check_same_device(op, "grad", grad, "y", y)
    check_rows(op, "grad", grad)
    check_rows(op, "y", y)
    if grad.dtype != y.dtype:
        wide = torch.float64 if torch.float64 in (grad.dtype, y.dtype) else torch.float32
        raise RuntimeError(
            f"{op}: grad is {grad.dtype} and y is {y.dtype}; pass both in one dtype, for example "
            f"with .to({wide}), which has all values of both"
        )

    def sentence():
        return f"{op}: grad is {_shape(grad)} and y is {_shape(y)}; they must have one shape"

    _check(grad.dim() == y.dim(), sentence)
    _check(grad.shape == y.shape, sentence)


# --- norms ---------------------------------------------------------------------------------------


def _dtype_of_sums(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_param(op, name, param, x):
    _check_same_device(op, name, param, "x", x)
    is_wide = x.dtype in _16BIT and param.dtype == torch.float32
    if param.dtype != x.dtype and not is_wide:
        other = " or be torch.float32" if x.dtype in _16BIT else ""
        raise RuntimeError(
            f"{op}: {name} is {param.dtype} and x is {x.dtype}; {name} must have x's dtype{other}"
        )
    _check(
        param.dim() == 1 and param.shape[0] == x.shape[-1],
        lambda: f"{op}: {name} is {_shape(param)} and x is {_shape(x)}; {name} must be (columns,)",
    )


def check_row_norm(x, weight, bias, centered):
    """Returns the dtype of the mean and the inverse deviation, and their shape."""
    op = "tiled::_row_norm"
    check_rows(op, "x", x)
    for name, param in (("weight", weight), ("bias", bias)):
        if param is not None:
            _check_param(op, name, param, x)
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise RuntimeError(
            f"{op}: weight is {weight.dtype} and bias is {bias.dtype}; both must have one dtype"
        )
    if bias is not None and not centered:
        raise RuntimeError(f"{op}: bias is given and centered is False; RMS norm has no bias")
    return _dtype_of_sums(x), x.shape[:-1]


def check_row_norm_backward(grad, x, weight, mean, inverse, centered, needs):
    """Returns the dtype of the gradients of the weight and the bias."""
    op = "tiled::_row_norm_backward"
    check_rows(op, "x", x)
    sums, rows = _dtype_of_sums(x), x.shape[:-1]
    if weight is not None:
        _check_param(op, "weight", weight, x)

    def check_saved(name, saved, dtype, shape):
        _check_same_device(op, name, saved, "x", x)
        _check(
            saved.dtype == dtype and saved.dim() == len(shape) and saved.shape == shape,
            lambda: (
                f"{op}: {name} is {_shape(saved)} of {saved.dtype}; it must be {tuple(shape)} of "
                f"{dtype}"
            ),
        )

    check_saved("grad", grad, x.dtype, x.shape)
    check_saved("mean", mean, sums, rows if centered else (0,))
    check_saved("inverse", inverse, sums, rows)
    if needs[2] and not centered:
        raise RuntimeError(f"{op}: needs_bias is True and centered is False; RMS norm has no bias")
    return x.dtype if weight is None else weight.dtype
