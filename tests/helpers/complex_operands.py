"""The complex dtypes as parameters of tests, and lazy views of a complex tensor."""

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
