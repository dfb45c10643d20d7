"""`python -m torch_tiled info`: versions, the library, devices, and a self-test."""

import hashlib
import json
import platform
import re
from pathlib import Path

import torch

from . import stream
from ._op.namespace import LIBRARY
from .grouped import grouped_mm
from .ops import matmul
from .version import __version__, numerics_version

__all__ = ["as_table", "info"]

_SIZES = 33, 47, 256  # m, n, k: partial tiles of C, and K long enough for tensor cores
# The dtypes of the products, and the dtype that each is summed in, of complex numbers each part.
_SUMMED_IN = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
# (the operands' dtype, the result's, "streamed", "grouped" or "") of each product.
_KINDS = (
    *((dtype, dtype, "") for dtype in _SUMMED_IN),
    (torch.float16, torch.float32, ""),
    (torch.bfloat16, torch.float32, ""),
    (torch.float32, torch.float32, "streamed"),
    (torch.float32, torch.float32, "grouped"),
    (torch.bfloat16, torch.bfloat16, "grouped"),
)


def info() -> dict:
    """Describes this installation, and tests if its products are right.

    Returns:
        A dict that JSON can hold, with these keys.

        - "torch_tiled": its version; "numerics": the version of its products' bits; "library": the
          file it has loaded.
        - "built with": "torch" and "cuda" ("none" without CUDA), "architectures", the machine code
          (`sm_*`) and PTX (`compute_*`) in the library, and "namespace", that of its operators in
          torch.ops. It is None if no record of this very library is beside it.
        - "running": "python", "torch" and "cuda", the version of torch's CUDA or "none".
        - "devices": for each its "device" and "name"; for GPUs also "capability" and "code", the
          architecture in the library that the GPU runs.
        - "products": for each its "device", "dtype", "out_dtype", "streamed" (whether it is one
          of torch_tiled.stream), "grouped" (whether it is grouped_mm's) and "algorithm", and
          "error": None, or a sentence.
        - "ok": whether no product has an error.

    Examples:
        >>> from torch_tiled.info import info
        >>> info()["ok"]
        True
    """
    built = _built_with(LIBRARY)
    products = _products()
    return {
        "torch_tiled": __version__,
        "numerics": numerics_version,
        "library": str(LIBRARY),
        "built with": built,
        "running": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
        },
        "devices": _devices(built),
        "products": products,
        "ok": all(product["error"] is None for product in products),
    }


