"""PyTorch's OpInfo database, and its samples in float64."""

import pytest
import torch

op_db = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="PyTorch's OpInfo database needs expecttest",
).op_db


def widened(sample, change=lambda x: x):
    """The sample in float64 or complex128, with its tensors and scales changed."""

    def wide(x):
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
            return change(x.to(torch.complex128 if x.is_complex() else torch.float64))
        return x

    sample = sample.transform(wide)
    for name in ("alpha", "beta"):
        if name in sample.kwargs:
            sample.kwargs[name] = change(torch.tensor(sample.kwargs[name])).item()
    if isinstance(dtype := sample.kwargs.get("dtype"), torch.dtype):
        sample.kwargs["dtype"] = torch.complex128 if dtype.is_complex else torch.float64
    return sample
