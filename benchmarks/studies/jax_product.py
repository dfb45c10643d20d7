"""Products of torch's tensors by jax.lax.dot and its algorithm presets."""

import os
from collections.abc import Callable

import torch

from benchmarks.gemm.measure import Operands

PRESETS = (
    "F32_F32_F32",
    "TF32_TF32_F32_X3",
    "BF16_BF16_F32_X3",
    "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X9",
)


class NotRun(Exception):
    """A way cannot run here; the message says why."""


class Jax:
    """jax.lax.dot by its presets, on tensors of torch. Raises NotRun if it cannot run here."""

    def __init__(self, device: torch.device) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        try:
            import jax
        except ImportError as error:
            raise NotRun(f"{error.name} is not importable") from error
        self._jax = jax
        platform = "gpu" if device.type == "cuda" else "cpu"
        try:
            found = jax.default_backend()
        except RuntimeError as error:
            raise NotRun(f"jax finds no device: {str(error).splitlines()[0]}") from error
        if found != platform:
            raise NotRun(f"jax computes on {found}, torch on {device.type}")

    def compiled(self, preset: str, sets: list[Operands]) -> Callable[[list[Operands]], list]:
        """A jitted function of sets of operands to their products. Raises NotRun."""
        algorithm = self._jax.lax.DotAlgorithmPreset[preset]

        def products(pairs):
            return [self._jax.lax.dot(a, b, precision=algorithm) for a, b in pairs]

        arrays = self.arrays(sets)
        try:
            return self._jax.jit(products).lower(arrays).compile()
        except (self._jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
            raise NotRun(f"XLA refuses it: {str(error).splitlines()[0]}") from error

    def arrays(self, sets: list[Operands]) -> list:
        return [tuple(self._jax.dlpack.from_dlpack(x) for x in pair) for pair in sets]

    def finish(self, results: list) -> list:
        return self._jax.block_until_ready(results)
