"""How torch.utils.flop_counter counts the operators: two operations for each FMA.

That module imports triton, if that is installed, which takes long. So the formulas are registered
when somebody else imports it.
"""

import importlib.abc
import math
import sys

import torch

from .namespace import operators

_COUNTER = "torch.utils.flop_counter"


def _matmul_flops(a_shape, b_shape, *_, **__):
    batch = torch.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    m = math.prod(a_shape[-2:-1])
    n = math.prod(b_shape[-1:]) if len(b_shape) > 1 else 1
    return 2 * math.prod(batch) * m * n * a_shape[-1]


def _gemm_flops(c_shape, a_shape, b_shape, *_, **__):
    return 2 * math.prod(c_shape) * a_shape[-1]


def _linear_flops(x_shape, weight_shape, *_, **__):
    return 2 * math.prod(x_shape) * weight_shape[0]


def _grouped_mm_flops(a_shape, b_shape, *_, **__):
    """Groups share a's rows, or K, or b's columns, so all of them together count."""
    rows = a_shape[-2:] if len(b_shape) == 2 else a_shape
    return 2 * math.prod(rows) * b_shape[-1]


def _attention_flops(q_shape, k_shape, v_shape, *_, **__):
    """All keys count, seen or not, as in PyTorch's formula."""
    return 2 * math.prod(q_shape[:3]) * k_shape[2] * (q_shape[3] + v_shape[3])


def _attention_packed_flops(
    q_shape, k_shape, v_shape, offsets_q, offsets_k, max_q, max_k, *_, **__
):
    """Each sequence counts as the longest one, as its length is on the device."""
    sequences = offsets_q[0] - 1
    return 2 * sequences * max_q * q_shape[1] * max_k * (q_shape[2] + v_shape[2])


def _register_formulas(register_flop_formula):
    register_flop_formula(operators.matmul)(_matmul_flops)
    register_flop_formula(operators.gemm_)(_gemm_flops)
    register_flop_formula(operators._gemm)(_gemm_flops)
    register_flop_formula(operators.linear)(_linear_flops)
    register_flop_formula(operators.grouped_mm)(_grouped_mm_flops)
    register_flop_formula(operators.attention)(_attention_flops)
    register_flop_formula(operators.attention_packed)(_attention_packed_flops)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch.utils.flop_counter as Python does, and has the formulas registered in it."""

    def find_spec(self, fullname, path, target=None):
        if fullname != _COUNTER:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]  # one may be of another copy
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register_formulas(module.register_flop_formula)

            spec.loader.exec_module = execute_and_register
        return spec


def register():
    if _COUNTER in sys.modules:
        _register_formulas(sys.modules[_COUNTER].register_flop_formula)
    else:
        sys.meta_path.insert(0, _Finder())
