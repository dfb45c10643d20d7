"""The complex dtypes as parameters of tests, and views of a complex tensor."""

import pytest
import torch

COMPLEX = [torch.complex64, torch.complex128]
every_complex = pytest.mark.parametrize("dtype", COMPLEX, ids=str)

# Functions of a tensor whose result has the bit of a conjugate, of a negative, or both.
VIEWS = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "neg": lambda x: x._neg_view(),
    "both": lambda x: x.conj()._neg_view(),
}

# Functions of a tensor that give the same values, stored in another way.
STORED = {
    "as it is": lambda x: x,
    "conjugate": lambda x: x.conj().resolve_conj().conj(),
    "negative": lambda x: torch._neg_view(-x),
    "both": lambda x: torch._neg_view((-x).conj().resolve_conj().conj()),
    "adjoint": lambda x: x.mH.resolve_conj().contiguous().mH,
    "transpose": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, -2).repeat_interleave(3, -1)[..., ::2, ::3],
    "shifted": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
}
