"""cublasXtSgemm, the vendor's product of matrices on the host, by ctypes."""

import ctypes
import ctypes.util
import re
from pathlib import Path

import torch

_NO_TRANSPOSE = 0  # CUBLAS_OP_N
_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_ARGUMENTS = {  # as in cublasXt.h
    "cublasXtCreate": (_POINTER,),
    "cublasXtDestroy": (_POINTER,),
    "cublasXtDeviceSelect": (_POINTER, _INT, _POINTER),
    "cublasXtSetBlockDim": (_POINTER, _INT),
    "cublasXtSgemm": (
        *(_POINTER, _INT, _INT, _SIZE, _SIZE, _SIZE, _POINTER),
        *(_POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE),
    ),
}


def load():
    """Returns the libcublas that torch has loaded, or the system's. Raises OSError."""
    ones = torch.ones(8, 8, device="cuda")
    torch.mm(ones, ones)  # which loads it
    torch.cuda.synchronize()
    maps = Path("/proc/self/maps").read_text()
    found = re.findall(r"(/\S*/libcublas\.so\S*)", maps)
    name = found[0] if found else ctypes.util.find_library("cublas")
    if name is None:
        raise OSError("torch has loaded no libcublas, and the system has none")
    library = ctypes.CDLL(name)
    for function, arguments in _ARGUMENTS.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = _INT
    return library


class CublasXt:
    """A handle of cublasXt for some GPUs.

    Args:
        library: what load() returns.
        devices: the numbers of the GPUs.
    """

    def __init__(self, library, devices=(0,)):
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        numbers = (ctypes.c_int * len(devices))(*devices)
        self._call("cublasXtDeviceSelect", self._handle, len(devices), numbers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call("cublasXtDestroy", self._handle)

    def _call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned the status {status}")

    def set_block(self, size: int) -> None:
        """The side of the square blocks that go to the GPU."""
        self._call("cublasXtSetBlockDim", self._handle, size)

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """Writes a @ b to out, all of them row-major float32 on the host.

        The library is column-major, where these matrices are the transposed ones, and the product
        is out.T = b.T @ a.T.
        """
        for x in (a, b, out):
            if x.dtype != torch.float32 or not x.is_contiguous() or x.is_cuda:
                raise ValueError("cublasXtSgemm is called for contiguous float32 of the host alone")
        (m, k), n = a.shape, b.shape[1]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._call(
            "cublasXtSgemm",
            *(self._handle, _NO_TRANSPOSE, _NO_TRANSPOSE, n, m, k),
            *(ctypes.byref(one), b.data_ptr(), n, a.data_ptr(), k),
            *(ctypes.byref(zero), out.data_ptr(), n),
        )