def as_table(facts: dict) -> str:
    """Formats the result of info(), a line for each thing.

    Args:
        facts: the result of info().

    Returns:
        The text that `python -m torch_tiled info` prints.

    Examples:
        >>> from torch_tiled.info import as_table, info
        >>> as_table(info()).split()[:2] == ["torch_tiled", torch_tiled.__version__]
        True
    """
    built, running = facts["built with"], facts["running"]
    if built is None:
        built = dict.fromkeys(("torch", "cuda", "architectures"), "unknown")
    else:
        built = {**built, "architectures": ", ".join(built["architectures"]) or "none"}
    lines = [
        ("torch_tiled", facts["torch_tiled"]),
        ("numerics", str(facts["numerics"])),
        ("library", facts["library"]),
        ("built with torch", built["torch"]),
        ("built with CUDA", built["cuda"]),
        ("built for GPUs", built["architectures"]),
        ("python", running["python"]),
        ("torch", running["torch"]),
        ("torch's CUDA", running["cuda"]),
    ]
    for device in facts["devices"]:
        text = device["name"]
        if "capability" in device:
            text += f", compute capability {device['capability']}, code for it: {device['code']}"
        lines.append((device["device"], text))
    for product in facts["products"]:
        name = product["dtype"]
        if product["out_dtype"] != name:
            name += f" to {product['out_dtype']}"
        name += "".join(f", {x}" for x in ("streamed", "grouped") if product[x])
        name += f" on {product['device']}"
        lines.append((name, f"{product['algorithm']}: {product['error'] or 'ok'}"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _built_with(path: Path) -> dict | None:
    """Returns what setup.py recorded beside the library, or None if the record is of another."""
    record = path.with_suffix(".json")
    if not record.exists():
        return None
    built = json.loads(record.read_text())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return built if built.pop("sha256") == digest else None


# --- devices -------------------------------------------------------------------------------------


def _devices(built: dict | None) -> list[dict]:
    devices = [{"device": "cpu", "name": platform.machine()}]
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        devices.append(
            {
                "device": f"cuda:{index}",
                "name": torch.cuda.get_device_name(index),
                "capability": "{}.{}".format(*capability),
                "code": _code_for(capability, built["architectures"]) if built else "unknown",
            }
        )
    return devices


def _code_for(capability: tuple[int, int], architectures: list[str]) -> str:
    """Returns the architecture that a driver takes: machine code, else PTX, else "none".

    Machine code runs on GPUs of its own major version and at least its minor version. PTX runs on
    every GPU from its version on. Either with an "a" runs on its own version alone.
    """
    found = {"sm": [], "compute": []}
    for name in architectures:
        kind, major, minor, only = re.fullmatch(r"(sm|compute)_(\d+)(\d)(a?)", name).groups()
        version = int(major), int(minor)
        if only:
            fits = capability == version
        elif kind == "sm":
            fits = capability[0] == version[0] and capability >= version
        else:
            fits = capability >= version
        if fits:
            found[kind].append((version, name))
    if found["sm"]:
        return max(found["sm"])[1]
    return f"{max(found['compute'])[1]}, by the driver" if found["compute"] else "none"


# --- the self-test -------------------------------------------------------------------------------


def _products() -> list[dict]:
    # On the CPU "auto" is torch.matmul, which would be compared with itself.
    algorithms = {"cpu": "tiled"}
    if torch.cuda.is_available():
        algorithms[f"cuda:{torch.cuda.current_device()}"] = "auto"
    return [
        {
            "device": device,
            "dtype": str(dtype).removeprefix("torch."),
            "out_dtype": str(out_dtype).removeprefix("torch."),
            "streamed": way == "streamed",
            "grouped": way == "grouped",
            "algorithm": "auto" if way == "grouped" else algorithm,  # it takes no other
            "error": _error(dtype, out_dtype, way, device, algorithm),
        }
        for device, algorithm in algorithms.items()
        for dtype, out_dtype, way in _KINDS
    ]


def _error(
    dtype: torch.dtype, out_dtype: torch.dtype, way: str, device: str, algorithm: str
) -> str | None:
    """Computes a product, and returns a sentence on its wrong elements, or None.

    A sum of K products in any order errs by at most (K + 2) u |A||B|; u is the unit roundoff
    of the dtype that it is summed in, and the 2 covers terms of second order; tensor cores err by
    less at this K (docs/guide/numerics.md). A part of a complex sum has 2 K products, which |A||B|
    bounds as well. The float64 product that it is compared with also has such an error. The sum is
    then rounded to its dtype.
    """
    m, n, k = _SIZES
    wide = torch.complex128 if dtype.is_complex else torch.float64
    generator = torch.Generator().manual_seed(0)  # leaves the default one alone
    a = torch.randn(m, k, generator=generator, dtype=wide, device="cpu").to(dtype)
    b = torch.randn(k, n, generator=generator, dtype=wide, device="cpu").to(dtype)
    try:
        if way == "streamed":
            product = stream.matmul(a, b, devices=device, algorithm=algorithm)
        elif way == "grouped":  # rows in two groups, of which the second has the opposite of b
            ends = torch.tensor([m // 3, m], dtype=torch.int32, device=device)
            product = grouped_mm(a.to(device), torch.stack([b, -b]).to(device), offs=ends).cpu()
            product[m // 3 :].neg_()
        else:
            options = {"algorithm": algorithm, "out_dtype": out_dtype}
            product = matmul(a.to(device), b.to(device), **options).cpu()
    except RuntimeError as error:
        return str(error)
    exact, size = a.to(wide) @ b.to(wide), a.to(wide).abs() @ b.to(wide).abs()
    terms = 2 * k if dtype.is_complex else k
    limit = (terms + 2) * (_roundoff(_SUMMED_IN[dtype]) + _roundoff(torch.float64)) * size
    limit += _roundoff(out_dtype) * (exact.abs() + limit)
    difference = product.to(wide) - exact
    error = torch.view_as_real(difference).abs().amax(-1) if dtype.is_complex else difference.abs()
    wrong = ~(error <= limit)  # a NaN is wrong
    if not wrong.any():
        return None
    row, col = (int(index) for index in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {m * n} elements are wrong: at ({row}, {col}) is "
        f"{product[row, col].item():.9g} instead of {exact[row, col].item():.9g}, and an error of "
        f"{limit[row, col].item():.2g} is allowed"
    )


def _roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
